"""Folders of the bundle that are there to be read in a sandbox: the packages that an agent and its verifier need."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from agent_env import load_bundle
from agent_env.bundle import SandboxSpec
from agent_env.errors import BundleError
from agent_env.sandbox import Sandbox, SandboxUnavailableError, open_sandbox, open_verifier_side

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]

BUNDLE = """
name: packed
sandboxes:
  box: {provider: bwrap, binds: {/opt/packages: sandboxes/packages}, env: {PYTHONPATH: /opt/packages}}
envs:
  shell: {sandbox: box}
"""


def written(place: Path, header: str = BUNDLE) -> Path:
    """Write a bundle with a Python package in a folder of it."""
    root = place / "bundle"
    (root / "sandboxes" / "packages" / "greeting").mkdir(parents=True)
    (root / "sandboxes" / "packages" / "greeting" / "__init__.py").write_text("TEXT = 'hello'\n")
    (root / "tasks").mkdir()
    (root / "tasks" / "a.yaml").write_text("id: a\nprompt: x\nverify: {command: 'true'}\n")
    (root / "bundle.yaml").write_text(header)
    return root


def sandbox_of(root: Path) -> SandboxSpec:
    """Return the sandbox that a bundle declares."""
    spec = load_bundle(root).envs["shell"].sandbox
    assert spec is not None
    return spec


@pytest.mark.usefixtures("open_jail")
async def test_packages_are_there_for_the_agent_and_the_verifier_and_nobody_can_change_them(place: Path) -> None:
    """Not even by a file that every Python runs when it starts."""
    root = written(place)
    say = "python3 -c 'import greeting; print(greeting.TEXT)'"
    async with open_sandbox(sandbox_of(root)) as box:
        assert (await box.run(say)).text == "hello\n"
        for attempt in (
            "echo 'import os; os._exit(0)' >/opt/packages/sitecustomize.py",
            "rm -r /opt/packages/greeting",
        ):
            assert b"Read-only file system" in (await box.run(attempt)).stderr
        async with open_verifier_side(box) as side:
            assert (await side.run(say)).text == "hello\n"
    assert sorted(os.listdir(root / "sandboxes" / "packages")) == ["greeting"]


@pytest.mark.usefixtures("open_jail")
async def test_a_folder_that_the_sandboxs_user_cannot_reach_is_said(place: Path) -> None:
    """Where root gives itself up: with the folder that is closed, and the way out."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandboxes run as that user")
    root = written(place)
    root.chmod(0o700)
    with pytest.raises(
        SandboxUnavailableError, match=r"bundle is closed to .*: chmod o\+x it, or keep the bundle elsewhere"
    ):
        async with open_sandbox(sandbox_of(root)):
            pass


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sandboxes/packages", "sandboxes/nothing", "bundle.yaml:4: there is no file 'sandboxes/nothing'"),
        ("sandboxes/packages", "../packages", "'../packages' leaves the bundle"),
        ("sandboxes/packages", "bundle.yaml", "'bundle.yaml' is no folder"),
        (
            "/opt/packages: sandboxes",
            "/usr/lib: sandboxes",
            "bundle.yaml:4: '/usr/lib' is no place for a folder in a sandbox, write one in /opt, as in /opt/packages",
        ),
        ("/opt/packages: sandboxes", "/opt/..: sandboxes", "'/opt/..' is no place for a folder in a sandbox"),
        (
            "provider: bwrap",
            "provider: host",
            "a sandbox of provider 'host' says 'binds', write provider: bwrap or docker",
        ),
    ],
)
def test_what_cannot_be_bound_is_a_problem_of_the_bundle(place: Path, old: str, new: str, said: str) -> None:
    """With the line, before anything is opened."""
    root = written(place, BUNDLE.replace(old, new))
    with pytest.raises(BundleError) as caught:
        load_bundle(root)
    assert said in str(caught.value)
