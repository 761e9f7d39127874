"""The tools of an env's class: what each is to a model, and how a call of it is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NotRequired, cast, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from agent_env.bundle import CodeProblem, closest
from agent_env.bundle.raised import described
from agent_env.envs.arguments import convert_arguments
from agent_env.envs.contract import ToolSpec
from agent_env.envs.docstring import Docstring, read_docstring
from agent_env.envs.tool import ToolOptions, tool_options
from agent_env.envs.tool_schema import RecursiveSchemaError, plain_schema

__all__ = ["PythonTool", "Toolbox", "toolbox_of"]

_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_NAME_MAX = 64
"""The longest tool name that the common model servers take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTool:
    """One tool of an env's class."""

    spec: ToolSpec
    options: ToolOptions
    function: Callable[..., Any]
    """The method, as a plain function of `self` and the parameters."""
    parameters: tuple[str, ...]
    adapter: TypeAdapter[dict[str, Any]]
    """Of the parameters as a TypedDict."""

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return `arguments` as the method takes them.

        Raises:
            MisfitArgumentsError: When they do not fit.
        """
        return convert_arguments(self.adapter, self.parameters, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of an env's class, and what is wrong with them."""

    tools: Mapping[str, PythonTool]
    """By the name that a model sees, in the order they are defined, a base class's first."""
    errors: Sequence[CodeProblem]
    """With one of these the env cannot be opened."""
    remarks: Sequence[CodeProblem]
    """What a model would be left to guess: no description, a description of a parameter that is not there."""


@lru_cache(maxsize=256)
def toolbox_of(env_class: type) -> Toolbox:
    """Return the tools of an env's class. Made once for each class."""
    tools: dict[str, PythonTool] = {}
    errors: list[CodeProblem] = []
    remarks: list[CodeProblem] = []
    for attribute, function, options in _marked(env_class):
        reader = _Reader(function, options, options.name or attribute)
        tool = reader.read()
        errors += reader.errors
        remarks += reader.remarks
        if tool is None:
            continue
        if tool.spec.name in tools:
            other = _place(tools[tool.spec.name].function)[1]
            errors.append(
                reader.problem(
                    f"the tool '{tool.spec.name}' is already on line {other}", "give one of them another name="
                )
            )
        tools[tool.spec.name] = tool
    return Toolbox(tools=tools, errors=tuple(errors), remarks=tuple(remarks))


def _marked(env_class: type) -> Iterator[tuple[str, object, ToolOptions]]:
    names: dict[str, None] = {}
    for owner in reversed(env_class.__mro__):
        names.update(dict.fromkeys(vars(owner)))
    for name in names:
        value = cast("object", inspect.getattr_static(env_class, name, None))
        options = tool_options(value) or tool_options(getattr(value, "__func__", None))
        if options is not None:
            yield name, value, options


