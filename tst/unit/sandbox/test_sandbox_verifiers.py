"""What an agent left running cannot do to a verifier: each test is an attempt at a score that nobody has earned."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path, PurePosixPath

import pytest

from agent_env.errors import UsageError
from agent_env.sandbox import ExecResult, HasVerifierSide, PlacedFile, Sandbox, SandboxLostError, open_verifier_side

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]
Saying = Callable[[str], Sequence[int]]
WaitGone = Callable[[str], None]

ATTACKER = """
import ctypes, glob, itertools, os, signal, sys
if not os.path.isdir("/run/agent-env"):
    sys.exit("this is no jail")
libc = ctypes.CDLL(None, use_errno=True)

def told():
    "What the worst verifier tells: its environment, and the number of its process."
    try:
        return dict(line.split("=", 1) for line in open("/workspace/told").read().splitlines() if "=" in line)
    except OSError:
        return {}

def places():
    own = [told().get(name) for name in ("AGENT_ENV_VERIFIER", "AGENT_ENV_SCORE", "TMPDIR")]
    found = [path for path in own if path] + glob.glob("/run/agent-env-verifiers/**", recursive=True)
    return found + [os.path.dirname(path) for path in found]

def numbers():
    return [pid for pid in [*range(2, 600), int(told().get("PID", 0))] if pid not in (0, 1, os.getpid(), os.getppid())]

def tried(action, *arguments):
    try:
        action(*arguments)
    except (OSError, ValueError):
        pass

def write(path, text):
    tried(os.makedirs, os.path.dirname(path))
    with open(path, "w") as file:
        file.write(text)

def rewrite():
    for path in places():
        for name in (path, f"{path}/check.sh"):
            tried(os.chmod, name, 0o777)
            tried(write, name, "exit 0")

def rename():
    for path in places():
        tried(os.rename, path, "/tmp/away")
        tried(os.unlink, path)
        tried(os.rmdir, path)
        tried(os.symlink, "/workspace/mine", path)
        tried(os.link, "/workspace/mine/check.sh", f"{path}/check.sh")
        for kind, flags in ((b"tmpfs", 0), (b"none", 4096)):
            libc.mount(b"/workspace/mine", path.encode(), kind, flags, 0)
        libc.umount2(path.encode(), 2)

def score():
    for path in places():
        tried(write, path, "1")
        tried(write, f"{path}/score", "1")
    tried(write, "/workspace/score", "1")

def kill():
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in numbers():
            tried(os.kill, pid, number)
            tried(os.killpg, pid, number)
        tried(os.kill, -1, number)

def trace():
    for pid in numbers():
        if libc.ptrace(16, pid, 0, 0) == 0:
            os.waitpid(pid, 0x40000000)
            libc.ptrace(8, pid, 0, 0)
        for name in ("mem", "environ", "cwd/score", "root/workspace/score", "fd/1"):
            tried(write, f"/proc/{pid}/{name}", "1")

for rounds in itertools.count():
    globals()[sys.argv[1]]()
    with open("/workspace/rounds.new", "w") as file:
        file.write(f"{rounds}\\n")
    os.rename("/workspace/rounds.new", "/workspace/rounds")
