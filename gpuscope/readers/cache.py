"""The user's cache folder: what is derived from reports, never beside them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gpuscope.errors import OutputError


def cache_folder() -> Path:
    """Return gpuscope's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``), created if need be.

    Raises
    ------
    OutputError
        It cannot be created.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "gpuscope"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = (
            f"the cache folder {folder} cannot be created ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder that can be written."
        )
        raise OutputError(msg) from None
    return folder


def export_path(report: Path) -> Path:
    """Return where the SQLite export of `report` is cached.

    The name changes with the file's path, size, inode and times, so that a report that changed is
    exported again.
    """
    stat = report.stat()
    identity = (
        str(report.resolve()),
        stat.st_size,
        stat.st_ino,
        stat.st_mtime_ns,
        stat.st_ctime_ns,
    )
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:20]
    folder = cache_folder() / "exports"
    folder.mkdir(exist_ok=True)
    return folder / f"{report.stem}-{digest}.sqlite"
