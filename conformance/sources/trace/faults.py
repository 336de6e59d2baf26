"""Wrong operators of a trace: grouped by operator, phase and line, and ranked by their effect on the loss.

Defines `FaultyOperator`, `Faults` and the rule of the ranking. Let e be the error of a result, the device's answer
minus torch CPU's, and g the gradient of the loss that flows into this result in the backward pass. To first order the
error changes the loss by <g, e>. An optimizer writes a parameter p with the error e; the loss then changes by <p.grad,
e>. An error in the backward pass changes no loss, but a gradient; its rank is the relative error of the result. The
same holds for a forward call into which no gradient flows.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from conformance.engine.executor import Execution
from conformance.engine.target import Target
from conformance.sources.trace.call import VALUES, NodeCall, TracedCall
from conformance.sources.trace.source_lines import BACKWARD, PHASES, Site, SourceLine
from conformance.standalone.oracles import Mismatch
from conformance.standalone.rounding import subject


@dataclass
class FaultyOperator:
    """A wrong operator at one line in one phase, over all its wrong calls.

    `mismatch` is the difference of the first wrong call. `error` is the largest relative error of a result, infinite
    for a wrong fact other than values. `effect` is the largest change of the loss, infinite for nan, None if no
    gradient flows into a wrong result. `call` is the wrong call with the fewest input elements. `group` is the compiled
    graph that contains the operator, and `compiler` its backend, if any. `file` is the
    saved script, and `cut` says that a limit of time ended the search for a smaller one."""

    name: str
    phase: str
    place: SourceLine
    mismatch: Mismatch
    call: TracedCall | NodeCall | None
    target: Target
    group: str = ""
    compiler: str = ""
    wrong: int = 0
    error: float = 0.0
    effect: float | None = None
    script: str = ""
    file: Path | None = None
    cut: bool = False

    def rank(self, loss: float | None) -> tuple[int, float]:
        """Return the sort key, the smallest first: errors and wrong metadata, then the effect on the loss, then the
        relative error."""
        if math.isinf(self.error) and self.effect is None:
            return 0, 0.0
        if self.effect is not None:
            return 1, -self.share(loss)
        return 2, -self.error

    def share(self, loss: float | None) -> float:
        """Return the effect as a part of the loss; the effect itself if the loss is unknown or 0."""
        assert self.effect is not None
        return self.effect / abs(loss) if loss else self.effect

    def described(self, loss: float | None) -> str:
        """Return the size of the error in words."""
        if self.effect is not None:
            part = f" ({self.share(loss):.2g} of it)" if loss else ""
            return f"changes the loss by {self.effect:.2g}{part}"
        return "" if math.isinf(self.error) else f"relative error {self.error:.2g}"


@dataclass
class Faults:
    """The faults of a trace. `loss` is the value of the last scalar root of a backward pass."""

    by_key: dict[tuple[str, str, SourceLine], FaultyOperator] = field(default_factory=dict)
    loss: float | None = None
    _pending: list[tuple[weakref.ref[torch.Tensor], Callable[[torch.Tensor], None]]] = field(default_factory=list)

    @property
    def in_order(self) -> list[FaultyOperator]:
        """The faults, the earliest first."""
        return [*self.by_key.values()]

    def ranked(self, phase: str) -> list[FaultyOperator]:
        """Return the faults of a phase, the worst first."""
        return sorted(
            (fault for fault in self.by_key.values() if fault.phase == phase), key=lambda fault: fault.rank(self.loss)
        )

    def all(self) -> list[FaultyOperator]:
        """Return all faults, by phase, the worst of each first."""
        return [fault for phase in PHASES for fault in self.ranked(phase)]

    def add(self, call: TracedCall, site: Site, mismatch: Mismatch) -> FaultyOperator:
        """Add a wrong call and return its fault."""
        key = call.name, site.phase, site.place
        fault = self.by_key.setdefault(key, FaultyOperator(*key, mismatch, call, site.target))
        fault.wrong += 1
        if fault.call is None or _size(call) < _size(fault.call):
            fault.call = call
        return fault

    def insert(self, fault: FaultyOperator) -> None:
        """Add a fault that is complete, or join it with that of the same operator, phase and line."""
        known = self.by_key.setdefault((fault.name, fault.phase, fault.place), fault)
        if known is not fault:
            known.wrong = max(known.wrong, fault.wrong)
            known.error = max(known.error, fault.error)

    def measure(
        self, fault: FaultyOperator, mismatches: Iterable[Mismatch], want: Execution, got: Execution,
        there: Mapping[str, torch.Tensor],
    ) -> None:  # fmt: skip
        """Note the error of each wrong tensor, and prepare to measure its effect on the loss. `there` are the tensors
        of the call on the device, by name."""
        for mismatch in mismatches:
            right, wrong = (subject(mismatch, side.last) for side in (want, got))
            if mismatch.oracle not in VALUES or right is None or wrong is None or right.shape != wrong.shape:
                fault.error = math.inf
                continue
            kind = torch.complex128 if right.is_complex() or wrong.is_complex() else torch.float64
            error = wrong.to(kind) - right.to(kind)
            norm = float(error.norm())
            relative = norm / float(right.to(kind).norm()) if norm else 0.0
            fault.error = max(fault.error, math.inf if math.isnan(relative) else relative)
            tensor = there.get(mismatch.where)
            if tensor is None or tensor.shape != error.shape or fault.phase == BACKWARD:
                continue
            if tensor.is_leaf and tensor.grad is not None:
                note(fault, error, tensor.grad)
            else:
                self._pending.append((weakref.ref(tensor), lambda grad, error=error: note(fault, error, grad)))  # type: ignore[misc]

    def attach(self, wrap: Callable[[Callable[[torch.Tensor], None]], Callable[[torch.Tensor], None]]) -> None:
        """Register the hooks of wrong results. Autograd builds its node only after the call, so this runs before the
        next call. `wrap` turns a function into one that runs outside of the trace."""
        pending, self._pending = self._pending, []
        for tensor, hook in pending:
            there = tensor()
            if there is not None and there.requires_grad:
                there.register_hook(wrap(hook))


def _size(call: TracedCall | NodeCall) -> int:
    """Return the number of elements of the inputs."""
    return sum(tensor.numel() for tensor in call.tensors.values())


def note(fault: FaultyOperator, error: torch.Tensor, grad: torch.Tensor) -> None:
    """Note the change of the loss that an error causes, from the gradient of the loss in its tensor."""
    flow = grad.detach().cpu().to(error.dtype).resolve_conj()
    effect = abs(float((flow * error).real.sum() if error.is_complex() else (flow * error).sum()))
    fault.effect = max(fault.effect or 0.0, math.inf if math.isnan(effect) else effect)
