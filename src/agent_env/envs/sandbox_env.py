"""An env that is a machine to work in: a sandbox with the tools `bash`, `read_file` and `write_file`.

Covers what an agent is shown of it. The sandbox itself is `agent_env.sandbox`'s.

Each command has a shell of its own, so that whatever it does to its shell ends with it. What is to be kept, the working
directory and the exported variables, is written to a file in the sandbox when the command ends, and read from there by the
next one.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from agent_env.bundle import SandboxSpec
from agent_env.envs.arguments import MisfitArgumentsError
from agent_env.envs.contract import OpenTools, ToolAnswer, ToolSpec
from agent_env.envs.python_tools import toolbox_of
from agent_env.envs.refusals import no_such_tool, not_called
from agent_env.envs.result_text import clean_text
from agent_env.envs.tool import tool
from agent_env.errors import EnvBrokenError, UsageError
from agent_env.sandbox import ExecResult, Sandbox, open_sandbox
from agent_env.sandbox.contract import left_out_line

__all__ = ["open_sandbox_env", "shell_text"]

_STATE = "shell-state"
_READ_BYTES = 10 * 2**20
_SETUP_CHARS = 1_000

_SHELL = " ".join(
    (
        'if [ -n "${{BASH_VERSION-}}" ]; then IFS= read -r -d "" __ae_command; else __ae_command=$(cat); fi;',
        "exec </dev/null 2>&1;",
        "__ae_file={state};",
        'if [ -r "$__ae_file" ]; then',
        'if [ -n "${{BASH_VERSION-}}" ]; then unset $(compgen -e) 2>/dev/null; fi;',
        '. "$__ae_file"; __ae_old=${{OLDPWD-}};',
        'cd -- "$__ae_dir" 2>/dev/null || {{ printf "[%s is no more: back in %s]\\n" "$__ae_dir" {root}; cd -- {root}; }};',
        "OLDPWD=$__ae_old; unset __ae_dir __ae_old;",
        "fi;",
        '__ae_save() {{ [ -n "${{__ae_is_saved-}}" ] && return; __ae_is_saved=1; export __ae_dir="$PWD";',
        '{{ export -p >"$__ae_file.new" && mv -f "$__ae_file.new" "$__ae_file"; }} 2>/dev/null; }};',
        "trap '{{ __ae_code=$?; set +xveu; }} 2>/dev/null; __ae_save; exit $__ae_code' EXIT;",
        'eval "$__ae_command"; {{ __ae_code=$?; set +xveu; }} 2>/dev/null; __ae_save; exit $__ae_code',
    )
)
"""What runs a command that it reads from its input: it restores what the last one has left, and saves what this one leaves,
however it ends. In one line, so that the shell counts the command's lines from 1, and repeats none of this."""


@asynccontextmanager
async def open_sandbox_env(name: str, spec: SandboxSpec, *, folder: Path | None) -> AsyncGenerator[OpenTools]:
    """Open a sandbox for one episode, with tools for an agent.

    Args:
        name: The env's name in the bundle.
        spec: The sandbox. Its `setup` is run first.
        folder: The episode's own copy of the universe, which becomes the working directory; None is an empty one.

    Yields:
        The open env. Its state is the `Sandbox`, in which verifiers can run commands and read files.

    Raises:
        SandboxUnavailableError: When this machine cannot open such a sandbox.
        SandboxLostError: When it is lost before it could be used.
        EnvBrokenError: When a command of its setup fails.
    """
    async with open_sandbox(spec, files=folder) as sandbox:
        for command in spec.setup:
            result = await sandbox.run(command)
            if not result.is_ok:
                raise EnvBrokenError(_setup_failed(name, command, result))
        yield _SandboxSession(sandbox, spec)


def shell_text(sandbox: Sandbox) -> str:
    """Return what a shell in a sandbox is given, to run the command that it reads from its input with what is kept."""
    state, root = (shlex.quote(str(path)) for path in (sandbox.private_dir / _STATE, sandbox.root))
    return _SHELL.format(state=state, root=root)


def _setup_failed(name: str, command: str, result: ExecResult) -> str:
    how = "took too long" if result.timed_out else f"ended with {result.exit_code}"
    said = (result.stderr.strip() or result.stdout.strip()).decode("utf-8", "replace")[-_SETUP_CHARS:]
    return clean_text(f"env '{name}': the setup command '{command}' {how}: {said or 'it said nothing'}")


