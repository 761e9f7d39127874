"""A view as a page: templates with everything escaped, and the words and pictures that they use."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from agent_env.runs.explorer import wording
from agent_env.runs.explorer.charts import kind_mark, legend_mark, sparkline
from agent_env.runs.explorer.grid import about, cells
from agent_env.runs.explorer.heat import heat, heat_key
from agent_env.runs.json_text import pretty
from agent_env.runs.record import RunState, place_of, short_model
from agent_env.runs.visible import one_line, visible

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["as_html", "as_json"]


def as_html(template: str, **values: object) -> str:
    """Render a page."""
    return _TEMPLATES.get_template(template).render(now_s=time.time(), **{"live": None, **values})


def as_json(view: object) -> bytes:
    """Write a view as JSON in ASCII, which no control character or lone surrogate can break."""
    try:
        text = json.dumps(view, default=_fields, allow_nan=False)
    except (TypeError, ValueError):  # a number that is none, or a key that is no text: both rare, and slow to look for
        text = json.dumps(_plain(view), allow_nan=False)
    return text.encode("ascii")


def _fields(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in _told(value)}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError(f"a view holds a {type(value).__name__}")


def _told(value: DataclassInstance) -> list[dataclasses.Field[Any]]:
    return [item for item in dataclasses.fields(value) if item.metadata.get("json", True)]


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in _told(value)}
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


def _exact(value: str) -> Markup:
    """Text for a field's value, which is sent back as it is: escaped, and nothing in it made visible."""
    return escape(value.encode("utf-8", "replace").decode())


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


def _link(path: str, asked: Mapping[str, object] | None = None, /, **changed: object) -> str:
    """An address of ours: what was asked for, with some of it changed; what is None or empty is left out."""
    query = {**(asked or {}), **changed}
    kept = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(kept)}" if kept else path


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("agent_env.runs.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Any] = {
        "about": about,
        "ago": wording.ago,
        "count": wording.count,
        "duration": wording.duration,
        "exact": _exact,
        "kind_mark": kind_mark,
        "legend_mark": legend_mark,
        "moment": wording.moment,
        "number": wording.number,
        "one_line": one_line,
        "place": place_of,
        "plural": wording.plural,
        "pretty": pretty,
        "short_model": short_model,
        "signed": wording.signed,
        "since": wording.since,
        "tally": wording.tally,
    }
    words: dict[str, Any] = {
        "cells": cells,
        "heat": heat,
        "heat_key": heat_key,
        "link": _link,
        "shares": _shares,
        "sparkline": sparkline,
    }
    made.filters.update(filters)
    made.globals.update(words)
    return made


_TEMPLATES = _environment()
