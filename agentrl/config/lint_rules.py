"""The rules of the lint. Each is a small function of the configuration and the facts; its docstring is its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from agentrl.config.fields import schema
from agentrl.config.lint import Finding, LintFacts
from agentrl.config.lint import error as _error
from agentrl.config.lint import warning as _warning
from agentrl.config.lint_agent import AGENT_RULES
from agentrl.config.lint_bare import BARE_RULES
from agentrl.config.lint_inference import INFERENCE_RULES
from agentrl.config.lint_kubernetes import KUBERNETES_RULES
from agentrl.config.lint_learning import LEARNING_RULES
from agentrl.config.lint_pods import POD_RULES
from agentrl.config.lint_publish import PUBLISH_RULES
from agentrl.config.schema import JobConfig
from agentrl.controller.config import InFlight, Stragglers, num_swing
from agentrl.inference.config import Dtype, EngineBackend, SGLangConfig
from agentrl.model.config import Recipe
from agentrl.rollout.config import ToolFormat
from agentrl.tasks.config import Family

Rule = Callable[[JobConfig, LintFacts], Iterator[Finding]]


def model_source(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Weights come from a folder or from a recipe; with neither there is nothing to train."""
    model = config.model
    if model.recipe is not Recipe.none:
        return
    if model.path is None:
        yield _error("model.path", "no model is chosen", "choose model=tiny, or set model.path to a folder")
    elif facts.model_found is False:
        yield _error("model.path", f"no model with a config.json in {model.path}", "check the path; see make smollm2")


