"""Fixtures that make the planted tasks importable in spawned workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from conformance.run import signals
from tests.run.process_tree import PLANTED


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Spawned workers have this process's path."""
    sys.path.insert(0, str(PLANTED))
    yield
    sys.path.remove(str(PLANTED))


@pytest.fixture(autouse=True)
def asked_for_nothing() -> Iterator[None]:
    """Clear a stop requested by a test; otherwise the next test's pool would react to it."""
    yield
    with signals.deferred():
        pass
