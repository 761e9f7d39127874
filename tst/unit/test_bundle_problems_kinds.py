"""What is wrong with envs, agents, sandboxes, models, conversations, verifiers and skills, line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agent_env.bundle import validate_bundle

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]

HEADER = 'name: shop\nenvs:\n  store: {python: "envs/store.py:Store", universe: universes/store.json}\n'
BOX = HEADER + "  box: {sandbox: jail}\nsandboxes:\n  jail: {provider: bwrap}\nagents:\n  clerk: {envs: [store, box]}\n"
MODEL = "models:\n  small: {model: m, base_url: http://localhost:1/v1}\n"
CUSTOMER = "agents:\n  clerk: {}\n  customer: {kind: scripted, python: 'agents/customer.py:reply'}\n"
REPLY = {"agents/customer.py": "def reply(turn):\n    return None\n"}


def verify(line: str, *more: str) -> str:
    """A short task with a verifier."""
    return f"id: a\nprompt: Sell.\nverify: {line}\n" + "".join(f"{item}\n" for item in more)


def prompt(line: str) -> str:
    """A short task with a prompt."""
    return f"id: a\nprompt: {line}\nverify: {{python: verifiers/sold.py}}\n"


BROKEN: Mapping[str, tuple[Mapping[str, str], list[str]]] = {
    # envs
    "an env of two kinds": (
        {"bundle.yaml": HEADER.replace("{python", "{sandbox: jail, python")},
        ["bundle.yaml:3: an env says 'python' and 'sandbox' at once, write one of them"],
    ),
    "an env of no kind": (
        {"bundle.yaml": HEADER + "  other: {universe: universes/store.json}\n"},
        ["bundle.yaml:4: an env says none of 'python', 'mcp', 'sandbox', write one of them"],
    ),
    "an MCP server with a command and a url": (
        {"bundle.yaml": HEADER + "  web: {mcp: {command: [x], url: 'http://x'}}\n"},
        ["bundle.yaml:4: an MCP server says 'command' and 'url' at once, write one of them"],
    ),
    "an MCP server with neither": (
        {"bundle.yaml": HEADER + "  web: {mcp: {shared: true}}\n"},
        ["bundle.yaml:4: an MCP server says none of 'command', 'url', write one of them"],
    ),
    "an MCP command as text": (
        {"bundle.yaml": HEADER + "  web: {mcp: {command: npx server}}\n"},
        ["bundle.yaml:4: 'command' is \"npx server\", write a list: [...]"],
    ),
    "an MCP server's file that is not there": (
        {
            "bundle.yaml": HEADER
            + "  web: {mcp: {command: [python3, envs/stor.py]}}\nagents: {clerk: {envs: [store]}}\n"
        },
        ["bundle.yaml:4: there is no file 'envs/stor.py', did you mean 'envs/store.py'?"],
    ),
    "an MCP command of no words": (
        {"bundle.yaml": HEADER + "  web: {mcp: {command: []}}\n"},
        ["bundle.yaml:4: 'command' is empty, write at least one"],
    ),
    "headers for a command": (
        {"bundle.yaml": HEADER + "  web: {mcp: {command: [x], headers: {A: b}}}\n"},
        ["bundle.yaml:4: an MCP server with a command says 'headers', remove them: they are for a url"],
    ),
    "variables for a url": (
        {"bundle.yaml": HEADER + "  web: {mcp: {url: 'http://x', env: {A: b}}}\n"},
        ["bundle.yaml:4: an MCP server at a url says 'env', remove it: it is for a command"],
    ),
    "an MCP call that may take no time": (
        {"bundle.yaml": HEADER + "  web: {mcp: {url: 'http://x', call_timeout_s: 0}}\n"},
        ["bundle.yaml:4: 'call_timeout_s' is 0, write a number above 0"],
    ),
    "a misspelt key of an MCP server": (
        {"bundle.yaml": HEADER + "  web: {mcp: {comand: [x]}}\n"},
        [
            "bundle.yaml:4: an MCP server says none of 'command', 'url', write one of them",
            "bundle.yaml:4: unknown key 'comand', did you mean 'command'?",
        ],
    ),
    "a universe for a server at a url": (
        {
            "bundle.yaml": HEADER
            + "  web: {mcp: {url: 'http://x'}, universe: universes}\nagents: {clerk: {envs: [store]}}\n"
        },
        [
            "bundle.yaml:4: env 'web' has a universe, which a server at a url never sees, remove universe,"
            " or let each episode start a server of its own"
        ],
    ),
    # sandboxes
    "a sandbox that is not there": (
        {"bundle.yaml": HEADER + "  box: {sandbox: jial}\nsandboxes: {jail: {}}\nagents: {clerk: {envs: [store]}}\n"},
        ["bundle.yaml:4: there is no sandbox 'jial', did you mean 'jail'?"],
    ),
    "no sandboxes at all": (
        {"bundle.yaml": HEADER + "  box: {sandbox: jail}\nagents: {clerk: {envs: [store]}}\n"},
        ["bundle.yaml:4: there is no sandbox 'jail', add sandboxes: {jail: {provider: bwrap}}"],
    ),
    "an unknown provider": (
        {"bundle.yaml": BOX.replace("bwrap", "bwarp")},
        ["bundle.yaml:6: 'provider' is \"bwarp\", did you mean 'bwrap'?"],
    ),
    "docker without an image": (
        {"bundle.yaml": BOX.replace("bwrap", "docker")},
        ["bundle.yaml:6: a sandbox of provider 'docker' does not say 'image', add image: ..."],
    ),
    "an image for bwrap": (
        {"bundle.yaml": BOX.replace("bwrap", "bwrap, image: debian")},
        ["bundle.yaml:6: a sandbox of provider 'bwrap' says 'image', write provider: docker"],
    ),
    "too little memory": (
        {"bundle.yaml": BOX.replace("bwrap", "bwrap, memory_mb: 1")},
        ["bundle.yaml:6: 'memory_mb' is 1, it should be greater than or equal to 16"],
    ),
    "a command with no sandbox to run in": (
        {"tasks/a.yaml": verify("{command: pytest}")},
        ["tasks/a.yaml:3: the command does not say its sandbox, add an env with sandbox: ..."],
    ),
    "a command in an env that is no sandbox": (
        {"bundle.yaml": BOX, "tasks/a.yaml": verify("{command: pytest, sandbox: store}")},
        ["tasks/a.yaml:3: env 'store' is no sandbox, write one of box"],
    ),
    "an empty command": (
        {"bundle.yaml": BOX, "tasks/a.yaml": verify("{command: ' '}")},
        ["tasks/a.yaml:3: the command is empty, write a shell command"],
    ),
    "a command's files that leave the bundle": (
        {"bundle.yaml": BOX, "tasks/a.yaml": verify("{command: pytest, files: ../tests}")},
        ["tasks/a.yaml:3: '../tests' leaves the bundle, write a path relative to the bundle's folder"],
    ),
    "a command's files that are one file": (
        {"bundle.yaml": BOX, "tasks/a.yaml": verify("{command: pytest, files: verifiers/sold.py}")},
        ["tasks/a.yaml:3: 'verifiers/sold.py' is no folder, name a folder of the bundle"],
    ),
    "a command in a sandbox that the task does not deploy": (
        {"bundle.yaml": BOX.replace("[store, box]", "[store]"), "tasks/a.yaml": verify("{command: pytest}")},
        [
            "tasks/a.yaml:3: the step 'command' works in env 'box', which is not deployed before it,"
            " add a step deploy_env: box above, or the env to the agent"
        ],
    ),
    "a run step of both kinds": (
        {
            "bundle.yaml": BOX,
            "tasks/a.yaml": "id: a\nsteps:\n  - run: {python: 'a.py:f', command: x}\n  - verify: {python: verifiers/sold.py}\n",
        },
        ["tasks/a.yaml:3: a run step says 'python' and 'command' at once, write one of them"],
    ),
    # agents and models
    "a scripted agent without a script": (
        {"bundle.yaml": HEADER + "agents:\n  clerk: {}\n  customer: {kind: scripted}\n"},
        ["bundle.yaml:6: an agent of kind 'scripted' does not say 'python', add python: ..."],
    ),
    "a played agent with a script": (
        {"bundle.yaml": HEADER + "agents:\n  clerk: {python: 'agents/customer.py:reply'}\n"},
        ["bundle.yaml:5: an agent of kind 'played' says 'python', write kind: scripted, or remove it"],
    ),
    "a script that is not there": (
        {"bundle.yaml": HEADER + CUSTOMER},
        ["bundle.yaml:6: there is no file 'agents/customer.py', add it or correct the path"],
    ),
    "a script that takes nothing": (
        {"bundle.yaml": HEADER + CUSTOMER, "agents/customer.py": "\n\ndef reply():\n    return None\n"},
        ["agents/customer.py:3: reply does not take one argument, write def reply(x): it gets the turn"],
    ),
    "an agent's model that is not there": (
        {"bundle.yaml": HEADER + MODEL + "agents:\n  clerk: {}\n  customer: {kind: model, model: smal}\n"},
        ["bundle.yaml:8: there is no model 'smal', did you mean 'small'?"],
    ),
    "a model without an endpoint": (
        {"bundle.yaml": HEADER + "models: {small: {model: m}}\n"},
        ["bundle.yaml:4: 'base_url' is missing, add base_url: ..."],
    ),
    "a temperature below 0": (
        {"bundle.yaml": HEADER + MODEL.replace("{model", "{temperature: -1, model")},
        ["bundle.yaml:5: 'temperature' is -1, it should be greater than or equal to 0"],
    ),
    "a stop text for a script": (
        {"bundle.yaml": HEADER + CUSTOMER.replace("scripted,", "scripted, stop: x,"), **REPLY},
        ["bundle.yaml:6: an agent of kind 'scripted' says 'opening' or 'stop', remove it: it is for a model"],
    ),
    "a model with skills": (
        {"bundle.yaml": HEADER + MODEL + "agents:\n  clerk: {}\n  c: {kind: model, model: small, skills: true}\n"},
        ["bundle.yaml:8: agent 'c' of kind 'model' has skills, remove it: skills are a played agent's"],
    ),
    "nobody is played": (
        {"bundle.yaml": HEADER + CUSTOMER.replace("  clerk: {}\n", ""), **REPLY},
        ["bundle.yaml:4: no agent is played, give one of them kind: played"],
    ),
    "the played agent is scripted": (
        {"bundle.yaml": HEADER + CUSTOMER + "played: customer\n", **REPLY},
        ["bundle.yaml:7: there is no played agent 'customer', write one of clerk"],
    ),
    # prompts
    "a prompt of two kinds": (
        {"tasks/a.yaml": prompt("{text: x, by: customer}")},
        ["tasks/a.yaml:2: a prompt says 'text' and 'by' at once, write one of them"],
    ),
    "a prompt that is a list in a list": (
        {"tasks/a.yaml": prompt("[[x]]")},
        [
            "tasks/a.yaml:2: item 1 of 'prompt' is a list, write text, or a mapping with one of text, template, python, by"
        ],
    ),
    "turns without a conversation": (
        {"tasks/a.yaml": prompt("{text: x, max_turns: 2}")},
        ["tasks/a.yaml:2: a prompt says 'max_turns' without 'by', remove it: it bounds a conversation"],
    ),
    "a conversation with nobody": (
        {"bundle.yaml": HEADER + CUSTOMER, **REPLY, "tasks/a.yaml": prompt("{by: custmer}")},
        ["tasks/a.yaml:2: there is no agent 'custmer', did you mean 'customer'?"],
    ),
    "a conversation with oneself": (
        {"bundle.yaml": HEADER + CUSTOMER, **REPLY, "tasks/a.yaml": prompt("{by: clerk}")},
        ["tasks/a.yaml:2: agent 'clerk' leads a conversation with itself, name another agent"],
    ),
    "a conversation that a played agent leads": (
        {
            "bundle.yaml": HEADER + "agents: {clerk: {}, boss: {}}\nplayed: clerk\n",
            "tasks/a.yaml": prompt("{by: boss}"),
        },
        ["tasks/a.yaml:2: agent 'boss' leads a conversation, and is played, name an agent of kind scripted or model"],
    ),
    "a leader that is not deployed": (
        {
            "bundle.yaml": HEADER + CUSTOMER,
            **REPLY,
            "tasks/a.yaml": "id: a\nsteps:\n  - deploy_env: store\n  - deploy_agent: clerk\n  - prompt: {by: customer}\n"
            "  - verify: {python: verifiers/sold.py}\n",
        },
        [
            "tasks/a.yaml:5: agent 'customer' is to lead a conversation before it is deployed, add a step deploy_agent: customer above"
        ],
    ),
    "a prompt's function that is not there": (
        {"tasks/a.yaml": prompt("{python: 'verifiers/sold.py:ask'}")},
        ["tasks/a.yaml:2: verifiers/sold.py has no 'ask', write one of score"],
    ),
    "a prompt's tool that is not there": (
        {"tasks/a.yaml": prompt("{text: x, tools: [sel]}")},
        ["tasks/a.yaml:2: agent 'clerk' has no tool 'sel', did you mean 'sell'?"],
    ),
    # verifiers
    "a verifier of no kind": (
        {"tasks/a.yaml": verify("{file: x}")},
        ["tasks/a.yaml:3: 'verify' is no kind of verifier, write one of python, state, command, check, judge"],
    ),
    "a misspelt kind of verifier": (
        {"tasks/a.yaml": verify("{stat: store, equals: start}")},
        ["tasks/a.yaml:3: unknown verifier 'stat', did you mean 'state'?"],
    ),
    "a verifier of two kinds": (
        {"tasks/a.yaml": verify("{python: verifiers/sold.py, state: store}")},
        ["tasks/a.yaml:3: 'verify' is 2 verifiers at once (python, state), give each a list item of its own"],
    ),
    "the state of an env that is not there": (
        {"tasks/a.yaml": verify("{state: stor, equals: start}")},
        ["tasks/a.yaml:3: there is no env 'stor', did you mean 'store'?"],
    ),
    "the state of a sandbox": (
        {"bundle.yaml": BOX, "tasks/a.yaml": verify("{state: box, equals: start}")},
        ["tasks/a.yaml:3: env 'box' is a sandbox, whose state is not compared, use a command: verifier"],
    ),
    "gold that is not there": (
        {"tasks/a.yaml": verify("{state: store, equals: gold}")},
        [
            "tasks/a.yaml:3: the state is compared with what gold leaves, and the task has no gold,"
            " add gold:, or write equals: {after: [...]}"
        ],
    ),
    "a wanted state in other words": (
        {"tasks/a.yaml": verify("{state: store, equals: golden}")},
        ["tasks/a.yaml:3: 'equals' is \"golden\", did you mean 'gold'?"],
    ),
    "a wanted state of no form": (
        {"tasks/a.yaml": verify("{state: store, equals: {befor: x}}")},
        ["tasks/a.yaml:3: 'equals' is a mapping, write gold, start, {after: [calls]} or {universe: file}"],
    ),
    "no wanted state": (
        {"tasks/a.yaml": verify("{state: store}")},
        ["tasks/a.yaml:3: 'equals' is missing, add equals: ..."],
    ),
    "a place that is no pointer": (
        {"tasks/a.yaml": verify("{state: store, equals: start, ignore: [sold]}")},
        ["tasks/a.yaml:3: item 1 of 'ignore' is \"sold\", write a JSON Pointer, which begins with a /"],
    ),
    "a wanted state of another kind": (
        {"tasks/a.yaml": verify("{state: store, equals: {universe: universes}}")},
        [
            "tasks/a.yaml:3: 'universes' is a universe of kind directory, and env 'store' has one of kind json,"
            " write the end state in the same form"
        ],
    ),
    "a call of the wanted state that is no tool": (
        {"tasks/a.yaml": verify("{state: store, equals: {after: [{tool: sel}]}}")},
        ["tasks/a.yaml:3: the wanted state calls 'sel', which is no tool, did you mean 'sell'?"],
    ),
    "a check of nothing": (
        {"tasks/a.yaml": verify("{check: {}}")},
        ["tasks/a.yaml:3: the check checks nothing, write called:, not_called:, said: or not_said:"],
    ),
    "a check of words that are none": (
        {"tasks/a.yaml": verify("{check: {said: ['**']}}")},
        ["tasks/a.yaml:3: item 1 of 'said' is \"**\", write words or a number"],
    ),
    "a file for the score without a name": (
        {"bundle.yaml": BOX, "tasks/a.yaml": verify("{command: x, score_file: ''}")},
        ["tasks/a.yaml:3: 'score_file' is empty, write some text"],
    ),
    "the state of a server at a url": (
        {
            "bundle.yaml": HEADER + "  web: {mcp: {url: 'http://x'}}\nagents: {clerk: {envs: [store, web]}}\n",
            "tasks/a.yaml": verify("{state: web, equals: start}"),
        },
        [
            "tasks/a.yaml:3: env 'web' is a server that keeps no state of the episode's own,"
            " use a check: verifier, or let each episode start a server"
        ],
    ),
    "a check of a tool that is not there": (
        {"tasks/a.yaml": verify("{check: {not_called: [{tool: sell}, {tool: seel}]}}")},
        ["tasks/a.yaml:3: the check names 'seel', which is no tool, did you mean 'sell'?"],
    ),
    "a judge whose model is not there": (
        {"tasks/a.yaml": verify("{judge: {model: small, prompt: 'Was it {{ conversation }} good?'}}")},
        ["tasks/a.yaml:3: there is no model 'small', add models: to bundle.yaml"],
    ),
    "a judge's prompt that cannot be written": (
        {
            "bundle.yaml": HEADER + MODEL,
            "tasks/a.yaml": verify("{judge: {model: small, prompt: 'Was {{ conversion }} good?'}}"),
        },
        [
            "tasks/a.yaml:3: the template uses 'conversion', which is not defined (in task 'a'), did you mean 'conversation'?"
        ],
    ),
    "a weight that is no number": (
        {"tasks/a.yaml": verify("{python: verifiers/sold.py, weight: heavy}")},
        ["tasks/a.yaml:3: 'weight' is \"heavy\", write a number"],
    ),
    "weights that are all nothing": (
        {"tasks/a.yaml": verify("{python: verifiers/sold.py, weight: 0}")},
        [
            "tasks/a.yaml:1: every weight of task 'a' is 0, so its reward always is, give the step that counts a weight above 0"
        ],
    ),
    "a gate that is neither true nor false": (
        {"tasks/a.yaml": verify("{python: verifiers/sold.py, required: 1}")},
        ["tasks/a.yaml:3: 'required' is 1, write true or false"],
    ),
    # skills
    "a skill in a short task that is not there": (
        {"tasks/a.yaml": "id: a\nskills: [sums]\n" + prompt("x").split("\n", 1)[1]},
        ["tasks/a.yaml:2: there is no skill 'sums', add skills/sums/SKILL.md"],
    ),
    "a skill that describes nothing": (
        {"tasks/a.yaml": "id: a\nskills: [sums]\n" + prompt("x").split("\n", 1)[1], "skills/sums/SKILL.md": "\n"},
        [
            "tasks/a.yaml:2: 'skills/sums/SKILL.md' does not say what the skill is for, add description: to its front matter"
        ],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_validation_says_what_is_wrong_where_and_what_to_write(
    name: str, small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """Each problem is one line, and the bundle without it is whole."""
    files, says = BROKEN[name]
    assert [str(problem) for problem in validate_bundle(write_bundle({**small_bundle, **files}))] == says


@pytest.mark.parametrize("name", ["a script that takes nothing", "a prompt's tool that is not there"])
def test_without_code_only_the_files_are_checked(
    name: str, small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """`run_code=False` imports nothing of the bundle, so what only its Python shows is not said."""
    bomb = {"verifiers/sold.py": "raise SystemExit('imported')\n"}
    files, _ = BROKEN[name]
    assert validate_bundle(write_bundle({**small_bundle, **files, **bomb}), run_code=False) == []
