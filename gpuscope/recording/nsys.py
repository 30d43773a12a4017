"""Nsight Systems: find it, record a program with it, export its report to SQLite.

nsys says little by its exit code. It ends with 0 though the report is missing: because its
importer lacks a library (a ``.qdstrm`` is left), because the disk is full, because the range to
capture never began; otherwise it hands on the program's own. So what counts here is what lies on
the disk afterwards, and its words are read only to say why.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import (
    CannotJudgeError,
    GpuscopeError,
    MissingError,
    OutputError,
    ProgramError,
    ReportTooNewError,
    TraceError,
    UsageError,
)
from gpuscope.recording import process
from gpuscope.recording.display import Display

INSTALLATIONS = (
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-x64/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/usr/lib/nsight-systems/target-linux-x64/nsys",
    "/usr/lib/*/nsight-systems/target-linux-x64/nsys",
)
"""Where installers put nsys when they leave it off the PATH."""

DEFAULT_TRACE = "cuda,nvtx"

CALL_STACKS = (
    "--sample=process-tree",
    "--cudabacktrace=all:80000",
    "--python-backtrace=cuda",
)
"""Options that record the call stacks of calls of 80 µs or more: waits, copies, allocations."""
_STACK_PAYLOADS = "--include-json"
"""Option of nsys export that puts payloads into the export as text: Python's call stacks."""

GET_NSYS = (
    "install Nsight Systems (the CUDA toolkit brings it; Debian's non-free section has the package "
    "nsight-systems), or set NSYS to the path of its nsys"
)

LIBRARY_PACKAGES = {
    "libdw.so.1": "libdw1",
    "libelf.so.1": "libelf1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libpfm.so.4": "libpfm4",
    "libssh.so": "libssh-4",
    "libssh.so.4": "libssh-4",
    "libstdc++.so.6": "libstdc++6",
    "libunwind.so.8": "libunwind8",
    "libz.so.1": "zlib1g",
}
"""Debian's and Ubuntu's package of each library an importer was seen to lack."""

_VERSION = re.compile(r"version (\d+(?:\.\d+)+)")
_BUILD = re.compile(r"-\d*(\d{8})v\d")
_REPORT = re.compile(rb"NVIDIA [\w ]{1,40}Report ")
_REPORT_VERSION = re.compile(rb"Report (20\d\d)@(\d+)@(\d+)(?:@(\d+))?")
_REPORT_BUILD = re.compile(rb"Report (\d{8})\D")
_OPTION = re.compile(r"--[a-z][a-z0-9-]+")
_PERCENT = re.compile(r"(\d{1,3})%")
_NO_SPACE = re.compile(r"no space left on device|(database or )?disk is full|file too large", re.I)
_CANNOT_CREATE = re.compile(r"Failed to create '.*': (?P<why>.*?)\.?$", re.M)
_WRONG_VERSION = re.compile(r"version (number is invalid|not supported)", re.I)
# nsys's own lines, taken out of the program's output.
_TALK = re.compile(
    r"Generating '.*\.qdstrm'|\[\d+/\d+\] \[|Capture range (started|ended) in the application"
    r"|Processing \d+ events|Exporting \d+ events|Collecting data\.\.\."
)
# Its complaints: kept to explain a missing report, and not shown.
_COMPLAINT = re.compile(
    r"Import(er error status| Failed)|Unable to retrieve the importer|Dynamic exception type:"
    r"|std::exception::what:|Failed to create '"
)
_SHORT_OPTIONS = {
    "-c": "--capture-range",
    "-d": "--duration",
    "-f": "--force-overwrite",
    "-o": "--output",
    "-p": "--nvtx-capture",
    "-s": "--sample",
    "-t": "--trace",
    "-y": "--delay",
}


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that answers."""

    path: Path
    version: tuple[int, ...]
    options: frozenset[str] = dataclasses.field(repr=False)
    """The long options its ``nsys profile --help`` lists."""
    build: int | None = None
    """Its build number; None where the version does not hold one (until 2022)."""

    @property
    def version_text(self) -> str:
        """The version as nsys writes it, such as ``2025.3.2.474``."""
        return ".".join(map(str, self.version))


@dataclass(frozen=True, slots=True)
class Capture:
    """Which part of the program is recorded."""

    text: str
    """As the user wrote it."""
    options: tuple[str, ...]
    missed: str
    """Why nothing was recorded, when nothing was."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A report, and how the program that it is of ended."""

    report: Path
    program_code: int
    interrupted: bool
    timed_out: bool
    outlived: tuple[str, ...]
    """Names of the processes the program left running, which were ended."""
    argv: tuple[str, ...]


