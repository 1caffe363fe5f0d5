"""For all tests: on a machine that lacks something a test says by name that it did not run; in CI that is a failure."""

import os
from collections.abc import Generator

import pytest

LONG_S = 1800
"""How long a test of `make test-long` may take; others have what pyproject.toml says."""


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
