"""A target with a planted fault, and the hunt: the fuzzer's programs run on it up to the first finding.

`mutant:NAME` is torch CPU with that fault planted, and `mutant:NAME@tiny` the tiny device. A fault that no program
finds shows a gap in the generator or in the oracles.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.engine.loading import describe_target, load_target
from conformance.engine.loading import reference as cpu_target
from conformance.engine.target import Target
from conformance.program.model import Program
from conformance.program.reduce import reduce_program
from conformance.program.trial import Trial
from conformance.program.unsupported import unsupported_reason
from conformance.record.errors import TargetError
from conformance.record.names import nearest
from conformance.selftest.argument_faults import ARGUMENT_FAULTS
from conformance.selftest.expression_faults import EXPRESSION_FAULTS
from conformance.selftest.faults import FAULTS, FUNCTION, Fault, InterceptedCall
from conformance.selftest.size_faults import SIZE_FAULTS
from conformance.selftest.state_faults import STATE_FAULTS
from conformance.selftest.topic_faults import TOPIC_FAULTS
from conformance.selftest.value_faults import VALUE_FAULTS
from conformance.sources.fuzzing.drawing import Drawing
from conformance.standalone.moving import whole_storage
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import TorchDispatchMode

ALLOCATIONS = frozenset({"empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like", "resize_"})
FRESH = 0x41
"""Byte of memory that no call has written yet: a lost write shows the same wrong value in every run."""


def fill_fresh_memory(tensor: torch.Tensor, begin: int) -> None:
    """Set the bytes of the tensor's storage from `begin` on, unless PyTorch fills new memory itself. A bool becomes 1,
    the only valid byte but 0."""
    settings: Any = torch.utils.deterministic
    if torch.are_deterministic_algorithms_enabled() and settings.fill_uninitialized_memory:
        return
    whole_storage(tensor).view(torch.uint8)[begin:].fill_(1 if tensor.dtype == torch.bool else FRESH)


class Planted(TorchDispatchMode):
    """Dispatch mode that plants one fault between autograd and the device."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.ops = fault, frozenset(fault.ops.split())
        self.memory: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        begin = args[0].untyped_storage().nbytes() if name == "resize_" else 0
        if not self.ops or name in self.ops:
            result = self.fault.act(InterceptedCall(func, args, kwargs, self.memory))
        else:
            result = func(*args, **kwargs)
        if name in ALLOCATIONS and result.layout == torch.strided and result.device.type != "meta":
            fill_fresh_memory(result, begin)
        return result


class PlantedAbove(torch.overrides.TorchFunctionMode):
    """Function mode that plants one fault between the caller and torch's functions."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.ops = fault, frozenset(fault.ops.split())
        self.memory: dict[Any, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.ops:
            return self.fault.act(InterceptedCall(func, args, kwargs, self.memory))
        return func(*args, **kwargs)


EVERY: dict[str, Fault] = {
    **FAULTS,
    **STATE_FAULTS,
    **VALUE_FAULTS,
    **EXPRESSION_FAULTS,
    **ARGUMENT_FAULTS,
    **SIZE_FAULTS,
    **TOPIC_FAULTS,
}
"""All faults by name."""

NOTHING = "nothing"
"""Name of no fault: `mutant:nothing` is a target with only the planting mode."""
NO_FAULT = Fault("", lambda call: call.run(), "no bug")


class MutantTarget(Target):
    """A target with a planted fault; torch CPU if no target is named.

    The calls that a fault makes in place of an op count as writes, so the oracle `version` is excluded.
    """

    name = "mutant"

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        fault, _, beneath = argument.partition("@")
        if fault not in (*EVERY, NOTHING):
            hint = nearest(fault, EVERY) or f": choose from {', '.join((*EVERY, NOTHING))}"
            raise TargetError(f"there is no fault {fault!r}{hint}")
        self.beneath = describe_target(beneath or "cpu")
        if self.beneath.facts.transforms_program or not self.beneath.facts.exposes_storages:
            raise TargetError(
                f"a fault cannot be planted in {beneath!r}: only in a device that runs step by step and "
                "shows its storages"
            )
        chosen = EVERY.get(fault, NO_FAULT)
        self.spec = f"mutant:{argument}"
        self.mode = PlantedAbove(chosen) if chosen.level == FUNCTION else Planted(chosen)
        facts = self.beneath.facts
        self.facts = replace(
            self.facts,
            oracles=facts.oracles - {"version"},
            dtypes=facts.dtypes,
            declarations=facts.declarations,
            lacks=facts.lacks,
        )
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
    """Result for one fault: the programs up to the first finding, the oracle, and the minimized program.

    `tried` counts the programs that ran. `programs` is None if no program found the fault."""

    tried: int = 0
    programs: int | None = None
    oracle: str = ""
    small: Program | None = None


def find_differences(trial: Trial) -> list[Mismatch]:
    """Return the differences between the target and torch CPU on the trial's program."""
    return trial.judge(trial.run().last).mismatches


@functools.lru_cache(maxsize=4096)
def _draw_trial(drawing: Drawing, seed: int, number: int) -> Trial:
    """Return the trial of a numbered program on torch CPU. One process hunts several faults with the same programs, so
    torch CPU's answers are kept."""
    return Trial.of(drawing.numbered(seed, number), cpu_target())


def _is_found(target: Target, sound: Target, program: Program) -> bool:
    """Whether the target is wrong on a program and the sound one right."""
    trial = Trial.of(program, target)
    return bool(find_differences(trial) and not find_differences(trial.on(sound)))


def hunt(name: str, drawing: Drawing, seed: int, programs: int, *, beneath: str = "cpu") -> Hunt:
    """Run numbered programs on a fault, planted in the target `beneath`, up to its first finding.

    `programs` limits the number of drawn programs. A program does not count if that target is wrong on it without a
    fault. Raises TargetError.
    """
    # With the mode that plants nothing, since the mode alone changes some strides of torch CPU.
    sound, target = (load_target(f"mutant:{fault}@{beneath}") for fault in (NOTHING, name))
    result = Hunt()
    for number in range(programs):
        trial = _draw_trial(drawing, seed, number)
        if unsupported_reason(trial.program, sound.facts):
            continue
        result.tried += 1
        found = find_differences(trial.on(target))
        if found and not find_differences(trial.on(sound)):
            result.programs, result.oracle = number + 1, found[0].oracle
            result.small = reduce_program(trial.program, functools.partial(_is_found, target, sound))
            break
    return result
