"""Minimization of failing op_db samples: the first failing sample of each cause becomes a small failing program.

Defines `minimize`. A sample becomes a program (`sample_program`), and the reducer of programs shrinks it in a worker
that may die (`run/shrink_progress`). This module runs in the process that collects results, which does not import
torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.record.causes import pattern_of_result
from conformance.record.errors import TargetError
from conformance.record.finding import ON_CPU, ON_TARGET
from conformance.record.names import DTYPES, LAYOUTS, MEASURED, NOT_COMPARED, VARIANTS
from conformance.record.patterns import base_operator
from conformance.record.result import RERUN, Failure, Result, Run, counted, severity
from conformance.record.shortfall import FINDINGS, MINUTES, Shortfall
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.isolation import PlacedPool
from conformance.run.messages import Death, Limits, Task
from conformance.run.shrink_progress import DEATHS, ShrinkProgress
from conformance.sources.opinfo import worker
from conformance.sources.opinfo.plan import Case

BUDGET, SHARE = 120.0, 0.15
"""Limit in seconds on the minimization of all failures of a run, and the part of a run's time limit that is left for
it if cases fail."""

TRIAL = 10.0
"""Limit in seconds on one trial. A longer one counts as a hang."""

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
    modules = (worker.__name__, "conformance.sources.opinfo.smaller")
    limits = replace(limits, unit=min(limits.unit, TRIAL))
    tasks = [
        Task(id, worker.minimized, (run.target, cases[id], failure, until, ShrinkProgress()))
        for id, failure in chosen.items()
    ]
    with PlacedPool(place, run.target, limits, min(jobs, len(chosen)), modules) as pool:
        try:
            for task, answer in pool.results(tasks, _after_death, seconds + limits.unit):
                if isinstance(answer, Failure):
                    small[task.name] = answer
                elif answer:  # "" for a failure without time
                    reasons[answer if isinstance(answer, str) else f"{type(answer).__name__}: {answer}"] += 1
        except TargetError as error:
            reasons[str(error)] = len(chosen) - len(small) - reasons.total()
    run.results = [_with(result, small.get(result.id)) for result in run.results]
    if late := len(chosen) - len(small) - reasons.total():
        run.not_judged.append(Shortfall(FINDINGS, late, len(chosen), limit))
    counts = "; ".join(f"{reason}: {count}" for reason, count in reasons.most_common() if count)
    if counts:
        run.notes.append(f"{len(small)} of {counted(len(chosen), 'failure')} minimized ({counts})")


def _after_death(task: Task, death: Death) -> Task | str:
    """Return the task with the progress of its dead worker, or the reason why there is no further one. After too many
    deaths, the last worker judges the smallest program so far."""
    *args, failure, until, before = task.args
    progress = before.after(death, [DEATHS[failure.oracle]] if failure.oracle in DEATHS else [])
    ends = before.over or (progress.over and not progress.best)
    return "its worker dies too often" if ends else replace(task, args=(*args, failure, until, progress))


def _chosen(run: Run, cases: Mapping[str, Case]) -> dict[str, Failure]:
    """Return the first failure of each pattern and operator, by the id of its result."""
    chosen: dict[tuple[str, str], tuple[str, Failure]] = {}
    for result in sorted(run.results, key=_plainest):
        if result.outcome in RERUN and not result.layer and result.id in cases and result.failures:
            first = result.failures[0]
            if first.oracle not in UNSHOWN and (first.oracle not in DEATHS or first.where in (ON_CPU, ON_TARGET)):
                chosen.setdefault((base_operator(result.name), pattern_of_result(result)), (result.id, first))
    return dict(chosen.values())


def _plainest(result: Result) -> tuple[Any, ...]:
    """Sort key: the worst results first, among them forward calls in float32 as OpInfo samples them."""
    *rank, id = severity(result)
    names = ((VARIANTS, result.variant), (LAYOUTS, result.layout), (DTYPES, result.dtype))
    return (*rank, *([*known].index(name) if name in known else len(known) for known, name in names), id)


def _with(result: Result, failure: Failure | None) -> Result:
    return result if failure is None else result.replace(failures=(failure, *result.failures[1:]))
