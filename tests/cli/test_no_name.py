"""Ranges whose name is empty: seen everywhere, their key as it is."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpuscope.app.data import describe
from gpuscope.app.state import Session
from gpuscope.cli import main
from gpuscope.figures.details import details
from gpuscope.readers import open_trace
from tests.make_export import Export

MS = 1_000_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy half under a kernel, in a range without a name, twice in one that has one."""
    path = tmp_path_factory.mktemp("no-name") / "t.sqlite"
    with Export(path) as export:
        export.range("outer", 0, 40 * MS)
        for number, at in enumerate((1 * MS, 20 * MS, 50 * MS)):
            export.range("", at, at + 9 * MS)
            for order, name in enumerate(("cudaMemcpyAsync", "cudaLaunchKernel")):
                begin = at + order * 1000
                export.call(name, begin, begin + 1000, correlationId=2 * number + order)
            export.operation(
                "MEMCPY",
                at + MS,
                at + 3 * MS,
                stream=8,
                correlationId=2 * number,
                copyKind=1,
                bytes=1_000_000,
            )
            export.operation(
                "KERNEL", at + 2 * MS, at + 4 * MS + 1, shortName="k", correlationId=2 * number + 1
            )
    return str(path)


def test_text_has_a_name_for_it_and_json_and_csv_its_own(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace, "--range", ""]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ×")[0] for line in lines if " ×" in line] == ["(whole trace)", "(no name)"]
    assert main(["analyze", trace, "--markdown"]) == 0
    assert "\n| (no name) | 3 |" in capsys.readouterr().out
    assert main(["analyze", trace, "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)["ranges"]]
    assert names == ["outer", ""]
    assert main(["analyze", trace, "--csv"]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert [row["range"] for row in rows] == ["(whole trace)", "outer", ""]


def test_explain_and_compare_name_it(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", trace, "--range", ""]) == 0
    assert capsys.readouterr().out.startswith("(no name), device 0")
    assert main(["explain", trace, "--op", "5"]) == 0
    assert "of process 100, in (no name), at " in capsys.readouterr().out
    assert main(["compare", trace, trace, "--path", ""]) == 0
    assert "nothing beyond noise: (no name)\n" in capsys.readouterr().out


def test_expectations_name_it_in_quotes(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit = tmp_path / "gates.xml"
    command = ["verify", trace, "--expect", '"": hidden(h2d, kernel) > 90 %', "--junit", str(junit)]
    assert main(command) == 4
    assert "50.0 %" in capsys.readouterr().out
    assert ElementTree.parse(junit).findtext(".//failure") == "(no name): 50.0 %"
    # Several ranges: the one that decides is named.
    assert main(["verify", trace, "--expect", "*: span < 4 ms"]) == 4
    assert "(outer, process 100, GPU 0, one of 2)" in capsys.readouterr().out
    assert main(["verify", trace, "--expect", "*: span > 21 ms"]) == 4
    assert "((no name), process 100, GPU 0, one of 2)" in capsys.readouterr().out


def test_the_page_and_the_report_name_it(trace: str, tmp_path: Path) -> None:
    session = Session([open_trace(Path(trace))])
    content = describe(session)
    assert [each["name"] for each in content["ranges"]] == ["outer", "(no name)"]
    assert {row["cells"][0] for row in content["tables"]["ranges"]["rows"]} == {
        "(no name)",
        "outer",
    }
    rows = session.timeline.rows
    at = next(number for number, row in enumerate(rows) if row.kind == "nvtx")
    titles = {details(session.timeline, at, item)["title"] for item in range(4)}
    assert titles == {"(no name)", "outer"}
    assert session.timeline.short_name(0, session.traces[0].strings.index("")) == "(no name)"
    out = tmp_path / "report.html"
    assert main(["report", trace, "-o", str(out)]) == 0
    assert "range (no name), 3 instances" in out.read_text()
