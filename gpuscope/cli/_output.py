"""Files that commands write: whole, or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuscope.cli._options import say
from gpuscope.errors import OutputError

STDOUT = Path("-")
"""The name that stands for stdout."""


def check_free(path: Path, force: bool) -> None:
    """Say what is in the way of writing to `path`, before there is anything to write.

    Raises
    ------
    OutputError
        `path` is a folder, its folder is missing, or it exists and `force` is false.
    """
    if path == STDOUT:
        return
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise OutputError(f"there is no folder {path.parent}: make it, or choose another place.")
    if path.is_file() and not force:
        raise OutputError(f"{path} exists: choose another name, or overwrite it with --force.")


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, or to stdout; a file that cannot be finished is not left behind.

    Raises
    ------
    OutputError
        There is no room, or no permission. What was there before is there still.
    """
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal
            path.write_text(text, "utf-8")
        else:
            _replace(path.resolve(), text)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from None
    say(f"Wrote {path}")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".gpuscope-{os.getpid()}")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
