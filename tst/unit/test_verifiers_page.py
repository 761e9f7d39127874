"""The page on verifiers: what it shows can be written into a bundle as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_env import Task, load_bundle, validate_bundle
from agent_env.bundle import (
    CheckVerifier,
    CommandVerifier,
    JudgeVerifier,
    PythonRef,
    StateVerifier,
    Verify,
)
from agent_env.verify.phrase import Phrase, plain

PAGE = Path(__file__).parents[2] / "docs" / "verifiers.md"
BUNDLE = """\
name: shop
version: "1.0"
envs:
  store: {python: envs/store.py:Store, universe: universes/store.json}
  box: {sandbox: box}
sandboxes:
  box: {provider: host}
agents:
  clerk: {envs: [store, box]}
"""
STORE = """\
from agent_env import Env, tool


class Store(Env):
    @tool
    def refund(self, order: str, amount: float) -> str:
        '''Refund an order.'''
        self.state["orders"][order]["refunded"] = amount
        return "refunded"

    @tool
    def cancel(self, order: str) -> str:
        '''Cancel an order.'''
        return "cancelled"
"""
GOLD = "gold: [{calls: [{tool: refund, arguments: {order: A17, amount: 12.5}}], reply: 12.50 in three days.}]\n"


def blocks(kind: str) -> list[str]:
    """The page's examples in a language, as they stand."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with a task for each verify step that the page shows."""
    texts = [text for text in blocks("yaml") if text.startswith(("verify:", "gold:"))]
    files = {
        "bundle.yaml": BUNDLE + "".join(text for text in blocks("yaml") if text.startswith("# bundle.yaml")),
        "envs/store.py": STORE,
        "universes/store.json": '{"orders": {"A17": {"refunded": 0, "tags": [], "updated_at": 0}}}',
        "universes/after.json": '{"orders": {"A17": {"refunded": 12.5, "tags": [], "updated_at": 0}}}',
        "verifiers/refunded.py": blocks("python")[0],
        "verifiers/tests/test_it.py": "",
    }
    for at, text in enumerate(texts):
        gold = "" if "gold:\n" in text else GOLD
        files[f"tasks/t{at}.yaml"] = f"id: t{at}\nparams: {{order: A17}}\nprompt: Refund A17.\n{gold}{text}"
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def steps(task: Task) -> list[Verify]:
    """A task's verify steps."""
    return [step for step in task.steps if isinstance(step, Verify)]


def test_every_example_is_part_of_a_bundle(bundle: Path) -> None:
    """It loads, validates, and is what it is said to be."""
    loaded = load_bundle(bundle)
    assert validate_bundle(bundle) == []
    kinds = [[type(step.verifier) for step in steps(task)] for task in loaded.tasks.values()]
    assert kinds == [
        [PythonRef],
        [StateVerifier],
        [CommandVerifier],
        [CommandVerifier],
        [CheckVerifier],
        [JudgeVerifier],
        [StateVerifier, CheckVerifier, CheckVerifier],
    ]
    gates = steps(loaded.task("t6"))
    assert [(step.id, step.weight, step.required) for step in gates] == [
        ("state", 1.0, False),
        ("check", 0.5, False),
        ("safe", None, True),
    ]


@pytest.mark.parametrize(
    "equals", ["start", "{after: [{tool: refund, arguments: {order: A17, amount: 12.5}}]}", "gold"]
)
def test_each_way_to_say_what_is_wanted_is_understood(bundle: Path, equals: str) -> None:
    """As the page lists them."""
    text = f"id: w\nprompt: x\n{GOLD}verify: {{state: store, equals: {equals}}}\n"
    (bundle / "tasks/w.yaml").write_text(text, encoding="utf-8")
    assert validate_bundle(bundle) == []


def test_the_table_of_what_is_said_is_right() -> None:
    """Each phrase is in what stands beside it in the second column, and not in what stands in the third."""
    rows = [row.strip("|").split("|") for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    said = [row for row in rows if row[1].strip().startswith('"')]
    assert len(said) >= 5
    for phrase, found, missed in said:
        wanted = Phrase(phrase.strip().strip("`").strip('"'))
        for text in re.findall(r'"(.*?)"', found.replace("&nbsp;", "\N{NO-BREAK SPACE}")):
            assert wanted.found_in(plain(text)), (phrase, text)
        for text in re.findall(r'"(.*?)"', missed):
            assert not wanted.found_in(plain(text)), (phrase, text)
