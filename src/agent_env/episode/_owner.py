"""The task that owns an episode: it opens the envs, goes through the steps, runs the calls, and closes everything.

One task does all of it, because some envs (MCP sessions) can only be closed by the task that opened them. What a
bundle's code raises is caught here, at the boundary of each step, and becomes a `Failure`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter

from agent_env._cancellation import stops_us
from agent_env._cleanup import close_stack
from agent_env.bundle import (
    AddSkills,
    CheckVerifier,
    DeployAgent,
    DeployEnv,
    JudgeVerifier,
    Prompt,
    RunCommand,
    RunPython,
    StateVerifier,
    Step,
    Verify,
)
from agent_env.chat import complete, open_chat
from agent_env.envs import EnvSession, open_env
from agent_env.episode._calling import failed, within
from agent_env.episode._core import Core
from agent_env.episode._deployed import DeployedAgents
from agent_env.episode._prompts import Prompts
from agent_env.episode.sink import NullSink
from agent_env.episode.wanted_states import wanted_state
from agent_env.errors import EnvBrokenError, UniverseError, UsageError
from agent_env.outcome import FailureKind, Skipped
from agent_env.sandbox import Sandbox
from agent_env.universe import StateChanges, fingerprint
from agent_env.verify.command import how_it_ended, run_command, sandbox_of
from agent_env.verify.function import call_function
from agent_env.verify.permission import judges_allowed
from agent_env.verify.score import VerifyMeans, verify_step
from agent_env.verify.state import LeftState
from agent_env.verify.step_failed import StepFailedError

__all__ = ["own"]

_KINDS: dict[type[Step], str] = {
    DeployEnv: "deploy_env",
    DeployAgent: "deploy_agent",
    AddSkills: "add_skills",
    Prompt: "prompt",
    RunPython: "run",
    RunCommand: "run",
    Verify: "verify",
}

_KEEP_S = 60.0
"""Seconds that it may take to tell what was left of one env; the run says where it took longer."""


async def own(core: Core) -> None:
    """Play an episode's steps, and close whatever they opened. What the sink raises comes out of here."""
    stack = AsyncExitStack()
    try:
        if core.task.models(judges=judges_allowed(core.limits.judges)):
            await stack.enter_async_context(open_chat())  # else each question has a connection of its own
        await _Steps(core, stack).play()
    finally:
        core.is_closing = True
        await close_stack(stack, grace_s=core.limits.close_s, what=f"run {core.run_id}")


