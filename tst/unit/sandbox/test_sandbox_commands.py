"""What a command in a sandbox comes to, in a jail and on the host alike."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from errno import EFBIG, ENOTSUP
from pathlib import PurePosixPath

import pytest

from agent_env.errors import UsageError
from agent_env.sandbox import MAX_FILE_BYTES, ExecResult, Sandbox

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]


@pytest.mark.parametrize(
    ("command", "exit_code", "stdout", "stderr"),
    [
        ("echo out; echo err >&2; exit 3", 3, b"out\n", b"err\n"),
        (["printf", "%s|", "a b", "$HOME", ""], 0, b"a b|$HOME||", b""),
        ("kill -9 $$", 137, b"", b""),
        ("kill -TERM $$", 143, b"", b""),
        ("cat; read x; echo $?", 0, b"1\n", b""),
        ("exec >&- 2>&-; echo gone", 1, b"", b""),
        ("printf '\\377\\000\\355\\240\\200'", 0, b"\xff\x00\xed\xa0\x80", b""),
        (["/nowhere/at/all"], 127, b"", b"/nowhere/at/all: No such file or directory\n"),
        (["no-such-program"], 127, b"", b"no-such-program: No such file or directory\n"),
        (["/"], 126, b"", b"/: Permission denied\n"),
        ("set -e; false; echo no", 1, b"", b""),
        ("yes | head -n 1", 0, b"y\n", b""),
    ],
)
async def test_a_command_ends_as_a_shell_says_it(
    open_box: OpenBox, command: str | list[str], exit_code: int, stdout: bytes, stderr: bytes
) -> None:
    """Exit code, signals, both streams as bytes; its input has ended, and a broken pipe ends a program."""
    async with open_box() as box:
        result = await box.run(command)
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, stdout, stderr)
    assert (result.is_ok, result.timed_out) == (exit_code == 0, False)


async def test_a_command_has_its_folder_variables_and_input(open_box: OpenBox) -> None:
    """The working directory is where it starts, and relative folders start there too."""
    async with open_box(environment={"BASE": "1", "BOTH": "spec"}) as box:
        result = await box.run("pwd; echo $BASE $BOTH $OWN; cat", env={"BOTH": "run", "OWN": "x y"}, stdin=b"in\0put")
        assert result.stdout == f"{box.root}\n1 run x y\n".encode() + b"in\0put"
        assert (await box.run("mkdir -p a/b")).is_ok
        assert (await box.run("pwd", cwd="a/b")).text == f"{box.root}/a/b\n"
        assert (await box.run("pwd", cwd="/")).text == "/\n"
        missing = await box.run("pwd", cwd="a/c")
        assert (missing.exit_code, missing.stderr) == (127, f"{box.root}/a/c: No such file or directory\n".encode())


async def test_a_command_of_any_length_is_run(open_box: OpenBox) -> None:
    """The kernel takes 128 kB as one argument; a heredoc of a model may have more."""
    async with open_box() as box:
        result = await box.run(f"cat <<'EOF' | wc -c\n{'x' * 1_000_000}\nEOF\nexit 4")
    assert (result.exit_code, result.stdout.strip()) == (4, b"1000001")


@pytest.mark.parametrize("command", [[], "a\0b", ["a", "b\0"], "\ud800", ["\ud800"]])
async def test_what_is_no_command_is_refused(open_box: OpenBox, command: str | list[str]) -> None:
    """With an error of the caller's, and the sandbox goes on."""
    async with open_box() as box:
        with pytest.raises(UsageError):
            await box.run(command)
        with pytest.raises(UsageError):
            await box.run("true", cwd="\0")
        with pytest.raises(UsageError):
            await box.run("cat", stdin=b"x" * (MAX_FILE_BYTES + 1))
        assert (await box.run("echo on")).stdout == b"on\n"


async def test_output_keeps_its_ends_and_says_what_is_left_out(open_box: OpenBox) -> None:
    """Each stream for itself, to the byte, however much there was."""
    async with open_box() as box:
        result = await box.run("seq -w 1000000; seq -w 100000 >&2", output_bytes=100)
        exactly = await box.run("printf 'x%.0s' $(seq 100)", output_bytes=100)
        one_more = await box.run("printf 'x%.0s' $(seq 101)", output_bytes=100)
    assert result.stdout_left_out_bytes == 8 * 1_000_000 - 100
    head, said, tail = result.stdout.partition(b"\n[... 7,999,900 bytes left out ...]\n")
    assert said
    assert (head[:16], len(head)) == (b"0000001\n0000002\n", 50)
    assert (tail[-16:], len(tail)) == (b"0999999\n1000000\n", 50)
    assert result.stderr_left_out_bytes == 7 * 100_000 - 100
    assert (exactly.stdout, exactly.stdout_left_out_bytes) == (b"x" * 100, 0)
    assert (len(one_more.stdout), one_more.stdout_left_out_bytes) == (100 + len("\n[... 1 bytes left out ...]\n"), 1)


async def test_a_timeout_kills_the_command_and_what_it_started(
    open_box: OpenBox, saying: Callable[[str], Sequence[int]], mark: str
) -> None:
    """Children in sessions of their own too; what is a daemon by then goes on, and so does the sandbox."""
    async with open_box() as box:
        text = f"sleep {mark}.1 & setsid sleep {mark}.2 & (setsid nohup sleep {mark}.3 >log 2>&1 &) ; "
        text += f"echo begun; sleep {mark}.4"
        result = await box.run(text, timeout_s=2)
        assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"begun\n")
        assert not result.is_ok
        left = [number for number in (1, 2, 3, 4) if saying(f"sleep\0{mark}.{number}")]
        assert left == [3]
        assert (await box.run("echo on")).stdout == b"on\n"


