"""What all tests share: the marks for things a machine may lack, and fixtures of general use.

A test whose mark asks for something that is not here is skipped, with the reason. Where
GPUSCOPE_REQUIRE_ALL is set, as in CI, every skip is a failure but that of a `gpu` test.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

REQUIRE_ALL = bool(os.environ.get("GPUSCOPE_REQUIRE_ALL"))
GOLDEN = Path(__file__).parent / "golden"
FETCHED_NSYS = Path(__file__).parents[1] / ".tools" / "nsys" / "target-linux-x64" / "nsys"

# A slow machine is no failure of a property.
hypothesis.settings.register_profile("gpuscope", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("gpuscope")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden with what comes out now"
    )


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("multigpu"):
            item.add_marker(pytest.mark.gpu)
        # Chromium and nsys are programs of others, and on a busy machine they miss an event now
        # and then, or cut a report short: what fails once may try again, and the runs are counted.
        if item.get_closest_marker("browser") or item.get_closest_marker("nsys"):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, missing in MISSING.items():
        if item.get_closest_marker(mark) and (reason := missing()):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected = item.get_closest_marker("gpu") or hasattr(report, "wasxfail")
    if REQUIRE_ALL and report.skipped and not expected:
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRE_ALL and report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: {reason} (GPUSCOPE_REQUIRE_ALL allows no skip here)"


def _no_gpus(needed: int) -> str | None:
    count = _gpu_count()
    if count < needed:
        return f"needs {needed} NVIDIA GPU{'s' * (needed > 1)}, found {count}"
    return _not_importable("cupy")


@functools.cache
def _gpu_count() -> int:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def _no_nsys() -> str | None:
    return _not_importable("nvtx") if _find_nsys() else "nsys is missing: scripts/fetch_nsys.sh"


def _no_browser() -> str | None:
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            return f"{program} is missing: apt-get install chromium chromium-driver"
    return _not_importable("selenium")


@functools.cache
def _no_mpi() -> str | None:
    if not shutil.which("mpirun"):
        return "mpirun is missing: apt-get install openmpi-bin"
    tried = subprocess.run(["mpirun", "-n", "1", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        # Open MPI wants OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 from root.
        return f"mpirun starts no program here: {' '.join(tried.stderr.split())[:200]}"
    return _not_importable("mpi4py")


def _not_importable(package: str) -> str | None:
    return None if importlib.util.find_spec(package) else f"{package} is not installed"


MISSING: dict[str, Callable[[], str | None]] = {
    "gpu": functools.partial(_no_gpus, 1),
    "multigpu": functools.partial(_no_gpus, 2),
    "nsys": _no_nsys,
    "browser": _no_browser,
    "mpi": _no_mpi,
}
"""For each mark, what says why its tests cannot run here, or None where they can."""


@functools.cache
def _find_nsys() -> Path | None:
    """Find the nsys that gpuscope takes here, or else the one of scripts/fetch_nsys.sh."""
    from gpuscope.errors import MissingError
    from gpuscope.recording import nsys

    try:
        return nsys.find().path
    except MissingError:
        return FETCHED_NSYS if FETCHED_NSYS.exists() else None


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what a test caches out of the user's cache folder, and out of the next test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def nsys(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The nsys of the tests marked `nsys`; gpuscope takes it too."""
    found = _find_nsys()
    assert found is not None, "the test lacks the mark nsys"
    monkeypatch.setenv("NSYS", str(found))
    return found


@pytest.fixture
def chrome() -> Iterator[Chrome]:
    """A headless Chromium of 1440 × 900 for the tests marked `browser`."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (
        "--headless=new",
        "--no-sandbox",  # Chromium refuses its sandbox to root, whom CI runs as
        "--disable-dev-shm-usage",  # containers give /dev/shm 64 MB
        "--window-size=1440,900",
        "--force-device-scale-factor=1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in tests/golden: ``golden("streams.json", text)``.

    With --update-golden the file is written instead, to be looked at in the diff.
    """

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--update-golden"):
            file.write_text(text, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == text, f"{name} differs; see --update-golden"

    return check
