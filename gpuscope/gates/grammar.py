"""The language of expectations: from text to a checked object, errors with the column.

::

    expectation = [scope ":"] figure ["." statistic] comparison value
                | "no" cause {"|" cause} ["in" scope]
    scope       = ["path"] name [selectors] | selectors
    selectors   = "[" key "=" number {"," key "=" number} "]"      key: process, rank, device
    figure      = word ["(" (class {"," class} | count) ")"]
    comparison  = ">=" | ">" | "<=" | "<" | "==" | "!="
    value       = number [unit] | verdict {"|" verdict}
    name        = characters but spaces and : " [ ] | any text in double quotes

Names may be globs. Nothing is evaluated: what does not fit the grammar is an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from gpuscope.errors import UsageError
from gpuscope.gates import figures
from gpuscope.gates.figures import FIGURES, UNITS, VERDICT, Figure
from gpuscope.model.classes import CLASSES

CLASS_NAMES = tuple(name for name in CLASSES if name != "gate")
SELECTORS = ("process", "rank", "device")
STATISTICS = ("total", "median", "worst", "best", "p10", "p90")
COMPARISONS = (">=", "<=", "==", "!=", ">", "<")
VERDICTS = ("overlapped", "pipelined", "partial", "serialized", "immaterial", "inconclusive")

FINDINGS_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("overlap", "ranges", "links", "details", "phases", "schedule", "communication"), ()
    ),
    "driver-model": ("wddm-batching", "confidential-computing"),
    "limits": ("one-engine", "engine-saturated", "imbalance"),
    "not-seen": ("graph-opaque", "other-thread", "not-observable"),
    "same-stream": ("same-stream", "default-stream"),
    "trust": ("lost-records", "coarse-clock", "time-sliced", "profiler-overhead", "perturbed"),
}
"""Causes of the analyzers that do not have just one, named like the analyzer."""

_NAME = re.compile(r'[^\s:"\[\]]+')
_WORD = re.compile(r"[A-Za-z][\w-]*")
_CLASS = re.compile(r"\d+>\d+|[A-Za-z]\w*")
_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_SMALLEST, _LARGEST = 1e-30, 1e30
"""Figures lie between; numbers beyond are slips, and would take long to work with."""
_UNIT = re.compile(r"%|[A-Za-z\u00b5\u03bc]+(/s)?")
"""Keyboards write a micro with the sign of its own or with the Greek letter."""
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class ScopeName:
    """Where an expectation looks."""

    pattern: str | None = None
    """Name, path or glob of ranges; None: the whole trace."""
    by_path: bool = False
    process: int | None = None
    rank: int | None = None
    device: int | None = None

    @property
    def selects(self) -> bool:
        """Whether it picks some processes or devices only."""
        return (self.process, self.rank, self.device) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure that must keep to a value."""

    text: str
    scope: ScopeName
    figure: Figure
    arguments: tuple[str, ...]
    statistic: str | None
    comparison: str
    limit: float | tuple[str, ...]
    """In ns, bytes, bytes/s or as a ratio; verdicts of which one must hold, or none with ``!=``."""
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NoCause:
    """Causes that must not be found."""

    text: str
    scope: ScopeName
    causes: tuple[str, ...]
    source: str = field(default="", compare=False)


Expectation = Bound | NoCause


class ExpectationError(UsageError):
    """An expectation that cannot be understood; the message shows the column."""


