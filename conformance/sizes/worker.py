"""What a worker does: measure one case, and say what was found as a result.

The key insight: the process that collects results names these functions without importing torch, so everything that
they need is imported inside of them.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

from conformance.core.errors import TargetError, UserError
from conformance.core.footprint import Footprint
from conformance.core.result import Failure, Outcome, Result
from conformance.run.messages import COMPILING
from conformance.run.worker import loaded, step, unit
from conformance.sizes.table import Case

if TYPE_CHECKING:
    from conformance.sizes.calls import Side

MODULES = (__name__, "conformance.sizes.script")


def described(target: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """The target's environment, and the dtypes that it holds (None: all). Raises TargetError where it cannot be
    used, or has no values to compare, or peak memory cannot be measured here."""
    under_test = loaded(target)
    if not under_test.shows_values:
        raise TargetError(
            f"target {target!r} computes nothing, so it takes no memory: choose one that computes, such as device:NAME "
            "or compile:NAME"
        )
    from conformance.sizes.calls import begin_peak

    try:
        begin_peak()
    except OSError as error:
        raise TargetError(f"peak memory is measured by /proc/self/clear_refs, which is not there: {error}") from None
    held = under_test.dtypes
    # As plain text: torch's version is an object, and reading it back would import torch in the parent.
    environment = {name: str.__str__(text) for name, text in under_test.environment().items()}
    return environment, None if held is None else tuple(str(dtype).removeprefix("torch.") for dtype in held)


def run(target: str, case: Case) -> Result:
    """The case's result."""
    under_test, begin = loaded(target), time.perf_counter()
    from conformance.sizes.measure import Raises, Unmeasured, measure
    from conformance.sizes.script import standalone

    with unit(case.id), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step("torch CPU")
        try:
            sides = measure(case, under_test, lambda number, builds: step("target", COMPILING if builds else "target"))
        except UserError:
            raise
        except Unmeasured as why:
            result = case.result(Outcome.SKIP, skipped=1, reason=str(why))
        except Raises as error:
            failure = Failure(error.oracle, "the call", "an answer", f"{error}"[:2_000], call=case.row.call)
            script = standalone(case, under_test.script(), f"{case.id}: {failure}")
            failures = (Failure(**{**vars(failure), "script": script}),)
            result = case.result(Outcome.FAIL, samples=1, failed=1, failures=failures)
        else:
            result = judged(case, under_test.script(), *sides)
    return result.replace(seconds=time.perf_counter() - begin)


def judged(case: Case, setup: str, cpu: Side, got: Side) -> Result:
    """The result of a case that both sides answered."""
    from conformance.sizes.calls import faults
    from conformance.sizes.script import standalone

    found = faults(cpu, got)
    script = standalone(case, setup, f"{case.id}: {found[0]}") if found else ""
    failures = tuple(Failure(*words, call=case.row.call, script=script) for words in found)
    footprint = Footprint(cpu.held, got.peak, cpu.peak, round(got.seconds, 3), round(cpu.seconds, 3))
    outcome = Outcome.FAIL if failures else Outcome.PASS
    return case.result(outcome, samples=1, failed=len(failures[:1]), failures=failures, footprint=footprint)
