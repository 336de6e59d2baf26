"""Devices that build a kernel for each function and rank at its first call.

The build takes longer than the time limit of a program or a case. `Builds` is correct. `Hangs` hangs in the second call
of a kernel, `Stuck` in the first.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch.overrides import TorchFunctionMode, resolve_name

from conformance.engine.target import Target

BUILDING = 1.5
"""Build time of a kernel in seconds. Tests set a lower limit for a program or a case."""


class _Building(TorchFunctionMode):
    def __init__(self, stuck_at: int) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.stuck_at = stuck_at

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = (resolve_name(func) or "").rpartition(".")[2]
        if name in ("neg", "exp", "sin"):
            kernel = f"{name} {args[0].dim()}"
            self.calls[kernel] += 1
            time.sleep(1000 if self.calls[kernel] == self.stuck_at else BUILDING if self.calls[kernel] == 1 else 0)
        return func(*args, **(kwargs or {}))


class Builds(Target):
    name = "builds"
    stuck_at = 0

    def prepare(self) -> None:
        self.mode = _Building(self.stuck_at)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with self.mode:
            yield


class Hangs(Builds):
    name = "hangs"
    stuck_at = 2


class Stuck(Builds):
    name = "stuck"
    stuck_at = 1