"""
"""Tries one thing after the other, and counts how often it has tried all."""

CHECK = """
{ env; echo "PID=$$"; } >/workspace/told
first=$(cat /workspace/rounds)
until [ "$(cat /workspace/rounds)" -ge $((first + 3)) ]; do :; done
echo 0.25 >"$AGENT_ENV_SCORE"
test -s "$TMPDIR/scratch" || exit 5
first=$(cat /workspace/rounds)
until [ "$(cat /workspace/rounds)" -ge $((first + 3)) ]; do :; done
exit 7
"""
"""A verifier that tells everything, and waits until it has been attacked before and after it has written its score."""

PLACED = (PlacedFile(path=PurePosixPath("check.sh"), content=CHECK.encode()),)
RUN_CHECK = 'seq 1000 >"$TMPDIR/scratch"; bash "$AGENT_ENV_VERIFIER/check.sh"'


async def begun(box: Sandbox, attack: str) -> None:
    """Have an agent attack, and wait until it does."""
    await box.write_file("attacker.py", ATTACKER)
    await box.write_file("mine/check.sh", "exit 0")
    await box.write_file("attacker.log", "")
    await box.run(f"setsid python3 attacker.py {attack} >attacker.log 2>&1 &")
    async with asyncio.timeout(20):
        while True:  # without a command, which it may end
            try:
                await box.read_file("rounds")
            except FileNotFoundError:
                assert await box.read_file("attacker.log") == b""
            else:
                return


async def checked(box: Sandbox, *, before: str = "") -> tuple[ExecResult, bytes]:
    """Run the verifier; return how it ended, and the score that it left."""
    async with open_verifier_side(box, PLACED) as side:
        assert side.is_apart
        place = side.own / "score"
        result = await side.run(before + RUN_CHECK, env={"AGENT_ENV_SCORE": str(place)}, timeout_s=60)
        return result, await side.sandbox.read_file(place)


def checks_on_disk(place: Path) -> list[Path]:
    """Where on the machine's disk the verifier's files are."""
    return list(place.rglob("check.sh"))


@pytest.mark.parametrize("attack", ["rewrite", "rename", "score", "kill", "trace"])
async def test_what_an_agent_left_running_does_not_change_a_score(open_jail: OpenBox, attack: str) -> None:
    """Though it is told where everything is, and attacks all the time."""
    async with open_jail() as box:
        await begun(box, attack)
        result, score = await checked(box)
        assert (result.exit_code, score, result.stderr) == (7, b"0.25\n", b"")
        again, score = await checked(box)
        assert (again.exit_code, score) == (7, b"0.25\n")


async def test_a_verifier_s_files_are_seen_by_nobody_else(open_jail: OpenBox, place: Path) -> None:
    """Before it, while it runs and after it; and nothing of them is left on the disk."""
    look = "find /run/agent-env-verifiers; ls /proc/*/cwd /proc/*/fd 2>/dev/null | grep -c agent-env-verifiers"
    async with open_jail() as box:
        seen = [(await box.run(look)).text]
        async with open_verifier_side(box, PLACED) as side:
            await side.run(
                'sleep 1000 <"$AGENT_ENV_VERIFIER/check.sh" >"$TMPDIR/x" 2>&1 & cd "$AGENT_ENV_VERIFIER"; sleep 1000 &'
            )
            seen.append((await box.run(look)).text)
            assert len(checks_on_disk(place)) == 1
            with pytest.raises(OSError):
                await box.read_file(side.files / "check.sh")
        seen.append((await box.run(look)).text)
        assert checks_on_disk(place) == []
    assert seen == ["/run/agent-env-verifiers\n0\n"] * 3


async def test_nobody_inside_can_write_to_a_verifier_s_files(open_jail: OpenBox) -> None:
    """Not the verifier either, nor a program of the agent's that it runs."""
    async with open_jail() as box, open_verifier_side(box, PLACED) as side:
        for attempt in (
            "echo >check.sh",
            "rm check.sh",
            "mv check.sh x",
            "touch new",
            "chmod 777 .",
            "mount -o remount,rw .",
        ):
            result = await side.run(f'cd "$AGENT_ENV_VERIFIER" && {attempt}')
            assert result.exit_code != 0, attempt
        assert (await side.run('stat -c %a "$AGENT_ENV_VERIFIER/check.sh"')).text in ("640\n", "600\n")


async def test_neither_side_has_privileges(open_jail: OpenBox) -> None:
    """What made the two sides was given up before."""
    look = "awk '/^Cap/ {print $2}' /proc/self/status | sort -u; unshare --user true; unshare --mount true; echo $?"
    async with open_jail() as box, open_verifier_side(box) as side:
        for result in (await box.run(look), await side.run(look)):
            assert result.text.split() == ["0" * 16, "1"]


async def test_the_first_processes_cannot_be_killed_traced_or_read_by_a_verifier(open_jail: OpenBox) -> None:
    """A program of the agent's may run among its processes."""
    async with open_jail() as box, open_verifier_side(box) as side:
        result = await side.run("[ -d /run/agent-env ] && for n in 1 2 9 15 19; do kill -$n 1; done; echo on")
        assert result.text == "on\n"
        for name in ("environ", "mem", "fd/3", "root/etc/passwd"):
            agents = "$(pgrep -o -P 1 python3)"
            result = await side.run(f"cat /proc/1/{name}; cat /proc/{agents}/{name}")
            assert result.stderr.count(b"Permission denied") == 2, result
        assert (await box.run("echo on")).text == "on\n"


