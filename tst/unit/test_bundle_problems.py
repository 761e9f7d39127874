"""Every way a bundle can be wrong that we know of, and the exact line that its author reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_env.bundle import load_bundle, validate_bundle
from agent_env.errors import BundleError

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]

HEADER = 'name: shop\nenvs:\n  store: {python: "envs/store.py:Store", universe: universes/store.json}\n'
TASK = "id: a\nprompt: Sell.\nverify: {python: verifiers/sold.py}\n"
ENV = "from agent_env.envs import Env, tool\n\nclass Store(Env):\n"


@dataclass(frozen=True)
class Broken:
    """A small bundle with some files changed, and what validation says of it."""

    name: str
    files: Mapping[str, str | bytes | None]
    says: list[str]


def env(body: str, before: str = "") -> dict[str, str | bytes | None]:
    """The file of an env whose class has `body`."""
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
    return {"envs/store.py": before + ENV + lines}


def steps(*lines: str) -> dict[str, str | bytes | None]:
    """A long-form task with these steps."""
    return {"tasks/a.yaml": "id: a\nsteps:\n" + "".join(f"  - {line}\n" for line in lines)}


VERIFY = "verify: {python: verifiers/sold.py}"

RECIPE = "train_split: all\ntest_split: all\n"

BROKEN: list[Broken] = [
    # recipes
    Broken(
        "a recipe's split and players that are not there",
        {"recipes/r.yaml": "train_split: al\ntest_split: all\nsft:\n  player: bst\nreferences:\n  - idle\n"},
        [
            "recipes/r.yaml:1: no eval 'al', did you mean 'all'?",
            "recipes/r.yaml:4: no player 'bst', there is none to name here",
            "recipes/r.yaml:6: no player 'idle', there is none to name here",
        ],
    ),
    Broken(
        "unknown key in a recipe's part",
        {"recipes/r.yaml": RECIPE + "rl: {stepz: 3}\n"},
        ["recipes/r.yaml:3: unknown key 'stepz', did you mean 'steps'?"],
    ),
    Broken(
        "a recipe with no test split",
        {"recipes/r.yaml": "train_split: all\n"},
        ["recipes/r.yaml:1: 'test_split' is missing, add test_split: ..."],
    ),
    Broken(
        "a group of one rollout",
        {"recipes/r.yaml": RECIPE + "rl: {group_size: 1}\n"},
        ["recipes/r.yaml:3: 'group_size' is 1, it should be greater than or equal to 2"],
    ),
    # bundle.yaml
    Broken(
        "unknown key",
        {"bundle.yaml": HEADER + "agnets: {clerk: {}}\n"},
        ["bundle.yaml:4: unknown key 'agnets', did you mean 'agents'?"],
    ),
    Broken(
        "unknown key far from any",
        {"bundle.yaml": HEADER + "colour: red\n"},
        [
            "bundle.yaml:4: unknown key 'colour', write one of name, version, description, license, envs, sandboxes, models, agents, played, reward, players, task_defaults"
        ],
    ),
    Broken(
        "unknown key of an env",
        {"bundle.yaml": HEADER.replace("universe:", "univers:")},
        ["bundle.yaml:3: unknown key 'univers', did you mean 'universe'?"],
    ),
    Broken(
        "several unknown keys",
        {"bundle.yaml": "nmae: shop\nverson: 1\n"},
        [
            "bundle.yaml:1: 'name' is missing, add name: ...",
            "bundle.yaml:1: unknown key 'nmae', did you mean 'name'?",
            "bundle.yaml:2: unknown key 'verson', did you mean 'version'?",
        ],
    ),
    Broken(
        "no name",
        {"bundle.yaml": HEADER.replace("name: shop", "version: '1'")},
        ["bundle.yaml:1: 'name' is missing, add name: ..."],
    ),
    Broken(
        "version is a number",
        {"bundle.yaml": HEADER + "version: 1.0\n"},
        ["bundle.yaml:4: 'version' is 1.0, write text, in quotes: \"1.0\""],
    ),
    Broken(
        "name is empty", {"bundle.yaml": HEADER.replace("shop", "")}, ["bundle.yaml:1: 'name' is empty, write text"]
    ),
    Broken(
        "name with blanks",
        {"bundle.yaml": HEADER.replace("shop", "the shop")},
        ["bundle.yaml:1: 'name' is \"the shop\", write letters, digits and . _ - /, a letter or digit first"],
    ),
    Broken(
        "not a mapping",
        {"bundle.yaml": "- a\n- b\n"},
        ["bundle.yaml:1: the file is a list, write a mapping: {key: value}"],
    ),
    Broken("empty file", {"bundle.yaml": ""}, ["bundle.yaml:1: the file is empty, write its keys, or remove the file"]),
    Broken(
        "yaml syntax",
        {"bundle.yaml": "name: shop\nenvs: {store: [}\n"},
        [
            "bundle.yaml:2: this is not YAML: did not find expected node content, correct the syntax on or above this line"
        ],
    ),
    Broken(
        "tab in yaml",
        {"bundle.yaml": "name: shop\nenvs:\n\tstore: 1\n"},
        ["bundle.yaml:3: the line begins with a tab, indent it with spaces"],
    ),
    Broken(
        "two documents",
        {"bundle.yaml": HEADER + "---\nname: other\n"},
        ["bundle.yaml:4: a second YAML document starts here, keep one in a file"],
    ),
    Broken(
        "not utf-8",
        {"bundle.yaml": b"name: shop\nlicense: \xff\xfe\n"},
        ["bundle.yaml:2: the file is not UTF-8 text, save it as UTF-8"],
    ),
    Broken(
        "control character",
        {"bundle.yaml": "name: shop\nlicense: a\x01b\n"},
        [
            "bundle.yaml:2: this is not YAML: control characters are not allowed, correct the syntax on or above this line"
        ],
    ),
    Broken(
        "duplicate key",
        {"bundle.yaml": HEADER + "license: MIT\nlicense: ISC\n"},
        ["bundle.yaml:5: the key 'license' is already on line 4, remove one of the two"],
    ),
    Broken(
        "key that is no text",
        {"tasks/a.yaml": TASK + "params: {1: x}\n"},
        ['tasks/a.yaml:4: the key 1 is not text, write it in quotes: "1"'],
    ),
    Broken(
        "yaml tag",
        {"tasks/a.yaml": TASK + "params: {x: !!python/name:os.system }\n"},
        ["tasks/a.yaml:4: the tag !!python/name:os.system is not known, write a plain value"],
    ),
    Broken(
        "yaml nan",
        {"tasks/a.yaml": TASK + "params:\n  x: .nan\n"},
        ["tasks/a.yaml:5: .nan is not a JSON number, write a finite number"],
    ),
    Broken(
        "anchor in itself",
        {"tasks/a.yaml": TASK + "params: &p {x: *p}\n"},
        ["tasks/a.yaml:4: an anchor is used inside itself, write the values out"],
    ),
    Broken(
        "env class missing",
        {"bundle.yaml": HEADER.replace(":Store", ":Stroe")},
        ["bundle.yaml:3: envs/store.py has no 'Stroe', did you mean 'Store'?"],
    ),
    Broken(
        "env class by another name",
        {"bundle.yaml": HEADER.replace(":Store", ":Kiosk")},
        ["bundle.yaml:3: envs/store.py has no 'Kiosk', write one of Store"],
    ),
    Broken(
        "env file missing",
        {"bundle.yaml": HEADER.replace("store.py", "stor.py")},
        ["bundle.yaml:3: there is no file 'envs/stor.py', did you mean 'envs/store.py'?"],
    ),
    Broken(
        "env without class",
        {"bundle.yaml": HEADER.replace(":Store", "")},
        ["bundle.yaml:3: 'envs/store.py' names nothing in the file, write it as envs/store.py:name"],
    ),
    Broken(
        "env not python",
        {"bundle.yaml": HEADER.replace("store.py:Store", "store.js")},
        ["bundle.yaml:3: 'envs/store.js' is not a Python file, write it as folder/file.py:name"],
    ),
    Broken(
        "path leaves",
        {"bundle.yaml": HEADER.replace("envs/store.py", "../store.py")},
        ["bundle.yaml:3: '../store.py' leaves the bundle, write a path relative to the bundle's folder"],
    ),
    Broken(
        "path absolute",
        {"bundle.yaml": HEADER.replace("universes/store.json", "/etc/passwd")},
        ["bundle.yaml:3: '/etc/passwd' is not a relative path with '/', write a path relative to the bundle's folder"],
    ),
    Broken(
        "universe missing",
        {"bundle.yaml": HEADER.replace("store.json", "stores.json")},
        ["bundle.yaml:3: there is no file 'universes/stores.json', did you mean 'universes/store.json'?"],
    ),
    Broken(
        "universe kind",
        {"bundle.yaml": HEADER.replace("store.json", "s.csv"), "universes/s.csv": "a"},
        ["bundle.yaml:3: 'universes/s.csv' is no universe, name a .json, .sqlite or .db file, or a directory"],
    ),
    Broken(
        "universe not json",
        {"universes/store.json": '{"a": 1,\n"b" 2}'},
        ["universes/store.json:2: this is not JSON: Expecting ':' delimiter, correct the syntax"],
    ),
    Broken(
        "universe nan",
        {"universes/store.json": '{"a": NaN}'},
        ["universes/store.json:1: a number is too large or not finite, write a finite number, or null"],
    ),
    Broken(
        "universe infinity",
        {"universes/store.json": '{"stock": 1e999}'},
        ["universes/store.json:1: a number is too large or not finite, write a finite number, or null"],
    ),
    Broken(
        "universe surrogate",
        {"universes/store.json": '{"stock": "\\ud800"}'},
        ["universes/store.json:1: a text holds half of a surrogate pair, write both halves or neither"],
    ),
    Broken(
        "universe key twice",
        {"universes/store.json": '{"stock": 1, "stock": 2}'},
        ["universes/store.json:1: the key 'stock' is there twice, remove one of the two"],
    ),
    Broken(
        "universe no database",
        {"bundle.yaml": HEADER.replace("store.json", "s.db"), "universes/s.db": "no"},
        ["universes/s.db:1: this is not a SQLite database: file is not a database, make it anew"],
    ),
    Broken(
        "kind unknown",
        {"bundle.yaml": HEADER + "agents: {clerk: {kind: playd}}\n"},
        ["bundle.yaml:4: 'kind' is \"playd\", did you mean 'played'?"],
    ),
    Broken(
        "a model that is not said",
        {"bundle.yaml": HEADER + "agents:\n  clerk:\n    kind: model\n"},
        ["bundle.yaml:5: an agent of kind 'model' does not say 'model', add model: ..."],
    ),
    Broken(
        "no agent", {"bundle.yaml": HEADER + "agents: {}\n"}, ["bundle.yaml:4: 'agents' is empty, write at least one"]
    ),
    Broken(
        "agent's env unknown",
        {"bundle.yaml": HEADER + "agents: {clerk: {envs: [stor]}}\n"},
        ["bundle.yaml:4: there is no env 'stor', did you mean 'store'?"],
    ),
    Broken(
        "agent's env twice",
        {"bundle.yaml": HEADER + "agents: {clerk: {envs: [store, store]}}\n"},
        ["bundle.yaml:4: agent 'clerk' has env 'store' twice, remove one of the two"],
    ),
    Broken(
        "several envs",
        {"bundle.yaml": HEADER + '  depot: {python: "envs/store.py:Store"}\n'},
        ["bundle.yaml:1: agent 'agent' does not say which envs it works in, add envs: [store, depot]"],
    ),
    Broken(
        "several played",
        {"bundle.yaml": HEADER + "agents: {clerk: {}, boss: {}}\n"},
        ["bundle.yaml:4: 2 agents are played, add played: with one of clerk, boss"],
    ),
    Broken(
        "played unknown",
        {"bundle.yaml": HEADER + "agents: {clerk: {}}\nplayed: clerc\n"},
        ["bundle.yaml:5: there is no played agent 'clerc', did you mean 'clerk'?"],
    ),
    Broken(
        "prompt file missing",
        {"bundle.yaml": HEADER + "agents: {clerk: {system_prompt: prompts/policies.md}}\n"},
        [
            "bundle.yaml:4: there is no file 'prompts/policies.md', did you mean 'prompts/policy.md'? (or write {text: ...} if it is the text itself)"
        ],
    ),
    Broken(
        "text and template",
        {"bundle.yaml": HEADER + "agents: {clerk: {system_prompt: {text: a, template: b}}}\n"},
        ["bundle.yaml:4: a text says 'text' and 'template' at once, write one of them"],
    ),
    Broken(
        "text neither",
        {"bundle.yaml": HEADER + "agents: {clerk: {system_prompt: {}}}\n"},
        ["bundle.yaml:4: a text says none of 'text', 'template', write one of them"],
    ),
    Broken(
        "text a list",
        {"bundle.yaml": HEADER + "agents: {clerk: {system_prompt: [a]}}\n"},
        ["bundle.yaml:4: 'system_prompt' is a list, write text, {text: ...} or {template: file}"],
    ),
    Broken(
        "text empty", {"prompts/policy.md": "\n"}, ["bundle.yaml:9: the text in prompts/policy.md is empty, write it"]
    ),
    Broken(
        "reward unknown",
        {"bundle.yaml": HEADER + "reward: sald\n"},
        ["bundle.yaml:4: the reward names 'sald', which no task has as a verify step, did you mean 'sold'?"],
    ),
    Broken(
        "reward weight is text",
        {"bundle.yaml": HEADER + "reward: {sold: high}\n"},
        ["bundle.yaml:4: 'sold' is \"high\", write a number"],
    ),
    Broken(
        "reward a list",
        {"bundle.yaml": HEADER + "reward: [sold]\n"},
        ["bundle.yaml:4: 'reward' is a list, write the id of a verify step, or weights {id: 0.5, ...}"],
    ),
    Broken(
        "player missing",
        {"bundle.yaml": HEADER + "players:\n  best: players/best.py:play\n"},
        ["bundle.yaml:5: there is no file 'players/best.py', add it or correct the path"],
    ),
    Broken(
        "player arguments",
        {
            "bundle.yaml": HEADER + "players:\n  best: players/best.py:play\n",
            "players/best.py": "def play():\n    pass\n",
        },
        ["players/best.py:1: play does not take one argument, write def play(x): it gets the turn"],
    ),
    # tasks
    Broken(
        "no task",
        {"tasks/a.yaml": None, "tasks/b.jsonl": None, "evals/test.yaml": None},
        ["bundle.yaml:1: the bundle has no task, add a .yaml or .jsonl file under tasks/"],
    ),
    Broken(
        "task key",
        {"tasks/a.yaml": TASK + "parms: {}\n"},
        ["tasks/a.yaml:4: unknown key 'parms', did you mean 'params'?"],
    ),
    Broken(
        "task id number",
        {"tasks/a.yaml": TASK.replace("id: a", "id: 17")},
        ["tasks/a.yaml:1: 'id' is 17, write text, in quotes: \"17\""],
    ),
    Broken(
        "task no id", {"tasks/a.yaml": TASK.replace("id: a\n", "")}, ["tasks/a.yaml:1: 'id' is missing, add id: ..."]
    ),
    Broken(
        "duplicate id",
        {"tasks/a.yaml": TASK.replace("id: a", "id: b")},
        ["tasks/b.jsonl:1: the id 'b' is taken by tasks/a.yaml:1, give each task an id of its own"],
    ),
    Broken(
        "no prompt",
        {"tasks/a.yaml": TASK.replace("prompt: Sell.\n", "")},
        ["tasks/a.yaml:1: task 'a' has no prompt, add prompt: ..., or give task_defaults one"],
    ),
    Broken(
        "no verify",
        {"tasks/a.yaml": "id: a\nprompt: Sell.\n"},
        ["tasks/a.yaml:1: task 'a' has no verify step, add verify: {python: verifiers/file.py}"],
    ),
    Broken(
        "verify is text",
        {"tasks/a.yaml": "id: a\nprompt: Sell.\nverify: verifiers/sold.py\n"},
        [
            "tasks/a.yaml:3: 'verify' is \"verifiers/sold.py\", write a mapping with one of python, state, command, check, judge"
        ],
    ),
    Broken(
        "verifier missing",
        {"tasks/a.yaml": TASK.replace("sold.py", "solt.py")},
        ["tasks/a.yaml:3: there is no file 'verifiers/solt.py', did you mean 'verifiers/sold.py'?"],
    ),
    Broken(
        "verifier without score",
        {"verifiers/sold.py": "def scores(episode): return 1\n"},
        [
            "tasks/a.yaml:5: verifiers/sold.py has no 'score', did you mean 'scores'?",
            "tasks/b.jsonl:1: verifiers/sold.py has no 'score', did you mean 'scores'?",
        ],
    ),
    Broken(
        "verifier score no function",
        {"verifiers/sold.py": "score = 1\n"},
        [
            "tasks/a.yaml:5: verifiers/sold.py:score is no function, define it with def",
            "tasks/b.jsonl:1: verifiers/sold.py:score is no function, define it with def",
        ],
    ),
    Broken(
        "verifier arguments",
        {"verifiers/sold.py": "\ndef score(a, b): return 1\n"},
        ["verifiers/sold.py:2: score does not take one argument, write def score(x): it gets the episode"],
    ),
    Broken(
        "two verifiers",
        {
            "tasks/a.yaml": "id: a\nprompt: x\nverify:\n  - {python: verifiers/sold.py}\n  - {id: style, python: verifiers/sold.py}\n"
        },
        [
            "bundle.yaml:1: task 'a' has 2 verify steps (sold, style), and there is no reward, add reward: sold, or reward: with weights by step, or weight: to the steps"
        ],
    ),
    Broken(
        "two verifiers one id",
        {
            "tasks/a.yaml": "id: a\nprompt: x\nverify:\n  - {id: x, python: verifiers/sold.py}\n  - {id: x, python: verifiers/sold.py}\n",
            "bundle.yaml": HEADER + "reward: x\n",
            "tasks/b.jsonl": None,
            "evals/test.yaml": None,
        },
        ["tasks/a.yaml:5: the step id 'x' is taken in this task, give it another"],
    ),
    Broken(
        "reward in another task",
        {
            "tasks/a.yaml": "id: a\nprompt: x\nverify: {id: style, python: verifiers/sold.py}\n",
            "bundle.yaml": HEADER + "reward: style\n",
        },
        [
            "tasks/b.jsonl:1: task 'b' has no verify step 'style', which the reward names, give one of its verify steps id: style"
        ],
    ),
    Broken(
        "params a list",
        {"tasks/a.yaml": TASK + "params: [1]\n"},
        ["tasks/a.yaml:4: 'params' is a list, write a mapping: {key: value}"],
    ),
    Broken(
        "timeout negative",
        {"tasks/a.yaml": "id: a\nprompt: x\nverify: {python: verifiers/sold.py, timeout_s: -1}\n"},
        ["tasks/a.yaml:3: 'timeout_s' is -1, write a number above 0"],
    ),
    Broken(
        "flag as text",
        {"tasks/a.yaml": TASK + 'fail_task_on_error: "no"\n'},
        ["tasks/a.yaml:4: 'fail_task_on_error' is \"no\", write true or false"],
    ),
    Broken(
        "tag a number",
        {"tasks/a.yaml": TASK + "tags: [easy, 3]\n"},
        ["tasks/a.yaml:4: item 2 of 'tags' is 3, write text, in quotes: \"3\""],
    ),
    Broken(
        "row not json",
        {"tasks/b.jsonl": '{"id": "b"\n'},
        [
            "tasks/b.jsonl:1: this line is not JSON: Expecting ',' delimiter at column 11, write one JSON object on the line"
        ],
    ),
    Broken(
        "row not an object",
        {"tasks/b.jsonl": "[1]\n", "evals/test.yaml": None},
        ["tasks/b.jsonl:1: the line is a list, write a mapping: {key: value}"],
    ),
    Broken(
        "row nan",
        {"tasks/b.jsonl": '\n{"id": "b", "params": {"x": NaN}}\n'},
        ["tasks/b.jsonl:2: a number is too large or not finite, write a finite number, or null"],
    ),
    Broken(
        "row infinite",
        {"tasks/b.jsonl": '{"id": "b", "params": {"x": 1e999}}\n'},
        ["tasks/b.jsonl:1: a number is too large or not finite, write a finite number, or null"],
    ),
    Broken(
        "row surrogate",
        {"tasks/b.jsonl": '{"id": "b", "params": {"x": "\\ud800"}}\n'},
        ["tasks/b.jsonl:1: a text holds half of a surrogate pair, write both halves or neither"],
    ),
    Broken(
        "row key twice",
        {"tasks/b.jsonl": '{"id": "b", "id": "c"}\n'},
        ["tasks/b.jsonl:1: the key 'id' is there twice, remove one of the two"],
    ),
    Broken(
        "row key",
        {"tasks/b.jsonl": '{"id": "b", "promt": "x"}\n'},
        ["tasks/b.jsonl:1: unknown key 'promt', did you mean 'prompt'?"],
    ),
    # templates
    Broken(
        "template key",
        {"tasks/a.yaml": TASK.replace("Sell.", "Sell {{ params.cuont }}.") + "params: {count: 1}\n"},
        ["tasks/a.yaml:2: the template uses the key 'cuont', which is not there (in task 'a'), did you mean 'count'?"],
    ),
    Broken(
        "template name",
        {"tasks/a.yaml": TASK.replace("Sell.", "Sell {{ count }}.") + "params: {count: 1}\n"},
        ["tasks/a.yaml:2: the template uses 'count', which is not defined (in task 'a'), write params.count"],
    ),
    Broken(
        "template syntax",
        {"prompts/policy.md": "You\n{% if %}\n"},
        [
            "prompts/policy.md:2: the template does not parse: Expected an expression, got 'end of statement block', correct the syntax on or above this line"
        ],
    ),
    Broken(
        "template filter",
        {"prompts/policy.md": "You {{ task_id | shout }}\n"},
        [
            "prompts/policy.md:1: the template does not parse: No filter named 'shout'., correct the syntax on or above this line"
        ],
    ),
    Broken(
        "template in a file",
        {"prompts/policy.md": "You\n\nsee {{ params.colour }}\n"},
        [
            "prompts/policy.md:3: the template uses the key 'colour', which is not there (in task 'a' and 1 other), write one of count"
        ],
    ),
    Broken(
        "template division",
        {"prompts/policy.md": "{{ 1 / 0 }}\n"},
        [
            "prompts/policy.md:1: the template raises ZeroDivisionError: division by zero (in task 'a' and 1 other), correct the template"
        ],
    ),
    Broken(
        "template include",
        {"prompts/policy.md": "{% include '../secret' %}\n"},
        [
            "prompts/policy.md:1: the template includes '../secret', which is not in the bundle (in task 'a' and 1 other), write a path from the bundle's folder"
        ],
    ),
    # steps
    Broken(
        "step unknown",
        steps("deploy_evn: store"),
        ["tasks/a.yaml:3: unknown step 'deploy_evn', did you mean 'deploy_env'?"],
    ),
    Broken(
        "step no mapping",
        steps("deploy_env"),
        [
            "tasks/a.yaml:3: item 1 of 'steps' is \"deploy_env\", write a mapping with one of deploy_env, deploy_agent, prompt, run, verify, add_skills"
        ],
    ),
    Broken(
        "step no kind",
        steps("id: x"),
        [
            "tasks/a.yaml:3: item 1 of 'steps' is no kind of step, write one of deploy_env, deploy_agent, prompt, run, verify, add_skills"
        ],
    ),
    Broken(
        "step two kinds",
        steps("{deploy_env: store, deploy_agent: clerk}"),
        [
            "tasks/a.yaml:3: item 1 of 'steps' is 2 steps at once (deploy_env, deploy_agent), give each a list item of its own"
        ],
    ),
    Broken(
        "step key",
        steps("deploy_env: store", "deploy_agent: clerk", "{prompt: x, timeout: 3}", VERIFY),
        ["tasks/a.yaml:5: unknown key 'timeout', did you mean 'timeout_s'?"],
    ),
    Broken(
        "step env unknown",
        steps("deploy_env: stor", "deploy_agent: clerk", "prompt: x", VERIFY),
        ["tasks/a.yaml:3: there is no env 'stor', did you mean 'store'?"],
    ),
    Broken(
        "step agent unknown",
        steps("deploy_env: store", "deploy_agent: clerc", "prompt: x", VERIFY),
        ["tasks/a.yaml:4: there is no agent 'clerc', did you mean 'clerk'?"],
    ),
    Broken(
        "prompt before agent",
        steps("deploy_env: store", "prompt: x", "deploy_agent: clerk", VERIFY),
        ["tasks/a.yaml:4: agent 'clerk' is prompted before it is deployed, add a step deploy_agent: clerk above"],
    ),
    Broken(
        "agent before env",
        steps("deploy_agent: clerk", "deploy_env: store", "prompt: x", VERIFY),
        [
            "tasks/a.yaml:3: agent 'clerk' works in env 'store', which is not deployed before it, add a step deploy_env: store above"
        ],
    ),
    Broken(
        "env twice",
        steps("deploy_env: store", "deploy_env: store", "deploy_agent: clerk", "prompt: x", VERIFY),
        ["tasks/a.yaml:4: env 'store' is deployed twice, remove one of the two"],
    ),
    Broken(
        "no prompt step",
        steps("deploy_env: store", "deploy_agent: clerk", VERIFY),
        ["tasks/a.yaml:2: task 'a' never prompts an agent, add a step prompt: ..."],
    ),
    Broken(
        "no verify step",
        steps("deploy_env: store", "deploy_agent: clerk", "prompt: x"),
        ["tasks/a.yaml:1: task 'a' has no verify step, add verify: {python: verifiers/file.py}"],
    ),
    Broken(
        "add skills, none there",
        steps("deploy_env: store", "deploy_agent: clerk", "add_skills: [x]", "prompt: x", VERIFY),
        ["tasks/a.yaml:5: there is no skill 'x', add skills/x/SKILL.md"],
    ),
    Broken(
        "add skills, another name",
        {
            **steps("deploy_env: store", "deploy_agent: clerk", "add_skills: [refund]", "prompt: x", VERIFY),
            "skills/refunds/SKILL.md": "Give it back.\n",
            "skills/empty/notes.md": "No skill.\n",
        },
        ["tasks/a.yaml:5: there is no skill 'refund', did you mean 'refunds'?"],
    ),
    Broken(
        "add skills, a path",
        steps("deploy_env: store", "deploy_agent: clerk", "add_skills: [skills/refunds]", "prompt: x", VERIFY),
        ["tasks/a.yaml:5: 'skills/refunds' is no skill's name, write the name of a folder under skills/"],
    ),
    Broken(
        "add skills before agent",
        {
            **steps("deploy_env: store", "add_skills: [refunds]", "deploy_agent: clerk", "prompt: x", VERIFY),
            "skills/refunds/SKILL.md": "Give it back.\n",
        },
        ["tasks/a.yaml:4: agent 'clerk' is given skills before it is deployed, add a step deploy_agent: clerk above"],
    ),
    Broken(
        "add no skills",
        steps("deploy_env: store", "deploy_agent: clerk", "add_skills: []", "prompt: x", VERIFY),
        ["tasks/a.yaml:5: 'add_skills' is empty, write at least one"],
    ),
    Broken(
        "prompt agent unknown",
        steps("deploy_env: store", "deploy_agent: clerk", "prompt: {agent: boss, text: x}", VERIFY),
        ["tasks/a.yaml:5: there is no agent 'boss', write one of clerk"],
    ),
    Broken(
        "no steps", {"tasks/a.yaml": "id: a\nsteps: []\n"}, ["tasks/a.yaml:2: 'steps' is empty, write at least one"]
    ),
    Broken(
        "steps and prompt",
        {"tasks/a.yaml": "id: a\nprompt: x\nsteps:\n  - deploy_env: store\n"},
        ["tasks/a.yaml:2: unknown key 'prompt', write one of id, tags, params, gold, gold_reward, steps"],
    ),
    Broken(
        "step id twice",
        steps("{deploy_env: store, id: x}", "{deploy_agent: clerk, id: x}", "prompt: x", VERIFY),
        ["tasks/a.yaml:4: the step id 'x' is taken in this task, give it another"],
    ),
    Broken(
        "run without function",
        steps("deploy_env: store", "deploy_agent: clerk", "run: {python: envs/store.py}", "prompt: x", VERIFY),
        ["tasks/a.yaml:5: 'envs/store.py' names nothing in the file, write it as envs/store.py:name"],
    ),
    # gold
    Broken(
        "gold shape",
        {"tasks/a.yaml": TASK + "gold: [{call: sell}]\n"},
        ["tasks/a.yaml:4: unknown key 'call', did you mean 'calls'?"],
    ),
    Broken(
        "gold turns",
        {"tasks/a.yaml": TASK + "gold: [{reply: a}, {reply: b}]\n"},
        ["tasks/a.yaml:4: gold has 2 turns, the task has 1, write one item for each prompt"],
    ),
    Broken(
        "gold tool",
        {"tasks/a.yaml": TASK + "gold:\n  - calls:\n      - {tool: sel}\n"},
        ["tasks/a.yaml:6: gold calls 'sel', which is no tool, did you mean 'sell'?"],
    ),
    Broken(
        "gold arguments",
        {"tasks/a.yaml": TASK + "gold:\n  - calls:\n      - tool: sell\n        arguments: {count: many}\n"},
        [
            'tasks/a.yaml:7: gold calls sell with arguments that do not fit (count: expected an integer, got "many"), write what the tool takes'
        ],
    ),
    # evals
    Broken(
        "eval task",
        {"evals/test.yaml": "tasks:\n  - a\n  - bb\n"},
        ["evals/test.yaml:3: eval 'test' names task 'bb', which is not there, did you mean 'b'?"],
    ),
    Broken(
        "eval glob",
        {"evals/test.yaml": "tasks: ['x*']\n"},
        ["evals/test.yaml:1: eval 'test' names task 'x*', which is not there, write one of a, b"],
    ),
    Broken(
        "eval tag",
        {"evals/test.yaml": "tags: [esay]\n"},
        ["evals/test.yaml:1: eval 'test' names tag 'esay', which no task has, did you mean 'easy'?"],
    ),
    Broken(
        "eval empty",
        {"evals/test.yaml": "description: x\n"},
        ["evals/test.yaml:1: the eval selects nothing, write tasks: [ids or globs] or tags: [tags]"],
    ),
    Broken(
        "eval all",
        {"evals/all.yaml": "tasks: [a]\n"},
        ["evals/all.yaml:1: the eval 'all' is every task already, give the file another name"],
    ),
    # Python
    Broken(
        "python syntax",
        {"envs/store.py": "class Store:\n    def (\n"},
        ["envs/store.py:2: SyntaxError: invalid syntax, correct the syntax"],
    ),
    Broken(
        "python raises",
        {"envs/store.py": "import os\n\nraise RuntimeError('no\\nluck')\n"},
        ["envs/store.py:3: importing it raised RuntimeError: no luck, correct the file so that it can be imported"],
    ),
    Broken(
        "python exits",
        {"envs/store.py": "import sys\nsys.exit(3)\n"},
        ["envs/store.py:2: importing it raised SystemExit: 3, correct the file so that it can be imported"],
    ),
    Broken(
        "python module missing",
        {"envs/store.py": "import nothing_here\n"},
        [
            "envs/store.py:1: importing it raised ModuleNotFoundError: no module named 'nothing_here', install the package that has it"
        ],
    ),
    Broken(
        "python neighbour",
        {"envs/store.py": "from rules import x\n", "envs/rules.py": "x = 1\n"},
        [
            "envs/store.py:1: importing it raised ModuleNotFoundError: no module named 'rules', import it relative to this file: from .rules import ..."
        ],
    ),
    Broken(
        "python from the top",
        {"envs/store.py": "from lib.rules import x\n", "lib/rules.py": "x = 1\n"},
        [
            "envs/store.py:1: importing it raised ModuleNotFoundError: no module named 'lib', import it relative to this file: from ..lib import ..."
        ],
    ),
    Broken(
        "python name missing",
        {"envs/store.py": "from .rules import y\n", "envs/rules.py": "x = 1\n"},
        [
            "envs/store.py:1: importing it raised ImportError: cannot import name 'y' from 'envs.rules', correct the file so that it can be imported"
        ],
    ),
    Broken(
        "python neighbour missing",
        {"envs/store.py": "from .ruls import y\n"},
        [
            "envs/store.py:1: importing it raised ModuleNotFoundError: no module named 'envs.ruls', add the file, or correct the name"
        ],
    ),
    Broken(
        "env no class",
        {"envs/store.py": "def Store(): pass\n"},
        ["bundle.yaml:5: envs/store.py:Store is no env, make it a subclass of agent_env.Env"],
    ),
    Broken(
        "env other class",
        {"envs/store.py": "class Store: pass\n"},
        ["bundle.yaml:5: envs/store.py:Store is no env, make it a subclass of agent_env.Env"],
    ),
    Broken(
        "env init",
        env("def __init__(self, size): ...\n@tool\ndef look(self):\n    '''Look.'''"),
        ["bundle.yaml:5: envs/store.py:Store needs size to be made, give its __init__ no parameters, and use start()"],
    ),
    Broken(
        "env without tools",
        env("pass"),
        ["bundle.yaml:5: envs/store.py:Store has no tool, mark a method of it with @tool"],
    ),
    Broken(
        "tool parameter",
        env("@tool\ndef look(self, what):\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' has a parameter 'what' without a type, write what: int, or what it is"],
    ),
    Broken(
        "tool args",
        env("@tool\ndef look(self, *what: str, **how: int):\n    '''Look.'''"),
        [
            "envs/store.py:4: tool 'look' takes *what, name each parameter: a model must see them",
            "envs/store.py:4: tool 'look' takes **how, name each parameter: a model must see them",
        ],
    ),
    Broken(
        "tool positional",
        env("@tool\ndef look(self, what: str, /):\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' takes 'what' by position only, remove the / from its parameters"],
    ),
    Broken(
        "tool without docstring",
        env("@tool\ndef look(self): ..."),
        ["envs/store.py:4: tool 'look' has no description, say what it does in the first line of its docstring"],
    ),
    Broken(
        "tool docstring",
        env("@tool\ndef look(self, what: str):\n    '''Look.\n\n    Args:\n        waht: It.\n    '''"),
        ["envs/store.py:4: tool 'look' describes a parameter 'waht', which it does not have, did you mean 'what'?"],
    ),
    Broken(
        "tool annotation that cannot say what is wrong",
        env(
            "@tool\ndef look(self, what: 'mute()'):\n    '''Look.'''",
            "class Mute(Exception):\n    def __str__(self):\n        raise self\n\ndef mute():\n    raise Mute\n",
        ),
        ["envs/store.py:10: tool 'look' has an annotation that cannot be read: Mute, write a type"],
    ),
    Broken(
        "tool twice",
        env("@tool\ndef look(self):\n    '''Look.'''\n@tool(name='look')\ndef see(self):\n    '''See.'''"),
        ["envs/store.py:7: the tool 'look' is already on line 4, give one of them another name="],
    ),
    Broken(
        "tool name",
        env("@tool(name='look up')\ndef look(self):\n    '''Look.'''"),
        [
            "envs/store.py:4: tool 'look up' has a name that model servers refuse, write letters, digits, _ and -, at most 64"
        ],
    ),
    Broken(
        "tool timeout",
        env("@tool(timeout_s=1)\ndef look(self):\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' has a timeout, and cannot be interrupted, add blocking=True, or make it async"],
    ),
    Broken(
        "tool timeout zero",
        env("@tool(timeout_s=0)\nasync def look(self):\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' has timeout_s=0, write a number of seconds above 0"],
    ),
    Broken(
        "tool async blocking",
        env("@tool(blocking=True)\nasync def look(self):\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' is async and blocking, remove blocking=True: it needs no thread"],
    ),
    Broken(
        "tool generator",
        env("@tool\ndef look(self):\n    '''Look.'''\n    yield 1"),
        ["envs/store.py:4: tool 'look' is a generator, return the whole answer instead"],
    ),
    Broken(
        "tool static",
        env("@tool\n@staticmethod\ndef look():\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' is no plain method, write it as def name(self, ...)"],
    ),
    Broken(
        "tool no self",
        env("@tool\ndef look():\n    '''Look.'''"),
        ["envs/store.py:4: tool 'look' has no self, write it as def name(self, ...)"],
    ),
    Broken(
        "tool type",
        env("@tool\ndef look(self, what: type(Env)):\n    '''Look.'''"),
        [
            "envs/store.py:4: tool 'look' has a parameter 'what' whose type, type, has no JSON Schema, use a JSON type, a dataclass or a pydantic model"
        ],
    ),
    Broken(
        "tool class type",
        env("@tool\ndef look(self, what: Env):\n    '''Look.'''"),
        [
            "envs/store.py:4: tool 'look' has a parameter 'what' whose type, Env, has no JSON Schema, use a JSON type, a dataclass or a pydantic model"
        ],
    ),
    Broken(
        "tool hint undefined",
        env("@tool\ndef look(self, what: Thing):\n    '''Look.'''", "from __future__ import annotations\n"),
        [
            "envs/store.py:5: tool 'look' is annotated with 'Thing', which is not defined when it runs, import Thing outside of TYPE_CHECKING"
        ],
    ),
    Broken(
        "tool recursive",
        env(
            "@tool\ndef look(self, what: 'Node'):\n    '''Look.'''",
            "from pydantic import BaseModel\nclass Node(BaseModel):\n    next: 'Node | None' = None\n",
        ),
        [
            "envs/store.py:7: tool 'look' takes Node, which contains itself, use a type of a fixed depth, or an id in its place"
        ],
    ),
    Broken(
        "tool in two envs",
        {"bundle.yaml": HEADER + '  depot: {python: "envs/store.py:Store"}\nagents: {clerk: {envs: [store, depot]}}\n'},
        [
            "envs/store.py:5: tool 'sell' is in envs 'store' and 'depot', and agent 'clerk' has both, give one of them another name="
        ],
    ),
]


@pytest.mark.parametrize("broken", [pytest.param(broken, id=broken.name) for broken in BROKEN])
def test_validation_says_what_is_wrong_where_and_what_to_write(
    broken: Broken, small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """Each broken bundle gets exactly these lines, and no line about a consequence of them."""
    root = write_bundle({**small_bundle, **broken.files})
    assert [str(problem) for problem in validate_bundle(root)] == broken.says


def test_a_bundle_without_problems_gets_no_line(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """The bundle that the broken ones are made from is in order."""
    assert validate_bundle(write_bundle(small_bundle)) == []


def test_loading_reports_every_problem_of_the_files_at_once(
    small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """One error carries the problems of all files, bundle.yaml's first."""
    files = {
        **small_bundle,
        "bundle.yaml": HEADER + "agents: {clerk: {envs: [depot]}}\n",
        "tasks/a.yaml": TASK + "parms: {}\n",
        "evals/test.yaml": "tasks: [bb]\n",
    }
    with pytest.raises(BundleError) as caught:
        load_bundle(write_bundle(files))
    assert [str(problem).split(",")[0] for problem in caught.value.problems] == [
        "bundle.yaml:4: there is no env 'depot'",
        "evals/test.yaml:1: eval 'test' names task 'bb'",
        "tasks/a.yaml:4: unknown key 'parms'",
    ]


