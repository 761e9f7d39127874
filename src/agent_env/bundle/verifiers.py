"""From what a task's file says of a verifier to the value that is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.document import Document, Loc
from agent_env.bundle.gold import gold_calls
from agent_env.bundle.references import References
from agent_env.bundle.schema_tasks import (
    CallPatternFile,
    Verifier,
    VerifyCheck,
    VerifyCommand,
    VerifyJudge,
    VerifyPython,
    VerifyState,
)
from agent_env.bundle.specs import EnvSpec, ModelSpec, UniverseSpec
from agent_env.bundle.task import (
    CallPattern,
    CheckVerifier,
    Command,
    CommandVerifier,
    GoldCall,
    JudgeVerifier,
    StateVerifier,
)
from agent_env.bundle.task import Verifier as BuiltVerifier
from agent_env.errors import Problem

__all__ = ["Verifiers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifiers:
    """Builds the verifiers and commands of the tasks of one bundle, and adds a problem for each that cannot be run."""

    envs: Mapping[str, EnvSpec]
    env_names: Sequence[str]
    """Every env that is written, also one with a problem of its own."""
    models: Mapping[str, ModelSpec]
    references: References
    problems: list[Problem]

    def build(
        self, written: Verifier, document: Document, loc: Loc, *, has_gold: bool
    ) -> tuple[str, BuiltVerifier] | None:
        """Return the default id of a verifier's step and the verifier; None where it has a problem.

        Args:
            written: What the file says.
            document: The file.
            loc: Where in it.
            has_gold: Whether the task has a reference solution.
        """
        match written:
            case VerifyPython():
                target = self.references.python(written.python, document, (*loc, "python"), default="score")
                return None if target is None else (PurePosixPath(target.path.as_posix()).stem, target)
            case VerifyState():
                return self._named("state", self._state(written, document, loc, has_gold=has_gold))
            case VerifyCommand():
                command = self.command(written.command, written.sandbox, written.files, document, loc)
                if command is None:
                    return None
                return "command", CommandVerifier(command=command, score_file=written.score_file)
            case VerifyCheck():
                check = written.check
                verifier = CheckVerifier(
                    called=_patterns(check.called),
                    not_called=_patterns(check.not_called),
                    said=tuple(check.said),
                    not_said=tuple(check.not_said),
                )
                return "check", verifier
            case VerifyJudge():
                return self._named("judge", self._judge(written, document, (*loc, "judge")))

    def command(
        self, command: str, sandbox: str | None, files: str | None, document: Document, loc: Loc
    ) -> Command | None:
        """Return a command in a sandbox; None where it has a problem."""
        sandboxes = [name for name, env in self.envs.items() if env.sandbox is not None]
        if not command.strip():
            self._problem(document, (*loc, "command"), "the command is empty", "write a shell command")
            return None
        if sandbox is None:
            if len(sandboxes) != 1:
                what = "the command does not say its sandbox"
                fix = (
                    f"add sandbox: with one of {', '.join(sandboxes)}" if sandboxes else "add an env with sandbox: ..."
                )
                self._problem(document, (*loc, "command"), what, fix)
                return None
            sandbox = sandboxes[0]
        elif sandbox not in sandboxes:
            what = f"env '{sandbox}' is no sandbox" if sandbox in self.envs else f"there is no env '{sandbox}'"
            self._problem(document, (*loc, "sandbox"), what, names_or_closest(sandbox, sandboxes))
            return None
        folder = None if files is None else self.references.folder(files, document, (*loc, "files"))
        if files is not None and folder is None:
            return None
        return Command(env=sandbox, command=command, files=folder)

    def _state(self, written: VerifyState, document: Document, loc: Loc, *, has_gold: bool) -> StateVerifier | None:
        env = self.envs.get(written.state)
        if env is None:
            if written.state not in self.env_names:  # else the env has a problem of its own
                fix = names_or_closest(written.state, self.env_names)
                self._problem(document, (*loc, "state"), f"there is no env '{written.state}'", fix)
            return None
        if env.sandbox is not None:
            what = f"env '{env.name}' is a sandbox, whose state is not compared"
            self._problem(document, (*loc, "state"), what, "use a command: verifier")
            return None
        if env.mcp is not None and (env.mcp.shared or env.mcp.url is not None):
            what = f"env '{env.name}' is a server that keeps no state of the episode's own"
            self._problem(document, (*loc, "state"), what, "use a check: verifier, or let each episode start a server")
            return None
        equals = written.equals
        if equals == "gold" and not has_gold:
            what = "the state is compared with what gold leaves, and the task has no gold"
            self._problem(document, (*loc, "equals"), what, "add gold:, or write equals: {after: [...]}")
            return None
        wanted = equals if isinstance(equals, str) else None
        if wanted is None:
            wanted = self._declared(equals, env, document, (*loc, "equals"))
        if wanted is None:
            return None
        return StateVerifier(
            env=env.name, wanted=wanted, ignore=tuple(written.ignore), unordered=tuple(written.unordered)
        )

    def _declared(
        self, equals: object, env: EnvSpec, document: Document, loc: Loc
    ) -> tuple[GoldCall, ...] | UniverseSpec | None:
        after = getattr(equals, "after", None)
        if after is not None:
            return gold_calls(after)
        path = str(getattr(equals, "universe", ""))
        universe = self.references.universe(path, document, (*loc, "universe"))
        if universe is not None and (env.universe is None or env.universe.kind is not universe.kind):
            has = "no universe" if env.universe is None else f"one of kind {env.universe.kind}"
            what = f"'{path}' is a universe of kind {universe.kind}, and env '{env.name}' has {has}"
            self._problem(document, (*loc, "universe"), what, "write the end state in the same form")
            return None
        return universe

    def _judge(self, written: VerifyJudge, document: Document, loc: Loc) -> JudgeVerifier | None:
        judge = written.judge
        model = self.models.get(judge.model)
        if model is None:
            what = f"there is no model '{judge.model}'"
            fix = names_or_closest(judge.model, self.models) if self.models else "add models: to bundle.yaml"
            self._problem(document, (*loc, "model"), what, fix)
        prompt = self.references.text(judge.prompt, document, (*loc, "prompt"))
        if model is None or prompt is None:
            return None
        return JudgeVerifier(model=model, prompt=prompt, max_score=judge.max_score)

    def _named(self, name: str, verifier: BuiltVerifier | None) -> tuple[str, BuiltVerifier] | None:
        return None if verifier is None else (name, verifier)

    def _problem(self, document: Document, loc: Loc, what: str, fix: str) -> None:
        self.problems.append(document.problem(loc, what, fix))


def _patterns(written: Sequence[CallPatternFile]) -> tuple[CallPattern, ...]:
    return tuple(CallPattern(tool=item.tool, arguments=item.arguments) for item in written)
