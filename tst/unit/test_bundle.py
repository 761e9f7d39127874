"""Reading a bundle that is in order."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.bundle import (
    AddSkills,
    DeployAgent,
    DeployEnv,
    Prompt,
    PythonRef,
    RunPython,
    UniverseKind,
    Verify,
    json_schemas,
    load_bundle,
    validate_bundle,
)
from agent_env.errors import BundleError, Problem, UsageError

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]


def test_a_short_task_deploys_prompts_and_verifies(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """The short form has the same steps as the long form would."""
    bundle = load_bundle(write_bundle(small_bundle))
    kinds = [(type(step), step.id) for step in bundle.task("a").steps]
    assert kinds == [(DeployEnv, "deploy_env"), (DeployAgent, "deploy_agent"), (Prompt, "prompt"), (Verify, "sold")]


def test_a_list_of_prompts_is_a_turn_each(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Default step ids are numbered from the second one on."""
    task = (
        "id: a\nprompt: [One., {text: Two.}]\nverify:\n- {python: verifiers/sold.py}\n- {python: verifiers/sold.py}\n"
    )
    steps = load_bundle(write_bundle({**small_bundle, "tasks/a.yaml": task})).task("a").steps
    assert [step.id for step in steps[2:]] == ["prompt", "prompt-2", "sold", "sold-2"]
    assert [step.source.text for step in steps if isinstance(step, Prompt)] == ["One.", "Two."]


