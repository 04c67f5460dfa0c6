"""A whole run whose episodes are played by a harness: processes, endpoint, engine, trainer."""

from __future__ import annotations

import json
import sys

from agentrl.ledger.reader import LedgerReader
from tests.e2e.job import Lab

HARNESS = """\
import json, os, urllib.request
import agentrl_harness

messages = [{"role": "user", "content": agentrl_harness.task()}]
while True:
    body = {"model": os.environ["AGENTRL_MODEL"], "messages": messages}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, data=json.dumps(body).encode())))
    said = answer["choices"][0]["message"]["content"]
    if said == "done":
        break
    messages.append({"role": "assistant", "content": said})
    done = agentrl_harness.execute(said)
    messages.append({"role": "user", "content": done["stdout"].strip() or "(no output)"})
"""


def test_a_harness_plays_the_episodes_of_a_run(lab: Lab) -> None:
    script = lab.folder / "harness.py"
    script.write_text(HARNESS)
    command = f"agent.harness.command=[{sys.executable},-S,{script}]"
    job = lab.launch(command, "schedule.steps=2", "schedule.eval_tasks=1")
    assert job.end() == 0, job.events[-3:]
    lab.check_each_group_trained_at_most_once(2)
    reader = LedgerReader.open(lab.run / "ledger.sqlite")
    evidence = [json.loads(text) for (text,) in reader._db.execute("SELECT evidence FROM episodes WHERE verdict != ''")]
    assert all(one["harness"]["num_answered"] >= 1 for one in evidence)
    assert {one["sequences"]["num"] for one in evidence} == {1}
    differences = [step.metrics.get("mismatch_max", 0.0) for step in reader.steps()]
    assert max(differences) < 1e-4, "the trainer finds the engine's log-probs at the recorded ids"
    reader.close()
    assert not lab.left_over()
    assert list((lab.run / "work" / "harness").iterdir()) == []
