"""NCCL's payloads: bytes, peer and communicator of calls, from blobs written by hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from gpuscope.model.tables import Ranges
from gpuscope.readers import open_trace
from gpuscope.readers.anonymize import anonymize
from tests.make_export import VARIANTS, Export

NCCL = 2
COLLECTIVE, EXCHANGE, MARKER = 16_777_220, 16_777_225, 16_777_300


def blob(schema: int, payload: bytes, domain: int = NCCL) -> bytes:
    size = len(payload)
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, size, 32 + size) + payload


def schemas(export: Export) -> None:
    entries: list[tuple[int, int, int, str, int | None]] = [
        (COLLECTIVE, 0, 18, "NCCL communicator ID", None),
        (COLLECTIVE, 1, 22, "Message size [bytes]", 8),
        (COLLECTIVE, 2, 5, "Root", 16),
        (EXCHANGE, 0, 22, "Message size [bytes]", None),
        (EXCHANGE, 1, 5, "Peer rank", 8),
        (MARKER, 0, 18, "NCCL communicator ID", None),
    ]
    for schema, index, kind, name, offset in entries:
        export.add(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            domainId=NCCL, schemaId=schema, idx=index, type=kind, name=name, offset=offset,
        )  # fmt: skip


def read(path: Path, calls: list[tuple[str, int, dict[str, Any]]], version: str = "2025.3") -> Any:
    with Export(path, VARIANTS[version]) as export:
        export.operation("KERNEL", 100, 200, shortName="ncclDevKernel", correlationId=1)
        schemas(export)
        for name, start, more in calls:
            export.range(name, start, start + 5, domainId=NCCL, **more)
    ranges = open_trace(path).ranges
    assert ranges is not None
    return told(ranges)


def told(ranges: Ranges) -> list[tuple[int, int, int]]:
    columns = (ranges.size_bytes, ranges.peer, ranges.communicator)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("version", ["2023.4", "2025.3", "2026.2"])
def test_size_and_peer_are_read_by_schema(tmp_path: Path, version: str) -> None:
    reduce = struct.pack("<QQi4x", 0xABCD, 1 << 40, 3)
    send = struct.pack("<Qi4x", 4096, 1)
    found = read(
        tmp_path / "a.sqlite",
        [
            ("ncclBroadcast", 10, {"binaryData": blob(COLLECTIVE, reduce)}),
            ("ncclSend", 20, {"binaryData": blob(EXCHANGE, send)}),
            ("ncclGroupEnd", 30, {"binaryData": blob(MARKER, struct.pack("<Q", 7))}),
            ("ncclGroupEnd", 40, {}),
        ],
        version,
    )
    assert found == [(1 << 40, 3, 0xABCD), (4096, 1, -1), (-1, -1, 7), (-1, -1, -1)]


def test_sizes_as_nccl_before_2_26_called_them(tmp_path: Path) -> None:
    with Export(tmp_path / "a.sqlite") as export:
        export.operation("KERNEL", 100, 200, shortName="ncclDevKernel", correlationId=1)
        for index, (kind, name, offset) in enumerate([(22, "Bytes", None), (5, "Peer rank", 8)]):
            export.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=NCCL, schemaId=EXCHANGE, idx=index, type=kind, name=name, offset=offset,
            )  # fmt: skip
        payload = blob(EXCHANGE, struct.pack("<Qi4x", 512, 2))
        export.range("ncclSend", 10, 15, domainId=NCCL, binaryData=payload)
    ranges = open_trace(tmp_path / "a.sqlite").ranges
    assert ranges is not None
    assert told(ranges) == [(512, 2, -1)]


def test_payloads_that_nsys_2025_3_exported(tmp_path: Path) -> None:
    """NCCL 2.28.9 on one rank: a broadcast of 4 KiB from root 0, and a send of 256 KiB."""
    head = "0100000000000000{}00000100000000180000000000000020000000000000008B47429044B8708C"
    with Export(tmp_path / "a.sqlite") as export:
        export.operation("KERNEL", 100, 200, shortName="ncclDevKernel", correlationId=1)
        for schema, last in ((16_777_222, "Root"), (16_777_225, "Peer rank")):
            for index, (kind, name, offset) in enumerate(
                [(18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, last, 16)]
            ):
                export.add(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=1, schemaId=schema, idx=index, type=kind, name=name, offset=offset,
                )  # fmt: skip
        broadcast = bytes.fromhex(head.format("06") + "00100000000000000000000000000000")
        send = bytes.fromhex(head.format("09") + "00000400000000000000000000000000")
        export.range("ncclBroadcast", 10, 15, domainId=1, binaryData=broadcast)
        export.range("ncclSend", 20, 25, domainId=1, binaryData=send)
    ranges = open_trace(tmp_path / "a.sqlite").ranges
    assert ranges is not None
    one = int.from_bytes(bytes.fromhex("8B47429044B8708C"), "little", signed=True)
    assert told(ranges) == [(4096, 0, one), (1 << 18, 0, one)]


def test_equal_times_keep_their_order_and_threads_apart(tmp_path: Path) -> None:
    payloads = [blob(EXCHANGE, struct.pack("<Qi4x", size, 0)) for size in (1, 2, 3)]
    found = read(
        tmp_path / "a.sqlite",
        [
            ("ncclSend", 10, {"binaryData": payloads[0]}),
            ("ncclSend", 10, {"binaryData": payloads[1], "tid": 5}),
            ("ncclSend", 10, {"binaryData": payloads[2]}),
        ],
    )
    assert sorted(found) == [(1, 0, -1), (2, 0, -1), (3, 0, -1)]


@pytest.mark.parametrize("domain", [NCCL, 3])
def test_the_domain_is_that_of_the_range(tmp_path: Path, domain: int) -> None:
    """Where MPI is traced, too, payloads have another number for it in their headers."""
    payload = blob(EXCHANGE, struct.pack("<Qi4x", 4096, 1), domain=1)
    with Export(tmp_path / "a.sqlite") as export:
        export.operation("KERNEL", 100, 200, shortName="ncclDevKernel", correlationId=1)
        schemas(export)
        export.range("ncclSend", 10, 15, domainId=domain, binaryData=payload)
    anonymize(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    for name in ("a.sqlite", "b.sqlite"):
        ranges = open_trace(tmp_path / name).ranges
        assert ranges is not None
        assert told(ranges) == [(4096, 1, -1) if domain == NCCL else (-1, -1, -1)]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"short",
        blob(EXCHANGE, b"1234"),
        blob(999, struct.pack("<QQ", 1, 2)),
        "text",
    ],
)
def test_what_is_cut_off_or_unknown_says_nothing(tmp_path: Path, bad: Any) -> None:
    good = blob(EXCHANGE, struct.pack("<Qi4x", 8, 1))
    found = read(
        tmp_path / "a.sqlite",
        [("ncclSend", 10, {"binaryData": bad}), ("ncclSend", 20, {"binaryData": good})],
    )
    assert found == [(-1, -1, -1), (8, 1, -1)]


def test_a_copy_keeps_what_is_read_and_nothing_else(tmp_path: Path) -> None:
    secret = 0x5EC12E75EC12E7
    source, target = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    collective = struct.pack("<QQi4sQ", 77, 8, 3, b"hide", secret)
    calls: list[tuple[str, int, dict[str, Any]]] = [
        ("ncclBroadcast", 10, {"binaryData": blob(COLLECTIVE, collective)}),
        ("plain", 20, {}),
        ("ncclSend", 30, {"binaryData": blob(EXCHANGE, struct.pack("<Qi4s", 4096, 1, b"hide"))}),
        ("other", 40, {"binaryData": blob(999, struct.pack("<Q", secret))}),
    ]
    found = read(source, calls)
    anonymize(source, target)
    ranges = open_trace(target).ranges
    assert ranges is not None
    assert told(ranges) == found
    written = target.read_bytes()
    assert struct.pack("<Q", secret) in source.read_bytes()
    assert struct.pack("<Q", secret) not in written
    assert b"hide" not in written
