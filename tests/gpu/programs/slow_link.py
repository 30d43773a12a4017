"""Copies that share their link with another process, which the trace does not hold.

The other process copies in the same direction all the while that the range `slow_link` lasts. It is
started without what makes a profiler record it, as anything else on the machine would be.
"""

from __future__ import annotations

import os
import subprocess
import sys

import cupy as cp

from tests.gpu.programs._parts import MIB, Gpu, phase, record

COPIES = 8
SIZE_BYTES = 128 * MIB
_PROFILER = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


class Neighbour:
    """Another process that copies to the same GPU while it is let."""

    def __init__(self) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in _PROFILER and not name.startswith(("NSYS", "QUADD"))
        }
        command = [sys.executable, "-m", "tests.gpu.programs.slow_link", "neighbour"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._wait()

    def say(self, word: str) -> None:
        """Tell it to `begin`, or to `end`, and wait until it does."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._wait()

    def leave(self) -> None:
        """End the process."""
        self._process.communicate()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()


def neighbour() -> None:
    """Copy from the word `begin` to the word `end`."""
    import threading

    gpu = Gpu(size_bytes=SIZE_BYTES, chunks=2)
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for chunk, stream in enumerate(streams):
                gpu.copy_in(chunk, stream)
            streams[0].synchronize()

    print("ready", flush=True)
    thread: threading.Thread | None = None
    for line in sys.stdin:
        if line.strip() == "begin":
            stop.clear()
            thread = threading.Thread(target=work)
            thread.start()
            streams[0].synchronize()
        elif thread is not None:
            stop.set()
            thread.join()
            cp.cuda.runtime.deviceSynchronize()
        print("done", flush=True)


def main() -> None:
    gpu = Gpu(size_bytes=SIZE_BYTES, chunks=2)
    stream = cp.cuda.Stream(non_blocking=True)
    other = Neighbour()

    def copies() -> None:
        for chunk in range(COPIES):
            gpu.copy_in(chunk, stream)

    def mistake() -> None:
        other.say("begin")
        with phase("slow_link"):
            copies()
        other.say("end")

    def repaired() -> None:
        with phase("repaired"):
            copies()

    record(mistake, repaired)
    other.leave()


if __name__ == "__main__":
    neighbour() if sys.argv[1:] == ["neighbour"] else main()
