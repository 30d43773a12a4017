"""A large trace as it was read, kept in the cache folder: its columns as Arrow files.

The files are mapped into memory, not read: what an analysis does not look at costs nothing. An
entry is a folder ``columns/<digest of the export>/<request>`` with ``trace.json`` and a file for
each table. Columns of one value throughout stand in ``trace.json``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from gpuscope.errors import GpuscopeError
from gpuscope.model import codec
from gpuscope.model.classes import ClassRule
from gpuscope.model.tables import Table
from gpuscope.model.trace import Trace
from gpuscope.readers import cache
from gpuscope.readers.database import needs_copy

_FACTS = "trace.json"
_PACKAGE = Path(__file__).parents[1]
_THREAD_NAME = "gpuscope-cache"


@functools.cache
def table_types() -> dict[str, type[Table]]:
    """Return the tables of a trace: the name of the field, and what it holds."""
    hints = get_type_hints(Trace)
    kinds = {name: get_args(hint)[0] for name, hint in hints.items() if get_args(hint)}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, Table)
    }


def worth_keeping(path: Path) -> bool:
    """Whether the export `path` is large enough to be kept, and no log beside it adds to it."""
    return path.stat().st_size >= cache.SMALLEST_SOURCE_BYTES and not needs_copy(path)


def code_fingerprint() -> str:
    """Return what changes with gpuscope's own code: what other code made is not used."""
    files = sorted(
        file for pattern in ("**/*.py", "**/*.toml") for file in _PACKAGE.glob(pattern)
    ) + sorted((_PACKAGE / "analyzers").glob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def load(path: Path, rules: Sequence[ClassRule], wanted: Collection[str]) -> Trace | None:
    """Return the trace of the export `path` as it was kept; None where it was not.

    More tables than `wanted` may be in it.
    """
    entry = _find(path, rules, wanted)
    if entry is None:
        return None
    try:
        trace = _read(entry, path)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        cache.remove(entry)  # damaged: it is made anew
        return None
    cache.use(entry)
    return trace


def _find(path: Path, rules: Sequence[ClassRule], wanted: Collection[str]) -> Path | None:
    """Return the entry of the export with all of the tables `wanted`."""
    with contextlib.suppress(OSError):
        digest = cache.known_digest(path)
        if digest is not None:
            folder = cache.base_folder() / "columns" / digest
            for entry in folder.glob(f"{_prefix(rules)}-*"):
                if set(wanted) <= set(entry.name.split("-", 1)[1].split("+")):
                    return entry
    return None


def keep(
    path: Path,
    identity: cache.Identity,
    trace: Trace,
    rules: Sequence[ClassRule],
    held: Collection[str],
) -> None:
    """Begin to keep `trace`, read from the export `path` while it had this identity.

    The work is done beside the caller's; :func:`finish` waits for it, as does Python's end.
    """

    def work() -> None:
        with contextlib.suppress(OSError, GpuscopeError, ImportError):
            digest = cache.digest_of(path)
            if cache.identity_of(path) == identity:
                name = f"{_prefix(rules)}-{'+'.join(sorted(held))}"
                folder = cache.base_folder() / "columns" / digest / name
                cache.save(folder, lambda target: _write(target, trace))
                cache.remember(identity, digest)

    threading.Thread(target=work, name=_THREAD_NAME).start()


def finish() -> None:
    """Wait until everything begun is kept."""
    for thread in threading.enumerate():
        if thread.name == _THREAD_NAME:
            thread.join()


def _prefix(rules: Sequence[ClassRule]) -> str:
    text = f"{code_fingerprint()} {rules!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(folder: Path, trace: Trace) -> None:
    import pyarrow as pa

    folder.mkdir()
    constants: dict[str, dict[str, Any]] = {}
    for name in table_types():
        table = getattr(trace, name)
        if table is None:
            continue
        columns = table.columns()
        single = {key for key, column in columns.items() if len(column) and column.strides == (0,)}
        constants[name] = {"": len(table)} | {key: int(columns[key][0]) for key in sorted(single)}
        batch = pa.record_batch({k: pa.array(v) for k, v in columns.items() if k not in single})
        with pa.ipc.new_file(str(folder / f"{name}.arrow"), batch.schema) as writer:
            writer.write_batch(batch)
    facts = {
        field.name: codec.to_jsonable(getattr(trace, field.name))
        for field in dataclasses.fields(trace)
        if field.name not in table_types()
    }
    text = json.dumps({"facts": facts, "constants": constants})
    (folder / _FACTS).write_text(text, "utf-8", "surrogatepass")


def _read(folder: Path, path: Path) -> Trace:
    import pyarrow as pa

    said = json.loads((folder / _FACTS).read_text("utf-8", "surrogatepass"))
    facts = codec.fields_from_jsonable(Trace, {**said["facts"], "path": str(path)})
    columns: dict[str, Any] = {}
    for name, constants in said["constants"].items():
        count = constants.pop("")
        file = pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow")))
        batch = file.get_batch(0)
        kind = table_types()[name]
        found = kind.empty().columns()
        for key, empty in found.items() if count else ():
            if key in constants:
                found[key] = np.broadcast_to(np.array(constants[key], empty.dtype), count)
            else:
                found[key] = np.frombuffer(batch.column(key).buffers()[1], empty.dtype, count)
        columns[name] = kind(**found)
    return Trace(**facts, **columns)
