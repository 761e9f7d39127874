"""Texts that are written from templates: what a template may do, and that it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_env import BundleError, Outcome, load_bundle, play
from agent_env.bundle import TextSource
from agent_env.bundle.validate import validate_bundle
from agent_env.cli import root as cli
from agent_env.outcome import FailureKind

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]

PARAMS: dict[str, Any] = {
    "name": "Ann",
    "count": 3,
    "price": 1.5,
    "rows": [{"id": 1, "tags": ["a", "b"]}, {"id": 2, "tags": []}],
    "tree": [1, [2, [3, 4]], []],
    "text": "one two\nthree",
    "none": None,
}
TREE = (
    "{% for x in params.tree recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }};{% endif %}{% endfor %}"
)
ORDINARY = [
    "{{ params.name }} {{ params['count'] }} {{ params.price }} {{ params.none }} {{ tags }} {{ task_id }}",
    "{% for row in params.rows %}{{ loop.index }}/{{ loop.length }} {{ row.id }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for key, value in params.rows[0].items() %}{{ key }}={{ value }};{% else %}none{% endfor %}",
    "{% for x in params.tree[0:1] if x > 5 %}{{ x }}{% else %}none{% endfor %}",
    TREE,
    "{{ params.rows|map(attribute='id')|join(', ') }} {{ params.rows|selectattr('tags')|list|length }} {{ [3, 1, 2]|sort }}",
    "{{ params.rows|groupby('id')|list|length }} {{ [1, 2, 3]|sum }} {{ [1, 2, 3]|batch(2, 0)|list }} {{ range(3)|list }}",
    "{{ [1, 2, 3]|slice(2)|list }} {{ params.rows|tojson(2) }} {{ params.text|indent(2) }} {{ params.text|wordwrap(4) }}",
    "{{ 'x' * 3 ~ params.count ~ params.rows }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ 1.5 * 2 }}",
    "{{ '%05d|%-4s|%.2f|%%' % (3, 'a', 1.5) }} {{ '%s of %s'|format(1, 2) }} {{ '{:>5}|{:.1f}|{{}}'.format(7, 1.25) }}",
    "{{ 'Order 1234567890 of {} in 100%'.format(params.name) }} {{ '{a[b]}'.format(a={'b': 1}) }}",
    "{{ params.text.split() }} {{ params.text.replace('o', '0') }} {{ ', '.join(params.rows[0].tags) }} {{ 'a'.center(5) }}",
    "{{ params.text|replace('o', '0')|upper|center(30) }} {{ params.text|truncate(8) }} {{ '<b>'|e }} {{ ' a '|trim }}",
    "{% macro cell(x, wide=false) %}[{{ x }}{{ caller() if caller is defined else '' }}]{% endmacro %}"
    "{{ cell(1) }}{% call cell(2) %}!{% endcall %}",
    "{% set ns = namespace(total=0) %}{% for row in params.rows %}{% set ns.total = ns.total + row.id %}{% endfor %}"
    "{{ ns.total }}",
    "{{ params.tree == [1, [2, [3, 4]], []] }} {{ 2 in [1, 2] }} {{ 1 < 2 < 3 }} {{ 'two' in params.text }} {{ (1, 2) }}",
    "{% set block %}a{{ 1 }}{% endset %}{{ block }}{% filter upper %}abc{% endfilter %}{% set a, b = 1, 2 %}{{ a + b }}",
    "{% if params.count is divisibleby(3) and params.name is eq('Ann') %}yes{% endif %}{{ params.x|default('?') }}",
    "{{ params.text[::-1] }} {{ params.text[4:] }} {{ dict(a=1, b=2) }} {{ [1, 2]|first }} {{ '5'|int + 1 }} {{ 3.7|round }}",
    "{% autoescape true %}{{ '<' ~ 'b>' }}{% endautoescape %}{% with x = 5 %}{{ x }}{% endwith %}{{ cycler(1, 2).next() }}",
]


def source(tmp_path: Path, text: str) -> TextSource:
    """A text of the bundle in that folder."""
    return TextSource(text, tmp_path)


def written(tmp_path: Path, template: str, **params: Any) -> str:
    """The text for a task."""
    return source(tmp_path, template).render(params=params, task_id="a", tags=("x", "y"))


@pytest.mark.parametrize("text", ORDINARY)
def test_what_templates_do_is_jinjas(tmp_path: Path, text: str) -> None:
    """Counting changes nothing of what is written."""
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    expected = plain.from_string(text).render(params=PARAMS, task_id="a", tags=("x", "y"))
    assert written(tmp_path, text, **PARAMS) == expected


STEPS = "does more than 2,000,000 steps, have it loop over less"
LARGE = "makes a text or a list of more than 10,000,000 characters, have it make less"
WIDTH = "asks for a width or precision of more than 10,000,000, write a smaller one"
TAKEN = "takes the width of a format from a value, write the width in the format itself"
BITS = "makes a number of more than 20,000 bits, have it calculate with smaller numbers"
CIRCLE = "is nested too deeply, or goes in a circle, have it end, or make it flatter"
DEEP = "makes lists in lists, more than 200 deep, have it make them flatter"
BIG = "{% set big = 'x' * 5000000 %}"
OFTEN = "{% for i in range(99999) %}"
LISTS = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"

ENDLESS = {
    "loops in loops": (OFTEN + OFTEN + "{% endfor %}{% endfor %}", STEPS),
    "loops that write nothing": (OFTEN + "{% for b in range(99999) if false %}{% endfor %}{% endfor %}", STEPS),
    "loops over a text": ("{% for a in '" + "a" * 9999 + "' %}{% for b in '" + "b" * 9999 + "' %}{% endfor %}{% endfor %}", STEPS),
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        STEPS,
    ),
    "a loop in itself": ("{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}", CIRCLE),
    "a text that includes itself": ("{% include 'self.txt' %}", CIRCLE),
    "a text that includes itself twice": ("{% set n = 60 %}{% include 'twice.txt' %}", STEPS),
    "'x' times": ("{{ 'x' * 10 ** 9 }}", LARGE),
    "times 'x'": ("{{ 10 ** 9 * 'x' }}", LARGE),
    "a list times": ("{{ [0] * 10 ** 9 }}", LARGE),
    "a power": ("{{ 9 ** (9 ** 9) }}", BITS),
    "a power of a power": ("{{ 2 ** 20000 ** 2 }}", BITS),
    "a number from hex": ("{{ ('f' * 5000000)|int(0, 16) // 3 }}", BITS),
    "a width": ("{{ '%999999999d' % 1 }}", WIDTH),
    "a precision": ("{{ '%.999999999f' % 1.5 }}", WIDTH),
    "a width from a value": ("{{ '%*d' % (999999999, 1) }}", TAKEN),
    "a precision from a value": ("{{ '%.*f'|format(999999999, 1.5) }}", TAKEN),
    "a width in braces": ("{{ '{:999999999}'.format(1) }}", WIDTH),
    "a width in braces from a value": ("{{ '{:{}}'.format(1, 999999999) }}", TAKEN),
    "a width in braces from within a value": ("{{ '{0:{1[w]}}'.format(1, {'w': 999999999}) }}", TAKEN),
    "format_map": ("{{ '{a:{b}}'.format_map({'a': 1, 'b': 999999999}) }}", TAKEN),
    "the filter center": ("{{ 'x'|center(10 ** 9) }}", WIDTH),
    "center": ("{{ 'x'.center(10 ** 9) }}", WIDTH),
    "center, mapped": ("{{ ['x']|map('center', 10 ** 9)|list }}", WIDTH),
    "center, by the filter attr": ("{{ ('x'|attr('center'))(10 ** 9) }}", WIDTH),
    "ljust": ("{{ 'x'.ljust(10 ** 9) }}", WIDTH),
    "zfill": ("{{ 'x'.zfill(10 ** 9) }}", WIDTH),
    "expandtabs": ("{{ '\t'.expandtabs(10 ** 9) }}", WIDTH),
    "many tabs": ("{{ ('\t' * 100000).expandtabs(100000) }}", LARGE),
    "indent": ("{{ 'x\ny'|indent(10 ** 9) }}", WIDTH),
    "many lines indented": ("{{ ('\n' * 100000)|indent(100000) }}", LARGE),
    "tojson": ("{{ [1]|tojson(10 ** 9) }}", WIDTH),
    "batch": ("{{ [1]|batch(10 ** 9, 'x')|list }}", WIDTH),
    "slice": ("{{ [1]|slice(10 ** 9)|list }}", WIDTH),
    "round": ("{{ 1.5|round(10 ** 9, 'ceil') }}", "asks for a width or precision of more than 1,000, write a smaller one"),
    "replace": (BIG + "{{ big.replace('x', 'y' * 1000) }}", LARGE),
    "the filter replace": (BIG + "{{ big|replace('', 'y' * 1000) }}", LARGE),
    "join": (BIG + "{{ big.join(['a'] * 1000) }}", LARGE),
    "join, of what is not a list": (BIG + "{{ big.join(range(99999)|map('string')) }}", STEPS),
    "the filter join": (BIG + "{{ range(99999)|join(big) }}", LARGE),
    "translate": (BIG + "{{ big.translate({120: 'y' * 1000}) }}", LARGE),
    "sum of lists": ("{{ ([[1] * 1000] * 3000)|sum(start=[]) }}", STEPS),
    "a text that doubles": (
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        LARGE,
    ),
    "a text that is added to itself": (
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        LARGE,
    ),
    "lists that double": (LISTS + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}", STEPS),
    "tuples that double": (LISTS + "{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}", STEPS),
    "views that double": (
        LISTS + "{% set ns.x = [{'a': ns.x}.items(), {'b': ns.x}.values()] %}{% endfor %}{{ ns.x }}",
        STEPS,
    ),
    "tuples in tuples": ("{% set ns = namespace(x=()) %}" + OFTEN + "{% set ns.x = (ns.x,) %}{% endfor %}", DEEP),
    "a text written often": (BIG + OFTEN + "{{ big }}{% endfor %}", LARGE),
    "a template's own text, often": (OFTEN + "y" * 9999 + "{% endfor %}", LARGE),
    "a block of that": ("{% set x %}" + OFTEN + "y" * 200 + "{% endfor %}{% endset %}", LARGE),
    "a long text changed often": (BIG + OFTEN + "{% set y = big.upper() %}{% endfor %}", STEPS),
    "a long text cut often": (BIG + OFTEN + "{% set y = big[1:] %}{% endfor %}", STEPS),
    "a long text compared often": (BIG + OFTEN + "{% if big == big ~ 'x' %}{% endif %}{% endfor %}", STEPS),
    "a text looked for backwards": (BIG + "{{ big.rfind('b' ~ 'x' * 2000000) }}", STEPS),
    "a text trimmed": (BIG + "{{ big.strip('y' * 5000 ~ 'x') }}", STEPS),
    "a text trimmed by the filter": (BIG + "{{ big|trim('y' * 5000 ~ 'x') }}", STEPS),
    "one long word wrapped": (BIG + "{{ big|wordwrap(1) }}", STEPS),
    "comments taken out": ("{{ ('<!--' * 1000000)|striptags }}", STEPS),
    "pprint": ("{{ range(99999)|list|pprint }}", STEPS),
    "a template of many parts": ("{{ 1" + " ~ 1" * 20_000 + " }}", STEPS),
    "brackets": ("{{ " + "[" * 2000 + "]" * 2000 + " }}", CIRCLE),
    "minus signs": ("{{ " + "-" * 2000 + "1 }}", CIRCLE),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_too_much_says_so(tmp_path: Path, name: str) -> None:
    """Soon, in one line, with the file and line; whatever it does, and whatever it does it with."""
    text, says = ENDLESS[name]
    (tmp_path / "self.txt").write_text("{% include 'self.txt' %}")
    (tmp_path / "twice.txt").write_text(
        "{% set n = n - 1 %}{% if n %}{% include 'twice.txt' %}{% include 'twice.txt' %}{% endif %}"
    )
    with pytest.raises(BundleError) as caught:
        written(tmp_path, text)
    (problem,) = caught.value.problems
    assert str(problem).endswith(f": task 'a': the template {says}")
    assert problem.line == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ 'x'.encode('punycode') }}", "access to attribute 'encode' of 'str' object is unsafe"),
        ("{{ lipsum(10) }}", "the template uses 'lipsum', which is not defined"),
        ("{{ 'a@b'|urlize }}", "the template does not parse: No filter named 'urlize'"),
        ("{{ range(10 ** 6) }}", "Range too big"),
    ],
)
def test_what_no_prompt_needs_is_not_there(tmp_path: Path, text: str, says: str) -> None:
    """It makes texts of any length, or takes any time."""
    with pytest.raises(BundleError, match=says):
        written(tmp_path, text)


def test_a_namespace_that_holds_itself_is_written_without_end_by_nobody(tmp_path: Path) -> None:
    """Written out, it has a name."""
    assert written(tmp_path, "{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns }}") == "<Namespace>"


def test_a_long_table_is_written(tmp_path: Path) -> None:
    """The bounds are far from what prompts are: 5,000 rows, and a document of 5 MB."""
    rows = [{"name": f"row {index}", "tags": ["a", "b"]} for index in range(5000)]
    text = "{% for row in params.rows %}{{ loop.index }}. {{ row.name }}: {{ row.tags|join(',')|upper }}\n{% endfor %}"
    assert written(tmp_path, text, rows=rows).count("\n") == 4999
    document = "word " * 1_000_000
    assert written(tmp_path, "Read:\n{{ params.document }}", document=document) == f"Read:\n{document}"


def test_what_takes_longer_is_left_to_a_thread(tmp_path: Path) -> None:
    """An event loop writes at once what is short; a mistake is told either way."""
    names: dict[str, Any] = {"params": {"rows": list(range(5000))}, "task_id": "a", "tags": ()}
    assert source(tmp_path, "{{ task_id }}").at_once(**names) == "a"
    assert source(tmp_path, "no template\n").at_once(**names) == "no template"
    long = source(tmp_path, "{% for row in params.rows %}{{ row }}{% endfor %}")
    assert long.at_once(**names) is None
    assert long.render(**names).endswith("4999")
    with pytest.raises(BundleError, match="uses 'nope', which is not defined"):
        source(tmp_path, "{{ nope }}").at_once(**names)


def test_validation_ends_and_names_the_file(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Also without running the bundle's code; each text is given up once, and not for each task again."""
    loops = f"Sell.\n{OFTEN}\n{OFTEN}{{% endfor %}}{{% endfor %}}\n"
    more = {
        f"tasks/more{index}.yaml": small_bundle["tasks/a.yaml"].replace("id: a", f"id: m{index}") for index in range(99)
    }
    path = write_bundle({**small_bundle, **more, "prompts/policy.md": loops})
    line = f"prompts/policy.md:3: the template {STEPS.replace(', have', ' (in task ' + repr('a') + '), have')}"
    assert [str(problem) for problem in validate_bundle(path, run_code=False)] == [line]
    ran = CliRunner().invoke(cli, ["validate", "--no-code", str(path)])
    assert (ran.exit_code, ran.output) == (1, f"{line}\n")


def test_an_episode_whose_prompt_does_too_much_fails(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Like any other prompt that cannot be written."""
    path = write_bundle({**small_bundle, "prompts/policy.md": OFTEN + OFTEN + "{% endfor %}{% endfor %}"})
    result = asyncio.run(play(load_bundle(path).task("a"), lambda turn: {"role": "assistant", "content": "x"}))
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.PROMPT
    assert STEPS in result.failure.message