class _Parser:
    def __init__(self, text: str, causes: tuple[str, ...], source: str) -> None:
        self.text, self.causes, self.source = text, causes, source
        self.at = 0

    # What stands next

    def fail(self, message: str, at: int | None = None) -> ExpectationError:
        at = self.at if at is None else at
        shown = "".join(char if char.isprintable() else " " for char in self.text)
        where = f"{self.source}: " if self.source else ""
        return ExpectationError(f"{where}{message} (column {at + 1})\n    {shown}\n    {' ' * at}^")

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def symbol(self, *symbols: str) -> str | None:
        self.skip()
        for symbol in symbols:
            if self.text.startswith(symbol, self.at):
                self.at += len(symbol)
                return symbol
        return None

    def need(self, symbol: str, after: str) -> None:
        if self.symbol(symbol) is None:
            raise self.fail(f"{symbol!r} is wanted {after}")

    def end(self) -> None:
        self.skip()
        if self.at < len(self.text):
            raise self.fail("nothing more is wanted here")

    def word(self, keyword: str) -> bool:
        """Take `keyword` if a space follows it: it is no keyword before ``:`` or ``[``."""
        return self.take(re.compile(rf"{keyword}(?=\s+[^\s:\[])")) is not None

    # The rules of the grammar

    def expectation(self) -> Expectation:
        self.skip()
        if self.at == len(self.text):
            raise self.fail("an expectation is wanted, such as: step: hidden(h2d, kernel) >= 0.6")
        if self.word("no"):
            return self.no_cause()
        scope = ScopeName()
        if self.has_scope():
            scope = self.scope()
            self.need(":", "after the scope; a name with spaces or : stands in double quotes")
        return self.bound(scope)

    def has_scope(self) -> bool:
        """Whether a colon outside of quotes is still to come, or a quote or selector begins."""
        return self.text[self.at] in '"[' or ":" in _QUOTED.sub("", self.text[self.at :])

    def scope(self) -> ScopeName:
        self.skip()
        by_path = self.word("path")
        self.skip()
        pattern = None
        if self.text[self.at : self.at + 1] != "[" or by_path:
            pattern = self.name()
        chosen: dict[str, int] = {}
        if self.symbol("["):
            while True:
                key, value = self.selector(chosen)
                chosen[key] = value
                if self.symbol("]"):
                    break
                self.need(",", "or ']' here")
        return ScopeName(pattern, by_path, **chosen)

    def name(self) -> str:
        self.skip()
        start = self.at
        if self.text[start : start + 1] == '"':
            quoted = self.take(_QUOTED)
            if quoted is None:
                raise self.fail("this quote is never closed")
            return re.sub(r"\\(.)", r"\1", quoted[1:-1])
        name = self.take(_NAME)
        if name is None:
            raise self.fail('the name of a range is wanted; one without a name is ""', start)
        return name

    def selector(self, chosen: dict[str, int]) -> tuple[str, int]:
        self.skip()
        start = self.at
        key = self.take(_WORD)
        if key not in SELECTORS:
            raise self.fail(f"one of {', '.join(SELECTORS)} is wanted", start)
        if key in chosen:
            raise self.fail(f"{key} stands here twice", start)
        self.need("=", f"after {key}")
        number = self.take(re.compile(r"\d+"))
        if number is None:
            raise self.fail(f"the number of the {key} is wanted")
        return key, int(number)

    def no_cause(self) -> NoCause:
        causes = []
        while True:
            self.skip()
            start = self.at
            cause = self.take(_WORD)
            if cause not in self.causes:
                raise self.fail(_unknown("cause", cause, self.causes), start)
            causes.append(cause)
            if not self.symbol("|"):
                break
        scope = ScopeName()
        if self.take(re.compile(r"in(?=[\s\[\"])")):
            scope = self.scope()
        self.skip()
        if self.text[self.at : self.at + 1] == ":":
            raise self.fail("a name that contains ':' stands in double quotes")
        self.end()
        return NoCause(self.text.strip(), scope, tuple(causes), self.source)

    def bound(self, scope: ScopeName) -> Bound:
        figure, arguments = self.figure(scope)
        statistic = self.statistic(scope, figure)
        self.skip()
        start = self.at
        comparison = self.symbol(*COMPARISONS)
        if comparison is None:
            raise self.fail(f"one of {' '.join(COMPARISONS)} is wanted")
        limit: float | tuple[str, ...]
        if figure.kind == VERDICT:
            if comparison not in {"==", "!="}:
                raise self.fail("verdicts are compared with == or !=", start)
            limit = self.verdicts()
        else:
            limit = self.value(figure)
        self.end()
        return Bound(
            self.text.strip(), scope, figure, arguments, statistic, comparison, limit, self.source
        )

    def figure(self, scope: ScopeName) -> tuple[Figure, tuple[str, ...]]:
        self.skip()
        start = self.at
        name = self.take(_WORD)
        if name is None or all(figure.name != name for figure in FIGURES):
            message = _unknown("figure", name, [figure.name for figure in FIGURES])
            if ":" in self.text[self.at :]:
                message += "; a range whose name contains ':' stands in double quotes"
            raise self.fail(message, start)
        arguments: list[str] = []
        columns: list[int] = []
        if self.symbol("("):
            while True:
                self.skip()
                columns.append(self.at)
                counted = figures.find_figure(name, 1)
                if counted is not None and counted.takes == "K":
                    arguments.append(self.count())
                else:
                    arguments.append(self.class_name(arguments))
                if self.symbol(")"):
                    break
                self.need(",", "or ')' here")
        figure = figures.find_figure(name, len(arguments))
        if figure is None:
            forms = " or ".join(
                f"{name}({each.takes})" if each.takes else name
                for each in FIGURES
                if each.name == name
            )
            raise self.fail(f"it is written {forms}", start)
        if figure.of is None and scope.pattern is None:
            raise self.fail(f"{name} is a figure of ranges: name one, such as step: {name}", start)
        return figure, tuple(arguments)

    def count(self) -> str:
        number = self.take(re.compile(r"[1-9]\d*"))
        if number is None:
            raise self.fail("a number from 1 is wanted")
        return number

    def class_name(self, before: Iterable[str]) -> str:
        start = self.at
        name = self.take(_CLASS)
        if name is None or (">" not in name and name not in CLASS_NAMES):
            raise self.fail(_unknown("class", name, CLASS_NAMES), start)
        if name in before:
            raise self.fail("two different classes are wanted", start)
        return name

    def statistic(self, scope: ScopeName, figure: Figure) -> str | None:
        if self.symbol(".") is None:
            return None
        start = self.at
        name = self.take(re.compile(r"\w+"))
        if name not in STATISTICS:
            raise self.fail(_unknown("statistic", name, STATISTICS), start)
        if scope.pattern is None:
            raise self.fail("the whole trace has no instances: name a range", start)
        if not figure.per_instance:
            raise self.fail(f"{figure.name} is one for all instances already", start)
        return name

    def verdicts(self) -> tuple[str, ...]:
        wanted = []
        while True:
            self.skip()
            start = self.at
            word = self.take(_WORD)
            if word not in VERDICTS:
                raise self.fail(_unknown("verdict", word, VERDICTS), start)
            wanted.append(word)
            if not self.symbol("|"):
                return tuple(wanted)

    def value(self, figure: Figure) -> float:
        self.skip()
        start = self.at
        number = self.take(_NUMBER)
        if number is None:
            raise self.fail("a number is wanted")
        units = UNITS[figure.kind]
        self.skip()
        at = self.at
        unit = (self.take(_UNIT) or "").replace("\u03bc", "\u00b5")
        size = abs(float(number))
        if size > _LARGEST or (size < _SMALLEST and number.strip("-0.") != ""):
            raise self.fail("no figure is as large or as small as that", start)
        value = Fraction(number)
        if unit not in units and not (unit == "" and value == 0):
            wanted = ", ".join(name for name in units if name) or "no unit"
            raise self.fail(f"{figure.name} is a {figure.kind}: {wanted} is wanted", at)
        exact = value * Fraction(str(units.get(unit, 1)))
        if figure.kind == figures.RATIO and exact > 1:
            raise self.fail("a ratio is at most 1, or 100 %", start)
        return int(exact) if exact.denominator == 1 else float(exact)


def _unknown(what: str, given: str | None, known: Iterable[str]) -> str:
    known = list(dict.fromkeys(known))
    if not given:
        return f"a {what} is wanted: {', '.join(known)}"
    close = difflib.get_close_matches(given, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return f"there is no {what} {given!r}; {hint}"


def parse(text: str, causes: tuple[str, ...], source: str = "") -> Expectation:
    """Return what `text` expects.

    Parameters
    ----------
    text
        One expectation.
    causes
        The causes that analyzers can find: see :func:`causes_of`.
    source
        Where it was written, for messages.

    Raises
    ------
    ExpectationError
        It does not fit the grammar; the message has the column and shows it.
    """
    return _Parser(text, causes, source).expectation()


def causes_of(analyzer: str) -> tuple[str, ...]:
    """Return the causes that the analyzer of that name can find."""
    return FINDINGS_OF.get(analyzer, (analyzer,))
