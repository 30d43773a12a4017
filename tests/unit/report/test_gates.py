"""Outcomes of expectations as a table, markdown, JUnit XML and GitHub's annotations."""

from __future__ import annotations

import io
from xml.etree import ElementTree

from rich.console import Console

from gpuscope.model.gates import GateRow, Measurement, Verification
from gpuscope.report import gates


def measurement(met: bool | None, text: str) -> Measurement:
    return Measurement("t.sqlite", "a\x1b|b", 1, None, 0, 0.5, None, None, met, text)


def rows(*outcomes: bool | None) -> Verification:
    return Verification(
        ("t.sqlite",),
        tuple(
            GateRow(f"x[{i}]: span < {i} s", "b.toml", met, "50 %, <ok>", (measurement(met, "m"),))
            for i, met in enumerate(outcomes)
        ),
        ("one note",),
    )


def test_table_has_a_word_for_each_outcome_and_counts_them() -> None:
    text = io.StringIO()
    gates.render_verification(rows(True, False, None, True), Console(file=text, width=80))

    lines = text.getvalue().splitlines()
    assert lines[0] == "note one note"
    assert lines[1] == "met          x[0]: span < 0 s"
    assert lines[2] == "             50 %, <ok>"
    assert lines[3].startswith("NOT MET ")
    assert lines[5].startswith("cannot judge ")
    assert lines[-1] == "2 met, 1 NOT MET, 1 cannot judge"


def test_markdown_is_escaped() -> None:
    text = gates.to_markdown(rows(False))

    assert text.startswith("**1 NOT MET**\n")
    assert r"| NOT MET | x\[0\]: span \< 0 s | 50 %, \<ok\> |" in text


def test_junit_tells_failures_from_errors() -> None:
    suite = ElementTree.fromstring(gates.to_junit(rows(True, False, None)))[0]

    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["errors"] == "1"
    assert [case[0].tag for case in suite] == ["system-out", "failure", "error"]
    assert suite[1][0].attrib["message"] == "50 %, <ok>"
    assert suite[1][0].text == "a�|b: m"  # XML has no escape character
    assert suite[1].attrib["name"] == "x[1]: span < 1 s"


def test_annotations_name_the_file_and_escape_what_github_would_read() -> None:
    text = gates.to_annotations(rows(True, False, None))

    assert text.splitlines() == [
        "::error file=b.toml,title=gpuscope verify::NOT MET: x[1]: span < 1 s: 50 %25, <ok>",
        "::error file=b.toml,title=gpuscope verify::cannot judge: x[2]: span < 2 s: 50 %25, <ok>",
    ]
    assert gates.to_annotations(rows(True)) == ""


def test_annotations_of_odd_files() -> None:
    row = GateRow("span < 1 s", "a:b,c\n.toml", False, "no", ())

    text = gates.to_annotations(Verification(("t",), (row,)))

    assert text.startswith("::error file=a%3Ab%2Cc%0A.toml,title=")
    assert text.count("\n") == 1
