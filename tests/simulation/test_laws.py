"""Laws, their YAML, and the lives that are drawn from them."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from random import Random

import msgspec
import pytest

from agentrl.errors import UserError
from agentrl.simulation.config import load_hardware, load_workload
from agentrl.simulation.laws import AnyLaw, Beta, LogNormal, Mixture, Pareto, Part, Uniform
from agentrl.simulation.life import Life, World


def sample(law: AnyLaw, count: int = 4000) -> list[float]:
    random = Random(0)
    return [law.sample(random) for _ in range(count)]


def test_lognormal_has_its_median_and_keeps_its_cap() -> None:
    values = sample(LogNormal(median=25, sigma=0.75, cap=100))
    assert statistics.median(values) == pytest.approx(25, rel=0.05)
    assert max(values) == 100
    assert LogNormal(median=25, sigma=0.75).at(1.0) == pytest.approx(25 * math.exp(0.75))


def test_pareto_starts_at_its_minimum_and_has_its_tail() -> None:
    values = sample(Pareto(minimum=30, alpha=1.1))
    assert min(values) >= 30
    assert sum(v > 60 for v in values) / len(values) == pytest.approx(0.5**1.1, abs=0.03)


def test_uniform_and_beta_stay_in_their_range() -> None:
    assert all(120 <= v <= 600 for v in sample(Uniform(low=120, high=600)))
    assert statistics.mean(sample(Beta(a=0.6, b=0.9))) == pytest.approx(0.4, abs=0.02)


def test_a_mixture_takes_its_parts_by_weight_and_caps_them() -> None:
    low, high = Uniform(low=0, high=1), Uniform(low=10, high=1000)
    values = sample(Mixture(parts=(Part(weight=3, of=low), Part(weight=1, of=high)), cap=600))
    assert sum(v <= 1 for v in values) / len(values) == pytest.approx(0.75, abs=0.03)
    assert max(values) == 600


def test_a_law_is_written_with_its_name() -> None:
    law = msgspec.convert({"law": "pareto", "minimum": 30, "alpha": 1.1}, AnyLaw)
    assert law == Pareto(minimum=30, alpha=1.1)


def test_the_packaged_workload_is_the_reference() -> None:
    world = World(load_workload("w_tb"), seed=0)
    lives = [world.life(group, member, 0) for group in range(150) for member in range(8)]
    assert statistics.median(len(life.turns) for life in lives) == pytest.approx(25, abs=3)
    turns = [turn for life in lives for turn in life.turns]
    assert statistics.median(turn.generated_tokens for turn in turns) == pytest.approx(221, rel=0.05)
    assert statistics.median(turn.observation_tokens for turn in turns) == pytest.approx(148, rel=0.05)
    assert sum(life.failure_turn is not None for life in lives) / len(lives) == pytest.approx(0.06, abs=0.02)
    equal = sum(len({world.life(group, member, 0).reward for member in range(8)}) == 1 for group in range(150))
    assert equal / 150 == pytest.approx(0.32, abs=0.1)


def test_half_of_the_variance_of_turns_is_common_to_a_group() -> None:
    world = World(load_workload("w_tb", ["turns.cap=1e9"]), seed=1)
    logs = [[math.log(len(world.life(g, m, 0).turns)) for m in range(8)] for g in range(150)]
    within = statistics.mean(statistics.variance(group) for group in logs)
    assert within == pytest.approx(0.5 * 0.75**2, rel=0.15)


def test_a_life_depends_on_who_it_is_and_not_on_the_order_of_asking() -> None:
    def lives(seed: int, *, backwards: bool = False) -> list[Life]:
        world = World(load_workload("w_tb"), seed=seed)
        who = [(g, m, a) for g in range(3) for m in range(2) for a in range(2)]
        drawn = {key: world.life(*key) for key in (reversed(who) if backwards else who)}
        return [drawn[key] for key in who]

    assert lives(0) == lives(0, backwards=True) != lives(1)
    assert len(set(lives(0))) == 12


def test_hygiene_saves_episodes_and_endangers_none() -> None:
    workload = load_workload("w_tb")
    plain, clean = World(workload, seed=0), World(workload, seed=0, hygiene=True)
    who = [(group, member) for group in range(100) for member in range(8)]
    lost = {key for key in who if plain.life(*key, 0).failure_turn is not None}
    still_lost = {key for key in who if clean.life(*key, 0).failure_turn is not None}
    assert still_lost < lost


def test_one_law_does_not_move_the_draws_of_another() -> None:
    plain = World(load_workload("w_tb"), seed=0).life(4, 2, 0)
    other = World(load_workload("w_tb", ["verifier_s={law: constant, value: 1}"]), seed=0).life(4, 2, 0)
    assert other.verifier_s == 1
    assert (other.turns, other.reward, other.start_cold_s) == (plain.turns, plain.reward, plain.start_cold_s)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["turns.sigm=1"], "workload: cannot set 'turns.sigm=1' .*keys: law, median, sigma, cap"),
        (["turns"], "cannot set 'turns'"),
        (["turns.sigma=-1"], r"workload w_tb: Expected `float` >= 0.0 - at `\$.turns.sigma`"),
        (["verifier_s={law: normal}"], "workload w_tb: Invalid value 'normal'"),
        (["turns.sigma={"], "is not YAML"),
    ],
)
def test_overrides_that_are_wrong_are_user_errors(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_workload("w_tb", overrides)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"no hardware 'h9'.*packaged: h8"):
        load_hardware("h9")


def test_a_file_of_the_users_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("groups: [1\n")
    with pytest.raises(UserError, match=r"mine.yaml: not YAML"):
        load_workload(str(file))
    file.write_text("groups: 4\n")
    with pytest.raises(UserError, match=r"missing required field `group_size`"):
        load_workload(str(file))


def test_hardware_can_be_overridden() -> None:
    assert load_hardware("h8", ["engine.kv_tokens=300000"]).engine.kv_tokens == 300_000
