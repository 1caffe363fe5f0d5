"""For all tests: they have a home of their own (`own_home.py`).

On a machine that lacks something a test says by name that it did not run; in CI that is a failure.

Ten thousand collected tests are 650,000 objects, and a full garbage collection that looks at all of them takes 0.4 s.
Every gateway that starts does one, so the collector is told to leave alone what was there before the first test.

Hypothesis fails tests for being slow, in drawing (1 s) or in an example (0.2 s): here it does not, machines are busy.
"""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from tests.own_home import remove_home

LONG_S = 1800
"""How long a test of `make test-long` may take; others have what pyproject.toml says."""
_FULL_COLLECTIONS = pytest.StashKey[int]()
"""How many there were when the collector was last told."""
settings.register_profile(
    "patient", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # its parent: in CI Hypothesis has chosen a profile of its own
settings.load_profile("patient")


def pytest_unconfigure() -> None:
    remove_home()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_known = hasattr(report, "wasxfail")  # it ran, and failed as it is said to
    if report.skipped and not is_known and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} did not run: {report.longrepr}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()  # what is made here stays
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A full collection may be that of a gateway, and when a gateway ends nothing is frozen any more. What the test
    before this one has left behind is young: it is collected first."""
    collections = gc.get_stats()[2]["collections"]
    if collections != item.config.stash.get(_FULL_COLLECTIONS, 0):
        gc.collect(1)
        gc.freeze()
        item.config.stash[_FULL_COLLECTIONS] = collections
