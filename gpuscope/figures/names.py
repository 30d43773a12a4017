"""Names in which a regular expression is found, in a time that no expression can stretch.

Expressions come from the page. They are matched by RE2, whose time grows with the names alone:
Python's `re` would go through ``(a+)+$`` for longer than anybody lives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

LONGEST_PATTERN = 500
"""Characters of an expression."""
LONGEST_S = 2.0
"""What takes more of the processor is given up: counting, as ``(a{1,30}){1,30}`` does, is slow."""
_BATCH = 50_000
"""Characters that are searched between two looks at the clock."""


class PatternError(ValueError):
    """The expression is none, or takes too long; ``str(error)`` says so."""


def check(pattern: str) -> None:
    """Refuse what is no expression.

    Raises
    ------
    PatternError
        It is none.
    """
    found_in([""], pattern)


def found_in(texts: Sequence[str], pattern: str) -> npt.NDArray[np.bool_]:
    """Return, a text, whether `pattern` is found in it, in any case; shape (len(texts),).

    Raises
    ------
    PatternError
        It is no expression of RE2 (that knows no lookaround and no references), or takes too long.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(pattern) > LONGEST_PATTERN:
        msg = f"an expression has at most {LONGEST_PATTERN} characters."
        raise PatternError(msg)
    until = time.thread_time() + LONGEST_S
    found = []
    for batch in _batches(texts):
        try:
            hits = pc.match_substring_regex(
                pa.array(batch, pa.string()), pattern=pattern, ignore_case=True
            )
        except pa.ArrowInvalid as error:
            msg = f"this expression cannot be searched for: {str(error).partition(': ')[2]}."
            raise PatternError(msg) from None
        found.append(hits.to_numpy(zero_copy_only=False))
        if time.thread_time() > until:
            msg = "searching for this expression takes too long: make it simpler."
            raise PatternError(msg)
    return np.concatenate(found).astype(np.bool_)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts some at a time, at least once; what is no Unicode is replaced."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text.encode("utf-8", "replace").decode())
        size += len(text)
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    yield batch
