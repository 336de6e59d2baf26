"""A target whose every run starts with a delay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from conformance.engine.target import Target


class SlowTarget(Target):
    """torch CPU with a delay of five seconds."""

    name = "slow"

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        time.sleep(5)
        yield
