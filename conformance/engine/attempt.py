"""One attempt to run a subject on a target: whether it works, lacks a kernel, or fails.

Defines `attempt`. An exception alone never means "lacking". Three conditions must hold. The error says that something
is not implemented. The operator to blame raises the same when called alone on the device, with the arguments of the
failing call. The dispatcher has no kernel of the device for it. Any other error is a finding, and some run reports it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.aten_ops import OperatorCall, OperatorCalls
from conformance.engine.executor import Executor, Subject, Transform, signature_of
from conformance.engine.kernel_tables import KernelKind, kernel_of, key_of
from conformance.engine.loading import reference
from conformance.engine.target import Target
from conformance.record.errors import UserError
from conformance.record.missing_ops import Attempt, AttemptOutcome
from conformance.standalone.moving import MARKER, map_leaves, tensors
from conformance.standalone.observation import Observation, Raised, observe

NAMED = re.compile(r"\baten(?:::|\.)(\w+(?:\.\w+)?)")
NOT_IMPLEMENTED = re.compile(r"not implemented|unimplemented|no lowering|Could not run 'aten::", re.IGNORECASE)
LONGEST = 160


def attempt(name: str, subject: Subject, target: Target) -> Attempt:
    """Run the subject once on torch CPU and then on the target. Its last step is the one that is tried, under this
    name."""
    begin = time.monotonic()
    outcome, operator, text = _attempt(subject, target)
    return Attempt(name, outcome, operator, text, time.monotonic() - begin)


def _attempt(subject: Subject, target: Target) -> tuple[AttemptOutcome, str, str]:
    of_cpu = Executor(reference()).run(subject).last.error
    if of_cpu is not None:
        return AttemptOutcome.UNTRIED, "", f"torch CPU raises {_described(of_cpu)}"
    run = Executor(target).run(subject)
    error = run.last.error
    if error is None:
        return AttemptOutcome.WORKS, "", ""
    if run.unavailable:
        return AttemptOutcome.UNTRIED, "", f"the device has no way to make {run.unavailable}"
    if run.failed_step is not None and run.failed_step < steps_of(subject):
        return AttemptOutcome.UNTRIED, "", f"{'an earlier step' if run.failed_step else 'the move of the inputs'} fails"
    if not not_implemented(error):
        return AttemptOutcome.FAILS, "", _described(error)
    operator = confirmed(error, subject, target)
    lacks = bool(operator) and without_kernel(operator, target)
    return AttemptOutcome.LACKING if lacks else AttemptOutcome.FAILS, operator, _described(error)


def steps_of(subject: Subject) -> int:
    """Return the number of steps of the subject; 1 if the subject is not a program."""
    return len(getattr(getattr(subject, "program", None), "steps", "1"))


def not_implemented(error: Raised) -> bool:
    """Whether the error says that something is not implemented."""
    return error.not_implemented or "OperatorNotFound" in error.ancestors or bool(NOT_IMPLEMENTED.search(error.text))


def named(text: str) -> str:
    """Return the first operator in an error's text, as the dispatcher writes it: aten::add.out; "" if there is none."""
    match = NAMED.search(text)
    return f"aten::{match[1].removesuffix('.default')}" if match else ""


def without_kernel(operator: str, target: Target) -> bool:
    """Whether the device has no kernel for the operator, according to the dispatcher's tables. If the tables do not
    cover the device, return True: then the trial alone decides."""
    key = key_of(target)
    return key is None or kernel_of(operator, key) is KernelKind.NONE


def _described(error: Raised) -> str:
    text = " ".join(f"{error.kind}: {error.text}".split()).partition(". This could be because")[0]
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def confirmed(error: Raised, subject: Subject, target: Target) -> str:
    """Return the operator to blame for a not-implemented error of the subject. The error may name it; otherwise the
    innermost operator that raises is to blame. Return "" if that operator, called alone, raises no such error."""
    calls = _failing(subject, target)
    operator = named(error.text) or (calls[-1].name if calls else "")
    alone = [Alone(call, there=True) for call in calls if call.name == operator][-1:] or _on_cpu(subject, operator)
    return operator if any(_raises(call, target) for call in alone) else ""


def _failing(subject: Subject, target: Target) -> list[OperatorCall]:
    """Return the calls that raise in a run on the target, the outermost first. A compiled function calls no operators
    of the device, so it has none."""
    if target.facts.transforms_program:
        return []
    with OperatorCalls() as calls, contextlib.suppress(UserError):
        Executor(target).run(subject)
    key = key_of(target)
    if calls.raised is None or key is None:
        return [calls.raised] if calls.raised is not None else []
    with target.entered():
        return calls.raised.below(key)


def _on_cpu(subject: Subject, operator: str) -> list[Alone]:
    """Return the last call of the operator in a run on torch CPU, if there is one."""
    with OperatorCalls() as calls:
        Executor(reference()).run(subject)
    return [Alone(calls.by_name[operator])] if operator in calls.by_name else []


def _raises(alone: Alone, target: Target) -> bool:
    """Whether the call raises a not-implemented error on the target."""
    run = Executor(target).run(alone)
    return run.last.error is not None and run.failed_step != 0 and not_implemented(run.last.error)


class OneCall:
    """A subject in progress that is one step: a call of the function that `key` identifies, on the inputs `inputs`.
    `seen` observes its outcome."""

    count = 1
    outcome: Any = None

    def __init__(
        self, key: Hashable, inputs: Any, call: Callable[[], Any], seen: Callable[[Any, Target], Observation]
    ) -> None:
        self.key, self.inputs, self.call, self.seen = key, inputs, call, seen

    def signature(self, number: int) -> Hashable:
        """Return the key, with the dtypes and ranks of the tensors."""
        return (self.key, signature_of(tensors(self.inputs)))

    def advance(self, number: int) -> None:
        """Make the call."""
        self.outcome = self.call()

    def observe(self, target: Target) -> Observation:
        """Return the observation of the outcome."""
        return self.seen(self.outcome, target)


@dataclass
class Alone:
    """Subject for the executor: one call of an operator, with its result read. If the call was recorded on the target,
    its arguments are already `there`."""

    call: OperatorCall
    there: bool = False

    def inputs(self) -> tuple[Any, tuple[int, ...]]:
        """Return the arguments on the CPU; a CPU device among them becomes the target's device."""
        if self.there:
            return (), ()
        on_cpu = torch.device("cpu")
        return map_leaves([self.call.args, self.call.kwargs], lambda leaf: MARKER if leaf == on_cpu else leaf), ()

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> OneCall:
        """Start the call on arguments that are on the target. The whole result is observed, so that a lazy device
        computes it."""

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.call.func(*args, **kwargs)

        compiled = transform(function) if transform else function
        args, kwargs = (self.call.args, self.call.kwargs) if self.there else inputs
        tree = [args, kwargs]
        return OneCall(
            self.call.name, tree, lambda: compiled(*args, **kwargs), lambda result, on: observe(result, target=on)
        )
