"""Trials in workers, one task each, within a time budget. A trial that crashes or hangs affects no other.

Defines `trials`, and `still_lacking`, which checks the declarations of a target's profile. Trials that run out of time
are reported as "not tried", so a slow device does not appear to lack features.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from conformance.record.missing_ops import Outcome, Trial
from conformance.run.execution_place import LOCAL, Place
from conformance.run.messages import Death, ExitReason, Limits, Pool, Task, WorkerDied, unusable

LATE = "the time was over"
"""Reason reported for a trial that was not made."""

BUDGET = 60.0
"""Seconds that a run spends on trials of the lacks that its profile declares."""

AHEAD = 8
"""Number of trials that the pool holds at a time; it runs these even after the time is over."""

RETRIES = 1
"""Retries after a death, each in a fresh worker, because an earlier trial may have corrupted the process."""


def trials(pool: Pool, spec: str, tasks: Sequence[Task], seconds: float) -> Iterator[Trial]:
    """Yield each task's trial as it ends, then, when the time is over, an UNTRIED trial for each remaining task. Raises
    TargetError if no worker can be started, and Stopped.
    """
    left, tries = {task.name: task for task in tasks}, dict.fromkeys((task.name for task in tasks), 0)
    waiting = deque(tasks)
    for _ in range(min(AHEAD, len(waiting))):
        pool.submit(waiting.popleft())
    for task, answer in pool.ended(seconds):
        if task not in tasks:  # of earlier trials that ran out of time
            continue
        if waiting:
            pool.submit(waiting.popleft())
        if isinstance(answer, Death):
            if answer.reason is ExitReason.NEVER_STARTED:
                raise unusable(spec, answer)
            tries[task.name] += 1
            if answer.reason is ExitReason.CRASH and tries[task.name] <= RETRIES:
                pool.submit(task)
                continue
            yield Trial(task.name, Outcome.DIED, said=answer.said)
        elif answer.error is not None:
            yield Trial(task.name, Outcome.FAILS, said=f"{type(answer.error).__name__}: {answer.error}"[:200])
        else:
            yield answer.value
        del left[task.name]
    for name in left:
        yield Trial(name, Outcome.UNTRIED, said=LATE)


def still_lacking(
    spec: str,
    limits: Limits,
    modules: Sequence[str],
    tasks: Sequence[Task],
    told: Callable[[str], str],
    seconds: float = BUDGET,
    place: Place = LOCAL,
) -> tuple[dict[str, str], list[str]]:
    """Run one trial of each declared lack. Return sentences on those that do not hold, by name, with the lines to
    delete (`told`); and notes on trials that were not made.
    """
    there, notes = {}, []
    words = {Outcome.WORKS: "works", Outcome.FAILS: "is there and fails otherwise", Outcome.DIED: "ends its process"}
    if not tasks:
        return {}, []
    with place.pool(spec, limits, 1, modules) as pool:
        try:
            pool.ask(os.getpid)  # the time counts from when the target is loaded
        except WorkerDied as died:
            raise unusable(spec, died.death) from None
        made = list(trials(pool, spec, tasks, seconds))
    for trial in made:
        if trial.outcome in words:
            said = f" ({trial.said})" if trial.said else ""
            there[trial.name] = f"declared lacking, and {words[trial.outcome]}{said}: {told(trial.name)}"
    untried = sum(trial.outcome is Outcome.UNTRIED for trial in made)
    if untried:
        notes.append(f"{untried} of {len(made)} trials of what is declared lacking could not be made.")
    return there, notes
