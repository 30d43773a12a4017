"""The SQLite export of Nsight Systems: from its tables to a :class:`Trace`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuscope.model import quality
from gpuscope.model.classes import CODE, ClassRule, built_in_rules, rule_for
from gpuscope.model.tables import (
    COMMUNICATION,
    DEVICE_MEMORY_KINDS,
    EVICTED,
    PREFETCH,
    PUSH_POP,
    STAGED,
    START_END,
    TO_HOST,
    ApiCalls,
    EventRecords,
    KernelConfigs,
    MpiCalls,
    Operations,
    Ranges,
    SyncRecords,
)
from gpuscope.model.trace import Category, Device, Process, Stream, Thread, Trace
from gpuscope.progress import Progress, silent
from gpuscope.readers import nccl_payload
from gpuscope.readers import nsys_schema as schema
from gpuscope.readers.arrays import (
    Arrays,
    Part,
    Value,
    by_time,
    compact,
    joined,
    merged,
    rows_by_correlation,
    tuples,
)
from gpuscope.readers.call_stacks import read_stacks
from gpuscope.readers.database import Columns, Database, quoted
from gpuscope.readers.nsys_facts import (
    MPI_RANK_THREAD,
    PID_MASK,
    PROCESS_SHIFT,
    check_kind,
    dropped_launches,
    is_own,
    machine_facts,
    owner_of,
    positive,
    read_diagnosis,
    read_environment,
    read_gpus,
    read_green_contexts,
    read_start_utc_ns,
    read_versions,
    sm_limits,
    thread_names,
)
from gpuscope.readers.numbering import Identities, Strings, factorize
from gpuscope.units import counted

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
_TID_MASK = 0xFFFFFF

_LAUNCH_CALL = re.compile(r"cu(da)?Launch(Cooperative)?Kernel(Ex|ExC|_ptsz)*(_v\d+)?")
_CAPTURE_BEGIN = re.compile(r"cu(da)?StreamBeginCapture")
_CAPTURE_END = re.compile(r"cu(da)?StreamEndCapture")

_OF_LAUNCHES = ("correlationId", "graphNodeId")
"""Columns that only matter where launches are looked up."""
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))
_CATEGORY, _DOMAIN = 33, 75
"""Types of NVTX events that name a category or a domain."""

_SPECS: Mapping[str, tuple[schema.TableSpec, ...]] = {
    "operations": schema.OPERATION_TABLES,
    "api": (schema.RUNTIME,),
    "ranges": (schema.NVTX,),
    "mpi": schema.MPI,
    "syncs": (schema.SYNCHRONIZATION,),
    "event_records": (schema.CUDA_EVENT,),
    "kernel_configs": (),  # read with the operations
    "stacks": (),  # few, and read after all else
}
"""Tables of a trace to the tables of the export that they are read from."""
ALL_TABLES = frozenset(_SPECS)
"""The tables of a trace that a reader can be asked for."""


def read(
    path: Path,
    rules: Sequence[ClassRule] = (),
    tables: Collection[str] = ALL_TABLES,
    progress: Progress = silent,
) -> Trace:
    """Read `tables` of the export `path`; `rules` go before the built-in class rules.

    A table that is not asked for is None in the trace, as one that was not recorded.

    Raises
    ------
    TraceError
        The file is SQLite but no export of Nsight Systems, or damaged beyond reading.
    """
    with Database(path) as database:
        check_kind(database)
        assembly = _Assembly(database, (*rules, *built_in_rules()), progress)
        return assembly.trace(frozenset(tables))


class _Text(NamedTuple):
    """An NVTX event that holds a name, as the export has it."""

    kind: int
    start: Any
    end: Any
    thread: Any
    domain: Any
    category: Any
    text: Any
    text_id: Any


class _Assembly:
    """Builds one trace; every method turns one table of the export into one of ours."""

    def __init__(self, database: Database, rules: Sequence[ClassRule], progress: Progress) -> None:
        self.database = database
        self.rules = rules
        self.progress = progress
        self._expected = self._done = 0
        """Rows to be read, and rows that were."""
        self._texts: dict[int, str | None] = {}
        self._codes: dict[str, dict[int, int]] = {}
        self.strings = Strings()
        self.processes = Identities()
        self.threads = Identities()
        self.devices = Identities()
        self.streams = Identities()
        self.notes: list[str] = []

    def trace(self, tables: frozenset[str]) -> Trace:
        # Launches are needed also to tell how many GPU records were lost; but where the kernels
        # are as many as their launches, none was, and the calls need not be read.
        calls_aside = not tables & {"api", "ranges", "syncs", "event_records"}
        if calls_aside:
            reads = self._reads(tables, with_launches=False)
            self.database.expect([(schema.RUNTIME_NAMES, ()), *reads])
        all_recorded = calls_aside and self._every_launch_recorded()
        if not all_recorded:
            tables |= {"api"}
            self.database.expect(self._reads(tables, with_launches=True))
        self._expected = self._rows_to_read(tables)

        # Processes are numbered from the GPU work first, so that these come first in every list.
        api = self._api() if "api" in tables else None
        self._launch_of = rows_by_correlation(api)
        operations, configs = None, None
        if "operations" in tables:
            operations, configs = self._operations(tables, with_launches=not all_recorded)
        if all_recorded and self._kernels_damaged():
            return _Assembly(self.database, self.rules, self.progress).trace(tables | {"api"})
        mpi_in_ranges = self._mpi_in_ranges()
        ranges_needed = "ranges" in tables or ("mpi" in tables and mpi_in_ranges)
        ranges = self._ranges() if ranges_needed else None
        if operations is not None and api is not None and ranges is not None:
            _mark_nccl_copies(operations, api, ranges, self.strings.texts)
        mpi = self._mpi() if "mpi" in tables else None
        if mpi_in_ranges and ranges is not None:
            ranges, found = self._mpi_apart(ranges)
            mpi = found if "mpi" in tables else None
            ranges = ranges if "ranges" in tables else None
        syncs = self._syncs() if "syncs" in tables else None
        event_records = self._event_records() if "event_records" in tables else None
        stacks = None
        if "stacks" in tables and "api" in tables:
            stacks = read_stacks(
                self.database,
                api,
                schema.PYTHON_STACKS in (text for *_, text in self._named(_DOMAIN)),
                lambda tids, ids: self._launch_of(self._thread_of(tids)[0], ids),
                lambda tids: self._thread_of(tids)[1],
                self.strings.add,
            )
        environment = read_environment(self.database)
        versions = read_versions(self.database)
        threads = self._threads()
        lost = 0 if all_recorded else _lost_records(operations, api, self.strings.texts)
        if lost is not None:
            lost = max(lost, dropped_launches(self.database))
        checks = self._checks(operations, ranges, lost, "ranges" in tables)
        self.notes += [
            f"{check.name}: {check.text}"
            for check in checks
            if check.state == quality.WARNING and check.name in quality.NOTED
        ]
        return Trace(
            path=str(self.database.path),
            format="cupti-sqlite" if is_own(self.database) else "nsys-sqlite",
            tool_version=next(
                (versions[n] for n in schema.VERSION_NAMES[:2] if n in versions), None
            ),
            schema_version=versions.get("EXPORT_SCHEMA_VERSION"),
            processes=self._processes(threads, environment),
            threads=threads,
            devices=self._devices(),
            streams=self._streams(),
            operations=compact(operations),
            api=compact(api),
            ranges=compact(ranges),
            categories=() if ranges is None else self._categories(),
            mpi=compact(mpi),
            syncs=compact(syncs),
            event_records=compact(event_records),
            kernel_configs=compact(configs),
            stacks=stacks,
            strings=tuple(self.strings.texts),
            damaged=dict(self.database.damaged),
            lost_records=lost,
            start_utc_ns=read_start_utc_ns(self.database),
            system=machine_facts(self.database).get("OsDescription"),
            environment=environment,
            notes=tuple(self.notes),
            checks=checks,
        )

    def _every_launch_recorded(self) -> bool:
        """Whether there are as many kernel records as calls that launch a kernel."""
        counts: dict[int, int] = {}
        for calls in self.database.chunks(schema.RUNTIME_NAMES) or ():
            codes, keys = factorize(calls["nameId"])
            for (name,), count in zip(keys, np.bincount(codes).tolist(), strict=True):
                counts[name] = counts.get(name, 0) + count
        texts = self.database.strings(counts)
        launches = sum(
            count for name, count in counts.items() if _LAUNCH_CALL.match(texts.get(name, ""))
        )
        return bool(counts) and launches <= self.database.row_count(schema.KERNEL)

    def _kernels_damaged(self) -> bool:
        """Whether kernel records were left out; the count begins anew if so."""
        damaged = any(key.startswith(schema.KERNEL.names[0]) for key in self.database.damaged)
        if damaged:
            self.database.damaged.clear()
        return damaged

    # Reading

    def _rows_to_read(self, tables: Collection[str]) -> int:
        return sum(
            self.database.rows_about(spec)
            for name, specs in _SPECS.items()
            if name in tables
            for spec in specs
        )

    def _reads(
        self, tables: Collection[str], *, with_launches: bool
    ) -> Iterator[tuple[schema.TableSpec, Sequence[str]]]:
        """Return what is read of the tables that may be large, in order."""
        if "api" in tables:
            yield self._calls_table(), ()
        if "operations" in tables:
            for spec, _ in self._builders(tables):
                yield spec, () if with_launches else _OF_LAUNCHES
        if "ranges" in tables:
            yield schema.NVTX, ()

    def _builders(
        self, tables: Collection[str]
    ) -> tuple[tuple[schema.TableSpec, Callable[[Columns], Part]], ...]:
        """Return the tables of operations in the order of reading, with what takes their rows."""
        configs_wanted = "kernel_configs" in tables
        return (
            (schema.GRAPH, lambda raw: self._uniform(raw, "graph", "CUDA graph")),
            (schema.MEMSET, lambda raw: self._uniform(raw, "memset", "memset")),
            (schema.MEMCPY, self._copies),
            (schema.KERNEL_WITH_CONFIG if configs_wanted else schema.KERNEL, self._kernels),
        )

    def _chunks(self, spec: schema.TableSpec, leave_out: Sequence[str] = ()) -> Iterator[Columns]:
        """Yield the rows of a table, some at a time, and tell how far the reading is."""
        for columns in self.database.chunks(spec, leave_out) or ():
            yield columns
            self._done += len(next(iter(columns.values())))
            self.progress("reading", min(self._done, self._expected), self._expected)

    def _fetch(self, spec: schema.TableSpec) -> Columns | None:
        """Return a whole table; None when the export has none."""
        return joined(list(self._chunks(spec)))

    # Strings

    def _look_up(self, ids: Iterable[int]) -> None:
        """Look up the texts of `ids` that were not looked up yet."""
        unknown = [value for value in ids if value not in self._texts]
        found = self.database.strings(unknown)
        self._texts.update({value: found.get(value) for value in unknown})

    def _name_index(self, ids: Int64, missing: str = "?") -> Int32:
        """Turn ids of StringIds into indices of our strings."""
        codes, keys = factorize(ids)
        self._look_up(value for (value,) in keys)
        texts = [self._texts[value] for (value,) in keys]
        index = [self.strings.add(missing if text is None else text) for text in texts]
        return np.array(index, np.int32)[codes]

    # Identity

    def _process_of(self, global_ids: Int64) -> Int32:
        """Return the process of each row; rows that name none belong to the only one there is."""
        unnamed = global_ids == schema.UNNAMED
        if unnamed.any():
            only = self._only_process()
            if only is None:
                what = counted(
                    int(unnamed.sum()),
                    "GPU record names no process: it is shown as one of its own",
                    "GPU records name no process: they are shown as one of their own",
                )
                self.notes.append(what)
            else:
                global_ids = np.where(unnamed, only << PROCESS_SHIFT, global_ids)
        return self.processes.number_all(global_ids >> PROCESS_SHIFT)

    def _only_process(self) -> int | None:
        """Return the process that made every API call, None where several did or none is known."""
        table = self.database.find(schema.RUNTIME)
        if table is None or "globalTid" not in self.database.columns(table):
            return None
        found = self.database.rows(
            f'SELECT DISTINCT globalTid >> {PROCESS_SHIFT} FROM "{table}" '
            "WHERE typeof(globalTid) = 'integer' LIMIT 2"
        )
        return int(found[0][0]) if len(found) == 1 else None

    def _thread_of(self, global_tids: Int64) -> tuple[Int32, Int32]:
        """Return (process, thread) indices of each globalTid."""
        codes, keys = factorize(global_tids)
        process = [self.processes.number((tid >> PROCESS_SHIFT,)) for (tid,) in keys]
        thread = [
            self.threads.number((number, tid & _TID_MASK))
            for number, (tid,) in zip(process, keys, strict=True)
        ]
        return np.array(process, np.int32)[codes], np.array(thread, np.int32)[codes]

    def _place_of(self, process: Int32, table: Columns) -> tuple[Int32, Int32]:
        """Return the (device, stream) indices of each row; the stream is -1 where none is named."""
        codes, keys = factorize(
            process.astype(np.int64), table["deviceId"], table["contextId"], table["streamId"]
        )
        devices, streams = [], []
        for owner, number, context, stream in keys:
            device = self.devices.number((owner, number))
            named = stream != schema.NONE_ID
            devices.append(device)
            streams.append(self.streams.number((owner, device, context, stream)) if named else -1)
        return np.array(devices, np.int32)[codes], np.array(streams, np.int32)[codes]

    # Tables

    def _api(self) -> ApiCalls | None:
        parts: list[Arrays] = []
        for raw in self._chunks(self._calls_table()):
            process, thread = self._thread_of(raw["globalTid"])
            parts.append(
                {
                    "start_ns": raw["start"],
                    "end_ns": raw["end"],
                    "process": process,
                    "thread": thread,
                    "correlation": raw["correlationId"],
                    "name": self._name_index(raw["nameId"]),
                    "result": raw["returnValue"].astype(np.int32),
                }
            )
        columns = joined(parts)
        return None if columns is None else by_time(ApiCalls(**columns))

    def _calls_table(self) -> schema.TableSpec:
        """Return the table of API calls, less rows that only hold the stack of the one inside."""
        if self.database.find(schema.CALLCHAINS) is None:
            return schema.RUNTIME
        return replace(schema.RUNTIME, where=f"eventClass <> {schema.STACK_ROWS}")

    def _operations(
        self, tables: Collection[str], *, with_launches: bool
    ) -> tuple[Operations | None, KernelConfigs | None]:
        """Read the operations, and the launch configurations of kernels if these are wanted."""
        parts: list[Part] = []
        configs: list[Arrays] = []
        kernel_rows = 0
        for spec, build in self._builders(tables):
            chunks = []
            for raw in self._chunks(spec, () if with_launches else _OF_LAUNCHES):
                chunks.append(build(raw))
                if build == self._kernels:
                    kernel_rows += len(raw["start"])
                    if spec is schema.KERNEL_WITH_CONFIG:
                        configs.append(_config_of(self._with_known_codes(raw)))
            parts = chunks + parts  # of rows with equal times the kernels come first
        if not parts:
            return None, None
        operations, place = merged(parts)
        columns = joined(configs)
        if columns is None:
            return operations, None
        kernels = place[:kernel_rows]
        order = np.argsort(kernels)
        columns = {name: column[order] for name, column in columns.items()}
        return operations, KernelConfigs(operation=kernels[order], **columns)

    def _with_known_codes(self, raw: Columns) -> Columns:
        """Return the columns with the codes that are known here, whatever the export's numbers are.

        The export's own tables of codes are read where it has them.
        """
        known = dict(raw)
        for name in schema.ENUMS.keys() & raw.keys():
            if name not in self._codes:
                self._codes[name] = self._renumbered(schema.ENUMS[name])
            for theirs, ours in self._codes[name].items():
                known[name] = np.where(raw[name] == theirs, ours, known[name])
        return known

    def _renumbered(self, enum: schema.Enum) -> dict[int, int]:
        """Return the codes that the export numbers otherwise: its number to ours."""
        return {
            record["id"]: enum.codes[record["name"]]
            for record in self.database.records(enum.table, "id", "name")
            if record.get("name") in enum.codes
            and isinstance(record.get("id"), int)
            and record["id"] != enum.codes[record["name"]]
        }

    def _common(self, raw: Columns, op_class: Value, name: Value) -> Part:
        """Return the columns of :class:`Operations` for the rows of one table, unsorted."""
        process = self._process_of(raw["globalPid"])
        device, stream = self._place_of(process, raw)
        correlation = raw.get("correlationId")
        return {
            "start_ns": raw["start"],
            "end_ns": raw["end"],
            "op_class": op_class,
            "process": process,
            "device": device,
            "stream": stream,
            "correlation": -1 if correlation is None else correlation,
            "launch": -1 if correlation is None else self._launch_of(process, correlation),
            "name": name,
            "size_bytes": raw.get("bytes", 0),
            "src_device": raw.get("srcDeviceId", -1),
            "dst_device": raw.get("dstDeviceId", -1),
            "src_kind": raw.get("srcKind", -1),
            "dst_kind": raw.get("dstKind", -1),
            "flags": 0,
            "graph_node": raw.get("graphNodeId", -1),
        }

    def _kernels(self, raw: Columns) -> Part:
        ids = np.where(raw["shortName"] >= 0, raw["shortName"], raw["demangledName"])
        name = self._name_index(ids)
        class_of_name = np.full(len(self.strings.texts), CODE["kernel"], np.uint8)
        for index in np.unique(name).tolist():
            rule = rule_for(self.strings.texts[index], self.rules)
            if rule is not None:
                class_of_name[index] = CODE[rule.op_class]
        return self._common(raw, class_of_name[name], name)

    def _copies(self, raw: Columns) -> Part:
        raw = self._with_known_codes(raw)
        kind = raw["copyKind"]
        class_of_kind = np.full(max(schema.COPY_KIND_CLASS) + 1, CODE["d2d"], np.uint8)
        for value, class_name in schema.COPY_KIND_CLASS.items():
            class_of_kind[value] = CODE[class_name]
        known = np.isin(kind, list(schema.COPY_KIND_CLASS))
        if not known.all():
            count = counted(int((~known).sum()), "copy is", "copies are")
            self.notes.append(f"{count} of a kind unknown here: left out")
            raw = {name: column[known] for name, column in raw.items()}
            kind = raw["copyKind"]
        op_class = class_of_kind[kind]
        flags = np.zeros(len(kind), np.uint8)

        peers = (
            (kind == 8)
            & (raw["srcDeviceId"] >= 0)
            & (raw["dstDeviceId"] >= 0)
            & (raw["srcDeviceId"] != raw["dstDeviceId"])
        )
        staged = (
            np.isin(kind, (1, 2))
            & np.isin(raw["srcKind"], DEVICE_MEMORY_KINDS)
            & np.isin(raw["dstKind"], DEVICE_MEMORY_KINDS)
        )
        op_class[peers | staged] = CODE["p2p"]
        flags[staged] |= STAGED
        raw = self._with_ends(raw, staged)
        # The transfer's bytes count once: on the leg that arrives.
        size = np.where(staged & (kind == 2), 0, raw["bytes"])

        migrates = op_class == CODE["uvm"]
        if migrates.any():
            # Whatever stream the rows name: the driver moves pages in none, prefetches too.
            raw = {**raw, "streamId": np.where(migrates, schema.NONE_ID, raw["streamId"])}
        asked_for = migrates & (raw["migrationCause"] == schema.USER_PREFETCH)
        op_class[asked_for & (kind == schema.UVM_HTOD)] = CODE["h2d"]
        op_class[asked_for & (kind == schema.UVM_DTOH)] = CODE["d2h"]
        flags[asked_for & (kind != schema.UVM_DTOD)] |= PREFETCH
        flags[migrates & (kind == schema.UVM_DTOH)] |= TO_HOST
        flags[migrates & (raw["migrationCause"] == schema.EVICTION)] |= EVICTED

        labels = {code: self.strings.add(f"{name.upper()} copy") for name, code in CODE.items()}
        label_of_class = np.array([labels[code] for code in range(len(CODE))], np.int32)
        common = self._common({**raw, "bytes": size}, op_class, label_of_class[op_class])
        return {**common, "flags": flags}

    def _with_ends(self, raw: Columns, staged: npt.NDArray[np.bool_]) -> Columns:
        """Fill in between which devices the legs of staged copies go, where the rows do not say.

        Both legs come of one call: one is of the device that the data leaves, one of that it
        reaches.
        """
        legs = np.flatnonzero(staged & (raw["srcDeviceId"] < 0) & (raw["dstDeviceId"] < 0))
        if not len(legs):
            return raw
        calls = np.stack([raw["globalPid"][legs], raw["correlationId"][legs]])
        _, call = np.unique(calls, axis=1, return_inverse=True)
        call = call.reshape(-1)
        raw = {**raw}
        for column, kind in (("srcDeviceId", 2), ("dstDeviceId", 1)):
            of_call = np.full(len(legs), -1, raw[column].dtype)
            mine = raw["copyKind"][legs] == kind
            of_call[call[mine]] = raw["deviceId"][legs[mine]]
            raw[column] = raw[column].copy()
            raw[column][legs] = of_call[call]
        return raw

    def _uniform(self, raw: Columns, op_class: str, label: str) -> Part:
        return self._common(raw, CODE[op_class], self.strings.add(label))

    def _ranges(self) -> Ranges | None:
        raw = self._fetch(schema.NVTX)
        if raw is None:
            return None
        process, thread = self._thread_of(raw["globalTid"])
        told = nccl_payload.attach(self.database, raw["start"], raw["eventType"], raw["globalTid"])
        ranges = Ranges(
            start_ns=raw["start"],
            end_ns=raw["end"],
            kind=np.where(raw["eventType"] == 60, START_END, PUSH_POP).astype(np.uint8),
            process=process,
            thread=thread,
            domain=self._domains(process, raw["domainId"]),
            category=raw["category"],
            name=self._range_names(raw),
            size_bytes=told["size_bytes"],
            peer=told["peer"].astype(np.int32),
            communicator=told["communicator"],
        )
        return by_time(ranges)

    def _range_names(self, raw: Columns) -> Int32:
        """Names by ``textId``, or by the ``text`` that unregistered ranges carry themselves."""
        by_id = self._name_index(raw["textId"], missing="")
        names: dict[tuple[Any, ...], list[int]] = {}
        for event in self._naming:
            if event.kind not in (_DOMAIN, _CATEGORY):
                thread = -1 if event.thread is None else event.thread
                end = event.end if isinstance(event.end, int) else -1
                key = (event.start, end, event.kind, thread)
                names.setdefault(key, []).append(self.strings.add(str(event.text)))
        if not names:
            return by_id
        for row in np.flatnonzero(raw["textId"] < 0).tolist():
            pending = names.get(
                tuple(int(raw[c][row]) for c in ("start", "end", "eventType", "globalTid"))
            )
            if pending:
                by_id[row] = pending.pop(0)
        return by_id

    def _domains(self, process: Int32, domain_ids: Int64) -> Int32:
        """Names of the domains, which are numbered per process; the default one is -1."""
        codes, keys = factorize(process.astype(np.int64), domain_ids)
        index = [self._domain_names.get(key, -1) for key in keys]
        return np.array(index, np.int32)[codes]

    @functools.cached_property
    def _domain_names(self) -> dict[tuple[int, ...], int]:
        """Name of each (process, domain id) that has one."""
        return {
            (owner, domain): self.strings.add(text)
            for owner, domain, _, text in self._named(_DOMAIN)
            if domain
        }

    def _categories(self) -> tuple[Category, ...]:
        """Names of the categories, which are numbered per domain."""
        return tuple(
            Category(owner, self._domain_names.get((owner, domain), -1), number, text)
            for owner, domain, number, text in self._named(_CATEGORY)
        )

    @functools.cached_property
    def _naming(self) -> list[_Text]:
        """The names of domains and categories, and of ranges that carry their own.

        One query finds them all, as it has to go through every event.
        """
        present = self.database.columns("NVTX_EVENTS").keys()
        if "eventType" not in present:
            return []
        names = ("eventType", "start", "end", "globalTid", "domainId", "category", "text", "textId")
        listed = ", ".join(quoted(name) if name in present else "NULL" for name in names)
        where = f"eventType IN ({_CATEGORY}, {_DOMAIN})"
        if "text" in present:
            where += f" OR ({schema.NVTX.where} AND text IS NOT NULL)"
        rows = self.database.rows(f"SELECT {listed} FROM NVTX_EVENTS WHERE {where}")
        return [_Text(*row) for row in rows]

    def _named(self, kind: int) -> list[tuple[int, int, int, str]]:
        """Return process, domain id, category and text of the events that give names."""
        events = [event for event in self._naming if event.kind == kind]
        ids = [event.text_id for event in events if isinstance(event.text_id, int)]
        texts = self.database.strings(ids)
        found = []
        for event in events:
            label = event.text if event.text is not None else texts.get(event.text_id)
            tid, domain = event.thread, event.domain
            if label is not None and isinstance(tid, int) and isinstance(domain, int):
                owner = self.processes.number((tid >> PROCESS_SHIFT,))
                number = event.category if isinstance(event.category, int) else -1
                found.append((owner, domain, number, str(label)))
        return found

    def _mpi(self) -> MpiCalls | None:
        raw = joined([table for spec in schema.MPI if (table := self._fetch(spec))])
        if raw is None:
            return None
        ended = raw["end"] >= 0
        self.database.count_damage("MPI calls", "never ended", int((~ended).sum()))
        raw = {name: column[ended] for name, column in raw.items()}
        # A Waitall is recorded once a request. A Sendrecv of equal messages with one partner is one
        # row, with the bytes of one; any other two, of what it sends (of no length) and of what it
        # receives. Of the rows of one call keep the longest: so all count what they receive.
        keys = np.stack([raw["start"], raw["globalTid"], raw["textId"]])
        order = np.argsort(-raw["end"], kind="stable")
        _, longest = np.unique(keys[:, order], axis=1, return_index=True)
        raw = {name: column[np.sort(order[longest])] for name, column in raw.items()}
        process, thread = self._thread_of(raw["globalTid"])
        return by_time(
            MpiCalls(
                start_ns=raw["start"],
                end_ns=raw["end"],
                process=process,
                thread=thread,
                name=self._name_index(raw["textId"]),
                size_bytes=raw["size"],
                peer=raw["remoteRank"].astype(np.int32),
                communicator=raw["commHandle"],
            )
        )

    def _mpi_in_ranges(self) -> bool:
        """Whether MPI calls were recorded as ranges: there is no table of them, but a domain."""
        if any(map(self.database.find, schema.MPI)):
            return False
        return any(self.strings.texts[n] == schema.MPI_DOMAIN for n in self._domain_names.values())

    def _mpi_apart(self, ranges: Ranges) -> tuple[Ranges, MpiCalls | None]:
        """Tell MPI calls that were recorded as ranges of a domain from the program's ranges."""
        texts = self.strings.texts
        domain = np.array([text == schema.MPI_DOMAIN for text in texts], np.bool_)
        call = np.array([text.startswith(schema.MPI_CALL_PREFIX) for text in texts], np.bool_)
        of_mpi = ranges.domain >= 0
        of_mpi[of_mpi] = domain[ranges.domain[of_mpi]] & call[ranges.name[of_mpi]]
        if not of_mpi.any():
            return ranges, None
        ended = ranges.end_ns >= 0
        self.database.count_damage("MPI calls", "never ended", int((of_mpi & ~ended).sum()))
        calls = ranges.take(of_mpi & ended)
        unknown = np.full(len(calls), -1, np.int64)
        mpi = MpiCalls(
            start_ns=calls.start_ns,
            end_ns=calls.end_ns,
            process=calls.process,
            thread=calls.thread,
            name=calls.name,
            size_bytes=unknown,
            peer=unknown.astype(np.int32),
            communicator=unknown,
        )
        return ranges.take(~of_mpi), mpi

    def _syncs(self) -> SyncRecords | None:
        raw = self._fetch(schema.SYNCHRONIZATION)
        if raw is None:
            return None
        raw = self._with_known_codes(raw)
        process = self._process_of(raw["globalPid"])
        return by_time(
            SyncRecords(
                start_ns=raw["start"],
                end_ns=raw["end"],
                process=process,
                stream=self._place_of(process, raw)[1],
                correlation=raw["correlationId"],
                launch=self._launch_of(process, raw["correlationId"]),
                sync_type=raw["syncType"].astype(np.int32),
                event=_none_to_minus_one(raw["eventId"]),
                event_sync=_none_to_minus_one(raw["eventSyncId"]),
            )
        )

    def _event_records(self) -> EventRecords | None:
        raw = self._fetch(schema.CUDA_EVENT)
        if raw is None:
            return None
        process = self._process_of(raw["globalPid"])
        launch = self._launch_of(process, raw["correlationId"])
        records = EventRecords(
            process=process,
            stream=self._place_of(process, raw)[1],
            correlation=raw["correlationId"],
            launch=launch,
            event=_none_to_minus_one(raw["eventId"]),
            event_sync=_none_to_minus_one(raw["eventSyncId"]),
            timestamp_ns=np.where(raw["timestamp"] > 0, raw["timestamp"], -1),
        )
        return records.take(np.argsort(launch, kind="stable"))

    # Facts

    def _checks(
        self,
        operations: Operations | None,
        ranges: Ranges | None,
        lost: int | None,
        ranges_read: bool,
    ) -> tuple[quality.Check, ...]:
        overhead = self.database.fetch(schema.PROFILER_OVERHEAD)
        start, end = (overhead[side] for side in ("start", "end")) if overhead else _NOTHING
        return (
            quality.lost_records(lost),
            quality.whole_graphs(operations),
            quality.peer_copies(operations),
            *((quality.nvtx(ranges), quality.open_ranges(ranges)) if ranges_read else ()),
            quality.profiler_overhead(operations, start, end),
            quality.clock(operations),
            quality.recording(read_diagnosis(self.database), lost),
            quality.damage(self.database.damaged),
        )

    def _threads(self) -> tuple[Thread, ...]:
        names = {thread: name for _, thread, name in thread_names(self.database)}
        return tuple(
            Thread(
                process=process,
                tid=tid,
                name=names.get((self.processes.keys[process][0] << PROCESS_SHIFT) | tid),
            )
            for process, tid in self.threads.keys
        )

    def _processes(
        self, threads: Sequence[Thread], environment: Mapping[str, str]
    ) -> tuple[Process, ...]:
        names = {
            record["globalPid"] >> PROCESS_SHIFT: str(record["name"])
            for record in self.database.records("PROCESSES", "globalPid", "name")
            if isinstance(record.get("globalPid"), int) and record.get("name") is not None
        }
        ranks = {
            thread >> PROCESS_SHIFT: rank
            for thread, rank in tuples(self.database.fetch(schema.MPI_RANKS))
        }
        for thread in threads:
            match = MPI_RANK_THREAD.fullmatch(thread.name or "")
            if match:
                ranks.setdefault(self.processes.keys[thread.process][0], int(match[1]))
        if len(self.processes.keys) == 1 and not ranks:
            for variable in schema.RANK_VARIABLES:
                if environment.get(variable, "").isdecimal():
                    ranks[self.processes.keys[0][0]] = int(environment[variable])
                    break
        return tuple(
            Process(pid=key & PID_MASK, name=names.get(key), rank=ranks.get(key))
            for (key,) in self.processes.keys
        )

    def _devices(self) -> tuple[Device, ...]:
        gpus = read_gpus(self.database)
        gpu_of: dict[tuple[int, int], int] = {}
        for gpu, number, pid in tuples(self.database.fetch(schema.DEVICE_INFO)):
            gpu_of[(pid, number)] = gpu
        by_ordinal = {record.get("cuDevice"): gpu for gpu, record in gpus.items()}
        devices = []
        for process, number in self.devices.keys:
            pid = self.processes.keys[process][0] & PID_MASK
            gpu = gpu_of.get((pid, number), by_ordinal.get(number, number))
            record = gpus.get(gpu, {})
            name, uuid = record.get("name"), record.get("uuid")
            devices.append(
                Device(
                    process=process,
                    number=number,
                    name=name if isinstance(name, str) else None,
                    copy_engines=positive(record.get("asyncEngines")),
                    sm_count=positive(record.get("smCount")),
                    hardware=str(uuid or f"gpu {gpu}"),
                    sm_limits=sm_limits(record),
                )
            )
        return tuple(devices)

    def _streams(self) -> tuple[Stream, ...]:
        facts: dict[tuple[int, ...], tuple[int | None, str | None]] = {}
        for spec in schema.NULL_STREAM_INFO:
            for hardware, machine, pid, *stream_key in tuples(self.database.fetch(spec)):
                facts[(owner_of(hardware, machine, pid), *stream_key)] = (None, "null")
        info = self.database.fetch(schema.STREAM_INFO)
        if info is not None:
            for row in tuples(self._with_known_codes(info)):
                hardware, machine, pid, context, stream, priority, flag = row
                signed = priority - (1 << 32) if priority >= 1 << 31 else priority
                key = (owner_of(hardware, machine, pid), context, stream)
                kind = facts.get(key, (None, None))[1] or schema.STREAM_FLAGS.get(flag)
                facts[key] = (signed, kind)
        parts = read_green_contexts(self.database)
        streams = []
        for process, device, context, number in self.streams.keys:
            owner = self.processes.keys[process][0]
            # Versions that do not name the machine of a process give its pid alone.
            by_pid = facts.get((owner & PID_MASK, context, number), (None, None))
            known_priority, kind = facts.get((owner, context, number), by_pid)
            part, sm_count = parts.get((owner, context, number), (None, None))
            streams.append(
                Stream(process, device, context, number, known_priority, kind, part, sm_count)
            )
        return tuple(streams)


