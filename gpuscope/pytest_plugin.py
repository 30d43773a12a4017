"""A pytest plugin: tests on the overlap of the code under test.

::

    def test_step(gpuscope_trace):
        train_step()                                    # an NVTX range `step` in it
        assert gpuscope_trace("step").hidden("h2d", by="kernel") > 0.6

The fixture first runs the test in a process of its own under the recorder, up to its first call of
`gpuscope_trace`, and then for good; there the call returns the figures of what was recorded. Where
there is no GPU or no recorder the test is skipped, with the reason. Everything heavy is imported
when the fixture is used.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpuscope.gates.asking import Figures

RECORDED = "GPUSCOPE_PYTEST_RECORDED"
"""Environment variable of the recorded run: the file to make when the test asks for its trace."""
_TAIL_LINES = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("gpuscope", "overlap on the GPU")
    group.addoption(
        "--gpuscope-out", metavar="DIR", help="keep the recorded runs here, a folder a test"
    )
    group.addoption(
        "--gpuscope-args",
        metavar="ARGS",
        default="",
        help="more arguments for the recorded run's pytest: --gpuscope-args='--run-slow'",
    )
    group.addoption(
        "--gpuscope-require",
        action="store_true",
        help="fail, instead of skipping, where nothing can be recorded",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker."""
    config.addinivalue_line(
        "markers",
        "gpuscope(trace=None, command=None, attribute=None): what `gpuscope_trace` asks: a trace "
        "or run folder beside the test, or a command to record instead of the test",
    )


@pytest.fixture
def gpuscope_trace(request: pytest.FixtureRequest) -> Callable[..., Figures]:
    """Return a function that gives the figures of a range: ``gpuscope_trace("step")``.

    It takes the name of a range, or ``path=``, or neither for the whole trace, and ``process=``,
    ``rank=`` and ``device=`` where several have it.
    """
    reached = os.environ.get(RECORDED)
    if reached is not None:
        return _stop_here(Path(reached))
    marker = request.node.get_closest_marker("gpuscope")
    wanted = dict(marker.kwargs) if marker else {}
    unknown = sorted(set(wanted) - {"trace", "command", "attribute"})
    if unknown or (marker and marker.args):
        pytest.fail("the marker gpuscope takes trace=, command= and attribute= only", pytrace=False)
    if wanted.get("trace") is not None:
        path = request.path.parent / wanted["trace"]
    else:
        path = _record(request, wanted.get("command"))
    from gpuscope import api

    return api.asker([path], attribute=wanted.get("attribute"))


def _stop_here(reached: Path) -> Callable[..., Any]:
    """Return what ends the recorded run: the rest of the test wants its trace."""
    import contextlib
    import ctypes

    def stop(*args: object, **kwargs: object) -> None:
        # What is still to run on the current GPU must be recorded too.
        with contextlib.suppress(OSError):
            ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
        reached.touch()
        pytest.skip("recorded up to here")

    return stop


def _record(request: pytest.FixtureRequest, command: Sequence[str] | None) -> Path:
    """Record the test, or a command, and return the run's folder."""
    from gpuscope.errors import MissingError
    from gpuscope.recording import machine, process

    if not machine.graphics().gpus:
        _give_up(request.config, "there is no NVIDIA GPU, or its driver does not answer")
    folder = _folder(request)
    reached = folder.with_name(f"{folder.name}.reached")
    argv = [sys.executable, "-m", "gpuscope", "run", "--force", "--out", str(folder), "--"]
    env = {**os.environ}
    if command is None:
        argv += _itself(request)
        env[RECORDED] = str(reached)
        env.pop("PYTEST_XDIST_WORKER", None)
    else:
        argv += [str(word) for word in command]
    lines: list[str] = []
    ended = process.run(
        argv, on_line=lambda line: lines.append(line.text), env=env, quiet_input=True
    )
    if ended.interrupted:
        raise KeyboardInterrupt
    what = shlex.join(argv[argv.index("--") + 1 :])
    if ended.code == MissingError.exit_code:
        _give_up(request.config, lines[-1].removeprefix("gpuscope: "))
    if command is None and not reached.exists():
        _fail("the recorded run of the test ended before it asked for its trace", what, lines)
    if ended.code != 0:
        _fail(f"recording ended with exit code {ended.code}", what, lines)
    reached.unlink(missing_ok=True)
    return folder


def _give_up(config: pytest.Config, reason: str) -> None:
    if config.getoption("--gpuscope-require"):
        pytest.fail(f"nothing can be recorded: {reason}", pytrace=False)
    pytest.skip(f"nothing can be recorded: {reason}")


def _fail(problem: str, what: str, lines: Sequence[str]) -> None:
    tail = "\n".join(lines[-_TAIL_LINES:])
    pytest.fail(f"{problem}: {what}\n{tail}", pytrace=False)


def _folder(request: pytest.FixtureRequest) -> Path:
    out = request.config.getoption("--gpuscope-out")
    if out is None:
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        return factory.mktemp("gpuscope") / "run"
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in request.node.nodeid)
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _itself(request: pytest.FixtureRequest) -> list[str]:
    """Return the command that runs this test alone, with the options of this session's plugins."""
    config = request.config
    argv = [sys.executable, "-m", "pytest", f"{config.rootpath}/{request.node.nodeid}"]
    argv += [f"--rootdir={config.rootpath}", "-p", "no:cacheprovider", "-rN", "--no-header"]
    argv += ["-m", "", "-k", ""]  # this session has chosen the test, whatever addopts choose
    if config.inipath is not None:
        argv += ["-c", str(config.inipath)]
    plugins = config.pluginmanager
    # By entry point or by module: under another name it would be registered twice.
    argv += ["-p", str(plugins.get_name(sys.modules[__name__]))]
    if plugins.has_plugin("xdist"):
        argv.append("-n0")
    if plugins.has_plugin("_cov") or plugins.has_plugin("pytest_cov"):
        argv.append("--no-cov")
    return argv + shlex.split(config.getoption("--gpuscope-args"))
