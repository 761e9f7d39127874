"""From tau2-bench's retail data to a bundle."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from agent_env._new_folder import new_folder
from agent_env.bundle import load_bundle
from agent_env.errors import BundleError, UsageError
from agent_env.importers.imported import ImportedBundle
from agent_env.importers.tau2.shape import TaskEntry
from agent_env.importers.tau2.source import RetailSource, read_source
from agent_env.importers.tau2.tools import tools_in

__all__ = ["Customer", "import_tau2"]

_SCORED = frozenset({"DB", "COMMUNICATE", "NL_ASSERTION"})
"""Parts of a reward basis that the bundle's verifiers stand for, the last one by the texts that must be said."""


class Customer(StrEnum):
    """Who the clerk talks with."""

    NONE = "none"
    """Nobody: a task is one turn, and the customer's whole brief is its prompt."""
    MODEL = "model"
    """A model that is told the brief, and talks with the clerk over several turns."""


def import_tau2(
    source: Path, target: Path, *, user: Customer | Literal["none", "model"] = Customer.NONE
) -> ImportedBundle:
    """Make a bundle of tau2-bench's retail domain.

    Args:
        source: A checkout of tau2-bench, or its folder `data/tau2/domains/retail` itself.
        target: The new bundle's folder: a path that is not there yet, or an empty folder.
        user: Who the clerk talks with.

    Returns:
        What was made. A task is scored by the store's state, which must be the one that the reference calls leave, and
        by the texts that the clerk must have said.

    Raises:
        UsageError: When the data is not there or has another shape, or something is at `target`. Nothing is written then.
    """
    user = Customer(user)
    own = {name: _own(name) for name in ("store.py", "tau2_store.py", "task.md.j2", "customer.md.j2")}
    read = read_source(source, tools_in(own["store.py"], "Store"))
    notes = tuple(_notes(read))
    target = target.absolute()
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"{target} is there already: name a folder that is not, or remove it first")
    try:
        with new_folder(target) as folder:
            evals = _write(folder, _files(read, own, user, notes), source)
    except OSError as exc:
        raise UsageError(f"{target}: the folder cannot be made: {exc.strerror or exc}") from exc
    return ImportedBundle(root=target, tasks=len(read.tasks), evals=evals, notes=notes)


def _write(folder: Path, files: Mapping[str, str], source: Path) -> dict[str, int]:
    """Write a bundle, and return how many tasks each of its evals has."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    try:
        bundle = load_bundle(folder)
    except BundleError as exc:
        raise UsageError(f"{source}: the bundle that it makes does not load: {exc.problems[0]}") from exc
    return {name: len(ids) for name, ids in bundle.evals.items()}


def _own(name: str) -> str:
    return (files("agent_env.importers.tau2") / "retail" / name).read_text(encoding="utf-8")


def _files(read: RetailSource, own: Mapping[str, str], user: Customer, notes: tuple[str, ...]) -> dict[str, str]:
    """Return the new bundle's files by path."""
    splits_of: dict[str, list[str]] = {task.id: [] for task in read.tasks}
    for split, ids in read.splits.items():
        for task_id in ids:
            splits_of[task_id].append(split)
    written = {
        "bundle.yaml": _bundle_yaml(read, user),
        "README.md": _readme(user, notes),
        "envs/store.py": own["store.py"],
        "envs/tau2_store.py": own["tau2_store.py"],
        "universes/store.json": _compact(read.database),
        "tasks/retail.jsonl": "".join(_line(_task(task, splits_of[task.id])) for task in read.tasks),
        "prompts/policy.md": _as_template(read.policy),
    }
    if user is Customer.MODEL:
        written["prompts/customer.md.j2"] = own["customer.md.j2"]
    else:
        written["prompts/task.md.j2"] = own["task.md.j2"]
    for split, ids in read.splits.items():
        written[f"evals/{split}.yaml"] = f"description: tau2-bench's split '{split}'.\ntasks: {json.dumps(ids)}\n"
    if read.licence is not None:
        written["LICENSE"] = read.licence
    return written


