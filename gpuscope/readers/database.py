"""Read-only access to a SQLite file: whole columns as int64 arrays, damaged rows counted."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpuscope.errors import TraceError
from gpuscope.readers.nsys_schema import Column, TableSpec

Int64 = npt.NDArray[np.int64]

_LATEST_NS = 1 << 62
"""Times beyond 146 years are damage, and their sums would overflow."""

_COMPANIONS = ("-wal", "-journal")


class Database:
    """A SQLite file, opened read only for as long as the ``with`` block lasts.

    A file with a write-ahead log or a hot journal is read from a private copy, because SQLite
    would have to write beside the original to read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: dict[str, int] = {}
        """Rows dropped, by ``TABLE: reason``."""
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._exit, self._sentences():
            source = self._private_copy() if self._needs_copy() else self.path
            self._connection = self._exit.enter_context(
                contextlib.closing(
                    sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=2)
                )
            )
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            names = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            )
            self.tables = frozenset(str(name) for (name,) in names)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exit.close()

    def _needs_copy(self) -> bool:
        with self.path.open("rb") as file:
            versions = file.read(20)[18:20]
        companions = (Path(f"{self.path}{suffix}") for suffix in _COMPANIONS)
        return versions == b"\x02\x02" or any(
            companion.exists() and companion.stat().st_size for companion in companions
        )

    def _private_copy(self) -> Path:
        folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="gpuscope-")))
        copy = folder / "trace.sqlite"
        try:
            shutil.copyfile(self.path, copy)
            for suffix in _COMPANIONS:
                companion = Path(f"{self.path}{suffix}")
                if companion.exists():
                    shutil.copyfile(companion, f"{copy}{suffix}")
            # The copy is ours to write: let SQLite bring the log into the file.
            with contextlib.closing(sqlite3.connect(copy)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")
        except OSError as error:
            msg = (
                f"{self.path} has a write-ahead log and must be copied to be read without touching "
                f"it, but the copy failed: {error.strerror}."
            )
            raise TraceError(msg) from None
        return copy

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                msg = f"{self.path} is locked: another program is writing it; try again when done."
            else:
                msg = f"{self.path} is damaged ({error}): export the report again."
            raise TraceError(msg) from None

    def columns(self, table: str) -> dict[str, bool]:
        """Return the columns of `table`: name to whether it is declared NOT NULL."""
        with self._sentences():
            info = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        return {str(row[1]): bool(row[3]) for row in info}

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query on a small table."""
        with self._sentences():
            return self._connection.execute(sql, parameters).fetchall()

    def records(self, table: str, *names: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dicts; absent tables and columns give no keys."""
        if table not in self.tables:
            return []
        present = [name for name in names if name in self.columns(table)]
        if not present:
            return []
        listed = ", ".join(map(_quoted, present))
        rows = self.rows(f"SELECT {listed} FROM {_quoted(table)}")
        return [dict(zip(present, row, strict=True)) for row in rows]

    def find(self, spec: TableSpec) -> str | None:
        """Return the name that the table has in this file, or None."""
        return next((name for name in spec.names if name in self.tables), None)

    def fetch(self, spec: TableSpec) -> dict[str, Int64] | None:
        """Read the columns of a table; None when the file has no such table.

        Rows that lack a required value, hold text where a number belongs, end before they start or
        lie outside the representable times are dropped and counted in `damaged`.

        Raises
        ------
        TraceError
            A required column is absent, or the pages are corrupt.
        """
        table = self.find(spec)
        if table is None:
            return None
        present = self.columns(table)
        chosen: dict[str, str | None] = {}
        for name, column in spec.columns.items():
            chosen[name] = next((n for n in column.names if n in present), None)
            if chosen[name] is None and column.default is None:
                msg = (
                    f"{self.path} is no export of Nsight Systems known here: table {table} "
                    f"has no column {name}."
                )
                raise TraceError(msg)
        where = f" WHERE {spec.where}" if spec.where else ""
        with self._sentences():
            (count,) = self._connection.execute(
                f"SELECT count(*) FROM {_quoted(table)}{where}"
            ).fetchone()
            fast = ", ".join(
                _expression(spec.columns[name], source, source is not None and present[source])
                for name, source in chosen.items()
            )
            dtype = np.dtype([(name, np.int64) for name in spec.columns])
            try:
                cursor = self._connection.execute(f"SELECT {fast} FROM {_quoted(table)}{where}")
                data = np.fromiter(cursor, dtype, count)
            except (TypeError, ValueError, OverflowError):
                data = self._fetch_damaged(table, spec, chosen, dtype)
                self._count_damage(table, "value missing or no number", count - len(data))
        columns = {name: np.ascontiguousarray(data[name]) for name in spec.columns}
        return self._drop_bad_times(table, spec, columns) if spec.timed else columns

    def _fetch_damaged(
        self, table: str, spec: TableSpec, chosen: dict[str, str | None], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """Read row by row what the fast path stumbled over, leaving the bad rows out."""
        values = []
        conditions = [f"({spec.where})"] if spec.where else []
        for name, source in chosen.items():
            default = spec.columns[name].default
            if source is None:
                values.append(str(default))
            elif default is None:
                values.append(_quoted(source))
                conditions.append(f"typeof({_quoted(source)}) = 'integer'")
            else:
                quoted = _quoted(source)
                values.append(
                    f"CASE typeof({quoted}) WHEN 'integer' THEN {quoted} ELSE {default} END"
                )
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        cursor = self._connection.execute(
            f"SELECT {', '.join(values)} FROM {_quoted(table)}{where}"
        )
        return np.fromiter(cursor, dtype)

    def _drop_bad_times(
        self, table: str, spec: TableSpec, columns: dict[str, Int64]
    ) -> dict[str, Int64]:
        start, end = columns["start"], columns["end"]
        reversed_ = end < start
        if spec.open_ended:
            reversed_ &= end != -1
        outside = (start < 0) | (start > _LATEST_NS) | (end > _LATEST_NS)
        bad = reversed_ | outside
        if not bad.any():
            return columns
        self._count_damage(table, "time out of range", int(outside.sum()))
        self._count_damage(table, "end before start", int((reversed_ & ~outside).sum()))
        return {name: column[~bad] for name, column in columns.items()}

    def _count_damage(self, table: str, reason: str, count: int) -> None:
        if count:
            key = f"{table}: {reason}"
            self.damaged[key] = self.damaged.get(key, 0) + count

    def strings(self, table: str, ids: Int64) -> dict[int, str]:
        """Return the texts of `ids` in a table with columns ``id`` and ``value``."""
        if table not in self.tables:
            return {}
        wanted = set(ids.tolist())
        with self._sentences():
            cursor = self._connection.execute(f"SELECT id, value FROM {_quoted(table)}")
            return {key: str(value) for key, value in cursor if key in wanted}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _expression(column: Column, source: str | None, not_null: bool) -> str:
    if source is None:
        return str(column.default)
    if not_null or column.default is None:
        return _quoted(source)
    return f"ifnull({_quoted(source)}, {column.default})"
