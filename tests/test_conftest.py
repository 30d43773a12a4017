"""The suite's own rules: which tests skip, and that CI lets none skip unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_runs():
    pass

def test_skips():
    pytest.skip("no reason at all")

@pytest.mark.gpu
def test_gpu():
    pytest.skip("no GPU")

@pytest.mark.multigpu
def test_multigpu():
    pytest.skip("one GPU")

@pytest.mark.xfail(reason="known", strict=True)
def test_known():
    raise RuntimeError
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with this project's conftest, a test that skips, and one whose module does."""
    monkeypatch.delenv("GPUSCOPE_REQUIRE_ALL", raising=False)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyprojecttoml(
        '[tool.pytest]\nmarkers = ["gpu: one", "multigpu: two"]\naddopts = ["-p", "no:dash"]'
    )
    pytester.makepyfile(
        test_suite=SUITE, test_absent='import pytest\npytest.importorskip("absent")'
    )
    return pytester


def test_skips_are_skips_on_a_machine_that_lacks_things(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess().assert_outcomes(passed=1, skipped=4, xfailed=1)


def test_ci_fails_every_skip_but_that_of_a_gpu_test(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSCOPE_REQUIRE_ALL", "1")

    result = suite.runpytest_subprocess("--continue-on-collection-errors")

    result.assert_outcomes(passed=1, failed=1, errors=1, skipped=2, xfailed=1)
    result.stdout.fnmatch_lines(["*no reason at all (GPUSCOPE_REQUIRE_ALL*"])


def test_multigpu_implies_gpu(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("-m", "gpu").assert_outcomes(skipped=2 + 1, deselected=3)
