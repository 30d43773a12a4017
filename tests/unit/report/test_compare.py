"""Comparisons as text and markdown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpuscope.model.comparison import (
    CauseChange,
    Change,
    Comparison,
    OperationChange,
    ScopeChange,
)
from gpuscope.report.compare import describe, render_comparison, to_markdown

WORSE = Change("span", "time", 10e6, 15e6, 9, 9, 4e6, 6e6, 12.3, "worse")
ALIKE = Change("count", "count", 1, 1, 9, 9, None, None, None, "same")
OPEN = Change("span", "time", 10e6, 15e6, 1, 1, None, None, None, "unclear")


def scope(path: str | None, *figures: Change, operations: int = 0) -> ScopeChange:
    moved = Change("start", "time", 0, 2e6, 9, 9, 1e6, 3e6, None, "changed")
    each = tuple(
        OperationChange(f"k{i}", "kernel", "both", ALIKE, None, moved) for i in range(operations)
    )
    return ScopeChange(path, None, 0, 0, "both", 9, 9, figures, each)


def comparison(*scopes: ScopeChange, outcome: str = "changed") -> Comparison:
    cause = CauseChange("host-sync", "st|ep", None, 0, 0, "appeared", 0, 1, "it \x1b[31mwaits")
    return Comparison(("a.sqlite",), ("b.sqlite",), outcome, scopes, (cause,), ("one note",))


def text_of(given: Comparison) -> str:
    text = io.StringIO()
    render_comparison(given, Console(file=text, width=120))
    return text.getvalue()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            WORSE,
            "10.0 ms → 15.0 ms  +5.00 ms (+50 %)  [+4.00 ms … +6.00 ms, 12 × the spread]  worse",
        ),
        (OPEN, "10.0 ms → 15.0 ms  +5.00 ms (+50 %)  unclear: 1 sample"),
        (
            Change("o", "time", 10_000_000, 5_000_000, 1, 1, None, None, None, "unclear"),
            "10.0 ms → 5.00 ms  −5.00 ms (−50 %)  unclear: 1 sample",
        ),
        (
            Change("o", "ratio", 0.75, 0.5, 9, 9, -0.3, -0.2, None, "worse"),
            "75.0 % → 50.0 %  −25.0 points  [−30.0 … −20.0]  worse",
        ),
        (Change("o", "ratio", None, 0.5, 0, 9, None, None, None, "changed"), "– → 50.0 %"),
        (Change("n", "count", 1, 2, 1, 1, None, None, None, "changed"), "1 → 2  +1  changed"),
    ],
)
def test_a_change_in_words(change: Change, text: str) -> None:
    assert describe(change) == text


def test_what_is_noise_is_only_named() -> None:
    out = text_of(comparison(scope("train/step", WORSE), scope("eval"), scope(None, OPEN)))

    assert "train/step · GPU 0  ×9 → ×9" in out
    assert "nothing beyond noise: eval" in out
    assert "too few instances to tell noise (--json has the figures): (whole trace)" in out
    assert "+ host-sync in st|ep appeared: it �[31mwaits" in out
    assert out.splitlines()[-1] == "changed"


def test_without_anything_sure_what_is_unclear_is_shown() -> None:
    out = text_of(comparison(scope("a", OPEN), outcome="unclear"))

    assert "unclear: 1 sample" in out
    assert "too few instances to tell it from noise" in out


def test_long_lists_of_operations_are_cut() -> None:
    out = text_of(comparison(scope("a", operations=15)))

    assert out.count("moved:") == 12
    assert "and 3 more operations" in out


def test_markdown_is_escaped() -> None:
    out = to_markdown(comparison(scope("a|b", WORSE)))

    assert r"| a\|b · GPU 0 ×9 → ×9 | span 10.0 ms" in out.replace("  ", " ")
    assert r"- **host-sync** in st\|ep appeared: it �\[31mwaits" in out


def test_of_very_many_ranges_the_first_are_printed_and_the_others_counted() -> None:
    changed = [scope(f"step {at}", WORSE) for at in range(50)]
    quiet = [scope(f"quiet {at}", ALIKE) for at in range(30)]
    text = " ".join(text_of(comparison(*changed, *quiet)).split())
    assert text.count("span 10.0 ms → 15.0 ms") == 40
    assert "10 more ranges differ: --json has them" in text
    assert "quiet 19, 10 more" in text
    assert "quiet 20" not in text
