"""tau2-bench's retail domain, imported: the real data where it is beside the repository, and a small made-up checkout."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import AgentKind, Bundle, Conversation, Prompt, TextSource, Verify, load_bundle, validate_bundle
from agent_env.envs import EnvSession, open_env
from agent_env.episode import open_episode
from agent_env.episode.rehearsal import rehearse
from agent_env.errors import UsageError
from agent_env.importers.tau2 import import_tau2
from agent_env.universe import MISSING, Lists, differences, open_universe

REPOSITORY = Path(__file__).parents[2]
REAL = Path(os.environ.get("AGENT_ENV_TAU2_RETAIL") or REPOSITORY.parent / "shared" / "data" / "tau2-retail")
needs_real_data = pytest.mark.skipif(
    not (REAL / "tasks.json").is_file(),
    reason="tau2-bench's retail data is not here: name its folder in AGENT_ENV_TAU2_RETAIL",
)
REFUSALS = 18
"""Reference calls of the real tasks that the store refuses, by design."""


def person(number: int, balance: float = 5.0) -> dict[str, Any]:
    """A customer of the made-up checkout."""
    return {
        "user_id": f"kim_oh_{number}",
        "name": {"first_name": "Kim", "last_name": "Oh"},
        "address": {
            "address1": "1 A Street",
            "address2": "",
            "city": "B",
            "country": "C",
            "state": "D",
            "zip": f"0000{number}",
        },
        "email": f"kim{number}@post.example",
        "payment_methods": {
            "wallet_1": {"source": "wallet", "id": "wallet_1"},
            "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": balance},
        },
        "orders": [f"#W{number}"],
    }


def item(product: str, item_id: str, price: float) -> dict[str, Any]:
    """An item of an order there."""
    return {
        "name": product,
        "product_id": f"p{product}",
        "item_id": item_id,
        "price": price,
        "options": {"kind": item_id},
    }


def product(name: str, prices: dict[str, float]) -> dict[str, Any]:
    """A product there."""
    variants = {
        item_id: {"item_id": item_id, "options": {"kind": item_id}, "available": True, "price": price}
        for item_id, price in prices.items()
    }
    return {"name": name, "product_id": f"p{name}", "variants": variants}


def entry(task_id: str, *actions: tuple[str, dict[str, Any]], **criteria: Any) -> dict[str, Any]:
    """A task there."""
    return {
        "id": task_id,
        "description": {"purpose": None},
        "user_scenario": {
            "persona": None,
            "instructions": {
                "task_instructions": "You are in a hurry.",
                "domain": "retail",
                "reason_for_call": f"You want {task_id}.",
                "known_info": "You are Kim Oh.",
                "unknown_info": None,
            },
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [
                {"action_id": f"{task_id}_{index}", "name": name, "arguments": arguments, "info": None}
                for index, (name, arguments) in enumerate(actions)
            ],
            "communicate_info": [],
            "nl_assertions": None,
            "reward_basis": ["DB", "NL_ASSERTION"],
            **criteria,
        },
    }


REPLACE = {"order_id": "#W1", "item_ids": ["a1", "b1"], "new_item_ids": ["a2", "b2"], "payment_method_id": "wallet_1"}
CANCEL = ("cancel_pending_order", {"order_id": "#W2", "reason": "no longer needed"})


def checkout() -> dict[str, Any]:
    """The files of the made-up checkout's retail folder, as JSON values."""
    order = {
        "order_id": "#W1",
        "user_id": "kim_oh_1",
        "address": person(1)["address"],
        "items": [item("A", "a1", 10.1), item("B", "b1", 20.2)],
        "status": "pending",
        "fulfillments": [],
        "payment_history": [{"transaction_type": "payment", "amount": 30.3, "payment_method_id": "wallet_1"}],
    }
    return {
        "db.json": {
            "products": {"pA": product("A", {"a1": 10.1, "a2": 10.15}), "pB": product("B", {"b1": 20.2, "b2": 20.35})},
            "users": {"kim_oh_1": person(1), "kim_oh_2": person(2)},
            "orders": {"#W1": order, "#W2": {**order, "order_id": "#W2", "user_id": "kim_oh_2"}},
        },
        "tasks.json": [
            entry("0", ("modify_pending_order_items", REPLACE)),
            entry("1", CANCEL, communicate_info=["30.3", "wallet"], nl_assertions=["Agent says 30.3."]),
            entry("2"),
        ],
        "split_tasks.json": {"train": ["0", "1"], "test": ["2"], "base": ["0", "1", "2"]},
        "policy.md": "# The desk\n\nBe {{ kind }}, and {% never %} rude.\n",
    }


