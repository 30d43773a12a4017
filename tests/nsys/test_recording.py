"""A real nsys records, is interrupted, fails and exports, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope import api
from gpuscope.cli import main
from gpuscope.errors import CannotJudgeError, MissingError, TraceError, UsageError
from gpuscope.recording import nsys as nsight
from gpuscope.recording.display import Display

pytestmark = pytest.mark.nsys

ROOT = Path(__file__).parents[2]

ANNOTATED = """\
import sys, time
import nvtx

with nvtx.annotate("gs:measure", domain="gpuscope"):
    for index in range(int(sys.argv[1])):
        with nvtx.annotate("gs:iter", domain="gpuscope"):
            time.sleep(0.01)
        if index == 20:
            print("well under way", flush=True)
with nvtx.annotate("afterwards"):
    print("the program is done")
"""


@pytest.fixture
def tool(nsys: Path) -> nsight.Nsys:
    return nsight.find()


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    script = tmp_path / "annotated.py"
    script.write_text(ANNOTATED)
    return [sys.executable, str(script), "5"]


def record(
    tool: nsight.Nsys,
    command: list[str],
    folder: Path,
    capture: str | None = None,
    extra: tuple[str, ...] = (),
) -> nsight.Recording:
    folder.mkdir(exist_ok=True)
    return nsight.record(
        tool,
        command,
        folder / "trace.nsys-rep",
        display=Display(),
        capture=nsight.parse_capture(capture) if capture else None,
        extra=extra,
    )


def ranges(path: Path) -> list[str]:
    trace = api.open_trace(path)
    assert trace.ranges is not None
    return [trace.strings[index] for index in trace.ranges.name]


def started_by(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_the_ranges_of_a_program_are_in_the_export(
    tool: nsight.Nsys, program: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = record(tool, program, tmp_path / "out")
    nsight.export(recording.report, tmp_path / "out" / "trace.sqlite", nsys=tool)

    assert recording.program_code == 0
    assert recording.outlived == ()
    assert ranges(tmp_path / "out" / "trace.sqlite") == [
        "gs:measure",
        *["gs:iter"] * 5,
        "afterwards",
    ]
    err = capfd.readouterr().err
    assert "the program is done\n" in err
    assert "Generat" not in err
    assert "%]" not in err


def test_only_the_captured_range_is_recorded(
    tool: nsight.Nsys, program: list[str], tmp_path: Path
) -> None:
    recording = record(tool, program, tmp_path / "out", "nvtx:gs:measure@gpuscope")
    nsight.export(recording.report, tmp_path / "t.sqlite", nsys=tool)

    assert "afterwards" not in ranges(tmp_path / "t.sqlite")
    assert "gs:iter" in ranges(tmp_path / "t.sqlite")


def test_a_duration_ends_the_recording_and_is_no_failure(
    tool: nsight.Nsys, program: list[str], tmp_path: Path
) -> None:
    started = time.monotonic()
    recording = record(tool, [*program[:2], "3000"], tmp_path / "out", "duration:1")

    assert recording.program_code == 0
    assert time.monotonic() - started < 25


def test_a_range_that_never_comes(tool: nsight.Nsys, program: list[str], tmp_path: Path) -> None:
    with pytest.raises(CannotJudgeError, match="never began the NVTX range nothing@gpuscope"):
        record(tool, program, tmp_path / "out", "nvtx:nothing@gpuscope")


def test_what_outlives_the_program_is_ended_and_named(
    tool: nsight.Nsys, program: list[str], tmp_path: Path
) -> None:
    daemon = 'import subprocess\nsubprocess.Popen(["sleep", "100"], start_new_session=True)\n'
    with Path(program[1]).open("a") as script:
        script.write(daemon)
    started = time.monotonic()
    recording = record(tool, program, tmp_path / "out", extra=("--wait=primary",))

    assert time.monotonic() - started < 60
    assert recording.outlived == ("sleep",)
    nsight.export(recording.report, tmp_path / "t.sqlite", nsys=tool)
    assert ranges(tmp_path / "t.sqlite") == ["gs:measure", *["gs:iter"] * 5, "afterwards"]


def test_the_programs_exit_code(tool: nsight.Nsys, tmp_path: Path) -> None:
    recording = record(tool, [sys.executable, "-c", "raise SystemExit(7)"], tmp_path / "out")

    assert recording.program_code == 7


def test_options_nsys_refuses(tool: nsight.Nsys, program: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unrecognised option '--no-such-option"):
        nsight.record(
            tool,
            program,
            tmp_path / "trace.nsys-rep",
            display=Display(),
            extra=["--no-such-option=1"],
        )


def test_all_options_of_ours_that_it_lists_are_accepted(tool: nsight.Nsys) -> None:
    assert {"--trace", "--sample", "--cpuctxsw", "--output", "--capture-range"} <= tool.options


@pytest.mark.usefixtures("tool")
def test_a_run_from_the_command_line(
    program: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    assert main(["run", "--nsys", "--out", str(out), "--", *program]) == 5  # there is no GPU work
    assert "has no kernel and no copy" in capfd.readouterr().err
    record = json.loads((out / "run.json").read_text())
    assert record["program_exit_code"] == 0
    assert (out / "trace.nsys-rep").is_file()
    assert ranges(out)[0] == "gs:measure"


@pytest.mark.usefixtures("tool")
def test_a_report_is_analyzed_through_the_cache(
    program: list[str], tmp_path: Path, tool: nsight.Nsys
) -> None:
    recording = record(tool, program, tmp_path / "out")

    assert ranges(recording.report)[:2] == ["gs:measure", "gs:iter"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["trace.nsys-rep"]


@pytest.mark.usefixtures("tool")
def test_ctrl_c_keeps_what_was_recorded_and_leaves_no_process(
    program: list[str], tmp_path: Path
) -> None:
    mark = f"GPUSCOPE_TEST_MARK={tmp_path}"
    out = tmp_path / "run"
    endless = [*program[:2], "6000"]
    with subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "run", "--nsys", f"--out={out}", "--", *endless],
        cwd=ROOT,
        env={**os.environ, "GPUSCOPE_TEST_MARK": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            assert run.stderr is not None
            heard = ""
            while "well under way" not in heard:
                line = run.stderr.readline()
                assert line, heard
                heard += line
            assert len(started_by(mark)) >= 4  # gpuscope, nsys, agent and launcher, the program
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=90)
        finally:
            run.kill()

    assert run.returncode == 130, err
    assert started_by(mark) == []
    assert "interrupted; what was recorded until then is kept and analyzed" in err
    assert json.loads((out / "run.json").read_text())["interrupted"] is True
    assert ranges(out).count("gs:iter") > 20


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken(tool: nsight.Nsys) -> Iterator[nsight.Nsys]:
    """A copy of nsys (of links, so that it costs nothing) whose importer lacks libssh."""
    root = Path(os.path.realpath(tool.path)).parents[1]
    library = root / "host-linux-x64" / "libssh.so"
    if not library.exists():
        # Only Debian's packages bring the importer without this library.
        pytest.skip("needs the nsys of scripts/fetch_nsys.sh")
    with tempfile.TemporaryDirectory(prefix="nsys-broken-", dir=root.parent) as folder:
        copy = Path(folder, "nsys")
        shutil.copytree(root, copy, symlinks=True, copy_function=os.link)
        for file in (copy / "host-linux-x64").glob("libssh.so*"):
            file.unlink()
        found = nsight.examine(copy / "target-linux-x64" / "nsys")
        assert found is not None
        yield found


def test_a_missing_importer_library_is_named(
    broken: nsight.Nsys, program: list[str], tmp_path: Path
) -> None:
    with pytest.raises(MissingError) as raised:
        record(broken, program, tmp_path / "out")

    said = str(raised.value)
    assert "libssh.so is missing" in said
    assert "apt-get install libssh-4" in said
    assert f"kept in {tmp_path}/out/trace.qdstrm" in said
    assert (tmp_path / "out" / "trace.qdstrm").is_file()


def test_the_importer_is_known_to_be_broken_before_anything_is_recorded(
    broken: nsight.Nsys,
    program: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NSYS", str(broken.path))

    assert main(["run", "--nsys", "--out", str(tmp_path / "run"), "--", *program]) == 3
    err = capfd.readouterr().err
    assert "libssh.so is missing (apt-get install libssh-4)" in err
    assert "the program is done" not in err


def test_the_whole_importer_runs(tool: nsight.Nsys) -> None:
    assert nsight.missing_libraries(tool) == ()
    assert nsight.importer_problem(tool) is None


@pytest.mark.parametrize("content", [b"hello\n", b"NVIDIA Tegra Profiler Report 2020@1@1-0v0."])
def test_a_file_that_is_no_report(tool: nsight.Nsys, tmp_path: Path, content: bytes) -> None:
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(content)

    with pytest.raises(TraceError, match="cannot be exported"):
        nsight.export(report, tmp_path / "x.sqlite", nsys=tool)
    assert not (tmp_path / "x.sqlite").exists()


def test_a_report_that_was_cut_off(tool: nsight.Nsys, program: list[str], tmp_path: Path) -> None:
    report = record(tool, program, tmp_path / "out").report
    report.write_bytes(report.read_bytes()[: report.stat().st_size // 2])

    with pytest.raises(TraceError, match="cannot be exported"):
        nsight.export(report, tmp_path / "x.sqlite", nsys=tool)


def test_the_export_is_a_whole_database(
    tool: nsight.Nsys, program: list[str], tmp_path: Path
) -> None:
    target = tmp_path / "t.sqlite"
    nsight.export(record(tool, program, tmp_path / "out").report, target, nsys=tool)

    with sqlite3.connect(f"file:{target}?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
