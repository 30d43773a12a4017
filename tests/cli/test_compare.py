"""`gpuscope compare` as it is typed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.cli import main

ROOT = Path(__file__).parents[2]
GOOD, BAD = str(samples.path("pinned")), str(samples.path("default"))


def run_folder(parent: Path, name: str, sample: str, hour: int) -> Path:
    folder = parent / name
    folder.mkdir(parents=True)
    shutil.copy(samples.path(sample), folder / "trace.sqlite")
    record = {"gpuscope": "0", "written_utc": f"2026-11-30T{hour:02}:00:00+00:00"}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_identical_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", GOOD, GOOD]) == 0

    out, err = capsys.readouterr()
    assert out.splitlines()[2] == f"note {GOOD} stands on both sides: it is compared with itself"
    assert out.splitlines()[-1] == "identical"
    assert not err


def test_a_copy_of_a_trace_is_another_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = shutil.copy(GOOD, tmp_path / "again.sqlite")
    assert main(["compare", GOOD, str(again)]) == 0

    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "identical"
    assert "note" not in out


@pytest.mark.parametrize("side", ["before", "after", "folder"])
def test_a_trace_named_twice_is_no_second_repetition(
    side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "before", "r0", "pinned", 9)
    sides = {
        "before": [str(run), str(run / "trace.sqlite"), "--with", BAD],
        "after": [GOOD, "--with", BAD, BAD],
        "folder": [str(run.parent), str(run), "--with", BAD],
    }
    assert main(["compare", *sides[side]]) == 2

    out, err = capsys.readouterr()
    assert not out
    assert "is named twice: name each trace once" in err


def test_what_changed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", GOOD, BAD]) == 0

    out = capsys.readouterr().out
    assert "+ default-stream" in out
    assert "gone ranges: good, good/chunk0, " in out
    assert "new ranges: default, default/chunk0, " in out
    assert out.splitlines()[-1] == "changed"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", GOOD, BAD, "--json"]) == 0

    data = json.loads(capsys.readouterr().out)
    assert next(iter(data)) == "schema_version"
    assert data["before"] == [GOOD]
    assert data["outcome"] == "changed"
    assert {"appeared"} == {cause["state"] for cause in data["causes"]}


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", GOOD, BAD, "--markdown"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("**changed**\n")
    assert "| where | change |" in out


def test_repetitions_behind_with_and_in_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        run_folder(tmp_path / "before", f"r{number}", "pinned", number)
        run_folder(tmp_path / "after", f"r{number}", "default", number)
    before, after = (
        [sample, str(tmp_path / side / "r1")] for sample, side in ((GOOD, "before"), (BAD, "after"))
    )
    assert main(["compare", *before, "--with", *after, "--json"]) == 0
    by_name = json.loads(capsys.readouterr().out)
    assert main(["compare", str(tmp_path / "before"), str(tmp_path / "after"), "--json"]) == 0
    by_folder = json.loads(capsys.readouterr().out)

    assert len(by_name["before"]) == len(by_folder["before"]) == 2
    assert by_name["scopes"] == by_folder["scopes"]
    assert {cause["runs_after"] for cause in by_folder["causes"]} == {2}


def test_last_and_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "runs", "b", "pinned", 9)
    run_folder(tmp_path / "runs", "a", "default", 10)

    assert main(["compare", "last~1", "last", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["before"] == ["runs/b/trace.sqlite"]
    assert data["after"] == ["runs/a/trace.sqlite"]

    assert main(["verify", "last", "--expect", "no default-stream"]) == 4
    assert main(["verify", "last~1", "--expect", "no default-stream"]) == 0
    capsys.readouterr()
    assert main(["compare", "last~2", "last"]) == 1
    assert "last~2 is not there: runs holds 2 runs" in capsys.readouterr().err


def test_both_timelines_on_one_page() -> None:
    command = [sys.executable, "-m", "gpuscope", "compare", GOOD, BAD, "--view", "--no-browser"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as served:
        assert served.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", served.stderr.readline())
        assert address is not None
        with urllib.request.urlopen(address[0]) as page:
            assert page.status == 200
        served.send_signal(signal.SIGINT)
        out, _ = served.communicate(timeout=30)
    assert served.returncode == 0
    assert out.splitlines()[-1] == "changed"


def test_align_needs_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", GOOD, BAD, "--align", "good"]) == 2
    assert "give --view too" in capsys.readouterr().err


@pytest.mark.parametrize("traces", [[GOOD], [GOOD, BAD, GOOD]])
def test_usage(traces: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *traces]) == 2
    assert "behind --with" in capsys.readouterr().err


def test_nothing_in_common(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", GOOD, BAD, "--path", "nope"]) == 5
    assert "nothing to compare" in capsys.readouterr().err
