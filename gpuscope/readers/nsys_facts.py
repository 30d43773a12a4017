"""What an export of Nsight Systems says beside its rows: versions, machine, messages, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.errors import TraceError
from gpuscope.model import quality
from gpuscope.model.trace import SmLimits
from gpuscope.readers import nsys_schema as schema
from gpuscope.readers.arrays import tuples
from gpuscope.readers.database import Database, quoted
from gpuscope.readers.numbering import factorize

PROCESS_SHIFT = 24
"""A globalTid without its 24 thread bits names the process."""
PID_MASK = 0xFFFFFF
_MACHINE_SHIFT, _HARDWARE_SHIFT = 24, 32
"""Where a process so named has its virtual machine and its hardware."""

_VARIABLE = re.compile(
    rf"(?:^|[;\s\0])({'|'.join(schema.ENVIRONMENT_ALLOWED)})="
    r'(?:"([^"]{0,64})"|([^;"\s\0]{0,64}))(?=$|[;\s\0])'
)
"""A variable as NAME="VALUE" on its own, or NAME=VALUE among others."""
MPI_RANK_THREAD = re.compile(r"MPI Rank (\d+)")
"""Name of a thread that gives the MPI rank of its process."""
METADATA = ("EXPORT_META_DATA", "META_DATA_EXPORT", "META_DATA_CAPTURE")
"""Tables of names and values that say which version captured and exported."""


def check_kind(database: Database) -> None:
    """Refuse what is no export of Nsight Systems.

    Raises
    ------
    TraceError
        It is another profiler's, or nobody's.
    """
    if database.tables & schema.NVPROF_TABLES or (
        "CUPTI_ACTIVITY_KIND_MEMCPY" in database.tables
        and "_id_" in database.columns("CUPTI_ACTIVITY_KIND_MEMCPY")
    ):
        msg = (
            f"{database.path} was written by nvprof, whose format gpuscope does not read: "
            "record the program with Nsight Systems (`gpuscope run --nsys -- PROGRAM`)."
        )
        raise TraceError(msg)
    if "StringIds" not in database.tables:
        msg = (
            f"{database.path} is SQLite but no export of Nsight Systems: write one with "
            "`nsys export -t sqlite REPORT.nsys-rep`."
        )
        raise TraceError(msg)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is in an export, beside what becomes the trace."""

    captured_by: str | None
    """Version of Nsight Systems, where it is written down."""
    exported_by: str | None
    export_schema: str | None
    machine: Mapping[str, str]
    """Facts about the machine, by nsys's names; no names of hosts or users."""
    table_rows: Mapping[str, int]
    """Rows of every table that has any, but those that explain codes (``ENUM_``)."""


def take_inventory(path: Path) -> Inventory:
    """List what the export `path` holds.

    Raises
    ------
    TraceError
        The file is no export of Nsight Systems, or damaged.
    """
    with Database(path) as database:
        check_kind(database)
        versions = read_versions(database)
        rows = {
            table: int(database.rows(f"SELECT count(*) FROM {quoted(table)}")[0][0])
            for table in sorted(database.tables)
            if not table.startswith(("ENUM_", "sqlite_"))
        }
        return Inventory(
            captured_by=versions.get("CAPTURE_PRODUCT_VERSION"),
            exported_by=versions.get("EXPORT_PRODUCT_VERSION"),
            export_schema=versions.get("EXPORT_SCHEMA_VERSION"),
            machine=machine_facts(database),
            table_rows={table: count for table, count in rows.items() if count},
        )


def read_versions(database: Database) -> dict[str, str]:
    """Return the versions that the metadata give, by name."""
    return {
        str(record["name"]): str(record["value"])
        for table in METADATA
        for record in database.records(table, "name", "value")
        if record.get("name") in schema.VERSION_NAMES
        and re.fullmatch(schema.VERSION_PATTERN, str(record.get("value")))
    }


def is_own(database: Database) -> bool:
    """Whether gpuscope's own recorder wrote the trace."""
    return any(
        (record.get("name"), record.get("value")) == schema.OWN_PRODUCT
        for table in METADATA
        for record in database.records(table, "name", "value")
    )


def machine_facts(database: Database) -> dict[str, str]:
    """Return what the report says of the machine and may be told."""
    facts: dict[str, str] = {}
    for record in database.records(schema.MACHINE_TABLE, "name", "value"):
        name, value = str(record.get("name")), str(record.get("value"))
        allowed = schema.MACHINE_ALLOWED.get(name)
        if allowed and re.fullmatch(allowed, value):
            facts.setdefault(name, value)
    return facts


def diagnostics(database: Database) -> list[tuple[int | None, str]]:
    """Return (severity, known phrase or nothing) of each message of the profiler."""
    messages = []
    for record in database.records(schema.DIAGNOSTICS, "severity", "text"):
        severity, text = record.get("severity"), str(record.get("text"))
        known = (re.search(pattern, text) for pattern in schema.DIAGNOSTIC_PHRASES)
        phrase = next((match.group() for match in known if match), "")
        messages.append((severity if isinstance(severity, int) else None, phrase))
    return messages


