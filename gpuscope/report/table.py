"""Analyses as CSV and as markdown, one row a pair of classes in a scope."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from gpuscope.model.result import Analysis
from gpuscope.report import ranks
from gpuscope.report.rows import (
    PAIR_COLUMNS,
    ScopeRow,
    escaped,
    in_range,
    message_name,
    pair_rows,
    saving_text,
    scope_rows,
    scopes_for_people,
    top_rows,
    where_of,
)
from gpuscope.units import format_bytes, format_ns, format_ratio, printable, visible

_LONGEST_CELL = 32_000
"""The same in CSV: spreadsheets hold 32,767 characters in a cell."""

_FORMULA = ("=", "+", "-", "@")
"""What a cell begins with that a spreadsheet computes, after OWASP's page on CSV injection. The
line feed, the carriage return and the tab that it names as well are not printable."""


def to_csv(analyses: Sequence[Analysis], top: int | None = None) -> str:
    """Return CSV text with a header; None is empty, times are in ns, nothing is rounded."""
    rows = (
        row
        for analysis in analyses
        for row in pair_rows(analysis, top_rows(scope_rows(analysis), top))
    )
    return csv_text([PAIR_COLUMNS, *rows])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return CSV text of rows; None is empty, and no text is a formula to a spreadsheet.

    Names are from traces that anybody wrote, and spreadsheets do what a formula says. A text that
    could be one gets an apostrophe in front; numbers, negative ones too, stay as they are.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    clean = printable(value, _LONGEST_CELL)
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def to_markdown(analyses: Sequence[Analysis], top: int | None = None) -> str:
    """Return a markdown table for each trace, rounded for reading, and its findings."""
    parts = []
    for analysis in analyses:
        parts.append(f"### {escaped(analysis.trace.path)}\n")
        parts.extend(f"{escaped(note)}\n" for note in analysis.trace.notes)
        parts.append("| range | × | span | busy | idle | pair | overlap | ratio | verdict |")
        parts.append("|---|---:|---:|---:|---:|---|---:|---:|---|")
        rows = scope_rows(analysis)
        shown, left_out = scopes_for_people(rows, top)
        for row in shown:
            parts.extend(_markdown_rows(row, where_of(row, rows)))
        parts.extend(f"\n{line}" for line in left_out)
        parts.extend(_message_rows(analysis))
        parts.extend(
            f"\n**{finding.id}**{escaped(in_range(finding.range))}{where_of(finding, rows)}: "
            f"{escaped(finding.claim)}  \n→ {escaped(finding.advice)}{saving_text(finding)}"
            for finding in analysis.findings
        )
        parts.append("")
    return "\n".join([*parts, ranks.to_markdown(analyses)])


def _message_rows(analysis: Analysis) -> list[str]:
    """Return a table of the messages of all devices by kind; nothing where there are none."""
    rows = [
        f"| {'–' if entry.rank is None else entry.rank} | {entry.device} "
        f"| {escaped(message_name(kind, entry))} | {format_bytes(kind.size_bytes)} "
        f"| {kind.count} | {format_ns(kind.work_ns)} | {format_ns(kind.exposed_ns)} "
        f"| {format_ns(kind.transfer_ns)} | {format_ns(kind.wait_ns)} |"
        for entry in analysis.communication
        for kind in entry.messages
    ]
    head = "| rank | GPU | messages | size | × | time | exposed | transfer | waiting |"
    return ["", head, "|---|---:|---|---:|---:|---:|---:|---:|---:|", *rows] if rows else []


def _markdown_rows(row: ScopeRow, where: str) -> list[str]:
    scope = row.scope
    head = (
        f"| {escaped(visible(row.name))}{where} | {row.instances} | {format_ns(scope.span_ns)} "
        f"| {format_ns(scope.busy_ns)} | {format_ns(scope.idle_ns)} "
    )
    if not scope.pairs:
        return [f"{head}| – | – | – | – |"]
    lines = [
        f"{head}| {pair.a} ∩ {pair.b} | {format_ns(pair.overlap_ns)} "
        f"| {format_ratio(pair.overlap_ratio)} | {pair.verdict} |"
        for pair in scope.pairs
        if pair.verdict != "immaterial"
    ]
    small = [f"{pair.a} ∩ {pair.b}" for pair in scope.pairs if pair.verdict == "immaterial"]
    if small:
        lines.append(f"{head}| {', '.join(small)} | – | – | immaterial |")
    return lines
