"""What NCCL says of its calls: the binary payloads of its NVTX ranges.

Nsight Systems exports them where it is told to (``nsys export --include-blobs=true``), each as a
header of 32 bytes (domain and schema, each in 8 of which the upper 4 are free, then the sizes of
the payload and of the header, little endian) and the payload. Where a value lies in it is in
``NVTX_PAYLOAD_SCHEMA_ENTRIES``, by domain, schema and offset; an offset of NULL is 0. The domain is
that of the range: the header has a number of its own for it, another one where MPI is traced, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import number_rows
from gpuscope.readers.database import Database

Int64 = npt.NDArray[np.int64]

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # Until NCCL 2.25 broadcasts, sends and receives called it otherwise.
        "size_bytes": ("message size [bytes]", "bytes"),
        "peer": ("peer rank", "root"),
        "communicator": ("nccl communicator id",),
    }
)
"""What is read, and the names of the entries that tell it, in small letters."""
_NAMES = frozenset(chain.from_iterable(FIELDS.values()))
HEADER_BYTES = 32
_SCHEMA_AT = 8
_TYPES = {5: "<i4", 6: "<u4", 15: "<i4", 16: "<u4", 17: "<i8", 18: "<u8", 22: "<u8"}
"""NVTX types of integers: int, uint, int32, uint32, int64, uint64, size."""

Layout = Mapping[tuple[int, int], Mapping[str, tuple[int, str]]]
"""(domain, schema) to entry name to its offset and NumPy type."""


def attach(database: Database, starts: Int64, kinds: Int64, threads: Int64) -> dict[str, Int64]:
    """Return each of :data:`FIELDS` of ranges, -1 where no payload gives it.

    A communicator is a hash of 64 bits, here with a sign.

    Parameters
    ----------
    starts, kinds, threads
        ``start``, ``eventType`` and ``globalTid`` of the ranges.
    """
    found = {field: np.full(len(starts), -1, np.int64) for field in FIELDS}
    layout = layout_of(database)
    if not layout or "binaryData" not in database.columns("NVTX_EVENTS"):
        return found
    rows = database.rows(
        "SELECT start, eventType, ifnull(globalTid, -1), domainId, binaryData FROM NVTX_EVENTS "
        "WHERE eventType IN (59, 60) AND typeof(binaryData) = 'blob'"
    )
    if not rows:
        return found
    known = [row for row in rows if all(isinstance(value, int) for value in row[:3])]
    told = decode([(row[3], row[4]) for row in known], layout)
    keys = np.array([row[:3] for row in known], np.int64).reshape(-1, 3)
    # The k-th payload of a thread and time belongs to the k-th range there.
    mine = np.lexsort((kinds, starts, threads))
    theirs = np.lexsort((keys[:, 1], keys[:, 0], keys[:, 2]))
    columns = ((threads, 2), (starts, 0), (kinds, 1))
    code, _ = number_rows(
        [np.concatenate([column[mine], keys[theirs, at]]) for column, at in columns]
    )
    of_range, of_payload = code[: len(mine)], code[len(mine) :]
    turn = np.arange(len(theirs)) - np.searchsorted(of_payload, of_payload)
    place = np.searchsorted(of_range, of_payload) + turn
    fits = place < len(mine)
    fits[fits] = of_range[place[fits]] == of_payload[fits]
    for field, values in told.items():
        found[field][mine[place[fits]]] = values[theirs[fits]]
    return found


def decode(payloads: Sequence[tuple[Any, bytes]], layout: Layout) -> dict[str, Int64]:
    """Return each of :data:`FIELDS` of each payload, -1 where it holds none or is cut off.

    A payload comes with the domain of its range.
    """
    listed = [payload for _, payload in payloads]
    domain_of = np.array([_number(domain) for domain, _ in payloads], np.int64)
    found = {field: np.full(len(listed), -1, np.int64) for field in FIELDS}
    lengths = np.array([len(payload) for payload in listed], np.int64)
    for length in np.unique(lengths[lengths >= HEADER_BYTES]).tolist():
        rows = np.flatnonzero(lengths == length)
        table = np.frombuffer(b"".join(listed[row] for row in rows.tolist()), np.uint8)
        table = table.reshape(len(rows), length)
        domains, schemas = domain_of[rows], _field(table, _SCHEMA_AT, "<u4")
        for (domain, schema), entries in layout.items():
            # The header holds the lower half of a schema's number.
            alike = np.flatnonzero((domains == domain) & (schemas == schema % (1 << 32)))
            for field, names in FIELDS.items():
                name = next((name for name in names if name in entries), None)
                if name is None or not len(alike):
                    continue
                offset, kind = entries[name]
                if HEADER_BYTES + offset + np.dtype(kind).itemsize <= length:
                    values = _field(table[alike], HEADER_BYTES + offset, kind)
                    found[field][rows[alike]] = values
    return found


def cleaned(payload: bytes, domain: Any, layout: Layout) -> bytes | None:
    """Return a payload with nothing in it but header and :data:`FIELDS`; None where it has none."""
    written = int.from_bytes(payload[_SCHEMA_AT : _SCHEMA_AT + 4], "little")
    for (of_domain, schema), entries in layout.items():
        if (of_domain, schema % (1 << 32)) != (domain, written):
            continue
        kept = bytearray(len(payload))
        kept[:HEADER_BYTES] = payload[:HEADER_BYTES]
        for offset, kind in entries.values():
            begin = HEADER_BYTES + offset
            part = slice(begin, begin + np.dtype(kind).itemsize)
            kept[part] = payload[part]
        return bytes(kept[: len(payload)])
    return None


def _field(table: npt.NDArray[np.uint8], offset: int, kind: str) -> Int64:
    width = np.dtype(kind).itemsize
    column = np.ascontiguousarray(table[:, offset : offset + width]).view(kind).reshape(-1)
    return column.astype(np.int64)


def layout_of(database: Database) -> Layout:
    """Read where :data:`FIELDS` lie in the payloads of each schema."""
    found: dict[tuple[int, int], dict[str, tuple[int, str]]] = {}
    entries = database.records(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId", "schemaId", "name", "type", "offset"
    )
    for entry in entries:
        name, kind = str(entry.get("name")).lower(), _TYPES.get(_number(entry.get("type")))
        if kind is not None and name in _NAMES:
            place = (_number(entry.get("domainId")), _number(entry.get("schemaId")))
            found.setdefault(place, {})[name] = (max(0, _number(entry.get("offset"))), kind)
    return found


def layout_rows(layout: Layout) -> list[tuple[int, int, str, int, int]]:
    """Return domain, schema, name, type and offset of every entry that is read."""
    types = {text: number for number, text in reversed(_TYPES.items())}
    return [
        (domain, schema, name, types[kind], offset)
        for (domain, schema), entries in layout.items()
        for name, (offset, kind) in entries.items()
    ]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1
