"""What a benchmark is: the entry of the table, and the options all of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from gpuscope.benchmarks._harness.result import Result
from gpuscope.benchmarks._harness.sizing import positive_int
from gpuscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class Twin:
    """A variant of a benchmark that must come out differently, and how.

    ``wrong_data`` marks the twin that breaks the data on purpose: it succeeds when the benchmark
    ends with exit code 1 and a message that begins with :data:`WRONG_DATA`.
    """

    name: str
    summary: str
    expectation: str
    wrong_data: bool = False


CORRUPT = Twin(
    "corrupt-element",
    "one element of the result is changed after the last pass",
    "the data check ends the run with exit code 1 and no figures",
    wrong_data=True,
)
"""The twin that every benchmark has: a data check that misses one element is none."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: what it is, what it takes, and the function that runs it.

    ``add_arguments`` adds the benchmark's own options to a parser; ``run`` takes the parsed
    options, :func:`add_common_arguments` included, and returns what it measured. ``ranks`` says
    that it is an MPI program, with a GPU to each rank, ``own_gpus`` that they cannot share one, and
    ``of_two`` that two of them do the work and the others look on.
    """

    name: str
    summary: str
    options: str
    needs: str
    twins: tuple[Twin, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Result]
    ranks: bool = False
    own_gpus: bool = False
    of_two: bool = False
    default_reps: int = 20

    def twin(self, name: str) -> Twin:
        """Return the twin called `name`; UsageError names those there are."""
        for twin in self.twins:
            if twin.name == name:
                return twin
        names = ", ".join(twin.name for twin in self.twins)
        raise UsageError(f"{self.name} has no twin {name!r}: there are {names}.")


def add_common_arguments(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    """Add the options that every benchmark takes, and those that every MPI program takes."""
    if benchmark.own_gpus:
        parser.set_defaults(oversubscribe=None)
    elif benchmark.ranks:
        parser.add_argument(
            "--oversubscribe",
            action="store_true",
            help="let ranks share a GPU: nothing is judged then",
        )
    parser.add_argument(
        "--reps",
        type=positive_int,
        default=benchmark.default_reps,
        metavar="N",
        help="measured repetitions in this process (default: %(default)s)",
    )
    parser.add_argument("--twin", metavar="NAME", help="run this variant instead")
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="an earlier result of this benchmark: take its sizes and calibration from it",
    )
    parser.add_argument("--result", metavar="FILE", help="write the result here, as JSON")
