"""What AgentEnv uses of the trainer's packages is in those that are installed, under the names that the types say."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agent_env.training import _cookbook, _cookbook_shapes

NAMES = sorted(_cookbook_shapes.__all__)
CLASSES = [name for name in NAMES if inspect.isclass(getattr(_cookbook_shapes, name, None))]
FUNCTIONS = ["datum_from_model_input_weights", "get_renderer", "get_tokenizer"]
METHODS = [
    f"{name}.{method}"
    for name in CLASSES
    for method, value in vars(getattr(_cookbook_shapes, name)).items()
    if inspect.isfunction(getattr(value, "__func__", value)) and value.__module__ == _cookbook_shapes.__name__
]


def found(owner: Any, path: str) -> Any:
    """What stands under a dotted name."""
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner


def taken(function: Any) -> set[str] | None:
    """The names of a function's parameters; None where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters} - {"self", "cls"}


def fields(owner: Any) -> set[str]:
    """The annotated fields of a class and of those that it is made of."""
    return {name for base in inspect.getmro(owner) for name in inspect.get_annotations(base)}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    """Imported from where `_cookbook` looks for it."""
    assert getattr(_cookbook, name) is not None


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_there(name: str) -> None:
    """As a field, or as an attribute of the class."""
    real = getattr(_cookbook, name)
    known = fields(real) | set(dir(real))
    shape = getattr(_cookbook_shapes, name)
    used = set(inspect.get_annotations(shape)) | {
        key for key, value in vars(shape).items() if isinstance(value, property)
    }
    if name == "Renderer":
        used -= {"tokenizer"}  # set in its __init__
    assert used <= known


@pytest.mark.parametrize("path", [*FUNCTIONS, *METHODS])
def test_every_parameter_is_there(path: str) -> None:
    """A call that the type checker lets through is one that the installed function takes."""
    real = taken(found(_cookbook, path))
    used = taken(found(_cookbook_shapes, path))
    assert real is None or used is None or used <= real
