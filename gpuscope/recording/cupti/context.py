"""``with gpuscope.record("out.sqlite"):`` records a part of the running program."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuscope.errors import OutputError, UsageError
from gpuscope.recording import machine
from gpuscope.recording.cupti import collector, export, library, program
from gpuscope.recording.cupti.spool import LIMIT_BYTES, Spool


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str], *, limit_bytes: int = LIMIT_BYTES, whole_graphs: bool = False
) -> Iterator[Path]:
    """Record what the block does on the GPUs, without Nsight Systems, into an SQLite trace.

    Works in scripts and notebooks. GPU work is waited for where the block ends. NVTX ranges are
    recorded if nothing in the process used NVTX before the first ``record``; a sentence on standard
    error says so otherwise.

    >>> with gpuscope.record("step.sqlite") as trace:  # doctest: +SKIP
    ...     train_step()
    >>> trace  # doctest: +SKIP
    PosixPath('step.sqlite')

    Parameters
    ----------
    path
        The trace to write; one that is there is replaced. Under MPI each rank writes its own:
        ``step.rank0.sqlite`` and so on.
    limit_bytes
        Space for records. What comes after it is full is dropped; the trace tells how much.
    whole_graphs
        Record the launch of a CUDA graph as one operation, in place of its nodes: costs less. For
        blocks that begin before the program uses CUDA: at the launch of a graph that was made
        before, CUPTI crashes.

    Yields
    ------
    Path
        The trace that will be written when the block ends, even if it fails.

    Raises
    ------
    MissingError
        There is no driver, no libcupti that fits it, or another profiler is at work.
    OutputError
        The trace cannot be written.
    UsageError
        Another ``record`` is under way; or `whole_graphs`, and CUDA is in use already.
    """
    if whole_graphs and library.is_cuda_in_use():
        msg = (
            "whole_graphs is for a block that begins before the program uses CUDA: begin it "
            "earlier, or leave whole_graphs out, which records the nodes of graphs."
        )
        raise UsageError(msg)
    chosen = rank_path(Path(path))
    with _spool(chosen) as spool:
        found = library.Library(library.find())
        recorder = collector.Collector(
            spool, found, whole_graphs=whole_graphs, limit_bytes=limit_bytes
        )
        collector.attach_nvtx(recorder)
        recorder.start(is_late=True)
        try:
            yield chosen
            library.wait_for_gpu()
        finally:
            recorder.stop()
            recorder.close()
            for sentence in program.sentences(export.write(spool, chosen)):
                print(f"gpuscope: {sentence}", file=sys.stderr)


def rank_path(path: Path) -> Path:
    """Return `path` with the MPI rank in it, where this process is one of several."""
    rank = machine.mpi_rank()
    return path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


@contextlib.contextmanager
def _spool(path: Path) -> Iterator[Spool]:
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.absolute().parent))
    except OSError as error:
        msg = f"{path} cannot be written ({error.strerror}): name another file."
        raise OutputError(msg) from None
    try:
        yield Spool(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