def _none_to_minus_one(ids: Int64) -> Int64:
    return np.where(ids == schema.NONE_ID, -1, ids)


def _config_of(raw: Columns) -> Arrays:
    """Return the launch configurations of a chunk of kernels, named as in our table."""
    limited = {
        name: np.clip(raw[name], 0, largest) for name, largest in schema.LARGEST_LAUNCH.items()
    }
    blocks = limited["gridX"] * limited["gridY"] * limited["gridZ"]
    threads = limited["blockX"] * limited["blockY"] * limited["blockZ"]
    return {
        "grid_blocks": blocks,
        "block_threads": threads.astype(np.int32),
        "registers_per_thread": limited["registersPerThread"].astype(np.int32),
        "shared_bytes": limited["staticSharedMemory"] + limited["dynamicSharedMemory"],
        "cooperative": np.isin(raw["launchType"], schema.COOPERATIVE).astype(np.uint8),
    }


def _mark_nccl_copies(
    operations: Operations, api: ApiCalls, ranges: Ranges, strings: Sequence[str]
) -> None:
    """Set the COMMUNICATION flag of copies that were launched inside a range of NCCL's domain."""
    nccl = [index for index, text in enumerate(strings) if text == "NCCL"]
    calls = ranges.take(np.isin(ranges.domain, nccl) & (ranges.end_ns >= 0))
    copies = np.flatnonzero((operations.size_bytes > 0) & (operations.launch >= 0))
    if not len(calls) or not len(copies):
        return
    launch = operations.launch[copies]
    for thread in np.unique(calls.thread).tolist():
        mine = calls.thread == thread
        start = calls.start_ns[mine]
        reach = np.maximum.accumulate(calls.end_ns[mine])
        at = np.searchsorted(start, api.start_ns[launch], side="right") - 1
        inside = (
            (api.thread[launch] == thread)
            & (at >= 0)
            & (api.start_ns[launch] < reach[np.maximum(at, 0)])
        )
        operations.flags[copies[inside]] |= COMMUNICATION


def _lost_records(
    operations: Operations | None, api: ApiCalls | None, strings: Sequence[str]
) -> int | None:
    """Count successful kernel launches that left no record, those under stream capture apart."""
    if operations is None or api is None:
        return None

    def calls(pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        matching = [index for index, text in enumerate(strings) if pattern.match(text)]
        return np.isin(api.name, matching)

    launches = np.flatnonzero(calls(_LAUNCH_CALL) & (api.result == 0))
    begins, ends = calls(_CAPTURE_BEGIN), calls(_CAPTURE_END)
    for thread in np.unique(api.thread[begins]).tolist():
        depth = np.cumsum(
            (begins & (api.thread == thread)).astype(np.int64)
            - (ends & (api.thread == thread)).astype(np.int64)
        )
        launches = launches[~((api.thread[launches] == thread) & (depth[launches] > 0))]
    recorded = np.zeros(len(api), np.bool_)
    recorded[operations.launch[operations.launch >= 0]] = True
    return int((~recorded[launches]).sum())
