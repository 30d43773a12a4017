"""The language of expectations: what it accepts, what it means, where its errors point."""

from __future__ import annotations

import ast
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies

from gpuscope.analyzers import ANALYZERS
from gpuscope.gates.figures import FIGURES, UNITS
from gpuscope.gates.grammar import (
    Bound,
    ExpectationError,
    NoCause,
    ScopeName,
    causes_of,
    parse,
)
from gpuscope.gates.verify import CAUSES

ROOT = Path(__file__).parents[3]


def bound(text: str) -> Bound:
    parsed = parse(text, CAUSES)
    assert isinstance(parsed, Bound)
    return parsed


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("span < 1s", ScopeName()),
        ("step: span < 1s", ScopeName("step")),
        ("step*: span < 1s", ScopeName("step*")),
        ('"a b:c": span < 1s', ScopeName("a b:c")),
        (r'"say \"hi\" \\": span < 1s', ScopeName('say "hi" \\')),
        ("path a/b: span < 1s", ScopeName("a/b", by_path=True)),
        ("path: span < 1s", ScopeName("path")),
        ("no: span < 1s", ScopeName("no")),
        ("[device=1]: span < 1s", ScopeName(device=1)),
        ("step[rank=0, device=1]: span < 1s", ScopeName("step", rank=0, device=1)),
        ("step [ process = 7 ] : span < 1s", ScopeName("step", process=7)),
        ("a.b/c-d: span < 1s", ScopeName("a.b/c-d")),
    ],
)
def test_scopes(text: str, scope: ScopeName) -> None:
    assert bound(text).scope == scope


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("span <= 12ms", 12_000_000),
        ("span <= 1.5 us", 1500),
        ("span <= 1.5µs", 1500),
        ("span <= 2s", 2_000_000_000),
        ("span <= 7 ns", 7),
        ("span <= 1e3 ns", 1000),
        ("span == 0", 0),
        ("hidden(h2d, kernel) >= 0.6", 0.6),
        ("hidden(h2d, kernel) >= 60%", 0.6),
        ("hidden(h2d, kernel) >= 29 %", 0.29),
        ("overlap(h2d, d2h) > .5", 0.5),
        ("count(kernel) == 96", 96),
        ("concurrency(kernel) >= 1.5", 1.5),
        ("bytes(h2d) <= 2MiB", 2_097_152),
        ("bytes(h2d) <= 2 MB", 2_000_000),
        ("rate(h2d) >= 40GB/s", 40_000_000_000),
        ("rate(0>1) >= 40 GB/s", 40_000_000_000),
    ],
)
def test_values_are_exact(value: str, limit: float) -> None:
    assert bound(value).limit == limit


@pytest.mark.parametrize("comparison", [">=", "<=", "==", "!=", ">", "<"])
def test_comparisons(comparison: str) -> None:
    assert bound(f"span {comparison} 1s").comparison == comparison
    assert bound(f"span{comparison}1s").comparison == comparison


@pytest.mark.parametrize("statistic", ["total", "median", "worst", "best", "p10", "p90"])
def test_statistics(statistic: str) -> None:
    assert bound(f"step: busy(kernel).{statistic} <= 1s").statistic == statistic
    assert bound("step: busy(kernel) <= 1s").statistic is None


def test_links_verdicts_and_forms_with_and_without_a_class() -> None:
    assert bound("overlap(0>1, 1>0) > 50%").arguments == ("0>1", "1>0")
    assert bound("s: verdict(h2d, kernel) == overlapped|pipelined").limit == (
        "overlapped",
        "pipelined",
    )
    assert bound("busy < 1s").figure.takes == ""
    assert bound("busy(kernel) < 1s").figure.takes == "A"
    assert bound("only(kernel) < 1s").arguments == ("kernel",)
    assert bound("only(kernel, h2d, d2h) < 1s").arguments == ("kernel", "h2d", "d2h")


