"""Numbers as text."""

from __future__ import annotations

from gpuscope.model.quality import lost_text
from gpuscope.report.rows import in_range
from gpuscope.units import counted, visible


def test_one_is_no_plural() -> None:
    assert [counted(count, "range") for count in (0, 1, 2, 12_345)] == [
        "0 ranges",
        "1 range",
        "2 ranges",
        "12,345 ranges",
    ]
    assert [counted(count, "copy is", "copies are") for count in (1, 2)] == [
        "1 copy is",
        "2 copies are",
    ]


def test_a_name_can_be_seen() -> None:
    assert [visible(name) for name in ("step", "", "  ", " a")] == [
        "step",
        "(no name)",
        "'  '",
        " a",
    ]
    assert [in_range(name, 5) for name in ("step", "stepping", "", None)] == [
        " in step",
        " in step…",
        " in (no …",
        "",
    ]


def test_lost_records_are_counted() -> None:
    assert lost_text(1) == "about 1 GPU record was lost while recording"
    assert lost_text(3) == "about 3 GPU records were lost while recording"