# ── finding ──────────────────────────────────────────────────────────────────────────────────────


def find() -> Nsys:
    """Find nsys: ``$NSYS``, then the PATH, then the newest of the usual installations.

    Raises
    ------
    MissingError
        There is none, or ``$NSYS`` names something that is no nsys.
    """
    named = os.environ.get("NSYS")
    if named:
        nsys = examine(Path(named))
        if nsys is None:
            msg = f"NSYS is set to {named}, which is no working nsys; correct it or unset it."
            raise MissingError(msg)
        return nsys
    on_path = shutil.which("nsys")
    nsys = examine(Path(on_path)) if on_path else None
    if nsys is None:
        found = [examine(path) for path in _installed()]
        nsys = max((one for one in found if one), key=lambda one: one.version, default=None)
    if nsys is None:
        msg = f"nsys is not on the PATH nor in a usual place: {GET_NSYS}."
        raise MissingError(msg)
    return nsys


@functools.lru_cache(maxsize=32)
def examine(path: Path) -> Nsys | None:
    """Ask the nsys at `path` for its version and options; None when it does not answer."""
    code, text = process.output([str(path), "--version"])
    version = _VERSION.search(text)
    if code != 0 or version is None:
        return None
    build = _BUILD.search(text)
    _, text = process.output([str(path), "profile", "--help"])
    return Nsys(
        path=path,
        version=tuple(map(int, version[1].split("."))),
        options=frozenset(_OPTION.findall(text)),
        build=int(build[1]) if build else None,
    )


def _installed() -> Iterator[Path]:
    seen: set[str] = set()
    for pattern in INSTALLATIONS:
        for name in sorted(glob.glob(pattern)):
            real = os.path.realpath(name)
            if real not in seen and os.access(name, os.X_OK):
                seen.add(real)
                yield Path(name)


# ── the importer ─────────────────────────────────────────────────────────────────────────────────


def missing_libraries(nsys: Nsys) -> tuple[str, ...]:
    """Name the shared libraries that nsys's importer asks for and the loader does not find."""
    folder = Path(os.path.realpath(nsys.path)).parent
    programs = [
        program
        for name in ("QdstrmImporter", "nsys-exporter")
        for program in (folder / name, *sorted(folder.parent.glob(f"*/{name}")))
        if program.is_file()
    ]
    missing: dict[str, None] = {}
    for program in programs:
        _, text = process.output(["ldd", str(program)])
        missing.update(dict.fromkeys(re.findall(r"^\s*(\S+) => not found", text, re.M)))
    return tuple(missing)


def importer_problem(nsys: Nsys) -> str | None:
    """Record a program that does nothing; say what is wrong when that leaves no report."""
    words: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        stem = Path(folder, "probe")
        argv = [str(nsys.path), "profile", "--trace=none", "--sample=none", "--cpuctxsw=none"]
        argv += [f"--output={_escaped(stem)}", shutil.which("true") or "true"]
        ended = process.run(
            argv, on_line=lambda line: words.append(line.text), quiet_input=True, timeout_s=60
        )
        if ended.interrupted:
            raise KeyboardInterrupt
        if list(Path(folder).glob("probe.*rep")):
            return None
    return _importer_sentence(nsys, words)


