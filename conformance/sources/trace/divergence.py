"""A free-running comparison: the device's run, torch CPU's run and a run in float64 of the same calls, side by side.

Defines `Divergence`. Each storage of the device has two shadows, with the content that torch CPU would have computed
from the start, in the dtypes of the script and in float64. A call of the device is also made on both shadows. Views
share the shadows of their storage, so writes reach them as they do on the device. Control flow, random numbers and
content from outside the device are the device's on all three sides.

The two runs part at the first tensor whose error against float64 exceeds the bound for rounding. The bound is `AS_GOOD`
times the error of torch CPU's own run in this tensor, plus the tolerance of the dtype. The error of torch CPU may be
small by chance. So the errors of the tensors that it comes from count, too, up to `INHERITED` units in the last place.
Errors are norms relative to the norm of the right tensor. The judge of single calls decides the cause: if an operator
was wrong before, the cause is this fault, else rounding that later calls amplify.

A saved run, of another machine, takes part as a further run. Its tensors are those of the calls with the same operator,
line and number, and the same bound holds for their errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.engine.executor import Execution
from conformance.engine.rounding import AS_GOOD, relative_error
from conformance.engine.target import Target
from conformance.program.float64 import widened_leaf
from conformance.record.result import counted
from conformance.sources.trace.call import RESULT, TracedCall
from conformance.sources.trace.faults import FaultyOperator
from conformance.sources.trace.saved_run import SavedRun
from conformance.sources.trace.source_lines import Site, SourceLine
from conformance.standalone.moving import leaves, map_leaves, storage_key, whole_storage
from conformance.standalone.observation import Observation, names_of
from conformance.standalone.oracles import tolerance_of
from conformance.standalone.rounding import widened

INHERITED = 64
"""Largest error that a tensor inherits, in units of the dtype's last place. A gradient that is 0 but for rounding has
an infinite relative error, which must not excuse the parameters that an optimizer computes from it."""

RANDOM = "the runs draw different random numbers: draw them on the CPU, and move them"
OTHER_DATA = "the runs start from different data"
OTHER_RUN = (
    "the saved run is further off: an operator is wrong there, which its own trace names, or its data are others"
)
"""Why a saved run parts."""

PURGED = 1000
"""Interval, in calls, at which the shadows of freed storages are removed."""


@dataclass
class ShadowStorage:
    """The content of a storage in the two other runs, as 1-d tensors. `bound` is the largest relative error of torch
    CPU's run on the way to this content, at most `INHERITED` units."""

    storage: StorageWeakRef
    narrow: torch.Tensor
    wide: torch.Tensor
    bound: float = 0.0

    @classmethod
    def of(cls, tensor: torch.Tensor, copy: torch.Tensor) -> ShadowStorage:
        """Return the shadow of a tensor's storage with the content of a copy."""
        flat = whole_storage(copy).clone()
        return cls(StorageWeakRef(tensor.untyped_storage()), flat, flat.to(widened(flat.dtype), copy=True))


@dataclass(frozen=True)
class Parting:
    """The first tensor that differs by more than rounding explains: the call, and the relative errors against float64.
    `fault` is the first wrong operator up to this call; None if the cause is rounding. `saved` is the error of the
    saved run, and `reason` says why that run is the one that parts; empty if it is not."""

    name: str
    where: str
    place: SourceLine
    number: int
    device: float
    cpu: float
    fault: FaultyOperator | None
    saved: float | None = None
    reason: str = ""

    @property
    def cause(self) -> str:
        """Why the runs part."""
        if self.reason:
            return self.reason
        if self.fault is None:
            return "no operator was wrong up to this call: rounding errors that the calls amplify"
        return f"a fault: {self.fault.name}, {self.fault.place}, is the first wrong operator of the run"

    def lines(self) -> Iterable[str]:
        """Yield the sentences about the divergence."""
        at = f"{self.name}, {self.place}: {self.place.code}".removesuffix(": ")
        yield f"divergence: the runs part at call {self.number}, {at}"
        errors = f"{self.device:.2g} on the device and {self.cpu:.2g} on torch CPU"
        saved = "" if self.saved is None else f", {self.saved:.2g} in the saved run"
        yield f"  {self.where} has the relative error {errors}{saved}"
        yield f"  {self.cause}"