async def test_a_stopped_command_is_killed_at_its_timeout(open_box: OpenBox) -> None:
    """A signal that stops it does not stop the clock."""
    async with open_box() as box:
        result = await box.run("echo here; kill -STOP $$; echo never", timeout_s=0.5)
    assert (result.timed_out, result.stdout) == (True, b"here\n")


async def test_background_processes_survive_their_command_and_not_the_sandbox(
    open_box: OpenBox, saying: Callable[[str], Sequence[int]], wait_gone: Callable[[str], None], mark: str
) -> None:
    """Though they hold its output open, its answer comes at once; and they can print on for ever."""
    async with open_box() as box:
        result = await box.run(
            f"(while :; do echo more; done) & echo $! >pid; sleep {mark}.1 & nohup setsid sleep {mark}.2 & echo begun"
        )
        assert b"begun\n" in result.stdout
        assert not result.timed_out
        assert (await box.run("sleep 0.2; echo on")).stdout == b"on\n"
        assert saying(f"sleep\0{mark}.1")
        assert saying(f"sleep\0{mark}.2")
        assert (await box.run("kill -0 $(cat pid)")).is_ok, "it prints on, though nobody reads it"
    wait_gone(f"sleep\0{mark}.")


async def test_a_cancelled_command_is_killed(
    open_box: OpenBox, saying: Callable[[str], Sequence[int]], wait_gone: Callable[[str], None], mark: str
) -> None:
    """And the sandbox answers the next one."""
    async with open_box() as box:
        running = asyncio.create_task(box.run(f"echo begun >begun; sleep {mark}.1 & sleep {mark}.2"))
        while not (await box.run("cat begun")).stdout:
            assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await box.run("echo on")).stdout == b"on\n"
        wait_gone(f"sleep\0{mark}.")


async def test_commands_run_at_the_same_time(open_box: OpenBox) -> None:
    """Each gets its own answer: here one waits for what the other does."""
    async with open_box() as box:
        results: list[ExecResult] = []

        async def one(command: str) -> None:
            results.append(await box.run(command))

        async with asyncio.TaskGroup() as group:
            group.create_task(one("until [ -e there ]; do sleep 0.01; done; echo waited"))
            group.create_task(one("touch there; echo made"))
        assert sorted(result.stdout for result in results) == [b"made\n", b"waited\n"]


async def test_files_go_in_and_out_as_bytes(open_box: OpenBox) -> None:
    """With the folders above them, in place of what was there, and executable when asked."""
    async with open_box() as box:
        content = bytes(range(256)) * 5000
        await box.write_file("deep/er/file", content)
        assert await box.read_file("deep/er/file") == content
        assert await box.read_file(box.root / "deep/er/file") == content
        await box.write_file("deep/er/file", "ä\n", executable=True)
        assert await box.read_file("deep/er/file") == "ä\n".encode()
        await box.write_file("run", "#!/bin/sh\necho ran $1\n", executable=True)
        assert (await box.run(["./run", "1"])).stdout == b"ran 1\n"
        assert await box.read_file("/proc/version")
        await box.write_file(box.private_dir / "x", b"")
        assert await box.read_file(PurePosixPath(box.private_dir) / "x") == b""


async def test_what_is_no_file_is_an_error_of_its_kind(open_box: OpenBox) -> None:
    """And nothing waits for a pipe or reads a device to its end."""
    async with open_box() as box:
        await box.run(
            "mkfifo pipe; mkdir folder; ln -s /dev/zero device; ln -s loop loop; truncate -s 50G huge; touch file"
        )
        for path, error in (
            ("missing", FileNotFoundError),
            ("folder", IsADirectoryError),
            ("file/under", NotADirectoryError),
        ):
            with pytest.raises(error) as raised:
                await box.read_file(path)
            assert raised.value.filename == path
        for path in ("pipe", "device"):
            with pytest.raises(OSError, match="it is no regular file") as raised:
                await box.read_file(path)
            assert raised.value.errno == ENOTSUP
        with pytest.raises(OSError, match="symbolic links"):
            await box.read_file("loop")
        with pytest.raises(OSError, match="it has 53,687,091,200 bytes, more than 10,485,760") as raised:
            await box.read_file("huge")
        assert raised.value.errno == EFBIG
        for path in ("folder", "pipe", "device", "file/under"):
            with pytest.raises(OSError):
                await box.write_file(path, b"x")
        with pytest.raises(UsageError):
            await box.write_file("x", "\ud800")
        with pytest.raises(UsageError):
            await box.write_file("x", bytes(MAX_FILE_BYTES + 1))
        assert (await box.run("echo on")).stdout == b"on\n"


async def test_a_file_of_the_bound_is_read_and_one_larger_is_not(open_box: OpenBox) -> None:
    """To the byte."""
    async with open_box() as box:
        await box.write_file("file", b"x" * 10)
        assert await box.read_file("file", max_bytes=10) == b"x" * 10
        with pytest.raises(OSError, match="it has 10 bytes, more than 9"):
            await box.read_file("file", max_bytes=9)


async def test_files_are_made_for_their_owner_to_change(open_box: OpenBox) -> None:
    """Whatever the umask of this process is."""
    before = os.umask(0o077)
    try:
        async with open_box() as box:
            await box.write_file("file", b"")
            assert (await box.run("stat -c %a file; umask")).stdout == b"644\n0022\n"
    finally:
        os.umask(before)


async def test_a_command_finds_no_descriptor_of_ours(open_box: OpenBox) -> None:
    """Only its three streams, and what listing them takes."""
    async with open_box() as box:
        result = await box.run("ls /proc/self/fd")
        nested = await box.run(["ls", "/proc/self/fd"])
    assert result.stdout == nested.stdout == b"0\n1\n2\n3\n"
