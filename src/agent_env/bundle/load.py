"""From a folder to a `Bundle`: files read, shapes checked, references followed. Runs no code of the bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.bundle import Bundle, RewardSpec
from agent_env.bundle.document import Document, Loc, read_json_lines, read_yaml
from agent_env.bundle.files import BundleFiles, MisfitError
from agent_env.bundle.gold import gold_turns
from agent_env.bundle.references import References
from agent_env.bundle.schema import BundleFile, EvalFile, McpFile, ModelFile, SandboxFile
from agent_env.bundle.schema_tasks import LongTaskFile, ShortTaskFile
from agent_env.bundle.shape_problems import shape
from agent_env.bundle.specs import AgentKind, AgentSpec, EnvSpec, McpSpec, ModelSpec, SandboxProvider, SandboxSpec
from agent_env.bundle.steps import BuiltStep, Steps
from agent_env.bundle.task import Prompt, Task
from agent_env.bundle.text import TextSource
from agent_env.bundle.verifiers import Verifiers
from agent_env.errors import BundleError, Problem, UsageError

__all__ = ["BundleSource", "load_bundle", "read_bundle"]

ALL = "all"
"""The eval that every bundle has: every task."""

_YAML = (".yaml", ".yml")

_MOST_HINTS = 20
"""Task ids of evals that are compared with all there are to find what was meant; with ten thousand, each takes a while."""
_MOST_CHARS = 1_000
"""The longest part of a problem's line; it may repeat a name of megabytes, or what a bundle's code has raised."""


@dataclass(slots=True)
class BundleSource:
    """What a folder holds: the bundle as far as it can be read, every problem, and where each thing is written."""

    root: Path
    problems: list[Problem] = field(default_factory=list[Problem])
    bundle: Bundle | None = None
    """None when bundle.yaml itself cannot be read."""
    document: Document | None = None
    """bundle.yaml."""
    tasks: dict[str, tuple[Document, tuple[BuiltStep, ...]]] = field(
        default_factory=dict[str, tuple[Document, tuple[BuiltStep, ...]]]
    )
    """Each task's document, and its steps with their places."""


def load_bundle(path: Path | str) -> Bundle:
    """Read the bundle in a folder. No code of the bundle runs.

    Args:
        path: The folder, or the `bundle.yaml` in it.

    Raises:
        UsageError: When there is no bundle at `path`.
        BundleError: When it has problems: all that can be found without running its code.
    """
    source = read_bundle(path)
    if source.problems or source.bundle is None:
        raise BundleError(in_order(source.problems))
    return source.bundle


def in_order(problems: list[Problem]) -> list[Problem]:
    """Return problems as they are shown: `bundle.yaml` first, then by file and line, each once and on one line."""
    unique = dict.fromkeys(replace(item, what=_printable(item.what), fix=_printable(item.fix)) for item in problems)
    return sorted(unique, key=lambda problem: (problem.path != Path("bundle.yaml"), problem.path, problem.line))


def _printable(text: str) -> str:
    """Write out line ends and other control characters that a message repeats from a file, and cut a long one."""
    if len(text) > _MOST_CHARS:
        half = _MOST_CHARS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def read_bundle(path: Path | str) -> BundleSource:
    """Read as much of a bundle as can be read.

    Raises:
        UsageError: When there is no bundle at `path`.
    """
    source = BundleSource(_root(Path(path)))
    _Reader(source).read()
    return source


def _root(path: Path) -> Path:
    folder = path.parent if path.name == "bundle.yaml" and not path.is_dir() else path
    if not folder.exists():
        raise UsageError(f"no bundle at {path}: there is no such folder")
    if not folder.is_dir():
        raise UsageError(f"no bundle at {path}: it is a file, name the folder that has bundle.yaml")
    if (folder / "bundle.yaml").is_file():
        return folder.resolve()
    inside = sorted(child.parent for child in folder.glob("*/bundle.yaml"))
    hint = "add one, or name the bundle's folder"
    if (folder / "bundle.yml").exists():
        hint = "rename bundle.yml to bundle.yaml"
    elif inside:
        hint = f"did you mean {inside[0]}?"
    raise UsageError(f"no bundle at {path}: it has no bundle.yaml, {hint}")


