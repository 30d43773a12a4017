"""Read-only access to a SQLite file: whole columns as int64 arrays, damaged rows counted."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import urllib.parse
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
_CHUNK_ROWS = 500_000
"""Rows read at once: memory that is used again costs less than memory that is new."""
_READERS = 2
"""Such pieces that are read at the same time."""
_AHEAD = 6
"""Such pieces that may be begun before they are asked for."""
_LEAST_ROW_BYTES = 8
"""No row of a table that is read takes less room in the file."""
_FEW_STRINGS = 2_000
"""Up to this many texts are looked up one by one; for more the whole table is read."""

Columns = dict[str, Int64]
_RowRange = tuple[int, int]
"""Rowids from the first up to, but not including, the second."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is read from a table."""

    table: str
    spec: TableSpec
    sources: dict[str, str | None]
    """Our column names to the names in the file; None: absent there, all rows get the default."""
    query: str
    """The columns, as SQL."""

    def sql(self, rows: _RowRange | None) -> str:
        """Return the query for the wanted rows among `rows`."""
        return f"SELECT {self.query} FROM {quoted(self.table)}{self.condition(rows)}"

    def condition(self, rows: _RowRange | None) -> str:
        """Return the SQL clause that selects the wanted rows among `rows`, or none."""
        conditions = [f"({self.spec.where})"] if self.spec.where else []
        if rows is not None:
            conditions.append(f"rowid >= {rows[0]} AND rowid < {rows[1]}")
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""


