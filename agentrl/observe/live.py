"""The run as a view that redraws in place, on a terminal. User text is printed with markup off."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.observe.events import Event, RunEnded, Warned
from agentrl.observe.plain import describe
from agentrl.observe.state import RunState, sparkline

_SHOWN_EVALUATIONS = 5


class TerminalView:
    """Draws the state `1 / refresh_s` times a second while open; warnings scroll above it."""

    def __init__(self, console: Console, *, refresh_s: float) -> None:
        self._state = RunState()
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=1.0 / refresh_s, transient=False
        )
        self._live.start()

    def emit(self, event: Event) -> None:
        self._state.apply(event)
        if isinstance(event, Warned):
            self._live.console.print(Text(describe(event) or "", style="yellow"))
        if isinstance(event, RunEnded):
            self.close()

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        return render(self._state)


def render(state: RunState) -> RenderableType:
    """One frame."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("step", _progress(state))
    table.add_row("doing", Text(f"{state.phase} {state.phase_detail}".strip()))
    table.add_row("reward", _rewards(state))
    table.add_row(
        "groups", Text(f"{state.num_ready} of {state.groups_per_step} ready{_counted(state.drops, 'dropped')}")
    )
    table.add_row("episodes", Text(f"{state.live} live{_counted(state.verdicts, '')}"))
    table.add_row("sandboxes", Text(state.sandboxes))
    if state.launching:
        table.add_row("launching", Text(state.launching))
    table.add_row("time to batch", Text(_last_and_mean(state.times_to_batch_s)))
    table.add_row("trainer", Text(_trainer(state)))
    table.add_row("publication", Text(f"{state.publication_s:.2f} s" if state.publication_s else "-"))
    table.add_row("GPU time", Text(_shares(state.gpu_s)))
    table.add_row("balance", Text(state.balance or "-"))
    table.add_row("processes", Text("  ".join(f"{role} {s}" for role, s in state.processes.items()) or "-"))
    if state.evaluations:
        shown = [f"{label} {success:.3f}" for label, success in state.evaluations.items()]
        table.add_row("greedy held-out", Text("  ".join(shown[-_SHOWN_EVALUATIONS:])))
    return Panel(table, title=Text(f"agentrl  {state.name}"), subtitle=Text(state.directory), title_align="left")


def _progress(state: RunState) -> RenderableType:
    bar = ProgressBar(total=max(state.steps, 1), completed=state.step, width=40)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, Text(f"{state.step} / {state.steps}"))
    return Group(grid)


def _rewards(state: RunState) -> Text:
    if not state.rewards:
        return Text("-")
    return Text(f"{sparkline(state.rewards)}  {state.rewards[0]:.3f} -> {state.rewards[-1]:.3f}")


def _counted(counts: dict[str, int], word: str) -> str:
    listed = "  ".join(f"{word} {name} {count}".strip() for name, count in sorted(counts.items()))
    return f"   {listed}" if listed else ""


def _shares(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return "  ".join(f"{use} {100 * spent / total:.0f} %" for use, spent in ordered if spent >= total / 200) or "-"


def _last_and_mean(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{values[-1]:.1f} s  (mean {sum(values) / len(values):.1f} s)"


def _trainer(state: RunState) -> str:
    shown = ("loss", "grad_norm", "entropy", "mismatch_max", "lag_max")
    metrics = "  ".join(f"{key} {state.metrics[key]:.3g}" for key in shown if key in state.metrics)
    return f"{state.step_s:.1f} s  {metrics}" if state.step_s else "-"
