"""Playing an episode by hand: what an agent sees is shown, and a person says what it does.

The person is asked in the main thread, where Ctrl-C and the line editor are; the episode lives on an event loop of its
own, so that servers and sandboxes go on while the person thinks.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agent_env._wording import counted
from agent_env.bundle import Conversation, Prompt, Task, names_or_closest
from agent_env.chat import open_chat
from agent_env.cli._asking import GIVE_UP, GivenUpError, arguments_of, ask_arguments, signature
from agent_env.envs import Refusal, ToolAnswer, ToolSpec
from agent_env.episode import EpisodeSink, Limits, Message, ToolCall, Turn, open_episode
from agent_env.errors import EpisodeFailedError, ToolError, UsageError
from agent_env.outcome import CutReason, EpisodeResult
from agent_env.runs.visible import one_line, visible

if TYPE_CHECKING:
    from agent_env.episode import Episode

__all__ = ["Person", "play_by_hand"]

_COMMANDS = ("reply", "tools", "prompt", "cut", "help", "quit")
_SHOWN_CHARS = 20_000
"""How much of one text is shown; the run has all of it."""
_HELP = f"""\
NUMBER or NAME            call a tool; you are asked for each argument
NAME {{"count": 3}}         call it with these arguments, as JSON
NAME text                 call a tool that has one argument
reply TEXT                say TEXT; that ends the turn
tools, prompt             show them again
cut                       end the episode here; it is scored
quit, Ctrl-D              give the episode up; nothing is scored
At an argument: Enter leaves it out where it may be, "" is an empty text, {GIVE_UP} gives the call up.
A tool that is called like one of these words is called by its number."""


class _QuitError(Exception):
    """The person has had enough."""


class Person:
    """Whoever sits at the terminal, or the file that is read in their place."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = _is_open(sys.stdin) and sys.stdin.isatty() and out.isatty()
        self._edits = self._is_terminal and out is sys.__stdout__

    def say(self, text: str = "", **style: Any) -> None:
        """Show a text that is ours."""
        click.secho(text, file=self._out, **style)

    def show(self, text: str, **style: Any) -> None:
        """Show a text that somebody else wrote: nothing in it moves the cursor."""
        shown = visible(text[:_SHOWN_CHARS])
        for line in shown.splitlines() or [""]:
            self.say(f"    {line}", **style)
        if len(text) > _SHOWN_CHARS:
            self.say(f"    ... and {len(text) - _SHOWN_CHARS:,} characters more", dim=True)

    def ask(self, question: str) -> str:
        """Ask for a line.

        Raises:
            _QuitError: When there is none any more.
            UsageError: When it is no text.
        """
        try:
            if self._edits:
                return input(question)
            click.echo(question, file=self._out, nl=False)
            line = sys.stdin.readline() if _is_open(sys.stdin) else ""
        except EOFError:
            line = ""
        except UnicodeDecodeError as exc:
            raise UsageError("what is read from standard input is not UTF-8 text") from exc
        if not line:
            self.say()
            raise _QuitError
        line = line.rstrip("\r\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if not self._is_terminal:  # nobody has seen it being typed
            self.say(visible(line))
        return line

    def complete(self, words: list[str]) -> None:
        """Complete these with the tab key."""
        if not self._edits:
            return
        try:
            import readline
        except ImportError:  # not in every build of Python
            return

        def completer(begun: str, state: int) -> str | None:
            found = [f"{word} " for word in words if word.startswith(begun)]
            return found[state] if state < len(found) else None

        readline.set_completer(completer)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")


def _is_open(stream: TextIO | None) -> bool:
    """Whether there is such a stream: a program may be started without standard input."""
    return stream is not None


def play_by_hand(task: Task, *, sink: EpisodeSink, limits: Limits, person: Person) -> EpisodeResult | None:
    """Play a task with a person in the agent's place.

    Args:
        task: The task.
        sink: Takes the episode down.
        limits: Bounds for steps that have none of their own.
        person: Who is asked.

    Returns:
        How it ended; None when the person has given it up.

    Raises:
        KeyboardInterrupt: At Ctrl-C; the episode is abandoned, and everything given back.
        RunIndexError: When the sink cannot take the episode down.
    """
    with start_blocking_portal() as portal:
        try:
            with (
                portal.wrap_async_context_manager(open_chat()),
                portal.wrap_async_context_manager(open_episode(task, sink=sink, limits=limits)) as episode,
            ):
                return _Session(portal, episode, person).play()
        except _QuitError:
            return None


class _Session:
    def __init__(self, portal: BlockingPortal, episode: Episode, person: Person) -> None:
        self._portal = portal
        self._episode = episode
        self._person = person
        self._system = ""
        self._tools: tuple[ToolSpec, ...] = ()
        self._calls = 0
        self._turns: Counter[str] = Counter()
        """How many each step has had."""

    def play(self) -> EpisodeResult:
        self._person.say(f"task {one_line(self._episode.task.id)}", bold=True)
        turn = self._portal.call(self._episode.start)
        shown = None
        while turn is not None:
            if turn is not shown:
                if shown is not None and shown.step != turn.step:
                    self._say_why_over(shown)
                self._show_turn(turn)
                shown = turn
            try:
                turn = self._move(turn)
            except EpisodeFailedError:
                break
        result = self._portal.call(self._episode.result)
        if shown is not None and result.failure is None and result.cut is None:
            self._say_why_over(shown)
        return result

    def _say_why_over(self, turn: Turn) -> None:
        """Say why a conversation that another agent leads has ended with a turn; that a written prompt has is plain."""
        step = next((step for step in self._episode.task.steps if step.id == turn.step), None)
        if not (isinstance(step, Prompt) and isinstance(step.source, Conversation)):
            return
        most = step.source.max_turns
        is_used_up = self._turns[turn.step] >= most
        why = f"may say no more than {counted(most, 'prompt')} (max_turns)" if is_used_up else "has nothing more to say"
        self._person.say(f"\n{one_line(step.source.by)} {why}: the conversation is over")

    def _show_turn(self, turn: Turn) -> None:
        self._turns[turn.step] += 1
        if turn.system_prompt and turn.system_prompt != self._system:
            self._system = turn.system_prompt
            self._person.say("\nsystem prompt", bold=True)
            self._person.show(turn.system_prompt)
        self._show_prompt(turn)
        if turn.tools != self._tools or turn.index == 0:
            self._tools = turn.tools
            self._show_tools()
        self._person.complete([*(tool.name for tool in turn.tools), *_COMMANDS])

    def _show_prompt(self, turn: Turn) -> None:
        self._person.say(f"\nprompt {turn.index + 1}" if turn.index else "\nprompt", bold=True)
        self._person.show(turn.prompt)

    def _show_tools(self) -> None:
        self._person.say("\ntools", bold=True)
        lines = [(signature(tool), one_line(tool.description, 120)) for tool in self._tools]
        width = min(40, max((len(line) for line, _ in lines), default=0))
        for number, (line, description) in enumerate(lines, 1):
            self._person.say(f"{number:>4}  {line:<{width}}  {description}")
        if not lines:
            self._person.say("    none")
        self._person.say("Call one by its number or name, or: reply TEXT, cut, help, quit", dim=True)

    def _move(self, turn: Turn) -> Turn | None:
        """Do what the person says, and return the turn that is open then."""
        line = self._person.ask("> ").strip()
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        commands: Mapping[str, Callable[[], Turn | None]] = {
            "": lambda: turn,
            "reply": lambda: self._reply(turn, rest),
            "tools": lambda: self._again(turn, self._show_tools),
            "prompt": lambda: self._again(turn, partial(self._show_prompt, turn)),
            "cut": self._cut,
            "help": lambda: self._again(turn, partial(self._person.say, _HELP)),
            "quit": self._quit,
        }
        if word in commands:
            return commands[word]()
        tool = self._tool(word)
        return turn if tool is None else self._call(turn, tool, rest)

    def _again(self, turn: Turn, show: Callable[[], None]) -> Turn:
        show()
        return turn

    def _tool(self, word: str) -> ToolSpec | None:
        if word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= len(self._tools):
            return self._tools[int(word) - 1]
        by_name = {tool.name: tool for tool in self._tools}
        if word not in by_name:
            hint = names_or_closest(word, [*by_name, *_COMMANDS])
            self._person.say(one_line(f"there is no tool or command '{word}', {hint}"), fg="red")
        return by_name.get(word)

    def _reply(self, turn: Turn, text: str) -> Turn | None:
        text = text or self._person.ask("  reply: ").strip()
        if not text:
            self._person.say("nothing was said; the turn goes on")
            return turn
        return self._portal.call(turn.end, Message(role="assistant", content=text))

    def _cut(self) -> None:
        self._portal.call(self._episode.cut, CutReason.RUNNER_LIMIT)

    def _quit(self) -> None:
        raise _QuitError

    def _call(self, turn: Turn, tool: ToolSpec, text: str) -> Turn | None:
        try:
            arguments = arguments_of(tool, text) if text else self._ask(tool)
        except GivenUpError:
            self._person.say("not called")
            return turn
        except ToolError as exc:
            self._person.say(one_line(str(exc)), fg="red")
            return turn
        answer = self._portal.call(self._called, turn, tool.name, arguments)
        self._show_answer(tool, answer)
        return self._portal.call(turn.end) if answer.ends_turn else turn

    def _ask(self, tool: ToolSpec) -> dict[str, Any]:
        return ask_arguments(tool, ask=self._person.ask, say=lambda text: self._person.say(f"    {text}", dim=True))

    async def _called(self, turn: Turn, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Make a call as a model makes it: a message that asks for it, then the call. On the loop."""
        self._calls += 1
        call_id, raw = f"hand-{self._calls}", json.dumps(arguments, ensure_ascii=False)
        call = ToolCall(id=call_id, name=name, arguments=raw)
        turn.record(Message(role="assistant", content="", tool_calls=[call]))
        return await turn.call(name, arguments, call_id=call_id, raw=raw)

    def _show_answer(self, tool: ToolSpec, answer: ToolAnswer) -> None:
        said = "" if answer.refusal is None else " raised" if answer.refusal is Refusal.RAISED else " refuses"
        self._person.say(f"  {one_line(tool.name)}{said}:", dim=True)
        self._person.show(answer.text, fg="red" if answer.is_error else None)
        for part in answer.content:
            if part["type"] not in ("text", "structured"):  # the text says those
                self._person.say(f"    [{one_line(str(part['type']))}: {one_line(str(part.get('mimeType', '')))}]")
