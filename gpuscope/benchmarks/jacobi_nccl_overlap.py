"""``jacobi-nccl-overlap``: the edges of a slab first, so that NCCL carries them beside the rest.

The grid is cut into slabs of rows, one a rank. What the neighbours need is computed and exchanged
on a stream of high priority, the inner rows on one of low priority. ::

    high    [reset][edges][send, receive ====]   [reset][edges][send, receive ====]   …
    low     [inner rows =======================] [inner rows =======================] …

A GPU full of inner rows has room for NCCL's kernel only as blocks end: the priority lets it in
first. The two streams wait for each other once a step:

* the edges, and the reset of the norm before them, for the inner rows of the step before: they read
  two of those rows, and what those add to the norm must be in it;
* the inner rows for the edges of the step before, which they read.

The norm has two sums that take turns: one is copied out and reset while the other is added to. With
one alone the inner rows would have to wait for the reset, too, and through it for the exchange.

The host waits for nothing; ``_harness/queued.py`` issues the steps. With ``--graph`` some are
captured once, and launched as a whole: so many that behind them the arrays lie as they lay before,
and the next look at the norm falls as it fell. The nodes must keep the priorities of their streams,
or NCCL's kernel comes last.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from contextlib import ExitStack
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness import CORRUPT, Benchmark, Result, Twin, open_ranks
from gpuscope.benchmarks._harness.jacobi_ranks import (
    OPTIONS,
    Options,
    add_arguments,
    choose_options,
    measure,
)
from gpuscope.benchmarks._harness.queued import CHAINED, OVERLAPPED, SAME_STREAM, NcclSteps
from gpuscope.benchmarks._harness.stencil import StencilKernels
from gpuscope.errors import ProgramError, UsageError

_USE_NODE_PRIORITY = 8
"""CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, from CUDA 11.7 on."""
_NOTHING_HIDES = "overlapped: communication and kernels serialized"
_TWINS = (
    Twin(SAME_STREAM, "edges, exchange and inner rows on one stream", _NOTHING_HIDES),
    Twin(CHAINED, "the inner rows wait for the exchange of their own step", _NOTHING_HIDES),
    CORRUPT,
)


class _Graphed(NcclSteps):
    """Some steps as one CUDA graph, with the copies of the norm among them.

    `graphs` destroys it. A communicator waits for that: it would never end while there is a graph
    that has captured its kernels.
    """

    def __init__(self, *arguments: Any, graphs: ExitStack, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.length = steps_of_a_graph(self.norm_every)
        runtime = self.cp.cuda.runtime
        runtime.deviceSynchronize()  # the rows that are exchanged are filled on the null stream
        self.exchange()  # connects the ranks, which a capture cannot
        runtime.deviceSynchronize()
        runtime.streamBeginCapture(self.high.ptr)
        for event in (self.inner_done, self.edges_done):  # nothing waits for what was before
            event.record(self.high)
        for index in range(self.length):
            self.step(self.length + index)  # as any launch but the first
        self.high.wait_event(self.inner_done)
        captured = runtime.streamEndCapture(self.high.ptr)
        self.graph = keep_priorities(captured)
        graphs.callback(runtime.graphExecDestroy, self.graph)
        runtime.graphDestroy(captured)
        runtime.graphUpload(self.graph, self.high.ptr)
        self.high.synchronize()
        self.tile.steps_done = 0

    def run(self, steps: int) -> None:
        self.totals.clear()
        last_look = (self.length - 2) // self.norm_every * self.norm_every
        for first in range(0, steps, self.length):
            self.cp.cuda.runtime.graphLaunch(self.graph, self.high.ptr)
            if self.looking:
                self.high.synchronize()
                mine = float(self.copied.host[0])
                self.totals[first + last_look] = sum(self.ranks.gather(mine))
        self.tile.steps_done += steps
        self.tile.norm.copy_out(self.high)


def steps_of_a_graph(norm_every: int) -> int:
    """Return how many steps a graph has: two, or more until a look at the norm falls as before."""
    return math.lcm(2, norm_every)


def keep_priorities(graph: int) -> int:
    """Make a captured graph ready to be launched, each node with the priority of its own stream.

    CuPy's graphs have all nodes at the priority of the stream that the graph is launched into.

    Raises
    ------
    ProgramError
        The driver refused.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    ready = ctypes.c_void_p()
    status = driver.cuGraphInstantiateWithFlags(
        ctypes.byref(ready), ctypes.c_void_p(graph), ctypes.c_ulonglong(_USE_NODE_PRIORITY)
    )
    if status or ready.value is None:
        raise ProgramError(f"the CUDA graph could not be made (CUresult {status}).")
    return ready.value


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    order = twin if twin in (SAME_STREAM, CHAINED) else OVERLAPPED
    if arguments.graph:
        refuse_what_no_graph_does(choose_options(arguments, BENCHMARK.name))
    with (
        open_ranks(BENCHMARK.name, least=1, oversubscribe=arguments.oversubscribe) as ranks,
        ExitStack() as graphs,
    ):
        kernels, communicator = StencilKernels(ranks.session.cp), ranks.nccl()
        variant = partial(_Graphed, graphs=graphs) if arguments.graph else NcclSteps
        return measure(
            ranks,
            arguments,
            benchmark=BENCHMARK.name,
            pass_name="overlapped",
            make=lambda *block: variant(
                ranks,
                kernels,
                *block,
                order=order,
                communicator=communicator,
                skew_us=arguments.skew_us or 0,
            ),
            cut_columns=False,
            overlapping=order == OVERLAPPED,
            pairs=(("comm", "kernel"),),
        )


def refuse_what_no_graph_does(options: Options) -> None:
    """Raise UsageError for options that a graph of some steps cannot serve."""
    length = steps_of_a_graph(options.norm_every)
    if options.steps % length:
        raise UsageError(
            f"--graph with --norm-every {options.norm_every} launches {length} steps at once: "
            f"give a multiple of {length} as --steps."
        )
    if options.tolerance is not None:
        raise UsageError("--graph looks at no norm on its way: leave --tolerance out.")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_arguments(parser)
    parser.add_argument(
        "--graph", action="store_true", help="launch steps as a CUDA graph, some at once"
    )


BENCHMARK = Benchmark(
    name="jacobi-nccl-overlap",
    summary="a stencil on several GPUs whose edges NCCL carries while the inner rows are computed",
    options=f"{OPTIONS}  --graph",
    needs="2 GPUs, MPI, NCCL",
    twins=_TWINS,
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
    own_gpus=True,
)
