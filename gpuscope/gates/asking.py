"""Figures of a range by method, for tests in Python: the language of expectations inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.analysis import Options
from gpuscope.errors import CannotJudgeError, UsageError
from gpuscope.gates.budget import quoted
from gpuscope.gates.grammar import VERDICTS, Bound, parse
from gpuscope.gates.verify import CAUSES, verify
from gpuscope.model.gates import GateRow
from gpuscope.model.trace import Trace


@dataclass(frozen=True, slots=True, repr=False)
class Figures:
    """The figures of one range, or of the whole trace, on one device of a process.

    Every method raises :class:`~gpuscope.errors.CannotJudgeError` where `gpuscope verify` could not
    judge: no figure is 0 because it could not be taken. Times are in ns, rates in bytes/s.
    """

    traces: tuple[Trace, ...]
    options: tuple[Options, ...]
    scope: str
    """The scope as an expectation writes it, with its colon; empty: the whole trace."""
    where: str
    """The same as the scope of a cause."""
    attribute: str | None

    def __repr__(self) -> str:
        """Name the scope and the traces, not all of their tables."""
        scope = self.scope.removesuffix(": ") or "the whole trace"
        return f"<Figures of {scope} in {', '.join(trace.path for trace in self.traces)}>"

    def hidden(self, a: str, *, by: str) -> float:
        """Return the share of the busy time of class `a` that lies under class `by`."""
        return self._number(f"hidden({a}, {by})")

    def overlap(self, a: str, b: str) -> float:
        """Return the overlap of two classes by the smaller one's busy time."""
        return self._number(f"overlap({a}, {b})")

    def verdict(self, a: str, b: str) -> str:
        """Return the verdict on a pair of classes."""
        return str(self.value(f"verdict({a}, {b})"))

    def exposed(self, a: str) -> float:
        """Return the time in which class `a` runs under no kernel: the median instance's."""
        return self._number(f"exposed({a})")

    def busy(self, a: str | None = None) -> float:
        """Return the time in which class `a`, or anything, runs: the median instance's."""
        return self._number(f"busy({a})" if a else "busy")

    def rate(self, a: str) -> float:
        """Return the bytes/s that class `a` moves while it is busy."""
        return self._number(f"rate({a})")

    def value(self, figure: str) -> float | str:
        """Return any figure that an expectation can name, such as ``span.p90``.

        What is ``worst`` or ``best`` only a comparison tells: :meth:`expect` has one.
        """
        if figure.rstrip().endswith((".worst", ".best")):
            msg = f"{figure} depends on what it is compared with: use expect({figure + ' …'!r})."
            raise UsageError(msg)
        kind = "==" if figure.lstrip().startswith("verdict") else ">="
        row = self._judge(
            f"{self.scope}{figure} {kind} {'|'.join(VERDICTS) if kind == '==' else 0}"
        )
        if len(row.scopes) > 1:
            msg = (
                f"{figure} has {len(row.scopes)} values, one for each GPU, process and range of "
                "that name: choose with process=, rank= or device=, or use expect()."
            )
            raise UsageError(msg)
        value = row.scopes[0].value
        assert value is not None  # it was judged
        return value

    def expect(self, text: str) -> None:
        """Hold an expectation, without its scope, against the range.

        Raises
        ------
        AssertionError
            It is not met; the message has the measured value.
        """
        parsed = parse(self.scope + text, CAUSES)
        row = self._judge(self.scope + text)
        if not row.met:
            word = "is not met" if isinstance(parsed, Bound) else "was found"
            raise AssertionError(f"{row.expectation} {word}: {row.text}")

    def lacks(self, *causes: str) -> bool:
        """Return whether none of some causes is found in the range."""
        return bool(self._judge(f"no {'|'.join(causes)}{self.where}").met)

    def _number(self, figure: str) -> float:
        value = self.value(figure)
        assert not isinstance(value, str)  # only verdicts are words
        return value

    def _judge(self, text: str) -> GateRow:
        done = verify(self.traces, [parse(text, CAUSES)], self.options, attribute=self.attribute)
        (row,) = done.rows
        if row.met is None:
            msg = f"{row.expectation}: {row.text}."
            raise CannotJudgeError(msg)
        return row


def ask(
    traces: Sequence[Trace],
    options: Sequence[Options],
    name: str | None = None,
    *,
    path: str | None = None,
    process: int | None = None,
    rank: int | None = None,
    device: int | None = None,
    attribute: str | None = None,
) -> Figures:
    """Return the figures of a range of the traces of one run.

    Parameters
    ----------
    traces, options
        The traces of one run, and the ratio limits and transfer times of each.
    name
        Name of the range; None: the whole trace.
    path
        The range by its nesting path instead.
    process, rank, device
        Where several have the range.
    attribute
        ``thread`` or ``process``, as `gpuscope verify --attribute`.
    """
    if name is not None and path is not None:
        msg = "give the name of a range or its path, not both."
        raise UsageError(msg)
    scope = quoted(name) if name is not None else f"path {quoted(path)}" if path is not None else ""
    chosen = {"process": process, "rank": rank, "device": device}
    selectors = ", ".join(f"{key}={value}" for key, value in chosen.items() if value is not None)
    scope += f"[{selectors}]" if selectors else ""
    return Figures(
        tuple(traces),
        tuple(options),
        f"{scope}: " if scope else "",
        f" in {scope}" if scope else "",
        attribute,
    )
