"""The tasks of `conformance modules`: judge the samples of one case on a target and return its result.

The process that collects results refers to these functions by name without importing torch. Each function therefore
imports its dependencies itself.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.record.case_counts import CaseCounts
from conformance.record.errors import UserError
from conformance.record.measurements import NOT_COMPILED
from conformance.record.result import Failure, Outcome, Result
from conformance.record.sentences import sentence
from conformance.run.messages import COMPILING
from conformance.run.worker import environment_and_dtypes, loaded, step, unit
from conformance.sources.modules.table import OPTIMIZER, StatefulCase, names

if TYPE_CHECKING:
    from conformance.engine.target import Target
    from conformance.sources.modules.programs import StatefulTrial

MODULES = (__name__, "conformance.sources.modules.programs", "conformance.sources.modules.script")


def describe_environment(target: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Return the target's environment, and the dtypes that it holds (None: all). Raises TargetError if it cannot be
    used, or can hold no module."""
    from conformance.record.errors import TargetError

    under_test = loaded(target)
    facts = under_test.facts
    if not facts.shows_values or (facts.transforms_program and not facts.compiles):
        raise TargetError(
            f"target {target!r} cannot hold a module or an optimizer, which keep their state between calls: choose a "
            "device or a compiler"
        )
    environment, held = environment_and_dtypes(target)
    if missing := names_without_row():
        environment["modules without a row"] = ", ".join(missing)
    return environment, held


def names_without_row() -> list[str]:
    """Return the entries of the installed torch that the table does not have. They are not run, and a run says so."""
    from conformance.standalone.torch_compat import module_infos, optimizer_infos

    dense = [name for name, info in optimizer_infos().items() if not info.only_supports_sparse_grads]
    return sorted({*module_infos(), *(f"{OPTIMIZER}{name}" for name in dense)} - {*names()})


def run(target: str, case: StatefulCase) -> Result:
    """Return the result of a case: its samples are compared one by one, and the first failure of each oracle is kept.
    A case is skipped, with the reason, only if torch CPU itself has no answer for any sample, or torch no such case."""
    under_test, begin = loaded(target), time.perf_counter()
    with unit(case.id), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step("sampling")
        result = judge_case(case, under_test)
    return result.replace(seconds=time.perf_counter() - begin)


def judge_case(case: StatefulCase, target: Target) -> Result:
    """Return the result of a case on a target that is loaded. See `run`."""
    from conformance.sources.modules.programs import trials_of

    if reason := unfit(case, target):
        return case.result(Outcome.SKIP, skipped=1, reason=reason)
    counts = CaseCounts(case)
    try:
        for trial in trials_of(case, target):
            _judge(trial, counts)
    except UserError:
        raise
    except Exception as error:
        counts.failed += 1
        counts.fail(Failure.of_harness(error))
    return counts.result()


def unfit(case: StatefulCase, target: Target) -> str:
    """Return why torch does not define the case on a target, or ""."""
    from conformance.standalone.torch_compat import module_infos, optimizer_infos, renamed_backend

    infos = optimizer_infos()
    if (case.optimizer or case.op) not in (infos if case.optimizer else module_infos()):
        return f"this torch has no {case.op}"
    device = target.device.type
    if case.variant != "fused" or device in (*infos[case.optimizer].supports_fused_on, renamed_backend()):
        return ""
    return f"torch has no fused {case.optimizer} for {device}"


def _judge(trial: StatefulTrial, counts: CaseCounts) -> None:
    """Run a trial on torch CPU and on the target, and count what it says about the target."""
    from conformance.program.verdict import compare_call
    from conformance.sources.modules.script import standalone
    from conformance.standalone.oracles import headline

    case, target, number = trial.case, trial.target, trial.number
    step(f"sample {number} on torch CPU")
    error = trial.cpu.run.last.error
    if error is not None and error.not_implemented:
        return counts.skip(f"the CPU does not implement it either: {headline(error.text)}", excused=True)
    here = f"sample {number} on the target"
    verdict = compare_call(trial, lambda _, builds: step(here, COMPILING if builds else here))
    if verdict.unsupported:
        return counts.skip(verdict.unsupported, excused=True)
    if not verdict.mismatches and verdict.extent == NOT_COMPILED:
        return counts.skip(f"{NOT_COMPILED}: the compiler received nothing", excused=True)
    counts.compared += 1
    counts.failed += bool(verdict.mismatches)
    counts.arbitrated += verdict.arbitrated
    counts.tolerated += verdict.tolerated
    for mismatch in verdict.mismatches:
        failure = Failure.of(mismatch, sample=number, call=trial.source[:200])
        script = standalone(case, target.script(), number, f"{case.id}: {sentence(failure)}", mismatch)
        counts.fail(replace(failure, script=script))
    return None
