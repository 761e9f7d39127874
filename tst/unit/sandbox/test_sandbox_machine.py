"""Machines that cannot make a jail: each says why in a line, with the way out. Most are real, made with bubblewrap itself."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import SandboxUnavailableError, check_sandbox, open_sandbox
from agent_env.sandbox._cgroup import ControlGroups
from agent_env.sandbox._jail_check import why_not
from agent_env.sandbox._uids import free_range

CHECK = """
import asyncio
from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import SandboxUnavailableError, check_sandbox, open_sandbox
try:
    asyncio.run(check_sandbox(SandboxSpec(provider=SandboxProvider.BWRAP)))
except SandboxUnavailableError as exc:
    print(exc)
else:
    print("fine")
"""


class OrdinaryUser(Protocol):
    argv: list[str]
    environment: dict[str, str]
    home: Path


def check_in(user: OrdinaryUser, *bwrap: str, pass_fds: Sequence[int] = ()) -> str:
    """Look for a jail in one made so, and return what is said of it."""
    *become, python = user.argv
    outer = ["bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", *bwrap]
    done = subprocess.run(
        [*become, *outer, "--", python, "-c", CHECK],
        env=user.environment, capture_output=True, text=True, check=False, pass_fds=pass_fds,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def needs_bwrap() -> None:
    """Skips where bubblewrap is not installed."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt install bubblewrap")


def test_a_machine_that_can_is_fine(ordinary_user: OrdinaryUser) -> None:
    """Also inside another jail, where the kernel lets it."""
    assert check_in(ordinary_user, "--unshare-user", "--unshare-pid", "--proc", "/proc") == "fine"


def test_a_kernel_without_user_namespaces_is_said(ordinary_user: OrdinaryUser) -> None:
    """Their number is a setting: `user.max_user_namespaces`."""
    said = check_in(ordinary_user, "--unshare-user", "--disable-userns", "--proc", "/proc")
    assert said == "the kernel forbids sandboxes to ordinary users: sysctl user.max_user_namespaces=10000"