@pytest.mark.parametrize("path", ["/run/agent-env", "/tmp", "/home/agent", "/dev/shm"])
async def test_a_full_folder_of_the_agent_s_is_not_the_verifier_s(open_jail: OpenBox, path: str) -> None:
    """It has room of its own for what it writes."""
    async with open_jail(memory_mb=64) as box:
        await box.run(f"cat /dev/zero >{path}/flood; for i in $(seq 100); do : >{path}/$i; done")
        async with open_verifier_side(box, PLACED) as side:
            command = (
                'head -c 1000000 /dev/zero >"$TMPDIR/x" && head -c 1000000 /dev/zero >/dev/shm/x && cat <<<heredoc'
            )
            result = await side.run(command)
            assert (result.exit_code, result.text, result.stderr) == (0, "heredoc\n", b"")
            await side.sandbox.write_file(side.own / "score", "1")


async def test_an_agent_that_has_all_its_processes_leaves_a_verifier_as_many(open_jail: OpenBox) -> None:
    """They are counted for both sides together, so that a verifier may have twice as many."""
    hold = "import os, time\nwhile True:\n    try: pid = os.fork()\n    except OSError: open('full', 'w'); time.sleep(1000)\n"
    hold += "    if pid == 0: time.sleep(1000)\n"
    async with open_jail(processes=64) as box:
        await box.write_file("hold.py", hold)
        async with open_verifier_side(box) as side:
            await box.run("setsid python3 hold.py >/dev/null 2>&1 &")
            command = "until test -e full; do :; done; for i in $(seq 50); do sleep 1000 & done; jobs -r | wc -l"
            assert (await side.run(command)).text == "50\n"


async def test_an_agent_s_processes_go_first_when_memory_is_short(open_jail: OpenBox) -> None:
    """What a verifier needs, it gets, as far as there is as much; and it is said."""
    hold = "import sys, time\nx = bytearray(int(sys.argv[1]) * 2**20)\nfor at in range(0, len(x), 4096): x[at] = 1\n"
    hold += "open(sys.argv[2], 'w')\ntime.sleep(float(sys.argv[3]))\n"
    async with open_jail(memory_mb=128) as box:
        if "0::/agent-env-" in (await box.run("cat /proc/self/cgroup")).text:
            pytest.skip("the kernel keeps the limit here, in a control group")
        await box.write_file("hold.py", hold)
        await box.run("python3 hold.py 70 ready 1000 & until test -e ready; do :; done; echo $! >pid")
        async with open_verifier_side(box) as side:
            result = await side.run("python3 hold.py 100 $TMPDIR/x 1; echo $?", timeout_s=30)
            assert result.text == "0\n"
            assert result.notes == ("the sandbox has 128 MB of memory: its largest process (python3) was ended",)
        assert not (await box.run("kill -0 $(cat pid)")).is_ok


async def test_a_server_of_the_agent_s_is_there_for_the_verifier_and_after_it(open_jail: OpenBox) -> None:
    """On the network, in the working directory and the temporary ones; the verifier sees its process, and may end it."""
    async with open_jail() as box:
        await box.run("mkdir www; echo served >www/index.html; cd www; python3 -m http.server 8000 >/tmp/log 2>&1 &")
        get = "import urllib.request as u; print(u.urlopen('http://localhost:8000').read().decode(), end='')"
        await box.write_file("get.py", get)
        async with open_verifier_side(box) as side:
            answer = await side.run(
                "until python3 get.py 2>/dev/null; do :; done; pgrep -fc '[h]ttp.server 8000'; test -e /tmp/log"
            )
            assert (answer.text, answer.exit_code) == ("served\n1\n", 0)
            await side.run("echo changed >www/index.html")
        assert (await box.run("python3 get.py")).text == "changed\n"
        async with open_verifier_side(box) as side:
            assert (await side.run("pkill -f '[h]ttp.server 8000'; echo $?")).text == "0\n"
        assert not (await box.run("python3 get.py")).is_ok


