"""The two recorders, with one face: Nsight Systems, and gpuscope's own through CUPTI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuscope.errors import MissingError, UsageError
from gpuscope.recording import nsys as nsight
from gpuscope.recording.cupti import library, program
from gpuscope.recording.cupti.spool import Spool
from gpuscope.recording.display import Display
from gpuscope.recording.folder import RunFolder


class Recorder(Protocol):
    """What records a program into a run's folder."""

    @property
    def name(self) -> str:
        """How ``run.json`` names it."""

    @property
    def version_text(self) -> str:
        """Its version."""

    @property
    def get_ranges(self) -> str:
        """What to do where no NVTX range was recorded."""

    def record(
        self,
        command: Sequence[str],
        folder: RunFolder,
        *,
        display: Display,
        capture: nsight.Capture | None,
        timeout_s: float | None,
        quiet_input: bool,
    ) -> nsight.Recording:
        """Run `command` and record it."""

    def export(self, folder: RunFolder, display: Display) -> None:
        """Write what was recorded as ``trace.sqlite``."""


@dataclass(frozen=True, slots=True)
class NsysRecorder:
    """Records with Nsight Systems."""

    nsys: nsight.Nsys
    trace: str = nsight.DEFAULT_TRACE
    extra: Sequence[str] = ()
    call_stacks: bool = False
    name: str = "nsys"
    get_ranges: str = (
        "install nvtx 0.2.11 (nsys 2023.4 records nothing of later ones) or a newer nsys"
    )

    @property
    def version_text(self) -> str:
        """The version of nsys."""
        return self.nsys.version_text

    def record(
        self,
        command: Sequence[str],
        folder: RunFolder,
        *,
        display: Display,
        capture: nsight.Capture | None,
        timeout_s: float | None,
        quiet_input: bool,
    ) -> nsight.Recording:
        """Run `command` under nsys."""
        return nsight.record(
            self.nsys,
            command,
            folder.report,
            display=display,
            capture=capture,
            trace=self.trace,
            extra=self.extra,
            call_stacks=self.call_stacks,
            timeout_s=timeout_s,
            quiet_input=quiet_input,
        )

    def export(self, folder: RunFolder, display: Display) -> None:
        """Let nsys export its report."""
        nsight.export(
            folder.report,
            folder.sqlite,
            nsys=self.nsys,
            display=display,
            call_stacks=self.call_stacks,
        )


@dataclass(slots=True)
class CuptiRecorder:
    """Records through CUPTI, without Nsight Systems."""

    version_text: str
    name: str = "cupti"
    get_ranges: str = f"record with --nsys: {library.RANGES_LOST}"
    _capture: nsight.Capture | None = None

    def record(
        self,
        command: Sequence[str],
        folder: RunFolder,
        *,
        display: Display,
        capture: nsight.Capture | None,
        timeout_s: float | None,
        quiet_input: bool,
    ) -> nsight.Recording:
        """Run `command`, a Python program, with the recorder inside it."""
        self._capture = capture
        return program.record(
            command,
            Spool(folder.spool),
            display=display,
            capture=capture,
            timeout_s=timeout_s,
            quiet_input=quiet_input,
        )

    def export(self, folder: RunFolder, display: Display) -> None:
        """Write the records."""
        program.write(Spool(folder.spool), folder.sqlite, display=display, capture=self._capture)


def choose(
    *,
    nsys: bool,
    cupti: bool,
    trace: str | None,
    nsys_args: Sequence[str],
    call_stacks: bool,
    display: Display,
) -> Recorder:
    """Choose what to record with, and say which.

    Parameters
    ----------
    nsys, cupti
        What the user asked for; neither takes nsys where it is, and CUPTI otherwise.
    trace, nsys_args, call_stacks
        What nsys alone understands.
    display
        Says which it is.

    Raises
    ------
    MissingError
        What was asked for is not there, or nothing is.
    UsageError
        Both were asked for, or CUPTI with options of nsys.
    """
    only_nsys = bool(nsys or trace or nsys_args or call_stacks)
    if cupti and only_nsys:
        msg = "--cupti stands alone: --nsys, --trace, --nsys-args and --why are for Nsight Systems."
        raise UsageError(msg)
    if cupti:
        return _cupti(display)
    try:
        found = _nsys(trace, nsys_args, call_stacks)
    except MissingError as error:
        if only_nsys:
            raise
        missing = error
    else:
        if not nsys:
            display.say("recording with Nsight Systems (--nsys)")
        display.say(f"nsys {found.version_text}: {found.nsys.path}")
        return found
    try:
        recorder = _cupti(display)
    except MissingError as error:
        msg = f"{missing} Without nsys, CUPTI could record Python programs, but {error}"
        raise MissingError(msg) from None
    display.say(f"recording through CUPTI (--cupti), because {missing}")
    return recorder


def _nsys(trace: str | None, nsys_args: Sequence[str], call_stacks: bool) -> NsysRecorder:
    nsys = nsight.find()
    # What looks missing may still be found by nsys's own means: only a recording is proof.
    if nsight.missing_libraries(nsys) and (problem := nsight.importer_problem(nsys)):
        raise MissingError(f"{problem}.")
    return NsysRecorder(nsys, trace or nsight.DEFAULT_TRACE, nsys_args, call_stacks)


def _cupti(display: Display) -> CuptiRecorder:
    found = library.Library(library.find())
    display.say(f"CUPTI {found.version_text}: {found.path}")
    return CuptiRecorder(found.version_text)
