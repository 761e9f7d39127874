"""What the models of a bundle's files have in common: strict values, unknown keys told, texts.

Nothing is converted, an unknown key is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Name", "Shape", "Text", "TextFile", "UnknownKeys", "exactly_one", "misfit"]

_ID = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
Name = Annotated[str, Field(pattern=_ID, max_length=200)]
"""A name or an id: a letter or digit, then letters, digits and `. _ - /`."""


@dataclass(slots=True)
class UnknownKeys:
    """Keys that a model does not have. Pydantic's own error does not say which ones it does have."""

    found: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list[tuple[int, str, tuple[str, ...]]])
    """The `id()` of the mapping, the key, and the keys known there."""


class Shape(BaseModel):
    """What every file of a bundle has in common: strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _note_unknown_keys(cls, data: object, info: ValidationInfo) -> object:
        if not isinstance(data, dict) or not isinstance(info.context, UnknownKeys):
            return cast("object", data)
        mapping = cast("dict[str, Any]", data)
        unknown = mapping.keys() - cls.model_fields.keys()
        if not unknown:
            return mapping
        known = tuple(cls.model_fields)
        info.context.found += [(id(mapping), key, known) for key in mapping if key in unknown]
        return {key: value for key, value in mapping.items() if key not in unknown}


def misfit(what: str, fix: str) -> PydanticCustomError:
    """Make the error of a value that fits its type and nothing else."""
    return PydanticCustomError("misfit", "{what}, {fix}", {"what": what, "fix": fix})


def exactly_one(model: Shape, keys: tuple[str, ...], what: str) -> None:
    """Raise where not exactly one of some optional keys is written."""
    said = [key for key in keys if getattr(model, key) is not None]
    if len(said) == 1:
        return
    names = [f"'{key}'" for key in (said or keys)]
    both = f"{', '.join(names[:-1])} and {names[-1]} at once" if said else f"none of {', '.join(names)}"
    raise misfit(f"{what} says {both}", "write one of them")


class TextFile(Shape):
    """A text, written in place or in a file. Both are Jinja templates over `params`, `task_id` and `tags`."""

    text: str | None = None
    """The text itself."""
    template: str | None = None
    """The file that holds it, relative to the bundle's folder."""

    @model_validator(mode="after")
    def _one_of_both(self) -> TextFile:
        exactly_one(self, ("text", "template"), "a text")
        return self


def _one_text(data: object) -> str | None:
    return "<text>" if isinstance(data, str) else "<file>" if isinstance(data, (dict, TextFile)) else None


Text = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextFile, Tag("<file>")],
    Discriminator(_one_text, custom_error_type="misfit_text", custom_error_message="text"),
]
"""A text field: a string is the text itself, or, when it ends in .md, .j2 or .txt and has no blank, the file of it."""
