"""One case measured: the errors of the target and of torch CPU at the same points, by result and kind of points.

Defines `measure`. The key insight: torch CPU is no judge here but a competitor. It and the target make the same call on
the same inputs of the dtype, and both are compared with what is exact: mpmath's answer where the op is an elementary
function, else torch CPU's own in float64, on the very same inputs.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from conformance.accuracy import reference
from conformance.accuracy.errors import SEED, answers, errors, rms, widened_inputs
from conformance.accuracy.outcomes import Raises, Unmeasured, raised_on_cpu, require_answer, short_of_memory
from conformance.accuracy.table import Case, Row
from conformance.core.accuracy import Accuracy
from conformance.core.executor import Executor, Transform, Watch, signature_of
from conformance.core.footprint import HELD_TIMES
from conformance.core.moving import tensors
from conformance.core.observation import Observation, Raised, observe
from conformance.core.target import Target

Exact = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By the name of an answer, the sum of two float64 tensors that it should be."""


@dataclass(frozen=True)
class Part:
    """What was measured of one answer: the errors, where the target's is the largest, and there the arguments (of an
    elementary function) and the three numbers: the exact one, torch CPU's and the target's. `wanted` are the inputs
    whose gradients were taken."""

    accuracy: Accuracy
    answer: str
    wanted: tuple[str, ...]
    index: int
    arguments: tuple[float, ...]
    exact: tuple[float, float]
    cpu: float
    target: float


@dataclass
class Measured:
    """The executor's subject: a case's call on its inputs, observed by its answers alone."""

    case: Case
    given: dict[str, torch.Tensor]
    program: Callable[..., Any]

    def inputs(self) -> tuple[dict[str, torch.Tensor], set[int]]:
        """The inputs, all of which move."""
        return self.given, set()

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> Running:
        """The call on inputs that lie on the target."""
        return Running(self, inputs, transform(self.program) if transform else self.program)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The inputs whose gradients are the answers; none forward."""
        named = (name for name, x in self.given.items() if x.is_floating_point())
        return tuple(name for name in named if self.case.variant == "backward" and name not in self.case.row.constants)

    def on(self, given: dict[str, Any], program: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """The answers of a program on these inputs."""
        return answers(program, given, self.wanted, along_ones=bool(self.case.row.exact))


class Running:
    """A call under way: one step."""

    count = 1

    def __init__(self, subject: Measured, given: dict[str, torch.Tensor], program: Callable[..., Any]) -> None:
        self.subject, self.given, self.program = subject, given, program
        self.outcome: Any = None

    def signature(self, number: int) -> Hashable:
        """The case, and what it is given."""
        return (self.subject.case.id, signature_of(tensors(self.given)))

    def advance(self, number: int) -> None:
        """Make the call."""
        self.outcome = self.subject.on(self.given, self.program)

    def observe(self, target: Target) -> Observation:
        """The answers."""
        return observe(dict(self.outcome), target=target)


def built(row: Row) -> tuple[Callable[..., Any], Callable[[], dict[str, torch.Tensor]]]:
    """The row's program, and what makes its inputs in float32, where it has expressions for them."""
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "SEED": SEED}
    lines = "\n".join(f"    {line}" for line in [*row.made(), "return given"])
    exec(f"{row.program()}\n\ndef inputs():\n{lines}", names)  # noqa: S102 - text of this package's own table
    return names["program"], names["inputs"]


def measure(case: Case, target: Target, watch: Watch = lambda number, builds: None) -> list[Part]:
    """All that is measured of the case, the worst first. Raises Unmeasured, Raises, and TargetError."""
    row, dtype = case.row, getattr(torch, case.dtype)
    program, inputs = built(row)
    kinds: dict[str, slice] = {"": slice(None)}
    if row.exact:
        drawn = reference.points(row, dtype, SEED)
        bounds = numpy.cumsum([0, *(len(each[0]) for each in drawn.values())]).tolist()
        kinds = {kind: slice(*ends) for kind, ends in zip(drawn, zip(bounds, bounds[1:]), strict=True)}
        given = {name: torch.cat([each[n] for each in drawn.values()]) for n, name in enumerate(row.arguments)}
    else:
        given = widened_inputs(inputs(), dtype)
    subject = Measured(case, given, program)
    exact, cpu = _exact(subject), _on_cpu(subject, dtype)
    short = short_of_memory(HELD_TIMES * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    execution = Executor(target).run(subject, watch=watch)
    require_answer(execution, short)
    parts: list[Part] = []
    for name, (high, low) in exact.items():
        seen = execution.last.tensors.get(name)
        if seen is None or name not in cpu or seen.shape != tuple(high.shape):
            raise Raises(Raised("structure", (), f"{name} is not as torch CPU's"))
        for kind, part in kinds.items():
            sides = [x[part] if row.exact else x for x in (high, low, cpu[name], seen.value)]
            parts += _compared(subject, name, kind, [x[part] for x in given.values()] if row.exact else [], *sides)
    if not parts:
        raise Unmeasured("torch CPU has no finite answer at any point")
    return sorted(parts, key=lambda part: -part.accuracy.excess)


def _copied(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in given.items()}


def _exact(subject: Measured) -> Exact:
    row, given = subject.case.row, subject.given
    if row.exact:
        values = list(given.values())
        if subject.case.variant == "forward":
            return {"result": reference.exact(row, values)}
        return {f"gradient of {name}": reference.exact(row, values, n) for n, name in enumerate(given)}
    wide = subject.on(widened_inputs(_copied(given), torch.float64), subject.program)
    return {name: (x.detach(), torch.zeros_like(x)) for name, x in wide.items()}


def _on_cpu(subject: Measured, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """torch CPU's answers."""
    try:
        return {name: x.detach() for name, x in subject.on(_copied(subject.given), subject.program).items()}
    except Exception as error:
        raise raised_on_cpu(error) from None


def _compared(
    subject: Measured,
    name: str,
    kind: str,
    arguments: list[torch.Tensor],
    high: torch.Tensor,
    low: torch.Tensor,
    cpu: torch.Tensor,
    got: torch.Tensor,
) -> Iterator[Part]:
    """What is measured of these answers, where there is anything to measure: not where the exact answer is no normal
    number of the dtype, which devices may take for zero, nor where torch CPU has no finite one."""
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
    said = ", ".join(f"{n} = {v!r}" for n, v in zip(case.row.arguments, at)) if each else f"element {index}"
    errors_found = (float(off.max()), float(usual.max()), rms(off), rms(usual))
    accuracy = Accuracy(label, *errors_found, said, len(where))
    numbers = (float(high[worst]), float(low[worst])), float(cpu[worst]), float(got[worst])
    yield Part(accuracy, name, subject.wanted, index, tuple(at), *numbers)
