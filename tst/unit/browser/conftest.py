"""A real Chromium on a real explorer, over real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome, Score
from agent_env.runs import RunIndex, RunSink, SampledTokens

_PATIENCE_MS = 20_000
"""How long a page may take: two browsers and their servers may share the machine with the other tests."""
expect.set_options(timeout=_PATIENCE_MS)
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "\x1b[31mred\x1b[0m \u202egnp.exe\u202c \u200b\x00 </pre></details>"
)
STEPS = 6
TASKS = ("refund-1", "refund-2", "exchange-1", "address-1")


@dataclass
class Watched:
    """A page, and what it did besides being looked at."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list[str])
    """Errors and warnings of its console, and exceptions."""
    strangers: list[str] = field(default_factory=list[str])
    """Addresses of other hosts that it asked for."""

    async def open(self, path: str) -> Page:
        """Go to a page of the explorer."""
        answer = await self.page.goto(f"{self.url}{path}")
        assert answer is not None
        assert answer.status == 200, await answer.text()
        return self.page

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def asked(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.strangers.append(request.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An explorer that listens, and what its folder has."""

    folder: Path
    url: str
    ids: dict[str, str]
    """Runs that tests look for, by what they are."""


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium here: apt-get install chromium")
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Generator[Played]:
    """A folder with two training runs and what else pages are of, and the explorer on it, as the command serves it."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    with RunIndex.open(folder) as index:
        ids = _tell_all(index)
    words = [sys.executable, "-m", "agent_env", "explore", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield Played(folder=folder, url=server.stdout.readline().split()[0].rstrip("/"), ids=ids)
        finally:
            server.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: str) -> AsyncGenerator[Browser]:
    """One for all tests of a module; each has a context of its own."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=chromium, args=_OPTIONS)
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def watched(browser: Browser, played: Played, request: pytest.FixtureRequest) -> AsyncGenerator[Watched]:
    """A page whose console and requests are watched. At the end neither a complaint nor a stranger may have been."""
    asked: dict[str, Any] = getattr(request, "param", {})
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, **asked}
    context = await browser.new_context(**options)
    page = await context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    seen = Watched(page=page, url=played.url)
    page.on("console", seen.heard)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", seen.asked)
    yield seen
    await context.close()
    assert not seen.complaints
    assert not seen.strangers


class Telling:
    """Tells one run."""

    def __init__(self, index: RunIndex, group: str, task: str, *, labels: dict[str, Any] | None = None) -> None:
        self.sink: RunSink = index.run(group, labels=labels)
        self.sink.opened(
            RunHeader(task_id=task, bundle_name="shop", bundle_version="1.0", params={"user": "u1"}, tags=("refund",))
        )
        self._said = 0
        self._called = 0

    @property
    def run_id(self) -> str:
        return self.sink.run_id

    def say(self, kind: EventKind, step: str = "prompt", /, **data: Any) -> None:
        self.sink.event(Event(kind=kind, at_s=time.time(), step=step, turn=0, data=data))

    def prompt(self, text: str) -> None:
        tools: list[Any] = [
            {"name": "refund", "description": "Give money back.", "parameters": {"properties": {"order": {}}}}
        ]
        more: dict[str, Any] = {"system_prompt": "Be kind.", "prompt": text, "tools": tools}
        self.say(EventKind.TURN_STARTED, agent="clerk", kind="played", **more)

    def message(self, text: str) -> None:
        message = {"role": "assistant", "content": text}
        counts = {"index": self._said, "prompt_tokens": 40, "sampled_tokens": 3}
        self.say(EventKind.MESSAGE, message=message, **counts)
        self._said += 1

    def call(self, tool: str, arguments: Any, answer: str, *, raw: str | None = None, **more: Any) -> None:
        self._called += 1
        call = {"call_id": f"c{self._called}", "tool": tool}
        self.say(EventKind.CALL, **call, arguments=arguments, raw=raw)
        self.say(EventKind.ANSWER, **call, text=answer, **{"is_error": False, "duration_s": 0.01, **more})

    def ended(self, reward: float, *, cut: CutReason | None = None) -> None:
        self.say(EventKind.SCORE, "check", value=reward, explanation="the refund is in the books", metrics={"n": 1.0})
        scores = {"check": Score(step="check", value=reward)}
        self.sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=self.run_id, scores=scores, cut=cut))
        self.sink.set_reward(reward)

    def failed(self, message: str) -> None:
        failure = Failure(kind=FailureKind.MCP_DIED, step="prompt", message=message)
        self.say(EventKind.FAILURE, kind="mcp_died", message=message, traceback="Traceback: the server ended")
        self.sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=self.run_id, scores={}, failure=failure))


def _tell_all(index: RunIndex) -> dict[str, str]:
    ids: dict[str, str] = {}
    for training, base in (("shop", 0.1), ("shop-lr2", 0.3)):
        for step in range(STEPS):
            dip = 0.4 if (training, step) == ("shop", 4) else 0.0
            for place, task in enumerate(TASKS):
                for rollout in range(4):
                    _tell_one(index, training, step, task, base + 0.12 * step - dip + 0.1 * place, rollout, ids)
        told = Telling(index, f"{training}/test/step-0003", "refund-9")
        told.message("Done.")
        told.ended(0.5)
    _tell_many(index)
    ids["hostile"] = _tell_hostile(index)
    ids["long"] = _tell_long(index)
    ids["wide"] = _tell_wide(index)
    index.flush()
    return ids


def _tell_one(
    index: RunIndex, training: str, step: int, task: str, hope: float, rollout: int, ids: dict[str, str]
) -> None:
    labels = {"policy_step": step, "model": "small", "renderer": "qwen3"}
    told = Telling(index, f"{training}/train/step-{step:04d}", task, labels=labels)
    told.prompt(f"I want my money back for {task}.")
    told.message("I look it up.")
    told.call("find_order", {"order": 17}, '{"order": 17, "total": 20.5}', raw='{"order": "17"}')
    if rollout == 1:
        told.call("refund", {"order": 99}, "no such order", is_error=True, error_kind="raised")
    told.message("I have given it back.")
    told.call("refund", {"order": 17, "amount": 20.5 - rollout}, "done", is_error=False)
    changes = [{"path": "/orders/17/status", "before": "paid", "after": "refunded"}]
    told.say(EventKind.STATE, "check", env="shop", changes=changes, left_out=0, universe="abc")
    if rollout == 3 and task == "refund-2":
        told.failed("the server ended with status 1")
        ids.setdefault("failed", told.run_id)
    else:
        cut = CutReason.TOKEN_LIMIT if rollout == 2 and task == "refund-1" else None
        told.ended(round(min(1.0, max(0.0, hope + 0.1 * (rollout - 1.5))), 3), cut=cut)
    for at, words in enumerate((("I", " look", " it"), ("I", " have", " given"))):
        told.sink.sampled(at, SampledTokens(ids=(1, 2, 3), logprobs=(-0.01, -1.2, -4.0), pieces=words))
    if (training, step, task, rollout) == ("shop", 4, "refund-1", 0):
        ids["dip"] = told.run_id
    if (training, step, task, rollout) == ("shop", 4, "refund-1", 1):
        ids["dip, another"] = told.run_id


def _tell_many(index: RunIndex) -> None:
    """Two steps of many rollouts, and a group of one rollout a task."""
    for step in range(2):
        for rollout in range(16):
            told = Telling(index, f"many/train/step-{step:04d}", "a-task-of-many-rollouts-1")
            told.ended(0.5, cut=CutReason.MESSAGE_LIMIT if rollout % 4 == 1 else None)
    for name in ("balance", "address-too-late-and-then-another", "total"):
        Telling(index, "play/20261130-061924", f"talk-ask-{name}-test-1", labels={"player": "best"}).ended(1.0)


def _tell_hostile(index: RunIndex) -> str:
    told = Telling(index, f"evil {HOSTILE[:80]}".replace("\x1b", "").strip(), f"task {HOSTILE}")
    told.prompt(HOSTILE)
    told.message(HOSTILE)
    told.call(f"tool {HOSTILE}", {HOSTILE: HOSTILE}, HOSTILE, raw=HOSTILE)
    told.failed(HOSTILE)
    return told.run_id


def _tell_long(index: RunIndex) -> str:
    told = Telling(index, "long", "long-1")
    told.prompt("Go on and on.")
    for at in range(1000):
        told.message(f"This is message number {at}.")
        told.call("count", {"n": at}, f"{at} counted")
    told.ended(1.0)
    return told.run_id


def _tell_wide(index: RunIndex) -> str:
    told = Telling(index, "wide", "wide-1")
    told.prompt("x" * 1_000_000)
    told.message("word " * 200_000)
    told.call("read", {"file": "y" * 300_000}, "z" * 1_000_000)
    told.ended(1.0)
    return told.run_id