HOSTILE = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.stdout.write(sys.stdin.read().upper())
print(sorted(name for name in os.environ if "AGENT_ENV" in name or name == "TMPDIR"), os.listdir("/run/agent-env-verifiers"))
for pid in range(2, 600):
    if pid in (os.getpid(), os.getppid()):
        continue
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("traced")
    try:
        os.kill(pid, signal.SIGKILL)
        print("killed")
    except OSError:
        pass
sys.exit(9)
"""


async def test_a_program_of_the_agent_s_can_be_run_where_it_cannot_reach_the_verifier(open_jail: OpenBox) -> None:
    """With the verifier's streams and exit code, and nothing else of it."""
    async with open_jail() as box, open_verifier_side(box, PLACED) as side:
        await box.write_file("main.py", HOSTILE)
        result = await side.run(
            "echo input | $AGENT_ENV_AS_AGENT python3 main.py; echo $?; cat <&3 3<&- || true", stdin=b""
        )
        assert result.text == "INPUT\n[] []\n9\n"
        kept = await side.run(
            "mkdir -p sub && cd sub && X='a b' $AGENT_ENV_AS_AGENT sh -c 'pwd; echo \"$X\"; echo err >&2'"
        )
        assert (kept.text, kept.stderr) == ("/workspace/sub\na b\n", b"err\n")
        ended = await side.run(
            "$AGENT_ENV_AS_AGENT sh -c 'kill -9 $$'; echo $?; $AGENT_ENV_AS_AGENT no-such-program; echo $?"
        )
        assert (ended.text, ended.stderr) == ("137\n127\n", b"no-such-program: No such file or directory\n")
        nothing = await side.run("$AGENT_ENV_AS_AGENT")
        assert (nothing.exit_code, nothing.stderr) == (126, b"as-agent: which program? Write it behind this one\n")
        long = await side.run("$AGENT_ENV_AS_AGENT echo $(head -c 100000 /dev/zero | tr '\\0' x) $(seq 50000) | wc -c")
        assert long.stderr == b"as-agent: Message too long\n"


async def test_all_that_the_agent_left_can_be_ended_from_there(
    open_jail: OpenBox, mark: str, wait_gone: WaitGone
) -> None:
    """By a verifier that wants quiet; it goes on itself."""
    async with open_jail() as box, open_verifier_side(box) as side:
        await box.run(f"sleep {mark}.1 & setsid sleep {mark}.2 >/dev/null 2>&1 &")
        result = await side.run(
            "[ -d /run/agent-env ] && $AGENT_ENV_AS_AGENT sh -c 'kill -9 -1'; echo $?; pgrep -c sleep; echo on"
        )
        wait_gone(f"sleep\0{mark}.")
        assert result.text.startswith("0\n")
        assert result.text.endswith("on\n")
        assert (await box.run("echo on")).text == "on\n"


async def test_what_runs_for_a_verifier_ends_with_it(
    open_jail: OpenBox, saying: Saying, wait_gone: WaitGone, mark: str
) -> None:
    """In the background, as a daemon, or on the agent's side; what the agent left goes on."""
    async with open_jail() as box:
        await box.run(f"sleep {mark}.1 &")
        async with open_verifier_side(box) as side:
            await side.run(
                f"sleep {mark}.2 & (setsid nohup sleep {mark}.3 >/dev/null 2>&1 &) ; $AGENT_ENV_AS_AGENT sleep {mark}.4 &"
            )
            result = await side.run(
                f"until pgrep -f 'sleep {mark}.4'; do :; done; $AGENT_ENV_AS_AGENT sleep {mark}.5", timeout_s=2
            )
            assert result.timed_out
            wait_gone(f"sleep\0{mark}.5")
        for number in (2, 3, 4):
            wait_gone(f"sleep\0{mark}.{number}")
        assert saying(f"sleep\0{mark}.1")


async def test_a_verifier_that_forks_without_end_does_not_outlive_itself(open_jail: OpenBox) -> None:
    """Or else the sandbox ends: the next verifier is not to run beside it."""
    async with open_jail(processes=64) as box:
        async with open_verifier_side(box) as side:
            await side.run("[ -d /run/agent-env ] && b() { b & b & wait; }; b >/dev/null 2>&1 &")
        async with open_verifier_side(box) as side:
            assert (await side.run(["pgrep", "-c", "bash"])).text == "0\n"


