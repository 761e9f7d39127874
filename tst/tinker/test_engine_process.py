"""The engine as a process: where it listens, how it ends, what a client hears of it."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import tinker
from click.testing import CliRunner
from tinker import types

from agent_env.cli import root
from agent_env.engine import EngineHandle, EngineOptions, ModelShape, build_model, serve, start_engine
from agent_env.errors import EngineError

# The SDK leaves its connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHAPE = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, vocabulary=420, context=256)
TEXTS = [f"Block {at}: charge at {at * 7 % 90}, then discharge.\n" for at in range(40)]


@pytest.fixture(scope="module", autouse=True)
def sdk_connections() -> Iterator[None]:
    """Collect what the SDK left, here and not in another module's test."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, built once."""
    return build_model(tmp_path_factory.mktemp("built") / "model", TEXTS, shape=SHAPE)


@pytest.fixture(scope="module")
def engine(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    """One engine, with a small limit on a request's size."""
    options = EngineOptions(max_body_bytes=20_000)
    with start_engine(model_dir, state_dir=tmp_path_factory.mktemp("engine"), options=options) as handle:
        yield handle


def ended(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_only_this_machines_own_addresses_are_listened_on(host: str, model_dir: Path, tmp_path: Path) -> None:
    """The engine has no access control, so another address is refused before anything is loaded."""
    with pytest.raises(EngineError, match=re.escape(f"host {host!r}")):
        serve(model_dir, state_dir=tmp_path, host=host)


def test_the_engine_listens_on_the_loopback_address_alone(engine: EngineHandle) -> None:
    """Every socket that the process listens on is 127.0.0.1."""
    port = int(engine.base_url.rpartition(":")[2])
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_port_in_use_is_said_with_what_to_do(model_dir: Path, tmp_path: Path) -> None:
    """The error of the process reaches the caller."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(EngineError, match=rf"127\.0\.0\.1:{port} cannot be listened on .*--port"),
            start_engine(model_dir, state_dir=tmp_path, port=port),
        ):
            pass


def test_an_engine_that_dies_at_its_start_says_why(tmp_path: Path) -> None:
    """The error carries what the process wrote last; the command line says the same and exits with 1."""
    with (
        pytest.raises(EngineError, match=r"ended with code 1\. It wrote:\n.*config\.json: not there"),
        start_engine(tmp_path / "none", state_dir=tmp_path / "state"),
    ):
        pass
    arguments = ["engine", "serve", "--model", str(tmp_path / "none"), "--state-dir", str(tmp_path), "--port", "0"]
    result = CliRunner().invoke(root, arguments)
    assert isinstance(result.exception, EngineError)
    assert "config.json: not there" in str(result.exception)


def test_a_state_directory_that_cannot_be_made_is_said(model_dir: Path, tmp_path: Path) -> None:
    """A file where the folder should be is an error that says what to choose."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="choose a state directory that can be written"):
        serve(model_dir, state_dir=tmp_path / "file")


def test_two_engines_do_not_share_a_state_directory(engine: EngineHandle, model_dir: Path) -> None:
    """They would delete each other's half-written checkpoints."""
    with (
        pytest.raises(EngineError, match="another engine uses this state directory"),
        start_engine(model_dir, state_dir=engine.log_path.parent),
    ):
        pass


def test_the_block_ends_the_process_also_when_it_raises(model_dir: Path, tmp_path: Path) -> None:
    """Nothing is left behind."""
    with pytest.raises(RuntimeError, match="in the block"), start_engine(model_dir, state_dir=tmp_path) as handle:
        raise RuntimeError("in the block")
    assert ended(handle.pid, 0.1)


def test_the_engine_ends_when_its_parent_is_killed(model_dir: Path, tmp_path: Path) -> None:
    """Also where a process that the parent forked still holds the pipe open."""
    code = (
        "import os, sys, time; from pathlib import Path; from agent_env.engine import start_engine\n"
        f"with start_engine(Path({str(model_dir)!r}), state_dir=Path({str(tmp_path)!r})) as engine:\n"
        "    forked = os.fork()\n"
        "    if forked: print(engine.pid, forked, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine_pid, forked_pid = (int(word) for word in parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait()
        assert ended(engine_pid)
    finally:
        os.kill(forked_pid, signal.SIGKILL)
        parent.stdout.close()


def test_a_client_of_an_engine_that_was_started_anew_gets_an_error_that_says_so(
    model_dir: Path, tmp_path: Path
) -> None:
    """Not a hang: its samplers, its run and the requests under way are all answered."""
    prompt, params = types.ModelInput.from_ints([5, 6]), types.SamplingParams(max_tokens=3)
    with start_engine(model_dir, state_dir=tmp_path) as engine:
        port = int(engine.base_url.rpartition(":")[2])
        service = tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key)
        client = service.create_lora_training_client(engine.model_name, rank=4).result()
        sampler = client.save_weights_and_get_sampling_client().result()
        with httpx.Client(base_url=f"{engine.base_url}/api/v1") as http:
            adam = {"model_id": client.model_id, "seq_id": 7, "adam_params": {"learning_rate": 1.0}}
            waiting = http.post("/optim_step", json=adam).json()["request_id"]
        os.kill(engine.pid, signal.SIGKILL)
    with start_engine(model_dir, state_dir=tmp_path, port=port) as engine:
        with pytest.raises(tinker.NotFoundError, match="the engine was started anew"):
            sampler.sample(prompt, 1, params).result()
        with pytest.raises(tinker.NotFoundError, match="the engine was started anew"):
            client.optim_step(types.AdamParams()).result()
        with httpx.Client(base_url=f"{engine.base_url}/api/v1") as http:
            reply = http.post("/retrieve_future", json={"request_id": waiting}).json()
        assert reply["category"] == "user"
        assert "the engine was started anew" in reply["error"]


def test_a_request_that_is_too_large_wrong_or_unknown_is_refused(engine: EngineHandle) -> None:
    """Bodies are bounded, and what the engine does not have says so."""
    with httpx.Client(base_url=f"{engine.base_url}/api/v1") as http:
        large = http.post("/asample", content=b"x" * 30_000)
        assert (large.status_code, "larger than 20000 bytes" in large.text) == (413, True)
        assert "not JSON" in http.post("/asample", content=b"{").text
        assert "no 'sampling_session_id'" in http.post("/asample", json={}).text
        assert "send plain protobuf" in http.post("/forward_backward", json={}).text
        headers = {"content-type": "application/x-protobuf"}
        assert "not a ForwardBackwardRequest" in http.post("/forward_backward", content=b"\xff", headers=headers).text
        unknown = http.post("/save_weights_external", json={})
        assert (unknown.status_code, "is not supported" in unknown.text) == (404, True)
        lost = http.post("/session_heartbeat", json={"session_id": "other-1"})
        assert (lost.status_code, "the engine was started anew" in lost.text) == (404, True)


def test_answers_samplers_and_runs_of_a_client_that_went_are_forgotten(model_dir: Path, tmp_path: Path) -> None:
    """Memory does not grow with the clients that an engine has had."""
    options = EngineOptions(session_ttl_s=3.0, result_ttl_s=3.0)  # longer than a busy machine takes to make a client
    with start_engine(model_dir, state_dir=tmp_path, options=options) as engine:
        service = tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key)
        client = service.create_lora_training_client(engine.model_name, rank=4).result()
        with httpx.Client(base_url=f"{engine.base_url}/api/v1") as http:
            info = {"model_id": client.model_id}
            created = {"request_id": f"{client.model_id}:0"}
            assert http.post("/get_info", json=info).status_code == 200
            assert http.post("/retrieve_future", json=created).status_code == 200
            deadline = time.monotonic() + 60
            while http.post("/get_info", json=info).status_code == 200:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert http.post("/retrieve_future", json=created).status_code == 410
            assert "not known (any more)" in http.post("/get_info", json=info).text


def test_a_client_may_say_that_it_is_done(engine: EngineHandle) -> None:
    """Closing the SDK's client is accepted, once and again, and what it asks afterwards is refused with the reason."""
    service = tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key)
    service.create_sampling_client(base_model=engine.model_name)
    service.close("success").result(timeout=20)
    session = httpx.post(f"{engine.base_url}/api/v1/create_session", json={}).json()["session_id"]
    finish = f"{engine.base_url}/api/v1/sessions/{session}/finish"
    for _ in range(2):
        assert httpx.post(finish, json={"reason": {"type": "success"}}).status_code == 200
    refused = httpx.post(f"{engine.base_url}/api/v1/session_heartbeat", json={"session_id": session})
    assert (refused.status_code, "make a new client" in refused.text) == (404, True)
    elsewhere = httpx.post(f"{engine.base_url}/api/v1/sessions/none-1/finish", json={})
    assert (elsewhere.status_code, "started anew" in elsewhere.text) == (404, True)


def test_serve_as_a_module_says_where_it_is(model_dir: Path, tmp_path: Path) -> None:
    """One line of JSON on stdout once it answers; SIGTERM ends it."""
    command = [sys.executable, "-m", "agent_env.engine", "--model", str(model_dir), "--state-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())
        assert httpx.get(f"{where['base_url']}/api/v1/healthz").json() == {"status": "ok"}
        process.terminate()
        assert process.wait(10) in (0, -signal.SIGTERM)
