"""Measurement of one case: the errors of the target and of torch CPU at the same points, by result and kind of points.

Defines `measure`. Torch CPU is not the reference here but a second competitor. It and the target make the same call on
the same inputs of the dtype, and both are compared with the exact answer. For an elementary function this is mpmath's
answer; otherwise it is torch CPU's own answer in float64 on the same inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from conformance.engine.executor import Executor, OneCall, Transform, Watch, no_watch
from conformance.engine.target import Target
from conformance.record.accuracy import Accuracy
from conformance.record.footprint import HELD_TIMES
from conformance.run.worker import peak_memory
from conformance.sources.accuracy import reference
from conformance.sources.accuracy.outcomes import Raises, Unmeasured, raised_on_cpu, require_answer, short_of_memory
from conformance.sources.accuracy.table import AccuracyCase, AccuracyRow
from conformance.standalone.accuracy import SEED, answers, errors, rms, widened_inputs
from conformance.standalone.observation import Raised, observe

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


@dataclass
class AccuracySubject:
    """The executor's subject: a case's call on its inputs, observed only by its answers."""

    case: AccuracyCase
    arguments: dict[str, torch.Tensor]
    program: Callable[..., Any]

    def inputs(self) -> tuple[dict[str, torch.Tensor], set[int]]:
        """Return the inputs and an empty set: no input stays on the CPU."""
        return self.arguments, set()

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> OneCall:
        """Begin the call on inputs that lie on the target."""
        program = transform(self.program) if transform else self.program
        answer = functools.partial(self.on, inputs, program)
        return OneCall(self.case.id, inputs, answer, lambda results, on: observe(dict(results), target=on))

    @property
    def wanted(self) -> tuple[str, ...]:
        """The inputs whose gradients are the answers; empty for a forward case."""
        named = (name for name, x in self.arguments.items() if x.is_floating_point())
        return tuple(name for name in named if self.case.variant == "backward" and name not in self.case.row.constants)

    def on(self, inputs: dict[str, Any], program: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """Return the answers of a program on these inputs."""
        return answers(program, inputs, self.wanted, along_ones=bool(self.case.row.exact))


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
    subject = AccuracySubject(case, columns, program)
    exact, cpu = _exact(subject), _on_cpu(subject)
    short = short_of_memory(HELD_TIMES * peak_memory())
    execution = Executor(target).run(subject, watch=watch)
    require_answer(execution, short)
    parts: list[MeasuredAnswer] = []
    for name, (high, low) in exact.items():
        seen = execution.last.tensors.get(name)
        if seen is None or name not in cpu or seen.shape != tuple(high.shape):
            raise Raises(Raised("structure", (), f"{name} is not as torch CPU's"))
        for kind, part in kinds.items():
            sides = [x[part] if row.exact else x for x in (high, low, cpu[name], seen.value)]
            parts += _compared(subject, name, kind, [x[part] for x in columns.values()] if row.exact else [], *sides)
    if not parts:
        raise Unmeasured("torch CPU has no finite answer at any point")
    return sorted(parts, key=lambda part: -part.accuracy.excess)


def _copied(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in inputs.items()}


def _exact(subject: AccuracySubject) -> Exact:
    row, inputs = subject.case.row, subject.arguments
    if row.exact:
        values = list(inputs.values())
        if subject.case.variant == "forward":
            return {"result": reference.exact(row, values)}
        return {f"gradient of {name}": reference.exact(row, values, n) for n, name in enumerate(inputs)}
    wide = subject.on(widened_inputs(_copied(inputs), torch.float64), subject.program)
    return {name: (x.detach(), torch.zeros_like(x)) for name, x in wide.items()}


def _on_cpu(subject: AccuracySubject) -> dict[str, torch.Tensor]:
    """Return torch CPU's answers. Raises Unmeasured."""
    try:
        return {name: x.detach() for name, x in subject.on(_copied(subject.arguments), subject.program).items()}
    except Exception as error:
        raise raised_on_cpu(error) from None


def _compared(
    subject: AccuracySubject,
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
    case, dtype = subject.case, getattr(torch, subject.case.dtype)
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
    yield MeasuredAnswer(accuracy, name, subject.wanted, index, tuple(at), *numbers)