async def test_one_verifier_waits_for_the_other(open_jail: OpenBox) -> None:
    """Or it would see the other's files, and be ended with it."""
    order: list[int] = []

    async def verify(box: Sandbox, number: int) -> None:
        async with open_verifier_side(box) as side:
            order.append(number)
            await side.run("true")
            order.append(number)

    async with open_jail() as box, asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(verify(box, number))
    assert order == [0, 0, 1, 1, 2, 2]


async def test_a_cancelled_verifier_leaves_nothing(
    open_jail: OpenBox, place: Path, wait_gone: WaitGone, mark: str
) -> None:
    """Wherever it was; and the next one can begin."""
    async with open_jail() as box:

        async def verify() -> None:
            async with open_verifier_side(box, PLACED) as side:
                await side.run(f"sleep {mark}.1 & sleep {mark}.2")

        for passes in range(0, 60, 4):
            verifying = asyncio.create_task(verify())
            for _ in range(passes):
                await asyncio.sleep(0.001)
            verifying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await verifying
            wait_gone(f"sleep\0{mark}.")
            assert checks_on_disk(place) == []
        async with open_verifier_side(box, PLACED) as side:
            assert (await side.run("ls -A /run/agent-env-verifiers | wc -l")).text == "3\n"


async def test_the_agent_s_first_process_takes_the_verifiers_with_it(open_jail: OpenBox) -> None:
    """A verifier that ends everything has no sandbox any more, and no score."""
    async with open_jail() as box:
        with pytest.raises(SandboxLostError):
            async with open_verifier_side(box) as side:
                await side.run("[ -d /run/agent-env ] && kill -9 -1; exec sleep 1000")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "."])
def test_a_file_is_placed_nowhere_else(path: str) -> None:
    """It is written from outside, with other rights."""
    with pytest.raises(UsageError, match="is no path in one"):
        PlacedFile(path=PurePosixPath(path), content=b"")


async def test_files_are_placed_as_they_are(open_jail: OpenBox) -> None:
    """With folders, any content, and the right to be run; a small one and one that is larger than a command's output."""
    content = bytes(range(256)) * 100_000
    placed = (
        PlacedFile(path=PurePosixPath("a/b/run"), content=b"#!/bin/sh\necho ran\n", is_executable=True),
        PlacedFile(path=PurePosixPath("a/data"), content=content),
        PlacedFile(path=PurePosixPath("é '\""), content=b""),
    )
    old = os.umask(0o077)
    try:
        async with open_jail() as box, open_verifier_side(box, placed) as side:
            result = await side.run('cd "$AGENT_ENV_VERIFIER"; a/b/run; sha256sum <a/data; find . -type f | sort')
    finally:
        os.umask(old)
    assert result.text == f"ran\n{sha256(content).hexdigest()}  -\n./a/b/run\n./a/data\n./é '\"\n"


async def test_a_verifier_without_its_folders_is_not_run(open_host: OpenBox) -> None:
    """As when the disk is full: a command that has nowhere to write would score what it cannot do."""
    async with open_host(environment={"PATH": "/nowhere"}) as box:
        with pytest.raises(OSError, match="no room for a verifier"):
            async with open_verifier_side(box):
                pass


async def test_on_the_host_nothing_is_kept_apart_and_that_is_said(open_host: OpenBox) -> None:
    """The names are new each time, and that is all."""
    async with open_host() as box:
        assert not isinstance(box, HasVerifierSide)
        names: list[PurePosixPath] = []
        for _ in range(2):
            async with open_verifier_side(box, PLACED) as side:
                assert not side.is_apart
                names += [side.files, side.own]
                assert (await box.run(["ls", str(side.files)])).text == "check.sh\n"
                assert (await side.run("$AGENT_ENV_AS_AGENT echo on; test -d $AGENT_ENV_VERIFIER")).text == "on\n"
            assert (await box.run(["ls", "-A", str(box.private_dir)])).text == ""
        assert len(set(names)) == 4


@pytest.mark.timeout(240)
def test_all_this_holds_for_an_ordinary_user(open_jail: OpenBox, play_as_ordinary_user: Callable[[], None]) -> None:
    """The same tests, played by a user that is not root."""
    play_as_ordinary_user()
