"""What the ranks of one run did, pair by pair: each rank's verdict, and the joint one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.model.result import Analysis, Judgement
from gpuscope.model.trace import told_apart
from gpuscope.report.rows import escaped, scope_rows
from gpuscope.report.text import VERDICT_STYLE, render_judgement, simple_table
from gpuscope.units import format_ratio, printable, visible

if TYPE_CHECKING:
    from rich.console import Console

WORST_FIRST = ("serialized", "partial", "inconclusive", "pipelined", "overlapped", "immaterial")
"""A pair is jointly what it is on the worst rank: hidden only where it was hidden on every one.

What is too small to matter on a rank says nothing of those where it does."""
ABSENT = "–"
_PAIRS = 100
"""How many pairs are printed."""


@dataclass(frozen=True, slots=True)
class JointRow:
    """A pair of classes in a range, over the ranks."""

    range: str
    a: str
    b: str
    verdicts: tuple[str | None, ...]
    """A rank's (its worst device's); None where it has no such pair.

    A rank without any GPU work was perhaps not looked at: it is inconclusive.
    """
    overlap_ratios: tuple[float | None, ...]
    some_missing: bool = False
    """Some rank of the run has no trace, and is inconclusive too."""

    @property
    def joint(self) -> str:
        """The verdict of the worst rank that has the pair."""
        missing = ["inconclusive"] if self.some_missing else []
        return min(filter(None, [*self.verdicts, *missing]), key=WORST_FIRST.index)


def joint_rows(analyses: Sequence[Analysis]) -> tuple[JointRow, ...]:
    """Return the pairs that any rank has, in the order of the first rank that has them."""
    found: dict[tuple[str, str, str], list[tuple[str, float | None] | None]] = {}
    unknown = [
        None if analysis.trace.operations else ("inconclusive", None) for analysis in analyses
    ]
    order = WORST_FIRST.index
    for rank, analysis in enumerate(analyses):
        for row in scope_rows(analysis):
            for pair in row.scope.pairs:
                key = (row.name, pair.a, pair.b)
                ranks = found.setdefault(key, list(unknown))
                known = ranks[rank]
                if known is None or order(pair.verdict) < order(known[0]):
                    ranks[rank] = (pair.verdict, pair.overlap_ratio)
    return tuple(
        JointRow(
            *key,
            tuple(None if each is None else each[0] for each in ranks),
            tuple(None if each is None else each[1] for each in ranks),
            some_missing=any(analysis.trace.missing_ranks for analysis in analyses),
        )
        for key, ranks in found.items()
    )


def are_ranks(analyses: Sequence[Analysis]) -> bool:
    """Say whether these are different ranks of one run, as far as their traces tell."""
    return analyses[0].apart is None and bool(told_apart(list(map(_ranks, analyses))))


def _ranks(analysis: Analysis) -> set[int | None]:
    return {device.rank for device in analysis.devices} | {
        entry.rank for entry in analysis.communication
    }


def render(analyses: Sequence[Analysis], judgement: Judgement | None, console: Console) -> None:
    """Print the joint verdicts, and whether they are those that the benchmark must get."""
    from rich.markup import escape

    rows, left_out = _shown(analyses)
    if rows or left_out:
        table = simple_table("all ranks together", narrow=True)
        for name in ("range", "pair", *(escape(_name(each)) for each in analyses), "joint"):
            table.add_column(name)
        for row in rows:
            cells = [
                ABSENT if verdict is None else f"{_styled(verdict)} {format_ratio(ratio)}"
                for verdict, ratio in zip(row.verdicts, row.overlap_ratios, strict=True)
            ]
            name = printable(visible(row.range), 40)
            table.add_row(escape(name), f"{row.a} ∩ {row.b}", *cells, _styled(row.joint))
        console.print(table)
        for line in left_out:
            console.print(f"[dim]{line}[/dim]", highlight=False)
    if judgement is not None and judgement.rows:
        render_judgement(judgement, console)


def to_markdown(analyses: Sequence[Analysis]) -> str:
    """Return the joint verdicts in markdown, or why there are none; nothing for no ranks."""
    if analyses[0].apart:
        return f"{escaped(analyses[0].apart)}\n"
    rows, left_out = _shown(analyses) if are_ranks(analyses) else ((), ())
    if not rows and not left_out:
        return ""
    names = ("range", "pair", *(escaped(_name(each)) for each in analyses), "joint")
    lines = ["### all ranks together\n", _line(names), _line(["---"] * len(names))]
    for row in rows:
        cells = [
            ABSENT if verdict is None else f"{verdict} {format_ratio(ratio)}"
            for verdict, ratio in zip(row.verdicts, row.overlap_ratios, strict=True)
        ]
        lines.append(_line([escaped(visible(row.range)), f"{row.a} ∩ {row.b}", *cells, row.joint]))
    return "\n".join([*lines, *(f"\n{line}" for line in left_out), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(analyses: Sequence[Analysis]) -> tuple[Sequence[JointRow], Sequence[str]]:
    """Return the rows that people get, and what is said of those left out."""
    rows = joint_rows(analyses)
    material = [row for row in rows if row.joint != "immaterial"]
    left_out = []
    if len(material) > _PAIRS:
        left_out.append(f"{len(material) - _PAIRS:,} more: name ranges with --range")
    small = len(rows) - len(material)
    if small:
        pairs = f"{small:,} more pair{'s are' if small > 1 else ' is'}"
        left_out.append(f"{pairs} immaterial on every rank")
    return material[:_PAIRS], left_out


def _name(analysis: Analysis) -> str:
    ranks = [rank for rank in _ranks(analysis) if rank is not None]
    return f"rank {min(ranks)}" if ranks else printable(analysis.trace.path, 30)


def _styled(verdict: str) -> str:
    return f"[{VERDICT_STYLE[verdict]}]{verdict}[/{VERDICT_STYLE[verdict]}]"