def _importer_sentence(nsys: Nsys, words: Sequence[str]) -> str:
    missing = missing_libraries(nsys)
    start = f"the importer of nsys {nsys.version_text} does not run"
    if not missing:
        cause = re.search(r'ErrorText\s+Value: "(.+?)"', "\n".join(words))
        said = cause[1] if cause else _last_words(words, "Import")
        return f"{start}: {said} ({nsys.path}; a whole installation has it beside nsys)"
    known = [LIBRARY_PACKAGES[name] for name in missing if name in LIBRARY_PACKAGES]
    unknown = [name for name in missing if name not in LIBRARY_PACKAGES]
    remedies = [f"apt-get install {' '.join(dict.fromkeys(known))}"] if known else []
    if unknown:
        remedies.append(f"install the package that holds {', '.join(unknown)}")
    return f"{start}: {', '.join(missing)} is missing ({'; '.join(remedies)})"


# ── recording ────────────────────────────────────────────────────────────────────────────────────


def parse_capture(text: str) -> Capture:
    """Understand ``nvtx:NAME@DOMAIN``, ``cuda`` or ``delay:30,duration:5``.

    Raises
    ------
    UsageError
        It is none of the three.
    """
    kind, _, value = text.partition(":")
    if text == "cuda":
        return Capture(
            text,
            ("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            "the program never called cudaProfilerStart",
        )
    if kind == "nvtx" and value:
        return Capture(
            text,
            ("--capture-range=nvtx", f"--nvtx-capture={value}", "--capture-range-end=stop"),
            f"the program never began the NVTX range {value} "
            "(NAME alone is the default domain; NAME@DOMAIN names one; NAME@* is any)",
        )
    parts = dict(part.split(":", 1) for part in text.split(",") if ":" in part)
    if (
        len(parts) == text.count(",") + 1
        and parts.keys() <= {"delay", "duration"}
        and all(re.fullmatch(r"\d+(\.\d+)?", seconds) for seconds in parts.values())
        and float(parts.get("duration", "1")) > 0
    ):
        return Capture(
            text,
            tuple(f"--{name}={seconds}" for name, seconds in parts.items()),
            "the program had ended before the delay was over",
        )
    msg = (
        f"--capture {text!r} is not understood: nvtx:NAME@DOMAIN, cuda, or "
        "delay:SECONDS,duration:SECONDS (either may be left out)."
    )
    raise UsageError(msg)


def profile_argv(
    nsys: Nsys,
    stem: Path,
    command: Sequence[str],
    *,
    capture: Capture | None = None,
    trace: str = DEFAULT_TRACE,
    call_stacks: bool = False,
    extra: Sequence[str] = (),
) -> list[str]:
    """Build the command line that records `command` into the report `stem` + ``.nsys-rep``.

    CUDA events stay untraced, because tracing them makes streams wait for each other, and the nodes
    of graphs are traced one by one. `call_stacks` adds those of calls of 80 µs or more, which takes
    sampling. Options this nsys does not know, and those that `extra` sets itself, are left out.
    """
    own = [
        f"--trace={trace}",
        *(CALL_STACKS if call_stacks else ("--sample=none",)),
        "--cpuctxsw=none",
        "--force-overwrite=true",
        f"--output={_escaped(stem)}",
        f"--session-new={session_name()}",
    ]
    if "cuda" in trace.split(","):
        own += ["--cuda-event-trace=false", "--cuda-graph-trace=node"]
    own += capture.options if capture else ()
    named = {_SHORT_OPTIONS.get(word, word.partition("=")[0]) for word in extra}
    kept = [
        option
        for option in own
        if (name := option.partition("=")[0]) in nsys.options and name not in named
    ]
    return [str(nsys.path), "profile", *kept, *extra, *command]


def session_name() -> str:
    """Name the nsys session of this process, by which it can be told to stop."""
    return f"gpuscope-{os.getpid()}"


def record(
    nsys: Nsys,
    command: Sequence[str],
    report: Path,
    *,
    display: Display,
    capture: Capture | None = None,
    trace: str = DEFAULT_TRACE,
    call_stacks: bool = False,
    extra: Sequence[str] = (),
    timeout_s: float | None = None,
    quiet_input: bool = False,
    stop_when: Callable[[], bool] | None = None,
) -> Recording:
    """Run `command` under nsys and return the report it leaves at `report`.

    Parameters
    ----------
    nsys
        The nsys to record with.
    command
        The program and its arguments.
    report
        Where the report goes: a path ending in ``.nsys-rep`` in a folder that exists.
    display
        Shows the program's output and what nsys is doing.
    capture, trace, call_stacks, extra
        What is recorded; see :func:`profile_argv`.
    timeout_s
        The program is stopped after this time; what was recorded is kept.
    quiet_input
        Give the program no standard input.
    stop_when
        The program is stopped once this says so; what was recorded is kept.

    Raises
    ------
    KeyboardInterrupt
        The user stopped it before anything was recorded.
    MissingError
        nsys's importer does not run.
    OutputError
        The report could not be written.
    CannotJudgeError
        The part to capture never came.
    ProgramError, UsageError
        The program, or nsys itself, failed without leaving a report.
    """
    argv = profile_argv(
        nsys,
        report.with_suffix(""),
        command,
        capture=capture,
        trace=trace,
        call_stacks=call_stacks,
        extra=extra,
    )
    listener = _Listener(display)
    env = {**os.environ, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    # A signal alone ends the program together with the recording, before the GPU's records are
    # fetched from it; `nsys stop` fetches them first.
    stop = [str(nsys.path), "stop", f"--session={session_name()}"]
    with display.step("recording with Nsight Systems"):
        ended = process.run(
            argv,
            on_line=listener.hear,
            env=env,
            quiet_input=quiet_input,
            timeout_s=timeout_s,
            stop_argv=stop if "--session-new" in nsys.options else None,
            on_stop=lambda stage: display.say(_STOPPING[stage]),
            stop_when=stop_when,
        )
    if not report.is_file():
        _rescue(listener.generated, report)
    if not report.is_file():
        raise _why_no_report(nsys, report, command, capture, listener, ended)
    return Recording(
        report=report,
        program_code=_program_code(ended, capture),
        interrupted=ended.interrupted,
        timed_out=ended.timed_out,
        outlived=ended.outlived,
        argv=tuple(argv),
    )


_STOPPING = (
    "stopping: nsys writes what it has recorded (Ctrl-C again gives that up)",
    "ending nsys",
    "killing what is left",
)


class _Listener:
    """Sorts what comes out of nsys: the program's lines are shown, nsys's own are kept."""

    def __init__(self, display: Display) -> None:
        self.generated: list[Path] = []
        self.words: list[str] = []
        self._display = display
        self._in_list = False

    def hear(self, line: process.Line) -> None:
        text = line.text
        if self._in_list and text.startswith(("\t", "    ")):
            self.generated.append(Path(text.strip()))
            return
        self._in_list = text.strip() == "Generated:"
        if self._in_list:
            return
        if _TALK.match(text):
            if percent := _PERCENT.search(text):
                self._display.advance(int(percent[1]) / 100)
            return
        if text.strip():
            self.words = [*self.words[-39:], text]
        if not line.replaced and not _COMPLAINT.match(text):
            self._display.program_line(text)


def _rescue(generated: Sequence[Path], report: Path) -> None:
    """Fetch a report that nsys could only write elsewhere (it falls back to the temp folder)."""
    for path in generated:
        if path.suffix == report.suffix and path.is_file():
            try:
                shutil.move(path, report)
            except OSError as error:
                msg = (
                    f"{report} cannot be written ({error.strerror}); "
                    f"the recording is kept in {path}: move it by hand."
                )
                raise OutputError(msg) from None


def _why_no_report(
    nsys: Nsys,
    report: Path,
    command: Sequence[str],
    capture: Capture | None,
    listener: _Listener,
    ended: process.Ended,
) -> BaseException:
    words = "\n".join(listener.words)
    raws = (report.with_suffix(".qdstrm"), *listener.generated)
    raw = next((path for path in raws if path.suffix == ".qdstrm" and path.is_file()), None)
    kept = f" What was recorded is kept in {raw}." if raw else ""
    created = _CANNOT_CREATE.search(words)
    if _NO_SPACE.search(words):
        return no_space(report.parent, kept)
    if created:
        return OutputError(
            f"nsys cannot write {report}: {created['why']}; give another folder with --out.{kept}"
        )
    if raw:
        return MissingError(f"{_importer_sentence(nsys, listener.words)}.{kept}")
    if ended.interrupted:
        return KeyboardInterrupt()
    if "Executable not found" in words:
        return UsageError(f"there is no program {command[0]!r}; check what follows --.")
    if "unrecognised option" in words or "Illegal --" in words:
        said = _last_words(listener.words, "unrecognised option", "Illegal --")
        return UsageError(
            f"nsys {nsys.version_text} refuses its options: {said}; "
            "check --trace and --nsys-args against `nsys profile --help`."
        )
    if ended.timed_out:
        return ProgramError(
            f"{process.shown(command)} was stopped after --timeout; "
            "nothing had been recorded by then."
        )
    if ended.signal is not None:
        return ProgramError(
            f"nsys was ended by signal {ended.signal} ({signal.strsignal(ended.signal)}), and left "
            f"no report of {process.shown(command)}: record it again."
        )
    if ended.code != 0:
        return ProgramError(
            f"{process.shown(command)} ended with exit code {ended.code} and nothing was recorded; "
            "its own words are above."
        )
    if capture:
        return CannotJudgeError(f"nothing was recorded: {capture.missed}.")
    return ProgramError(
        f"nsys {nsys.version_text} ended without a report; "
        f"its last words: {_last_words(listener.words)}"
    )


def _program_code(ended: process.Ended, capture: Capture | None) -> int:
    """Return the program's exit code; 0 where it was nsys or the user that ended the program."""
    ended_by_nsys = capture is not None and any("--duration" in word for word in capture.options)
    if ended.interrupted or ended.timed_out or (ended_by_nsys and ended.code == 143):
        return 0
    return ended.code


# ── exporting ────────────────────────────────────────────────────────────────────────────────────


def export(
    report: Path,
    sqlite_path: Path,
    *,
    nsys: Nsys | None = None,
    display: Display | None = None,
    call_stacks: bool = False,
) -> None:
    """Export a report to SQLite; `sqlite_path` appears whole or not at all.

    Parameters
    ----------
    report
        The ``.nsys-rep`` (or older ``.qdrep``) file; it is only read.
    sqlite_path
        The file to write; one that is there is replaced.
    nsys
        The nsys to export with; by default the one that :func:`find` finds.
    display
        Shows how far the export is.
    call_stacks
        Put Python's call stacks into the export, if this nsys can.

    Raises
    ------
    ReportTooNewError
        The report was written by a newer Nsight Systems than `nsys`.
    TraceError
        The file is no report, or is damaged.
    OutputError
        The export could not be written.
    MissingError
        There is no nsys, or a library it needs is missing.
    """
    if not report.is_file():
        msg = f"{report} does not exist."
        raise TraceError(msg)
    nsys = nsys or find()
    display = display or Display()
    words: list[str] = []

    def hear(line: process.Line) -> None:
        if percent := _PERCENT.search(line.text):
            display.advance(int(percent[1]) / 100)
        elif line.text.strip():
            words.append(line.text.strip())

    try:
        sqlite_path.parent.mkdir(parents=True, exist_ok=True)
        # The folder's name cannot be cut off by nsys, and a half-written file never has the name.
        with tempfile.TemporaryDirectory(prefix=".export-", dir=sqlite_path.parent) as folder:
            made = Path(folder, "trace.sqlite")
            wanted = ("--include-blobs", *([_STACK_PAYLOADS] if call_stacks else []))
            payloads = [f"{option}=true" for option in wanted if option in _export_help(nsys)]
            argv = [str(nsys.path), "export", "-t", "sqlite", *payloads, "-o", str(made)]
            argv.append(str(report))
            with display.step("exporting the report"):
                ended = process.run(argv, on_line=hear, quiet_input=True, grace_s=2.0)
            if ended.interrupted:
                raise KeyboardInterrupt
            problem = _export_problem(nsys, report, made, words, ended.code)
            if problem is not None:
                raise problem
            made.replace(sqlite_path)
    except OSError as error:
        msg = f"{sqlite_path} cannot be written: {error.strerror}."
        raise OutputError(msg) from None


@functools.lru_cache(maxsize=32)
def _export_help(nsys: Nsys) -> str:
    """Return what `nsys` says of its export: not every one can export payloads."""
    return process.output([str(nsys.path), "export", "--help"])[1]


def is_report(path: Path) -> bool:
    """Whether the file begins as the reports of Nsight Systems do."""
    return _REPORT.match(_head(path)) is not None


def report_version(report: Path) -> tuple[int, ...] | None:
    """Read from a report's head which Nsight Systems wrote it; None when it does not say.

    Reports of 2025 hold a build number in that place: :func:`report_build`.
    """
    found = _REPORT_VERSION.search(_head(report))
    return tuple(int(part) for part in found.groups() if part) if found else None


def report_build(report: Path) -> int | None:
    """Read from a report's head the build of the Nsight Systems that wrote it; None without one."""
    found = _REPORT_BUILD.search(_head(report))
    return int(found[1]) if found else None


def _head(report: Path) -> bytes:
    with report.open("rb") as file:
        return file.read(256)


def _export_problem(
    nsys: Nsys, report: Path, made: Path, words: Sequence[str], code: int
) -> GpuscopeError | None:
    text = "\n".join(words)
    if _NO_SPACE.search(text):
        return no_space(made.parent.parent, f" The report is in {report}.")
    if code == 0 and made.is_file() and made.stat().st_size > 0:
        return None
    newer = _newer_writer(nsys, report, text)
    if newer is not None:
        return ReportTooNewError(
            f"{report} was written by {newer}, and the nsys found here is "
            f"{nsys.version_text} ({nsys.path}): install that version or a newer one, "
            "or set NSYS to it."
        )
    if "error while loading shared libraries" in text:
        return MissingError(f"{_importer_sentence(nsys, words)}.")
    said = _last_words(words, "Exportation error").removeprefix("Exportation error: ")
    return TraceError(
        f"{report} cannot be exported: nsys {nsys.version_text} says: {said} "
        "The file is damaged, cut off, or no report of Nsight Systems."
    )


def _newer_writer(nsys: Nsys, report: Path, words: str) -> str | None:
    """Say what wrote a report that `nsys` could not export, if that is newer than `nsys`."""
    version, build = report_version(report), report_build(report)
    if version is not None:
        is_newer = version[:3] > nsys.version[:3]
        return f"Nsight Systems {'.'.join(map(str, version))}" if is_newer else None
    is_newer = _WRONG_VERSION.search(words) is not None
    if build is not None and nsys.build is not None:
        is_newer = build > nsys.build
    named = f" (build {build}, of 2024 or later)" if build else ""
    return f"a newer Nsight Systems{named}" if is_newer else None


def no_space(folder: Path, kept: str = "") -> OutputError:
    """Say that the disk of `folder`, or that of the temp folder, is full."""
    free = {
        str(one): shutil.disk_usage(one).free / 1e6
        for one in (folder, Path(tempfile.gettempdir()))
        if one.is_dir()
    }
    listed = ", ".join(f"{size:.0f} MB free in {name}" for name, size in free.items())
    return OutputError(
        f"no space left for the recording ({listed}): "
        f"free some, or give another folder with --out and another TMPDIR.{kept}"
    )


def _last_words(words: Sequence[str], *marks: str) -> str:
    """Return the last line with one of `marks` in it, else the last line of all."""
    marked = [word for word in words if any(mark in word for mark in marks)]
    last = (marked or list(words) or ["nothing"])[-1].strip()
    return last if last.endswith((".", "!")) else f"{last}."


def _escaped(path: Path) -> str:
    """Protect a path from nsys's own ``%`` patterns."""
    return str(path).replace("%", "%%")
