"""Every problem of a bundle: what can be read from its files, and what shows only when its Python is loaded.

Loads the bundle's Python files and writes every prompt for every task. Plays nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.bundle import Bundle
from agent_env.bundle.code import PythonRef
from agent_env.bundle.document import Document, Loc
from agent_env.bundle.env_check import ChecksItself, EnvCheck, path_in_bundle
from agent_env.bundle.load import BundleSource, in_order, read_bundle
from agent_env.bundle.recipe import read_recipe, recipe_names
from agent_env.bundle.specs import EnvSpec, UniverseSpec
from agent_env.bundle.steps import BuiltStep
from agent_env.bundle.task import (
    CheckVerifier,
    DeployAgent,
    GoldCall,
    JudgeVerifier,
    Prompt,
    RunPython,
    StateVerifier,
    Step,
    Task,
    Verify,
)
from agent_env.bundle.text import TextSource, Unwritable, Whose
from agent_env.bundle.universe_check import check_universe
from agent_env.errors import BundleError, Problem

__all__ = ["check_source", "validate_bundle"]


def validate_bundle(path: Path | str, *, run_code: bool = True) -> list[Problem]:
    """Return every problem of the bundle in a folder; none when it can be played.

    Args:
        path: The folder, or the `bundle.yaml` in it.
        run_code: Whether to load the bundle's Python, which runs with the caller's rights. Without, what only shows then
            (names that are not there, tools, calls) is not looked at.

    Raises:
        UsageError: When there is no bundle at `path`.
    """
    return check_source(read_bundle(path), run_code=run_code)


def check_source(source: BundleSource, *, run_code: bool = True) -> list[Problem]:
    """Return every problem of a bundle that has been read: those found then, and those of its Python and templates."""
    problems = list(source.problems)
    if source.bundle is not None and source.document is not None:
        validation = _Validation(source, source.bundle, source.document)
        problems += validation.file_problems()
        if run_code:
            problems += validation.code_problems()
    return in_order(problems)


class _Validation:
    def __init__(self, source: BundleSource, bundle: Bundle, document: Document) -> None:
        self._source = source
        self._bundle = bundle
        self._document = document
        self._unimportable: dict[Path, BundleError] = {}
        self._envs: dict[str, EnvCheck] = {}

    def file_problems(self) -> Iterator[Problem]:
        """Yield what shows without running the bundle's Python."""
        checked: set[Path] = set()
        for universe in self._universes():
            if universe.path not in checked:
                checked.add(universe.path)
                yield from check_universe(universe, self._bundle.root)
        yield from self._check_texts()
        yield from self._check_scores()
        for recipe in recipe_names(self._bundle):
            yield from read_recipe(self._bundle, recipe)[1]

    def code_problems(self) -> Iterator[Problem]:
        """Yield what shows when the bundle's Python is loaded."""
        for env in self._bundle.envs.values():
            yield from self._check_env(env)
        yield from self._check_tool_names()
        for player in self._bundle.players.values():
            yield from self._check_function(player, takes_one="the turn")
        for agent in self._bundle.agents.values():
            if agent.python is not None:
                yield from self._check_function(agent.python, takes_one="the turn")
        yield from self._check_steps()
        for task in self._bundle.tasks.values():
            yield from self._check_calls(task)

    def _universes(self) -> Iterator[UniverseSpec]:
        for env in self._bundle.envs.values():
            if env.universe is not None:
                yield env.universe
        for _, steps in self._source.tasks.values():
            for built in steps:
                if isinstance(built.step, Verify) and isinstance(built.step.verifier, StateVerifier):
                    wanted = built.step.verifier.wanted
                    if isinstance(wanted, UniverseSpec):
                        yield wanted

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
        if env.sandbox is not None and env.sandbox.python is not None:
            yield from self._check_function(env.sandbox.python, takes_one=None)
        if env.python is None:
            return  # what tools an MCP server has shows when it runs
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
                target, takes_one = _function_of(built.step)
                if target is not None and target not in seen:
                    seen.add(target)
                    yield from self._check_function(target, takes_one=takes_one)
                if isinstance(built.step, Prompt) and built.step.tools is not None:
                    yield from self._check_prompt_tools(built, built.step.agent, built.step.tools)

    def _check_prompt_tools(self, built: BuiltStep, agent: str, tools: Sequence[str]) -> Iterator[Problem]:
        known = self._tools(agent)
        for name in tools:
            if known is not None and name not in known:
                yield built.problem(f"agent '{agent}' has no tool '{name}'", names_or_closest(name, known))

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
        found: dict[Unwritable, list[str]] = {}
        given_up: set[TextSource] = set()
        for task in self._bundle.tasks.values():
            for step in task.steps:
                for text, more in self._texts(step):
                    if text in given_up:
                        continue
                    unwritable = text.problem(params=task.params, task_id=task.id, tags=task.tags, **more)
                    if unwritable is None:
                        continue
                    found.setdefault(unwritable, []).append(task.id)
                    if unwritable.whose is Whose.WORK:  # for each task it would take as long again
                        given_up.add(text)
        for unwritable, tasks in found.items():
            problem = unwritable.problem
            if unwritable.whose is Whose.TEMPLATE:
                yield problem
            else:
                yield replace(problem, what=f"{problem.what} (in {_some(tasks)})")

    def _texts(self, step: Step) -> Iterator[tuple[TextSource, Mapping[str, object]]]:
        """Yield the texts of a step, with the further names that each may use."""
        if isinstance(step, Prompt):
            if isinstance(step.source, TextSource):
                yield step.source, {}
            if step.system_prompt is not None:
                yield step.system_prompt, {}
        elif isinstance(step, DeployAgent):
            system_prompt = self._bundle.agents[step.agent].system_prompt
            if system_prompt is not None:
                yield system_prompt, {}
        elif isinstance(step, Verify) and isinstance(step.verifier, JudgeVerifier):
            yield step.verifier.prompt, {"conversation": "...", "replies": ["..."]}

    def _check_scores(self) -> Iterator[Problem]:
        reward = self._bundle.reward
        ids: dict[str, list[str]] = {}
        for task_id, (document, steps) in self._source.tasks.items():
            names = [built.step.id for built in steps if isinstance(built.step, Verify)]
            written = self._written_verify(document)
            if len(names) < written:
                continue  # what was left out has a problem of its own, and nobody knows its id
            ids[task_id] = names
            if not written:
                fix = "add verify: {python: verifiers/file.py}"
                yield document.problem(("id",), f"task '{task_id}' has no verify step", fix)
        if reward is None:
            yield from self._check_weights(ids)
            return
        known = {name for names in ids.values() for name in names}
        for step in reward.weights:
            if step not in known:
                if len(ids) < len(self._source.tasks):
                    continue
                what = f"the reward names '{step}', which no task has as a verify step"
                loc = ("reward", step)
                yield self._document.problem(loc, what, names_or_closest(step, sorted(known)))
                continue
            for task_id, names in ids.items():
                if names and step not in names:
                    document = self._source.tasks[task_id][0]
                    what = f"task '{task_id}' has no verify step '{step}', which the reward names"
                    yield document.problem(("id",), what, f"give one of its verify steps id: {step}")

    def _check_weights(self, whole: Collection[str]) -> Iterator[Problem]:
        """Without a reward in bundle.yaml, the verify steps of each task say what it is."""
        unclear: dict[str, list[str]] = {}
        for task_id, (_, steps) in self._source.tasks.items():
            verify = [built.step for built in steps if isinstance(built.step, Verify)]
            if any(step.weight is not None for step in verify) and not any(step.weight for step in verify):
                document = self._source.tasks[task_id][0]
                what = f"every weight of task '{task_id}' is 0, so its reward always is"
                yield document.problem(("id",), what, "give the step that counts a weight above 0")
            if task_id in whole and len(verify) > 1 and all(step.weight is None for step in verify):
                unclear[task_id] = [step.id for step in verify]
        if unclear:
            names = next(iter(unclear.values()))
            have = "has" if len(unclear) == 1 else "have"
            what = (
                f"{_some(list(unclear))} {have} {len(names)} verify steps ({', '.join(names)}), and there is no reward"
            )
            fix = f"add reward: {names[0]}, or reward: with weights by step, or weight: to the steps"
            yield self._document.problem((), what, fix)

    def _written_verify(self, document: Document) -> int:
        """Return how many verify steps a task has in its file, those with a problem of their own included."""
        data = cast("Mapping[str, Any]", document.data)
        if "steps" in data:
            return sum("verify" in step for step in data["steps"])
        defaults = cast("Mapping[str, Any]", self._document.data.get("task_defaults") or {})
        verify: Any = defaults.get("verify") if data.get("verify") is None else data["verify"]
        return len(cast("list[Any]", verify)) if isinstance(verify, list) else int(verify is not None)

    def _tools(self, agent: str) -> Mapping[str, Misfits] | None:
        """Return an agent's tools, each with what checks a call; None where not all of them are known before a play."""
        spec = self._bundle.agents[agent]
        if any(env not in self._envs for env in spec.envs):
            return None
        tools: dict[str, Misfits] = {}
        for env in spec.envs:
            tools.update(dict.fromkeys(self._envs[env].tools, self._envs[env].misfits))
        if spec.skills:
            tools.setdefault("read_skill", lambda name, arguments: ())
        return tools

    def _check_calls(self, task: Task) -> Iterator[Problem]:
        """Check the calls that a task's files write down: of gold, and of verifiers."""
        document, steps = self._source.tasks[task.id]
        tools = self._tools(self._bundle.played)
        for turn_index, turn in enumerate(task.gold or ()):
            for call_index, call in enumerate(turn.calls):
                loc = ("gold", turn_index, "calls", call_index)
                yield from _check_call(document, loc, "gold", call, tools)
        for built in steps:
            if isinstance(built.step, Verify) and isinstance(built.step.verifier, StateVerifier):
                yield from self._check_wanted(built, built.step.verifier)
            elif (
                isinstance(built.step, Verify) and isinstance(built.step.verifier, CheckVerifier) and tools is not None
            ):
                yield from _check_patterns(built, built.step.verifier, tools)

    def _check_wanted(self, built: BuiltStep, verifier: StateVerifier) -> Iterator[Problem]:
        check = self._envs.get(verifier.env)
        if check is None or not isinstance(verifier.wanted, tuple):
            return
        tools = dict.fromkeys(check.tools, check.misfits)
        for index, call in enumerate(verifier.wanted):
            loc = (*_inner(built, "state"), "equals", "after", index)
            yield from _check_call(built.document, loc, "the wanted state", call, tools)


