"""Who may read the explorer: from which machine, by which name, from which site, with which token."""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from agent_env.cli import root
from agent_env.errors import RunIndexError, UsageError
from agent_env.runs import RunIndex
from agent_env.runs.explorer import build_app
from agent_env.runs.explorer.access import Access, is_loopback

Tell = Callable[..., Any]
TOKEN = "correct-horse-battery"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@asynccontextmanager
async def asking(folder: Path, **access: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """Ask an explorer that lets these in."""
    app = build_app(folder, access=Access(**access))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as made:
        yield made


@pytest.fixture
def folder(tell: Tell, index: RunIndex, tmp_path: Path) -> Path:
    """A folder with a run."""
    tell()
    index.flush()
    return tmp_path


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8470",
        "10.0.0.1",
        "",
        "[::1",
        "[::1]x",
        "localhost:x",
        "a]",
    ],
)
async def test_another_host_is_refused(explorer: httpx.AsyncClient, host: str) -> None:
    """A name that was pointed at this machine (DNS rebinding) reads nothing."""
    answer = await explorer.get("/", headers={"host": host})
    assert answer.status_code == 403
    assert "script" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "127.0.0.1:8470", "[::1]:8470", "LOCALHOST", "localhost."]
)
async def test_this_machine_by_any_of_its_names_is_answered(explorer: httpx.AsyncClient, host: str) -> None:
    """Also through a forwarded port of another number."""
    assert (await explorer.get("/", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("10.0.0.7:8470", 200),
        ("[fe80::1]", 200),
        (socket.gethostname(), 200),
        ("runs.example.org", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("10.0.0.7.evil.example", 403),
    ],
)
async def test_a_public_explorer_is_called_by_an_address_or_a_name_that_it_knows(
    folder: Path, host: str, status: int
) -> None:
    """No other site can have an address as its name, or one that was given."""
    async with asking(folder, is_public=True, token=TOKEN, hosts=frozenset({"runs.example.org"})) as client:
        answer = await client.get("/", headers={"host": host, "authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_only_reading_is_allowed(explorer: httpx.AsyncClient, method: str) -> None:
    """Every method but GET and HEAD is refused."""
    for path in ("/", "/live?page=/", "/nowhere"):
        assert (await explorer.request(method, path)).status_code == 405


@pytest.mark.parametrize("path", ["/", "/run/none", "/static/explorer.css", "/index.json", "/group?state=x", "/live"])
async def test_every_answer_forbids_what_it_does_not_need(explorer: httpx.AsyncClient, path: str) -> None:
    """Pages, errors, JSON and assets carry the policy: nothing inline, nothing from elsewhere, no frame."""
    headers = (await explorer.get(path)).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert headers["cache-control"] == ("max-age=300" if path.startswith("/static") else "no-store")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:8470"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
    ],
)
async def test_another_site_may_lead_here_and_nothing_more(folder: Path, headers: dict[str, str], status: int) -> None:
    """A link is followed; what a page of another site asks for itself is refused, the stream in any case."""
    async with asking(folder) as client:
        assert (await client.get("/", headers=headers)).status_code == status
        if headers.get("sec-fetch-dest") == "document":
            assert (await client.get("/live?page=/", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/app.py",
        "/run/..%2f..%2fetc",
        "/static/run.css/",
        "//etc/passwd",
    ],
)
async def test_no_path_reaches_the_file_system(explorer: httpx.AsyncClient, path: str) -> None:
    """There are some assets, by name, and nothing else."""
    assert (await explorer.get(path)).status_code in {404, 307}


async def test_addresses_and_headers_are_bounded(explorer: httpx.AsyncClient) -> None:
    """Longer ones are refused before anything reads them."""
    assert (await explorer.get(f"/group?name={'x' * 9000}")).status_code == 414
    assert (await explorer.get("/", headers={"x-long": "x" * 20_000})).status_code == 431


async def test_a_number_that_is_too_long_is_no_address(explorer: httpx.AsyncClient) -> None:
    """An event's place of 5,000 digits, which Python refuses to read."""
    assert (await explorer.get(f"/run/abc/{'9' * 5000}")).status_code == 414
    assert (await explorer.get(f"/run/abc/{'9' * 3000}")).status_code == 404


@pytest.mark.parametrize("origin", ["http://[", "http://[x]", "https://[::1"])
async def test_an_origin_that_is_no_address_is_refused(explorer: httpx.AsyncClient, origin: str) -> None:
    """One that cannot be read is another site's."""
    assert (await explorer.get("/", headers={"origin": origin})).status_code == 403


@pytest.mark.parametrize("other", ['prefs={"dark": true}', "plain", "a[0]=1", "two=words here"])
async def test_cookies_of_another_port_hide_none(folder: Path, other: str) -> None:
    """A browser sends the explorer what anything else on this machine had it keep, in whatever form."""
    async with asking(folder, token=TOKEN) as client:
        kept = (await client.get("/", params={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
        client.cookies.clear()
        answer = await client.get("/index.json", headers={"cookie": f"{other}; {kept}"})
    assert answer.status_code == 200


async def test_without_the_token_nothing_is_read(folder: Path, index: RunIndex) -> None:
    """Pages ask for it, JSON and streams say so; only what pages look like is there."""
    async with asking(folder, token=TOKEN) as client:
        page = await client.get("/group?name=g&text=%22%3E%3Cscript%3E")
        assert page.status_code == 401
        assert 'type="password"' in page.text
        assert "<script" not in page.text
        assert "/run/" not in page.text
        assert folder.name not in page.text
        for path in ("/index.json", "/live?page=/"):
            answer = await client.get(path)
            assert (answer.status_code, "Bearer" in answer.text) == (401, True)
        assert (await client.get("/static/explorer.css")).status_code == 200
        for wrong in ("", "wrong", TOKEN[:-1], f"{TOKEN}x", "\u00e9" * 20):
            answer = await client.get("/", params={"token": wrong})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
            assert (await client.get("/", headers={"authorization": b"Bearer " + wrong.encode()})).status_code == 401
        assert wrong not in answer.text


async def test_the_token_is_given_once_and_leaves_the_address(folder: Path) -> None:
    """It becomes a cookie that no script reads and no other site sends, and is not the token; then the cookie is enough."""
    async with asking(folder, token=TOKEN) as client:
        answer = await client.get("/group", params={"name": "g", "token": TOKEN, "state": "running"})
        assert answer.status_code == 303
        assert answer.headers["location"] == "/group?name=g&state=running"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert TOKEN not in cookie
        page = await client.get("/group?name=g")
        assert page.status_code == 200
        assert TOKEN not in page.text
    async with asking(folder, token=TOKEN) as again:
        again.cookies = client.cookies
        assert (await again.get("/")).status_code == 200
    async with asking(folder, token="another-horse-battery") as other:
        other.cookies = client.cookies
        assert (await other.get("/")).status_code == 401


async def test_a_program_gives_the_token_in_a_header(folder: Path) -> None:
    """For JSON from a script: no cookie needed, none set."""
    async with asking(folder, token=TOKEN) as client:
        answer = await client.get("/index.json", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example", "/%5Cevil.example"])
async def test_signing_in_leads_to_no_other_site(folder: Path, path: str) -> None:
    """Where the path looks like another site's address, the way on is a path here."""
    async with asking(folder, token=TOKEN) as client:
        request = client.build_request("GET", f"http://127.0.0.1:8470/?token={TOKEN}")
        request.url = httpx.URL("http://127.0.0.1:8470").copy_with(raw_path=f"{path}?token={TOKEN}".encode())
        location = (await client.send(request)).headers["location"]
    assert location.startswith("/")
    assert location[1:2] not in {"/", "\\"}


async def test_a_word_opens_it_once(folder: Path) -> None:
    """For the browser that is started here: others on the machine see its address, and come too late."""
    access = Access(token=TOKEN)
    word = access.pass_once()
    transport = httpx.ASGITransport(app=build_app(folder, access=access))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        assert (await client.get("/", params={"token": word})).status_code == 303
        client.cookies.clear()
        assert (await client.get("/", params={"token": word})).status_code == 401
        assert (await client.get("/", params={"token": TOKEN})).status_code == 303


@pytest.mark.parametrize("token", ["short", "x" * 15, "white\nspace in it ", "tökentökentökentöken"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    """One line with a command that makes a good one."""
    with pytest.raises(UsageError, match="secrets"):
        Access(token=token)


@pytest.mark.parametrize(
    ("host", "is_this_machine"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.1.4", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(host: str, is_this_machine: bool) -> None:
    """What is not surely loopback is public."""
    assert is_loopback(host) is is_this_machine


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_explore_refuses_to_be_public_without_a_token(folder: Path, host: str) -> None:
    """Before it listens; the line says which variable to set."""
    done = CliRunner().invoke(root, ["explore", str(folder), "--host", host, "--port", "0"])
    assert isinstance(done.exception, UsageError)
    assert "AGENT_ENV_EXPLORE_TOKEN" in str(done.exception)


def test_explore_takes_the_token_from_the_environment_and_never_says_it(folder: Path) -> None:
    """Neither where it starts, nor after a wrong sign-in, nor after a right one."""
    words = [sys.executable, "-m", "agent_env", "explore", str(folder), "--host", "0.0.0.0", "--port", "0"]
    environment = {**os.environ, "AGENT_ENV_EXPLORE_TOKEN": f" {TOKEN}\n"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        url = f"http://127.0.0.1:{first.split()[0].rstrip('/').rpartition(':')[2]}"
        try:
            with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
                assert client.get("/").status_code == 401
                assert client.get("/", params={"token": "wrong" * 5}).status_code == 401
                assert client.get("/", params={"token": TOKEN}).status_code == 303
                assert client.get("/").status_code == 200
                assert client.get("/", headers={"host": "evil.example"}).status_code == 403
        finally:
            server.terminate()
        said = first + server.stdout.read()
    assert "asks for the token" in first
    assert TOKEN not in said
    assert "Traceback" not in said


def test_explore_without_an_index_says_so(tmp_path: Path) -> None:
    """There is nothing to explore: one line."""
    done = CliRunner().invoke(root, ["explore", str(tmp_path)])
    assert isinstance(done.exception, RunIndexError)
    assert "no run index here" in str(done.exception)


def test_explore_on_a_port_in_use_names_the_way_out(folder: Path) -> None:
    """The port is in use: choose another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(root, ["explore", str(folder), "--port", str(port)])
    assert isinstance(done.exception, UsageError)
    assert f"port {port} is in use" in str(done.exception)


def test_explore_on_a_machine_that_it_does_not_know_says_so(folder: Path) -> None:
    """A name without an address is no place to listen at."""
    words = ["explore", str(folder), "--host", "nowhere.invalid", "--token", TOKEN]
    done = CliRunner().invoke(root, words)
    assert isinstance(done.exception, UsageError)
    assert "does not know nowhere.invalid" in str(done.exception)


def _foreign(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as conn:
        conn.execute("CREATE TABLE cats (name)")
    conn.close()


def _newer(file: Path) -> None:
    with sqlite3.connect(file) as conn:
        conn.execute("PRAGMA user_version = 99")
    conn.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.write_bytes(b"not SQLite " * 1000), "no run index"),
        (lambda file: file.write_bytes(b""), "no run index"),
        (_foreign, "no run index"),
        (_newer, "newer AgentEnv"),
    ],
)
def test_an_index_that_cannot_be_read_is_one_line(
    tell: Tell, index: RunIndex, tmp_path: Path, spoil: Any, says: str
) -> None:
    """What is wrong with the file, and no traceback."""
    tell()
    index.close()
    spoil(tmp_path / "index.sqlite3")
    done = subprocess.run(
        [sys.executable, "-m", "agent_env", "explore", str(tmp_path), "--port", "0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert says in line


async def test_a_folder_that_nobody_may_write_is_explored(tell: Tell, index: RunIndex, tmp_path: Path) -> None:
    """Every page answers, and the file is as it was."""
    run = tell("lr/train/step-0001")
    run.says("Hm.")
    run.ended(0.5)
    index.close()
    file = tmp_path / "index.sqlite3"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    os.chmod(file, stat.S_IRUSR)
    os.chmod(tmp_path, stat.S_IRUSR | stat.S_IXUSR)
    try:
        async with asking(tmp_path) as client:
            pages = ["/", "/training?name=lr", "/group?name=lr/train/step-0001", f"/run/{run.run_id}"]
            pages += [
                f"/compare?left={run.run_id}&right={run.run_id}",
                f"/run/{run.run_id}/script",
                f"/run/{run.run_id}/0",
            ]
            for page in pages:
                assert (await client.get(page)).status_code == 200, page
    finally:
        os.chmod(tmp_path, stat.S_IRWXU)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
