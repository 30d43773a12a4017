"""Names that expressions are found in: as `re` finds them, and never for ever."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.figures.names import LONGEST_PATTERN, LONGEST_S, PatternError, check, found_in

PATTERNS = ["gemm", "^h2d$", "a|b", "[0-9]+$", "copy.*kernel", r"\bmm\b", "(ab)*c", "", "x{2,3}"]


@given(st.lists(st.text("ab0xcGEMm ", max_size=12)), st.sampled_from(PATTERNS))
def test_what_is_found_is_what_python_finds(texts: list[str], pattern: str) -> None:
    compiled = re.compile(pattern, re.IGNORECASE)
    assert found_in(texts, pattern).tolist() == [bool(compiled.search(text)) for text in texts]


def test_names_that_are_no_unicode_do_no_harm() -> None:
    assert found_in(["\udc80gemm", "\x00", ""], "gemm").tolist() == [True, False, False]


def test_what_would_never_end_ends() -> None:
    began = time.monotonic()
    assert not found_in(["a" * 2_000 + "!"] * 100, "(a+)+$").any()
    assert time.monotonic() - began < 1


def test_what_takes_long_is_given_up() -> None:
    with pytest.raises(PatternError, match="takes too long"):
        found_in(["a" * 2_000] * 10_000, "((a{1,30}){1,30})b")
    assert LONGEST_S < 5


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "[", "a" * (LONGEST_PATTERN + 1)])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="expression"):
        check(pattern)
