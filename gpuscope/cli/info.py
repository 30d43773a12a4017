"""Say what traces hold: versions, machine, GPUs, processes, what was recorded, and its quality.

Names of hosts and users, paths and the environment are not shown.

For example:

  gpuscope info trace.sqlite                for people
  gpuscope info report.nsys-rep --json      for programs, of several traces as an array
  gpuscope info rank0.sqlite rank1.sqlite   one after the other
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from gpuscope.cli._options import (
    add_cache_option,
    add_traces,
    progress_bar,
    say_left_out,
    stdout_console,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    from gpuscope.model.trace import Trace
    from gpuscope.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope info`."""
    add_traces(parser)
    add_cache_option(parser)
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(args: argparse.Namespace) -> int:
    """Read the trace and describe it."""
    from gpuscope import api
    from gpuscope.model import codec

    paths = api.of_ranks(args.trace)
    with progress_bar() as progress:
        contents = [_content(path, progress, use_cache=not args.no_cache) for path in paths]
    if args.json:
        sys.stdout.write(codec.dumps(api.answer(args.trace, contents)))
    else:
        say_left_out(paths)
        for content in contents:
            _print(content, stdout_console(highlight=False, soft_wrap=True))
    return 0


def _content(path: Path, progress: Progress, *, use_cache: bool) -> dict[str, Any]:
    """Return what the JSON says of a trace."""
    from gpuscope import api
    from gpuscope.model import codec
    from gpuscope.readers.nsys_facts import take_inventory

    trace = api.open_trace(path, progress=progress, use_cache=use_cache)
    return {
        "schema_version": 1,
        "path": trace.path,
        "format": trace.format,
        "duration_ns": trace.duration_ns,
        "start_utc_ns": trace.start_utc_ns,
        **codec.to_jsonable(take_inventory(api.find_export(path))),
        **_describe(trace),
    }


def _describe(trace: Trace) -> dict[str, Any]:
    """Return what the JSON says of the trace itself."""
    import numpy as np

    from gpuscope.model import codec
    from gpuscope.model.classes import CLASSES
    from gpuscope.model.tables import Operations

    operations = trace.operations or Operations.empty()
    counts = np.bincount(operations.op_class, minlength=len(CLASSES)).tolist()
    size = np.zeros(len(CLASSES), np.int64)
    np.add.at(size, operations.op_class, operations.size_bytes)
    tables = ("operations", "api", "ranges", "mpi", "syncs", "event_records")
    return {
        "processes": [
            {
                "pid": process.pid,
                "rank": process.rank,
                "operations": int((operations.process == index).sum()),
            }
            for index, process in enumerate(trace.processes)
        ],
        "devices": [
            {
                "pid": trace.processes[device.process].pid,
                "number": device.number,
                "name": device.name,
                "copy_engines": device.copy_engines,
                "sm_count": device.sm_count,
                "streams": sum(stream.device == index for stream in trace.streams),
            }
            for index, device in enumerate(trace.devices)
        ],
        "recorded": {
            name: None if (table := getattr(trace, name)) is None else len(table) for name in tables
        },
        "classes": {
            name: {"count": count, "size_bytes": int(size[code])}
            for code, (name, count) in enumerate(zip(CLASSES, counts, strict=True))
            if count
        },
        "environment": dict(trace.environment),
        "checks": codec.to_jsonable(trace.checks),
        "notes": list(trace.notes),
    }


_RECORDED = {
    "operations": "GPU operations",
    "api": "CUDA calls",
    "ranges": "NVTX ranges",
    "mpi": "MPI calls",
    "syncs": "synchronizations",
    "event_records": "event records",
}
_MACHINE: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("CpuDescription", str),
    ("CpuCores", "{} cores".format),
    ("CpuArchitecture", str),
    ("OsDescription", str),
    ("NvDriverVersion", "driver {}".format),
    ("CudaDriverVersion", lambda text: f"CUDA {int(text) // 1000}.{int(text) % 1000 // 10}"),
)
"""What an export tells of the machine, and how it is said."""
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "bold yellow"), "unknown": ("–", "dim")}


def _print(content: dict[str, Any], console: Console) -> None:
    from rich.markup import escape

    from gpuscope.model.trace import RECORDERS
    from gpuscope.units import counted, format_bytes, format_ns, printable

    def line(name: str, text: str) -> None:
        console.print(f"  [bold]{name:<11}[/bold] {escape(printable(text))}")

    console.print(f"[bold]{escape(printable(content['path']))}[/bold]")
    recorder = RECORDERS[content["format"]]
    captured, exported = content["captured_by"], content["exported_by"]
    versions = [
        f"{what} {version}"
        for what, version in (
            ("captured by", captured),
            ("exported by", exported),
            ("schema", content["export_schema"]),
        )
        if version
    ]
    line("recorder", f"{recorder}: {', '.join(versions) or 'the export names no version'}")
    machine = content["machine"]
    if machine:
        line(
            "machine", ", ".join(form(machine[name]) for name, form in _MACHINE if name in machine)
        )
    for device in content["devices"]:
        known = [
            device["name"] or "GPU of unknown model",
            f"{device['sm_count']} SMs" if device["sm_count"] else "",
            counted(device["copy_engines"], "copy engine")
            if device["copy_engines"]
            else "? copy engines",
            counted(device["streams"], "stream"),
        ]
        line(f"GPU {device['number']}", f"{', '.join(filter(None, known))} (pid {device['pid']})")
    for process in content["processes"]:
        rank = "" if process["rank"] is None else f", MPI rank {process['rank']}"
        work = counted(process["operations"], "GPU operation")
        line("process", f"pid {process['pid']}{rank}: {work}")
    line("GPU work", f"{format_ns(content['duration_ns'])} from first start to last end")
    for name, meaning in _RECORDED.items():
        count = content["recorded"][name]
        line("" if name != "operations" else "recorded", f"{meaning}: {_count(count)}")
    for name, row in content["classes"].items():
        size = f", {format_bytes(row['size_bytes'])}" if row["size_bytes"] else ""
        line(name, f"{row['count']}{size}")
    for name, value in content["environment"].items():
        line("variable", f"{name}={value}")
    for index, (table, rows) in enumerate(content["table_rows"].items()):
        line("" if index else "tables", f"{table}: {rows}")
    for check in content["checks"]:
        mark, style = _MARKS[check["state"]]
        text = escape(printable(f"{check['name']}: {check['text']}"))
        console.print(f"  [{style}]{mark}[/{style}] {text}")


def _count(count: int | None) -> str:
    return "not recorded" if count is None else str(count)
