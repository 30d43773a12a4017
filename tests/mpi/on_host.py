"""`python -m gpuscope.benchmarks` for the Jacobi benchmarks over MPI, each rank on a simulated GPU.

The steps, the messages and the checks are the benchmark's own; only the times are those of NumPy.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

from gpuscope.benchmarks import jacobi_2d, jacobi_mpi, jacobi_mpi_overlap
from gpuscope.benchmarks.__main__ import main
from gpuscope.benchmarks._harness import Result, Statistics, jacobi_ranks
from gpuscope.benchmarks._harness.gpu import Measured, Pass, Session
from gpuscope.benchmarks._harness.ranks import Ranks
from tests.simulated_gpu import SimulatedGpu, SimulatedKernels, session


class OnHost(Session):
    """Times passes and operations by the host's clock."""

    def __init__(self, ranks: Ranks) -> None:
        self.cp, self.team = SimulatedGpu(ranks.rank), ranks
        self.pci_bus_id = f"0000:0{ranks.rank}:00.0"
        self.ranges = session(self.cp).ranges
        self.cp.cuda.runtime.memGetInfo = lambda: (1 << 40, 1 << 40)

    def property(self, name: str) -> int:
        return 1 << 20

    def measure(
        self,
        passes: Sequence[Pass],
        repetitions: int,
        *,
        check: Callable[[], None],
        warm: bool = True,
        corrupt: Any = None,
    ) -> Measured:
        times_ns: dict[str, list[int]] = {one.name: [] for one in passes}
        for _ in range(repetitions):
            for one in passes:
                self.team.barrier()
                times_ns[one.name].append(self._time(one.issue))
        if corrupt is not None:
            corrupt()[-1:] += 1
        self.check(check)
        found = {name: Statistics.of(self.team.largest(each)) for name, each in times_ns.items()}
        return Measured(found, found, 0, SimpleNamespace())  # type: ignore[arg-type]

    def time_operations(self, queues: Any, *, waits: bool = False) -> Any:
        spans = []
        for _, operations in queues:
            ends_ns = [0]
            for operation in operations:
                ends_ns.append(ends_ns[-1] + self._time(operation))
            spans.append(list(itertools.pairwise(ends_ns)))
        return spans

    def _time(self, issue: Callable[[], None]) -> int:
        begin_ns = time.perf_counter_ns()
        issue()
        self.cp.cuda.runtime.deviceSynchronize()
        return time.perf_counter_ns() - begin_ns

    def conclude(self, measured: Measured, **parts: Any) -> Result:
        lines = [parts.pop("title"), *parts.pop("lines"), *parts["notes"]]
        del parts["memory_bound"]
        return Result(
            benchmark=sys.argv[1],
            repetitions=2,
            warmup=0,
            passes=measured.passes,
            baselines={},
            issued={},
            machine={"gpu": "a simulated GPU"},
            valid=True,
            table="" if self.team.rank else "\n".join(lines),
            **parts,
        )


@contextmanager
def open_ranks(name: str, *, least: int, oversubscribe: bool) -> Iterator[Ranks]:
    ranks = Ranks(MPI, MPI.COMM_WORLD)
    ranks.session = OnHost(ranks)
    yield ranks


for module in (jacobi_mpi, jacobi_mpi_overlap, jacobi_2d):
    vars(module).update(open_ranks=open_ranks, StencilKernels=SimulatedKernels)
# As much of NumPy's proof as shows that it is done: 50 steps on 256 × 256 points take minutes.
vars(jacobi_ranks).update(
    PROOF_STEPS=3, _PROOFS=((13, 11),), copy_rate_bytes_per_s=lambda session: 1e12
)
sys.exit(main())
