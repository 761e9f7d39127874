"""The JSON Schema of each kind of file, for editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import TypeAdapter

from agent_env.bundle.recipe import Recipe
from agent_env.bundle.schema import BundleFile, EvalFile
from agent_env.bundle.schema_tasks import LongTaskFile, ShortTaskFile

__all__ = ["json_schemas"]


def json_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON Schema of each file kind: `bundle`, `task` (also a line of JSONL), `eval` and `recipe`."""
    kinds: Sequence[tuple[str, str, Any]] = (
        ("bundle", "bundle.yaml", BundleFile),
        ("task", "tasks/**/*.yaml, or a line of tasks/**/*.jsonl", cast("Any", ShortTaskFile | LongTaskFile)),
        ("eval", "evals/*.yaml", EvalFile),
        ("recipe", "recipes/*.yaml", Recipe),
    )
    return {
        kind: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **TypeAdapter[Any](shape).json_schema(),
            "title": f"AgentEnv {kind}: {files}",
        }
        for kind, files, shape in kinds
    }
