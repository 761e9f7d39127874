"""What a jail keeps in: each test is an attempt to get out of one, or to take more than there is."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from agent_env.sandbox import Sandbox, SandboxUnavailableError

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]

SLEEP = "sleep {} & until grep -q sleep /proc/$!/comm; do :; done"
"""Leaves a process in the background that is a `sleep` by the time this ends."""

PTRACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
ATTACH = 16
print(libc.ptrace(ATTACH, int(sys.argv[1]), 0, 0), os.strerror(ctypes.get_errno()))
"""


@pytest.fixture
def files(place: Path) -> Path:
    """A folder to work in, inside one that is closed to others, as a copy of a universe is."""
    folder = place / "copy" / "files"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    (folder / "here").write_text("from outside\n")
    return folder


async def test_the_network_is_not_there(open_jail: OpenBox) -> None:
    """Not the machine's own services either, on loopback or on abstract sockets."""
    abstract = f"\0agent-env-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        named.bind(abstract)
        named.listen()
        port = server.getsockname()[1]
        script = (
            "import socket\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_UNIX, {abstract!r}),"
            " (socket.AF_INET, ('192.0.2.1', 80))):\n"
            "    try: socket.socket(family).connect(address)\n"
            "    except OSError as exc: print(exc.strerror)\n"
            "    else: print('reached')\n"
        )
        async with open_jail() as box:
            result = await box.run(["python3", "-c", script])
            own = await box.run(
                "python3 -m http.server 8000 >/dev/null 2>&1 & for i in $(seq 200); do sleep 0.02; "
                "python3 -c 'import urllib.request as u; u.urlopen(\"http://localhost:8000\")' 2>/dev/null "
                "&& echo served && break; done"
            )
        async with open_jail(network=True) as box:
            asked_for = await box.run(["python3", "-c", script])
    assert result.text.splitlines() == ["Connection refused", "Connection refused", "Network is unreachable"]
    assert own.text == "served\n"
    assert asked_for.text.splitlines()[0] == "reached"


