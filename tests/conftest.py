"""Settings for every test: Hypothesis without a clock, and no `tiny` where it cannot be.

A kernel that is compiled afresh makes one example a hundred times slower than the next, so Hypothesis's own deadline
would report the compiler; pytest's time limit for each test stands instead.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from conformance.core import versions
from tests.standalone import Standalone

settings.register_profile("conformance", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("conformance")


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Runs a script in a process that has imported torch alone."""
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def pytest_collection_finish() -> None:
    """The modules that are imported by now are no garbage, and there are a million objects of torch's to look at."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the device where the torch or the packages are not those that it runs on."""
    if item.get_closest_marker("tiny") is None:
        return
    if not versions.holds(">=2.13"):
        pytest.skip(f"tiny needs torch 2.13 or newer, and this is {versions.installed()}")
    if find_spec("tinygrad") is None:
        pytest.skip("tiny needs tinygrad: pip install 'tinygrad>=0.14,<0.15' ziglang")
