"""Every problem of a bundle: what can be read from its files, and what shows only when its Python is loaded.

Loads the bundle's Python files and writes every prompt for every task. Plays nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.bundle import Bundle
from agent_env.bundle.code import PythonRef
from agent_env.bundle.document import Document
from agent_env.bundle.env_check import ChecksItself, EnvCheck, path_in_bundle
from agent_env.bundle.load import BundleSource, in_order, read_bundle
from agent_env.bundle.recipe import read_recipe, recipe_names
from agent_env.bundle.specs import EnvSpec
from agent_env.bundle.steps import BuiltStep
from agent_env.bundle.task import DeployAgent, Prompt, RunPython, Task, Verify
from agent_env.bundle.text import TextSource
from agent_env.bundle.universe_check import check_universe
from agent_env.errors import BundleError, Problem

__all__ = ["check_source", "validate_bundle"]


def validate_bundle(path: Path | str) -> list[Problem]:
    """Return every problem of the bundle in a folder; none when it can be played.

    Args:
        path: The folder, or the `bundle.yaml` in it.

    Raises:
        UsageError: When there is no bundle at `path`.
    """
    return check_source(read_bundle(path))


def check_source(source: BundleSource) -> list[Problem]:
    """Return every problem of a bundle that has been read: those found then, and those of its Python and templates."""
    problems = list(source.problems)
    if source.bundle is not None and source.document is not None:
        problems += _Validation(source, source.bundle, source.document).problems()
    return in_order(problems)


class _Validation:
    def __init__(self, source: BundleSource, bundle: Bundle, document: Document) -> None:
        self._source = source
        self._bundle = bundle
        self._document = document
        self._unimportable: dict[Path, BundleError] = {}
        self._envs: dict[str, EnvCheck] = {}

    def problems(self) -> Iterator[Problem]:
        for env in self._bundle.envs.values():
            yield from self._check_env(env)
        yield from self._check_tool_names()
        for player in self._bundle.players.values():
            yield from self._check_function(player, takes_one="the turn")
        yield from self._check_steps()
        yield from self._check_texts()
        yield from self._check_scores()
        for task in self._bundle.tasks.values():
            if task.gold is not None:
                yield from self._check_gold(task)
        for recipe in recipe_names(self._bundle):
            yield from read_recipe(self._bundle, recipe)[1]

    def _load(self, ref: PythonRef) -> object | BundleError:
        """Load a reference. A file that cannot be imported is tried once."""
        if ref.path in self._unimportable:
            return self._unimportable[ref.path]
        try:
            ref.module()
        except BundleError as exc:
            self._unimportable[ref.path] = exc
            return exc
        try:
            return ref.load()
        except BundleError as exc:
            return exc

    def _check_env(self, env: EnvSpec) -> Iterator[Problem]:
        if env.universe is not None:
            yield from check_universe(env.universe, self._bundle.root)
        if env.python is None:
            return
        loaded = self._load(env.python)
        path, line = env.python.written_at
        if isinstance(loaded, BundleError):
            yield from loaded.problems
            return
        if not isinstance(loaded, type) or not isinstance(loaded, ChecksItself):
            fix = "make it a subclass of agent_env.Env"
            yield Problem(path=path, line=line, what=f"{env.python} is no env", fix=fix)
            return
        needed = _needed(loaded)
        if needed:
            what = f"{env.python} needs {', '.join(needed)} to be made"
            yield Problem(path=path, line=line, what=what, fix="give its __init__ no parameters, and use start()")
        self._envs[env.name] = check = loaded.__agent_env_check__()
        for problem in check.problems:
            yield problem.in_bundle(self._bundle.root)
        if not check.tools and not check.problems:
            yield Problem(path=path, line=line, what=f"{env.python} has no tool", fix="mark a method of it with @tool")

    def _check_tool_names(self) -> Iterator[Problem]:
        for agent in self._bundle.agents.values():
            owners: dict[str, str] = {}
            for env in agent.envs:
                if env not in self._envs:
                    continue
                for tool, (file, line) in self._envs[env].tools.items():
                    if tool in owners:
                        what = (
                            f"tool '{tool}' is in envs '{owners[tool]}' and '{env}', and agent '{agent.name}' has both"
                        )
                        fix = "give one of them another name="
                        path = path_in_bundle(file, self._bundle.root)
                        yield Problem(path=path, line=line, what=what, fix=fix)
                    owners.setdefault(tool, env)

    def _check_steps(self) -> Iterator[Problem]:
        seen: set[PythonRef] = set()
        for _, steps in self._source.tasks.values():
            for built in steps:
                step = built.step
                target = (
                    step.verifier if isinstance(step, Verify) else step.target if isinstance(step, RunPython) else None
                )
                if isinstance(target, PythonRef) and target not in seen:
                    seen.add(target)
                    yield from self._check_function(
                        target, takes_one="the episode" if isinstance(step, Verify) else None
                    )

    def _check_function(self, ref: PythonRef, *, takes_one: str | None) -> Iterator[Problem]:
        loaded = self._load(ref)
        if isinstance(loaded, BundleError):
            yield from loaded.problems
            return
        path, line = ref.written_at
        if not callable(loaded):
            yield Problem(path=path, line=line, what=f"{ref} is no function", fix="define it with def")
        elif takes_one is not None and not _takes_one(loaded):
            code = getattr(loaded, "__code__", None)
            if code is not None:
                path, line = path_in_bundle(code.co_filename, self._bundle.root), code.co_firstlineno
            what = f"{ref.name} does not take one argument"
            yield Problem(path=path, line=line, what=what, fix=f"write def {ref.name}(x): it gets {takes_one}")

    def _check_texts(self) -> Iterator[Problem]:
        """Write every text for every task; one problem for each cause, with the tasks it concerns."""
        found: dict[Problem, list[str]] = {}
        for task in self._bundle.tasks.values():
            for step in task.steps:
                text = None
                if isinstance(step, Prompt):
                    text = step.source if isinstance(step.source, TextSource) else None
                elif isinstance(step, DeployAgent):
                    text = self._bundle.agents[step.agent].system_prompt
                problem = text and text.problem(params=task.params, task_id=task.id, tags=task.tags)
                if problem:
                    found.setdefault(problem, []).append(task.id)
        for problem, tasks in found.items():
            if problem.what.startswith("the template does not parse"):
                yield problem
            else:
                yield replace(problem, what=f"{problem.what} (in {_some(tasks)})")

    def _check_scores(self) -> Iterator[Problem]:
        reward = self._bundle.reward
        ids: dict[str, list[str]] = {}
        for task_id, (document, steps) in self._source.tasks.items():
            ids[task_id] = [built.step.id for built in steps if isinstance(built.step, Verify)]
            if not ids[task_id] and not self._has_broken_verify(document, steps):
                fix = "add verify: {python: verifiers/file.py}"
                yield document.problem(("id",), f"task '{task_id}' has no verify step", fix)
        if reward is None:
            several = {task_id: names for task_id, names in ids.items() if len(names) > 1}
            if several:
                names = next(iter(several.values()))
                what = (
                    f"{_some(list(several))} has {len(names)} verify steps ({', '.join(names)}), and there is no reward"
                )
                yield self._document.problem((), what, f"add reward: {names[0]}, or reward: with weights by step")
            return
        known = {name for names in ids.values() for name in names}
        for step in reward.weights:
            if step not in known:
                what = f"the reward names '{step}', which no task has as a verify step"
                loc = ("reward", step)
                yield self._document.problem(loc, what, names_or_closest(step, sorted(known)))
                continue
            for task_id, names in ids.items():
                if names and step not in names:
                    document = self._source.tasks[task_id][0]
                    what = f"task '{task_id}' has no verify step '{step}', which the reward names"
                    yield document.problem(("id",), what, f"give one of its verify steps id: {step}")

    def _has_broken_verify(self, document: Document, steps: tuple[BuiltStep, ...]) -> bool:
        """Return whether a verify step is written, and was left out because of a problem of its own."""
        data = cast("Mapping[str, Any]", document.data)
        written: list[Any] = data.get("steps") or [data]
        defaults = cast("Mapping[str, Any]", self._document.data.get("task_defaults") or {})
        return any("verify" in item for item in written) or ("steps" not in data and "verify" in defaults)

    def _check_gold(self, task: Task) -> Iterator[Problem]:
        envs = self._bundle.agents[self._bundle.played].envs
        if any(env not in self._envs for env in envs):
            return  # which tools there are is not known
        misfits: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {}
        for env in envs:
            misfits.update(dict.fromkeys(self._envs[env].tools, self._envs[env].misfits))
        document = self._source.tasks[task.id][0]
        for turn_index, turn in enumerate(task.gold or ()):
            for call_index, call in enumerate(turn.calls):
                loc = ("gold", turn_index, "calls", call_index)
                if call.tool not in misfits:
                    what = f"gold calls '{call.tool}', which is no tool"
                    yield document.problem((*loc, "tool"), what, names_or_closest(call.tool, misfits))
                    continue
                for line in misfits[call.tool](call.tool, call.arguments):
                    what = f"gold calls {call.tool} with arguments that do not fit ({line})"
                    yield document.problem((*loc, "arguments"), what, "write what the tool takes")


def _needed(env_class: type) -> list[str]:
    """Return the parameters without which a class cannot be made."""
    try:
        parameters = inspect.signature(env_class).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [item.name for item in parameters if item.default is item.empty and item.kind in named]


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True


def _some(tasks: list[str]) -> str:
    if len(tasks) == 1:
        return f"task '{tasks[0]}'"
    if len(tasks) == 2:
        return f"task '{tasks[0]}' and 1 other"
    return f"task '{tasks[0]}' and {len(tasks) - 1} others"