async def test_what_is_the_machines_is_not_there(open_jail: OpenBox, tmp_path: Path, files: Path) -> None:
    """Homes, secrets, the bundle, other sandboxes' folders: there is no way to their paths."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    async with open_jail() as other, open_jail(files) as box:
        await other.write_file("mine", "x")
        paths = [str(secret), str(files), str(Path.home() / ".bashrc"), __file__, "/etc/shadow", "/etc/ssh", "/root"]
        paths += [
            "/sys",
            "/boot",
            "/opt",
            "/mnt",
            "/srv",
            "/var/lib",
            "/var/log",
            "/dev/sda",
            "/dev/mem",
            "/proc/1/root/x",
        ]
        listed = await box.run(["ls", "-d", *paths])
        assert listed.stdout == b""
        assert (
            await box.run("find / -path /usr -prune -o -path /proc -prune -o -name mine -print -o -name secret -print")
        ).stdout == b""
        with pytest.raises(FileNotFoundError):
            await box.read_file(str(secret))
        with pytest.raises(FileNotFoundError):
            await box.read_file("/etc/shadow")
        assert (await box.run("cat here")).stdout == b"from outside\n"
        users = (await box.run("cut -d: -f1 /etc/passwd")).text.split()
        assert users == ["root", "agent", "nobody"]


async def test_nothing_outside_its_folder_can_be_written(open_jail: OpenBox) -> None:
    """Its own temporary folders excepted."""
    async with open_jail() as box:
        for path in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/var", "/home", "/run", "/proc/sys/kernel"):
            result = await box.run(["touch", f"{path}/x"])
            assert result.exit_code == 1, path
            with pytest.raises(OSError):
                await box.write_file(f"{path}/x", "x")
        for path in ("/tmp", "/var/tmp", "/dev/shm", "/home/agent", "/workspace"):
            assert (await box.run(["touch", f"{path}/x"])).is_ok, path
        assert not (await box.run("mount -o remount,rw /usr || mount -t tmpfs x /usr || umount /usr")).is_ok


async def test_it_has_no_privileges_and_gets_none(open_jail: OpenBox, mark: str) -> None:
    """No capability, none from a setuid program, none from a namespace of its own; and its user outside is nobody."""
    async with open_jail() as box:
        status = (await box.run("grep -E '^(Cap...|NoNewPrivs):' /proc/self/status; id -u")).text.split()
        assert status[1:10:2] == ["0" * 16] * 5
        assert status[-3:] == ["NoNewPrivs:", "1", "1000"]
        assert not (await box.run("unshare --user true")).is_ok
        assert not (await box.run("chown 0 here || touch here && chown 0 here")).is_ok
        await box.run(SLEEP.format(mark))
        pid = _process(f"sleep\0{mark}".encode())
        uids = set(_field(pid, "Uid").split())
        assert uids == {str(os.geteuid())} if os.geteuid() else len(uids) == 1 and int(uids.pop()) >= 60_578
        assert _field(pid, "CapBnd") == "0" * 16


def _process(words: bytes) -> int:
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and words in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"no process {words!r}")


def _field(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


async def test_it_sees_no_process_but_its_own(open_jail: OpenBox, mark: str) -> None:
    """Neither the machine's nor another sandbox's: it cannot list, signal or trace them."""
    async with open_jail() as other, open_jail() as box:
        await other.run(SLEEP.format(mark))
        names = (await box.run("ps -e -o comm=; true")).text.split()
        assert {name.partition("3")[0] for name in names} == {"bash", "ps", "python"}
        listed = (await box.run("cat /proc/*/cmdline | tr '\\0' ' '")).text
        assert mark not in listed
        assert "pytest" not in listed
        assert not (await box.run(["kill", "-0", str(os.getpid())])).is_ok
        assert (await box.run(["python3", "-c", PTRACE, str(os.getpid())])).text.startswith("-1 ")


async def test_its_first_process_cannot_be_killed_traced_or_read(open_jail: OpenBox) -> None:
    """Which is what makes the sandbox, and answers for it."""
    async with open_jail() as box:
        signals = "; ".join(f"kill -{number} 1" for number in (1, 2, 3, 6, 9, 11, 13, 15, 17, 19, 31))
        # Should the jail be none, it would be the machine's processes.
        result = await box.run(f"[ -d {box.private_dir} ] || exit; {signals}; kill -9 -1; echo on")
        assert result.stdout == b"on\n"
        assert (await box.run(["python3", "-c", PTRACE, "1"])).text == "-1 Operation not permitted\n"
        for name in ("environ", "mem", "maps", "fd/3", "cwd/x", "root/etc/passwd"):
            result = await box.run(["cat", f"/proc/1/{name}"])
            assert b"Permission denied" in result.stderr, name
        assert not (await box.run("echo 1000 >/proc/1/oom_score_adj")).is_ok
        assert (await box.run("echo on")).stdout == b"on\n"


async def test_a_symlink_never_leads_out(open_jail: OpenBox, files: Path, tmp_path: Path) -> None:
    """Neither when we read nor when we write for the sandbox: paths are its own."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.chmod(tmp_path, 0o777)
    secret.chmod(0o666)
    async with open_jail(files) as box:
        await box.run(["ln", "-s", str(secret), "out"])
        await box.run(["ln", "-s", str(tmp_path), "folder"])
        await box.run("ln -s /etc/passwd passwd; ln -s ../../../../../../../../etc/shadow shadow")
        for path in ("out", "folder/secret", "shadow"):
            with pytest.raises(FileNotFoundError):
                await box.read_file(path)
        assert (await box.read_file("passwd")).startswith(b"root:x:0:0:root:/root:/bin/sh\nagent:")
        for path in ("out", "folder/new"):
            with pytest.raises(OSError):
                await box.write_file(path, "overwritten")
    assert secret.read_text() == "secret"
    assert os.listdir(tmp_path) == ["secret"]
    assert (files / "out").is_symlink()


async def test_its_folder_comes_back_as_it_left_it(open_jail: OpenBox, files: Path) -> None:
    """Owned by who gave it, readable and removable, with nothing that would run as somebody else."""
    before = [stat.S_IMODE(path.stat().st_mode) for path in (files, files.parent)]
    async with open_jail(files) as box:
        result = await box.run(
            "echo new >new; rm here; mkdir -p a/b; echo deep >a/b/c; ln -s /etc/shadow a/link; chmod 000 a/b a new; "
            "cp /bin/true suid; chmod 6777 suid; mkfifo pipe; truncate -s 1G sparse"
        )
        assert result.is_ok, result.stderr
        assert not (files / "here").exists()
    assert (files / "new").read_text() == "new\n"
    assert (files / "a" / "b" / "c").read_text() == "deep\n"
    assert os.readlink(files / "a" / "link") == "/etc/shadow"
    assert _owners(files) == {os.geteuid()}
    if os.geteuid() == 0:  # then it was another user's in between
        assert not (files / "suid").stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (files, files.parent)] == before
    shutil.rmtree(files)


def _owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


async def test_an_own_folder_is_removed_whatever_is_in_it(open_jail: OpenBox, place: Path) -> None:
    """Unreadable folders, names that are no text, and more folders in each other than a path can name."""
    async with open_jail() as box:
        deep = "import os\nfor _ in range(1500):\n    os.mkdir('deeper'); os.chdir('deeper')\n"
        assert (await box.run(["python3", "-c", deep])).is_ok
        assert (await box.run("mkdir -p a/b/c; touch \"$(printf 'a/b/\\377\\n')\"; chmod 000 a/b/c a/b a")).is_ok
    assert _left(place) == []