Write = Callable[[dict[str, Any]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a checkout: what is no text is written as JSON, and a file that is None is left out."""

    def written(files: dict[str, Any]) -> Path:
        folder = tmp_path / "tau2" / "data" / "tau2" / "domains" / "retail"
        folder.mkdir(parents=True)
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            elif content is not None:
                (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / "tau2"

    return written


@asynccontextmanager
async def opened(bundle: Bundle) -> AsyncGenerator[EnvSession]:
    """The imported store, open on the first task."""
    async with open_env(bundle.envs["store"], task=next(iter(bundle.tasks.values()))) as session:
        yield session


def changes(before: Any, after: Any) -> list[list[Any]]:
    """Where two states differ, as the reference effects have it: a list as a whole, and None for what is not there."""
    return [
        [change.path, *(None if side is MISSING else side for side in (change.before, change.after))]
        for change in differences(before, after, lists=Lists.WHOLE)
    ]


def text_of_prompt(bundle: Bundle, task_id: str) -> str:
    """What a task's first turn asks."""
    task = bundle.task(task_id)
    source = next(step.source for step in task.steps if isinstance(step, Prompt))
    assert isinstance(source, TextSource)
    return source.render(params=task.params, task_id=task.id, tags=task.tags)


# What an import makes.


def test_a_checkout_becomes_a_bundle_without_a_problem(write: Write, tmp_path: Path) -> None:
    """Its tasks with their ids, its splits as evals, and what was made is said."""
    made = import_tau2(write(checkout()), tmp_path / "new" / "bundle")
    assert (made.root, made.tasks) == (tmp_path / "new" / "bundle", 3)
    assert made.evals == {"all": 3, "train": 2, "test": 1, "base": 3}
    assert validate_bundle(made.root) == []
    bundle = load_bundle(made.root)
    assert [task.id for task in bundle.select("train")] == ["0", "1"]
    assert bundle.task("2").tags == ("test", "base")
    assert sorted(path.name for path in made.root.parent.iterdir()) == ["bundle"]


def test_the_retail_folder_itself_will_do(write: Write, tmp_path: Path) -> None:
    """The four files need not lie in a whole checkout."""
    folder = write(checkout()) / "data" / "tau2" / "domains" / "retail"
    assert import_tau2(folder, tmp_path / "bundle").tasks == 3


def test_an_empty_folder_may_be_the_target(write: Write, tmp_path: Path) -> None:
    """It becomes the bundle."""
    (tmp_path / "bundle").mkdir()
    import_tau2(write(checkout()), tmp_path / "bundle")
    assert load_bundle(tmp_path / "bundle").name == "tau2-retail"


def test_a_task_is_one_turn_with_the_customers_whole_brief(write: Write, tmp_path: Path) -> None:
    """What is not known is left out; nothing of what is scored is said."""
    bundle = load_bundle(import_tau2(write(checkout()), tmp_path / "bundle").root)
    text = text_of_prompt(bundle, "1")
    assert "Why they write: You want 1.\n" in text
    assert "What they know: You are Kim Oh.\n" in text
    assert "How they decide and behave: You are in a hurry." in text
    assert "do not know" not in text
    assert "30.3" not in text
    assert "\n\n\n" not in text


def test_a_task_is_scored_by_the_state_and_by_what_must_be_said(write: Write, tmp_path: Path) -> None:
    """The reference calls are its gold, and the gold reply says it; assertions for a judge are kept in params."""
    made = import_tau2(write(checkout()), tmp_path / "bundle")
    bundle = load_bundle(made.root)
    steps = {step.id: step for step in bundle.task("1").steps if isinstance(step, Verify)}
    assert list(steps) == ["db", "told"]
    assert steps["told"].required
    (turn,) = bundle.task("1").gold or ()
    assert [(call.tool, dict(call.arguments)) for call in turn.calls] == [CANCEL]
    assert turn.reply is not None
    assert "30.3" in turn.reply
    assert "wallet" in turn.reply
    assert bundle.task("1").params["nl_assertions"] == ["Agent says 30.3."]
    assert [step.id for step in bundle.task("0").steps if isinstance(step, Verify)] == ["db"]
    assert len(made.notes) == 1
    assert made.notes[0].startswith("1 task has assertions in plain language")
    assert made.notes[0] in (made.root / "README.md").read_text()


def test_what_is_scored_in_another_way_is_noted(write: Write, tmp_path: Path) -> None:
    """Parts of the reward basis that nothing here stands for, a basis without the state, assertions on the env."""
    files = checkout()
    files["tasks.json"] += [entry("3", reward_basis=["ACTION"], env_assertions=[{"func_name": "is_happy"}])]
    notes = import_tau2(write(files), tmp_path / "bundle").notes
    assert "1 task has ACTION in the reward basis, which is not scored." in notes
    assert any("no DB in the reward basis" in note for note in notes)
    assert any("env_assertions" in note for note in notes)


def test_the_policy_is_the_system_prompt_word_for_word(write: Write, tmp_path: Path) -> None:
    """Also where it has what a template would take for its own."""
    bundle = load_bundle(import_tau2(write(checkout()), tmp_path / "bundle").root)
    prompt = bundle.agents["clerk"].system_prompt
    assert prompt is not None
    assert prompt.render(params={}, task_id="0", tags=()).strip() == checkout()["policy.md"].strip()


def test_the_licence_goes_with_the_data(write: Write, tmp_path: Path) -> None:
    """Beside the checkout's root or beside the data."""
    source = write(checkout())
    (source / "LICENSE").write_text("MIT License\n\nCopyright Somebody\n")
    root = import_tau2(source, tmp_path / "bundle").root
    assert (root / "LICENSE").read_text().endswith("Somebody\n")
    assert load_bundle(root).license == "MIT"


def test_with_a_model_as_the_customer_a_task_is_a_conversation(write: Write, tmp_path: Path) -> None:
    """The model is told the brief; which one it is, the environment says."""
    root = import_tau2(write(checkout()), tmp_path / "bundle", user="model").root
    bundle = load_bundle(root)
    step = next(step for step in bundle.task("1").steps if isinstance(step, Prompt))
    assert isinstance(step.source, Conversation)
    customer = bundle.agents[step.source.by]
    assert (customer.kind, customer.envs) == (AgentKind.MODEL, ())
    assert customer.model is not None
    assert "CUSTOMER_MODEL" in customer.model.model
    assert customer.system_prompt is not None
    task = bundle.task("1")
    told = customer.system_prompt.render(params=task.params, task_id=task.id, tags=task.tags)
    assert "Why you write: You want 1.\n" in told
    assert customer.stop in told
    assert validate_bundle(root) == []
    assert "`CUSTOMER_BASE_URL`" in (root / "README.md").read_text()


def test_the_package_has_the_tools_of_the_retail_bundle() -> None:
    """They are written once."""
    carried = REPOSITORY / "src" / "agent_env" / "importers" / "tau2" / "retail" / "store.py"
    assert carried.read_bytes() == (REPOSITORY / "bundles" / "retail" / "envs" / "store.py").read_bytes()


async def test_replaced_items_take_the_last_variant_and_the_sum_is_not_rounded(write: Write, tmp_path: Path) -> None:
    """As tau2-bench's reference effects have it; the retail bundle does what a shop would do."""
    bundle = load_bundle(import_tau2(write(checkout()), tmp_path / "bundle").root)
    async with opened(bundle) as store:
        answer = json.loads((await store.call("modify_pending_order_items", REPLACE)).text)
    assert [(each["item_id"], each["price"], each["options"]) for each in answer["items"]] == [
        ("a2", 20.35, {"kind": "b2"}),
        ("b2", 20.35, {"kind": "b2"}),
    ]
    assert answer["payment_history"][1]["amount"] == (10.15 - 10.1) + (20.35 - 20.2) != 0.2


# What is refused, with nothing written.


def changed(files: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The files with one value replaced; a value of `...` is removed."""
    name, *path = place.split("|")
    if not path:
        return {**files, name: value}
    at = files[name]
    for key in path[:-1]:
        at = at[int(key)] if isinstance(at, list) else at[key]
    last: Any = int(path[-1]) if isinstance(at, list) else path[-1]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return files


ACTION = "tasks.json|0|evaluation_criteria|actions|0"
BAD = [
    (
        "tasks.json",
        None,
        "tasks.json: there is no such file; the retail data is db.json, tasks.json, split_tasks.json, pol",
    ),
    ("db.json", "{", "db.json:1: it is not JSON: Expecting property name enclosed in double quotes at column 2"),
    ("db.json", '{"products": {}, "products": {}}', "db.json: the key 'products' is there twice"),
    ("db.json", "[" * 100_000, "db.json: it is nested too deeply"),
    ("db.json", '{"products": NaN}', "db.json: a number is too large or not finite"),
    ("db.json", b"\xff", "db.json: it is not UTF-8 text at byte 0"),
    ("db.json", [], "db.json: input should be a valid dictionary"),
    (
        "db.json",
        {"flights": {}},
        "db.json: products: field required (and 2 more like this): is it the database of tau2-bench's",
    ),
    ("db.json|users|kim_oh_1|email", ..., "db.json: users.kim_oh_1.email: field required"),
    ("db.json|users|kim_oh_1|payment_methods|gift_card_1|balance", ..., "gift_card_1: a gift card needs a balance"),
    ("db.json|orders|#W1|items|0|price", "10", "db.json: orders.#W1.items.0.price: input should be a valid number"),
    (
        "db.json|products|pA|variants|a1|available",
        1,
        "db.json: products.pA.variants.a1.available: input should be a valid",
    ),
    ("tasks.json", {}, "tasks.json: it is no list of tasks"),
    ("tasks.json", [], "tasks.json: it is no list of tasks"),
    ("tasks.json|1", "x", "tasks.json: item 1: input should be"),
    ("tasks.json|1|id", ..., "tasks.json: item 1: id: field required"),
    ("tasks.json|1|id", 7, "tasks.json: item 1: id: input should be a valid string"),
    ("tasks.json|1|id", "a b", "tasks.json: task 'a b': id: string should match pattern"),
    ("tasks.json|1|id", "0", "tasks.json: item 1: the id '0' is taken by an item before it"),
    (
        "tasks.json|1|user_scenario|instructions|reason_for_call",
        ...,
        "task '1': user_scenario.instructions.reason_for_call: ",
    ),
    ("tasks.json|1|user_scenario|instructions", "Ask.", "task '1': user_scenario.instructions: input should be"),
    ("tasks.json|1|evaluation_criteria", ..., "tasks.json: task '1': evaluation_criteria: field required"),
    (
        "tasks.json|1|initial_state",
        {"x": 1},
        "tasks.json: task '1': initial_state: a state of a task's own cannot be imported",
    ),
    ("tasks.json|1|evaluation_criteria|communicate_info|0", " ", "communicate_info.0: the text is empty"),
    (
        "tasks.json|1|evaluation_criteria|communicate_info|0",
        "\ud800",
        "tasks.json: a text holds half of a surrogate pair",
    ),
    (
        f"{ACTION}|name",
        "modify_pending_order_item",
        "actions.0: there is no tool 'modify_pending_order_item', did you mean",
    ),
    (
        f"{ACTION}|name",
        "book_flight",
        "tasks.json: task '0': evaluation_criteria.actions.0: there is no tool 'book_flight', wr",
    ),
    (f"{ACTION}|arguments|order_id", ..., "actions.0: modify_pending_order_items needs 'order_id'"),
    (
        f"{ACTION}|arguments|order",
        "#W1",
        "actions.0: modify_pending_order_items takes no 'order', did you mean 'order_id'?",
    ),
    (f"{ACTION}|arguments|order_id", 1, "actions.0: modify_pending_order_items takes a text as 'order_id'"),
    (f"{ACTION}|arguments|item_ids", "a1", "actions.0: modify_pending_order_items takes a list of texts as 'item_ids'"),
    (f"{ACTION}|arguments", [], "tasks.json: task '0': evaluation_criteria.actions.0.arguments: input should be"),
    (
        f"{ACTION}|requestor",
        "user",
        "actions.0: requestor: calls of 'user' cannot be imported, only those of 'assistant'",
    ),
    (
        "split_tasks.json",
        [],
        "split_tasks.json: input should be a valid dictionary: it holds lists of task ids by split",
    ),
    ("split_tasks.json|train", "0", "split_tasks.json: train: input should be a valid list"),
    (
        "split_tasks.json|train|0",
        "9",
        "split_tasks.json: the split 'train' has task '9', which is not there, write one of 0, 1, 2",
    ),
    ("split_tasks.json|train|0", "1", "split_tasks.json: the split 'train' has task '1' 2 times, once is right"),
    (
        "split_tasks.json|../x",
        ["1"],
        "split_tasks.json: the split '../x' cannot be an eval: use letters, digits, - and _",
    ),
    ("split_tasks.json|", ["1"], "split_tasks.json: the split '' cannot be an eval"),
    ("split_tasks.json|all", ["1"], "split_tasks.json: the split 'all' is not all tasks, as the eval of this name is"),
    ("policy.md", " \n", "policy.md: the file is empty"),
]


@pytest.mark.parametrize(("place", "value", "said"), BAD, ids=[f"{index}-{each[0]}" for index, each in enumerate(BAD)])
def test_bad_data_is_refused_in_one_line_and_nothing_is_written(
    write: Write, tmp_path: Path, place: str, value: Any, said: str
) -> None:
    """The line names the file and the place in it."""
    source = write(changed(copy.deepcopy(checkout()), place, value))
    with pytest.raises(UsageError) as caught:
        import_tau2(source, tmp_path / "bundle")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(source / "data" / "tau2" / "domains" / "retail") in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tau2"]


def test_a_split_without_a_task_is_no_eval_and_one_with_all_is_called_all(write: Write, tmp_path: Path) -> None:
    """Neither could be written as an eval of its own."""
    files = checkout()
    files["split_tasks.json"] = {"none": [], "all": ["2", "1", "0"]}
    assert import_tau2(write(files), tmp_path / "bundle").evals == {"all": 3}


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    """A folder that is not there, a file, a folder of something else."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, said in (
        ("nowhere", "there is no such folder"),
        ("file", "it is no folder"),
        ("empty", "neither data/tau2/"),
    ):
        with pytest.raises(UsageError, match=said):
            import_tau2(tmp_path / name, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("kind", ["folder", "file", "symlink"])
def test_what_is_at_the_target_stays_there(write: Write, tmp_path: Path, kind: str) -> None:
    """A bundle is never written over anything."""
    target = tmp_path / "bundle"
    if kind == "folder":
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is there already: name a folder that is not"):
        import_tau2(write(checkout()), target)
    assert (
        target.is_symlink()
        if kind == "symlink"
        else "mine" in ((target / "mine.txt").read_text() if kind == "folder" else target.read_text())
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "tau2"]


def test_a_target_where_no_folder_can_be_is_refused(write: Write, tmp_path: Path) -> None:
    """Such as one inside a file."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="the folder cannot be made"):
        import_tau2(write(checkout()), tmp_path / "file" / "bundle")


# The real data.


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """tau2-bench's retail domain, imported."""
    return load_bundle(import_tau2(REAL, tmp_path_factory.mktemp("tau2") / "bundle").root)


def real_file(name: str) -> Any:
    """One of the real files."""
    return json.loads((REAL / name).read_text())


@needs_real_data
def test_all_real_tasks_validate_with_their_splits(real: Bundle) -> None:
    """114 tasks, 74 of them to train on."""
    assert validate_bundle(real.root) == []
    assert {name: len(ids) for name, ids in real.evals.items()} == {"all": 114, "base": 114, "train": 74, "test": 40}
    splits = {name: set(ids) for name, ids in real_file("split_tasks.json").items()}
    assert {name: set(ids) for name, ids in real.evals.items() if name != "all"} == splits


@needs_real_data
async def test_the_tools_are_the_reference_ones_by_name_parameter_and_type(real: Bundle) -> None:
    """Descriptions aside, which are our own."""

    def typed(schema: dict[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = schema["properties"]
        return {
            name: {key: value for key, value in each.items() if key not in ("title", "description")}
            for name, each in properties.items()
        }

    wanted = {each["function"]["name"]: each["function"]["parameters"] for each in real_file("tool_schemas.json")}
    async with opened(real) as store:
        found = {tool.name: dict(tool.parameters) for tool in store.tools}
    assert {name: typed(schema) for name, schema in found.items()} == {
        name: typed(schema) for name, schema in wanted.items()
    }
    assert {name: schema.get("required", []) for name, schema in found.items()} == {
        name: schema.get("required", []) for name, schema in wanted.items()
    }


@needs_real_data
async def test_the_reference_calls_leave_the_reference_effects_with_the_same_answers(real: Bundle) -> None:
    """Of every train task, through the Episode API; over all tasks as many are refused as are by design."""
    effects = real_file("gold_effects_train.json")
    refused = 0
    for task in real.tasks.values():
        (gold,) = task.gold or ()
        async with open_universe(real.envs["store"].universe) as start, open_episode(task) as episode:
            turn = await episode.start()
            assert turn is not None
            answers = [await turn.call(call.tool, call.arguments) for call in gold.calls]
            left = changes(start.state, episode.view.state("store"))
        refused += sum(answer.is_error for answer in answers)
        if task.id not in effects:
            continue
        assert sorted(left) == sorted(effects[task.id]["changes"]), task.id
        for call, answer, wanted in zip(gold.calls, answers, effects[task.id]["answers"], strict=True):
            assert (call.tool, not answer.is_error) == (wanted["name"], wanted["ok"]), task.id
            if wanted["ok"]:
                value = answer.text if isinstance(wanted["answer"], str) else json.loads(answer.text)
                assert value == wanted["answer"], task.id
    assert len(effects) == 74
    assert refused == REFUSALS


@needs_real_data
async def test_the_reference_calls_score_one_and_doing_nothing_zero_where_anything_is_to_be_done(real: Bundle) -> None:
    """Where nothing changes and nothing must be said, doing nothing is right."""
    effects = real_file("gold_effects_train.json")
    found = await rehearse(real)
    assert (found.played, found.problems) == (114, [])
    idle = {
        task.id
        for task in real.select("train")
        if not effects[task.id]["changes"] and not any(step.id == "told" for step in task.steps)
    }
    assert set(found.constant) & effects.keys() == idle
    writes = ("cancel_", "modify_", "return_", "exchange_")
    for task_id in set(found.constant) - idle:
        (gold,) = real.task(task_id).gold or ()
        assert not any(call.tool.startswith(writes) for call in gold.calls), task_id


@needs_real_data
async def test_doing_nothing_leaves_the_real_store_as_it_was(real: Bundle) -> None:
    """A private copy of the database, value for value."""
    async with open_episode(real.task("0")) as episode:
        assert await episode.start() is not None
        assert episode.view.state("store") == real_file("db.json")


@needs_real_data
def test_nothing_of_the_real_data_is_in_the_retail_bundle() -> None:
    """Our shop's customers, orders, products and places are its own."""
    theirs, ours = (
        real_file("db.json"),
        json.loads((REPOSITORY / "bundles" / "retail" / "universes" / "store.json").read_text()),
    )

    def names(store: Any) -> set[str]:
        found = {*store["products"], *store["users"], *store["orders"]}
        for user in store["users"].values():
            found |= {user["email"], *user["name"].values(), *user["payment_methods"]}
            found |= {user["address"]["address1"], user["address"]["city"], user["address"]["country"]}
        for each in store["products"].values():
            found |= {each["name"], *each["variants"]}
        return found

    assert not names(theirs) & names(ours)
