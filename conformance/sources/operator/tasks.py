"""The tasks of `conformance operator`: one check of an operator, with the result as the report shows it.

The process that collects results refers to these functions by name without importing torch. Each function therefore
imports its dependencies itself. A worker makes the calls once, and carries out each procedure once.
"""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.record.names import OPERATOR
from conformance.record.result import Failure, Named, Outcome, Result
from conformance.run.worker import environment, step, unit

if TYPE_CHECKING:
    from conformance.sources.operator.examine import Judging
    from conformance.sources.operator.verdict import CheckVerdict

MODULES = (__name__, "conformance.sources.operator.script")


@dataclass(frozen=True)
class CheckTask:
    """An operator and what to do with it, as text: paths of functions, the description of the inputs as JSON, the
    checks, the excluded ones with their reasons, the device, the seed of
    the inputs, and the forbidden operators."""

    operator: str
    like: str = ""
    reference: str = ""
    inputs: str = ""
    dtypes: tuple[str, ...] | None = None
    checks: tuple[str, ...] = ()
    exclude: tuple[tuple[str, str], ...] = ()
    batch: tuple[tuple[str, int], ...] = ()
    seconds: float = 20.0
    device: str = ""
    seed: int = 0
    forbid: tuple[str, ...] = ()
    reference_on_device: bool = False
    ties: str | None = None
    random: bool = False


@dataclass(frozen=True)
class OperatorCase(Named):
    """One check of a subject."""

    subject: CheckTask
    variant: str
    layout: str = OPERATOR
    overload: str = ""

    @property
    def op(self) -> str:  # type: ignore[override]
        """The name of the operator."""
        return self.subject.operator.replace(":", ".")

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The dtypes of op_db's samples, if the user names them."""
        return ",".join(self.subject.dtypes or ()) if self.subject.like else ""

    @property
    def call(self) -> str:  # type: ignore[override]
        """The call, in short."""
        return f"{self.op}(...)"


def describe_environment(target: str) -> tuple[dict[str, str], None]:
    """Return the environment of torch CPU."""
    return environment(target), None


@functools.cache
def _judging(subject: CheckTask) -> Judging:
    from conformance.sources.operator.examine import CheckRequest, Judging
    from conformance.sources.operator.subject import named

    request = CheckRequest(
        named(subject.operator),
        subject.like or None,
        named(subject.reference) if subject.reference else None,
        json.loads(subject.inputs) if subject.inputs else None,
        subject.dtypes,
        subject.checks or None,
        dict(subject.exclude),
        dict(subject.batch),
        seconds=subject.seconds,
        device=subject.device or None,
        seed=subject.seed,
        forbid=subject.forbid,
        reference_on_device=subject.reference_on_device,
        ties=subject.ties,
        random=subject.random,
        near=subject.operator.partition(":")[0] if ":" in subject.operator else "",
    )
    return Judging(request)


def run(target: str, case: OperatorCase) -> Result:
    """Return the result of a case. Raises UserError for a subject that contradicts itself."""
    begin = time.perf_counter()
    with unit(case.id):
        step("examination")
        verdict = _judging(case.subject).verdict(case.variant)
        if verdict.finding is not None:
            return _failed(case, verdict).replace(seconds=time.perf_counter() - begin)
    if not verdict.compared:
        return case.result(Outcome.SKIP, skipped=1, reason=verdict.reason, late=verdict.late)
    seconds, late = time.perf_counter() - begin, verdict.late
    return case.result(Outcome.PASS, samples=verdict.compared, reason=verdict.said, seconds=seconds, late=late)


def _failed(case: OperatorCase, verdict: CheckVerdict) -> Result:
    from conformance.sources.operator.causes import cause_of
    from conformance.sources.operator.examine import inputs_shown
    from conformance.sources.operator.finding import minimized
    from conformance.sources.operator.script import script

    assert verdict.finding is not None
    trial = _judging(case.subject).trial
    small = minimized(trial, verdict.finding)
    # Of the call as it was drawn: a small one may have values at which a fault does not show, such as 0.
    cause = cause_of(trial, verdict.finding, _judging(case.subject).is_found)
    more = {
        "cause": cause,
        "oracle": small.check,
        "call": inputs_shown(small.call),
        "script": script(trial, small),
        "cut": small.cut,
    }
    failure = Failure.of(small.mismatch, **more)
    dies = {"crash": Outcome.CRASH, "hang": Outcome.TIMEOUT}.get(small.check, Outcome.FAIL)
    count = verdict.others + 1
    return case.result(dies, samples=max(verdict.compared, count), failed=count, failures=(failure,))