def read_diagnosis(database: Database) -> quality.Diagnostics | None:
    """Return what the profiler said of its own work, None where it said nothing."""
    messages = diagnostics(database)
    if not messages:
        return None
    phrases = {phrase for _, phrase in messages}
    return quality.Diagnostics(
        errors=sum(severity == schema.DIAGNOSTIC_ERROR for severity, _ in messages),
        incomplete=any(phrase.startswith(schema.INCOMPLETE) for phrase in phrases),
        unsupported=schema.UNSUPPORTED in phrases,
        unfinished=schema.STARTED in phrases and schema.STOPPED not in phrases,
    )


def dropped_launches(database: Database) -> int:
    """Return about how many launches gpuscope's own recorder lost: each has a call and a kernel."""
    said = (schema.DROPPED.match(phrase) for _, phrase in diagnostics(database))
    return sum(int(match[1]) for match in said if match) // 2


def read_start_utc_ns(database: Database) -> int | None:
    """Return the UTC time of the clock's zero, in ns since 1970, None where it is not recorded."""
    for record in database.records("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        if isinstance(record["utcEpochNs"], int):
            return record["utcEpochNs"]
    return None


def read_environment(database: Database) -> dict[str, str]:
    """Take the allowed variables, and only these, from the metadata that may hold them."""
    found: dict[str, str] = {}
    # The program's own environment comes before that of the machine.
    for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"):
        for record in database.records(table, "name", "value"):
            name, value = str(record.get("name")), str(record.get("value"))
            settings = [(variable, a or b) for variable, a, b in _VARIABLE.findall(value)]
            for variable, setting in ((name.rsplit(":", 1)[-1], value), *settings):
                allowed = schema.ENVIRONMENT_ALLOWED.get(variable)
                if allowed and re.fullmatch(allowed, setting, re.IGNORECASE):
                    found.setdefault(variable, setting)
    return found


def thread_names(database: Database) -> list[tuple[int, int, str]]:
    """Return (id of the text, globalTid, name) of the threads that have a name."""
    rows = [
        (record["nameId"], record["globalTid"])
        for record in database.records("ThreadNames", "nameId", "globalTid")
        if isinstance(record.get("nameId"), int) and isinstance(record.get("globalTid"), int)
    ]
    texts = database.strings([key for key, _ in rows])
    return [(key, thread, texts[key]) for key, thread in rows if key in texts]


def read_gpus(database: Database) -> dict[int, dict[str, Any]]:
    """Return what is said of each GPU, by its id, in the names of the newest schema."""
    gpus: dict[int, dict[str, Any]] = {}
    for spec in schema.GPU_INFO:
        for record in database.records(spec.table, *spec.columns):
            named = {spec.columns[name]: value for name, value in record.items()}
            if isinstance(named.get("id"), int):
                known = gpus.setdefault(named["id"], {})
                known.update({k: v for k, v in named.items() if not known.get(k)})
    return gpus


def sm_limits(record: Mapping[str, Any]) -> SmLimits:
    """Return what a multiprocessor of a GPU holds, as far as it is recorded."""
    warps, threads = positive(record.get("maxWarpsPerSm")), positive(record.get("threadsPerWarp"))
    known = {
        "threads": warps * threads if warps and threads else None,
        "blocks": positive(record.get("maxBlocksPerSm")),
        "registers": positive(record.get("maxRegistersPerSm")),
        "shared_bytes": positive(record.get("maxShmemPerSm")),
    }
    return SmLimits(**{name: limit for name, limit in known.items() if limit is not None})


def positive(value: Any) -> int | None:
    """Return a number that says something: none does that is 0, or is no number."""
    return value if isinstance(value, int) and value > 0 else None


def read_green_contexts(database: Database) -> dict[tuple[int, int, int], tuple[int, int | None]]:
    """Return of each stream in a green context that context, and its multiprocessors."""
    sizes = {
        (owner_of(hardware, machine, pid), context): sm_count or None
        for hardware, machine, pid, context, is_green, sm_count in tuples(
            database.fetch(schema.GREEN_CONTEXTS)
        )
        if is_green
    }
    if not sizes:
        return {}
    found = database.fetch(schema.GREEN_KERNELS)
    if found is None:
        return {}
    _, keys = factorize(*(found[name] for name in schema.GREEN_KERNELS.columns))
    return {
        (pid >> PROCESS_SHIFT, context, stream): (
            part,
            sizes.get((pid >> PROCESS_SHIFT, part)),
        )
        for context, stream, part, pid in keys
        if part >= 0
    }


def owner_of(hardware: int, machine: int, pid: int) -> int:
    """Return a process as the upper bits of a globalPid name it; the pid where that is all."""
    if hardware < 0 or machine < 0:
        return pid
    return (hardware << _HARDWARE_SHIFT) | (machine << _MACHINE_SHIFT) | pid