def test_a_long_task_keeps_its_order_and_settings(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Every kind of step is read with its common keys."""
    task = """\
id: a
steps:
  - deploy_env: store
    timeout_s: 5
  - deploy_agent: clerk
  - run: {python: "verifiers/sold.py:score"}
    id: prepare
    fail_task_on_error: false
  - prompt: {agent: clerk, text: Sell.}
  - verify: {python: "verifiers/sold.py:score"}
    id: early
  - prompt: Sell more.
  - verify: {python: verifiers/sold.py}
"""
    steps = load_bundle(write_bundle({**small_bundle, "tasks/a.yaml": task})).task("a").steps
    assert [step.id for step in steps] == [
        *("deploy_env", "deploy_agent", "prepare", "prompt", "early", "prompt-2", "sold"),
    ]
    assert (steps[0].timeout_s, steps[1].timeout_s) == (5, None)
    assert [step.id for step in steps if not step.fail_task_on_error] == ["prepare"]
    assert isinstance(steps[2], RunPython)
    assert str(steps[2].target) == "verifiers/sold.py:score"


def test_skills_are_given_to_the_played_agent(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """An `add_skills` step names folders under `skills/`, each once."""
    task = """\
id: a
steps:
  - deploy_env: store
  - deploy_agent: clerk
  - add_skills: [refunds, returns, refunds]
  - prompt: Sell.
  - verify: {python: verifiers/sold.py}
"""
    skills = {f"skills/{name}/SKILL.md": "How it is done.\n" for name in ("refunds", "returns")}
    root = write_bundle({**small_bundle, **skills, "tasks/a.yaml": task})
    assert validate_bundle(root) == []
    step = load_bundle(root).task("a").steps[2]
    assert isinstance(step, AddSkills)
    assert (step.id, step.agent) == ("add_skills", "clerk")
    assert [skill.name for skill in step.skills] == ["refunds", "returns"]


def test_a_task_may_prompt_another_agent_than_the_played_one(
    small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """It can be played by hand, and a trainer leaves it out."""
    agents = "agents:\n  clerk: {}\n  boss: {envs: []}\nplayed: clerk\n"
    task = "id: a\nsteps:\n- deploy_agent: boss\n- prompt: {agent: boss, text: Go.}\n- verify: {python: verifiers/sold.py}\n"
    header = small_bundle["bundle.yaml"].split("agents:")[0] + agents
    root = write_bundle({**small_bundle, "bundle.yaml": header, "tasks/a.yaml": task})
    assert validate_bundle(root) == []


def test_a_task_says_which_models_playing_it_asks(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Those of agents that are prompted or lead, and of judges, each once; not one that is deployed and never asked."""
    named = ("user", "boss", "idle", "judge")
    models = "".join(f"  {name}: {{model: {name}, base_url: 'http://127.0.0.1:1/v1'}}\n" for name in named)
    agents = "".join(f"  {name}: {{kind: model, model: {name}}}\n" for name in named[:3])
    header = small_bundle["bundle.yaml"].split("agents:")[0] + (
        f"models:\n{models}agents:\n  clerk: {{envs: []}}\n{agents}played: clerk\n"
    )
    deploy = "".join(f"- deploy_agent: {name}\n" for name in ("clerk", "user", "boss", "idle"))
    task = (
        f"id: a\nsteps:\n{deploy}- prompt: {{agent: clerk, by: user}}\n- prompt: {{agent: boss, text: Go.}}\n"
        "- prompt: {agent: boss, text: Go on.}\n"
        "- verify: {judge: {model: judge, prompt: 'Good?'}}\n  id: good\n"
    )
    bundle = load_bundle(write_bundle({**small_bundle, "bundle.yaml": header, "tasks/a.yaml": task}))
    assert [model.model for model in bundle.task("a").models(judges=True)] == ["user", "boss", "judge"]
    assert [model.model for model in bundle.task("a").models(judges=False)] == ["user", "boss"]
    assert all(task.models(judges=True) == () for task in bundle.tasks.values() if task.id != "a")


def test_task_defaults_are_for_what_a_short_task_does_not_say(
    small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """A row with params alone is a task; what a task says itself wins."""
    header = small_bundle["bundle.yaml"] + (
        "task_defaults:\n"
        "  prompt: {template: prompts/day.md.j2}\n"
        "  verify: {id: saving, python: verifiers/sold.py}\n"
        "  fail_task_on_error: false\n"
    )
    rows = '{"id": "d1", "params": {"day": 1}}\n\n{"id": "d2", "prompt": "Other.", "fail_task_on_error": true}\n'
    files = {"bundle.yaml": header, "prompts/day.md.j2": "Day {{ params.day }}.\n", "tasks/b.jsonl": rows}
    bundle = load_bundle(write_bundle({**small_bundle, **files, "evals/test.yaml": None}))
    first, second = bundle.task("d1"), bundle.task("d2")
    assert first.steps[-1].id == second.steps[-1].id == "saving"
    assert [step.fail_task_on_error for step in first.steps] == [False] * 4
    assert all(step.fail_task_on_error for step in second.steps)
    prompt = first.steps[2]
    assert isinstance(prompt, Prompt)
    assert prompt.source.render(params=first.params, task_id=first.id, tags=first.tags) == "Day 1."
    assert (second.path.as_posix(), second.line) == ("tasks/b.jsonl", 3)


def test_what_a_bundle_says_of_itself(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Names, envs, agents, reward and players are read, and the folder or its bundle.yaml names it."""
    header = small_bundle["bundle.yaml"] + "reward: {sold: 0.5}\nplayers: {best: 'verifiers/sold.py:score'}\n"
    root = write_bundle({**small_bundle, "bundle.yaml": header})
    bundle = load_bundle(root / "bundle.yaml")
    assert (bundle.name, bundle.version, bundle.played) == ("shop", "1.0", "clerk")
    assert bundle.agents["clerk"].envs == ("store",)
    universe = bundle.envs["store"].universe
    assert universe is not None
    assert (universe.kind, universe.path) == (UniverseKind.JSON, root.resolve() / "universes/store.json")
    assert bundle.reward is not None
    assert bundle.reward.weights == {"sold": 0.5}
    assert bundle.players["best"].name == "score"


def test_a_bundle_needs_neither_envs_nor_agents(write_bundle: WriteBundle) -> None:
    """A bundle of questions: one played agent is there by itself, without tools."""
    task = '{"id": "q", "prompt": "2 + 2?", "verify": {"python": "verifiers/four.py"}}'
    files = {"bundle.yaml": "name: sums\n", "tasks/q.jsonl": task, "verifiers/four.py": "def score(e): return 1\n"}
    root = write_bundle(files)
    assert validate_bundle(root) == []
    bundle = load_bundle(root)
    assert (bundle.played, bundle.agents["agent"].envs) == ("agent", ())


def test_evals_select_by_id_glob_and_tag(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Any of the lists selects; the order is the bundle's; `all` is there by itself."""
    rows = "".join(f'{{"id": "d-{n}", "tags": ["{"odd" if n % 2 else "even"}"], "prompt": "x"}}\n' for n in range(4))
    files = {
        "tasks/b.jsonl": rows,
        "evals/test.yaml": "tasks: [d-3, 'd-[12]']\n",
        "evals/tags.yml": "tags: [even, easy]\n",
    }
    bundle = load_bundle(write_bundle({**small_bundle, **files}))
    assert bundle.evals["test"] == ("d-1", "d-2", "d-3")
    assert [task.id for task in bundle.select("tags")] == ["a", "d-0", "d-2"]
    assert bundle.evals["all"] == ("a", "d-0", "d-1", "d-2", "d-3")


def test_a_name_that_is_not_there_gets_the_closest(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Asking for a wrong task or eval is the caller's error."""
    bundle = load_bundle(write_bundle(small_bundle))
    with pytest.raises(UsageError, match=r"^shop has no task 'c', write one of a, b$"):
        bundle.task("c")
    with pytest.raises(UsageError, match=r"^shop has no eval 'tset', did you mean 'test'\?$"):
        bundle.select("tset")


def test_no_bundle_at_a_path_is_a_usage_error(tmp_path: Path, write_bundle: WriteBundle) -> None:
    """Nothing there, a file, a folder without bundle.yaml, and the folder above a bundle each say what to do."""
    with pytest.raises(UsageError, match="there is no such folder"):
        load_bundle(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"it is a file, name the folder that has bundle.yaml"):
        load_bundle(tmp_path / "file")
    with pytest.raises(UsageError, match=r"it has no bundle\.yaml, add one, or name the bundle's folder"):
        load_bundle(tmp_path)
    root = write_bundle({"bundle.yaml": "name: x\n"})
    with pytest.raises(UsageError, match=f"did you mean {root}"):
        validate_bundle(tmp_path)
    (root / "bundle.yaml").rename(root / "bundle.yml")
    with pytest.raises(UsageError, match=r"rename bundle.yml to bundle.yaml"):
        load_bundle(root)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("no", "no"), ("on", "on"), ("true", True), ("~", None), ("01912", "01912"), ("0x1F", 31), ("0o17", 15)),
        *(("1_000", "1_000"), ("12:30", "12:30"), ("2024-01-01", "2024-01-01"), ("1e5", 1e5), ("-1.5", -1.5)),
        *((".5", 0.5), ("1.", 1.0), ("+3", 3), ("'3'", "3"), ("[1, [2]]", [1, [2]]), ("é", "é")),
    ],
)
def test_yaml_values_are_what_they_look_like(
    written: str, value: object, small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """No word but true and false is a boolean, nothing is a date or base 60, a leading zero is kept."""
    task = f"id: a\nparams: {{x: {written}}}\nprompt: x\nverify: {{python: verifiers/sold.py}}\n"
    found = load_bundle(write_bundle({**small_bundle, "tasks/a.yaml": task})).task("a").params["x"]
    assert found == value
    assert type(found) is type(value)


def test_byte_order_mark_and_windows_lines_are_read(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Files from an editor on Windows are the same bundle, with the same lines."""
    files = {name: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() for name, text in small_bundle.items()}
    root = write_bundle(files)
    assert validate_bundle(root) == []
    (root / "tasks/a.yaml").write_bytes(files["tasks/a.yaml"] + b"parms: 1\r\n")
    assert str(validate_bundle(root)[0]).startswith("tasks/a.yaml:6: unknown key 'parms'")


def test_templates_see_the_tasks_own_words(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """`params.items` is the task's, blocks leave no blank line, other files can be included."""
    template = (
        "{% include 'prompts/policy.md' %}\n{{ task_id }} {{ tags | join(',') }}\n"
        "{% for item in params.items %}\n- {{ item }}\n{% endfor %}\nEnd.\n"
    )
    task = (
        "id: a\ntags: [x, y]\nparams: {items: [1, two]}\nprompt: prompts/p.md.j2\nverify: {python: verifiers/sold.py}\n"
    )
    root = write_bundle({**small_bundle, "tasks/a.yaml": task, "prompts/p.md.j2": template})
    assert validate_bundle(root) == []
    found = load_bundle(root).task("a")
    prompt = found.steps[2]
    assert isinstance(prompt, Prompt)
    text = prompt.source.render(params=found.params, task_id=found.id, tags=found.tags)
    assert text == "You keep the store.\na x,y\n- 1\n- two\nEnd."


def test_templates_cannot_reach_python(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """The sandbox keeps a template from changing what it is given and from Python's insides."""
    for text in ("{{ params.count.__class__.__mro__ }}", "{{ params.update({}) }}", "{{ tags.append(1) }}"):
        task = f"id: a\nparams: {{count: 1}}\nprompt: '{text}'\nverify: {{python: verifiers/sold.py}}\n"
        (problem,) = validate_bundle(write_bundle({**small_bundle, "tasks/a.yaml": task}))
        assert problem.line == 3


def test_a_text_that_cannot_be_written_names_the_task(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """What an episode raises has the place and the way out that validation prints."""
    task = "id: a\nprompt: |\n  One.\n  {{ params.two }}\nverify: {python: verifiers/sold.py}\n"
    step = load_bundle(write_bundle({**small_bundle, "tasks/a.yaml": task})).task("a").steps[2]
    assert isinstance(step, Prompt)
    with pytest.raises(BundleError) as caught:
        step.source.render(params={"tow": 2}, task_id="a", tags=())
    what = "task 'a': the template uses the key 'two', which is not there"
    assert str(caught.value) == f"tasks/a.yaml:2: {what}, did you mean 'tow'?"
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_bundle_python_is_imported_once_and_apart(
    small_bundle: dict[str, str], write_bundle: WriteBundle, tmp_path: Path
) -> None:
    """Two references share one module, neighbours are imported relative to the file, another bundle has its own."""
    files = {
        **small_bundle,
        "verifiers/sold.py": "from .rules import PRICE\nfrom ..lib.more import MORE\ncalls = []\ndef score(e): return 1\n",
        "verifiers/rules.py": "PRICE = 3\n",
        "lib/more.py": "MORE = 4\n",
    }
    root = write_bundle(files).resolve()
    calls = PythonRef(root, Path("verifiers/sold.py"), "calls").load()
    assert PythonRef(root, Path("verifiers/sold.py"), "calls").load() is calls
    assert PythonRef(root, Path("verifiers/sold.py"), "PRICE").load() == 3
    assert PythonRef(root, Path("verifiers/rules.py"), "PRICE").load() == 3
    other = root.rename(tmp_path / "other")
    assert PythonRef(other, Path("verifiers/sold.py"), "calls").load() is not calls


def test_a_task_gives_copies_of_its_params(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """What is done to a copy is not done to the task."""
    task = load_bundle(write_bundle(small_bundle)).task("a")
    copy = task.copy_params()
    copy["count"] = 99
    assert task.params == {"count": 3}


def test_gold_is_read_turn_by_turn(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """A reference solution has calls, with arguments that fit the tools, and replies."""
    gold = "gold:\n- calls: [{tool: sell, arguments: {count: 3}}]\n  reply: Sold.\n"
    root = write_bundle({**small_bundle, "tasks/a.yaml": small_bundle["tasks/a.yaml"] + gold})
    assert validate_bundle(root) == []
    turns = load_bundle(root).task("a").gold
    assert turns is not None
    assert (turns[0].calls[0].tool, turns[0].calls[0].arguments, turns[0].reply) == ("sell", {"count": 3}, "Sold.")


def test_the_json_schemas_fit_the_files(small_bundle: dict[str, str]) -> None:
    """An editor that uses the exported schemas accepts what the loader accepts, and refuses an unknown key."""
    schemas = json_schemas()
    for name, kind in {"bundle.yaml": "bundle", "tasks/a.yaml": "task", "evals/test.yaml": "eval"}.items():
        jsonschema.Draft202012Validator.check_schema(schemas[kind])
        data = yaml.safe_load(small_bundle[name])
        jsonschema.validate(data, schemas[kind])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, "colour": 1}, schemas[kind])
    long_form = {"id": "a", "steps": [{"deploy_env": "store"}, {"prompt": {"text": "x"}, "timeout_s": 3}]}
    jsonschema.validate(long_form, schemas["task"])
    assert json.loads(json.dumps(schemas)) == schemas


def test_problems_are_values(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """A problem has its parts, so that another program can show it in its own way."""
    root = write_bundle({**small_bundle, "evals/test.yaml": "tasks: [c]\n"})
    assert validate_bundle(root) == [
        Problem(
            path=Path("evals/test.yaml"),
            line=1,
            what="eval 'test' names task 'c', which is not there",
            fix="write one of a, b",
        )
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["bundle.yaml", "tasks/t.yaml", "tasks/t.jsonl", "evals/e.yaml", "u.json", "p.md"]),
    data=st.data(),
)
def test_no_content_of_a_file_makes_validation_raise(name: str, data: st.DataObject) -> None:
    """Whatever bytes or JSON values stand in a file, the author gets problems, each on one line, or none."""
    json_value = st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(["a", "u.json", "p.md", "{{"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5)
        ),
    )
    content = data.draw(st.binary(max_size=30) | json_value.map(lambda value: json.dumps(value).encode()))
    header = b"name: x\nenvs: {}\nagents: {a: {system_prompt: p.md}}\n"
    files = {"bundle.yaml": header, "p.md": b"Hi.", "u.json": b"{}", "tasks/ok.yaml": b"id: ok\nprompt: x\n"}
    with TemporaryDirectory() as folder:
        for path, written in {**files, name: content}.items():
            (Path(folder) / path).parent.mkdir(exist_ok=True)
            (Path(folder) / path).write_bytes(written)
        problems = validate_bundle(folder)
    assert all(problem.line >= 1 and "\n" not in str(problem) for problem in problems)


KEYS = [
    "id",
    "name",
    "envs",
    "agents",
    "steps",
    "prompt",
    "verify",
    "python",
    "params",
    "tags",
    "tasks",
    "gold",
    "reward",
]
