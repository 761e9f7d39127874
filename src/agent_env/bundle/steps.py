"""The steps of a task, from either of its forms, and whether they can be played in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar, cast

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.document import Document, Loc
from agent_env.bundle.references import References
from agent_env.bundle.schema import (
    AddSkillsStep,
    AnyStep,
    DeployAgentStep,
    DeployEnvStep,
    LongTaskFile,
    PromptFile,
    PromptStep,
    RunStep,
    ShortTaskFile,
    TaskDefaultsFile,
    VerifyFile,
)
from agent_env.bundle.specs import AgentSpec
from agent_env.bundle.task import AddSkills, DeployAgent, DeployEnv, Prompt, RunPython, Step, Verify
from agent_env.errors import Problem

__all__ = ["BuiltStep", "Steps"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BuiltStep:
    """A step, and where it is written."""

    step: Step
    document: Document
    loc: Loc

    def problem(self, what: str, fix: str) -> Problem:
        """Return a problem with this step."""
        return self.document.problem(self.loc, what, fix)


class Steps:
    """Builds the steps of the tasks of one bundle, and adds a problem for each that cannot be played."""

    def __init__(
        self,
        *,
        envs: Sequence[str],
        agents: Mapping[str, AgentSpec],
        played: str,
        defaults: tuple[Document, TaskDefaultsFile],
        references: References,
        problems: list[Problem],
    ) -> None:
        self._envs = envs
        self._agents = agents
        self._played = played
        self._defaults = defaults
        self._references = references
        self._problems = problems

    def short(self, task: ShortTaskFile, document: Document) -> tuple[BuiltStep, ...]:
        """Return the steps of a short-form task: its agent's envs, the agent, the prompts, the verifiers."""
        default_document, defaults = self._defaults
        on_error = task.fail_task_on_error if task.fail_task_on_error is not None else defaults.fail_task_on_error
        fail = True if on_error is None else on_error
        built = [
            *(
                BuiltStep(DeployEnv(id="deploy_env", env=env, fail_task_on_error=fail), document, ())
                for env in self._agents[self._played].envs
            ),
            BuiltStep(DeployAgent(id="deploy_agent", agent=self._played, fail_task_on_error=fail), document, ()),
        ]
        prompts, place, loc = task.prompt, document, ("prompt",)
        if prompts is None:
            prompts, place, loc = defaults.prompt, default_document, ("task_defaults", "prompt")
        if prompts is None:
            what = f"task '{task.id}' has no prompt"
            self._problems.append(document.problem((), what, "add prompt: ..., or give task_defaults one"))
        for text, where in _each(prompts, loc):
            source = self._references.text(text, place, where)
            if source is not None:
                step = Prompt(id="prompt", agent=self._played, source=source, fail_task_on_error=fail)
                built.append(BuiltStep(step, place, where))
        verify, place, loc = task.verify, document, ("verify",)
        if verify is None:
            verify, place, loc = defaults.verify, default_document, ("task_defaults", "verify")
        for verifier, where in _each(verify, loc):
            step = self._verify(verifier, verifier.python, place, where, fail=fail)
            if step is not None:
                built.append(BuiltStep(step, place, where))
        return self._numbered(built, {id(item): self._own_id(item, verify) for item in built})

    def _own_id(self, built: BuiltStep, verify: VerifyFile | list[VerifyFile] | None) -> str | None:
        if not isinstance(built.step, Verify) or verify is None:
            return None
        written = verify[int(built.loc[-1])] if isinstance(verify, list) else verify
        return written.id

    def long(self, task: LongTaskFile, document: Document) -> tuple[BuiltStep, ...]:
        """Return the steps of a long-form task."""
        built: list[BuiltStep] = []
        own_ids: dict[int, str | None] = {}
        for index, written in enumerate(task.steps):
            loc = ("steps", index)
            step = self._step(written, document, loc)
            if step is not None:
                built.append(BuiltStep(step, document, loc))
                own_ids[id(built[-1])] = written.id
        numbered = self._numbered(built, own_ids)
        if len(built) == len(task.steps):  # a step that is left out has a problem of its own
            self._check_order(task.id, numbered, document)
        return numbered

    def _step(self, written: AnyStep, document: Document, loc: Loc) -> Step | None:
        fail = True if written.fail_task_on_error is None else written.fail_task_on_error
        timeout_s = written.timeout_s
        match written:
            case DeployEnvStep():
                if not self._known("env", written.deploy_env, self._envs, document, (*loc, "deploy_env")):
                    return None
                return DeployEnv(id="deploy_env", timeout_s=timeout_s, fail_task_on_error=fail, env=written.deploy_env)
            case DeployAgentStep():
                name = written.deploy_agent
                if not self._known("agent", name, self._agents, document, (*loc, "deploy_agent")):
                    return None
                return DeployAgent(id="deploy_agent", timeout_s=timeout_s, fail_task_on_error=fail, agent=name)
            case PromptStep():
                return self._prompt(written, document, (*loc, "prompt"), fail=fail)
            case RunStep():
                target = self._references.python(written.run.python, document, (*loc, "run", "python"))
                if target is None:
                    return None
                return RunPython(id="run", timeout_s=timeout_s, fail_task_on_error=fail, target=target)
            case AddSkillsStep():
                return self._add_skills(written, document, (*loc, "add_skills"), fail=fail)
            case _:
                return self._verify(written, written.verify.python, document, (*loc, "verify"), fail=fail)

    def _prompt(self, written: PromptStep, document: Document, loc: Loc, *, fail: bool) -> Prompt | None:
        agent = written.prompt.agent if isinstance(written.prompt, PromptFile) else None
        if agent is not None and not self._known("agent", agent, self._agents, document, (*loc, "agent")):
            return None
        source = self._references.text(written.prompt, document, loc)
        if source is None:
            return None
        return Prompt(
            id="prompt",
            timeout_s=written.timeout_s,
            fail_task_on_error=fail,
            agent=agent or self._played,
            source=source,
        )

    def _add_skills(self, written: AddSkillsStep, document: Document, loc: Loc, *, fail: bool) -> AddSkills | None:
        found = [self._references.skill(name, document, (*loc, at)) for at, name in enumerate(written.add_skills)]
        skills = tuple(name for name in found if name is not None)
        if len(skills) < len(found):
            return None
        return AddSkills(
            id="add_skills",
            timeout_s=written.timeout_s,
            fail_task_on_error=fail,
            agent=self._played,
            skills=tuple(dict.fromkeys(skills)),
        )

    def _verify(
        self, written: VerifyFile | AnyStep, python: str, document: Document, loc: Loc, *, fail: bool
    ) -> Verify | None:
        target = self._references.python(python, document, (*loc, "python"), default="score")
        if target is None:
            return None
        on_error = fail if written.fail_task_on_error is None else written.fail_task_on_error
        stem = PurePosixPath(target.path.as_posix()).stem
        return Verify(id=stem, timeout_s=written.timeout_s, fail_task_on_error=on_error, verifier=target)

    def _known(
        self, what: str, name: str, names: Sequence[str] | Mapping[str, object], document: Document, loc: Loc
    ) -> bool:
        if name in names:
            return True
        self._problems.append(document.problem(loc, f"there is no {what} '{name}'", names_or_closest(name, names)))
        return False

    def _numbered(self, built: Sequence[BuiltStep], own_ids: Mapping[int, str | None]) -> tuple[BuiltStep, ...]:
        """Give each step its id: its own, or the default one, which a number makes unique."""
        taken: set[str] = {name for item in built if (name := own_ids.get(id(item))) is not None}
        seen: set[str] = set()
        done: list[BuiltStep] = []
        for item in built:
            own = own_ids.get(id(item))
            name = own or item.step.id
            if own is not None and own in seen:
                self._problems.append(item.problem(f"the step id '{own}' is taken in this task", "give it another"))
            number = 2
            while own is None and (name in taken or name in seen):
                name, number = f"{item.step.id}-{number}", number + 1
            seen.add(name)
            done.append(BuiltStep(replace(item.step, id=name), item.document, item.loc))
        return tuple(done)

    def _check_order(self, task_id: str, built: Sequence[BuiltStep], document: Document) -> None:
        envs: set[str] = set()
        agents: set[str] = set()
        prompted: set[str] = set()
        for item in built:
            match item.step:
                case DeployEnv(env=env):
                    self._once("env", env, envs, item)
                case DeployAgent(agent=agent):
                    self._once("agent", agent, agents, item)
                    for env in self._agents[agent].envs:
                        if env not in envs:
                            what = f"agent '{agent}' works in env '{env}', which is not deployed before it"
                            self._problems.append(item.problem(what, f"add a step deploy_env: {env} above"))
                case AddSkills(agent=agent):
                    self._deployed(agent, agents, item, "given skills")
                case Prompt(agent=agent):
                    self._deployed(agent, agents, item, "prompted")
                    prompted.add(agent)
                case _:
                    pass
        if not prompted:
            what = f"task '{task_id}' never prompts an agent"
            self._problems.append(document.problem(("steps",), what, "add a step prompt: ..."))

    def _deployed(self, agent: str, agents: set[str], item: BuiltStep, doing: str) -> None:
        if agent not in agents:
            what = f"agent '{agent}' is {doing} before it is deployed"
            self._problems.append(item.problem(what, f"add a step deploy_agent: {agent} above"))

    def _once(self, what: str, name: str, deployed: set[str], item: BuiltStep) -> None:
        if name in deployed:
            self._problems.append(item.problem(f"{what} '{name}' is deployed twice", "remove one of the two"))
        deployed.add(name)


def _each(value: T | list[T] | None, loc: Loc) -> list[tuple[T, Loc]]:
    """Return the items of a field that may be one value or a list, each with its place."""
    if value is None:
        return []
    if isinstance(value, list):
        return [(item, (*loc, index)) for index, item in enumerate(cast("list[T]", value))]
    return [(value, loc)]
