"""Bars as an SVG file, without any plotting library: one row a policy, a bar for each of its times, their bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from agentrl.bench.spread import Spread

_LEFT, _RIGHT, _TOP, _ROW, _BAR = 170, 120, 64, 26, 16
_WIDTH = 860
_PLOT = _WIDTH - _LEFT - _RIGHT


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One time with its spread, what no policy could beat, and a note."""

    label: str
    value: Spread
    bound: float | None = None
    color: str = "#4878a8"
    note: str = ""


def bars_svg(title: str, bars: Sequence[Bar], *, unit: str = "s") -> str:
    """A horizontal bar chart: whiskers are one standard deviation, the red line of a bar is its bound."""
    top = max([bar.value.mean + (bar.value.sd or 0.0) for bar in bars] + [bar.bound or 0.0 for bar in bars])
    step = _tick_step(top)
    end = step * math.ceil(top / step)
    height = _TOP + _ROW * len(bars) + 40
    rows = [_row(bar, _TOP + _ROW * index, end) for index, bar in enumerate(bars)]
    ticks = [_tick(step * index, end, height - 34, unit) for index in range(round(end / step) + 1)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="#222">\n<rect width="{_WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>\n'
        f'<text x="{_LEFT}" y="44" fill="#666">mean over seeds; whiskers: one standard deviation; '
        f"red: the lower bound of the same draws</text>\n" + "\n".join([*ticks, *rows]) + "\n</svg>\n"
    )


def _row(bar: Bar, y: int, end: float) -> str:
    middle = y + _BAR / 2
    sd = bar.value.sd or 0.0
    low, high = _x(max(bar.value.mean - sd, 0.0), end), _x(bar.value.mean + sd, end)
    parts = [
        f'<text x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{_LEFT}" y="{y}" width="{_x(bar.value.mean, end) - _LEFT:.1f}" height="{_BAR}" fill="{bar.color}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>',
        f'<text x="{high + 6:.1f}" y="{middle + 4:.1f}">{bar.value.mean:.0f} {escape(bar.note)}</text>',
    ]
    if bar.bound is not None:
        x = _x(bar.bound, end)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + _BAR + 2}" stroke="#c22" stroke-width="2"/>'
        )
    return "".join(parts)


def _tick(value: float, end: float, bottom: int, unit: str) -> str:
    x = _x(value, end)
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="#ddd"/>'
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#666">{value:g} {unit}</text>'
    )


def _x(value: float, end: float) -> float:
    return _LEFT + _PLOT * value / end


def _tick_step(top: float) -> float:
    """A round number of which about five reach the top."""
    magnitude = 10.0 ** math.floor(math.log10(max(top, 1e-9)))
    return next(magnitude * factor for factor in (0.2, 0.5, 1, 2) if top / (magnitude * factor) <= 6)
