"""Stands in for the `docker` command: no engine runs where the tests do.

It keeps containers as folders, and runs their commands on this machine, in a session of their own and not as children of
the client, as the real one does. What is in a container's `/workspace`, `/tmp/.agent-env` and `/run/agent-env-verifier` is in
its folder; `/workspace` is a volume that another container can share. Images are names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STATE = Path(os.environ["FAKE_DOCKER"])


def main() -> int:
    """Do what the arguments say."""
    what, *rest = sys.argv[1:]
    with (STATE / "log").open("a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\n")
    refuses = STATE / "refuses"
    if refuses.exists() and refuses.read_text() == what:
        sys.stderr.write("no room for it\n")
        return 1
    said = STATE / "says"
    if said.exists():
        sys.stderr.write(said.read_text())
        return 1
    commands = {
        "run": run,
        "exec": execute,
        "cp": copy,
        "rm": remove,
        "ps": listing,
        "inspect": inspect,
        "image": image,
    }
    commands |= {"commit": commit, "images": images}
    return commands[what](rest)


def container(name: str) -> Path:
    """Return a container's folder."""
    path = STATE / "containers" / name
    if not path.is_dir():
        sys.stderr.write(f"Error response from daemon: No such container: {name}\n")
        sys.exit(1)
    return path


def inside(folder: Path, text: str) -> str:
    """Return a text with the container's paths as they are here."""
    for path, own in (
        ("/workspace", "workspace"),
        ("/tmp/.agent-env", "private"),
        ("/run/agent-env-verifier", "verifier"),
    ):
        text = text.replace(path, str(folder / own))
    return text


def run(rest: list[str]) -> int:
    """Make a container."""
    name, label = rest[rest.index("--name") + 1], rest[rest.index("--label") + 1]
    known = (STATE / "images").read_text().split()
    if rest[-2] not in known:
        sys.stderr.write(f"Unable to find image '{rest[-2]}' locally\ndocker: Error: No such image: {rest[-2]}\n")
        return 125
    folder = STATE / "containers" / name
    folder.mkdir()
    if "--volumes-from" in rest:
        of = container(rest[rest.index("--volumes-from") + 1])
        assert rest[rest.index("--network") + 1] == f"container:{of.name}"
        assert "--hostname" not in rest  # the real one refuses it then
        (folder / "workspace").symlink_to(of / "workspace")
    else:
        (folder / "workspace").mkdir()
    (folder / "label").write_text(label.partition("=")[2])
    sys.stdout.write(f"{name}-id\n")
    return 0


def execute(rest: list[str]) -> int:
    """Run a command in a container, as a process that does not end with this one."""
    environment: dict[str, str] = {}
    cwd = "/workspace"
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option in ("--workdir", "--env", "--user"):
            value = rest.pop(0)
            if option == "--workdir":
                cwd = value
            elif option == "--env":
                environment.update([value.split("=", 1)])
    folder = container(rest.pop(0))
    environment = {name: inside(folder, value) for name, value in environment.items()}
    argv = [inside(folder, word) for word in rest]
    user = STATE / "user"
    if user.exists():  # the image's, who is here whoever runs the tests
        argv = (
            ["true"]
            if argv[0] == "chown"
            else [re.sub(r"\bid -[ug]\b", f"echo {user.read_text()}", word) for word in argv]
        )
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.close(reader)
            try:
                process = subprocess.Popen(
                    argv, cwd=inside(folder, cwd), env={**os.environ, **environment}, start_new_session=True
                )
            except OSError as exc:
                sys.stderr.write(f"OCI runtime exec failed: {exc}\n")
                os.write(writer, b"127")
                os._exit(0)
            with (folder / "pids").open("a") as pids:
                pids.write(f"{process.pid}\n")
            code = process.wait()
            os.write(writer, str(128 - code if code < 0 else code).encode())
        os._exit(0)
    os.close(writer)
    return int(os.read(reader, 10) or b"137")


def copy(rest: list[str]) -> int:
    """Copy files into a container."""
    source, target = [word for word in rest if not word.startswith("--")]
    name, _, path = target.partition(":")
    folder = container(name)
    shutil.copytree(source.removesuffix("/."), inside(folder, path), symlinks=True, dirs_exist_ok=True)
    return 0


def remove(rest: list[str]) -> int:
    """Remove containers, and kill what runs in them."""
    for name in [word.removesuffix("-id") for word in rest if not word.startswith("--")]:
        folder = container(name)
        pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
        for pid in pids:
            with suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)
        shutil.rmtree(folder)
    return 0


def listing(_: list[str]) -> int:
    """List containers with their label."""
    for folder in sorted((STATE / "containers").iterdir()):
        sys.stdout.write(f"{folder.name}-id {(folder / 'label').read_text()}\n")
    return 0


def inspect(rest: list[str]) -> int:
    """Say that a container runs."""
    container(rest[-1])
    sys.stdout.write("true\n")
    return 0


def image(rest: list[str]) -> int:
    """See whether there is an image, or remove it."""
    known = (STATE / "images").read_text().split()
    if rest[-1] not in known:
        sys.stderr.write(f"Error response from daemon: No such image: {rest[-1]}\n")
        return 1
    if rest[0] == "rm":
        (STATE / "images").write_text("\n".join(name for name in known if name != rest[-1]))
    return 0


def commit(rest: list[str]) -> int:
    """Make an image of a container."""
    name, made = rest
    container(name)
    with (STATE / "images").open("a") as file:
        file.write(f"\n{made}\n")
    return 0


def images(rest: list[str]) -> int:
    """List the tags of an image."""
    for name in (STATE / "images").read_text().split():
        if name.startswith(f"{rest[-1]}:"):
            sys.stdout.write(f"{name.partition(':')[2]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
