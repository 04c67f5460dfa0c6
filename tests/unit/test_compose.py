"""Composition of good files: what wins over what, where files may lie, what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.catalog import PACKAGED
from agentrl.config.compose import Origin, load
from agentrl.config.tree import from_tree, read, to_text, to_tree
from agentrl.errors import UserError
from agentrl.model.config import Recipe
from agentrl.rollout.config import ToolFormat
from agentrl.tasks.config import Family

JOB = """\
defaults:
  - agentrl
  - override /model: tiny
  - override /tasks: boxes
  - _self_
schedule:
  steps: 7
"""


def job(folder: Path, text: str = JOB, name: str = "job.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_wins_over_the_base_and_an_override_over_the_file(tmp_path: Path) -> None:
    file = job(tmp_path)
    assert load(file).config.schedule.steps == 7
    assert load(file, ["schedule.steps=9"]).config.schedule.steps == 9
    assert load(file).config.model.recipe is Recipe.tiny


def test_values_have_the_types_of_the_schema(tmp_path: Path) -> None:
    config = load(
        job(tmp_path), ["trainer.lr=1", "tasks.family=shell_basics", "tasks.include=[a,b]", "name=null"]
    ).config
    assert isinstance(config.trainer.lr, float)
    assert config.tasks.family is Family.shell_basics
    assert config.tasks.include == ["a", "b"]
    assert config.name is None


def test_hydras_whole_grammar_works(tmp_path: Path) -> None:
    overrides = [
        "agent=line",
        "+name=first",
        "++seed=3",
        "~observe",
        "schedule={steps: 2, eval_tasks: 0}",
        "tasks.include.0=x",
    ]
    config = load(job(tmp_path), overrides).config
    assert config.agent.format is ToolFormat.line
    assert (config.name, config.seed, config.schedule.steps, config.schedule.eval_tasks) == ("first", 3, 2, 0)
    assert config.tasks.include == ["x"]


def test_a_quoted_override_keeps_spaces_commas_and_equals_signs(tmp_path: Path) -> None:
    loaded = load(job(tmp_path), ["agent.system_prompt='a b, c=d'"])
    assert loaded.config.agent.system_prompt == "a b, c=d"


def test_the_users_own_option_comes_before_the_packaged_one(tmp_path: Path) -> None:
    job(tmp_path / "model", "recipe: tiny\nwarmup_steps: 11\n", "tiny.yaml")
    job(tmp_path / "model", "path: mine\n", "mine.yaml")
    file = job(tmp_path)
    assert load(file).config.model.warmup_steps == 11
    assert load(file, ["model=mine"]).config.model.path == "mine"


def test_options_of_a_conf_folder_further_up_are_found(tmp_path: Path) -> None:
    job(tmp_path / "conf" / "model", "path: mine\n", "mine.yaml")
    file = job(tmp_path / "conf" / "ablations" / "deep")
    assert load(file, ["model=mine"]).config.model.path == "mine"


def test_a_file_may_build_on_another_file_of_the_user(tmp_path: Path) -> None:
    job(tmp_path, name="base.yaml")
    file = job(tmp_path, "defaults: [base, _self_]\nseed: 4\n", "derived.yaml")
    config = load(file).config
    assert (config.seed, config.schedule.steps) == (4, 7)


def test_a_group_of_the_user_may_set_anything(tmp_path: Path) -> None:
    job(tmp_path / "experiment", "# @package _global_\nschedule:\n  steps: 2\nseed: 5\n", "quick.yaml")
    config = load(job(tmp_path), ["+experiment=quick"]).config
    assert (config.schedule.steps, config.seed) == (2, 5)


def test_it_works_from_any_directory_and_through_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = job(tmp_path / "a b" / "ü=x", name="my job, v1.2.yaml")
    expected = load(file).tree
    monkeypatch.chdir(tmp_path)
    assert load(Path("a b/ü=x/my job, v1.2.yaml")).tree == expected
    monkeypatch.chdir(tmp_path / "a b")
    assert load(Path("../a b/ü=x/my job, v1.2.yaml")).tree == expected


def test_a_link_to_a_file_is_read_where_the_link_is(tmp_path: Path) -> None:
    file = job(tmp_path / "data")
    job(tmp_path / "here" / "model", "path: near the link\n", "mine.yaml")
    link = tmp_path / "here" / "job.yaml"
    link.symlink_to(file)
    assert load(link, ["model=mine"]).config.model.path == "near the link"


def test_here_is_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = job(tmp_path, JOB + "model:\n  path: ${here:}/weights\n")
    monkeypatch.chdir("/")
    assert load(file).config.model.path == f"{tmp_path}/weights"
    assert load(file, ["tasks.path=${here:}/t"]).config.tasks.path == f"{tmp_path}/t"


def test_interpolations_reach_other_settings_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_NAME", "from-env")
    config = load(job(tmp_path), ["name=${oc.env:JOB_NAME}", "tasks.seed=${seed}", "seed=6"]).config
    assert (config.name, config.tasks.seed) == ("from-env", 6)


def test_yaml_that_means_what_it_says_is_accepted(tmp_path: Path) -> None:
    text = JOB.replace("steps: 7", "steps: 1_000\n  drop_zero_variance: no") + "trainer:\n  lr: 1e-3\nname: 'no'\n"
    config = load(job(tmp_path, text)).config
    assert (config.schedule.steps, config.schedule.drop_zero_variance, config.trainer.lr) == (1000, False, 1e-3)
    assert config.name == "no"


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = JOB + "trainer: &t\n  threads: 2\ninference:\n  <<: *t\n"
    config = load(job(tmp_path, text)).config
    assert (config.trainer.threads, config.inference.threads) == (2, 2)


def test_sources_are_listed_in_the_order_in_which_they_win(tmp_path: Path) -> None:
    sources = load(job(tmp_path)).sources
    assert sources[0].origin is Origin.SCHEMA
    assert (sources[-1].name, sources[-1].origin, sources[-1].file) == ("job", Origin.USER, tmp_path / "job.yaml")
    tiny = next(source for source in sources if source.name == "model/tiny")
    assert (tiny.package, tiny.origin, tiny.file) == ("model", Origin.PACKAGED, PACKAGED / "model" / "tiny.yaml")


def test_text_and_tree_give_the_same_configuration_back(tmp_path: Path) -> None:
    hard = ["agent.system_prompt='no\n: 1e3 # $x'", "tasks.include=['010','01:30','yes','ü']", "trainer.lr=1e-7"]
    loaded = load(job(tmp_path), hard)
    saved = tmp_path / "config.yaml"
    saved.write_text(loaded.text, encoding="utf-8")
    assert read(saved) == loaded.config
    assert from_tree(loaded.tree) == loaded.config
    assert to_tree(loaded.config) == loaded.tree
    assert to_text(loaded.config) == loaded.text


def test_a_saved_configuration_that_cannot_be_read_is_a_users_error(tmp_path: Path) -> None:
    for text in ("schedule: {steps: 0}", "- a", "{", ""):
        with pytest.raises(UserError):
            read(job(tmp_path, text))
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none.yaml")


def test_loading_leaves_hydras_global_state_alone(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    file = job(tmp_path)
    job(tmp_path / "outer", "a: 1\n", "outer.yaml")
    with initialize_config_dir(version_base="1.3", config_dir=str(tmp_path / "outer")):
        load(file)
        assert compose("outer").a == 1
    before = sorted(tmp_path.rglob("*"))
    load(file)
    assert sorted(tmp_path.rglob("*")) == before
