"""The rules of the lint on the learning algorithm and the trainer's optional parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from agentrl.config.fields import schema
from agentrl.config.lint import Finding, LintFacts, error, warning
from agentrl.config.policy_lag import predict_lag
from agentrl.config.schema import JobConfig
from agentrl.trainer.config import Aggregation, Anchor, Importance, LrSchedule, Surrogate

_RATIOS = ("token_ratio", "sequence_ratio", "geometric_ratio")
_BANDS = ("down_weight_divergence", "truncate_divergence", "drop_divergence")
_LARGEST_SEQUENCE_CLIP = 0.05


def ratio_bands_hold_one(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A token whose probability has not changed has ratio 1: a band without it rejects what is on policy."""
    for name in _RATIOS:
        low, high = getattr(config.algorithm, f"{name}_min"), getattr(config.algorithm, f"{name}_max")
        if low is not None and low > 1:
            yield error(f"algorithm.{name}_min", f"{low:g} rejects what is on policy (ratio 1)", "set it to 1 or less")
        if high is not None and high < 1:
            yield error(f"algorithm.{name}_max", f"{high:g} rejects what is on policy (ratio 1)", "set it to 1 or more")


def group_bands_ordered(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A group that diverges more is treated more strictly: keep, down-weight, truncate, drop."""
    chosen = [(name, value) for name in _BANDS if (value := getattr(config.algorithm, name)) is not None]
    for (inner, low), (outer, high) in pairwise(chosen):
        if high < low:
            yield error(f"algorithm.{outer}", f"{high:g} is below algorithm.{inner} ({low:g})", "raise it")


def overlength_is_a_slope(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The penalty rises between two lengths that an episode can have."""
    first, full = config.algorithm.overlength_from_tokens, config.algorithm.overlength_full_tokens
    longest = config.agent.max_episode_tokens
    if (first is None) != (full is None):
        key = "overlength_full_tokens" if full is None else "overlength_from_tokens"
        yield error(f"algorithm.{key}", "is not set, but its other end is", "set both, or neither")
    elif first is not None and full is not None and full <= first:
        message = f"{full} does not exceed algorithm.overlength_from_tokens ({first})"
        yield error("algorithm.overlength_full_tokens", message, "raise it")
    elif first is not None and first >= longest:
        message = f"{first} is not below agent.max_episode_tokens ({longest}): no episode gets there"
        yield warning("algorithm.overlength_from_tokens", message, "lower it")


def lag_is_corrected_once(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Old tokens differ from the policy by proximal / behaviour. The ratio to behaviour holds that already; the ratio
    to proximal leaves it to the importance weight."""
    algorithm = config.algorithm
    weighted = algorithm.importance is not Importance.none
    if algorithm.anchor is Anchor.behaviour and weighted:
        message = f"{algorithm.importance.name} weights count proximal / behaviour twice with anchor behaviour"
        yield error("algorithm.importance", message, "set it to none, or algorithm.anchor to proximal")
    elif algorithm.anchor is Anchor.proximal and not weighted and config.schedule.max_policy_lag > 0:
        message = "none trains on old tokens as if they were on policy"
        yield warning("algorithm.importance", message, "use token, or schedule.max_policy_lag=0")


def lag_within_bound(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A window so wide that groups are usually too old by the time they are taken wastes what was sampled for them."""
    bound, expected = config.schedule.max_policy_lag, predict_lag(config).mean
    if bound and expected > bound:
        message = f"about {expected:g} versions of lag are expected, so most groups would be dropped as stale"
        yield warning("schedule.max_policy_lag", message, "raise it, or lower schedule.window_groups")


def constant_has_tokens(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A constant divisor has to be named: there is no length that suits every job."""
    algorithm = config.algorithm
    if algorithm.aggregation is Aggregation.constant and algorithm.aggregation_tokens is None:
        most = config.agent.max_turns * config.agent.max_turn_tokens
        hint = f"set it, at most to agent.max_turns x agent.max_turn_tokens ({most})"
        yield error("algorithm.aggregation_tokens", "is needed by aggregation constant", hint)


def clips_fit_surrogate(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A mean over an episode moves far less than a token's ratio; and a dual clip inside the plain one would take the
    gradient of everything that has become likelier."""
    algorithm = config.algorithm
    if algorithm.surrogate is Surrogate.gspo and max(algorithm.clip_low, algorithm.clip_high) > _LARGEST_SEQUENCE_CLIP:
        message = (
            f"clips of {algorithm.clip_low:g} and {algorithm.clip_high:g} hardly ever bound a mean over an episode"
        )
        yield warning("algorithm.clip_high", message, "3e-4 and 4e-4 are usual: algorithm=gspo")
    if algorithm.dual_clip is not None and algorithm.dual_clip <= 1 + algorithm.clip_high:
        message = f"{algorithm.dual_clip:g} does not exceed 1 + algorithm.clip_high"
        yield error("algorithm.dual_clip", message, "3 is usual")


def learning_settings_used(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A setting that was changed and has no effect is a misunderstanding."""
    algorithm, trainer = config.algorithm, config.trainer
    surrogate = f"algorithm.surrogate is {algorithm.surrogate.name}"
    tv, clips = algorithm.surrogate is Surrogate.dppo_tv, algorithm.surrogate in {Surrogate.ppo, Surrogate.gspo}
    weighted = algorithm.importance is not Importance.none
    used: dict[str, tuple[bool, str]] = {
        "algorithm.clip_low": (not tv, surrogate),
        "algorithm.clip_high": (not tv, surrogate),
        "algorithm.dual_clip": (clips, surrogate),
        "algorithm.tv_bound": (tv, surrogate),
        "algorithm.tv_penalty": (tv, surrogate),
        "algorithm.importance_cap": (weighted, "algorithm.importance is none"),
        "algorithm.truncate_divergence": (weighted, "algorithm.importance is none"),
        "algorithm.aggregation_tokens": (
            algorithm.aggregation is Aggregation.constant,
            f"algorithm.aggregation is {algorithm.aggregation.name}",
        ),
        "algorithm.kl_estimator": (algorithm.kl_coef > 0, "algorithm.kl_coef is 0"),
        "algorithm.overlength_penalty": (
            algorithm.overlength_from_tokens is not None,
            "algorithm.overlength_from_tokens is null",
        ),
        "trainer.lr_final_share": (trainer.lr_schedule is not LrSchedule.constant, "trainer.lr_schedule is constant"),
        "trainer.lora_alpha": (trainer.lora_rank > 0, "trainer.lora_rank is 0"),
        "trainer.lora_targets": (trainer.lora_rank > 0, "trainer.lora_rank is 0"),
    }
    for key, (is_used, why) in used.items():
        section, _, name = key.partition(".")
        if not is_used and getattr(getattr(config, section), name) != schema().leaves[key].default:
            yield warning(key, f"is ignored: {why}", "remove it")


def lora_layers_exist(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Adapters sit on layers by name: a name that no layer has gives none, and the trainer would end at its start."""
    if not config.trainer.lora_rank or facts.layer_names is None:
        return
    for name in config.trainer.lora_targets:
        if name not in facts.layer_names:
            known = ", ".join(sorted(facts.layer_names))
            yield error("trainer.lora_targets", f"the model has no layer named {name}", f"it has {known}")


LEARNING_RULES: tuple[Callable[[JobConfig, LintFacts], Iterator[Finding]], ...] = (
    ratio_bands_hold_one,
    group_bands_ordered,
    overlength_is_a_slope,
    lag_is_corrected_once,
    lag_within_bound,
    constant_has_tokens,
    clips_fit_surrogate,
    learning_settings_used,
    lora_layers_exist,
)
