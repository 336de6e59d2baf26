"""Workers that are spawned by these tests find the planted tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from conformance.run import stop
from tests.run.process_tree import PLANTED


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Spawned workers have this process's path."""
    sys.path.insert(0, str(PLANTED))
    yield
    sys.path.remove(str(PLANTED))


@pytest.fixture(autouse=True)
def asked_for_nothing() -> Iterator[None]:
    """A stop that a test asked for is forgotten: the pool of the next one would stop at it."""
    yield
    with stop.deferred():
        pass
