"""How a model's name is shown: a folder's by its last parts, and whole where it is pointed at or read by a program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from agent_env.cli import root
from agent_env.runs import RunIndex
from agent_env.runs.explorer import make_report
from agent_env.runs.record import short_model

from .conftest import Element, parsed

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]
FOLDER = "/home/someone/work/agents/runs/jobs/shop/model"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (FOLDER, "…/shop/model"),
        (f"{FOLDER}/", "…/shop/model"),
        ("/models/qwen3", "/models/qwen3"),
        ("/model", "/model"),
        ("/", "/"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("a/b/c/d", "a/b/c/d"),
        ("tinker://run/weights/a", "tinker://run/weights/a"),
        ("", ""),
    ],
)
def test_only_the_path_of_a_folder_is_shortened(name: str, shown: str) -> None:
    """What a server calls a model is said as it is."""
    assert short_model(name) == shown


def model_fact(page: Element) -> Element:
    """What a page's facts say of the model."""
    (fact,) = [one for one in page.all("div") if one.all("dt") and one.all("dt")[0].text == "model"]
    return fact.one("dd").one("span")


@pytest.mark.parametrize(("model", "shown"), [(FOLDER, "…/shop/model"), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")])
async def test_every_page_shows_the_last_parts_of_a_folder(
    tell: Tell, look: Look, explorer: httpx.AsyncClient, index: RunIndex, tmp_path: Path, model: str, shown: str
) -> None:
    """And has the whole as its title; the record, the JSON and a condition have the trainer's own name."""
    told = tell("a/train/step-0001", labels={"model": model})
    told.ended(0.5)
    pages = [
        await look(f"/run/{told.run_id}"),
        await look("/training", name="a"),
        parsed(make_report(tmp_path, "a").html),
    ]
    for page in pages:
        fact = model_fact(page)
        assert fact.text == shown
        assert fact.attributes.get("title", shown) == model
        assert (model in page.text) is (model == shown)
    printed = CliRunner().invoke(root, ["show", told.run_id, "--runs", str(tmp_path)]).output
    assert ["model", shown] in [line.split() for line in printed.splitlines()]
    assert (await explorer.get("/training.json?name=a")).json()["model"] == model
    assert (await explorer.get(f"/run/{told.run_id}.json")).json()["run"]["labels"]["model"] == model
    assert index.count(f"model = '{model}'") == 1


async def test_two_models_that_look_alike_are_told_apart_side_by_side(tell: Tell, look: Look) -> None:
    """A row that says that they differ shows how."""
    names = (FOLDER, f"/elsewhere{FOLDER}", "/other/folder/m")
    alike, moved, other = (tell(labels={"model": name}).run_id for name in names)
    for right, shown in ((moved, [*names[:2]]), (other, ["…/shop/model", "…/folder/m"])):
        page = await look("/compare", left=alike, right=right)
        (row,) = [one for one in page.all("tr") if one.all("th") and one.all("th")[0].text == "model"]
        assert [cell.text for cell in row.all("td")] == shown
