"""What each rank's ranges spent on computing, packing, transfers and MPI, and what was hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.benchmarks import NOT_OBSERVABLE
from gpuscope.cases import FRAME_PREFIX
from gpuscope.model.result import Analysis, Phases
from gpuscope.report.text import simple_table
from gpuscope.units import format_ns, format_ratio, printable, visible

if TYPE_CHECKING:
    from rich.console import Console

DISAGREE = 0.15
"""Shares of what is hidden further apart than this are explained."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The phases of a range on a device of a rank, over all instances."""

    range: str
    rank: str
    instances: int
    phases: Phases


def phase_rows(
    analyses: Sequence[Analysis], result: Mapping[str, Any] | None
) -> tuple[PhaseRow, ...]:
    """Return the ranges that both compute and transfer, rank by rank, in order of the first.

    There are none where the benchmark's `result` says that kernels transfer, which leaves no rows.
    """
    if any(row.get("verdict") == NOT_OBSERVABLE for row in (result or {}).get("expected") or ()):
        return ()
    found: dict[str, list[PhaseRow]] = {}
    for number, analysis in enumerate(analyses):
        for entry in analysis.ranges:
            phases, name = entry.scope.phases, entry.path or entry.name
            if phases is None or name.startswith(FRAME_PREFIX):
                continue
            if phases.compute_ns and phases.transfer_ns:
                rank = str(number if entry.rank is None else entry.rank)
                found.setdefault(name, []).append(PhaseRow(name, rank, entry.instances, phases))
    return tuple(row for rows in found.values() for row in rows)


def render(
    analyses: Sequence[Analysis], result: Mapping[str, Any] | None, console: Console
) -> None:
    """Print the phases, and beside them what the times tell.

    `result` is the benchmark's, of the run that the traces are of; where it counts steps, the
    phases are those of a step.
    """
    from rich.markup import escape

    rows = phase_rows(analyses, result)
    if not rows:
        return
    steps = ((result or {}).get("options") or {}).get("steps") or 1
    title = "on average a step" if steps > 1 else "on average an instance"
    table = simple_table(title, narrow=True)
    told = [_told_by_times(row, result) for row in rows]
    names = ["rank", "computes", "packs", "transfers", "hidden", "exposed", "in MPI"]
    names.append("beside\nkernels")
    if any(ratio is not None for ratio in told):
        names.append("hidden\nby times")
    table.add_column("range", min_width=8)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row, ratio in zip(rows, told, strict=True):
        phases = row.phases
        cells = [
            format_ns(ns / row.instances / steps)
            for ns in (
                phases.compute_ns,
                phases.pack_ns,
                phases.transfer_ns,
                phases.transfer_exposed_ns,
                phases.mpi_ns,
                phases.mpi_hidden_ns,
            )
        ]
        cells.insert(3, format_ratio(phases.hidden_ratio))
        if ratio is not None:
            cells.append(format_ratio(ratio))
        table.add_row(escape(printable(visible(row.range), 40)), row.rank, *cells)
    console.print(table)
    for line in remarks(rows, result):
        console.print(f"note: {line}", markup=False, highlight=False)


def remarks(rows: Sequence[PhaseRow], result: Mapping[str, Any] | None) -> list[str]:
    """Say where time in MPI, or the overlap that the times tell, is not what the trace shows."""
    found = []
    for row in rows:
        told = _told_by_times(row, result)
        phases, hidden = row.phases, row.phases.hidden_ratio
        assert hidden is not None  # the row has transfers
        who = f"{printable(visible(row.range), 40)}, rank {row.rank}"
        beside = phases.mpi_hidden_ns / phases.mpi_ns if phases.mpi_ns else 0.0
        if beside - hidden > DISAGREE:
            found.append(
                f"{who}: {format_ratio(beside)} of the time in MPI lies beside kernels, and "
                f"{format_ratio(hidden)} of the transfers: a call that waits beside a kernel "
                "transfers nothing"
            )
        if told is None:
            continue
        says = f"{who}: by the times (OMB) {format_ratio(told)} of the exchange is hidden"
        shows = f"the trace shows {format_ratio(hidden)} of the transfers hidden"
        if hidden - told > DISAGREE:
            found.append(
                f"{says}, {shows}: what a step lasts longer than its kernels alone is not the "
                f"transfers, but {_slower_kernels(row, result)}{'MPI, ' if phases.mpi_ns else ''}"
                "a host that issues too late, or operations that wait for each other"
            )
        elif told - hidden > DISAGREE:
            found.append(
                f"{says}, {shows}: alone the exchange took longer than beside the steps, so that "
                "the times flatter it"
            )
    return found


def _told_by_times(row: PhaseRow, result: Mapping[str, Any] | None) -> float | None:
    """Return the share of the exchange that is hidden by the times (OMB), if the result has it.

    It is that of the range in which something must show, where the result names one.
    """
    found = result or {}
    ratio: float | None = (found.get("figures") or {}).get("omb_overlap_ratio")
    judged = {each["range"] for each in found.get("expected") or ()}
    return None if judged and row.range not in judged else ratio


def _slower_kernels(row: PhaseRow, result: Mapping[str, Any] | None) -> str:
    """Say what the kernels of a step take beside the transfers, if it is more than alone."""
    found = result or {}
    alone_ns = (found.get("figures") or {}).get("t_comp_ns")
    steps = (found.get("options") or {}).get("steps") or 1
    beside_ns = row.phases.compute_ns / row.instances / steps
    if alone_ns is None or beside_ns <= alone_ns:
        return ""
    return f"kernels beside them ({format_ns(beside_ns)}, alone {format_ns(alone_ns)}), "