class _Reader:
    """Reads one method that is marked as a tool."""

    def __init__(self, function: object, options: ToolOptions, name: str) -> None:
        self.function = cast("Callable[..., Any]", function)
        self.options = options
        self.name = name
        self.errors: list[CodeProblem] = []
        self.remarks: list[CodeProblem] = []

    def problem(self, what: str, fix: str) -> CodeProblem:
        file, line = _place(self.function)
        return CodeProblem(file=file, line=line, what=what, fix=fix)

    def _error(self, what: str, fix: str) -> None:
        self.errors.append(self.problem(f"tool '{self.name}' {what}", fix))

    def _remark(self, what: str, fix: str) -> None:
        self.remarks.append(self.problem(f"tool '{self.name}' {what}", fix))

    def read(self) -> PythonTool | None:
        if not inspect.isfunction(self.function):
            self._error("is no plain method", "write it as def name(self, ...)")
            return None
        self._check_options()
        parameters = self._parameters()
        hints = self._hints()
        if parameters is None or hints is None:
            return None
        docstring = read_docstring(self.function)
        self._check_docstring(docstring, parameters)
        for name in parameters:
            if name not in hints:
                self._error(f"has a parameter '{name}' without a type", f"write {name}: int, or what it is")
        adapter_and_schema = None if self.errors else self._schema(parameters, hints, docstring)
        if adapter_and_schema is None:
            return None
        adapter, schema = adapter_and_schema
        spec = ToolSpec(
            name=self.name,
            description=docstring.description,
            parameters=schema,
            ends_turn=self.options.ends_turn,
        )
        return PythonTool(
            spec=spec,
            options=self.options,
            function=self.function,
            parameters=tuple(parameters),
            adapter=adapter,
        )

    def _check_options(self) -> None:
        if not self.name or len(self.name) > _NAME_MAX or not _NAME_CHARS.issuperset(self.name):
            self._error("has a name that model servers refuse", f"write letters, digits, _ and -, at most {_NAME_MAX}")
        if inspect.isasyncgenfunction(self.function) or inspect.isgeneratorfunction(self.function):
            self._error("is a generator", "return the whole answer instead")
        waits = inspect.iscoroutinefunction(self.function)
        timeout_s = self.options.timeout_s
        if self.options.blocking and waits:
            self._error("is async and blocking", "remove blocking=True: it needs no thread")
        if timeout_s is not None and not timeout_s > 0:
            self._error(f"has timeout_s={timeout_s}", "write a number of seconds above 0")
        elif timeout_s is not None and not (waits or self.options.blocking):
            self._error("has a timeout, and cannot be interrupted", "add blocking=True, or make it async")

    def _parameters(self) -> dict[str, inspect.Parameter] | None:
        every = list(inspect.signature(self.function).parameters.values())
        if not every or every[0].kind not in (every[0].POSITIONAL_ONLY, every[0].POSITIONAL_OR_KEYWORD):
            self._error("has no self", "write it as def name(self, ...)")
            return None
        fits = True
        for parameter in every[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                self._error(f"takes {str(parameter).partition(':')[0]}", "name each parameter: a model must see them")
                fits = False
            elif parameter.kind is parameter.POSITIONAL_ONLY:
                self._error(f"takes '{parameter.name}' by position only", "remove the / from its parameters")
                fits = False
        return {parameter.name: parameter for parameter in every[1:]} if fits else None

    def _hints(self) -> dict[str, Any] | None:
        try:
            return get_type_hints(self.function, include_extras=True)
        except NameError as exc:
            what = f"is annotated with '{exc.name}', which is not defined when it runs"
            self._error(what, f"import {exc.name} outside of TYPE_CHECKING")
        except Exception as exc:  # noqa: BLE001 - evaluates annotations, which are the bundle's own expressions
            self._error(f"has an annotation that cannot be read: {described(exc)}", "write a type")
        return None

    def _check_docstring(self, docstring: Docstring, parameters: Mapping[str, inspect.Parameter]) -> None:
        if not docstring.description:
            self._remark("has no description", "say what it does in the first line of its docstring")
        for name in docstring.parameters:
            if name not in parameters:
                near = closest(name, parameters)
                fix = f"did you mean '{near}'?" if near else "remove it from Args:"
                self._remark(f"describes a parameter '{name}', which it does not have", fix)

    def _schema(
        self, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], docstring: Docstring
    ) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any]] | None:
        fields: dict[str, Any] = {}
        for name, parameter in parameters.items():
            # Python keeps what it made of `int | str` for `str | int`, which is equal to it: not of what is marked.
            hint = Annotated[hints[name], object()]
            if name in docstring.parameters:
                hint = Annotated[hint, Field(description=docstring.parameters[name])]
            fields[name] = hint if parameter.default is parameter.empty else NotRequired[hint]
        shape = TypedDict("Arguments", fields)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
        shape.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # pyright: ignore[reportAttributeAccessIssue]
        try:
            adapter = TypeAdapter[dict[str, Any]](cast("Any", shape))
            schema = plain_schema(adapter.json_schema())
        except RecursiveSchemaError as exc:
            self._error(f"takes {exc}, which contains itself", "use a type of a fixed depth, or an id in its place")
            return None
        except Exception as exc:  # noqa: BLE001 - builds schemas from the bundle's own classes
            name = next((name for name, hint in fields.items() if not _has_schema(hint)), None)
            what = f"has types that cannot be read: {described(exc)}".splitlines()[0]
            if name is not None:
                written = parameters[name].annotation
                shown = written if isinstance(written, str) else getattr(written, "__name__", repr(written))
                what = f"has a parameter '{name}' whose type, {shown}, has no JSON Schema"
            self._error(what, "use a JSON type, a dataclass or a pydantic model")
            return None
        properties = cast("dict[str, dict[str, Any]]", schema.setdefault("properties", {}))
        for name, parameter in parameters.items():
            if parameter.default is not parameter.empty:
                _add_default(properties[name], parameter.default)
        order = ("type", "properties", "required", "additionalProperties")
        return adapter, {key: schema[key] for key in order if key in schema}


def _has_schema(hint: Any) -> bool:
    try:
        TypeAdapter[Any](hint).json_schema()
    except Exception:  # noqa: BLE001 - builds schemas from the bundle's own classes
        return False
    return True


def _add_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = to_jsonable_python(default)
    except PydanticSerializationError:
        return  # it has no JSON form: a model can leave the parameter out all the same


def _place(function: object) -> tuple[str, int]:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return ("", 1) if code is None else (code.co_filename, code.co_firstlineno)
