"""``jacobi-nccl``: the stencil on several GPUs, whose rows go to the neighbours by NCCL.

The grid is cut into slabs of rows, one a rank. A step is done on the whole slab; behind it, on the
same stream, one group of sends and receives exchanges the first and the last row. ::

    GPU     [step ============][send, receive][step ============][send, receive] …

The host waits for nothing, and yet nothing overlaps: a stream does one thing after the other. This
is what ``jacobi-nccl-overlap`` improves on. The steps are issued in ``_harness/queued.py``.
"""

from __future__ import annotations

import argparse

from gpuscope.benchmarks._harness import CORRUPT, Benchmark, Result, open_ranks
from gpuscope.benchmarks._harness.jacobi_ranks import OPTIONS, add_arguments, measure
from gpuscope.benchmarks._harness.queued import SERIALIZED, NcclSteps
from gpuscope.benchmarks._harness.stencil import StencilKernels


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    with open_ranks(BENCHMARK.name, least=1, oversubscribe=arguments.oversubscribe) as ranks:
        kernels, communicator = StencilKernels(ranks.session.cp), ranks.nccl()
        return measure(
            ranks,
            arguments,
            benchmark=BENCHMARK.name,
            pass_name="serialized",
            make=lambda *block: NcclSteps(
                ranks,
                kernels,
                *block,
                order=SERIALIZED,
                communicator=communicator,
                skew_us=arguments.skew_us or 0,
            ),
            cut_columns=False,
            overlapping=False,
            pairs=(("comm", "kernel"),),
        )


BENCHMARK = Benchmark(
    name="jacobi-nccl",
    summary="a stencil on several GPUs, computed and then exchanged by NCCL, on one stream",
    options=OPTIONS,
    needs="2 GPUs, MPI, NCCL",
    twins=(CORRUPT,),
    add_arguments=add_arguments,
    run=_run,
    ranks=True,
    own_gpus=True,
)
