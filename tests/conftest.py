"""Settings for every test: Hypothesis without a deadline, and a skip where `tiny` cannot run.

A kernel that is compiled for the first time makes one example a hundred times slower than the next. Hypothesis's
deadline would therefore report the compiler. pytest's time limit for each test applies instead.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from conformance.record import versions
from tests.patience import call_at_limit
from tests.run_script import Standalone

settings.register_profile("conformance", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("conformance")


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Runner of scripts in a process that has imported only torch."""
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def sigint_heeded() -> Iterator[None]:
    """Python's own handler of SIGINT, for this process and those that the test starts. Under `nohup` and in the
    background of a script, SIGINT is ignored, and processes inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Let the time limit of a test count seconds of a quiet machine."""
    item.cancel_timeout = call_at_limit(settings.timeout, lambda: pytest_timeout.timeout_timer(item, settings))
    return True


def pytest_collection_finish() -> None:
    """Exclude the modules imported so far from garbage collection: torch alone has a million objects to traverse."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of the device if torch is too old for it or tinygrad is missing."""
    if item.get_closest_marker("tiny") is None:
        return
    if not versions.holds(">=2.13"):
        pytest.skip(f"tiny needs torch 2.13 or newer, and this is {versions.installed()}")
    if find_spec("tinygrad") is None:
        pytest.skip("tiny needs tinygrad: pip install 'tinygrad>=0.14,<0.15' ziglang")
