"""TRL's side of collect_vs_trl.py, run by .venv-trl's Python: seconds that GRPOTrainer takes to collect a batch.

    trl_collect_side.py MODEL TASKS ORDER.json BATCHES GROUPS GROUP_SIZE -> one line of JSON

The same tiny model, tasks and waits; commands run in plain folders, which costs less than a sandbox. What is adapted is
only how a message names its command: the whole message is one, as this model has learned, and `done` alone ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ 'user' if message['role'] == 'tool' else message['role'] }}\n"
    "{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }}"
    "{% for key, value in call['function']['arguments'].items() %}{{ key }} {{ value }}{% endfor %}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Shell:
    """One rollout's folder; its commands wait as the task says."""

    tasks = Path()

    def reset(self, task: str = "", **_: Any) -> None:
        self._files = self.tasks / task / "environment" / "files"
        self._folder = Path(tempfile.mkdtemp(prefix="trl-"))
        for file in self._files.iterdir():
            (self._folder / file.name).write_bytes(file.read_bytes())
        self._waits = [float(line) for line in (self._files / ".waits").read_text().split()]
        self._count = 0

    def bash(self, command: str) -> str:
        """Run a command.

        Args:
            command: The command.
        """
        wait_s = self._waits[self._count] if self._count < len(self._waits) else 0.0
        self._count += 1
        time.sleep(wait_s)
        done = subprocess.run(["bash", "-c", command], cwd=self._folder, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip() or "(no output)"

    def get_reward(self) -> float:
        answer = self._folder / "answer"
        named = (self._files / "note").read_text().strip()
        return float(answer.is_file() and answer.read_bytes() == (self._files / named).read_bytes())


def parse(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
    """The message is a command; `done`, or nothing, ends the episode."""
    text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    call = {"type": "function", "function": {"name": "bash", "arguments": {"command": text}}}
    return {"role": "assistant", "content": text} | ({} if text in ("", "done") else {"tool_calls": [call]})


class Timed(GRPOTrainer):
    """Notes how long each batch took to collect; generation, commands and rewards, no training."""

    times: ClassVar[list[float]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        result = super()._generate_and_score_completions(inputs)
        self.times.append(time.perf_counter() - began)
        print(f"TRL: batch {len(self.times)} in {self.times[-1]:.1f} s", file=sys.stderr, flush=True)
        return result


def main() -> None:
    model, tasks, order_file, batches, groups, group_size = sys.argv[1:]
    torch.set_num_threads(1)
    grpo.parse_response = parse
    Shell.tasks = Path(tasks)
    order = json.loads(Path(order_file).read_text())
    instruction = (Path(tasks) / order[0] / "instruction.md").read_text().strip()
    rows = [{"prompt": [{"role": "user", "content": instruction}], "task": name} for name in order]
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_schema = {"type": "object"}  # that there is a parser; `parse` stands for it
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=int(groups) * int(group_size),
            num_generations=int(group_size),
            max_completion_length=116,
            max_tool_calling_iterations=2,
            temperature=1.0,
            learning_rate=1e-12,
            max_steps=int(batches),
            shuffle_dataset=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            chat_template_kwargs={},
        )
        trainer = Timed(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=Shell,
        )
        trainer.train()
    print(json.dumps({"batches_s": Timed.times}))


if __name__ == "__main__":
    main()
