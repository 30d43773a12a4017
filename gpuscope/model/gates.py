"""What gates say: frozen dataclasses that mirror the JSON of ``gpuscope verify --json``.

Values are unrounded: times in ns, ratios from 0 to 1, sizes in bytes, rates in bytes/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope import errors

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One expectation in one scope: a range, or the whole trace, on one device of a process."""

    trace: str
    range: str | None
    process: int | None = None
    rank: int | None = None
    device: int | None = None
    value: float | str | None = None
    """None where it cannot be told."""
    instances: int | None = None
    """Instances that the value is a statistic of; None for sums and the whole trace."""
    instance: int | None = None
    """Number of the instance that the value is of; None where it is not of a single one."""
    met: bool | None = None
    """None: it cannot be judged."""
    text: str = ""
    """The value for people, or why there is none."""


@dataclass(frozen=True, slots=True)
class GateRow:
    """One expectation, and what became of it in every scope that it speaks of."""

    expectation: str
    source: str
    """Where it was written, such as ``budget.toml``; empty for the command line."""
    met: bool | None
    """False if any scope fails it; else None if any cannot be judged."""
    text: str
    """The scope that decided, for people."""
    scopes: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of all expectations."""

    traces: tuple[str, ...]
    rows: tuple[GateRow, ...]
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0: all met; 4: one is not; 5: none fails, but one cannot be judged."""
        verdicts = {row.met for row in self.rows}
        if False in verdicts:
            return errors.GateError.exit_code
        return errors.CannotJudgeError.exit_code if None in verdicts else 0
