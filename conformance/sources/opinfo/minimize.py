"""Minimization of failing op_db samples: the first failing sample of each cause becomes a small failing program.

Defines `minimize`. A sample becomes a program (`sample_program`), which is shrunk as a drawn one (`run/shrinking`).
This module runs in the process that collects results. It imports torch only if there is a failure to minimize.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conformance.record.causes import pattern_of_result
from conformance.record.errors import TargetError
from conformance.record.finding import FLAKY, ON_CPU, ON_TARGET, TIMEOUT
from conformance.record.names import DTYPES, LAYOUTS, MEASURED, NOT_COMPARED, VARIANTS
from conformance.record.patterns import base_operator
from conformance.record.result import RERUN, Failure, Result, Run, counted, severity
from conformance.record.shortfall import FINDINGS, MINUTES, Shortfall
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.messages import Limits, OutOfTime, Task, WorkerDied
from conformance.sources.opinfo.plan import Case

if TYPE_CHECKING:
    from conformance.run.failing_program import FailingProgram
    from conformance.run.shrinking import LocalShrinker

BUDGET, SHARE = 120.0, 0.15
"""Limit in seconds on the minimization of all failures of a run, and the part of a run's time limit that is left for
it if cases fail."""

TRIALS, SECONDS, TRIAL = 250, 30.0, 10.0
"""Limits on one failure: the number of smaller programs, and the seconds for all and for one of them. A longer trial
counts as a hang."""

MODULES = ("conformance.sources.opinfo.sample_failure",)

ENDED = ("crash", "timeout")
"""Oracles of a failure that ended its worker."""

UNSHOWN = (*MEASURED, "harness", NOT_COMPARED, "memory", "message", "device")
"""Oracles that the verdict on a program does not have, or that no script can show."""


def minimize(
    run: Run,
    cases: Mapping[str, Case],
    limits: Limits,
    jobs: int = 1,
    place: ExecutionPlace = LOCAL,
    seconds: float = BUDGET,
) -> None:
    """Replace the first failure of a result by its minimized form, for the first undeclared result of each pattern and
    operator, the worst first. `cases` are the run's cases by id. The run's notes count the failures that stay as they
    are, with the reasons; those without time are a shortfall of the run.
    """
    until, chosen = time.time() + seconds, _chosen(run, cases)
    if not chosen:
        return
    limit = MINUTES if seconds < BUDGET else f"{BUDGET:g} s"
    if seconds <= 0:
        run.not_judged.append(Shortfall(FINDINGS, len(chosen), len(chosen), limit))
        return
    small: dict[str, Failure] = {}
    reasons = Counter[str]()
    limits = replace(limits, unit=min(limits.unit, TRIAL))
    try:
        for id, answer in _minimized(run.target, cases, chosen, limits, min(jobs, len(chosen)), place, until):
            if isinstance(answer, Failure):
                small[id] = answer
            elif answer:  # "" for a failure without time
                reasons[answer] += 1
    except TargetError as error:
        reasons[str(error)] = len(chosen) - len(small) - reasons.total()
    culprits = {_operator_and_pattern(result): small[result.id].culprit for result in run.results if result.id in small}
    run.results = [
        _with(result, small.get(result.id), culprits.get(_operator_and_pattern(result), "")) for result in run.results
    ]
    if late := len(chosen) - len(small) - reasons.total():
        run.not_judged.append(Shortfall(FINDINGS, late, len(chosen), limit))
    unchanged = sum(failure.script == chosen[id].script for id, failure in small.items())
    reasons["not smaller, but with the operator to blame"] = unchanged
    counts = "; ".join(f"{reason}: {count}" for reason, count in reasons.most_common() if count)
    if counts:
        run.notes.append(f"{len(small) - unchanged} of {counted(len(chosen), 'failure')} minimized ({counts})")


def _minimized(
    target: str,
    cases: Mapping[str, Case],
    chosen: Mapping[str, Failure],
    limits: Limits,
    jobs: int,
    place: ExecutionPlace,
    until: float,
) -> Iterator[tuple[str, Failure | str]]:
    """Yield the answer of `minimized` for each failure, by its result's id: in threads of this process, or at another
    place in tasks of a pool. Raises TargetError."""
    from conformance.run.program_workers import ProgramWorkers
    from conformance.run.shrinking import ThreadShrinker, result_of, with_shrinker

    with ProgramWorkers(target, limits, jobs, place, MODULES) as workers:
        if place.local:
            with ThreadShrinker(workers, jobs, TRIALS) as threads:
                running = {id: threads.submit(minimized, cases[id], failure, until) for id, failure in chosen.items()}
                for id, future in running.items():
                    yield id, result_of(future)
            return
        tasks = [
            Task(id, with_shrinker, (target, limits, TRIALS, minimized, cases[id], failure, until))
            for id, failure in chosen.items()
        ]
        for task, answer in workers.results(tasks, lambda task, death: death.said, until - time.time() + limits.unit):
            yield task.name, f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else answer


def minimized(shrinker: LocalShrinker, case: Case, failure: Failure, until: float) -> Failure | str:
    """Return the failure on its smallest program, or the reason why it stays as it is; "" if there is no time. No trial
    begins after `until`, in seconds since the epoch."""
    from conformance.sources.opinfo.sample_failure import NOT_REPEATED, failing_programs, failure_on

    workers, until = shrinker.workers, min(until, time.time() + SECONDS)
    try:
        programs = workers.ask(failing_programs, workers.target, case, failure, until=until)
        if isinstance(programs, str):
            return programs
        for program in programs:
            small = program
            if failure.where != ON_CPU:  # where the reference ends its process, no smaller program can be judged
                workers.hang = _hanging(workers.target, program)
                small = shrinker.smaller(program, until)
            if small.kind != FLAKY:
                return workers.ask(failure_on, workers.target, case, failure, small)
        return NOT_REPEATED
    except OutOfTime:
        return ""
    except WorkerDied as died:
        return f"its program ends the worker: {died.death.said}"
    except TargetError:
        raise
    except Exception as error:  # of the harness itself
        return f"{type(error).__name__}: {error}"


def _hanging(target: str, finding: FailingProgram) -> frozenset[str]:
    """The ops whose kernels must compile within a trial's time: those of a program that hangs, since only some devices
    build kernels for long. They need the time on a lazy target, or one that transforms programs."""
    from conformance.engine.loading import describe_target

    facts = describe_target(target).facts
    if finding.kind != TIMEOUT or facts.lazy or facts.transforms_program:
        return frozenset()
    return frozenset(["", *(step.op for step in finding.program.steps)])


def _chosen(run: Run, cases: Mapping[str, Case]) -> dict[str, Failure]:
    """Return the first failure of each pattern and operator, by the id of its result."""
    chosen: dict[tuple[str, str], tuple[str, Failure]] = {}
    for result in sorted(run.results, key=_worst_first):
        if result.outcome in RERUN and not result.layer and result.id in cases and result.failures:
            first = result.failures[0]
            if first.oracle not in UNSHOWN and (first.oracle not in ENDED or first.where in (ON_CPU, ON_TARGET)):
                chosen.setdefault(_operator_and_pattern(result), (result.id, first))
    return dict(chosen.values())


def _worst_first(result: Result) -> tuple[Any, ...]:
    """Sort key: the worst results first, among them forward calls in float32 as OpInfo samples them."""
    *rank, id = severity(result)
    names = ((VARIANTS, result.variant), (LAYOUTS, result.layout), (DTYPES, result.dtype))
    return (*rank, *([*known].index(name) if name in known else len(known) for known, name in names), id)


def _operator_and_pattern(result: Result) -> tuple[str, str]:
    """The operator and the pattern of a result. Of those that share them, one is minimized."""
    return base_operator(result.name), pattern_of_result(result)


def _with(result: Result, failure: Failure | None, culprit: str) -> Result:
    """Return the result with its minimized failure, or with the culprit that a result like it has."""
    if failure is None and not (culprit and result.failures):
        return result
    return result.replace(failures=(failure or replace(result.failures[0], culprit=culprit), *result.failures[1:]))
