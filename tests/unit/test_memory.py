"""Memory that a process frees and uses again."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """\
import resource, sys
import numpy as np
from gpuscope import memory
if "keep" in sys.argv:
    memory.keep_freed()
size = 50_000_000
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(size, np.uint8)
before = faults()
for _ in range(20):
    np.ones(size, np.uint8)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is asked")
def test_arrays_take_the_memory_of_those_before() -> None:
    def faults(*arguments: str) -> int:
        environment = {"NUMPY_MADVISE_HUGEPAGE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment | {"PYTHONPATH": ":".join(sys.path)},
        )
        return int(done.stdout)

    assert faults("keep") < faults() / 10