class _SandboxSession:
    """An open sandbox as an env."""

    def __init__(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        self._sandbox = sandbox
        self._calls = _Tools(sandbox, spec)
        self._tools = toolbox_of(_Tools).tools
        self._specs = tuple(self._calls.described(tool.spec) for tool in self._tools.values())

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._specs

    @property
    def state(self) -> Sandbox:
        return self._sandbox

    async def call(self, name: str, arguments: Mapping[str, object]) -> ToolAnswer:
        found = self._tools.get(name)
        if found is None:
            return no_such_tool(name, self._tools)
        try:
            converted = found.convert(arguments)
        except MisfitArgumentsError as exc:
            return not_called(name, str(exc))
        try:
            return await cast("Awaitable[ToolAnswer]", found.function(self._calls, **converted))
        except UsageError as exc:
            return ToolAnswer(clean_text(str(exc)), is_error=True)
        except OSError as exc:
            return ToolAnswer(clean_text(f"{exc.filename}: {exc.strerror}"), is_error=True)


class _Tools:
    """The tools of every sandbox."""

    def __init__(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        self._sandbox = sandbox
        self._most_s = spec.command_timeout_s
        self._chars = spec.output_chars
        self._shell = shell_text(sandbox)

    def described(self, spec: ToolSpec) -> ToolSpec:
        """Return a tool with this sandbox's folder and bounds in its description."""

        def filled(text: str) -> str:
            return text.format(root=self._sandbox.root, most_s=f"{self._most_s:g}", chars=f"{self._chars:,}")

        properties = {
            name: {**schema, "description": filled(schema["description"])}
            for name, schema in spec.parameters["properties"].items()
        }
        parameters = {**spec.parameters, "properties": properties}
        return ToolSpec(name=spec.name, description=filled(spec.description), parameters=parameters)

    @tool
    async def bash(self, command: str, timeout_s: float | None = None) -> ToolAnswer:
        """Run a command in bash, starting in {root}, and return what it prints.

        The working directory and exported variables are kept for the next call; nothing else of the shell is. The command has
        no terminal and no input. It is killed after {most_s} seconds. A program that is to go on running is started in the
        background: `server >server.log 2>&1 &`. Output beyond {chars} characters has its middle left out.

        Args:
            command: The command; several lines are fine.
            timeout_s: Fewer seconds after which it is killed.
        """
        most_s = self._most_s if timeout_s is None else min(max(timeout_s, 0.001), self._most_s)
        if "\0" in command:
            raise UsageError("a command cannot hold a NUL character")
        text = f"{command}\n".encode()
        result = await self._sandbox.run(self._shell, stdin=text, timeout_s=most_s, output_bytes=4 * self._chars)
        return ToolAnswer(clean_text(self._said(result, most_s)), is_error=result.timed_out)

    @tool
    async def read_file(self, path: str, first_line: int = 1, lines: int | None = None) -> ToolAnswer:
        """Return the text of a file. More than {chars} characters have their middle left out: ask for fewer lines then.

        Args:
            path: The file; a relative path starts in {root}.
            first_line: The line to begin with, from 1.
            lines: How many lines; all that follow when it is left out.
        """
        content = await self._sandbox.read_file(path, max_bytes=_READ_BYTES)
        text = content.decode("utf-8", "replace")
        if first_line > 1 or lines is not None:
            every = text.splitlines(keepends=True)
            start = max(first_line, 1) - 1
            if start >= len(every):
                return ToolAnswer(f"the file has {len(every):,} lines", is_error=True)
            text = "".join(every[start : None if lines is None else start + max(lines, 0)])
        return ToolAnswer(clean_text(_middle_cut(text, self._chars, len(text.encode())) or "[the file is empty]"))

    @tool
    async def write_file(self, path: str, content: str) -> ToolAnswer:
        """Write a text file, in place of what was there, and make the folders above it.

        Args:
            path: The file; a relative path starts in {root}.
            content: All of its text.
        """
        await self._sandbox.write_file(path, content)
        return ToolAnswer(f"wrote {len(content.encode()):,} bytes")

    def _said(self, result: ExecResult, most_s: float) -> str:
        left_out = result.stdout_left_out_bytes
        total = len(result.stdout) + (left_out - len(left_out_line(left_out)) if left_out else 0)
        parts = [_middle_cut(result.text, self._chars, total).rstrip("\n")]
        parts += [f"[{note}]" for note in result.notes]
        if result.timed_out:
            parts.append(f"[killed: it took longer than {most_s:g} s]")
        elif result.exit_code:
            parts.append(f"[exit code {result.exit_code}]")
        return "\n".join(part for part in parts if part) or "[no output]"


def _middle_cut(text: str, chars: int, total_bytes: int) -> str:
    """Return a text with its middle left out where it is longer than `chars`, and say how much of `total_bytes` that is."""
    if len(text) <= chars:
        return text
    head, tail = text[: chars // 2], text[len(text) - chars // 2 :]
    left_out = total_bytes - len(head.encode("utf-8", "replace")) - len(tail.encode("utf-8", "replace"))
    return head + left_out_line(left_out) + tail
