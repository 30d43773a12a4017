"""The folder of a run: what is in it, and how it comes to be without overwriting anything."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import OutputError, ProgramError
from gpuscope.recording import machine

DEFAULT_PARENT = Path("runs")
TASK, WORD, STOP = "ranks.json", "rank.json", "stop"
"""What ranks have in common: what they do, how each ended, that they are to end."""

_REPLACED = ".replaced"
_RANK_FOLDER = re.compile(r"rank\d+")


def rank_folders(folder: Path) -> list[Path]:
    """Return the folders of the ranks in a run's folder, in their order."""
    found = [path for path in folder.glob("rank*") if _RANK_FOLDER.fullmatch(path.name)]
    return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name[4:]))


def ranks_without_trace(folder: Path) -> tuple[tuple[int, ...], int]:
    """Return the ranks of a run that have no trace in its folder, and how many ranks it had."""
    owns = rank_folders(folder)
    here = {int(own.name[4:]) for own in owns}
    recorded = {int(own.name[4:]) for own in owns if RunFolder(own).has_trace()}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        here |= set(range(json.loads((folder / TASK).read_text("utf-8"))["size"]))
    return tuple(sorted(here - recorded)), len(here)


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
        self._replaced = path / _REPLACED

    def has_trace(self) -> bool:
        """Whether the folder itself holds a trace."""
        return self.sqlite.exists() or self.report.exists()

    def _files(self) -> list[Path]:
        """Return what there is of a run, that of its ranks included."""
        names = (*self.NAMES, self.spool.name, TASK, WORD, STOP)
        folders = (self.path, *rank_folders(self.path))
        paths = [folder / name for folder in folders for name in names]
        return [path for path in paths if os.path.lexists(path)]

    def clear(self) -> None:
        """Remove the files of a run, and leave all others."""
        self._move(None)

    def set_aside(self) -> None:
        """Put the files of a run where they can be fetched back from."""
        self.forget_replaced()
        self._move(self._replaced)

    def forget_replaced(self) -> None:
        """Remove the run that was set aside."""
        shutil.rmtree(self._replaced, ignore_errors=True)

    def _move(self, target: Path | None) -> None:
        for path in self._files():
            if target is not None:
                place = target / path.relative_to(self.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._remove_empty_ranks()

    def _remove_empty_ranks(self) -> None:
        for inside in rank_folders(self.path):
            with contextlib.suppress(OSError):
                inside.rmdir()

    def write_json(self, path: Path, text: str) -> None:
        """Write `text` to `path`, whole or not at all. With its ``run.json`` a run is in place.

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
        if path == self.run:
            self.forget_replaced()

    def remove_if_empty(self) -> bool:
        """Remove the folder when nothing came to be in it, and ``runs`` with it; say if it is gone.

        The empty folders of ranks that never started are nothing, too. A run that was set aside
        comes back then, and what was to replace it is gone.
        """
        self._remove_empty_ranks()
        if self._replaced.is_dir() and not self._files():
            for file in RunFolder(self._replaced)._files():
                place = self.path / file.relative_to(self._replaced)
                place.parent.mkdir(exist_ok=True)
                file.replace(place)
            self.forget_replaced()
            return True
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
        Take a folder that is in use: the files of the run in it are set aside, and removed once the
        new run is in their place.
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
        folder.set_aside()
        probe = folder.path / f".gpuscope-{os.getpid()}"
        probe.write_bytes(bytes(4096))  # a full disk takes the name, but not the bytes
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            (folder.path / f".gpuscope-{os.getpid()}").unlink(missing_ok=True)
            folder.remove_if_empty()
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
