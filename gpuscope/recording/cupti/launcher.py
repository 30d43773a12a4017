"""Runs a Python program under the recorder, in the program's own interpreter.

``python launcher.py SPOOL OPTIONS script.py ARGUMENTS`` (or ``-m module``, or ``-c code``), where
OPTIONS are those of :class:`~gpuscope.recording.cupti.collector.Collector` as JSON. The file is
started by its path, because that interpreter need not have gpuscope; it needs nothing but the
standard library.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import sys
import types
from pathlib import Path
from typing import Any

REFUSED = 3
"""Exit code when nothing can be recorded; the program is not run then."""


def main(argv: list[str]) -> None:
    """Record what follows the first two words of `argv`."""
    # With -P or -I the folder of this file is not on the path; the program must not see it.
    here = Path(__file__).resolve()
    sys.path[:] = [path for path in sys.path if path != str(here.parent)]
    sys.path.insert(0, str(here.parents[3]))
    from gpuscope.errors import GpuscopeError
    from gpuscope.recording.cupti import collector, library
    from gpuscope.recording.cupti.spool import Spool

    del sys.path[0]
    spool, options, program = Spool(Path(argv[0])), json.loads(argv[1]), argv[2:]
    sys.argv = program[1:] if program[0] in {"-c", "-m"} else program
    try:
        recorder = collector.Collector(spool, library.Library(library.find()), **options)
        collector.attach_nvtx(recorder)
        recorder.start()
    except GpuscopeError as error:
        spool.write_problem(str(error))
        sys.exit(REFUSED)
    # Registered first, so it comes last: after the program's threads and its own handlers.
    atexit.register(recorder.stop)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
    _run(program)
    library.wait_for_gpu()


def _exit(number: int, _frame: types.FrameType | None) -> None:
    sys.exit(128 + number)


def _run(program: list[str]) -> None:
    """Run the program as the interpreter would have."""
    kind = program[0]
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    main_module = types.ModuleType("__main__")
    namespace: dict[str, Any] = main_module.__dict__
    source: str | bytes
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *program[2:]]
        source, name = program[1], "<string>"
    else:
        path = Path(kind)
        if path.is_dir():
            runpy.run_path(kind, run_name="__main__")
            return
        sys.path.insert(0, str(path.resolve().parent))
        try:
            source, name = path.read_bytes(), kind
        except OSError as error:
            sys.exit(f"{sys.executable}: can't open file {kind!r}: {error.strerror}")
        namespace["__file__"] = kind
    namespace["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    exec(compile(source, name, "exec", dont_inherit=True), namespace)


if __name__ == "__main__":
    main(sys.argv[1:])
