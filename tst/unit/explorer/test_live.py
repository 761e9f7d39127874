"""Pages that are told of changes: over real sockets, with real writers, and to the end of the server."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from agent_env.episode.sink import EventKind
from agent_env.runs import RunIndex
from agent_env.runs.explorer.live import Live
from agent_env.runs.explorer.serve import Server

Tell = Callable[..., Any]


class Served:
    """An explorer that listens, and asks it."""

    def __init__(self, folder: Path, **live: Any) -> None:
        self.live = Live(folder / "index.sqlite3", **{"every_s": 0.02, **live})
        self._server = Server(folder, live=self.live)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=30)

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        self.client.close()
        self._listener.close()

    def stop(self) -> None:
        """Stop it as Ctrl-C does, and wait until it has."""
        self._server.should_exit = True
        self._thread.join()

    def seen(self, page: str) -> str:
        """The stamp that a page has of what it shows."""
        text = self.client.get(page).text
        return text.partition('data-seen="')[2].partition('"')[0]

    @contextmanager
    def watching(self, page: str, *, seen: str | None = None, last: str = "") -> Generator[Iterator[str]]:
        """Open a stream for a page as it is now, and go through the stamps of the changes that it tells of."""
        stamp = self.seen(page) if seen is None else seen
        headers = {"last-event-id": last} if last else {}
        with self.client.stream("GET", f"/live?page={quote(page)}&seen={stamp}", headers=headers) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            yield (line.removeprefix("data: ") for line in lines if line.startswith("data: "))


@contextmanager
def exploring(folder: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The explorer as a command, and its address."""
    words = [sys.executable, "-m", "agent_env", "explore", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().split()[0]
        finally:
            server.terminate()


def _names(link: Path) -> str:
    try:
        return link.readlink().name
    except OSError:  # closed meanwhile
        return ""


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that comes about by itself; the test's own timeout is the bound."""
    while not holds():
        time.sleep(0.005)


@pytest.fixture
def served(index: RunIndex, tmp_path: Path) -> Generator[Served]:
    """The explorer of the test's folder, listening."""
    assert index.folder == tmp_path
    with Served(tmp_path) as running:
        yield running


def test_who_asks_too_slowly_is_hung_up_on(tell: Tell, index: RunIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half requests do not hold the connections that others need; a stream that is under way stays."""
    monkeypatch.setattr(sys.modules[Server.__module__], "_ASKING_S", 0.2)
    told = tell()
    index.flush()
    with Served(index.folder) as served, served.watching("/") as changes:
        address = ("127.0.0.1", httpx.URL(served.url).port)
        for start in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(address, timeout=30) as slow:
                slow.sendall(start)
                assert slow.recv(1) == b""
        told.says("still here")
        index.flush()
        assert next(changes)


def test_a_page_is_told_when_what_it_shows_changes(served: Served, tell: Tell, index: RunIndex) -> None:
    """A run's page of its events and its end, a step's and a training's pages and the home page of its runs."""
    run = tell("lr/train/step-0003", "day 1")
    index.flush()
    pages = [
        f"/run/{run.run_id}",
        "/group?name=lr/train/step-0003",
        "/training?name=lr",
        "/",
        f"/run/{run.run_id}?from=0",
    ]
    pages += ["/task?training=lr&split=train&task=day 1", f"/compare?left={run.run_id}&right={run.run_id}"]
    for page in pages:
        with served.watching(page) as changes:
            run.says("Hm.")
            index.flush()
            assert next(changes) == served.seen(page), page
    with served.watching(pages[0]) as changes:
        run.ended()
        index.flush()
        next(changes)
        run.sink.set_reward(0.5)
        index.flush()
        next(changes)
    assert "0.500" in served.client.get(pages[0]).text


def test_what_happened_before_the_stream_was_opened_is_told_at_once(
    served: Served, tell: Tell, index: RunIndex
) -> None:
    """Between the page and its stream nothing is lost."""
    run = tell()
    index.flush()
    page = f"/run/{run.run_id}"
    before = served.seen(page)
    run.says("Hm.")
    index.flush()
    with served.watching(page, seen=before) as changes:
        assert next(changes) == served.seen(page)


def test_a_stream_that_comes_back_is_told_what_it_missed(served: Served, tell: Tell, index: RunIndex) -> None:
    """The browser says which change it knows; what it knows is not told again."""
    run = tell()
    index.flush()
    page = f"/run/{run.run_id}"
    first = served.seen(page)
    run.says("Hm.")
    index.flush()
    second = served.seen(page)
    with served.watching(page, seen="", last=first) as changes:
        assert next(changes) == second
    with served.watching(page, seen=first, last=second) as changes:
        run.says("Ha.")
        index.flush()
        assert next(changes) == served.seen(page) != second


def test_what_a_page_does_not_show_is_not_told(index: RunIndex, tell: Tell, tmp_path: Path) -> None:
    """A run of another group changes nothing on this group's page; a comment keeps the stream open."""
    run, other = tell("mine"), tell("other")
    index.flush()
    with Served(tmp_path, beat_s=0.05, longest_s=0.6) as served:
        stamp = served.seen("/group?name=mine")
        with served.client.stream("GET", f"/live?page=/group?name=mine&seen={stamp}") as answer:
            lines = answer.iter_lines()
            next(lines)
            other.says("Hm.")
            index.flush()
            rest = list(lines)
        assert ": still here" in rest
        assert not any("changed" in line for line in rest)
        run.says("Hm.")


def test_a_process_that_dies_changes_its_runs(served: Served, tmp_path: Path) -> None:
    """Nobody writes that it died: its run is interrupted all the same, and the page is told."""
    script = (
        "import sys, time\n"
        "from agent_env.episode.sink import RunHeader\n"
        "from agent_env.runs import RunIndex\n"
        "index = RunIndex.open(sys.argv[1])\n"
        "sink = index.run('g')\n"
        "sink.opened(RunHeader(task_id='t', bundle_name='b', bundle_version='1', params={}, tags=()))\n"
        "index.flush()\n"
        "print(sink.run_id, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        page = f"/run/{writer.stdout.readline().strip()}"
        assert "Interrupted" not in served.client.get(page).text
        with served.watching(page) as changes:
            writer.kill()
            writer.wait()
            next(changes)
        assert "Interrupted" in served.client.get(page).text


def test_streams_of_all_pages_share_one_look_at_the_index(tell: Tell, index: RunIndex, tmp_path: Path) -> None:
    """However many pages are open, the file is held open once for them; when none is, not at all."""
    runs = [tell() for _ in range(5)]
    index.flush()
    with exploring(tmp_path) as (server, url), httpx.Client(base_url=url, trust_env=False, timeout=30) as client:

        def held() -> int:
            return sum(_names(link) == "index.sqlite3" for link in Path(f"/proc/{server.pid}/fd").iterdir())

        with ExitStack() as streams:
            changes: list[Iterator[str]] = []
            for run in runs:
                stream = client.stream("GET", "/live", params={"page": f"/run/{run.run_id}", "seen": "nothing"})
                changes.append(streams.enter_context(stream).iter_lines())
                until(lambda lines=changes[-1]: next(lines) == "event: changed")
            watched = held()
            runs[0].ended(1.0)  # it stands on the pages of the task's other rollouts, too
            index.flush()
            for lines in changes:
                until(lambda lines=lines: next(lines) == "event: changed")
            assert held() == watched
        until(lambda: held() == watched - 1)


def test_no_more_streams_are_opened_than_there_may_be(index: RunIndex, tell: Tell, tmp_path: Path) -> None:
    """One more is told when to come back; a stream whose browser is gone makes room."""
    page = f"/run/{tell().run_id}"
    index.flush()
    with Served(tmp_path, most=1) as served:
        with served.watching(page):
            refused = served.client.get("/live", params={"page": page})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        until(lambda: served.live.streams == 0)
        with served.watching(page):
            pass


def test_a_server_that_is_stopped_does_not_wait_for_its_streams(index: RunIndex, tell: Tell, tmp_path: Path) -> None:
    """The streams end, and the server with them."""
    page = f"/run/{tell().run_id}"
    index.flush()
    with Served(tmp_path) as served, served.watching(page) as changes:
        served.stop()
        assert list(changes) == []


def test_ctrl_c_ends_the_explorer_with_a_stream_open(index: RunIndex, tell: Tell, tmp_path: Path) -> None:
    """It says that it stopped, and nothing else: no traceback, no task that was cut off."""
    page = f"/run/{tell().run_id}"
    index.flush()
    asked: dict[str, Any] = {"params": {"page": page}, "trust_env": False, "timeout": 30}
    with exploring(tmp_path) as (server, url), httpx.stream("GET", f"{url}live", **asked) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        server.send_signal(signal.SIGINT)
        assert not any(lines)  # it ends, and until then it is open
        _, errors = server.communicate()
    assert server.returncode == 130
    assert errors.strip() == "stopped"


def test_an_index_that_is_replaced_or_damaged_is_told_too(tell: Tell, index: RunIndex, tmp_path: Path) -> None:
    """The stream stays: it says that the page changed when the file goes, is none, and is there again."""
    run = tell()
    page = f"/run/{run.run_id}"
    index.close()
    file = tmp_path / "index.sqlite3"
    away = file.rename(tmp_path / "away")
    away.rename(file)
    with Served(tmp_path) as served, served.watching(page) as changes:
        whole = served.seen(page)
        file.rename(away)
        gone = next(changes)
        assert served.client.get(page).status_code == 503
        file.write_bytes(b"no index at all" * 1000)
        assert "no run index" in served.client.get(page).text
        file.unlink()
        away.rename(file)
        assert next(changes) == whole != gone


def test_a_stream_says_what_keeps_it_live(served: Served, tell: Tell, index: RunIndex) -> None:
    """No proxy keeps it back, no cache keeps it at all; asking for its head opens none."""
    page = f"/run/{tell().run_id}"
    index.flush()
    with served.client.stream("GET", "/live", params={"page": page}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store, no-transform"
        assert "content-length" not in answer.headers
    assert served.client.head("/live", params={"page": page}).status_code == 200


@pytest.mark.parametrize("page", ["", "/search?q=x", "/nowhere", "/group", "x" * 5000, "//[", "/run/1/2/3"])
def test_what_cannot_change_is_not_watched(served: Served, page: str) -> None:
    """404, and no stream."""
    assert served.client.get("/live", params={"page": page}).status_code == 404
    assert served.live.streams == 0


def test_pages_say_what_they_are_of(served: Served, tell: Tell, index: RunIndex) -> None:
    """A page that can change has the script that follows it; one that cannot, and an error, have not."""
    run = tell()
    run.say(EventKind.CUT, reason="token_limit")
    index.flush()
    for page in ("/", f"/run/{run.run_id}", "/group?name=g"):
        assert 'src="/static/live.js" defer data-page="' in served.client.get(page).text
    for page in (f"/run/{run.run_id}/0", "/nowhere", "/group?name=none"):
        assert "live.js" not in served.client.get(page).text