def _left(place: Path) -> list[str]:
    base = place / f"agent-env-sandboxes-{os.geteuid()}"
    return [path.name for path in base.iterdir() if not path.name.startswith(".new-")]


async def test_memory_is_limited(open_jail: OpenBox) -> None:
    """For one process, and for all together; the sandbox goes on and says what it did."""
    async with open_jail(memory_mb=128) as box:
        one = await box.run(["python3", "-c", "x = bytearray(2**30)"])
        assert b"MemoryError" in one.stderr or one.exit_code == 137
        hold = "import time\nx = bytearray(50 * 2**20)\nfor at in range(0, len(x), 4096): x[at] = 1\ntime.sleep(30)\n"
        await box.write_file("hold.py", hold)
        several = await box.run("for i in 1 2 3 4; do python3 hold.py & done; wait -n; echo $?")
        assert several.text == "137\n"
        assert (await box.run("pkill python3; echo on")).stdout.endswith(b"on\n")


async def test_what_was_ended_for_its_memory_is_said(open_jail: OpenBox) -> None:
    """With the command that ran, or when none did with the next."""
    async with open_jail(memory_mb=64) as box:
        if "0::/agent-env-" in (await box.run("cat /proc/self/cgroup")).text:
            pytest.skip("the kernel keeps the limit here, in a control group")
        hold = "x = bytearray(100 * 2**20)\nfor at in range(0, len(x), 4096): x[at] = 1\nimport time; time.sleep(30)\n"
        result = await box.run(["python3", "-c", hold])
        assert result.exit_code == 137
        assert result.notes == ("the sandbox has 64 MB of memory: its largest process (python3) was ended",)
        await box.write_file("hold.py", hold)
        await box.run("python3 hold.py & echo $! >pid")
        with anyio.fail_after(20):
            while (await box.run("kill -0 $(cat pid)")).is_ok:
                pass


async def test_temporary_files_are_limited(open_jail: OpenBox) -> None:
    """Every place that can be written but the working directory, which is on the disk."""
    async with open_jail(memory_mb=64) as box:
        for path in ("/tmp", "/var/tmp", "/home/agent", "/dev/shm", "/run/agent-env"):
            result = await box.run(f"head -c 200M /dev/zero >{path}/flood; stat -c %s {path}/flood; rm {path}/flood")
            assert b"No space left on device" in result.stderr, path
            assert 0 < int(result.text) <= 64 * 2**20


async def test_processes_are_limited_and_a_fork_bomb_is_put_out(open_jail: OpenBox) -> None:
    """Its own answer is bounded, and commands after it can start what they need."""
    async with open_jail(processes=64) as box, open_jail(processes=64) as other:
        fork = "import os, time\nfor at in range(100):\n    if os.fork() == 0: time.sleep(60)\n"
        limited = await box.run(["python3", "-c", fork])
        assert b"Resource temporarily unavailable" in limited.stderr
        assert limited.notes == ("the sandbox had reached its limit of 64 processes: all that ran in it were ended",)
        await box.run(f"[ -d {box.private_dir} ] && :(){{ :|:& }};:")
        result = await box.run("seq 3 | sort | cat | wc -l")
        with anyio.fail_after(30):
            while result.text != "3\n":
                result = await box.run("seq 3 | sort | cat | wc -l")
        assert (await other.run("seq 3 | sort | cat | wc -l")).text == "3\n"


async def test_a_folder_that_the_sandboxs_user_cannot_reach_is_said(open_jail: OpenBox, tmp_path: Path) -> None:
    """Where root gives itself up: with the folder that is closed, and the way out."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandboxes run as that user")
    files = tmp_path / "closed" / "copy" / "files"
    files.mkdir(parents=True)
    files.parent.parent.chmod(0o700)
    with pytest.raises(SandboxUnavailableError, match=r"closed is closed to the user .*: chmod o\+x it, or set TMPDIR"):
        async with open_jail(files):
            pass
    assert files.stat().st_uid == 0


async def test_sandboxes_that_root_starts_are_different_users(open_jail: OpenBox, mark: str) -> None:
    """None of which the machine has."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandboxes run as that user")
    async with open_jail() as one, open_jail() as two:
        users: set[str] = set()
        for box, own in ((one, f"{mark}.1"), (two, f"{mark}.2")):
            await box.run(SLEEP.format(own))
            users.add(_field(_process(f"sleep\0{own}".encode()), "Uid"))
    assert len(users) == 2


@pytest.mark.timeout(240)
def test_all_this_holds_for_an_ordinary_user(open_jail: OpenBox, play_as_ordinary_user: Callable[[], None]) -> None:
    """The same tests, played by a user that is not root."""
    play_as_ordinary_user()
