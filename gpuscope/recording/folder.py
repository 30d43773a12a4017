"""The folder of a run: what is in it, and how it comes to be without overwriting anything."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import OutputError, ProgramError
from gpuscope.recording import machine

DEFAULT_PARENT = Path("runs")


class RunFolder:
    """A run's files. ``trace.nsys-rep`` is nsys's own; the rest can be read by anything.

    ``spool`` holds the records of CUPTI until they are in ``trace.sqlite``.
    """

    NAMES = (
        "untraced.json",
        "traced.json",
        "trace.nsys-rep",
        "trace.sqlite",
        "analysis.json",
        "run.json",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.untraced, self.traced, self.report, self.sqlite, self.analysis, self.run = (
            path / name for name in self.NAMES
        )
        self.spool = path / ".trace.cupti"

    def write_json(self, path: Path, text: str) -> None:
        """Write `text` to `path`, whole or not at all.

        Raises
        ------
        OutputError
            There is no space, or no permission.
        """
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise _not_writable(path, error) from None

    def remove_if_empty(self) -> bool:
        """Remove the folder when nothing came to be in it, and ``runs`` with it; say if it is gone.

        The empty folders of ranks that never started are nothing, too.
        """
        for inside in self.path.glob("rank*"):
            with contextlib.suppress(OSError):
                inside.rmdir()
        with contextlib.suppress(OSError):
            self.path.rmdir()
            if self.path.parent == DEFAULT_PARENT.absolute():
                self.path.parent.rmdir()
        return not self.path.exists()


def prepare(out: Path | None, name: str, *, force: bool, of_all_ranks: bool = False) -> RunFolder:
    """Make the folder of a run and make sure that it can be written.

    Parameters
    ----------
    out
        Where; by default ``runs/NAME-YYYYmmdd-HHMMSS``. Under mpirun each rank takes a folder of
        its own in it, ``rank0`` and so on.
    name
        The benchmark, or the program.
    force
        Take a folder that is in use: the files of the run in it are removed.
    of_all_ranks
        The folder is that of all ranks, even if this process is one of them.

    Raises
    ------
    OutputError
        It is in use already, or cannot be written.
    """
    chosen = out or DEFAULT_PARENT / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    rank = machine.mpi_rank()
    if rank is not None and not of_all_ranks:
        chosen = chosen / f"rank{rank}"
    folder = RunFolder(chosen.absolute())
    try:
        if chosen.is_dir() and any(chosen.iterdir()) and not force:
            msg = f"{chosen} is not empty: --force replaces the run in it, --out names another."
            raise OutputError(msg)
        chosen.mkdir(parents=True, exist_ok=True)
        for file in folder.NAMES:
            (folder.path / file).unlink(missing_ok=True)
        shutil.rmtree(folder.spool, ignore_errors=True)
        probe = folder.path / f".gpuscope-{os.getpid()}"
        probe.write_bytes(bytes(4096))  # a full disk takes the name, but not the bytes
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            (folder.path / f".gpuscope-{os.getpid()}").unlink(missing_ok=True)
        raise _not_writable(chosen, error) from None
    return folder


def read_result(path: Path) -> Mapping[str, Any]:
    """Read the result that a benchmark wrote.

    Raises
    ------
    ProgramError
        It ended as if all were well and left none.
    """
    try:
        result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        msg = f"the benchmark ended without writing {path.name}: run it again."
        raise ProgramError(msg) from None
    return result


def _not_writable(path: Path, error: OSError) -> OutputError:
    remedy = (
        "free some space" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "check the folder"
    )
    return OutputError(
        f"{path} cannot be written ({error.strerror}): {remedy}, or give another with --out."
    )