def test_loading_runs_no_code_of_the_bundle(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """A bundle whose Python raises loads all the same; validation is what imports it."""
    root = write_bundle({**small_bundle, "envs/store.py": "raise RuntimeError\n"})
    assert load_bundle(root).name == "shop"
    assert len(validate_bundle(root)) == 1


def test_symlinks_out_of_the_bundle_are_refused(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """A file, a task and a universe directory that lead out of the bundle through a symlink are each named."""
    header = small_bundle["bundle.yaml"].replace("universes/store.json", "universes/shop")
    root = write_bundle({**small_bundle, "bundle.yaml": header, "universes/shop/in.txt": "x"})
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "policy.md").write_text("secret")
    (root / "prompts/policy.md").unlink()
    (root / "prompts/policy.md").symlink_to(outside / "policy.md")
    (root / "tasks/c.yaml").symlink_to(outside / "policy.md")
    (root / "universes/shop/out").symlink_to(outside)
    assert [str(problem) for problem in validate_bundle(root)] == [
        "bundle.yaml:9: 'prompts/policy.md' leaves the bundle through a symlink, copy the file into the bundle"
        " (or write {text: ...} if it is the text itself)",
        "tasks/c.yaml:1: 'tasks/c.yaml' leaves the bundle through a symlink, copy the file into the bundle",
        "universes/shop/out:1: a symlink leads out of the universe, copy what it leads to there",
    ]
