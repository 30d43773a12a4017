"""nsys is found, asked, and believed only as far as what it leaves on the disk."""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
from pathlib import Path

import pytest

from gpuscope.errors import (
    CannotJudgeError,
    MissingError,
    OutputError,
    ProgramError,
    ReportTooNewError,
    TraceError,
    UsageError,
)
from gpuscope.recording import nsys
from gpuscope.recording.display import Display
from tests.unit.recording import fake_nsys

PROGRAM = [sys.executable, "-c", "print('hello')"]


def examined(path: Path) -> nsys.Nsys:
    found = nsys.examine(path)
    assert found is not None
    return found


def record(tmp_path: Path, fault: str = "", **options: object) -> nsys.Recording:
    tool = examined(fake_nsys.make(tmp_path / "bin", fault=fault))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    command = options.pop("command", PROGRAM)
    return nsys.record(
        tool,
        command,  # type: ignore[arg-type]
        out / "trace.nsys-rep",
        display=Display(),
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No NSYS, no nsys on the PATH, no installation: only what the test puts into the folder."""
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(nsys, "INSTALLATIONS", (str(tmp_path / "installed" / "*" / "nsys"),))
    return tmp_path


# ── finding ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["2019.6.1", "2022.4.2.1", "2023.4.4.54", "2025.3.2.474"])
def test_version(tmp_path: Path, version: str) -> None:
    found = examined(fake_nsys.make(tmp_path, version=version))

    assert found.version == tuple(map(int, version.split(".")))
    assert found.version_text == version


def test_a_program_that_is_no_nsys(tmp_path: Path) -> None:
    path = tmp_path / "nsys"
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(0o755)

    assert nsys.examine(path) is None
    assert nsys.examine(tmp_path / "absent") is None


def test_the_newest_installation_is_taken(nothing_installed: Path) -> None:
    for version in ("2023.4.4", "2025.10.1", "2025.3.2"):
        fake_nsys.make(nothing_installed / "installed" / version, version=version)

    assert nsys.find().version_text == "2025.10.1"


def test_the_path_goes_before_installations(nothing_installed: Path) -> None:
    fake_nsys.make(nothing_installed / "installed" / "new", version="2026.1.1")
    fake_nsys.make(nothing_installed / "path", version="2022.4.2")

    assert nsys.find().version_text == "2022.4.2"


def test_a_broken_one_on_the_path_is_passed_over(nothing_installed: Path) -> None:
    fake_nsys.make(nothing_installed / "installed" / "new", version="2026.1.1")
    broken = nothing_installed / "path" / "nsys"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)

    assert nsys.find().version_text == "2026.1.1"


def test_the_variable_goes_before_all(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nsys.make(nothing_installed / "path", version="2026.1.1")
    monkeypatch.setenv("NSYS", str(fake_nsys.make(nothing_installed / "named", version="2021.5.1")))

    assert nsys.find().version_text == "2021.5.1"


def test_a_wrong_variable_is_said(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS", "/nowhere/nsys")

    with pytest.raises(MissingError, match="NSYS is set to /nowhere/nsys"):
        nsys.find()


def test_no_nsys_at_all(nothing_installed: Path) -> None:
    with pytest.raises(MissingError, match=r"not on the PATH.*install Nsight Systems.*set NSYS"):
        nsys.find()


# ── the command line ─────────────────────────────────────────────────────────────────────────────


def argv(tmp_path: Path, options: str = fake_nsys.NEW_OPTIONS, **more: object) -> list[str]:
    tool = examined(fake_nsys.make(tmp_path, options=options))
    return nsys.profile_argv(tool, Path("/out/trace"), ["prog", "-t"], **more)[1:]  # type: ignore[arg-type]


def test_argv_of_a_run_with_call_stacks(tmp_path: Path) -> None:
    options = f"{fake_nsys.NEW_OPTIONS} --cudabacktrace= --python-backtrace="

    told = argv(tmp_path, options, call_stacks=True)

    assert told[2:6] == [*nsys.CALL_STACKS, "--cpuctxsw=none"]
    assert "--sample=none" not in told
    assert "--cudabacktrace" not in " ".join(argv(tmp_path / "older", call_stacks=True))


def test_argv_of_a_verdict_run(tmp_path: Path) -> None:
    assert argv(tmp_path) == [
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        "--output=/out/trace",
        f"--session-new=gpuscope-{os.getpid()}",
        "--cuda-event-trace=false",
        "--cuda-graph-trace=node",
        "prog",
        "-t",
    ]


def test_argv_leaves_out_what_an_older_nsys_does_not_know(tmp_path: Path) -> None:
    words = argv(tmp_path, options=fake_nsys.OLD_OPTIONS)

    assert not [word for word in words if word.startswith("--cuda-")]
    assert "--trace=cuda,nvtx" in words


def test_argv_without_cuda_has_no_options_for_it(tmp_path: Path) -> None:
    assert not [word for word in argv(tmp_path, trace="nvtx,mpi") if word.startswith("--cuda-")]


@pytest.mark.parametrize("extra", [("-s", "process-tree"), ("--sample=process-tree",)])
def test_argv_gives_way_to_the_users_options(tmp_path: Path, extra: tuple[str, ...]) -> None:
    words = argv(tmp_path, extra=extra)

    assert "--sample=none" not in words
    assert words[-2 - len(extra) :] == [*extra, "prog", "-t"]


def test_argv_protects_percent_signs(tmp_path: Path) -> None:
    tool = examined(fake_nsys.make(tmp_path))

    assert "--output=/o/50%%/t" in nsys.profile_argv(tool, Path("/o/50%/t"), ["prog"])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("cuda", ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")),
        (
            "nvtx:step@train",
            ("--capture-range=nvtx", "--nvtx-capture=step@train", "--capture-range-end=stop"),
        ),
        (
            "nvtx:a:b",
            ("--capture-range=nvtx", "--nvtx-capture=a:b", "--capture-range-end=stop"),
        ),
        ("delay:30,duration:5", ("--delay=30", "--duration=5")),
        ("duration:0.5", ("--duration=0.5",)),
        ("delay:0", ("--delay=0",)),
    ],
)
def test_capture(tmp_path: Path, text: str, options: tuple[str, ...]) -> None:
    capture = nsys.parse_capture(text)

    assert capture.options == options
    assert [word for word in argv(tmp_path, capture=capture) if word in options] == list(options)


@pytest.mark.parametrize(
    "text", ["", "nvtx", "nvtx:", "cuda:x", "delay:x", "delay:1,delay", "duration:0", "wait:3"]
)
def test_a_capture_that_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="nvtx:NAME@DOMAIN"):
        nsys.parse_capture(text)


# ── recording ────────────────────────────────────────────────────────────────────────────────────


def test_record_shows_the_program_and_not_nsys(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = record(tmp_path)

    assert recording.report.is_file()
    assert recording.program_code == 0
    assert recording.outlived == ()
    out, err = capfd.readouterr()
    assert out == ""
    assert "hello\n" in err
    assert "Generat" not in err
    assert "%" not in err


def test_record_hands_on_the_programs_exit_code(tmp_path: Path) -> None:
    recording = record(tmp_path, command=[sys.executable, "-c", "raise SystemExit(7)"])

    assert recording.program_code == 7
    assert recording.report.is_file()


def test_record_stops_after_the_time_limit_and_keeps_the_report(tmp_path: Path) -> None:
    recording = record(
        tmp_path, command=[sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=1.0
    )

    assert recording.timed_out
    assert recording.program_code == 0
    assert recording.report.is_file()


def test_a_missing_importer_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "missing_libraries", lambda tool: ("libdw.so.1", "libodd.so"))

    with pytest.raises(MissingError) as raised:
        record(tmp_path, "no-importer")

    said = str(raised.value)
    assert "libdw.so.1, libodd.so is missing (apt-get install libdw1;" in said
    assert "the package that holds libodd.so" in said
    assert f"kept in {tmp_path}/out/trace.qdstrm" in said


def test_a_missing_importer_without_a_missing_library(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"importer of nsys .* does not run: Importer error"):
        record(tmp_path, "no-importer")


def test_an_importer_that_fails_gives_its_reason(tmp_path: Path) -> None:
    with pytest.raises(
        MissingError, match=r"does not run: Failed to get number of the device CPUs"
    ):
        record(tmp_path, "importer-fails")


def test_missing_libraries_are_those_the_loader_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importer = tmp_path / "host-linux-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    importer.touch()
    ldd = tmp_path / "bin" / "ldd"
    ldd.parent.mkdir()
    ldd.write_text(
        "#!/bin/sh\nprintf '\\tlibz.so.1 => /lib/libz.so.1 (0x1)\\n\\tlibdw.so.1 => not found\\n'\n"
    )
    ldd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ldd.parent}:{os.environ['PATH']}")
    tool = examined(fake_nsys.make(tmp_path / "target-linux-x64"))

    assert nsys.missing_libraries(tool) == ("libdw.so.1",)


def test_a_disk_that_is_full_while_recording(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no space left .* MB free in .*--out"):
        record(tmp_path, "disk-full")


def test_a_report_that_could_only_be_written_elsewhere_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS_TEMP", str(tmp_path))

    assert record(tmp_path, "elsewhere").report.read_bytes() == b"report"


def test_options_that_nsys_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="refuses its options: unrecognised option '--bogus'"):
        record(tmp_path, "refuses", extra=["--bogus=1"])


@pytest.mark.parametrize("text", ["cuda", "nvtx:step", "delay:99"])
def test_a_part_that_never_came(tmp_path: Path, text: str) -> None:
    capture = nsys.parse_capture(text)

    with pytest.raises(CannotJudgeError, match="nothing was recorded: the program"):
        record(tmp_path, "never-captured", capture=capture)


def test_a_program_that_fails_before_its_part_is_not_blamed_on_the_capture(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"exit code 9 and nothing was recorded"):
        record(
            tmp_path,
            "never-captured",
            capture=nsys.parse_capture("cuda"),
            command=[sys.executable, "-c", "raise SystemExit(9)"],
        )


def test_no_report_and_no_reason(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="ended without a report; its last words: hello"):
        record(tmp_path, "silent")


def test_that_it_was_nsys_that_was_killed(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"nsys was ended by signal 9 \(Killed\)"):
        record(tmp_path, "killed")


# ── exporting ────────────────────────────────────────────────────────────────────────────────────


def make_report(tmp_path: Path, version: str = "2023@4@4@54") -> Path:
    report = tmp_path / "in" / "trace.nsys-rep"
    report.parent.mkdir(exist_ok=True)
    report.write_text(f"NVIDIA Tegra Profiler Report {version}-0v0.")
    return report


def export(
    tmp_path: Path,
    target: Path,
    fault: str = "",
    report: Path | None = None,
    call_stacks: bool = False,
) -> None:
    tool = examined(fake_nsys.make(tmp_path / "bin", fault=fault))
    nsys.export(report or make_report(tmp_path), target, nsys=tool, call_stacks=call_stacks)


def test_export_writes_the_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "deep" / "trace.sqlite"
    export(tmp_path, target)

    assert target.read_bytes().startswith(b"SQLite format 3\0")
    assert [path.name for path in target.parent.iterdir()] == ["trace.sqlite"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["trace.nsys-rep"]


@pytest.mark.parametrize(
    ("fault", "call_stacks", "asked"),
    [
        ("", False, ["--include-blobs=true"]),
        ("", True, ["--include-blobs=true", "--include-json=true"]),
        ("no-blobs", True, []),
    ],
)
def test_export_asks_for_payloads_where_nsys_has_them(
    tmp_path: Path, fault: str, call_stacks: bool, asked: list[str]
) -> None:
    export(tmp_path, tmp_path / "t.sqlite", fault, call_stacks=call_stacks)

    (told,) = tmp_path.rglob("exported")
    assert [word for word in told.read_text().split() if "include" in word] == asked


def test_export_of_a_report_that_is_too_new_names_both_versions(tmp_path: Path) -> None:
    report = make_report(tmp_path, "2099@1@1@1")

    with pytest.raises(ReportTooNewError, match=r"2099\.1\.1\.1.* is 2025\.3\.2\.474"):
        export(tmp_path, tmp_path / "t.sqlite", "too-old", report)
    assert not (tmp_path / "t.sqlite").exists()


@pytest.mark.parametrize("fault", ["too-old-for-builds", "garbage"])
def test_export_of_a_report_with_a_newer_build(tmp_path: Path, fault: str) -> None:
    report = make_report(tmp_path)
    report.write_bytes(b"NVIDIA Tegra Profiler Report 99999999.\n\x0bLocal (CLI)")
    tool = examined(fake_nsys.make(tmp_path / "bin", fault=fault))
    tool = dataclasses.replace(tool, build=None if fault == "too-old-for-builds" else 33681190)

    with pytest.raises(ReportTooNewError, match=r"newer .*build 99999999.* is 2025\.3\.2\.474"):
        nsys.export(report, tmp_path / "t.sqlite", nsys=tool)


def test_export_of_a_damaged_report_of_an_older_build(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    report.write_bytes(b"NVIDIA Tegra Profiler Report 36398880.\n\x0bLocal (CLI)")
    tool = examined(fake_nsys.make(tmp_path / "bin", fault="garbage"))

    with pytest.raises(TraceError, match="damaged"):
        nsys.export(report, tmp_path / "t.sqlite", nsys=dataclasses.replace(tool, build=40000000))


def test_the_build_is_in_the_version_of_later_nsys(tmp_path: Path) -> None:
    path = fake_nsys.make(tmp_path)
    path.write_text(path.read_text().replace("-abcdef0", "-234433681190v0"))

    assert examined(path).build == 33681190


def test_export_of_a_damaged_report(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"says: Cannot read from stream\. The file is damaged"):
        export(tmp_path, tmp_path / "t.sqlite", "garbage")


def test_export_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        export(tmp_path, tmp_path / "t.sqlite", report=tmp_path / "absent.nsys-rep")


def test_export_to_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    with pytest.raises(OutputError, match="no space left"):
        export(tmp_path, folder / "t.sqlite", "export-disk-full")
    assert list(folder.iterdir()) == []


def test_export_to_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OutputError, match=r"t\.sqlite cannot be written: "):
        export(tmp_path, tmp_path / "file" / "t.sqlite")


@pytest.mark.parametrize(
    ("head", "version"),
    [
        (b"NVIDIA Tegra Profiler Report 2023@4@4@54-234433681190v0.", (2023, 4, 4, 54)),
        (b"NVIDIA Tegra Profiler Report 2025@3@2-1v0", (2025, 3, 2)),
        (b"NVIDIA Tegra Profiler Report 36398880.", None),
        (b"something else", None),
        (b"", None),
    ],
)
def test_report_version(tmp_path: Path, head: bytes, version: tuple[int, ...] | None) -> None:
    (tmp_path / "r").write_bytes(head)

    assert nsys.report_version(tmp_path / "r") == version


def test_export_that_outgrows_its_space(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
    try:
        with pytest.raises(OutputError, match="no space left"):
            export(tmp_path, tmp_path / "out" / "t.sqlite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list((tmp_path / "out").iterdir()) == []