Misfits = Callable[[str, Mapping[str, Any]], Sequence[str]]


def _inner(built: BuiltStep, kind: str) -> Loc:
    """Return where a verifier's own keys stand: in a step of the long form they are below `verify`."""
    data: Any = built.document.data
    for part in built.loc:
        data = data[part]
    return built.loc if kind in data else (*built.loc, "verify")


def _check_patterns(built: BuiltStep, verifier: CheckVerifier, tools: Mapping[str, Misfits]) -> Iterator[Problem]:
    for key, patterns in (("called", verifier.called), ("not_called", verifier.not_called)):
        for index, pattern in enumerate(patterns):
            if pattern.tool not in tools:
                loc = (*_inner(built, "check"), "check", key, index, "tool")
                what = f"the check names '{pattern.tool}', which is no tool"
                yield built.document.problem(loc, what, names_or_closest(pattern.tool, tools))


def _check_call(
    document: Document, loc: Loc, whose: str, call: GoldCall, tools: Mapping[str, Misfits] | None
) -> Iterator[Problem]:
    if tools is None:
        return
    if call.tool not in tools:
        what = f"{whose} calls '{call.tool}', which is no tool"
        yield document.problem((*loc, "tool"), what, names_or_closest(call.tool, tools))
        return
    for line in tools[call.tool](call.tool, call.arguments):
        what = f"{whose} calls {call.tool} with arguments that do not fit ({line})"
        yield document.problem((*loc, "arguments"), what, "write what the tool takes")


def _function_of(step: Step) -> tuple[PythonRef | None, str | None]:
    """Return the function of a step, if it has one, and what it gets, where it must take exactly that."""
    if isinstance(step, Verify) and isinstance(step.verifier, PythonRef):
        return step.verifier, "the episode"
    if isinstance(step, Prompt) and isinstance(step.source, PythonRef):
        return step.source, "the episode"
    if isinstance(step, RunPython):
        return step.target, None
    return None, None


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
