"""`Target`, the device or transform under test: one small class, and one file per target in `targets/`.

A target moves tensors (`device`), transforms functions (`transform`), or interprets metadata. A wrong device, for
example, which is torch CPU, but gets every tensor negated:

    class Negative(Target):
        name = "negative"

        def upload(self, flats):
            return [-flat for flat in flats]

What it supports, measures and compares is data: `Target.facts`, the `TargetFacts` of `engine/facts.py`. Only the
executor runs anything on a target. This module does not depend on programs, OpInfo or reports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engine.facts import TargetFacts
from conformance.record.errors import TargetError
from conformance.record.measurements import COMPILED, NOT_COMPILED, PARTLY
from conformance.standalone.device import Device

__all__ = ["Capture", "Target", "TargetFacts", "TransformingTarget"]


class Target(Device):
    """A device or transform under test. Subclass it, set `name`, `device` and `facts`, and override what differs.

    `argument` is the text behind the colon in the target's spec (`device:cuda` -> `cuda`), or the empty string."""

    name: str
    facts: TargetFacts = TargetFacts()

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target {self.name!r} takes no argument, but got {argument!r}: write just {self.name!r}")
        self.spec = self.name

    def prepare(self) -> None:
        """Import and register the device's modules; called before `torch.testing._internal` is imported. Raises
        TargetError if the device is not available."""

    @property
    def missing(self) -> Collection[str]:
        """See `Device.missing`."""
        return self.facts.lacks

    @property
    def holds_values(self) -> bool:
        """See `Device.holds_values`."""
        return self.facts.shows_values

    def reset_state(self) -> None:
        """Forget state that earlier subjects left in the device, if kernels of later subjects depend on it. Called
        before each subject."""

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that is called in place of the subject's, if `facts.transforms_program`."""
        raise NotImplementedError(f"target {self.name!r} does not transform functions")

    def capture(self) -> contextlib.AbstractContextManager[Capture | None]:
        """Count what the compiler behind `transform` receives inside the block; yields None if that is unknown."""
        return contextlib.nullcontext()

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """Within a whole program, call a step that must raise, and return the exception, or "no error"."""
        try:
            step(*tensors)
        except Exception as error:
            return error
        return "no error"

    def saving_graphs(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that saves compiled graphs and loads its own, if `facts.saves_graphs`."""
        return contextlib.nullcontext()

    def is_like(self, spec: str) -> bool:
        """Whether this loaded target takes the path through PyTorch of a target of `facts.without_backend`."""
        return True

    def environment(self) -> dict[str, str]:
        """Facts about the target for a report: versions, compiler, renderer."""
        return {"torch": torch.__version__}

    def counters(self) -> Mapping[str, Any]:
        """Return the totals so far of the measures that the device counts, by name: a number, or a number by
        operator."""
        return {}

    def script(self) -> str:
        """Python lines that a standalone script needs before it may use the device as `DEVICE`."""
        return f"DEVICE = {str(self.device)!r}"


@dataclass
class Capture:
    """Input of a compiler inside a `Target.capture()` block: number of graphs, of ops in them, and of graph breaks.

    `lines` are the lines of the transformed function whose ops the compiler received, if the target reports them.
    `after` has the number of graphs after each step of the subject."""

    graphs: int = 0
    ops: int = 0
    breaks: int = 0
    lines: set[int] = field(default_factory=set)
    after: list[int] = field(default_factory=list)

    def counting(self, function: Callable[..., Any], reached: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
        """Return the function with its calls counted, those of which `reached` says that the transform ran them."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            inside = reached()
            self.graphs, self.ops = self.graphs + inside, self.ops + inside
            return function(*args, **kwargs)

        return counted

    @property
    def extent(self) -> str:
        """COMPILED, PARTLY or NOT_COMPILED."""
        return NOT_COMPILED if not self.ops else PARTLY if self.breaks else COMPILED


class TransformingTarget(Target):
    """A target that transforms functions, and counts in `_seen` the calls that the transform runs."""

    facts = TargetFacts(transforms_program=True)
    _seen = Capture()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count the calls inside the transform."""
        self._seen = Capture()
        yield self._seen
