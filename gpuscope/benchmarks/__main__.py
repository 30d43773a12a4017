"""``python -m gpuscope.benchmarks NAME [options] --result FILE``: run one benchmark, here and now.

This is the process that a profiler or mpirun wraps. stdout carries the table, stderr the progress;
the result file is written only if all went well. Exit codes are those of :mod:`gpuscope.errors`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpuscope.benchmarks import BENCHMARKS, find_benchmark
from gpuscope.benchmarks._harness import add_common_arguments, leave, write_result
from gpuscope.errors import INTERRUPTED, GpuscopeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that `argv` (default ``sys.argv[1:]``) names; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print("usage: python -m gpuscope.benchmarks NAME [options]\n")
        print("\n".join(f"  {item.name:<16} {item.summary}" for item in BENCHMARKS))
        return 0
    try:
        benchmark = find_benchmark(arguments[0])
        parser = argparse.ArgumentParser(
            prog=f"python -m gpuscope.benchmarks {benchmark.name}",
            description=benchmark.summary,
            allow_abbrev=False,
        )
        benchmark.add_arguments(parser)
        add_common_arguments(parser, benchmark)
        options = parser.parse_args(arguments[1:])
        result = benchmark.run(options)
        if options.result is not None:
            write_result(result, options.result)
        if result.table:
            print(result.table)
    except GpuscopeError as error:
        print(f"gpuscope: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("gpuscope: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    leave(main())
