"""Mistakes in files and overrides: each is one UserError that says what is wrong, where, and what to do."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.config.compose import load
from agentrl.errors import UserError

BASE = "defaults:\n  - agentrl\n  - override /model: tiny\n  - override /tasks: boxes\n  - _self_\n"
"""Five lines: what a case adds begins at line 6."""


def message_of(file: Path, overrides: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        load(file, overrides)
    return str(caught.value)


@dataclass
class Case:
    """A job folder, and fragments that the message must hold."""

    expected: list[str]
    text: str = ""
    overrides: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    """Whether `text` is the whole file; otherwise it follows BASE."""


OVERRIDES = {
    "unknown key": Case(
        ["override 'schedule.stpes=5'", "unknown key", "'schedule.steps'"], overrides=["schedule.stpes=5"]
    ),
    "unknown key behind +": Case(["'+trainer.stpes=5'", "unknown key"], overrides=["+trainer.stpes=5"]),
    "unknown key behind ++": Case(["unknown key 'trainer.lrr'", "'trainer.lr'"], overrides=["++trainer.lrr=5"]),
    "unknown nested key": Case(["unknown key 'schedule.stps'"], overrides=["schedule={stps: 3}"]),
    "unknown group of keys": Case(["unknown key 'foo.bar'", "--schema"], overrides=["+foo.bar=1"]),
    "right name, wrong place": Case(["did you mean 'schedule.groups_per_step'"], overrides=["groups_per_step=3"]),
    "key below a value": Case(["unknown key 'seed.x'"], overrides=["+seed.x=1"]),
    "key of an earlier version": Case(
        ["'schedule.balance' is gone", "schedule.swing=none was overlap"], overrides=["schedule.balance=overlap"]
    ),
    "missing option": Case(["no option 'tinny'", "folder, smollm2, tiny", "'tiny'?"], overrides=["model=tinny"]),
    "unknown group": Case(["unknown key 'modle'", "'model'"], overrides=["modle=tiny"]),
    "value for a group": Case(
        ["group 'schedule' has no option '5'", "colocated, disaggregated, hybrid"], overrides=["schedule=5"]
    ),
    "not an integer": Case(["schedule.steps: abc is not a whole number >= 1"], overrides=["schedule.steps=abc"]),
    "a float for an integer": Case(["seed: 1.5 is not a whole number"], overrides=["seed=1.5"]),
    "an exponent for an integer": Case(["is not a whole number", "write 1000"], overrides=["schedule.steps=1e3"]),
    "a bool for an integer": Case(["seed: true is not a whole number"], overrides=["seed=true"]),
    "null for an integer": Case(["seed: null is not a whole number"], overrides=["seed=null"]),
    "text for a bool": Case(["maybe is not true or false"], overrides=["schedule.drop_zero_variance=maybe"]),
    "text for a list": Case(["tasks.include: mkdir is not a list"], overrides=["tasks.include=mkdir"]),
    "a list for text": Case(["[a] is not text"], overrides=["model.path=[a]"]),
    "unknown enum": Case(
        ["box is not an option", "none, boxes, shell_basics", "'boxes'?"], overrides=["tasks.family=box"]
    ),
    "zero": Case(["schedule.steps: 0 is not a whole number >= 1"], overrides=["schedule.steps=0"]),
    "negative": Case(["schedule.eval_tasks: -1 is not a whole number >= 0"], overrides=["schedule.eval_tasks=-1"]),
    "share above one": Case(["1.5 is not a number > 0 and <= 1"], overrides=["schedule.kv_share=1.5"]),
    "nan": Case(["trainer.lr: nan is not a number > 0"], overrides=["trainer.lr=nan"]),
    "infinity": Case(["agent.turn_timeout_s: inf is not a number > 0"], overrides=["agent.turn_timeout_s=inf"]),
    "an exponent for text": Case(
        ["name: 1e5 would become the text 100000.0", "write 'name=\"1e5\"'"], overrides=["name=1e5"]
    ),
    "a version for text": Case(["name: 1.50 would become the text 1.5"], overrides=["name=1.50"]),
    "underscores for text": Case(["would become the text 1000", "write 'name=\"1_000\"'"], overrides=["name=1_000"]),
    "a bool for text": Case(["name: true would become the text True"], overrides=["name=true"]),
    "an exponent in a list of texts": Case(
        ["tasks.include: [1e5] would become the text 100000.0", "double quotes"], overrides=["tasks.include=[1e5]"]
    ),
    "an exponent in a mapping": Case(
        ["model.path: {path: 1e5} would become the text 100000.0"], overrides=["model={path: 1e5}"]
    ),
    "a leading zero": Case(["schedule.steps: 010 has a leading zero", "write 10"], overrides=["schedule.steps=010"]),
    "a leading zero in quotes": Case(["has a leading zero"], overrides=["schedule.steps='010'"]),
    "a leading zero in a mapping": Case(["007 has a leading zero", "write 7"], overrides=["schedule={steps: 007}"]),
    "two zeros": Case(["00 has a leading zero (write 0)"], overrides=["seed=00"]),
    "name with a slash": Case(["name: a/b is not text of at most 63"], overrides=["name=a/b"]),
    "empty text": Case(["model.path:", "is not text that is not empty"], overrides=["model.path=''"]),
    "an empty name": Case(["name: '' is not text of at most 63"], overrides=['name=""']),
    "the text None": Case(["name: None is the text 'None'", "write null"], overrides=["name=None"]),
    "missing": Case(["model.path is missing", "add model.path=..."], overrides=["model=folder"]),
    "missing, said in an override": Case(["trainer.lr is missing"], overrides=["trainer.lr=???"]),
    "no equals sign": Case(["override 'schedule' is not understood", "key=value"], overrides=["schedule"]),
    "two equals signs": Case(["is not understood", "quote a value"], overrides=["model.path=a=b"]),
    "open bracket": Case(["override 'tasks.include=[a' is not understood"], overrides=["tasks.include=[a"]),
    "empty override": Case(["override '' is not understood"], overrides=[""]),
    "sweep": Case(["has several values", "a list is key=[a,b]"], overrides=["seed=1,2"]),
    "range sweep": Case(["has several values"], overrides=["seed=range(1,4)"]),
    "glob sweep": Case(["has several values"], overrides=["model=glob(*)"]),
    "hydra setting": Case(["Hydra's own settings have no effect"], overrides=["hydra.run.dir=x"]),
    "hydra group": Case(["Hydra's own settings have no effect"], overrides=["+hydra/launcher=joblib"]),
    "hydra search path": Case(["Hydra's own settings have no effect"], overrides=["hydra.searchpath=[pkg://x]"]),
    "removing a setting": Case(["every setting needs a value", "write schedule.steps="], overrides=["~schedule.steps"]),
    "removing what is not there": Case(["unknown key 'schedule.stpes'"], overrides=["~schedule.stpes"]),
    "removing another option": Case(["Could not delete 'observe=rich'"], overrides=["~observe=rich"]),
    "adding what exists": Case(
        ["'+schedule.steps' adds what exists already", "without the +"], overrides=["+schedule.steps=4"]
    ),
    "choosing a group twice": Case(["model"], overrides=["+model=tiny"]),
    "another package": Case(["model@policy"], overrides=["model@policy=tiny"]),
    "unresolvable": Case(["name: ${foo} cannot be resolved", "'foo' not found"], overrides=["name=${foo}"]),
    "unresolvable in a list": Case(
        ["tasks.include: [${foo}] cannot be resolved"], overrides=["tasks.include=[${foo}]"]
    ),
    "circle of one": Case(["name: ${name} cannot be resolved: it leads back to itself"], overrides=["name=${name}"]),
    "circle of two": Case(
        ["cannot be resolved: it leads back to itself"], overrides=["name=${model.path}", "model.path=${name}"]
    ),
    "unset variable": Case(["Environment variable 'NO_SUCH' not found"], overrides=["name=${oc.env:NO_SUCH}"]),
    "hydra's resolver": Case(["name: ${hydra:job.name} cannot be resolved"], overrides=["name=${hydra:job.name}"]),
    "unknown resolver": Case(["Unsupported interpolation type nope"], overrides=["name=${nope:1}"]),
    "interpolation of a wrong type": Case(["seed: ${model.path} cannot be resolved"], overrides=["seed=${model.path}"]),
}

FILES = {
    "unknown key": Case(["job.yaml:7: unknown key 'schedule.stpes'", "'schedule.steps'?"], "schedule:\n  stpes: 5\n"),
    "unknown section": Case(["job.yaml:6: unknown key 'scheduel'", "'schedule'?"], "scheduel:\n  steps: 5\n"),
    "dotted key": Case(
        ["job.yaml:6: 'schedule.steps': dots do not nest in YAML", "write schedule: {steps: ...}"],
        "schedule.steps: 5\n",
    ),
    "key that YAML reads as a bool": Case(["job.yaml:6: unknown key 'on'"], "on: 5\n"),
    "hydra section": Case(["job.yaml:6: 'hydra'", "no effect here"], "hydra:\n  run: {dir: x}\n"),
    "not an integer": Case(
        ["job.yaml:7: schedule.steps: many is not a whole number >= 1"], "schedule:\n  steps: many\n"
    ),
    "out of range": Case(["job.yaml:7: schedule.steps: 0 is not a whole number >= 1"], "schedule:\n  steps: 0\n"),
    "mapping for a value": Case(["job.yaml:6: seed: a mapping is not a whole number"], "seed: {a: 1}\n"),
    "value for a section": Case(["job.yaml:6: schedule has settings below it"], "schedule: 5\n"),
    "empty section": Case(["job.yaml:6: schedule has settings below it"], "schedule:\n"),
    "unknown enum": Case(["job.yaml:7: tasks.family: bxes is not an option", "'boxes'?"], "tasks:\n  family: bxes\n"),
    "missing value": Case(["trainer.lr is missing"], "trainer:\n  lr: ???\n"),
    "unresolvable": Case(["job.yaml:6: name: ${nope} cannot be resolved"], "name: ${nope}\n"),
    "broken interpolation": Case(["job.yaml:6: ${nope is not a complete ${...}"], "name: ${nope\n"),
    "no as text": Case(["job.yaml:6: name: no means false in YAML", "'no' in quotes"], "name: no\n"),
    "an empty name": Case(["job.yaml:6: name: '' is not text of at most 63"], 'name: ""\n'),
    "on as text": Case(["job.yaml:6: name: on means true in YAML", "'on' in quotes"], "name: on\n"),
    "off as an option": Case(["job.yaml:7: model.recipe: off means false"], "model:\n  recipe: off\n"),
    "octal text": Case(["name: 010 means 8 in YAML", "'010' in quotes"], "name: 010\n"),
    "octal number": Case(["schedule.steps: 010 means 8 in YAML (octal)", "write 10 or 8"], "schedule:\n  steps: 010\n"),
    "time as text": Case(["name: 1:30 means 90 in YAML"], "name: 1:30\n"),
    "time as number": Case(
        ["agent.turn_timeout_s: 1:30 means 90 in YAML (base 60)", "write 90"], "agent:\n  turn_timeout_s: 1:30\n"
    ),
    "time with a leading zero": Case(
        ["agent.turn_timeout_s: 01:30 is not a number > 0", "write 90"], "agent:\n  turn_timeout_s: 01:30\n"
    ),
    "time in an override": Case(
        ["agent.turn_timeout_s: 01:30 is not a number > 0", "write 90"], overrides=["agent.turn_timeout_s='01:30'"]
    ),
    "version as text": Case(["name: 3.10 means 3.1 in YAML"], "name: 3.10\n"),
    "exponent as text": Case(["name: 1e3 means 1000.0 in YAML"], "name: 1e3\n"),
    "exponent as integer": Case(
        ["schedule.steps: 1e3 is not a whole number", "write 1000"], "schedule:\n  steps: 1e3\n"
    ),
    "trap in a list": Case(["job.yaml:8: tasks.include: yes means true"], "tasks:\n  include:\n    - yes\n"),
    "the text None": Case(["name: None is the text 'None' in YAML", "write null"], "name: None\n"),
    "set twice": Case(["job.yaml:7: 'seed' is set twice"], "seed: 1\nseed: 2\n"),
    "set twice below": Case(["job.yaml:8: 'steps' is set twice"], "schedule:\n  steps: 1\n  steps: 2\n"),
    "python tag": Case(
        ["job.yaml:6: the tag python/object:os.system means nothing here"], "name: !!python/object:os.system x\n"
    ),
    "mapping tagged as text": Case(["job.yaml:6: the tag str means nothing here"], "name: !!str {a: 1}\n"),
    "null as a key": Case(["job.yaml:6: a key must be a word"], "null: 1\n"),
    "tag on a key": Case(["job.yaml:6: a key must be a word"], "!x name: a\n"),
    "mapping as a key": Case(["job.yaml:6: a key must be a word"], "? {a: 1}\n: b\n"),
    "an override before the base's groups": Case(
        ["Overrides must be at the end"],
        "defaults: [override /model: tiny, agentrl, _self_]\n",
        whole=True,
    ),
    "empty": Case(["job.yaml: is empty", "defaults"], "", whole=True),
    "only comments": Case(["job.yaml: is empty"], "# nothing\n", whole=True),
    "no defaults": Case(["job.yaml: has no defaults list", "agentrl"], "seed: 1\n", whole=True),
    "a list": Case(["job.yaml: holds no settings"], "- seed\n", whole=True),
    "a word": Case(["job.yaml: holds no settings"], "seed\n", whole=True),
    "not YAML": Case(["job.yaml:2: is not YAML"], "defaults: [agentrl\nseed: 1\n", whole=True),
    "a tab": Case(["job.yaml:7: is not YAML"], "schedule:\n\tsteps: 1\n"),
    "two documents": Case(["is not YAML"], "---\nseed: 1\n"),
    "control characters": Case(["is not YAML"], "name: \x07\n"),
    "defaults without a list": Case(["job.yaml:1: defaults is not a list"], "defaults: agentrl\n", whole=True),
    "empty defaults": Case(["defaults is not a list"], "defaults: []\n", whole=True),
    "odd entry of defaults": Case(["job.yaml:3: not an entry"], "defaults:\n  - agentrl\n  - [a]\n", whole=True),
    "without the base": Case(["lacks the base", "- agentrl"], "defaults: [_self_]\nseed: 1\n", whole=True),
    "a config that is not there": Case(
        ["job.yaml:2: no config named 'agentlr'"], "defaults:\n - agentlr\n", whole=True
    ),
    "a group that is not there": Case(
        ["job.yaml:3: no group 'modle'", "'model'?"],
        "defaults:\n  - agentrl\n  - override /modle: tiny\n  - _self_\n",
        whole=True,
    ),
    "an option that is not there": Case(
        ["job.yaml:3: group 'model' has no option 'tinny'", "folder, smollm2, tiny"],
        "defaults:\n  - agentrl\n  - override /model: tinny\n  - _self_\n",
        whole=True,
    ),
    "an option that is not there, in another file": Case(
        ["no option 'tinny'", "other.yaml:1"],
        "defaults: [other, _self_]\n",
        files={"other.yaml": "defaults: [agentrl, override /model: tinny, _self_]\n"},
        whole=True,
    ),
    "a group that is not overridden": Case(
        ["model", "override"], "defaults: [agentrl, model: tiny, _self_]\n", whole=True
    ),
    "an option of hydra": Case(
        ["no effect here"], "defaults: [agentrl, override hydra/launcher: basic, _self_]\n", whole=True
    ),
    "_self_ is missing": Case(["lacks _self_", "end it with"], "defaults: [agentrl]\nseed: 1\n", whole=True),
    "_self_ comes first": Case(
        ["_self_ comes before `agentrl`", "last entry"], "defaults: [_self_, agentrl]\nseed: 1\n", whole=True
    ),
    "_self_ comes first, through another file": Case(
        ["_self_ comes before `agentrl`"],
        "defaults: [_self_, other]\nseed: 1\n",
        files={"other.yaml": "defaults: [agentrl, _self_]\n"},
        whole=True,
    ),
    "a file that hides the base": Case(["agentrl.yaml", "hides the packaged base"], files={"agentrl.yaml": BASE}),
    "files that include each other": Case(
        ["job.yaml: includes itself, through other.yaml"],
        "defaults: [agentrl, other, _self_]\n",
        files={"other.yaml": "defaults: [job, _self_]\n"},
        whole=True,
    ),
    "an unknown key in an own option": Case(
        ["model/mine.yaml:1: unknown key 'model.pth'", "'model.path'?"],
        overrides=["model=mine"],
        files={"model/mine.yaml": "pth: x\n"},
    ),
    "a trap in an own option": Case(
        ["model/mine.yaml:2: model.path: no means false"],
        overrides=["model=mine"],
        files={"model/mine.yaml": "recipe: none\npath: no\n"},
    ),
    "an own option that is not YAML": Case(
        ["model/mine.yaml:2: is not YAML"], overrides=["model=mine"], files={"model/mine.yaml": "a: [\n"}
    ),
    "an own option that is empty": Case(
        ["model/mine.yaml: is empty"], overrides=["model=mine"], files={"model/mine.yaml": ""}
    ),
}


def run(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name, text in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "job.yaml").write_text(case.text if case.whole else BASE + case.text, encoding="utf-8")
    message = message_of(Path("job.yaml"), case.overrides)
    assert "\n" not in message
    for fragment in case.expected:
        assert fragment in message


@pytest.mark.parametrize("name", OVERRIDES)
def test_bad_override(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(OVERRIDES[name], tmp_path, monkeypatch)


@pytest.mark.parametrize("name", FILES)
def test_bad_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(FILES[name], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("written", "name"), [('"1e5"', "1e5"), ("'1.50'", "1.50"), ("42", "42"), ("1.5", "1.5"), ("007", "007")]
)
def test_text_on_the_command_line_is_kept(written: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(BASE)
    assert load(tmp_path / "exp.yaml", [f"name={written}"]).config.name == name


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(BASE)
    assert "no such file (did you mean" in message_of(tmp_path / "expp.yaml", [])
    assert "exp.yaml" in message_of(tmp_path / "exp", [])
    assert "no such file" in message_of(tmp_path / "no" / "folder.yaml", [])


def test_the_nearest_file_is_named_from_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "noself.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path / "bad")
    assert "did you mean noself.yaml?" in message_of(Path("nofile.yaml"), [])
    monkeypatch.chdir(tmp_path)
    assert "did you mean bad/noself.yaml?" in message_of(Path("bad/nofile.yaml"), [])


@pytest.mark.parametrize(
    "override", ["schedule.steps=-1", "schedule.steps=-1e3", "schedule.steps='-1.0'", "schedule.steps=-01"]
)
def test_no_value_is_suggested_that_would_be_refused(override: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(BASE)
    assert "(write" not in message_of(tmp_path / "exp.yaml", [override])


def test_a_key_of_a_section_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(BASE)
    assert "did you mean" not in message_of(tmp_path / "exp.yaml", ["+schedule.foo=1"])


def test_a_folder_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(BASE)
    assert "is a folder (give one of its files: exp.yaml)" in message_of(tmp_path, [])


def test_only_yaml_endings_are_read(tmp_path: Path) -> None:
    (tmp_path / "exp.yml").write_text(BASE)
    assert "must be named *.yaml (rename it to exp.yaml)" in message_of(tmp_path / "exp.yml", [])


def test_the_bases_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "agentrl.yaml").write_text(BASE)
    assert "rename your file" in message_of(tmp_path / "agentrl.yaml", [])


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_bytes(b"name: \xff\n")
    assert "is not UTF-8 text" in message_of(tmp_path / "exp.yaml", [])


@pytest.mark.parametrize("depth", [25, 300, 5000])
def test_deep_nesting_is_one_line(tmp_path: Path, depth: int) -> None:
    for text in (f"seed: {'[' * depth}{']' * depth}\n", f"seed: {'{a: ' * depth}1{'}' * depth}\n"):
        (tmp_path / "exp.yaml").write_text(BASE + text)
        assert "is nested too deeply" in message_of(tmp_path / "exp.yaml", [])


def test_deep_nesting_in_an_override_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(BASE)
    assert "is nested too deeply" in message_of(tmp_path / "exp.yaml", [f"seed={'[' * 3000}{']' * 3000}"])


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "device.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "device.yaml"):
        assert f"{name}: is not a regular file" in message_of(tmp_path / name, [])


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text("\ufeff" + BASE, encoding="utf-8")
    assert load(tmp_path / "exp.yaml").config.seed == 0
