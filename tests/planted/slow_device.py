"""A target whose first kernel of each kind takes its time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from conformance.core.target import Target


class SlowTarget(Target):
    """torch CPU, five seconds late."""

    name = "slow"

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        time.sleep(5)
        yield
