"""One case on both sides, in one process and in this order: torch CPU, the answer in float64, and the target.

Defines `measure`. Tensors of one side must not be alive while the other's memory is measured. Inputs are therefore
created anew for each side, and only the `Answer` summaries of torch CPU's answers remain.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from conformance.engine.executor import Executor, Watch, no_watch
from conformance.engine.loading import reference
from conformance.engine.target import Target
from conformance.program.execute import CPU, ProgramSubject
from conformance.program.model import Program
from conformance.program.steps.entry import Runner
from conformance.record.footprint import allowed
from conformance.sources.accuracy.measure import program_of
from conformance.sources.accuracy.outcomes import raised_on_cpu, require_answer, short_of_memory
from conformance.sources.sizes.table import SizesCase, SizesRow
from conformance.standalone import sizes as calls
from conformance.standalone.observation import Raised
from conformance.standalone.sizes import Exact, MeasuredCall


def program_of_case(case: SizesCase, exact: Exact) -> Program:
    """Return the program whose step makes the case's call, reads its answers, and returns the call's costs and answers.
    `exact` are the rounded answers in float64."""

    def call(runner: Runner, inputs: dict[str, Any]) -> MeasuredCall:
        function = runner.apply(built(case.row, case.scale, runner.device)[0])
        runner.settle()  # the first wait may hide an error, which must not be the call's own
        return calls.measured(function, inputs, case.variant == "backward", exact, runner.settle)

    return program_of(case, call, built(case.row, case.scale, CPU)[1])


def built(row: SizesRow, scale: str, device: torch.device) -> tuple[Callable[..., Any], Callable[[], dict[str, Any]]]:
    """Return the row's program for this device, and a function that creates its inputs on the CPU."""
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "pattern": calls.pattern, "device": device}
    names |= row.sizes(scale)
    exec(f"{row.program()}\n\n{row.input_lines()}", names)  # noqa: S102 - text of this package's own table
    return names["program"], names["inputs"]


def measure(case: SizesCase, target: Target, watch: Watch = no_watch) -> tuple[MeasuredCall, MeasuredCall]:
    """Return torch CPU's side and the target's. Raises Unmeasured, Raises, and TargetError."""
    cpu, exact = on_cpu(case)
    gc.collect()
    short = short_of_memory(calls.resident("VmData") + cpu.inputs + allowed(cpu.held, cpu.peak))
    execution = Executor(target).run(ProgramSubject(program_of_case(case, exact)), watch=watch)
    require_answer(execution, short)
    return cpu, execution.outcome


def on_cpu(case: SizesCase) -> tuple[MeasuredCall, Exact]:
    """Return torch CPU's side, and its rounded answers in float64. Raises Unmeasured."""
    exact: Exact = {}
    if not case.row.exact:
        function, inputs = built(case.row, case.scale, CPU)
        try:
            exact = calls.exact_answers(function, inputs(), case.variant == "backward")
        except Exception as error:
            raise raised_on_cpu(Raised.of(error)) from None
    run = Executor(reference()).run(ProgramSubject(program_of_case(case, exact)))
    if run.last.error is not None:
        raise raised_on_cpu(run.last.error)
    return run.outcome, exact  # without the run, which holds the inputs