class Divergence:
    """The shadows of a run, and the place where the runs part."""

    def __init__(self, saved: SavedRun | None = None) -> None:
        self.saved = saved
        self.shadows: dict[int, ShadowStorage] = {}
        self.number = 0
        self.parting: Parting | None = None

    def lines(self) -> Iterable[str]:
        """Yield the sentences about the divergence."""
        if self.parting is None:
            yield f"divergence: none in {self.number:,} calls; rounding explains all differences from torch CPU's run"
        else:
            yield from self.parting.lines()
        if self.saved is not None:
            about = f"{self.saved.path}, a run on {self.saved.facts['device']}"
            yield f"  compared with {about}: {counted(self.saved.compared, 'result')} of calls that both runs made"

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remove the shadows of tensors that changed outside of the traced calls. They start again from the device's
        content."""
        for tensor in tensors:
            self.shadows.pop(storage_key(tensor), None)

    def follow(self, call: TracedCall, run: Execution, site: Site, faults: Sequence[FaultyOperator]) -> None:
        """Make a call of the device on the shadows, and compare its results. `run` is the call on the device."""
        self.number += 1
        if self.parting is not None:
            return
        target, got, there = site.target, run.last, call.tensors_of(run)
        pairs = list(zip(leaves(run.inputs), leaves((call.args, call.kwargs)), strict=True))
        mine = {id(tensor): self._shadow(tensor, copy) for tensor, copy in pairs if _is_on(tensor, target)}
        bound = max((shadow.bound for shadow in mine.values()), default=0.0)
        if not call.is_view:
            sides = None if call.free_content or call.is_collective else self._run(call, pairs, mine)
            before, changed = call.tensors, {name: there[name] for name in call.names_of_changes(got)}
            results = {name: tensor for name, tensor in changed.items() if name not in before}
            self._keep(results, sides, got, target, mine)
            if sides is None:
                self._follow_device(changed, got)
            if sides is not None or (self.saved is not None and (call.draws or not call.free_content)):
                reason = RANDOM if call.draws else OTHER_RUN if mine else OTHER_DATA
                self._compare(call.name, changed, got, bound, site, faults, reason)
        if self.number % PURGED == 0:
            self.shadows = {key: shadow for key, shadow in self.shadows.items() if not shadow.storage.expired()}

    def _shadow(self, tensor: torch.Tensor, copy: torch.Tensor) -> ShadowStorage:
        """Return the shadow of a tensor's storage; a new one has the device's content before the call."""
        key = storage_key(tensor)
        known = self.shadows.get(key)
        if known is not None and not known.storage.expired() and known.narrow.dtype is tensor.dtype:
            return known
        self.shadows[key] = ShadowStorage.of(tensor, copy.detach())
        return self.shadows[key]

    def _run(
        self, call: TracedCall, pairs: Sequence[tuple[Any, Any]], mine: Mapping[int, ShadowStorage]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Make the call on both shadows, and return the results by name; None if torch CPU cannot make it."""
        sides = []
        try:
            for wide in (False, True):
                values = iter(
                    _over(mine[id(one)], copy, wide) if id(one) in mine else widened_leaf(copy) if wide else copy
                    for one, copy in pairs
                )
                args, kwargs = map_leaves((call.args, call.kwargs), lambda leaf: next(values))  # noqa: B023
                sides.append(names_of(call.reference(*args, **kwargs), RESULT))
        except Exception:  # torch CPU may have no kernel for float64; the results start again from the device's content
            return None
        return sides[0], sides[1]

    def _keep(
        self, results: Mapping[str, torch.Tensor], sides: tuple[dict[str, Any], dict[str, Any]] | None,
        got: Observation, target: Target, mine: Mapping[int, ShadowStorage],
    ) -> None:  # fmt: skip
        """Give the new storages of the results their shadows."""
        known = {id(shadow) for shadow in mine.values()}
        for name, result in results.items():
            key = storage_key(result)
            if not _is_on(result, target) or (key in self.shadows and id(self.shadows[key]) in known):
                continue
            shadow = ShadowStorage.of(result, got.tensors[name].value)
            if sides is not None:
                for side, wide in zip(sides, (False, True)):
                    if isinstance(side.get(name), torch.Tensor):
                        _over(shadow, got.tensors[name].value, wide).copy_(side[name])
            self.shadows[key] = shadow

    def _follow_device(self, written: Mapping[str, torch.Tensor], got: Observation) -> None:
        """Give the shadows of written arguments the device's content."""
        for name, one in written.items():
            shadow, seen = self.shadows.get(storage_key(one)), got.tensors.get(name)
            for wide in (False, True) if shadow is not None and seen is not None else ():
                _over(shadow, seen.value, wide).copy_(seen.value)  # type: ignore[arg-type,union-attr]

    def _compare(
        self, operator: str, there: Mapping[str, torch.Tensor], got: Observation, bound: float, site: Site,
        faults: Sequence[FaultyOperator], reason: str,
    ) -> None:  # fmt: skip
        """Compare results and written arguments with the shadows, and raise the bounds of the shadows. `reason` says
        why the saved run parts, if it does."""
        for name, one in there.items():
            shadow, seen = self.shadows.get(storage_key(one)), got.tensors.get(name)
            if shadow is None or seen is None or not one.numel():
                continue
            narrow, right = (_over(shadow, seen.value, wide) for wide in (False, True))
            (_, cpu), (off, device) = (relative_error(side, right) for side in (narrow, seen.value))
            is_rounded = one.is_floating_point() or one.is_complex()
            rtol, atol = tolerance_of(one.dtype) if is_rounded else (0.0, 0.0)
            largest = INHERITED * torch.finfo(one.dtype).eps if is_rounded else 0.0
            shadow.bound = min(max(shadow.bound, bound, cpu), largest)
            most = AS_GOOD * max(cpu, shadow.bound) + rtol, atol * one.numel() ** 0.5
            other = None if self.saved is None else self.saved.tensor(name_in_run(operator, site, name), seen.value)
            there_off, saved = (0.0, None) if other is None else relative_error(other, right)
            fault = faults[0] if faults else None
            at = operator, name, site.place, self.number, device, cpu, fault, saved
            if device > most[0] and off > most[1]:
                self.parting = self.parting or Parting(*at)
            elif saved is not None and saved > most[0] and there_off > most[1]:
                self.parting = self.parting or Parting(*at, reason)


def name_in_run(operator: str, site: Site, tensor: str) -> str:
    """Return the name of a call's tensor in a saved run."""
    return f"{site.phase} {operator} {site.place} #{site.number} {tensor}"


def _is_on(value: Any, target: Target) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == target.device.type


def _over(shadow: ShadowStorage, like: torch.Tensor, wide: bool) -> torch.Tensor:
    """Return a tensor on a shadow with the geometry of another tensor."""
    flat = shadow.wide if wide else shadow.narrow
    view = torch.empty(0, dtype=flat.dtype)
    return view.set_(flat.untyped_storage(), like.storage_offset(), like.size(), like.stride())
