"""The steps of a task, from either of its forms, and whether they can be played in that order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.code import PythonRef
from agent_env.bundle.document import Document, Loc
from agent_env.bundle.references import References
from agent_env.bundle.schema_tasks import (
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
    Verifier,
)
from agent_env.bundle.specs import AgentKind, AgentSpec
from agent_env.bundle.task import (
    AddSkills,
    CommandVerifier,
    Conversation,
    DeployAgent,
    DeployEnv,
    Prompt,
    RunCommand,
    RunPython,
    StateVerifier,
    Step,
    Verify,
)
from agent_env.bundle.text import TextSource
from agent_env.bundle.verifiers import Verifiers
from agent_env.errors import Problem

__all__ = ["BuiltStep", "Steps"]

T = TypeVar("T")

_CONVERSATION_TURNS = 20


@dataclass(frozen=True, slots=True)
class BuiltStep:
    """A step, and where it is written."""

    step: Step
    document: Document
    loc: Loc

    def problem(self, what: str, fix: str) -> Problem:
        """Return a problem with this step."""
        return self.document.problem(self.loc, what, fix)


@dataclass(frozen=True, slots=True)
class _Written(Generic[T]):
    value: T | None
    document: Document
    loc: Loc


class Steps:
    """Builds the steps of the tasks of one bundle, and adds a problem for each that cannot be played."""

    def __init__(
        self,
        *,
        envs: Sequence[str],
        agents: Mapping[str, AgentSpec],
        played: str,
        defaults: tuple[Document, TaskDefaultsFile],
        verifiers: Verifiers,
        references: References,
        problems: list[Problem],
    ) -> None:
        self._envs = envs
        self._agents = agents
        self._played = played
        self._defaults = defaults
        self._verifiers = verifiers
        self._references = references
        self._problems = problems

    def short(self, task: ShortTaskFile, document: Document) -> tuple[BuiltStep, ...]:
        """Return the steps of a short-form task: its agents' envs, the agents, the prompts, the verifiers."""
        on_error = task.fail_task_on_error
        if on_error is None:
            on_error = self._defaults[1].fail_task_on_error
        fail = True if on_error is None else on_error
        prompts = self._own_or_default("prompt", task.prompt, document)
        if prompts.value is None:
            what = f"task '{task.id}' has no prompt"
            self._problems.append(document.problem((), what, "add prompt: ..., or give task_defaults one"))
        asked = [
            BuiltStep(step, prompts.document, loc)
            for text, loc in _each(prompts.value, prompts.loc)
            if (step := self._prompt(text, prompts.document, loc, fail=fail, timeout_s=None)) is not None
        ]
        built = [*self._deployed_for(asked, document, fail=fail)]
        skills = self._own_or_default("skills", task.skills, document)
        if skills.value is not None:
            step = self._add_skills(skills.value, skills.document, skills.loc, fail=fail, timeout_s=None)
            if step is not None:
                built.append(BuiltStep(step, skills.document, skills.loc))
        built += asked
        verify = self._own_or_default("verify", task.verify, document)
        own_ids: dict[int, str | None] = {}
        for verifier, loc in _each(verify.value, verify.loc):
            step = self._verify(verifier, verify.document, loc, fail=fail, has_gold=task.gold is not None)
            if step is not None:
                built.append(BuiltStep(step, verify.document, loc))
                own_ids[id(built[-1])] = verifier.id
        numbered = self._numbered(built, own_ids)
        self._check_states(numbered)
        return numbered

    def _own_or_default(self, key: str, own: T | None, document: Document) -> _Written[T]:
        """Return what a short-form task says, or, where it says nothing, what `task_defaults` does."""
        if own is not None:
            return _Written(own, document, (key,))
        default_document, defaults = self._defaults
        return _Written(getattr(defaults, key), default_document, ("task_defaults", key))

    def _deployed_for(self, asked: Iterable[BuiltStep], document: Document, *, fail: bool) -> Iterable[BuiltStep]:
        """Yield the steps that deploy the played agent and whoever else the prompts name, their envs first."""
        names = {self._played: None}
        for item in asked:
            prompt = cast("Prompt", item.step)
            names[prompt.agent] = None
            if isinstance(prompt.source, Conversation):
                names[prompt.source.by] = None
        for env in dict.fromkeys(env for name in names for env in self._agents[name].envs):
            yield BuiltStep(DeployEnv(id="deploy_env", env=env, fail_task_on_error=fail), document, ())
        for name in names:
            yield BuiltStep(DeployAgent(id="deploy_agent", agent=name, fail_task_on_error=fail), document, ())

    def long(self, task: LongTaskFile, document: Document) -> tuple[BuiltStep, ...]:
        """Return the steps of a long-form task."""
        built: list[BuiltStep] = []
        own_ids: dict[int, str | None] = {}
        for index, written in enumerate(task.steps):
            loc = ("steps", index)
            step = self._step(written, document, loc, has_gold=task.gold is not None)
            if step is not None:
                built.append(BuiltStep(step, document, loc))
                within = getattr(written, "verify", None)
                own_ids[id(built[-1])] = written.id or getattr(within, "id", None)
        numbered = self._numbered(built, own_ids)
        if len(built) == len(task.steps):  # a step that is left out has a problem of its own
            self._check_order(task.id, numbered, document)
            self._check_states(numbered)
        return numbered

    def _step(self, written: AnyStep, document: Document, loc: Loc, *, has_gold: bool) -> Step | None:
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
                return self._prompt(written.prompt, document, (*loc, "prompt"), fail=fail, timeout_s=timeout_s)
            case RunStep():
                return self._run(written, document, (*loc, "run"), fail=fail)
            case AddSkillsStep():
                where = (*loc, "add_skills")
                return self._add_skills(written.add_skills, document, where, fail=fail, timeout_s=timeout_s)
            case _:
                step = self._verify(written.verify, document, (*loc, "verify"), fail=fail, has_gold=has_gold)
                return None if step is None else replace(step, timeout_s=timeout_s or step.timeout_s)

    def _prompt(
        self, written: str | PromptFile, document: Document, loc: Loc, *, fail: bool, timeout_s: float | None
    ) -> Prompt | None:
        if isinstance(written, str):
            source = self._references.text(written, document, loc)
            if source is None:
                return None
            return Prompt(id="prompt", timeout_s=timeout_s, fail_task_on_error=fail, agent=self._played, source=source)
        agent = written.agent or self._played
        if not self._known("agent", agent, self._agents, document, (*loc, "agent")):
            return None
        source = self._source(written, agent, document, loc)
        system_prompt = (
            None
            if written.system_prompt is None
            else self._references.text(written.system_prompt, document, (*loc, "system_prompt"))
        )
        if source is None or (system_prompt is None and written.system_prompt is not None):
            return None
        return Prompt(
            id="prompt",
            timeout_s=timeout_s,
            fail_task_on_error=fail,
            agent=agent,
            source=source,
            system_prompt=system_prompt,
            tools=None if written.tools is None else tuple(dict.fromkeys(written.tools)),
        )

    def _source(
        self, written: PromptFile, agent: str, document: Document, loc: Loc
    ) -> TextSource | PythonRef | Conversation | None:
        if written.python is not None:
            return self._references.python(written.python, document, (*loc, "python"))
        if written.by is None:
            return self._references.text(written, document, loc)
        leads, where = written.by, (*loc, "by")
        if not self._known("agent", leads, self._agents, document, where):
            return None
        problem = None
        if leads == agent:
            problem = document.problem(where, f"agent '{leads}' leads a conversation with itself", "name another agent")
        elif self._agents[leads].kind is AgentKind.PLAYED:
            what = f"agent '{leads}' leads a conversation, and is played"
            problem = document.problem(where, what, "name an agent of kind scripted or model")
        if problem is not None:
            self._problems.append(problem)
            return None
        return Conversation(by=leads, max_turns=written.max_turns or _CONVERSATION_TURNS)

    def _run(self, written: RunStep, document: Document, loc: Loc, *, fail: bool) -> Step | None:
        run, timeout_s = written.run, written.timeout_s
        if run.command is not None:
            command = self._verifiers.command(run.command, run.sandbox, run.files, document, loc)
            if command is None:
                return None
            return RunCommand(id="run", timeout_s=timeout_s, fail_task_on_error=fail, command=command)
        target = self._references.python(run.python or "", document, (*loc, "python"))
        if target is None:
            return None
        return RunPython(id="run", timeout_s=timeout_s, fail_task_on_error=fail, target=target)

    def _add_skills(
        self, written: Sequence[str], document: Document, loc: Loc, *, fail: bool, timeout_s: float | None
    ) -> AddSkills | None:
        found = [self._references.skill(name, document, (*loc, at)) for at, name in enumerate(written)]
        skills = tuple(skill for skill in found if skill is not None)
        if len(skills) < len(found):
            return None
        return AddSkills(
            id="add_skills",
            timeout_s=timeout_s,
            fail_task_on_error=fail,
            agent=self._played,
            skills=tuple(dict.fromkeys(skills)),
        )

    def _verify(self, written: Verifier, document: Document, loc: Loc, *, fail: bool, has_gold: bool) -> Verify | None:
        built = self._verifiers.build(written, document, loc, has_gold=has_gold)
        if built is None:
            return None
        name, verifier = built
        on_error = fail if written.fail_task_on_error is None else written.fail_task_on_error
        return Verify(
            id=name,
            timeout_s=written.timeout_s,
            fail_task_on_error=on_error,
            verifier=verifier,
            weight=written.weight,
            required=written.required,
        )

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
                case Prompt(agent=agent, source=source):
                    self._deployed(agent, agents, item, "prompted")
                    if isinstance(source, Conversation):
                        self._deployed(source.by, agents, item, "to lead a conversation")
                    prompted.add(agent)
                case _:
                    pass
        if not prompted:
            what = f"task '{task_id}' never prompts an agent"
            self._problems.append(document.problem(("steps",), what, "add a step prompt: ..."))

    def _check_states(self, built: Sequence[BuiltStep]) -> None:
        """See that what is compared, or works in a sandbox, has been deployed."""
        envs: set[str] = set()
        for item in built:
            step = item.step
            if isinstance(step, DeployEnv):
                envs.add(step.env)
            env, doing = None, "works in"
            if isinstance(step, RunCommand):
                env = step.command.env
            elif isinstance(step, Verify) and isinstance(step.verifier, CommandVerifier):
                env = step.verifier.command.env
            elif isinstance(step, Verify) and isinstance(step.verifier, StateVerifier):
                env, doing = step.verifier.env, "compares the state of"
            if env is not None and env not in envs:
                what = f"the step '{step.id}' {doing} env '{env}', which is not deployed before it"
                self._problems.append(
                    item.problem(what, f"add a step deploy_env: {env} above, or the env to the agent")
                )

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