class _Steps:
    __slots__ = ("_agents", "_bundle", "_core", "_has_kept_states", "_log", "_prompts", "_stack", "_told")

    def __init__(self, core: Core, stack: AsyncExitStack) -> None:
        self._core = core
        self._log = core.log
        self._bundle = core.task.bundle
        self._stack = stack
        self._agents = DeployedAgents(core)
        self._prompts = Prompts(core, self._agents)
        self._has_kept_states = False
        self._told: dict[str, StateChanges | None] = {}
        """What is different in each env's universe, until a step runs that may change more."""

    async def play(self) -> None:
        task = self._core.task
        first_after = len(task.steps) - len(task.after_the_agents)
        for at, step in enumerate(task.steps):
            is_after = at >= first_after
            if is_after and isinstance(step, RunPython | RunCommand | Verify):
                await self._keep_states()
            # After a cut no agent is prompted, and what only leads up to a prompt is left out with it.
            if self._core.cut is not None and not is_after and isinstance(step, Prompt | RunPython | RunCommand):
                continue
            if not await self._step(step):
                return

    async def _step(self, step: Step) -> bool:
        """Do a step and return whether the next one follows."""
        self._core.stop_if_abandoned()
        self._log.step_started(step.id, _KINDS[type(step)])
        began = perf_counter()
        goes_on = True
        try:
            await self._do(step)
        except StepFailedError as exc:
            failure = self._core.step_failed(step, exc)
            if self._log.turn is not None:
                self._log.turn_ended(None)
                self._core.fail_turn(failure)
                self._core.call_done()
            goes_on = not step.fail_task_on_error
        finally:
            if not _only_looks(step):
                self._told.clear()
        self._core.stop_if_abandoned()
        self._log.step_ended(perf_counter() - began)
        return goes_on

    async def _do(self, step: Step) -> None:
        match step:
            case DeployEnv():
                await self._deploy_env(step)
            case DeployAgent():
                await self._agents.deploy(self._bundle.agents[step.agent])
            case AddSkills():
                self._agents.add_skills(step)
            case Prompt():
                await self._prompts.ask(step)
            case RunPython():
                await call_function(
                    step.target,
                    self._core.view(),
                    timeout_s=self._core.limits.bound_s(step),
                    raised=FailureKind.RUN_STEP,
                    timed_out=FailureKind.STEP_TIMEOUT,
                )
            case RunCommand():
                await self._run_command(step, self._core.limits.bound_s(step))
            case Verify():
                await self._verify(step, self._core.limits.bound_s(step))

    async def _run_command(self, step: RunCommand, timeout_s: float) -> None:
        sandbox = sandbox_of(step.command, self._sandboxes(), FailureKind.RUN_STEP)
        try:
            result = await run_command(step.command, sandbox, root=self._bundle.root, timeout_s=timeout_s)
        except (EnvBrokenError, UsageError, OSError) as exc:
            raise failed(FailureKind.RUN_STEP, exc) from exc
        if result.timed_out:
            message = f"the command of step '{step.id}' took longer than {timeout_s:g} s"
            raise StepFailedError(FailureKind.STEP_TIMEOUT, message)
        if not result.is_ok:
            message = f"the command of step '{step.id}' ended with {result.exit_code}"
            raise StepFailedError(FailureKind.RUN_STEP, message, how_it_ended(result))

    async def _keep_states(self) -> None:
        """Record what the agents left of each universe, once: before whatever comes after the last prompt."""
        if self._has_kept_states or isinstance(self._core.sink, NullSink):
            return
        self._has_kept_states = True
        for name, session in list(self._core.envs.items()):
            universe = self._bundle.envs[name].universe
            try:
                changes = await within(self._changes(name, session), _KEEP_S, f"telling what was left of env '{name}'")
                version = None if universe is None else await fingerprint(universe)
            except (UniverseError, StepFailedError) as exc:
                self._log.state(name, {"error": " ".join(str(exc).split())})
                continue
            if changes is not None:
                self._log.state(name, changes.as_json() | ({} if version is None else {"universe": version}))

    async def _changes(self, env: str, session: EnvSession) -> StateChanges | None:
        """Tell what is different in an env's universe: once, so that a state is scored as the run has it."""
        if env not in self._told:
            self._told[env] = await session.changes()
        return self._told[env]

    async def _verify(self, step: Verify, timeout_s: float) -> None:
        means = VerifyMeans(
            root=self._bundle.root,
            sandboxes=self._sandboxes(),
            ask=complete if judges_allowed(self._core.limits.judges) else None,
            wanted=partial(wanted_state, self._core.task, timeout_s=timeout_s),
            lefts={
                name: LeftState(
                    spec=self._bundle.envs[name].universe,
                    state=session.state,
                    changes=partial(self._changes, name, session),
                )
                for name, session in self._core.envs.items()
            },
        )
        verdict = await verify_step(step, self._core.view(), means, timeout_s=timeout_s)
        if isinstance(verdict.outcome, Skipped):
            self._log.skipped(verdict.outcome)
        else:
            self._log.score(verdict.outcome, verdict.judge)

    def _sandboxes(self) -> dict[str, Sandbox]:
        envs = self._core.envs
        return {name: session.state for name, session in envs.items() if self._bundle.envs[name].sandbox is not None}

    async def _deploy_env(self, step: DeployEnv) -> None:
        task = asyncio.current_task()
        timeout_s = self._core.limits.bound_s(step)
        opening = self._stack.enter_async_context(open_env(self._bundle.envs[step.env], task=self._core.task))
        try:
            self._core.envs[step.env] = await within(opening, timeout_s, f"starting env '{step.env}'")
        except StepFailedError:
            raise
        except UniverseError as exc:
            raise failed(FailureKind.UNIVERSE, exc) from exc
        except BaseException as exc:  # an env is the bundle's own code
            if stops_us(exc, task):
                raise
            raise failed(FailureKind.ENV_START, exc) from exc


def _only_looks(step: Step) -> bool:
    """Whether a step changes no env's state: the library's own verifiers, none of a bundle's code."""
    return isinstance(step, Verify) and isinstance(step.verifier, StateVerifier | CheckVerifier | JudgeVerifier)
