"""The samples of a case as programs: one step that calls a module or an optimizer.

Defines `StatefulTrial` and `trials_of`. All that moves to the target is given to the program: the state, the arguments,
the gradients. The object is built on the target over them (`standalone/stateful.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engine.target import Target
from conformance.program.model import GivenInput, Program
from conformance.program.steps.entry import OBJECT, Runner
from conformance.program.steps.op import ANY, Held, Step, tensor
from conformance.program.trial import CpuAnswer, Trial
from conformance.sources.modules.table import ROUND_TRIP, StatefulCase
from conformance.sources.opinfo import seeding
from conformance.standalone import stateful
from conformance.standalone.torch_compat import optimizer_infos


@dataclass(frozen=True)
class StatefulTrial(Trial):
    """The trial of sample `number` of a case."""

    case: StatefulCase = field(kw_only=True)
    number: int = field(kw_only=True)
    source: str = field(kw_only=True)
    """The call as Python source, for the report."""


def _trial(
    case: StatefulCase, number: int, target: Target, tree: dict[str, Any], run: Callable[..., Any], source: str
) -> StatefulTrial:
    """Return the trial of the program whose step makes this call on the parts of a tree."""
    # An optimizer keeps the number of its steps on the CPU.
    given = tuple(GivenInput(name, part, on_host=bool(case.optimizer)) for name, part in tree.items())
    operands = ({"object": Held(run)}, *map(tensor, tree))
    call = Step(f"{OBJECT}:{case.op}", operands, {"seed": seeding.SEED}, out=("result",), raises=ANY)
    program = Program((), (), (call,), given=given)
    return StatefulTrial(program, target, (CpuAnswer(program),), case=case, number=number, source=source)


MOST = 20
"""Samples of a case, at most. nn.LinearCrossEntropyLoss has 1,152; most modules have less than ten."""


def trials_of(case: StatefulCase, target: Target) -> Iterator[StatefulTrial]:
    """Yield the trials of the samples of a case, or of `MOST` of them from the whole range."""
    dtype, training = getattr(torch, case.dtype), case.variant != "eval"
    if case.optimizer:
        count = len(optimizer_infos()[case.optimizer].optim_inputs_func(device="cpu"))
    else:
        count = len(stateful.module_inputs(case.op, dtype, training))
    for number in range(0, count, max(-(-count // MOST), 1)):
        yield _of_optimizer(case, number, dtype, target) if case.optimizer else _of_module(case, number, dtype, target)


def _of_module(case: StatefulCase, number: int, dtype: torch.dtype, target: Target) -> StatefulTrial:
    module, given = stateful.module_sample(case.op, dtype, case.variant != "eval", number)
    results = stateful.module_round_trip if case.variant == ROUND_TRIP else stateful.module_results

    def run(runner: Runner, *parts: Any) -> Any:
        return results(runner.apply(stateful.call_module), module, dict(zip(given, parts, strict=True)))

    return _trial(case, number, target, given, run, f"{module}".replace("\n", " "))


def _of_optimizer(case: StatefulCase, number: int, dtype: torch.dtype, target: Target) -> StatefulTrial:
    given = stateful.optimizer_sample(case.optimizer, dtype, number)
    results = stateful.optimizer_round_trip if case.variant == ROUND_TRIP else stateful.optimizer_results
    form = "step" if case.variant == ROUND_TRIP else case.variant

    def run(runner: Runner, *parts: Any) -> Any:
        return results(
            runner.apply(stateful.step_optimizer), case.optimizer, form, dict(zip(given, parts, strict=True))
        )

    words = ", ".join(f"{name}={value}" for name, value in given["arguments"].items())
    return _trial(case, number, target, given, run, f"torch.optim.{case.optimizer}(parameters, {words})")
