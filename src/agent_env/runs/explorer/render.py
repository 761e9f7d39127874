"""A view as a page: templates with everything escaped, and the words and colours that they use."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from agent_env.runs.conversation import pretty
from agent_env.runs.explorer.charts import heat, number, reward_chart, sparkline
from agent_env.runs.record import RunState, place_of
from agent_env.runs.visible import one_line, visible

__all__ = ["as_html", "as_json"]

LONG_CHARS = 20_000
"""Of a longer text the page shows this much, and links to the whole."""


def as_html(template: str, **values: object) -> str:
    """Render a page."""
    return _TEMPLATES.get_template(template).render(now_s=time.time(), **values)


def as_json(view: object) -> bytes:
    """Write a view as JSON in ASCII, which no control character or lone surrogate can break."""
    return json.dumps(_plain(view), indent=1, allow_nan=False).encode("ascii")


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _shown(value: object) -> object:
    """Every expression of every template passes here, so no page shows raw control characters."""
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ago(at_s: float, now_s: float) -> str:
    seconds = max(0.0, now_s - at_s)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds:.0f} s ago"


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _duration(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def _count(n: int) -> str:
    return f"{n:,}".replace(",", "\u202f")  # a narrow space, as groups of digits are told apart in print


def _shares(states: Mapping[RunState, int]) -> Markup:
    """The outcomes as a bar whose parts are as long as their shares."""
    total = sum(states.values()) or 1
    parts: list[str] = []
    at = 0.0
    for state in RunState:
        width = 100 * states[state] / total
        if width:
            parts.append(f'<rect class="state-{state}" x="{at:.2f}" y="0" width="{width:.2f}" height="6"/>')
        at += width
    label = ", ".join(f"{n} {state}" for state, n in states.items() if n)
    return Markup(
        f'<svg class="shares" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _link(path: str, **query: object) -> str:
    kept: dict[str, Any] = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(kept)}" if kept else path


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("agent_env.runs.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "ago": _ago,
        "count": _count,
        "duration": _duration,
        "moment": _moment,
        "number": number,
        "one_line": one_line,
        "pretty": pretty,
        "place": place_of,
    }
    words: dict[str, Any] = {
        "heat": heat,
        "link": _link,
        "long_chars": LONG_CHARS,
        "reward_chart": reward_chart,
        "run_states": list(RunState),
        "shares": _shares,
        "sparkline": sparkline,
    }
    made.filters.update(filters)
    made.globals.update(words)
    return made


_TEMPLATES = _environment()
