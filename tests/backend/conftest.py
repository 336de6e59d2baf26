"""A fixture shared by the tests of the call queue and of replayed steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.backend.lazy import calls, steps


@pytest.fixture
def queue() -> Iterator[None]:
    """Enable the queue of calls regardless of the environment, and forget all steps."""
    before = calls.queue_calls(True)
    steps.reset_state()
    yield
    calls.queue_calls(before)
    steps.reset_state()
