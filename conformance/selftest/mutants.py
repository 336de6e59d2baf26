"""Power of the fuzzer: the number of programs until it finds each planted fault, and the size of the minimized program.

    conformance mutants [--programs 2000] [--seed 0] [--fault NAME] [--plain] [--on TARGET] [-n N] [--pool P]

A fault that is not found shows a gap in the generator or in the oracles. `--plain` draws without bias, which measures
the effect of the bias. Faults are planted in torch CPU, or with `--on tiny` in the tiny device. As a target,
`mutant:NAME` is torch CPU with that fault planted, and `mutant:NAME@tiny` the tiny device.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from conformance.engine.executor import Executor
from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Target
from conformance.program.execute import ProgramSubject
from conformance.program.float64 import differences
from conformance.program.model import Program
from conformance.program.reduce import reduce_program
from conformance.program.shadow import Reference, reference
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.record.errors import TargetError, UserError
from conformance.record.result import exit_code
from conformance.run import options
from conformance.run.execution_place import place_of
from conformance.run.messages import Death, Limits, Pool, Task, WorkerDied
from conformance.selftest.expression_faults import EXPRESSION_FAULTS
from conformance.selftest.faults import FAULTS, FUNCTION, Call, Fault
from conformance.selftest.state_faults import STATE_FAULTS
from conformance.selftest.value_faults import VALUE_FAULTS
from conformance.sources.fuzzing.drawing import Drawing
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import TorchDispatchMode

FLAGS = ("on", "seed", "programs", "fault", "plain", *options.PLACE)


class Planted(TorchDispatchMode):
    """Dispatch mode that plants one fault between autograd and the device."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.ops = fault, frozenset(fault.ops.split())
        self.memory: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.ops or func.overloadpacket.__name__ in self.ops:
            return self.fault.act(Call(func, args, kwargs, self.memory))
        return func(*args, **kwargs)


class PlantedAbove(torch.overrides.TorchFunctionMode):
    """Function mode that plants one fault between the caller and torch's functions."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.ops = fault, frozenset(fault.ops.split())
        self.memory: dict[Any, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.ops:
            return self.fault.act(Call(func, args, kwargs, self.memory))
        return func(*args, **kwargs)


EVERY: dict[str, Fault] = {**FAULTS, **STATE_FAULTS, **VALUE_FAULTS, **EXPRESSION_FAULTS}
"""All faults by name."""

TOGETHER = 4
"""Number of faults in one task, which draws the programs once for all of them."""

NOTHING = "nothing"
"""Name of no fault: `mutant:nothing` is a target with only the planting mode."""
NO_FAULT = Fault("", lambda call: call.run(), "no bug")


class MutantTarget(Target):
    """A target with a planted fault; torch CPU if no target is named.

    The calls that a fault makes in place of an op cost kernels and count as writes, so the oracles `kernels` and
    `version` are excluded.
    """

    name = "mutant"

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        fault, _, beneath = argument.partition("@")
        if fault not in (*EVERY, NOTHING):
            raise TargetError(f"there is no fault {fault!r}: choose from {', '.join((*EVERY, NOTHING))}")
        self.beneath = describe_target(beneath or "cpu")
        if self.beneath.transforms_program or not self.beneath.exposes_storages:
            raise TargetError(
                f"a fault cannot be planted in {beneath!r}: only in a device that runs step by step and "
                "shows its storages"
            )
        chosen = EVERY.get(fault, NO_FAULT)
        self.spec = f"mutant:{argument}"
        self.mode = PlantedAbove(chosen) if chosen.level == FUNCTION else Planted(chosen)
        self.oracles = self.beneath.oracles - {"kernels", "version"}
        self.dtypes, self.declarations = self.beneath.dtypes, self.beneath.declarations
        self.upload, self.download = self.beneath.upload, self.beneath.download  # type: ignore[method-assign]

    def prepare(self) -> None:
        """Prepare the underlying target."""
        self.beneath.prepare()
        self.device = self.beneath.device

    def send(self, tree: Any) -> Any:
        """Move a program's inputs, and clear the fault's memory of the last program."""
        self.mode.memory.clear()
        return super().send(tree)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of a step, with the fault active."""
        with self.beneath.active(), self.mode:
            yield

    def environment(self) -> dict[str, str]:
        """Return the environment of the underlying target."""
        return self.beneath.environment()

    def script(self) -> str:
        """Return the script of the underlying target; a script cannot plant the fault."""
        return f"# The fault was planted: {self.spec}\n{self.beneath.script()}"


@dataclass
class Hunt:
    """Result for one fault: the programs and seconds up to the first finding, the oracle, and the minimized program."""

    programs: int | None = None
    seconds: float = 0.0
    oracle: str = ""
    small: Program | None = None