def _task(task: TaskEntry, splits: list[str]) -> dict[str, Any]:
    criteria, scenario = task.evaluation_criteria, task.user_scenario
    said = criteria.communicate_info or []
    calls = [{"tool": action.name, "arguments": action.arguments} for action in criteria.actions or ()]
    reply = "It is done." if calls else "There is nothing that I can do about it."
    written: dict[str, Any] = {
        "id": task.id,
        "tags": splits,
        "params": {
            "persona": scenario.persona,
            **scenario.instructions.model_dump(),
            "nl_assertions": criteria.nl_assertions or [],
        },
        "gold": [{"calls": calls, "reply": " ".join([reply, *(f"{text}." for text in said)])}],
    }
    if said:
        written["verify"] = [_STATE, {"id": "told", "check": {"said": said}, "required": True}]
    return written


_STATE = {"id": "db", "state": "store", "equals": "gold"}


def _notes(read: RetailSource) -> list[str]:
    """Return what somebody should know who compares scores with tau2-bench's."""
    tasks = read.tasks
    notes: list[str] = []
    asserted = sum(bool(task.evaluation_criteria.nl_assertions) for task in tasks)
    if asserted:
        notes.append(
            f"{_count(asserted)} assertions in plain language, which only a model could judge: they are in params, and not "
            "scored. The texts that must be said (communicate_info) are scored."
        )
    bases = Counter(basis for task in tasks for basis in task.evaluation_criteria.reward_basis or ())
    for basis, count in bases.items():
        if basis not in _SCORED:
            notes.append(f"{_count(count)} {basis} in the reward basis, which is not scored.")
    without = sum("DB" not in (task.evaluation_criteria.reward_basis or ["DB"]) for task in tasks)
    if without:
        notes.append(f"{_count(without)} no DB in the reward basis, and the store's state is scored all the same.")
    checked = sum(bool(task.evaluation_criteria.env_assertions) for task in tasks)
    if checked:
        notes.append(f"{_count(checked)} assertions on the env (env_assertions), which are left out.")
    return notes


def _count(number: int) -> str:
    return "1 task has" if number == 1 else f"{number} tasks have"


def _bundle_yaml(read: RetailSource, user: Customer) -> str:
    licence = "MIT" if (read.licence or "").lstrip().startswith("MIT License") else ""
    lines = [
        "name: tau2-retail",
        'version: "1"',
        "description: tau2-bench's retail domain, imported.",
        f'license: "{licence}"',
        "",
        "envs:",
        "  store:",
        "    python: envs/tau2_store.py:Tau2Store",
        "    universe: universes/store.json",
        "",
        "agents:",
        "  clerk:",
        "    kind: played",
        "    system_prompt: prompts/policy.md",
        "    envs: [store]",
    ]
    prompt = "{template: prompts/task.md.j2}"
    if user is Customer.MODEL:
        prompt = "{by: customer, max_turns: 40}"
        lines += [
            "  customer:",
            "    kind: model",
            "    model: customer",
            "    system_prompt: prompts/customer.md.j2",
            "",
            "models:",
            "  customer:",
            "    model: ${CUSTOMER_MODEL}",
            "    base_url: ${CUSTOMER_BASE_URL}",
            "    api_key_env: CUSTOMER_API_KEY",
        ]
    return "\n".join(
        [
            *lines,
            "",
            "reward: db",
            "",
            "task_defaults:",
            f"  prompt: {prompt}",
            "  verify: {id: db, state: store, equals: gold}",
            "",
        ]
    )


def _readme(user: Customer, notes: tuple[str, ...]) -> str:
    lines = [
        "# tau2-bench, retail",
        "",
        "Made by `agent-env import tau2`. The database, the policy, the tasks and the splits are tau2-bench's; the tools are",
        "AgentEnv's own (`envs/store.py`), with tau2-bench's arithmetic (`envs/tau2_store.py`).",
        "",
        "A task's reward is 1 where the store is left as the reference calls leave it and the clerk has said what must be",
        "said, else 0.",
        "",
    ]
    if user is Customer.MODEL:
        lines += [
            "The customer is a model behind an OpenAI-compatible endpoint. Three environment variables say which:",
            "`CUSTOMER_MODEL`, `CUSTOMER_BASE_URL` (up to and with its `/v1`) and `CUSTOMER_API_KEY`.",
            "",
        ]
    return "\n".join([*lines, *(f"- {note}" for note in notes)]).rstrip() + "\n"


def _as_template(text: str) -> str:
    """Return a text so that a template of it gives just that text."""
    if any(mark in text for mark in ("{{", "{%", "{#")):
        return text.replace("{", "{{ '{' }}")
    return text


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
