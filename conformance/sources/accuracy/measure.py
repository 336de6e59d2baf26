"""Measurement of one case: the errors of the target and of torch CPU at the same points, by result and kind of points.

Defines `measure`. Torch CPU is not the reference here but a second competitor. It and the target make the same call on
the same inputs of the dtype, and both are compared with the exact answer. For an elementary function this is mpmath's
answer; otherwise it is torch CPU's own answer in float64 on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from conformance.engine.executor import Execution, Executor, Watch, no_watch
from conformance.engine.loading import reference as cpu_target
from conformance.engine.target import Target
from conformance.program.execute import ProgramSubject
from conformance.program.model import GivenInput, Program
from conformance.program.steps.entry import OBJECT, Runner
from conformance.program.steps.op import ANY, Held, Step, tensor
from conformance.record.accuracy import Accuracy
from conformance.record.footprint import HELD_TIMES
from conformance.run.worker import peak_memory
from conformance.sources.accuracy import reference
from conformance.sources.accuracy.outcomes import Raises, Unmeasured, raised_on_cpu, require_answer, short_of_memory
from conformance.sources.accuracy.table import AccuracyCase, AccuracyRow, OfRow
from conformance.standalone.accuracy import SEED, answers, errors, rms, widened_inputs
from conformance.standalone.observation import Raised

Exact = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Exact answers by name, each the sum of two float64 tensors."""


@dataclass(frozen=True)
class MeasuredAnswer:
    """Measurement of one answer: the errors, and the index of the target's largest error.

    At that index, it holds the arguments (of an elementary function), the exact number, torch CPU's and the target's.
    `wanted` are the inputs whose gradients were taken.
    """

    accuracy: Accuracy
    answer: str
    wanted: tuple[str, ...]
    index: int
    arguments: tuple[float, ...]
    exact: tuple[float, float]
    cpu: float
    target: float


def program_of(case: OfRow, call: Callable[[Runner, Any], Any], make: Callable[[], dict[str, Any]]) -> Program:
    """Return the program of one step that makes a case's call on inputs that `make` creates. The inputs are neither
    observed nor kept, since only the answers and the memory of the call count."""
    given = (GivenInput("inputs", make=make),)
    step = Step(f"{OBJECT}:{case.id}", ({"object": Held(call, case.id)}, tensor("inputs")), {"seed": SEED},
                out=("result",), raises=ANY)  # fmt: skip
    return Program((), (), (step,), given=given)


@dataclass(frozen=True)
class MeasuredPoints:
    """A case's function, and the arguments at which its answers are measured."""

    case: AccuracyCase
    arguments: dict[str, torch.Tensor]
    function: Callable[..., Any]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The inputs whose gradients are the answers; empty for a forward case."""
        named = (name for name, x in self.arguments.items() if x.is_floating_point())
        return tuple(name for name in named if self.case.variant == "backward" and name not in self.case.row.constants)

    def answers(self, function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the answers of a function on these inputs by name."""
        return answers(function, inputs, self.wanted, along_ones=bool(self.case.row.exact))

    def run(self, target: Target, watch: Watch = no_watch) -> tuple[Execution, dict[str, torch.Tensor]]:
        """Run the call on a target, and return the run with its answers by name, fetched."""
        program = program_of(
            self.case, lambda runner, inputs: self.answers(runner.apply(self.function), inputs), lambda: self.arguments
        )
        run = Executor(target).run(ProgramSubject(program), watch=watch)
        # The step's result is a dict of the answers, so an answer is named result['gradient of x'].
        return run, {name: run.last.tensors[f"result[{name!r}]"].value for name in run.outcome or ()}


def built(row: AccuracyRow) -> tuple[Callable[..., Any], Callable[[], dict[str, torch.Tensor]]]:
    """Return the row's program, and a function that creates its inputs in float32, if the row has
    expressions for them.
    """
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "SEED": SEED}
    lines = "\n".join(f"    {line}" for line in [*row.input_lines(), "return given"])
    exec(f"{row.program()}\n\ndef inputs():\n{lines}", names)  # noqa: S102 - text of this package's own table
    return names["program"], names["inputs"]