class Database:
    """A SQLite file, opened read only for as long as the ``with`` block lasts.

    A file with a write-ahead log or a hot journal is read from a private copy, because SQLite
    would have to write beside the original to read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: dict[str, int] = {}
        """Rows dropped, by ``TABLE: reason``."""
        self._coming: deque[tuple[_Reading, _RowRange]] = deque()
        self._begun: dict[str, Future[Columns | None]] = {}
        """Reads that were begun before they were asked for, by their query."""
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._exit, self._sentences():
            self._source = self._private_copy() if needs_copy(self.path) else self.path
            self._connection = self._exit.enter_context(
                contextlib.closing(
                    sqlite3.connect(
                        f"{self._source.resolve().as_uri()}?mode=ro", uri=True, timeout=2
                    )
                )
            )
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            listed = self._connection.execute(
                "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
            self.tables = frozenset(str(name) for name, *_ in listed)
            self._views = frozenset(str(name) for name, kind, _ in listed if kind == "view")
            # The compiled reader panics, and prints so, on a declaration that is no UTF-8.
            self._undeclared = frozenset(str(name) for name, _, sql in listed if "�" in str(sql))
            self._pool = ThreadPoolExecutor(_READERS)
            self._exit.callback(self._pool.shutdown, cancel_futures=True)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exit.close()

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

    def row_count(self, spec: TableSpec) -> int:
        """Return the number of rows of a table, wanted or not; 0 where the file has none."""
        table = self.find(spec)
        if table is None:
            return 0
        (count,) = self.rows(f"SELECT count(*) FROM {quoted(table)}")[0]
        return int(count)

    def rows_about(self, spec: TableSpec) -> int:
        """Return about how many rows a table has, found without counting; 0 for few or none."""
        table = self.find(spec)
        rowids = None if table is None else self._rowids(table)
        return 0 if rowids is None else rowids[1] - rowids[0]

    def fetch(self, spec: TableSpec) -> Columns | None:
        """Read the columns of a whole table, as :meth:`chunks` does; None where there is none."""
        chunks = self.chunks(spec)
        if chunks is None:
            return None
        parts = list(chunks)
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}

    def chunks(self, spec: TableSpec, leave_out: Sequence[str] = ()) -> Iterator[Columns] | None:
        """Read the columns of a table, but `leave_out`, some rows at a time, at least once.

        None when the file has no such table. Rows that lack a required value, hold text where a
        number belongs, end before they start or lie outside the representable times are dropped and
        counted in `damaged`.

        Raises
        ------
        TraceError
            A required column is absent, or the pages are corrupt.
        """
        reading = self._reading(spec, leave_out)
        return None if reading is None else self._read_chunks(reading)

    def expect(self, tables: Iterable[tuple[TableSpec, Sequence[str]]]) -> None:
        """Begin to read large tables, each without some columns, before :meth:`chunks` is called.

        They are best asked for in this order. What was expected before is forgotten.
        """
        self._forget()
        for spec, leave_out in tables:
            with contextlib.suppress(TraceError):  # said by `chunks`
                reading = self._reading(spec, leave_out)
                if reading is not None:
                    ranges = self._row_ranges(reading.table)
                    self._coming.extend((reading, rows) for rows in ranges if rows is not None)
        self._go_ahead()

    def _forget(self) -> None:
        for read in self._begun.values():
            read.cancel()
        self._begun.clear()
        self._coming.clear()

    def _go_ahead(self) -> None:
        """Begin some of the reads that are expected next."""
        while self._coming and len(self._begun) < _AHEAD:
            reading, rows = self._coming.popleft()
            self._begun[reading.sql(rows)] = self._pool.submit(self._fetch_compiled, reading, rows)

    def _reading(self, spec: TableSpec, leave_out: Sequence[str]) -> _Reading | None:
        """Say what is to be read of a table; None when the file has no such table.

        Raises
        ------
        TraceError
            A required column is absent.
        """
        table = self.find(spec)
        if table is None:
            return None
        present = self.columns(table)
        sources: dict[str, str | None] = {}
        for name, column in spec.columns.items():
            if name in leave_out:
                continue
            sources[name] = next((n for n in column.names if n in present), None)
            if sources[name] is None and column.default is None:
                msg = (
                    f"{self.path} is no export of Nsight Systems known here: table {table} "
                    f"has no column {name}."
                )
                raise TraceError(msg)
        query = ", ".join(
            f"{_expression(spec.columns[name], source, bool(source and present[source]))} "
            f"AS {quoted(name)}"
            for name, source in sources.items()
        )
        return _Reading(table, spec, sources, query)

    def _read_chunks(self, reading: _Reading) -> Iterator[Columns]:
        for rows, columns in self._compiled(reading):
            with self._sentences():
                condition = reading.condition(rows)
                if columns is None and not self._holds_fractions(reading, condition):
                    columns = self._fetch_rows(reading.sql(rows), reading.sources)
                if columns is None:
                    columns = self._fetch_damaged(reading, condition)
            if "bytes" in columns:
                size = columns["bytes"]
                good = (size >= 0) & (size <= _LARGEST_BYTES)
                columns = self._keep(reading.table, columns, good, "size out of range")
            if reading.spec.timed:
                columns = self._drop_bad_times(reading.table, reading.spec, columns)
            yield columns

    def _compiled(self, reading: _Reading) -> Iterator[tuple[_RowRange | None, Columns | None]]:
        """Yield ranges of rows with what the compiled reader found, which reads ahead."""
        ranges = self._row_ranges(reading.table)
        if ranges[0] is not None and reading.sql(ranges[0]) not in self._begun:
            self._forget()
            self._coming.extend((reading, rows) for rows in ranges if rows is not None)
            self._go_ahead()
        for rows in ranges:
            columns = None
            if rows is not None:
                columns = self._begun[reading.sql(rows)].result()
                del self._begun[reading.sql(rows)]
                self._go_ahead()
            yield rows, columns

    def _row_ranges(self, table: str) -> list[_RowRange | None]:
        """Cut a large table into ranges of rowids; None stands for all its rows at once."""
        rowids = self._rowids(table)
        if rowids is None:
            return [None]
        low, end = rowids
        return [(first, min(first + _CHUNK_ROWS, end)) for first in range(low, end, _CHUNK_ROWS)]

    def _rowids(self, table: str) -> _RowRange | None:
        """Return the rowids of a large table; None where it has few rows, or only some of these."""
        if table in self._views:
            return None
        with self._sentences():
            name = quoted(table)
            query = f"SELECT (SELECT min(rowid) FROM {name}), (SELECT max(rowid) FROM {name})"
            try:
                low, high = self._connection.execute(query).fetchone()
            except sqlite3.OperationalError as error:
                if "no such column" in str(error):  # another tool made it WITHOUT ROWID
                    return None
                raise
        if low is None or high - low < _LARGE_ROWS:
            return None
        if high - low > self._source.stat().st_size // _LEAST_ROW_BYTES:
            return None  # few rows far apart: most ranges would be empty
        return low, high + 1

    def _fetch_compiled(self, reading: _Reading, rows: _RowRange) -> Columns | None:
        """Read rows with the compiled reader; None where that is not to be had.

        It is given only a file that exists, has no log beside it and a percent-encoded name, since
        it would create a missing file and retry a locked one. What it cannot read as integers is
        left to the careful path.
        """
        if reading.table in self._undeclared:
            return None
        try:
            import connectorx
        except ImportError:
            return None
        address = f"sqlite://{urllib.parse.quote(str(self._source.resolve()))}"
        try:
            data: Any = connectorx.read_sql(address, reading.sql(rows), return_type="arrow")
        except KeyboardInterrupt:
            raise
        except BaseException:  # its panics are no Exception
            return None
        if any(str(field.type) != "int64" for field in data.schema):
            return None
        if any(column.null_count for column in data.columns):
            return None
        return {
            name: _joined([_as_array(chunk) for chunk in data.column(name).chunks])
            for name in data.column_names
        }

    def _holds_fractions(self, reading: _Reading, condition: str) -> bool:
        """Whether a column holds a fraction, which NumPy would silently cut to an integer."""
        sources = [source for source in reading.sources.values() if source]
        tests = " OR ".join(f"typeof({quoted(source)}) = 'real'" for source in sources)
        rows = f"SELECT * FROM {quoted(reading.table)}{condition}"
        query = f"SELECT EXISTS (SELECT 1 FROM ({rows}) WHERE {tests})"
        return bool(sources) and bool(self._connection.execute(query).fetchone()[0])

    def _fetch_rows(self, sql: str, names: Iterable[str]) -> Columns | None:
        """Read row by row; None where a value is no integer."""
        dtype = np.dtype([(name, np.int64) for name in names])
        try:
            data = np.fromiter(self._connection.execute(sql), dtype)
        except (TypeError, ValueError, OverflowError):
            return None
        return {name: np.ascontiguousarray(data[name]) for name in dtype.names or ()}

    def _fetch_damaged(self, reading: _Reading, condition: str) -> Columns:
        """Read row by row what the fast path stumbled over; bad rows are left out and counted."""
        table = f"(SELECT * FROM {quoted(reading.table)}{condition})"
        (count,) = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        values = []
        conditions = []
        for name, source in reading.sources.items():
            default = reading.spec.columns[name].default
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
            f"SELECT {', '.join(values)} FROM {table}{where}", reading.sources
        )
        assert columns is not None  # nothing but integers is left
        left = len(next(iter(columns.values())))
        self.count_damage(reading.table, "value missing or no number", count - left)
        return columns

    def _drop_bad_times(self, table: str, spec: TableSpec, columns: Columns) -> Columns:
        start, end = columns["start"], columns["end"]
        reversed_ = end < start
        if spec.open_ended:
            reversed_ &= end != -1
        inside = (start >= 0) & (start <= _LATEST_NS) & (end <= _LATEST_NS)
        columns = self._keep(table, columns, inside, "time out of range")
        return self._keep(table, columns, ~reversed_[inside], "end before start")

    def _keep(
        self, table: str, columns: Columns, good: npt.NDArray[np.bool_], reason: str
    ) -> Columns:
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

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of `ids` in the table of texts, ``StringIds``."""
        wanted = set(ids)
        if "StringIds" not in self.tables or not wanted:
            return {}
        query = "SELECT id, value FROM StringIds"
        if len(wanted) <= _FEW_STRINGS:
            query += f" WHERE id IN ({', '.join(map(str, wanted))})"
        with self._sentences():
            rows = self._connection.execute(query)
            return {key: str(value) for key, value in rows if key in wanted}


def needs_copy(path: Path) -> bool:
    """Whether a database has, or may have, more to it than its file: a log or a hot journal."""
    with path.open("rb") as file:
        versions = file.read(20)[18:20]
    companions = (Path(f"{path}{suffix}") for suffix in _COMPANIONS)
    return versions == b"\x02\x02" or any(
        companion.exists() and companion.stat().st_size for companion in companions
    )


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _expression(column: Column, source: str | None, not_null: bool) -> str:
    if source is None:
        return str(column.default)
    if not_null or column.default is None:
        return quoted(source)
    return f"ifnull({quoted(source)}, {column.default})"


def _joined(chunks: Sequence[Int64]) -> Int64:
    """Join the chunks of a column; one value throughout takes no memory, and is not written to."""
    first = next((chunk[0] for chunk in chunks if len(chunk)), None)
    if first is not None and all((chunk == first).all() for chunk in chunks):
        return np.broadcast_to(first, sum(map(len, chunks)))
    return np.concatenate(chunks)


def _as_array(chunk: Any) -> Int64:
    """View an Arrow array of int64 without nulls as NumPy (its own conversion imports pandas)."""
    return np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), 8 * chunk.offset)
