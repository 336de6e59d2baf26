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
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engine.facts import TargetFacts
from conformance.record.errors import TargetError
from conformance.record.measurements import COMPILED, NOT_COMPILED, PARTLY
from conformance.standalone.input_layout import lay_out
from conformance.standalone.moving import copied_to_host, map_tensors, rebuild, storage_key, whole_storage

__all__ = ["Capture", "Target", "TargetFacts", "TransformingTarget"]


class Target:
    """A device or transform under test. Subclass it, set `name`, `device` and `facts`, and override what differs.

    `argument` is the text behind the colon in the target's spec (`device:cuda` -> `cuda`), or the empty string."""

    name: str
    device: torch.device = torch.device("cpu")
    facts: TargetFacts = TargetFacts()

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target {self.name!r} takes no argument, but got {argument!r}: write just {self.name!r}")
        self.spec = self.name

    def prepare(self) -> None:
        """Import and register the device's modules; called before `torch.testing._internal` is imported. Raises
        TargetError if the device is not available."""

    def send(self, tree: Any) -> Any:
        """Return the tree with every CPU tensor on the device, with the same layout, aliasing and `requires_grad`.
        Raises LayoutUnavailable."""
        return rebuild(tree, self.upload, self.lay_out)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d CPU tensors to the device, each into a new storage."""
        return [flat.clone() if self.device.type == "cpu" else flat.to(self.device) for flat in flats]

    def lay_out(self, flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
        """Return a tensor on the memory of the device tensor `flat` with the geometry of the CPU tensor `like`. `alone`
        says that no other tensor uses that memory."""
        return lay_out(flat, like, self.facts.lacks, alone)

    def fetch(self, tree: Any) -> Any:
        """Return the tree on the CPU. Each storage is copied once and whole, all in one call of `download`. If storages
        are not exposed or cannot be read whole, each tensor is copied separately."""
        if not self.facts.reads_storages:
            return map_tensors(tree, lambda tensor: tensor.detach().cpu())
        return rebuild(tree, functools.partial(copy_to_host, self), flatten=self.flatten)

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d device tensors, which each cover a whole storage, to the CPU. A lazy device computes all of
        them in one schedule."""
        return copied_to_host(flats)

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a 1-d tensor over the whole storage of a device tensor."""
        return whole_storage(tensor, by_set="set_" not in self.facts.lacks)

    def key(self, tensor: torch.Tensor) -> int:
        """Return a key that is equal for tensors known to share a storage."""
        return storage_key(tensor) if self.facts.exposes_storages else id(tensor)

    def synchronize(self) -> None:
        """Wait until the device has run all earlier calls."""
        wait_for(self.device)

    def reset_state(self) -> None:
        """Forget state that earlier subjects left in the device, if kernels of later subjects depend on it. Called
        before each subject."""

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Return a context around all work on the target, moves and observations included. If loading the device pushes
        modes permanently, activate them here, so that torch CPU does not run under them."""
        return contextlib.nullcontext()

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Return a context around each step of a subject, without the moves: for a mode or a planted fault."""
        return contextlib.nullcontext()

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


def copy_to_host(target: Target, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy dense 1-d tensors to the CPU, those of the target's device in one call of `download`."""
    own = iter(target.download([flat for flat in flats if flat.device.type == target.device.type]))
    return [next(own) if flat.device.type == target.device.type else copied_to_host([flat])[0] for flat in flats]


@functools.cache
def can_wait_for(device: torch.device) -> bool:
    """Whether torch can wait for the device, which the first call tries."""
    try:
        torch.accelerator.synchronize(device)
    except Exception:  # a device without streams, or no accelerator of torch's
        return False
    return True


def wait_for(device: torch.device) -> None:
    """Wait until the device has run all earlier calls. If torch cannot wait for it, fetch a value. The first call may
    hide the error of an earlier one."""
    if device.type == "cpu":
        return
    if can_wait_for(device):
        torch.accelerator.synchronize(device)
    else:
        torch.zeros(1, device=device).cpu()


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
