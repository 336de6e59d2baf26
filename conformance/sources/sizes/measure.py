"""One case on both sides, in one process and in this order: torch CPU, the answer in float64, and the target.

Defines `measure`. Tensors of one side must not be alive while the other's memory is measured. Inputs are therefore
created anew for each side, and only the `Answer` summaries of torch CPU's answers remain.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.executor import Executor, OneCall, Transform, Watch, no_watch
from conformance.engine.target import Target
from conformance.record.footprint import allowed
from conformance.sources.accuracy.outcomes import raised_on_cpu, require_answer, short_of_memory
from conformance.sources.sizes.table import SizesCase, SizesRow
from conformance.standalone import sizes as calls
from conformance.standalone.observation import Observation
from conformance.standalone.sizes import Exact, MeasuredCall


@dataclass
class SizesSubject:
    """The executor's subject: a case's call on its inputs, observed by its costs and answers."""

    case: SizesCase
    exact: Exact
    side: MeasuredCall | None = None

    def inputs(self) -> tuple[dict[str, Any], set[int]]:
        """Create the inputs; no input stays on the CPU."""
        self.arguments = built(self.case.row, self.case.scale, torch.device("cpu"))[1]()
        return self.arguments, set()

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> OneCall:
        """Begin the call on inputs that lie on the target, and release the inputs on the CPU. The call also reads the
        answers, so nothing is left to observe."""
        self.arguments.clear()
        program = built(self.case.row, self.case.scale, target.device)[0]
        program = transform(program) if transform else program
        target.synchronize()  # the first wait may hide an error, which must not be the call's own

        def call() -> None:
            backward = self.case.variant == "backward"
            self.side = calls.measured(program, inputs, backward, self.exact, target.synchronize)

        return OneCall(self.case.id, inputs, call, lambda result, on: Observation())


def built(row: SizesRow, scale: str, device: torch.device) -> tuple[Callable[..., Any], Callable[[], dict[str, Any]]]:
    """Return the row's program for this device, and a function that creates its inputs on the CPU."""
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "pattern": calls.pattern, "device": device}
    names |= row.sizes(scale)
    exec(f"{row.program()}\n\n{row.input_lines()}", names)  # noqa: S102 - text of this package's own table
    return names["program"], names["inputs"]


def on_cpu(case: SizesCase) -> tuple[MeasuredCall, Exact]:
    """Return torch CPU's side, and its rounded answers in float64. Raises Unmeasured."""
    program, inputs = built(case.row, case.scale, torch.device("cpu"))
    backward = case.variant == "backward"
    try:
        exact = {} if case.row.exact else calls.exact_answers(program, inputs(), backward)
        return calls.measured(program, inputs(), backward, exact), exact
    except Exception as error:
        raise raised_on_cpu(error) from None


def measure(case: SizesCase, target: Target, watch: Watch = no_watch) -> tuple[MeasuredCall, MeasuredCall]:
    """Return torch CPU's side and the target's. Raises Unmeasured, Raises, and TargetError."""
    cpu, exact = on_cpu(case)
    gc.collect()
    short = short_of_memory(calls.resident("VmData") + cpu.inputs + allowed(cpu.held, cpu.peak))
    subject = SizesSubject(case, exact)
    execution = Executor(target).run(subject, watch=watch)
    require_answer(execution, short)
    assert subject.side is not None  # without an error the step has run
    return cpu, subject.side
