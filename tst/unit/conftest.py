from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, and how long it takes to make one, says how busy the machine is.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a script's background job has it. What tests start would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]


@pytest.fixture
def small_bundle() -> dict[str, str]:
    """The files of a bundle that has no problem: one env over a JSON universe, two tasks, one eval."""
    return {
        "bundle.yaml": (
            "name: shop\n"
            'version: "1.0"\n'
            "envs:\n"
            "  store:\n"
            "    python: envs/store.py:Store\n"
            "    universe: universes/store.json\n"
            "agents:\n"
            "  clerk:\n"
            "    system_prompt: prompts/policy.md\n"
        ),
        "envs/store.py": (
            "from agent_env.envs import Env, tool\n"
            "\n"
            "\n"
            "class Store(Env):\n"
            "    @tool\n"
            "    def sell(self, count: int) -> int:\n"
            '        """Sell some of the stock.\n'
            "\n"
            "        Args:\n"
            "            count: How many.\n"
            '        """\n'
            '        self.state["stock"] -= count\n'
            '        return self.state["stock"]\n'
        ),
        "universes/store.json": '{"stock": 10}\n',
        "prompts/policy.md": "You keep the store.\n",
        "verifiers/sold.py": "def score(episode):\n    return 1.0\n",
        "tasks/a.yaml": (
            "id: a\ntags: [easy]\nparams: {count: 3}\nprompt: Sell {{ params.count }}.\nverify: {python: verifiers/sold.py}\n"
        ),
        "tasks/b.jsonl": (
            '{"id": "b", "params": {"count": 4}, "prompt": "Sell {{ params.count }}.",'
            ' "verify": {"python": "verifiers/sold.py"}}\n'
        ),
        "evals/test.yaml": "tasks: [b]\n",
    }


@pytest.fixture
def write_bundle(tmp_path: Path) -> WriteBundle:
    """Writes the files of a bundle, by path, into a folder of the test's own; a file that is None is left out."""

    def write(files: Mapping[str, str | bytes | None]) -> Path:
        root = tmp_path / "bundle"
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            if content is None:
                continue
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root

    return write


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of the test's own, in which nothing is left."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
