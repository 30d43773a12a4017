"""Read-only access to a SQLite file: whole columns as int64 arrays, damaged rows counted."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpuscope.errors import TraceError
from gpuscope.readers.nsys_schema import Column, TableSpec

Int64 = npt.NDArray[np.int64]

_LATEST_NS = 1 << 62
"""Times beyond 146 years are damage, and their sums would overflow."""
_LARGEST_BYTES = 1 << 50
"""Copies of more than a pebibyte are damage, and their sums would overflow."""

_COMPANIONS = ("-wal", "-journal")

_LARGE_ROWS = 200_000
"""From this many rows on the compiled reader is worth its import, about 0.25 s."""
_PARTITIONS = 2
"""Parts in which the compiled reader reads a table at once."""


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
            self._source = self._private_copy() if self._needs_copy() else self.path
            self._connection = self._exit.enter_context(
                contextlib.closing(
                    sqlite3.connect(
                        f"{self._source.resolve().as_uri()}?mode=ro", uri=True, timeout=2
                    )
                )
            )
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            listed = self._connection.execute(
                "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
            self.tables = frozenset(str(name) for name, _ in listed)
            self._views = frozenset(str(name) for name, kind in listed if kind == "view")
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
        try:
            folder = self._exit.enter_context(tempfile.TemporaryDirectory(prefix="gpuscope-"))
            copy = Path(folder, "trace.sqlite")
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
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter in SQLite's own messages
            if "locked" in str(error):
                msg = f"{self.path} is locked: another program is writing it; try again when done."
            else:
                what = "names that are no text" if isinstance(error, UnicodeError) else error
                msg = f"{self.path} is damaged ({what}): export the report again."
            raise TraceError(msg) from None

    def columns(self, table: str) -> dict[str, bool]:
        """Return the columns of `table`: name to whether it is declared NOT NULL."""
        with self._sentences():
            info = self._connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        return {str(row[1]): bool(row[3]) for row in info}

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query on a small table."""
        with self._sentences():
            return self._connection.execute(sql, parameters).fetchall()

    def iterate(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query on a large table."""
        with self._sentences():
            yield from self._connection.execute(sql)

    def records(self, table: str, *names: str) -> list[dict[str, Any]]:
        """Return the rows of a small table as dicts; absent tables and columns give no keys."""
        if table not in self.tables:
            return []
        present = [name for name in names if name in self.columns(table)]
        if not present:
            return []
        listed = ", ".join(map(quoted, present))
        rows = self.rows(f"SELECT {listed} FROM {quoted(table)}")
        return [dict(zip(present, row, strict=True)) for row in rows]

    def find(self, spec: TableSpec) -> str | None:
        """Return the name that the table has in this file, or None."""
        return next((name for name in spec.names if name in self.tables), None)

    def fetch(self, spec: TableSpec, leave_out: Sequence[str] = ()) -> dict[str, Int64] | None:
        """Read the columns of a table, but `leave_out`; None when the file has no such table.

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
            if name in leave_out:
                continue
            chosen[name] = next((n for n in column.names if n in present), None)
            if chosen[name] is None and column.default is None:
                msg = (
                    f"{self.path} is no export of Nsight Systems known here: table {table} "
                    f"has no column {name}."
                )
                raise TraceError(msg)
        query = ", ".join(
            f"{_expression(spec.columns[name], source, bool(source and present[source]))} "
            f"AS {quoted(name)}"
            for name, source in chosen.items()
        )
        with self._sentences():
            columns = self._fetch_compiled(query, table, spec.where)
            if columns is None and not self._holds_fractions(table, chosen.values()):
                where = f" WHERE {spec.where}" if spec.where else ""
                columns = self._fetch_rows(f"SELECT {query} FROM {quoted(table)}{where}", chosen)
            if columns is None:
                columns = self._fetch_damaged(table, spec, chosen)
        if "bytes" in columns:
            size = columns["bytes"]
            good = (size >= 0) & (size <= _LARGEST_BYTES)
            columns = self._keep(table, columns, good, "size out of range")
        return self._drop_bad_times(table, spec, columns) if spec.timed else columns

    def _fetch_compiled(self, query: str, table: str, condition: str) -> dict[str, Int64] | None:
        """Read a large table with the compiled reader; None where that is not to be had.

        It is given only a file that exists, has no log beside it and a percent-encoded name, since
        it would create a missing file and retry a locked one. What it cannot read as integers is
        left to the careful path.
        """
        if table in self._views:
            return None
        try:
            (low, high) = self._connection.execute(
                f"SELECT min(rowid), max(rowid) FROM {quoted(table)}"
            ).fetchone()
        except sqlite3.OperationalError as error:
            if "no such column" in str(error):  # another tool made it WITHOUT ROWID
                return None
            raise
        if low is None or high - low < _LARGE_ROWS:
            return None
        try:
            import connectorx
        except ImportError:
            return None
        step = (high - low) // _PARTITIONS + 1
        also = f"{condition} AND " if condition else ""
        queries = [
            f"SELECT {query} FROM {quoted(table)} "
            f"WHERE {also}rowid >= {first} AND rowid < {first + step}"
            for first in range(low, high + 1, step)
        ]
        address = f"sqlite://{urllib.parse.quote(str(self._source.resolve()))}"
        try:
            data: Any = connectorx.read_sql(address, queries, return_type="arrow")
        except KeyboardInterrupt:
            raise
        except BaseException:  # its panics are no Exception
            return None
        columns = {}
        while data.num_columns:  # let go of each column as soon as it is copied
            name, column = data.column_names[0], data.column(0)
            if str(column.type) != "int64" or column.null_count:
                return None
            columns[name] = np.concatenate([_as_array(chunk) for chunk in column.chunks])
            data = data.remove_column(0)
        return columns

    def _holds_fractions(self, table: str, sources: Iterable[str | None]) -> bool:
        """Whether a column holds a fraction, which NumPy would silently cut to an integer."""
        tests = " OR ".join(f"typeof({quoted(source)}) = 'real'" for source in sources if source)
        query = f"SELECT EXISTS (SELECT 1 FROM {quoted(table)} WHERE {tests})"
        return bool(self._connection.execute(query).fetchone()[0])

    def _fetch_rows(self, sql: str, names: Iterable[str]) -> dict[str, Int64] | None:
        """Read row by row; None where a value is no integer."""
        dtype = np.dtype([(name, np.int64) for name in names])
        try:
            data = np.fromiter(self._connection.execute(sql), dtype)
        except (TypeError, ValueError, OverflowError):
            return None
        return {name: np.ascontiguousarray(data[name]) for name in dtype.names or ()}

    def _fetch_damaged(
        self, table: str, spec: TableSpec, chosen: dict[str, str | None]
    ) -> dict[str, Int64]:
        """Read row by row what the fast path stumbled over; bad rows are left out and counted."""
        condition = f" WHERE {spec.where}" if spec.where else ""
        (count,) = self._connection.execute(
            f"SELECT count(*) FROM {quoted(table)}{condition}"
        ).fetchone()
        values = []
        conditions = [f"({spec.where})"] if spec.where else []
        for name, source in chosen.items():
            default = spec.columns[name].default
            if source is None:
                values.append(str(default))
            elif default is None:
                values.append(quoted(source))
                conditions.append(f"typeof({quoted(source)}) = 'integer'")
            else:
                column = quoted(source)
                values.append(
                    f"CASE typeof({column}) WHEN 'integer' THEN {column} ELSE {default} END"
                )
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = self._fetch_rows(
            f"SELECT {', '.join(values)} FROM {quoted(table)}{where}", chosen
        )
        assert columns is not None  # nothing but integers is left
        left = len(next(iter(columns.values())))
        self.count_damage(table, "value missing or no number", count - left)
        return columns

    def _drop_bad_times(
        self, table: str, spec: TableSpec, columns: dict[str, Int64]
    ) -> dict[str, Int64]:
        start, end = columns["start"], columns["end"]
        reversed_ = end < start
        if spec.open_ended:
            reversed_ &= end != -1
        inside = (start >= 0) & (start <= _LATEST_NS) & (end <= _LATEST_NS)
        columns = self._keep(table, columns, inside, "time out of range")
        return self._keep(table, columns, ~reversed_[inside], "end before start")

    def _keep(
        self, table: str, columns: dict[str, Int64], good: npt.NDArray[np.bool_], reason: str
    ) -> dict[str, Int64]:
        """Leave out the rows that are not `good`, and count them."""
        if good.all():
            return columns
        self.count_damage(table, reason, int((~good).sum()))
        return {name: column[good] for name, column in columns.items()}

    def count_damage(self, table: str, reason: str, count: int) -> None:
        """Count rows that are left out."""
        if count:
            key = f"{table}: {reason}"
            self.damaged[key] = self.damaged.get(key, 0) + count

    def strings(self, table: str, ids: Int64) -> dict[int, str]:
        """Return the texts of `ids` in a table with columns ``id`` and ``value``."""
        if table not in self.tables:
            return {}
        wanted = set(ids.tolist())
        with self._sentences():
            cursor = self._connection.execute(f"SELECT id, value FROM {quoted(table)}")
            return {key: str(value) for key, value in cursor if key in wanted}


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _expression(column: Column, source: str | None, not_null: bool) -> str:
    if source is None:
        return str(column.default)
    if not_null or column.default is None:
        return quoted(source)
    return f"ifnull({quoted(source)}, {column.default})"


def _as_array(chunk: Any) -> Int64:
    """View an Arrow array of int64 without nulls as NumPy (its own conversion imports pandas)."""
    return np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), 8 * chunk.offset)
