"""The Jinja environment that texts are written in: sandboxed, and with a bound on what a template may do.

Every loop, call, filter, operator and text that may take more than a moment pays for it first (`_template_costs.py`). Not
counted is what one operation of Python's own does within those sizes: some tens of milliseconds at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Context, LoopContext, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from agent_env.bundle._render_budget import CHARS_A_STEP, MAX_CHARS, counted, held, spend, weigh
from agent_env.bundle._template_costs import (
    checked,
    owner_of,
    pay_call,
    pay_filter,
    pay_operation,
    pay_test,
    texts_in,
)

__all__ = ["MeteredEnvironment"]

_COUNTED, _JOINED, _TICK, _WEIGHED = (f"agent_env: {name}" for name in ("counted", "joined", "tick", "weighed"))
"""Filters that a template cannot name."""
_TOKEN_STEPS = 100
_TEMPLATE_STEPS = 500
"""For including one: it is looked for among the bundle's files."""
_UNWANTED_GLOBALS = ("lipsum",)
"""Text of any length, for no prompt."""
_UNWANTED_FILTERS = ("urlize", "xmlattr")
"""HTML, for no prompt, in times that grow with the square of a text."""
_UNWANTED_METHODS = frozenset(("encode", "from_bytes", "fromhex", "to_bytes"))
"""What makes bytes, and of bytes something else: for no prompt, and some of their codecs take forever."""


class _PlainNamespace(Namespace):
    """One that is not written out: it may hold itself, and others many times over."""

    def __repr__(self) -> str:
        return "<Namespace>"


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """A sandboxed environment whose templates are compiled and rendered within `rendering()`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_weighed_output, extensions=[_CountedTokens], **options)
        for name in _UNWANTED_GLOBALS:
            del self.globals[name]
        for name in _UNWANTED_FILTERS:
            del self.filters[name]
        self.globals["namespace"] = _PlainNamespace
        self.filters = {name: _metered(pay_filter, name, made) for name, made in self.filters.items()}
        self.tests = {name: _metered(pay_test, name, made) for name, made in self.tests.items()}
        self.filters |= {_COUNTED: _counted, _JOINED: _joined, _TICK: _tick, _WEIGHED: _weighed}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may have an attribute of something."""
        return attr not in _UNWANTED_METHODS and super().is_safe_attribute(obj, attr, value)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        metered = cast("nodes.Template", _Metering().visit(source))
        metered.set_environment(self)
        return super()._generate(metered, *args, **kwargs)

    def concat(self, pieces: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Put the pieces of a text together."""
        kept: list[str] = []
        size = 0
        for piece in pieces:
            kept.append(piece)
            size += len(piece)
            if size > MAX_CHARS:
                break
        held(size)
        return "".join(kept)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something."""
        pay_call(obj, args, tuple(kwargs.values()))
        if isinstance(obj, LoopContext) and args:
            args = (counted(args[0]), *args[1:])
        elif any(isinstance(arg, Iterator) for arg in args):
            args = tuple(_counted_iterator(arg, (owner_of(obj), *args)) for arg in args)
        return checked(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do an operation that may make something large of what is small."""
        pay_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Metering(NodeTransformer):
    """Puts a meter at each place where the parts of a template are gone through again, or values are made and compared."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        cost = _cost(node)
        self.generic_visit(node)
        node.iter = _through(_COUNTED, cast("nodes.Expr", node.iter), nodes.Const(cost))
        if node.recursive:
            node.body.insert(0, _ticking(cost, node.lineno))
        return node

    def _part(self, node: Any) -> Any:
        cost = _cost(node) + (_TEMPLATE_STEPS if isinstance(node, nodes.Template) else 0)
        self.generic_visit(node)
        node.body.insert(0, _ticking(cost, node.lineno))
        return node

    visit_Template = visit_Block = visit_Macro = visit_CallBlock = _part

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _through(_JOINED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        node.expr = _weighing(node.expr)
        for operand in node.ops:
            operand.expr = _weighing(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _weighing(node.node)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _weighing(node) if node.ctx == "load" else node

    def _literal(self, node: Any) -> nodes.Expr:
        self.generic_visit(node)
        return _weighing(node)

    visit_List = visit_Dict = _literal


def _weighing(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _through(_WEIGHED, node)


def _through(name: str, node: nodes.Expr, *arguments: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _ticking(cost: int, line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_through(_TICK, nodes.Const(cost, lineno=line)), lineno=line)


def _cost(node: nodes.Node) -> int:
    """How many steps it takes to go through a part of a template once."""
    cost = 1
    for inner in node.find_all(nodes.Node):
        cost += 1 + (len(inner.data) // CHARS_A_STEP if isinstance(inner, nodes.TemplateData) else 0)
    return cost


@pass_context
def _counted(context: Context, iterable: Iterable[Any], cost: int) -> Iterator[Any]:
    del context
    return counted(iterable, cost)


@pass_context
def _tick(context: Context, cost: int) -> None:
    del context
    spend(cost)


@pass_context
def _weighed(context: Context, value: Any) -> Any:
    del context
    weigh(value)
    return value


@pass_context
def _joined(context: Context, parts: list[Any]) -> str:
    weigh(parts)
    return markup_join(parts) if context.eval_ctx.autoescape else str_join(parts)


def _weighed_output(value: Any) -> Any:
    if not isinstance(value, str | int):
        weigh(value)
    return value


def _metered(pay: Callable[..., None], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        named = tuple(kwargs.values())
        if len(args) > at and isinstance(args[at], Iterator):
            args = (*args[:at], _counted_iterator(args[at], (*args[at + 1 :], *named)), *args[at + 1 :])
        pay(name, args[at:], named)
        return checked(function(*args, **kwargs))

    return metered


def _counted_iterator(value: Any, others: Iterable[Any]) -> Any:
    """Have an iterator pay for each item; how many there are shows only then. With each may go a text of the others."""
    if not isinstance(value, Iterator):
        return value
    return counted(cast("Iterator[Any]", value), 1 + texts_in(others) // CHARS_A_STEP)


class _CountedTokens(Extension):
    """Pays for what a template is made of: reading and compiling takes a few microseconds for each token."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for token in stream:
            spend(_TOKEN_STEPS)
            yield token
