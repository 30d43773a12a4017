"""Traces of different runs on one clock, so that a range begins at one time in all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.analysis import Options
from gpuscope.errors import CannotJudgeError
from gpuscope.model.trace import Trace
from gpuscope.scopes import project_ranges


@dataclass(frozen=True, slots=True)
class Alignment:
    """One clock for several traces, from the first operation of all on."""

    shifts_ns: tuple[int, ...]
    """What to add to the times of each trace."""
    note: str
    """Where they are aligned, for people."""
    common: bool = True
    """Whether the traces can be of one run, as far as the times of day tell."""


def align(traces: Sequence[Trace], path: str | None = None) -> Alignment:
    """Align traces at the first operation of a range's first instance, or at their first one.

    Parameters
    ----------
    path
        The range's nesting path, or a glob; None: the first operation of each trace.

    Raises
    ------
    CannotJudgeError
        One of them has no such range.
    """
    anchors = [trace.origin_ns if path is None else _first_ns(trace, path) for trace in traces]
    zero = min(trace.origin_ns - anchor for trace, anchor in zip(traces, anchors, strict=True))
    where = "their first operations" if path is None else f"the first instance of {path}"
    return Alignment(
        tuple(-anchor - zero for anchor in anchors), f"The traces are aligned at {where}."
    )


def _first_ns(trace: Trace, path: str) -> int:
    found = project_ranges(trace, Options(ranges=(path,), by_path=True))
    if not len(found.start_ns):
        msg = f"no range of the path {path!r} in {trace.path} launched GPU work: align at another."
        raise CannotJudgeError(msg)
    return int(found.start_ns.min())


def labelled(trace: Trace, side: str, name: str) -> Trace:
    """Return a trace under a name that tells it from the other on the page."""
    return dataclasses.replace(trace, path=f"{side}: {name}")
