"""The tasks of `conformance accuracy`: measure one case and return its result.

The process that collects results refers to these functions by name without importing torch. Each function therefore
imports its dependencies itself.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from conformance.record.accuracy import ACCURACY, limit, shown
from conformance.record.errors import TargetError, UserError
from conformance.record.result import LONGEST_TEXT, Failure, Outcome, Result
from conformance.record.sentences import sentence
from conformance.run.messages import COMPILING, TARGET
from conformance.run.worker import environment_and_dtypes, loaded, step, unit
from conformance.sources.accuracy.table import AccuracyCase, OfRow

if TYPE_CHECKING:
    from conformance.engine.target import Target
    from conformance.sources.accuracy.measure import MeasuredAnswer

MODULES = (__name__, "conformance.sources.accuracy.script")


def describe_environment(target: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Return the target's environment, and the dtypes that it holds (None: all). Raises TargetError if it cannot be
    used, or has no values to measure.
    """
    if not loaded(target).facts.shows_values:
        raise TargetError(
            f"target {target!r} has no values whose errors could be measured: choose one that computes, such as "
            "device:NAME or compile:NAME"
        )
    return environment_and_dtypes(target)


def run(target: str, case: AccuracyCase) -> Result:
    """Return the case's result."""
    from conformance.sources.accuracy.measure import measure

    return judged_by(_judged, measure, "reference", target, case)


C = TypeVar("C", bound=OfRow)
M = TypeVar("M")


def judged_by(
    judge: Callable[[C, str, M], Result],
    measure: Callable[[C, Target, Callable[[int, bool], None]], M],
    first: str,
    target: str,
    case: C,
    script: Callable[[C, str, str], str] = lambda case, setup, headline: "",
) -> Result:
    """Measure a case and return the result of `judge`, which receives the case, the target's script lines and the
    measurement.

    If the case cannot be measured, the result is a skip with the reason. If the target raises, it is a failure with its
    `script`. `first` names the step before the target runs.
    """
    under_test, begin = loaded(target), time.perf_counter()
    from conformance.sources.accuracy.outcomes import Raises, Unmeasured

    with unit(case.id), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about functions at the ends of their ranges
        step(first)
        try:
            parts = measure(case, under_test, lambda number, builds: step(TARGET, COMPILING if builds else TARGET))
        except UserError:
            raise
        except Unmeasured as why:
            result = case.result(Outcome.SKIP, skipped=1, reason=str(why))
        except Raises as error:
            failure = Failure(error.oracle, "the call", "an answer", f"{error}"[:LONGEST_TEXT], call=case.call)
            failure = replace(failure, script=script(case, under_test.script(), f"{case.id}: {sentence(failure)}"))
            result = case.result(Outcome.FAIL, samples=1, failed=1, failures=(failure,))
        else:
            result = judge(case, under_test.script(), parts)
    return result.replace(seconds=time.perf_counter() - begin)


def _judged(case: AccuracyCase, setup: str, parts: Sequence[MeasuredAnswer]) -> Result:
    from conformance.sources.accuracy.script import standalone

    worst = parts[0]
    accuracy = worst.accuracy
    if accuracy.excess <= 1:
        return case.result(Outcome.PASS, samples=1, accuracy=accuracy)
    by_mean = accuracy.target <= limit(accuracy.cpu)
    errors = (accuracy.cpu_rms, accuracy.target_rms) if by_mean else (accuracy.cpu, accuracy.target)
    failure = Failure(
        ACCURACY,
        accuracy.of,
        f"at most {shown(limit(errors[0]))} ulp{' in the mean' * by_mean}",
        f"{shown(errors[1])} ulp",
        f"torch CPU {shown(errors[0])} ulp; at {accuracy.at} exact {worst.exact[0]!r}, torch CPU {worst.cpu!r}, target "
        f"{worst.target!r}",
        call=case.row.call,
    )
    failures = (replace(failure, script=standalone(case, setup, worst, worst.wanted, failure)),)
    return case.result(Outcome.FAIL, samples=1, failed=1, failures=failures, accuracy=accuracy)