def measure(case: AccuracyCase, target: Target, watch: Watch = no_watch) -> list[MeasuredAnswer]:
    """Return all measurements of the case, the worst first. Raises Unmeasured, Raises, and TargetError."""
    row, dtype = case.row, getattr(torch, case.dtype)
    program, inputs = built(row)
    kinds: dict[str, slice] = {"": slice(None)}
    if row.exact:
        drawn = reference.points(row, dtype, SEED)
        bounds = numpy.cumsum([0, *(len(operands[0]) for operands in drawn.values())]).tolist()
        kinds = {kind: slice(*ends) for kind, ends in zip(drawn, zip(bounds, bounds[1:]), strict=True)}
        columns = {
            name: torch.cat([operands[n] for operands in drawn.values()]) for n, name in enumerate(row.arguments)
        }
    else:
        columns = widened_inputs(inputs(), dtype)
    points = MeasuredPoints(case, columns, program)
    exact = _exact(points)
    run, cpu = points.run(cpu_target())
    if run.last.error is not None:
        raise raised_on_cpu(run.last.error)
    short = short_of_memory(HELD_TIMES * peak_memory())
    run, found = points.run(target, watch)
    require_answer(run, short)
    parts: list[MeasuredAnswer] = []
    for name, (high, low) in exact.items():
        if name not in found or name not in cpu or found[name].shape != high.shape:
            raise Raises(Raised("structure", (), f"{name} is not as torch CPU's"))
        for kind, part in kinds.items():
            sides = [x[part] if row.exact else x for x in (high, low, cpu[name], found[name])]
            parts += _compared(points, name, kind, [x[part] for x in columns.values()] if row.exact else [], *sides)
    if not parts:
        raise Unmeasured("torch CPU has no finite answer at any point")
    return sorted(parts, key=lambda part: -part.accuracy.excess)


def _exact(points: MeasuredPoints) -> Exact:
    row, inputs = points.case.row, points.arguments
    if row.exact:
        values = list(inputs.values())
        if points.case.variant == "forward":
            return {"result": reference.exact(row, values)}
        return {f"gradient of {name}": reference.exact(row, values, n) for n, name in enumerate(inputs)}
    copies = {name: x.clone() for name, x in inputs.items()}
    wide = points.answers(points.function, widened_inputs(copies, torch.float64))
    return {name: (x.detach(), torch.zeros_like(x)) for name, x in wide.items()}


def _compared(
    points: MeasuredPoints,
    name: str,
    kind: str,
    arguments: list[torch.Tensor],
    high: torch.Tensor,
    low: torch.Tensor,
    cpu: torch.Tensor,
    got: torch.Tensor,
) -> Iterator[MeasuredAnswer]:
    """Yield the measurement of these answers, if any point can be measured.

    Points are excluded where torch CPU has no finite answer. They are also excluded where the exact answer is no normal
    number of the dtype, since devices may flush it to zero.
    """
    case, dtype = points.case, getattr(torch, points.case.dtype)
    info, each = torch.finfo(dtype), bool(case.row.exact)
    kept = cpu.isfinite() & high.isfinite() & (high.abs() <= info.max)
    kept &= (high.abs() >= info.tiny) | (not each)
    if not bool(kept.any()):
        return
    where = kept.reshape(-1).nonzero()[:, 0]
    high, low, cpu, got = (x.reshape(-1)[where] for x in (high, low, cpu, got))
    off, usual = (errors(x, high, low, dtype, each) for x in (got, cpu))
    worst = int(off.argmax())
    index = int(where[worst])
    at = [float(x[index]) for x in arguments]
    label = f"{name}, {kind}" if kind else name
    place = ", ".join(f"{n} = {v!r}" for n, v in zip(case.row.arguments, at)) if each else f"element {index}"
    errors_found = (float(off.max()), float(usual.max()), rms(off), rms(usual))
    accuracy = Accuracy(label, *errors_found, place, len(where))
    numbers = (float(high[worst]), float(low[worst])), float(cpu[worst]), float(got[worst])
    yield MeasuredAnswer(accuracy, name, points.wanted, index, tuple(at), *numbers)