def test_a_container_whose_filter_forbids_namespaces_is_said(ordinary_user: OrdinaryUser, tmp_path: Path) -> None:
    """As Docker's does, with a filter for system calls."""
    if os.uname().machine != "x86_64":
        pytest.skip("the filter is written for x86_64")
    clone, unshare, eperm = 56, 272, 0x00050001
    allow = 0x7FFF0000
    program = [
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 1, 0, unshare),
        (0x15, 0, 3, clone),
        (0x20, 0, 0, 16),  # load the low half of its first argument
        (0x45, 0, 1, 0x10000000),  # is CLONE_NEWUSER in it?
        (0x06, 0, 0, eperm),
        (0x06, 0, 0, allow),
    ]
    path = tmp_path / "filter"
    path.write_bytes(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    with path.open("rb") as file:
        said = check_in(ordinary_user, "--seccomp", str(file.fileno()), pass_fds=[file.fileno()])
    assert said.startswith("this container forbids sandboxes (")
    assert said.endswith(
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined, or use provider: docker"
    )


def test_a_container_that_hides_parts_of_proc_is_said(ordinary_user: OrdinaryUser) -> None:
    """The kernel makes no new /proc for who does not see all of the old one."""
    said = check_in(ordinary_user, "--unshare-user", "--unshare-pid", "--proc", "/proc", "--tmpfs", "/proc/driver")
    assert said.startswith("this container hides parts of /proc")
    assert said.endswith("start the container with --security-opt systempaths=unconfined")


def test_a_container_in_which_root_can_be_nobody_else_is_said(ordinary_user: OrdinaryUser) -> None:
    """Root gives itself up, and there it cannot."""
    said = check_in(ordinary_user, "--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--proc", "/proc")
    assert said == (
        "bwrap, started as root, gives each sandbox a user of its own, and this container has no user ids "
        "60578 to 61183: start as an ordinary user"
    )


async def test_without_bubblewrap_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what else root needs."""
    spec = SandboxSpec(provider=SandboxProvider.BWRAP)
    monkeypatch.setattr("agent_env.sandbox._jail_check._found", None)
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="bwrap is not installed: apt install bubblewrap"):
        await check_sandbox(spec)
    (tmp_path / "bwrap").symlink_to(bwrap)
    if os.geteuid() == 0:
        with pytest.raises(SandboxUnavailableError, match="needs setpriv to give root up: apt install util-linux"):
            await check_sandbox(spec)
    (tmp_path / "bwrap").unlink()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho usage: bwrap\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match=r"is too old: install bubblewrap 0\.8 or later"):
        await check_sandbox(spec)


WITHOUT_CAPABILITIES = """#!/bin/bash
arguments=()
while [ $# -gt 0 ]; do if [ "$1" = --cap-add ]; then shift 2; else arguments+=("$1"); shift; fi; done
exec {bwrap} "${arguments[@]}"
"""


async def test_a_kernel_that_cannot_keep_verifiers_apart_is_said(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """When it is looked at before, and when a sandbox is opened: there is none in which verifiers are not kept apart."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    (place / "bin").mkdir()
    (place / "bin" / "bwrap").write_text(WITHOUT_CAPABILITIES.replace("{bwrap}", bwrap))
    (place / "bin" / "bwrap").chmod(0o755)
    monkeypatch.setattr("agent_env.sandbox._jail_check._found", None)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    spec = SandboxSpec(provider=SandboxProvider.BWRAP)
    with pytest.raises(
        SandboxUnavailableError, match="the kernel forbids their first process what keeps verifiers apart"
    ):
        await check_sandbox(spec)
    with pytest.raises(
        SandboxUnavailableError, match="the kernel forbids their first process what keeps verifiers apart"
    ):
        async with open_sandbox(spec):
            pass


async def test_a_machine_that_is_not_as_most_is_found_out_when_a_sandbox_is_opened(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """The first one is tried as most machines can make one: here with an option that this bubblewrap refuses."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    (place / "bin").mkdir()
    refuses = 'for argument; do [ "$argument" != --disable-userns ] || exit 1; done'
    helps = 'if [ "$1" = --help ]; then echo "--size --perms"; exit; fi'
    (place / "bin" / "bwrap").write_text(f'#!/bin/sh\n{helps}\n{refuses}\nexec {bwrap} "$@"\n')
    (place / "bin" / "bwrap").chmod(0o755)
    monkeypatch.setattr("agent_env.sandbox._jail_check._found", None)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    for _ in range(2):
        async with open_sandbox(SandboxSpec(provider=SandboxProvider.BWRAP)) as box:
            assert (await box.run("echo on")).text == "on\n"


async def test_a_python_of_another_version_is_given_what_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's is seldom the one that this runs in: here it is taken for another one."""
    monkeypatch.setattr("agent_env.sandbox._jail_check._found", None)
    monkeypatch.setattr("agent_env.sandbox._launch.MAGIC_NUMBER", b"another")
    for _ in range(2):
        async with open_sandbox(SandboxSpec(provider=SandboxProvider.BWRAP)) as box:
            assert (await box.run("echo on")).text == "on\n"


@pytest.mark.parametrize(
    ("setting", "value", "said", "fix"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns", "1",
            "bwrap: setting up uid map: Permission denied",
            "the kernel forbids sandboxes to ordinary users (AppArmor): "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap a profile",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns", "1",
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            "the kernel forbids sandboxes to ordinary users (AppArmor): "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap a profile",
        ),
        (
            "kernel/unprivileged_userns_clone", "0",
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow it",
            "the kernel forbids sandboxes to ordinary users: sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            "user/max_user_namespaces", "0",
            "bwrap: Creating new namespace failed",
            "the kernel forbids sandboxes to ordinary users: sysctl user.max_user_namespaces=10000",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns", "0",
            "bwrap: execvp /usr/bin/python3: No such file or directory",
            "bwrap cannot make a sandbox: execvp /usr/bin/python3: No such file or directory",
        ),
        (
            "user/max_user_namespaces", "1000",
            "/usr/bin/python3: No module named '_ctypes'",
            "the sandbox's Python cannot start: /usr/bin/python3: No module named '_ctypes': apt install python3-minimal",
        ),
        (
            "user/max_user_namespaces", "1000",
            "bwrap: no namespaces inside",
            "bwrap makes sandboxes here, but the kernel forbids their first process what keeps verifiers apart from the agent "
            "(Ubuntu's AppArmor profile of bwrap does): apparmor_parser -R /etc/apparmor.d/bwrap-userns-restrict, and "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "user/max_user_namespaces", "1000",
            "",
            "the sandbox's Python cannot start: it said nothing: apt install python3-minimal",
        ),
    ],
)  # fmt: skip
def test_a_kernels_setting_is_named(tmp_path: Path, setting: str, value: str, said: str, fix: str) -> None:
    """Settings that this kernel does not have, or that are other machines' matter, by what bubblewrap says there."""
    path = tmp_path / "sys" / setting
    path.parent.mkdir(parents=True)
    path.write_text(f"{value}\n")
    assert why_not(said, proc=tmp_path) == fix


@pytest.mark.parametrize(
    ("uid_map", "first"),
    [
        ("         0          0 4294967295\n", 1_900_000_000),
        ("         0     100000      65536\n", 60_578),
        ("         0       1000          1\n         1     100000      65535\n", 60_578),
    ],
)
def test_users_of_sandboxes_are_ones_that_nobody_is(uid_map: str, first: int) -> None:
    """By the conventions for user ids, as far as a container has them."""
    assert free_range(uid_map)[0] == first


def test_no_control_group_is_used_where_none_was_handed_to_us(tmp_path: Path) -> None:
    """Version 1, no controllers for what is below, none that can be written to."""
    membership = tmp_path / "cgroup"
    own = tmp_path / "groups" / "user" / "session"
    own.mkdir(parents=True)
    membership.write_text("9:name=systemd:/\n8:pids:/\n")
    assert ControlGroups.find(tmp_path / "groups", membership) is None
    membership.write_text("0::/user/session\n")
    assert ControlGroups.find(tmp_path / "groups", membership) is None
    (own.parent / "cgroup.procs").touch()
    (own.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    assert ControlGroups.find(tmp_path / "groups", membership) is None


def test_a_control_group_gets_its_limits_and_is_entered(tmp_path: Path) -> None:
    """Told from what is written to folders that stand in for the kernel's: no test here had it keep a limit."""
    membership = tmp_path / "cgroup"
    parent = tmp_path / "groups" / "user"
    (parent / "session").mkdir(parents=True)
    membership.write_text("0::/user/session\n")
    (parent / "cgroup.procs").touch()
    (parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    groups = ControlGroups.find(tmp_path / "groups", membership)
    assert groups is not None
    with groups.group("1-00000000-1", memory_bytes=2**20, processes=10) as enter:
        folder = parent / "agent-env-1-00000000-1"
        done = subprocess.run([*enter, "sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
        written = {path.name: path.read_text().strip() for path in folder.iterdir()}
        assert written == {
            "memory.max": str(2**20), "memory.swap.max": "0", "pids.max": "13", "cgroup.procs": done.stdout.strip(),
        }  # fmt: skip
        for path in folder.iterdir():
            path.unlink()  # the kernel's are no files, and go with their folder
    assert not folder.exists()
