"""One trial of a subject on a target: whether it works, lacks a kernel, or fails.

Defines `attempt`. The key insight: an exception alone never says "lacking". It must say that something is not
implemented, the operator for which it says so must be known, and the dispatcher must have no kernel of the device for
that operator; everything else is a finding, and some run will report it.
"""

from __future__ import annotations

import re
import time

from conformance.core.aten_ops import Operators
from conformance.core.errors import UserError
from conformance.core.executor import Executor, Subject
from conformance.core.kernel_tables import Kernel, kernel_of, key_of
from conformance.core.lacking import Outcome, Trial
from conformance.core.loading import load_target
from conformance.core.observation import Raised
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
    operator = named(error.text) or _last_operator(subject, target)
    if not operator or not without_kernel(operator, target):
        return Outcome.FAILS, operator, _said(error)
    return Outcome.LACKING, operator, _said(error)


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


def _last_operator(subject: Subject, target: Target) -> str:
    """The aten operator in which the subject fails on the target, for an error that names none."""
    try:
        with Operators() as operators:
            failed = Executor(target).run(subject).last.error is not None
    except UserError:
        return ""
    return operators.last if failed and operators.last.startswith("aten::") else ""
