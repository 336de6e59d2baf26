"""One trial of a subject on a target: whether it works, lacks a kernel, or fails.

Defines `attempt`. The key insight: an exception alone never says "lacking". It must say that something is not
implemented. The operator to blame must raise the same when it is called alone on the device, with the arguments of the
failing call. The dispatcher must have no kernel of the device for it. Everything else is a finding, and some run
reports it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.core.aten_ops import Calls, OperatorCall
from conformance.core.errors import UserError
from conformance.core.executor import Executor, Subject, Transform, signature_of
from conformance.core.kernel_tables import Kernel, kernel_of, key_of
from conformance.core.lacking import Outcome, Trial
from conformance.core.loading import load_target
from conformance.core.moving import MARKER, map_leaves, tensors
from conformance.core.observation import Observation, Raised, observe
from conformance.core.target import Target

NAMED = re.compile(r"\baten(?:::|\.)(\w+(?:\.\w+)?)")
WORDS = re.compile(r"not implemented|unimplemented|no lowering|Could not run 'aten::", re.IGNORECASE)
LONGEST = 160


def attempt(name: str, subject: Subject, target: Target) -> Trial:
    """Run the subject, whose last step is what is tried under this name, on torch CPU and then on the target, once."""
    begin = time.monotonic()
    outcome, operator, said = _attempt(subject, target)
    return Trial(name, outcome, operator, said, time.monotonic() - begin)


def _attempt(subject: Subject, target: Target) -> tuple[Outcome, str, str]:
    reference = Executor(load_target("cpu")).run(subject).last.error
    if reference is not None:
        return Outcome.UNTRIED, "", f"torch CPU raises {_said(reference)}"
    run = Executor(target).run(subject)
    error = run.last.error
    if error is None:
        return Outcome.WORKS, "", ""
    if run.unavailable:
        return Outcome.UNTRIED, "", f"the device has no way to make {run.unavailable}"
    if run.failed_step is not None and run.failed_step < steps_of(subject):
        return Outcome.UNTRIED, "", f"{'an earlier step' if run.failed_step else 'the move of the inputs'} fails"
    if not not_implemented(error):
        return Outcome.FAILS, "", _said(error)
    operator = confirmed(error, subject, target)
    lacks = bool(operator) and without_kernel(operator, target)
    return Outcome.LACKING if lacks else Outcome.FAILS, operator, _said(error)


def steps_of(subject: Subject) -> int:
    """How many steps the subject has; one that is no program has one."""
    return len(getattr(getattr(subject, "program", None), "steps", "1"))


def not_implemented(error: Raised) -> bool:
    """Whether the error says that something is not implemented."""
    return error.not_implemented or "OperatorNotFound" in error.ancestors or bool(WORDS.search(error.text))


def named(text: str) -> str:
    """The first operator that an error names, as the dispatcher writes it: aten::add.out; "" where it names none."""
    found = NAMED.search(text)
    return f"aten::{found[1].removesuffix('.default')}" if found else ""


def without_kernel(operator: str, target: Target) -> bool:
    """Whether the device has no kernel for the operator, as far as the dispatcher's tables tell; where they say nothing
    of the device, the trial alone has told."""
    key = key_of(target)
    return key is None or kernel_of(operator, key) is Kernel.NONE


def _said(error: Raised) -> str:
    text = " ".join(f"{error.kind}: {error.text}".split()).partition(". This could be because")[0]
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def confirmed(error: Raised, subject: Subject, target: Target) -> str:
    """The operator to blame for a not-implemented error of the subject; "" where none raises one when it is called
    alone on the target. It is the operator that the error names, or else the innermost one that raises."""
    calls = _failing(subject, target)
    operator = named(error.text) or (calls[-1].name if calls else "")
    alone = [Alone(call, there=True) for call in calls if call.name == operator][-1:] or _on_cpu(subject, operator)
    return operator if any(_raises(one, target) for one in alone) else ""


def _failing(subject: Subject, target: Target) -> list[OperatorCall]:
    """The calls that raise in a run on the target, the outermost first; none of a compiled function, in which no
    operator of the device is called by itself."""
    if target.transforms_program:
        return []
    with Calls() as calls, contextlib.suppress(UserError):
        Executor(target).run(subject)
    key = key_of(target)
    if calls.raised is None or key is None:
        return [calls.raised] if calls.raised is not None else []
    with target.entered():
        return calls.raised.below(key)


def _on_cpu(subject: Subject, operator: str) -> list[Alone]:
    """The last call of the operator in a run on torch CPU, if there is one."""
    with Calls() as calls:
        Executor(load_target("cpu")).run(subject)
    return [Alone(calls.by_name[operator])] if operator in calls.by_name else []


def _raises(alone: Alone, target: Target) -> bool:
    """Whether the call raises a not-implemented error on the target."""
    run = Executor(target).run(alone)
    return run.last.error is not None and run.failed_step != 0 and not_implemented(run.last.error)


@dataclass
class Alone:
    """The executor's subject: one call of an operator, with its result read. The arguments of a call that was recorded
    on the target are already `there`."""

    call: OperatorCall
    there: bool = False

    def inputs(self) -> tuple[Any, tuple[int, ...]]:
        """The arguments on the CPU; a device among them becomes the target's."""
        if self.there:
            return (), ()
        on_cpu = torch.device("cpu")
        return map_leaves([self.call.args, self.call.kwargs], lambda leaf: MARKER if leaf == on_cpu else leaf), ()

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> RunningAlone:
        """The call on arguments that lie on the target."""
        args, kwargs = (self.call.args, self.call.kwargs) if self.there else inputs
        return RunningAlone(self.call, args, kwargs, transform)


class RunningAlone:
    """A call under way: one step."""

    count = 1
    outcome: Any = None

    def __init__(self, call: OperatorCall, args: Any, kwargs: Any, transform: Transform | None) -> None:
        def function(*args: Any, **kwargs: Any) -> Any:
            return call.func(*args, **kwargs)

        self.name, self.args, self.kwargs = call.name, args, kwargs
        self.function = transform(function) if transform else function

    def signature(self, number: int) -> Hashable:
        """The operator, and what it works on."""
        return (self.name, signature_of(tensors([self.args, self.kwargs])))

    def advance(self, number: int) -> None:
        """Make the call."""
        self.outcome = self.function(*self.args, **self.kwargs)

    def observe(self, target: Target) -> Observation:
        """All of the result, so that a lazy device computes it."""
        return observe(self.outcome, target=target)
