"""The user's cache folder: what is derived from traces, never beside them.

Three kinds of entries lie in folders of their own: ``exports`` of reports, ``columns`` of large
exports, and ``results`` of analyzing these. An entry appears complete or not at all, so that two
processes may make the same one at once. When all of them together exceed the limit, the ones that
were not used for longest are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import OutputError, UsageError

KINDS = ("exports", "columns", "results")
"""What is kept, each in a folder of this name."""
LIMIT_VARIABLE = "GPUSCOPE_CACHE_LIMIT"
"""Environment variable that sets how much is kept in all, such as ``2G``."""
DEFAULT_LIMIT_BYTES = 8 << 30
SMALLEST_SOURCE_BYTES = 32 << 20
"""Smaller exports are read and analyzed faster than the cache could help."""
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_IN_USE_S = 60
"""What was used less than this ago is not removed to make room."""
_STALE_S = 3600
"""Age from which on what is half written was left by a process that died."""
_SETTLED_NS = 2_000_000_000
"""Age of a file's times from which on another change would change them too, on any file system."""
_UNFINISHED = ".unfinished-"

Identity = tuple[int, ...]
"""Device, inode, size and times of a file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something kept."""

    kind: str
    """One of :data:`KINDS`."""
    path: Path
    size_bytes: int
    used_s: float
    """When it was last used, in seconds since 1970."""


def base_folder() -> Path:
    """Return where gpuscope's cache lies (``$XDG_CACHE_HOME`` or ``~/.cache``), there or not."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuscope"


def cache_folder(kind: str) -> Path:
    """Return the folder of the entries of a kind, created if need be.

    Raises
    ------
    OutputError
        It cannot be created.
    """
    folder = base_folder() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = (
            f"the cache folder {folder} cannot be created ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder that can be written."
        )
        raise OutputError(msg) from None
    return folder


def limit_bytes() -> int:
    """Return how much may be kept in all.

    Raises
    ------
    UsageError
        The environment variable holds no size.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return DEFAULT_LIMIT_BYTES
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)", text.strip().upper())
    if match is None:
        msg = f"{LIMIT_VARIABLE}={text!r} is not a size: write it like 500M or 8G."
        raise UsageError(msg)
    return int(match[1]) * _SUFFIXES[match[2]]


def export_path(report: Path) -> Path:
    """Return where the SQLite export of `report` is cached.

    The name changes with the file's path, size, inode and times, so that a report that changed is
    exported again.
    """
    identity = (str(report.resolve()), *identity_of(report))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:20]
    return cache_folder("exports") / f"{report.stem}-{digest}.sqlite"


# Which file is which


def identity_of(path: Path) -> Identity:
    """Return what changes whenever the file at `path` does, without reading it."""
    stat = path.stat()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def digest_of(path: Path) -> str:
    """Return the digest of a file's whole content, with its size in front."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    return f"{path.stat().st_size}-{digest}"


def known_digest(path: Path) -> str | None:
    """Return the digest under which entries of this file may lie; None: there are none.

    A file seen before, unchanged by its size, inode and times, is known by these. Another one is
    read whole, but only where a file of its size was seen.
    """
    identity = identity_of(path)
    record = _record(identity)
    with contextlib.suppress(OSError):
        return record.read_text("ascii")
    same_size = f"{identity[2]}-"
    try:
        seen = any(name.startswith(same_size) for name in os.listdir(base_folder() / "columns"))
    except OSError:
        return None
    if not seen:
        return None
    digest = digest_of(path)
    remember(identity, digest)
    return digest


def remember(identity: Identity, digest: str) -> None:
    """Note the digest of the file of this identity, unless it could change unseen yet."""
    if time.time_ns() - max(identity[-2:]) < _SETTLED_NS:
        return
    _put(_record(identity), lambda target: target.write_text(digest, "ascii"))


def _record(identity: Identity) -> Path:
    key = hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
    return base_folder() / "known" / key


# Entries


def save(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the entry `path`, a file or a folder, and make room for it.

    What another process made meanwhile stays. A cache that cannot be written is no failure.
    """
    _put(path, write)
    with contextlib.suppress(OSError):
        shrink(limit_bytes())


def _put(path: Path, write: Callable[[Path], object]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=base_folder()) as folder:
            made = Path(folder) / path.name
            write(made)
            made.rename(path)  # a folder that is there already refuses


def use(path: Path) -> None:
    """Note that an entry is used now."""
    with contextlib.suppress(OSError):
        os.utime(path)


def entries() -> list[Entry]:
    """List what is kept, what was not used for longest first."""
    found = []
    for kind in KINDS:
        depth = "*/*" if kind == "columns" else "*"
        for path in (base_folder() / kind).glob(depth):
            with contextlib.suppress(OSError):
                files = [path, *path.rglob("*")] if path.is_dir() else [path]
                size = sum(file.stat().st_size for file in files if file.is_file())
                found.append(Entry(kind, path, size, path.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.used_s)


def shrink(limit: int) -> list[Entry]:
    """Remove the entries not used for longest until the rest fits `limit`; return the removed.

    What was used a moment ago stays: somebody may be about to read it.
    """
    kept = entries()
    total = sum(entry.size_bytes for entry in kept)
    removed = []
    for entry in kept:
        if total <= limit or time.time() - entry.used_s < _IN_USE_S:
            break
        remove(entry.path)
        total -= entry.size_bytes
        removed.append(entry)
    for path in base_folder().glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path)
    return removed


def remove(path: Path) -> None:
    """Remove an entry; the folder of a source without any goes too."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    if path.parent.parent.name == "columns":
        with contextlib.suppress(OSError):  # not empty
            path.parent.rmdir()


def clear() -> list[Entry]:
    """Remove everything that is kept; return it."""
    removed = entries()
    for entry in removed:
        remove(entry.path)
    shutil.rmtree(base_folder() / "known", ignore_errors=True)
    return removed
