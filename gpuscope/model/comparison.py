"""What changed between two runs: frozen dataclasses that mirror ``gpuscope compare --json``.

Values are unrounded: times in ns, ratios from 0 to 1, counts as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1

SAME, NOISE, SMALL, UNCLEAR = "same", "noise", "small", "unclear"
BETTER, WORSE, CHANGED = "better", "worse", "changed"
REAL = frozenset({BETTER, WORSE, CHANGED})
"""Outcomes that are more than noise; with `UNCLEAR` too few instances leave that open."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after: medians over instances."""

    figure: str
    """As an expectation writes it, such as ``overlap(h2d, kernel)``."""
    kind: str
    """``time``, ``ratio`` or ``count``."""
    before: float | None
    """None: it is not there."""
    after: float | None
    samples_before: int
    samples_after: int
    low: float | None
    """The difference after less before lies between low and high: 95 %, by bootstrap. None: too
    few samples."""
    high: float | None
    effect: float | None
    """The size of the difference by the spread of the samples; None without spread."""
    outcome: str
    """same, noise (the spread explains it), small (too small to matter), unclear (too few samples
    to tell noise), better, worse or changed."""

    @property
    def difference(self) -> float | None:
        """After less before."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class OperationChange:
    """The kernels of one name, or the copies of one class, in a scope."""

    name: str
    op_class: str
    state: str
    """``new``, ``gone`` or ``both``."""
    count: Change
    """Per instance."""
    duration: Change | None
    """Of one operation; None where it is new or gone."""
    start: Change | None
    """From the scope's first operation to its own, over the occurrences that both have."""


@dataclass(frozen=True, slots=True)
class ScopeChange:
    """A range, or the whole trace, on one device of a process."""

    path: str | None
    """None: the whole trace."""
    rank: int | None
    """None where it is not known, or another on each side."""
    process: int
    """Number of the process in the order of the trace, from 0: pids differ from run to run."""
    device: int
    """Number of the device among those of its process, from 0."""
    state: str
    """``new``, ``gone`` or ``both``."""
    instances_before: int
    instances_after: int
    figures: tuple[Change, ...]
    operations: tuple[OperationChange, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the figures, then those of the operations."""
        of_operations = (
            change
            for each in self.operations
            for change in (each.count, each.duration, each.start)
            if change is not None
        )
        return (*self.figures, *of_operations)

    @property
    def changed(self) -> bool:
        """Whether both sides have it, and something in it changed beyond noise."""
        return self.state == "both" and any(change.outcome in REAL for change in self.changes)


@dataclass(frozen=True, slots=True)
class CauseChange:
    """A cause that one side has and the other has not."""

    id: str
    range: str | None
    rank: int | None
    process: int | None
    device: int | None
    state: str
    """``appeared`` or ``vanished``."""
    runs_before: int
    """Runs that have it."""
    runs_after: int
    claim: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, or two sets of repetitions, against each other."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    outcome: str
    """``identical``, ``noise`` (nothing beyond it), ``unclear`` or ``changed``."""
    scopes: tuple[ScopeChange, ...]
    causes: tuple[CauseChange, ...]
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def first_changed(self) -> str | None:
        """Path of the first range that both sides have and that changed."""
        return next((scope.path for scope in self.scopes if scope.path and scope.changed), None)
