"""What tests of the queue of calls and of replayed steps share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.backend.lazy import calls, steps


@pytest.fixture
def queue() -> Iterator[None]:
    """Calls wait, whatever the environment says, and no step is known."""
    before = calls.queue_calls(True)
    steps.reset_state()
    yield
    calls.queue_calls(before)
    steps.reset_state()
