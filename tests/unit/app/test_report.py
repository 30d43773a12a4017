"""The report: one file with all that it needs, small, and safe whatever the names in the trace."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from dash import html as tags

from gpuscope import api, samples
from gpuscope.app import report
from gpuscope.app.state import Session
from gpuscope.figures.timeline import SCRIPTS
from tests.make_trace import make_trace

MS = 1_000_000


class Outline(HTMLParser):
    """The tags and texts of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_report_holds_verdicts_matrix_findings_and_timeline_and_loads_nothing() -> None:
    text = report.write(Session([api.open_trace(samples.path("streams"))]))
    outline = Outline(text)
    words = " ".join(outline.texts)
    for part in ("✓ overlapped", "✕ serialized", "default-stream", "36.0 %", "Why not more"):
        assert part in words
    assert not [attrs for _, attrs in outline.tags if attrs.keys() & {"src", "href"}]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert '"kind":"stream"' in text
    policy = next(attrs["content"] for tag, attrs in outline.tags if "http-equiv" in attrs)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    scripts = [attrs for tag, attrs in outline.tags if tag == "script" and "type" not in attrs]
    assert len(re.findall("sha256-", policy)) == len(scripts) == len(SCRIPTS) + 1


def test_names_are_no_markup() -> None:
    name = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"
    trace = make_trace(
        kernels=[(0, 10 * MS, "s7", {"name": name})],
        h2d=[(5 * MS, 12 * MS, "s8", {"name": name})],
        ranges=[(name, 0, 11 * MS)],
    )
    tags_found = [tag for tag, _ in Outline(report.write(Session([trace]))).tags]
    assert tags_found.count("script") == len(SCRIPTS) + 2  # its own, and the data
    assert "img" not in tags_found


def test_a_large_trace_is_cut_to_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1_000 * i, 1_000 * i + 300, f"s{i % 8}") for i in range(20_000)]
    session = Session([make_trace(kernels=rows)])
    whole = len(report.write(session).encode())
    monkeypatch.setattr(report, "MAX_BYTES", whole - 1)
    assert len(report.write(session).encode()) < whole


def test_a_trace_without_gpu_work() -> None:
    assert "Nothing ran on a GPU" in report.write(Session([make_trace()]))


def test_attributes_stand_in_one_order() -> None:
    names = [f"data-{letter}" for letter in "hgfedcba"]
    attributes: Any = dict.fromkeys(names, "1")
    assert re.findall(r"data-\w", report.to_html(tags.Div(**attributes))) == sorted(names)


def test_components_are_written_as_html() -> None:
    more: Any = {"data-low": '"'}
    part = tags.Div(
        [tags.B("a<b"), None, tags.Br(), tags.Button("x", disabled=True, n_clicks=0), 5],
        className="c",
        style={"width": "3%"},
        id="i",
        **more,
    )
    assert report.to_html(part) == (
        '<div id="i" class="c" data-low="&quot;" style="width: 3%"><b>a&lt;b</b><br>'
        '<button disabled="True">x</button>5</div>'
    )


def test_of_very_many_ranges_the_best_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(f"step {at}", at * 100, at * 100 + 50) for at in range(8)]
    trace = make_trace(kernels=[(low, high, "s7") for _, low, high in steps], ranges=steps)
    session = Session([trace])
    assert "more are left out" not in report.write(session)
    monkeypatch.setattr(report, "LISTED", 3)
    text = report.write(session)
    assert "5 more are left out" in text
    assert text.count("<td>step ") == text.count('"label":"step ') == 3
