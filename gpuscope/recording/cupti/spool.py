"""The folder a recording lies in until it is written as SQLite.

The recorded program fills ``buffers``, a file that it has mapped: a buffer that was full is kept
though the program is killed (CUPTI holds back what is in a buffer until then). ``start.json`` says
how to read it and is written before anything is recorded; ``end.json`` holds what is known only
afterwards, the texts above all. After a crash there is none, and names are lost.

Only the standard library is used, because this also runs inside the recorded program.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

BUFFER_BYTES = 2 << 20
"""Size of one buffer: some 8 000 launches, which is what a program that is killed may lose."""
LIMIT_BYTES = 512 << 20
"""Size of all buffers together: about 2 million kernel launches, of 256 bytes each."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is known before the program starts."""

    pid: int
    program: str
    library: str
    api_version: int
    record_sizes: dict[int, int]
    driver_calls: dict[int, str]
    runtime_calls: dict[int, str]
    environment: dict[str, str]
    """The variables that tell something about a trace; no others."""


@dataclass(frozen=True, slots=True)
class End:
    """What is known when all is recorded."""

    started_ns: int
    """UTC, as all times of the records are."""
    stopped_ns: int
    dropped: int
    """Records for which there was no buffer."""
    callbacks: int
    """How often CUPTI called Python code between start and stop, to get or return a buffer."""
    callback_ns: int
    """Time in that code, without the wait for the interpreter's lock."""
    was_started: bool
    """Whether anything was to be recorded: False where ``cudaProfilerStart`` never came."""
    notes: list[str] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    """The texts that records point at, by address."""
    threads: dict[int, str] = field(default_factory=dict)
    """Names of the threads that still ran at the end, by number."""


class Spool:
    """The files of one recording."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.buffers = folder / "buffers"
        self.problem = folder / "problem.json"
        self._start = folder / "start.json"
        self._end = folder / "end.json"

    def write_start(self, start: Start) -> None:
        """Write what is known before the program starts."""
        _write(self._start, asdict(start))

    def write_end(self, end: End) -> None:
        """Write what is known at the end."""
        _write(self._end, asdict(end))

    def write_problem(self, sentence: str) -> None:
        """Write why nothing can be recorded."""
        _write(self.problem, {"sentence": sentence})

    def read_problem(self) -> str | None:
        """Return why nothing can be recorded; None if nothing was said."""
        found = _read(self.problem)
        return found["sentence"] if found else None

    def read_start(self) -> Start | None:
        """Return what was known at the start; None where recording never began."""
        found = _read(self._start)
        if found is None:
            return None
        for name in ("record_sizes", "driver_calls", "runtime_calls"):
            found[name] = {int(key): value for key, value in found[name].items()}
        return Start(**found)

    def read_end(self) -> End | None:
        """Return what was known at the end; None where the program was killed."""
        found = _read(self._end)
        if found is None:
            return None
        for name in ("texts", "threads"):
            found[name] = {int(key): value for key, value in found[name].items()}
        return End(**found)


class Buffers:
    """The buffers of a recording that has ended, for reading."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield every buffer that anything was put into."""
        for at in range(0, len(self._map), BUFFER_BYTES):
            if any(self._map[at : at + 4]):
                yield self._map[at : at + BUFFER_BYTES]


def _write(path: Path, values: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values), encoding="utf-8")
    part.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