class _Reader:
    def __init__(self, source: BundleSource) -> None:
        self._source = source
        self._problems = source.problems
        self._files = BundleFiles(source.root)
        self._references = References(self._files, source.problems)
        self._broken: set[str] = set()
        self._unread = False

    def read(self) -> None:
        tasks = list(self._task_files())
        evals = dict(self._eval_files())
        document = read_yaml(self._source.root, Path("bundle.yaml"), self._problems)
        self._source.document = document
        header = None if document is None else shape(BundleFile, document, self._problems)
        if document is None or header is None:
            return
        models = {name: _model(written) for name, written in header.models.items()}
        envs = self._envs(header, document)
        agents = self._agents(header, models, document)
        played = self._played(header, agents, document)
        if played is None:
            return
        known: dict[str, Task] = {}
        selected: dict[str, tuple[str, ...]] = {}
        self._source.bundle = bundle = Bundle(
            root=self._source.root,
            name=header.name,
            version=header.version,
            description=header.description,
            license=header.license,
            envs=envs,
            agents=agents,
            played=played,
            reward=_reward(header),
            players={
                name: ref
                for name, written in header.players.items()
                if (ref := self._references.python(written, document, ("players", name))) is not None
            },
            tasks=known,
            evals=selected,
        )
        steps = Steps(
            envs=list(header.envs),
            agents=agents,
            played=played,
            defaults=(document, header.task_defaults),
            verifiers=Verifiers(
                envs=envs,
                env_names=list(header.envs),
                models=models,
                references=self._references,
                problems=self._problems,
            ),
            references=self._references,
            problems=self._problems,
        )
        for task_document, task in tasks:
            built = self._task(bundle, task_document, task, steps)
            if built is not None:
                known[built.id] = built
        if not tasks and not self._broken and not self._unread:
            self._problems.append(
                document.problem((), "the bundle has no task", "add a .yaml or .jsonl file under tasks/")
            )
        selected.update(self._select(evals, known))

    def _walk(self, folder: str) -> Iterator[Path]:
        """Yield the files under a folder of the bundle, relative to it, in order; not the hidden ones."""
        top = self._source.root / folder
        if not top.exists():
            return
        try:
            self._files.find(folder, directory_too=True)  # before it is looked through: it may lead to anywhere
        except MisfitError as exc:
            self._problems.append(Problem(path=Path(folder), line=1, what=exc.what, fix=exc.fix))
            self._unread = True
            return
        for path in sorted(top.rglob("*")):
            relative = path.relative_to(self._source.root)
            if path.is_dir() or any(part.startswith(".") for part in relative.parts):
                continue
            try:
                yield self._files.find(relative.as_posix())
            except MisfitError as exc:
                self._problems.append(Problem(path=relative, line=1, what=exc.what, fix=exc.fix))

    def _task_files(self) -> Iterator[tuple[Document, ShortTaskFile | LongTaskFile]]:
        for path in self._walk("tasks"):
            if path.suffix in _YAML:
                document = read_yaml(self._source.root, path, self._problems)
                documents = [] if document is None else [document]
                self._unread |= document is None
            elif path.suffix == ".jsonl":
                before = len(self._problems)
                documents = list(read_json_lines(self._source.root, path, self._problems))
                self._unread |= len(self._problems) > before
            else:
                continue
            for document in documents:
                data: object = document.data
                model = LongTaskFile if isinstance(data, dict) and "steps" in data else ShortTaskFile
                task = shape(model, document, self._problems)
                if task is not None:
                    yield document, task
                else:
                    self._broken.add(str(document.data.get("id")) if isinstance(data, dict) else "")

    def _eval_files(self) -> Iterator[tuple[str, tuple[Document, EvalFile]]]:
        for path in self._walk("evals"):
            if path.suffix not in _YAML:
                continue
            document = read_yaml(self._source.root, path, self._problems)
            chosen = None if document is None else shape(EvalFile, document, self._problems)
            if document is None or chosen is None:
                continue
            if path.stem == ALL:
                what = f"the eval '{ALL}' is every task already"
                self._problems.append(document.problem((), what, "give the file another name"))
            yield path.stem, (document, chosen)

    def _envs(self, header: BundleFile, document: Document) -> dict[str, EnvSpec]:
        sandboxes = {
            name: sandbox
            for name, written in header.sandboxes.items()
            if (sandbox := self._sandbox(name, written, document)) is not None
        }
        envs: dict[str, EnvSpec] = {}
        for name, written in header.envs.items():
            loc = ("envs", name)
            universe = self._references.universe(written.universe, document, (*loc, "universe"))
            python, mcp, sandbox = None, None, None
            if written.python is not None:
                python = self._references.python(written.python, document, (*loc, "python"))
            elif written.mcp is not None:
                mcp = self._mcp(written.mcp, document, (*loc, "mcp"))
                if universe is not None and (written.mcp.shared or written.mcp.url is not None):
                    what = f"env '{name}' has a universe, which a {'shared server' if written.mcp.shared else 'server at a url'} never sees"
                    fix = "remove universe, or let each episode start a server of its own"
                    self._problems.append(document.problem((*loc, "universe"), what, fix))
            elif written.sandbox in sandboxes:
                sandbox = sandboxes[written.sandbox]
            elif written.sandbox not in header.sandboxes:  # else it has a problem of its own
                what = f"there is no sandbox '{written.sandbox}'"
                fix = f"add sandboxes: {{{written.sandbox}: {{provider: bwrap}}}}"
                if header.sandboxes:
                    fix = names_or_closest(str(written.sandbox), header.sandboxes)
                self._problems.append(document.problem((*loc, "sandbox"), what, fix))
            if python or mcp or sandbox:
                envs[name] = EnvSpec(name=name, python=python, mcp=mcp, sandbox=sandbox, universe=universe)
        return envs

    def _mcp(self, written: McpFile, document: Document, loc: Loc) -> McpSpec:
        return McpSpec(
            command=self._references.program(written.command or (), document, (*loc, "command")),
            environment=written.env,
            url=written.url,
            headers=written.headers,
            shared=written.shared,
            call_timeout_s=written.call_timeout_s,
        )

    def _sandbox(self, name: str, written: SandboxFile, document: Document) -> SandboxSpec | None:
        python = None
        if written.python is not None:
            python = self._references.python(written.python, document, ("sandboxes", name, "python"))
            if python is None:
                return None
        binds: dict[str, Path] = {}
        for place, folder in written.binds.items():
            found = self._references.folder(folder, document, ("sandboxes", name, "binds", place))
            if found is not None:
                binds[place] = self._files.root / found
        return SandboxSpec(
            provider=SandboxProvider(written.provider),
            python=python,
            image=written.image,
            network=written.network,
            memory_mb=written.memory_mb,
            processes=written.processes,
            command_timeout_s=written.command_timeout_s,
            output_chars=written.output_chars,
            environment=written.env,
            setup=tuple(written.setup),
            binds=binds,
        )

    def _agents(self, header: BundleFile, models: Mapping[str, ModelSpec], document: Document) -> dict[str, AgentSpec]:
        agents: dict[str, AgentSpec] = {}
        for name, written in header.agents.items():
            loc = ("agents", name)
            kind = AgentKind(written.kind)
            names = written.envs
            if names is None:
                names = list(header.envs) if kind is AgentKind.PLAYED else []
                if len(names) > 1:
                    what = f"agent '{name}' does not say which envs it works in"
                    self._problems.append(document.problem(loc, what, f"add envs: [{', '.join(names)}]"))
                    names = []
            for index, env in enumerate(names):
                if env not in header.envs:
                    problem = document.problem(
                        (*loc, "envs", index), f"there is no env '{env}'", names_or_closest(env, header.envs)
                    )
                    self._problems.append(problem)
                elif env in names[:index]:
                    what = f"agent '{name}' has env '{env}' twice"
                    self._problems.append(document.problem((*loc, "envs", index), what, "remove one of the two"))
            prompt = written.system_prompt
            system_prompt = None if prompt is None else self._references.text(prompt, document, (*loc, "system_prompt"))
            python = None
            if written.python is not None:
                python = self._references.python(written.python, document, (*loc, "python"))
            model = None if written.model is None else models.get(written.model)
            if written.model is not None and model is None:
                what = f"there is no model '{written.model}'"
                fix = names_or_closest(written.model, models) if models else "add models: to bundle.yaml"
                self._problems.append(document.problem((*loc, "model"), what, fix))
            if written.skills and kind is not AgentKind.PLAYED:
                what = f"agent '{name}' of kind '{kind}' has skills"
                self._problems.append(
                    document.problem((*loc, "skills"), what, "remove it: skills are a played agent's")
                )
            said = {"opening": written.opening, "stop": written.stop, "max_messages": written.max_messages}
            agents[name] = AgentSpec(
                name=name,
                kind=kind,
                system_prompt=system_prompt,
                envs=tuple(dict.fromkeys(names)),
                skills=written.skills,
                python=python,
                model=model,
                **cast("dict[str, Any]", {key: value for key, value in said.items() if value is not None}),
            )
        return agents

    def _played(self, header: BundleFile, agents: Mapping[str, AgentSpec], document: Document) -> str | None:
        played = [name for name, agent in agents.items() if agent.kind is AgentKind.PLAYED]
        if header.played is not None:
            if header.played in played:
                return header.played
            what = f"there is no played agent '{header.played}'"
            self._problems.append(document.problem(("played",), what, names_or_closest(header.played, played)))
            return None
        if len(played) == 1:
            return played[0]
        what = f"{len(played)} agents are played" if played else "no agent is played"
        fix = f"add played: with one of {', '.join(played)}" if played else "give one of them kind: played"
        self._problems.append(document.problem(("agents",), what, fix))
        return None

    def _task(
        self, bundle: Bundle, document: Document, written: ShortTaskFile | LongTaskFile, steps: Steps
    ) -> Task | None:
        before = self._source.tasks.get(written.id)
        if before is not None:
            first = before[0]
            what = f"the id '{written.id}' is taken by {first.path}:{first.line(('id',))}"
            self._problems.append(document.problem(("id",), what, "give each task an id of its own"))
            return None
        before_steps = len(self._problems)
        built = steps.short(written, document) if isinstance(written, ShortTaskFile) else steps.long(written, document)
        self._source.tasks[written.id] = (document, built)
        asked = [item.step for item in built if isinstance(item.step, Prompt) and item.step.agent == bundle.played]
        prompts = len(asked)
        # A conversation and a function ask as often as they like.
        is_fixed = all(isinstance(step.source, TextSource) for step in asked)
        is_whole = len(self._problems) == before_steps  # else a prompt may have been left out for its own problem
        if is_whole and written.gold is not None and prompts and is_fixed and len(written.gold) != prompts:
            what = f"gold has {len(written.gold)} turns, the task has {prompts}"
            self._problems.append(document.problem(("gold",), what, "write one item for each prompt"))
        return Task(
            bundle=bundle,
            id=written.id,
            tags=tuple(written.tags),
            params=written.params,
            steps=tuple(item.step for item in built),
            gold=None if written.gold is None else gold_turns(written.gold),
            gold_reward=written.gold_reward,
            path=document.path,
            line=document.line(("id",)),
        )

    def _select(
        self, evals: Mapping[str, tuple[Document, EvalFile]], tasks: Mapping[str, Task]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield ALL, tuple(tasks)
        hints = _MOST_HINTS
        tags = {tag for task in tasks.values() for tag in task.tags}
        for name, (document, chosen) in evals.items():
            ids: set[str] = set()
            for index, pattern in enumerate(chosen.tasks):
                if pattern in tasks:
                    ids.add(pattern)
                    continue
                found = [task_id for task_id in tasks if fnmatchcase(task_id, pattern)]
                ids.update(found)
                if not found and not self._unread and not any(fnmatchcase(name, pattern) for name in self._broken):
                    what = f"eval '{name}' names task '{pattern}', which is not there"
                    fix = names_or_closest(pattern, tasks) if hints > 0 else "correct the id, or remove it"
                    hints -= 1
                    self._problems.append(document.problem(("tasks", index), what, fix))
            for index, tag in enumerate(chosen.tags):
                if tag not in tags and not self._unread and not self._broken:
                    what = f"eval '{name}' names tag '{tag}', which no task has"
                    problem = document.problem(("tags", index), what, names_or_closest(tag, sorted(tags)))
                    self._problems.append(problem)
            wanted = set(chosen.tags)
            yield name, tuple(task.id for task in tasks.values() if task.id in ids or not wanted.isdisjoint(task.tags))


def _model(written: ModelFile) -> ModelSpec:
    return ModelSpec(
        model=written.model,
        base_url=written.base_url,
        api_key_env=written.api_key_env,
        temperature=written.temperature,
        max_tokens=written.max_tokens,
        timeout_s=written.timeout_s,
        extra=written.extra,
    )


def _reward(header: BundleFile) -> RewardSpec | None:
    if header.reward is None:
        return None
    if isinstance(header.reward, str):
        return RewardSpec(weights={header.reward: 1.0})
    return RewardSpec(weights=dict(header.reward))