def tasks_source(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Tasks come from a folder or from a generator: with neither there is nothing to act on, and with both it is not
    clear which is meant."""
    tasks = config.tasks
    if tasks.family is not Family.none:
        if tasks.path is not None:
            yield _error("tasks.path", f"is set, and so is tasks.family {tasks.family.name}", "remove one of the two")
        return
    if tasks.path is None:
        yield _error("tasks.path", "no tasks are chosen", "choose tasks=boxes, or set tasks.path to a folder")
    elif facts.tasks_found is False:
        yield _error("tasks.path", f"no folder {tasks.path}", "check the path")


def recipe_fits_tasks(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The tiny model knows a few dozen words and one way to act: on anything else its reward stays 0."""
    if config.model.recipe is not Recipe.tiny:
        return
    if config.tasks.family is not Family.boxes:
        yield _warning("model.recipe", "the tiny model can only do the boxes tasks", "choose tasks=boxes")
    if config.agent.format is not ToolFormat.line:
        yield _warning("agent.format", "the tiny model writes bare command lines", "choose agent=line")


def deadlines_nest(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """An outer deadline that passes first blames the wrong party: a slow command would look like a slow turn, an
    episode like a lost sandbox, a healthy run like a stalled one."""
    chain = [
        ("agent.tool_timeout_s", config.agent.tool_timeout_s),
        ("agent.turn_timeout_s", config.agent.turn_timeout_s),
        ("agent.episode_timeout_s", config.agent.episode_timeout_s),
        ("sandbox.lifetime_s", config.sandbox.lifetime_s),
        ("schedule.stall_timeout_s", config.schedule.stall_timeout_s),
    ]
    for (inner, inner_s), (outer, outer_s) in pairwise(chain):
        if outer_s <= inner_s:
            yield _error(outer, f"{outer_s:g} s does not exceed {inner} ({inner_s:g} s)", "deadlines must nest")


def builds_end_in_time(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A sandbox in which a step of an image runs is closed like any other at the end of its lifetime."""
    sandbox = config.sandbox
    if sandbox.build_timeout_s >= sandbox.lifetime_s:
        yield _error(
            "sandbox.build_timeout_s",
            f"{sandbox.build_timeout_s:g} s does not stay below sandbox.lifetime_s ({sandbox.lifetime_s:g} s)",
            "lower it, or raise the lifetime",
        )


def command_limits_bite(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A command's own limit that its sandbox's limit comes before never holds."""
    agent, sandbox = config.agent, config.sandbox
    pairs = [
        ("agent.tool_pids", agent.tool_pids, "sandbox.pids", sandbox.pids),
        ("agent.tool_file_mb", agent.tool_file_mb, "sandbox.disk_mb", sandbox.disk_mb),
        ("agent.tool_memory_mb", agent.tool_memory_mb, "sandbox.memory_mb", sandbox.memory_mb),
    ]
    for own, value, outer, limit in pairs:
        if value is not None and value > limit:
            yield _warning(own, f"{value} is never reached: {outer} is {limit}", f"lower it, or raise {outer}")


def stall_is_last(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The stall watchdog ends the run; whatever is still within its own deadline is not a stall."""
    others = [
        ("inference.startup_timeout_s", config.inference.startup_timeout_s),
        ("inference.request_timeout_s", config.inference.request_timeout_s),
        ("sandbox.start_timeout_s", config.sandbox.start_timeout_s),
        ("publish.timeout_s", config.publish.timeout_s),
        ("trainer.start_timeout_s", config.trainer.start_timeout_s),
        ("trainer.step_timeout_s", config.trainer.step_timeout_s),
    ]
    stall_s = config.schedule.stall_timeout_s
    for key, seconds in others:
        if stall_s <= seconds:
            yield _error("schedule.stall_timeout_s", f"{stall_s:g} s does not exceed {key} ({seconds:g} s)", "raise it")


def request_outlives_turn(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A turn bounds its generation. A request that ends sooner turns a slow agent into a broken engine."""
    request_s, turn_s = config.inference.request_timeout_s, config.agent.turn_timeout_s
    if request_s < turn_s:
        message = f"{request_s:g} s is less than agent.turn_timeout_s ({turn_s:g} s)"
        yield _error("inference.request_timeout_s", message, f"set it to {turn_s:g} or more")


def collective_before_step(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A hung rank should end the trainer by itself, with its own message, before the controller restarts it."""
    collective_s, step_s = config.trainer.collective_timeout_s, config.trainer.step_timeout_s
    if collective_s >= step_s:
        message = f"{collective_s:g} s does not stay below trainer.step_timeout_s ({step_s:g} s)"
        yield _error("trainer.collective_timeout_s", message, "lower it")


def group_has_baseline(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Advantages are differences within a group: a group of one has advantage 0, whatever its reward."""
    size, usable = config.algorithm.group_size, config.schedule.min_usable
    if size == 1:
        yield _error("algorithm.group_size", "a group of 1 has no baseline, so no gradient", "use 2 or more, usually 8")
    elif usable > size:
        message = f"{usable} exceeds algorithm.group_size ({size}): every group would be dropped"
        yield _error("schedule.min_usable", message, f"set it to {size} or less")
    elif usable == 1:
        yield _warning("schedule.min_usable", "a group with 1 usable episode has no gradient", "set it to 2 or more")


def stragglers_can_be_cut(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A group that is cut needs min_usable other members: with all of them needed, nobody is ever cut."""
    size, usable = config.algorithm.group_size, config.schedule.min_usable
    if config.schedule.stragglers is Stragglers.cut and usable == size:
        message = f"cut never happens: all {size} members are needed"
        yield _warning("schedule.stragglers", message, "lower schedule.min_usable, or choose carry")


def ranks_have_work(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Each update is split by groups, its episodes over the ranks. A rank without any idles; an uneven split makes the
    others wait."""
    groups, size = config.schedule.groups_per_step, config.algorithm.group_size
    updates, ranks = config.algorithm.updates_per_step, config.trainer.world_size
    if updates > groups:
        message = f"{updates} updates cannot share {groups} groups"
        yield _error("algorithm.updates_per_step", message, "at most schedule.groups_per_step")
        return
    episodes = groups // updates * size
    if episodes < ranks:
        yield _error("trainer.world_size", f"{ranks} ranks share {episodes} episodes an update", "use fewer ranks")
    elif groups * size % (ranks * updates):
        message = f"{groups * size} episodes a step do not divide evenly by {ranks} ranks x {updates} updates"
        yield _warning("trainer.world_size", message, "choose numbers that divide")


def window_holds_batch(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A batch is taken from the open groups: a window below a batch can never fill one."""
    window, groups = config.schedule.window_groups, config.schedule.groups_per_step
    if window < groups:
        message = f"{window} is below schedule.groups_per_step ({groups}): no batch could ever close"
        yield _error("schedule.window_groups", message, f"set it to {2 * groups}")


def tasks_fill_window(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """With fewer tasks than open groups, groups of the same task are open at once and in one batch, which counts that
    task twice."""
    num_train = num_train_tasks(config, facts)
    window = config.schedule.window_groups
    if num_train is not None and 0 < num_train < window:
        message = f"{window} groups are open at once, but there are {num_train} training tasks"
        yield _warning("schedule.window_groups", message, "add tasks or narrow the window")


def enough_tasks(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Held-out tasks are taken from the same folder: they must leave something to train on."""
    if config.tasks.family is not Family.none or facts.num_tasks is None:
        return
    if facts.num_tasks == 0:
        yield _error("tasks.include", "no task in tasks.path can run and matches", "agentrl tasks check PATH says why")
    elif facts.num_tasks <= config.tasks.num_heldout:
        message = f"{config.tasks.num_heldout} of {facts.num_tasks} tasks are held out: none is left to train on"
        yield _error("tasks.num_heldout", message, "lower it")


def enough_heldout(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The evaluation takes held-out tasks once each; asking for more than there are changes nothing."""
    asked, heldout = config.schedule.eval_tasks, config.tasks.num_heldout
    if asked > heldout:
        message = f"{asked} exceeds tasks.num_heldout ({heldout}): only those are evaluated"
        yield _warning("schedule.eval_tasks", message, f"set it to {heldout}")


def room_to_evaluate(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """In the middle of a run training episodes keep their sandboxes while they stand still: with none left for the
    evaluation, both would wait for ever."""
    schedule, sandboxes = config.schedule, config.sandbox.max_sandboxes
    if not schedule.eval_every:
        return
    if schedule.eval_tasks == 0 or config.tasks.num_heldout == 0:
        yield _warning("schedule.eval_every", "is ignored: no task is evaluated", "set it to 0, or schedule.eval_tasks")
    elif schedule.eval_every >= schedule.steps:
        message = f"{schedule.eval_every}: schedule.steps is {schedule.steps}, and the last one is evaluated anyway"
        yield _warning("schedule.eval_every", message, "lower it, or set it to 0")
    elif sandboxes <= schedule.max_live_episodes:
        message = f"needs sandboxes beside those of schedule.max_live_episodes ({schedule.max_live_episodes})"
        hint = f"set sandbox.max_sandboxes above {schedule.max_live_episodes}, or schedule.max_live_episodes lower"
        yield _error("schedule.eval_every", message, hint)


def sandboxes_for_live(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Every live episode needs a sandbox of its own."""
    live, sandboxes = config.schedule.max_live_episodes, config.sandbox.max_sandboxes
    if live > sandboxes:
        message = f"{live} exceeds sandbox.max_sandboxes ({sandboxes})"
        yield _error("schedule.max_live_episodes", message, f"set it to {sandboxes}, or allow more sandboxes")


def kv_for_live(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """More live contexts than the KV cache holds would make engines evict and prefill again; the controller holds
    episodes back instead, so the surplus never acts."""
    usable = config.inference.max_total_tokens * config.schedule.kv_share
    longest, live = config.agent.max_episode_tokens, config.schedule.max_live_episodes
    if longest > usable:
        message = f"one episode of {longest} tokens does not fit kv_share of max_total_tokens ({usable:.0f})"
        yield _error("inference.max_total_tokens", message, "raise it, or lower agent.max_episode_tokens")
    elif (fitting := int(usable * config.inference.num_engines / longest)) < live:
        message = f"{live} exceeds the {fitting} full-length episodes that the engines' KV cache holds"
        yield _warning("schedule.max_live_episodes", message, "long episodes will wait for room")


def episode_fits_context(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A prompt that outgrows the engine's context is refused, which ends an episode for a reason that is not the
    agent's."""
    longest, context = config.agent.max_episode_tokens, config.inference.context_length
    if longest > context:
        message = f"{longest} exceeds inference.context_length ({context})"
        yield _error("agent.max_episode_tokens", message, "lower it or raise the context")
    if config.agent.max_turn_tokens >= longest:
        message = f"{config.agent.max_turn_tokens} leaves no room for a prompt in {longest} tokens an episode"
        yield _error("agent.max_turn_tokens", message, "lower it or raise agent.max_episode_tokens")


def episode_fits_micro_batch(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """An episode is not split: a longer one makes a micro-batch of its own that breaks the memory bound."""
    longest, bound = config.agent.max_episode_tokens, config.trainer.micro_batch_tokens
    if longest > bound:
        message = f"{bound} is below agent.max_episode_tokens ({longest})"
        yield _warning("trainer.micro_batch_tokens", message, f"set it to {longest} or more")


def sampling_filters(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Engines report log-probs of the full softmax. A filter or penalty samples from another distribution, so every
    importance ratio would be wrong."""
    off = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    for name, neutral in off.items():
        value = getattr(config.agent, name)
        if value != neutral:
            message = f"{value} makes log-probs not those of the sampling distribution"
            yield _error(f"agent.{name}", message, f"set it to {neutral}")


def examples_alternate(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Examples are user and assistant in turn; an odd number puts two user messages in a row before the task."""
    if len(config.agent.examples) % 2:
        message = f"{len(config.agent.examples)} messages end with a user's"
        yield _error("agent.examples", message, "end with the assistant's answer")


def lag_allows_schedule(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Tokens sampled while the trainer works are a version old when they are trained; carried-over ones too."""
    if config.schedule.max_policy_lag > 0:
        return
    if num_swing(config.schedule.swing, config.inference.num_engines) < config.inference.num_engines:
        message = "0 drops everything that is generated while the trainer works"
        yield _error("schedule.max_policy_lag", message, "set it to 1 or more, or choose schedule=colocated")
    else:
        message = "0 drops every episode that is carried over a step"
        yield _warning("schedule.max_policy_lag", message, "set it to 1 or more")


def swing_engines_exist(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Swing engines are some of the engines: more than there are cannot be lent to the trainer."""
    swing, engines = config.schedule.swing, config.inference.num_engines
    if num_swing(swing, engines) > engines:
        message = f"{swing} exceeds inference.num_engines ({engines})"
        yield _error("schedule.swing", message, "set it to all, or start more engines")


def warmup_ends(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """The learning rate climbs for lr_warmup_steps: a shorter run never reaches it."""
    warmup, steps = config.trainer.lr_warmup_steps, config.schedule.steps
    if warmup >= steps:
        message = f"{warmup} does not stay below schedule.steps ({steps}): trainer.lr is never reached"
        yield _warning("trainer.lr_warmup_steps", message, "lower it")


def warm_sandboxes_fit(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """Warm sandboxes are some of the sandboxes, and their lifetime holds for them too while nobody has them."""
    sandbox = config.sandbox
    if sandbox.warm_max > sandbox.max_sandboxes:
        message = f"{sandbox.warm_max} exceeds sandbox.max_sandboxes ({sandbox.max_sandboxes})"
        yield _error("sandbox.warm_max", message, f"set it to {sandbox.max_sandboxes} or less")
    if sandbox.warm_max > 0 and sandbox.warm_idle_s >= sandbox.lifetime_s:
        message = f"{sandbox.warm_idle_s:g} s does not stay below sandbox.lifetime_s ({sandbox.lifetime_s:g} s)"
        yield _error("sandbox.warm_idle_s", message, "lower it")


def disk_below_memory(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A sandbox's disk is a tmpfs that counts as memory: filling a disk as large as the memory ends in an OOM kill
    where the agent should see `no space left`."""
    disk, memory = config.sandbox.disk_mb, config.sandbox.memory_mb
    if disk >= memory:
        yield _warning("sandbox.disk_mb", f"{disk} is not below sandbox.memory_mb ({memory})", "raise the memory")


def attached_servers(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """One URL an engine: an engine without one would never come up, a URL without an engine would never be used."""
    inference = config.inference
    num_urls, attached = len(inference.urls), inference.backend is EngineBackend.attached
    if attached and num_urls != inference.num_engines:
        message = f"{num_urls} URLs for inference.num_engines {inference.num_engines}"
        yield _error("inference.urls", message, "give one URL an engine: 'inference.urls=[http://host:30000]'")
    elif not attached and num_urls:
        yield _error("inference.urls", f"is set, and inference.backend is {inference.backend.name}", "choose one")
    for url in inference.urls:
        if not url.startswith(("http://", "https://")):
            yield _error("inference.urls", f"{url} is not a URL", "write http://host:port")
        elif inference.urls.count(url) > 1:
            yield _error("inference.urls", f"{url} is there twice", "give every server once")


def cpu_dtype(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """On CPU bfloat16 moves log-probs by up to 0.02 from the trainer's float32, and is not faster."""
    if config.inference.backend is EngineBackend.embedded and config.inference.dtype is Dtype.bfloat16:
        message = "bfloat16 on CPU makes engine and trainer disagree about log-probs"
        yield _warning("inference.dtype", message, "use float32")


def something_in_flight(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """An engine that shares its GPU with the trainer has aborted everything before the step: when weights change
    nothing is in flight."""
    in_flight = config.publish.in_flight
    all_swing = num_swing(config.schedule.swing, config.inference.num_engines) == config.inference.num_engines
    if all_swing and in_flight is not InFlight.abort_resume:
        message = f"{in_flight.name} has no effect: with all engines swinging nothing is in flight when weights change"
        yield _error("publish.in_flight", message, "use abort_resume, or schedule.swing none or a number")


def cpus_for_threads(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """OMP threads beyond the CPUs spin against each other, which is far slower than fewer of them."""
    if facts.num_cpus is None:
        return
    engines = config.inference.num_engines * config.inference.threads
    ranks = config.trainer.world_size * config.trainer.threads
    dedicated = engines - num_swing(config.schedule.swing, config.inference.num_engines) * config.inference.threads
    threads = max(engines, dedicated + ranks)
    if threads > facts.num_cpus:
        key = "trainer.world_size" if ranks >= engines else "inference.num_engines"
        yield _warning(
            key, f"{threads} busy threads share {facts.num_cpus} CPUs", "use fewer ranks, engines or threads"
        )


def ignored_settings(config: JobConfig, facts: LintFacts) -> Iterator[Finding]:
    """A setting that was changed and has no effect is a misunderstanding."""
    if config.model.recipe is Recipe.none:
        for key in ("warmup_steps", "warmup_batch", "warmup_lr", "warmup_hasty_share"):
            if getattr(config.model, key) != schema().leaves[f"model.{key}"].default:
                yield _warning(f"model.{key}", "is ignored: model.recipe is none", "remove it")
    elif config.model.path is not None:
        yield _warning("model.path", f"is ignored: model.recipe is {config.model.recipe.name}", "remove one of the two")
    if config.inference.backend is not EngineBackend.sglang and config.inference.sglang != SGLangConfig():
        backend = config.inference.backend.name
        yield _warning("inference.sglang", f"is ignored: inference.backend is {backend}", "choose inference=sglang")
    if not config.publish.probe and config.publish.probe_tolerance is not None:
        yield _warning("publish.probe_tolerance", "is ignored: publish.probe is false", "remove it")
    if config.tasks.family is Family.none and config.tasks.num_train != schema().leaves["tasks.num_train"].default:
        yield _warning("tasks.num_train", "is ignored: all tasks of a folder but the held-out train", "remove it")
    factor, default = config.schedule.straggler_factor, schema().leaves["schedule.straggler_factor"].default
    if config.schedule.stragglers is not Stragglers.cut and factor != default:
        stragglers = config.schedule.stragglers.name
        yield _warning("schedule.straggler_factor", f"is ignored: schedule.stragglers is {stragglers}", "remove it")


def num_train_tasks(config: JobConfig, facts: LintFacts) -> int | None:
    """Training tasks of the job, or None where only the folder could tell."""
    if config.tasks.family is not Family.none:
        return config.tasks.num_train
    return None if facts.num_tasks is None else max(facts.num_tasks - config.tasks.num_heldout, 0)


RULES: tuple[Rule, ...] = (
    model_source,
    tasks_source,
    recipe_fits_tasks,
    deadlines_nest,
    builds_end_in_time,
    command_limits_bite,
    stall_is_last,
    request_outlives_turn,
    collective_before_step,
    group_has_baseline,
    stragglers_can_be_cut,
    ranks_have_work,
    window_holds_batch,
    tasks_fill_window,
    enough_tasks,
    enough_heldout,
    room_to_evaluate,
    sandboxes_for_live,
    kv_for_live,
    episode_fits_context,
    episode_fits_micro_batch,
    sampling_filters,
    examples_alternate,
    attached_servers,
    swing_engines_exist,
    lag_allows_schedule,
    warmup_ends,
    warm_sandboxes_fit,
    disk_below_memory,
    cpu_dtype,
    something_in_flight,
    cpus_for_threads,
    ignored_settings,
    *AGENT_RULES,
    *BARE_RULES,
    *KUBERNETES_RULES,
    *POD_RULES,
    *LEARNING_RULES,
    *PUBLISH_RULES,
    *INFERENCE_RULES,
)