def differences_on(program: Program, target: Target, expected: Reference | None = None) -> list[Mismatch]:
    """Return the differences between a target and torch CPU on a program."""
    expected = expected or reference(program)
    actual = Executor(target).run(ProgramSubject(program)).last
    return differences(program, expected, actual, target, target.oracles).mismatches


def hunt(names: Sequence[str], drawing: Drawing, seed: int, programs: int, *, beneath: str = "cpu") -> dict[str, Hunt]:
    """Run the same numbered programs on every fault, planted in the target `beneath`, up to its first finding.

    `programs` limits the number of drawn programs. A program does not count if that target is wrong on it without a
    fault. Raises TargetError.
    """
    # With the mode that plants nothing, since the mode alone changes some strides of torch CPU.
    sound = load_target(f"mutant:{NOTHING}@{beneath}")
    targets = {name: load_target(f"mutant:{name}@{beneath}") for name in names}
    hunts = {name: Hunt() for name in names}
    for number in range(programs):
        left = [name for name in names if hunts[name].programs is None]
        if not left:
            break
        began = time.perf_counter()
        program = drawing.numbered(seed, number)
        if unsupported_reason(program, sound):
            continue
        expected = reference(program)
        shared = time.perf_counter() - began
        for name in left:
            began = time.perf_counter()
            found = differences_on(program, targets[name], expected)
            hunts[name].seconds += shared + time.perf_counter() - began
            if found and not differences_on(program, sound, expected):
                hunts[name].programs, hunts[name].oracle, hunts[name].small = number + 1, found[0].oracle, program
    for name, one in hunts.items():
        if one.small is not None:
            one.small = reduce_program(
                one.small,
                lambda candidate, name=name: bool(  # type: ignore[misc]
                    differences_on(candidate, targets[name]) and not differences_on(candidate, sound)
                ),
            )
    return hunts


def hunt_in(
    pool: Pool, names: Sequence[str], drawing: Drawing, seed: int, programs: int, beneath: str
) -> dict[str, Hunt]:
    """Run `hunt` in a pool, with several faults per task. Raises TargetError, and WorkerDied."""
    found: dict[str, Hunt] = {}
    for at in range(0, len(names), TOGETHER):
        some = names[at : at + TOGETHER]
        pool.submit(Task(", ".join(some), functools.partial(hunt, beneath=beneath), (some, drawing, seed, programs)))
    for _, answer in pool.ended():
        if isinstance(answer, Death):
            raise WorkerDied(answer)
        if answer.error is not None:
            raise answer.error
        found |= answer.value
    return {name: found[name] for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Returns 1 if a fault was not found, 2 for bad usage or if no program ran."""
    parser = options.parser("conformance mutants", __doc__.partition("\n")[0], FLAGS, {"programs": 2000})
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        unknown = [name for name in args.fault if name not in EVERY]
        if unknown:
            raise TargetError(f"there is no fault {unknown[0]!r}: choose from {', '.join(EVERY)}")
        drawing = Drawing(biased=not args.plain, without=unsupported_steps(describe_target(args.on)))
        place, names = place_of(args), args.fault or list(EVERY)
        if place.local and args.jobs == 1:
            hunts = hunt(names, drawing, args.seed, args.programs, beneath=args.on)
        else:
            with place.pool(f"mutant:{NOTHING}@{args.on}", Limits(), args.jobs, [__name__]) as pool:
                hunts = hunt_in(pool, names, drawing, args.seed, args.programs, args.on)
    except UserError as error:
        print(f"conformance mutants: {error}", file=sys.stderr)
        return 2
    print_table(hunts)
    compared = sum(bool(one.programs or one.seconds) for one in hunts.values())
    return exit_code(sum(not one.programs for one in hunts.values()) if compared else 0, compared)


def print_table(hunts: dict[str, Hunt]) -> None:
    """Print one row per fault, and the medians."""
    table = Table("fault", "modelled on", "programs", "seconds", "oracle", "steps", "inputs")
    for name, one in hunts.items():
        size = [str(len(part)) for part in (one.small.steps, one.small.inputs)] if one.small else []
        found = str(one.programs or "not found")
        table.add_row(name, EVERY[name].like, found, f"{one.seconds:.2f}", one.oracle, *size)
    console = Console(width=140)
    console.print(table)
    counts = [(one.programs, len(one.small.steps)) for one in hunts.values() if one.programs and one.small]
    if counts:
        programs, steps = map(statistics.median, zip(*counts, strict=True))
        console.print(f"{len(counts)} of {len(hunts)} found; median {programs:g} programs, {steps:g} steps when shrunk")


if __name__ == "__main__":
    sys.exit(main())