def test_absent_causes() -> None:
    parsed = parse('no pageable-copy | same-stream in path "a/b"[rank=1]', CAUSES)

    assert isinstance(parsed, NoCause)
    assert parsed.causes == ("pageable-copy", "same-stream")
    assert parsed.scope == ScopeName("a/b", by_path=True, rank=1)
    assert parse("no host-sync", CAUSES).scope == ScopeName()


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "an expectation is wanted"),
        ("   ", 4, "an expectation is wanted"),
        ("step: hiden(h2d, kernel) > 1", 7, "did you mean 'hidden'"),
        ("step: hidden(h2d, kernl) > 1", 19, "did you mean 'kernel'"),
        ("step: hidden(h2d, gate) > 1", 19, "no class 'gate'"),
        ("step: hidden(h2d, h2d) > 1", 19, "two different classes"),
        ("step: hidden(h2d) > 1", 7, r"it is written hidden\(A, B\)"),
        ("step: hidden > 1", 7, r"it is written hidden\(A, B\)"),
        ("step: hidden(h2d kernel) > 1", 18, "',' is wanted or '\\)' here"),
        ("step: hidden(h2d, kernel > 1", 26, "',' is wanted"),
        ("step: hidden(h2d, kernel)", 26, "one of >="),
        ("step: hidden(h2d, kernel) = 1", 27, "one of >="),
        ("step: hidden(h2d, kernel) >=", 29, "a number is wanted"),
        ("step: hidden(h2d, kernel) >= x", 30, "a number is wanted"),
        ("step: hidden(h2d, kernel) >= 60", 30, "a ratio is at most 1"),
        ("step: hidden(h2d, kernel) >= 101 %", 30, "a ratio is at most 1"),
        ("step: hidden(h2d, kernel) >= 3 ms", 32, "hidden is a ratio: % is wanted"),
        ("step: busy(kernel) <= 12", 25, "ns, us, µs, ms, s is wanted"),
        ("step: count(kernel) <= 12 ms", 27, "count is a count: no unit is wanted"),
        ("step: rate(h2d) >= 40 GB", 23, "B/s, kB/s"),
        ("step: busy(kernel) <= 12ms or so", 28, "nothing more is wanted"),
        ("step: busy(kernel).mean <= 12ms", 20, "did you mean 'median'"),
        ("step: busy(kernel).wurst <= 12ms", 20, "did you mean 'worst'"),
        ("busy(kernel).worst <= 12ms", 14, "the whole trace has no instances"),
        ("step: verdict(h2d, kernel).worst == partial", 28, "one for all instances"),
        ("step: verdict(h2d, kernel) >= partial", 28, "compared with == or !="),
        ("step: verdict(h2d, kernel) == serialised", 31, "did you mean 'serialized'"),
        ("at_once(kernel) > 1 s", 9, "a number from 1"),
        ("at_once(0) > 1 s", 9, "a number from 1"),
        ("at_once(1, 2) > 1 s", 1, r"it is written at_once\(K\)"),
        ("at_once > 1 s", 1, r"it is written at_once\(K\)"),
        ("instances > 3", 1, "a figure of ranges"),
        ("gs:iter: span < 1s", 4, "stands in double quotes"),
        ("my range: span < 1s", 4, "':' is wanted after the scope"),
        ('"my range: span < 1s', 1, "this quote is never closed"),
        (": span < 1s", 1, 'the name of a range is wanted; one without a name is ""'),
        ("step[gpu=1]: span < 1s", 6, "one of process, rank, device"),
        ("step[rank=x]: span < 1s", 11, "the number of the rank"),
        ("step[rank 1]: span < 1s", 11, "'=' is wanted after rank"),
        ("step[rank=1: span < 1s", 12, "',' is wanted or ']'"),
        ("step[rank=1, rank=2]: span < 1s", 14, "rank stands here twice"),
        ("no pagable-copy in step*", 4, "did you mean 'pageable-copy'"),
        ("no host-sync in a:b", 18, "stands in double quotes"),
        ("no host-sync in step and more", 22, "nothing more is wanted"),
        ("no host-sync | in step", 16, "no cause 'in'"),
        ("__import__('os').system('x') > 1", 1, "a figure is wanted"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, message: str) -> None:
    with pytest.raises(ExpectationError, match=message) as caught:
        parse(text, CAUSES)

    first, shown, caret = str(caught.value).split("\n")
    assert f"(column {column})" in first
    assert shown == f"    {text}"
    assert caret.index("^") == 4 + column - 1
    assert caught.value.exit_code == 2


def test_what_a_message_shows_is_one_line_without_control_characters() -> None:
    with pytest.raises(ExpectationError) as caught:
        parse("step: \x1b[31m\nspan", CAUSES, "budget.toml")

    assert str(caught.value).startswith("budget.toml: ")
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value).split("\n")) == 3


def test_every_cause_that_analyzers_report_can_be_expected_to_be_absent() -> None:
    reported: set[str] = set()
    for file in (ROOT / "analyzers").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                values = [word.value for word in node.keywords if word.arg == "id"]
                if isinstance(node.func, ast.Name) and node.func.id == "_finding":
                    values += node.args[:1]
                for part in (part for value in values for part in ast.walk(value)):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        reported.add(part.value)

    assert set(CAUSES) == reported
    assert len(CAUSES) == len(set(CAUSES))
    assert {"one-engine", "imbalance"} <= set(causes_of("limits"))
    assert {analyzer.name for analyzer in ANALYZERS} > {"limits", "trust", "not-seen"}


def test_figures_have_one_meaning_for_each_form() -> None:
    forms = [(figure.name, figure.takes) for figure in FIGURES]

    assert len(forms) == len(set(forms))


TOKENS = [
    "step",
    "no",
    "in",
    "path",
    ":",
    '"',
    "\\",
    "[",
    "]",
    "(",
    ")",
    ",",
    ".",
    "|",
    "=",
    ">=",
    "<",
    "%",
    "hidden",
    "busy",
    "h2d",
    "kernel",
    "verdict",
    "overlapped",
    "worst",
    "rank",
    "0.6",
    "12",
    "ms",
    "0>1",
    "GB/s",
    "host-sync",
    " ",
    "\n",
    "é",
    "\x1b",
]


@given(strategies.lists(strategies.sampled_from(TOKENS), max_size=14).map("".join))
def test_any_text_parses_or_is_an_error_inside_it(text: str) -> None:
    try:
        parsed = parse(text, CAUSES)
    except ExpectationError as error:
        found = re.search(r"\(column (\d+)\)\n", str(error))
        assert found is not None
        assert 1 <= int(found[1]) <= len(text) + 1
    else:
        assert parsed == parse(f"  {parsed.text}  ", CAUSES)


@given(strategies.text(min_size=1), strategies.sampled_from(["", "[rank=1]"]))
def test_any_name_can_be_quoted(name: str, selectors: str) -> None:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')

    assert bound(f'"{escaped}"{selectors}: span < 1s').scope.pattern == name


@given(
    strategies.fractions(min_value=0, max_value=10**6, max_denominator=1000),
    strategies.sampled_from(sorted(UNITS["time"].items())),
)
def test_values_are_read_without_rounding(value: Fraction, unit: tuple[str, float]) -> None:
    digits = f"{value.numerator * 1000 // value.denominator / 1000:.3f}"
    limit = bound(f"span <= {digits} {unit[0]}").limit

    assert limit == float(Fraction(digits) * Fraction(unit[1]))
