"""Trials in workers, one task each, within a budget of time: a trial may end or hang its process, and only itself.

Defines `trials`, and `still_lacking`, which a run asks of what its target's profile declares. The key insight: trials
that time did not suffice for are told as not tried, so that a slow device is never taken for a poor one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from conformance.core.lacking import Outcome, Trial
from conformance.run.messages import Death, Fate, Limits, Pool, Task, WorkerDied, unusable
from conformance.run.place import LOCAL, Place

LATE = "the time was over"
"""Said of a trial that was not made."""

BUDGET = 60.0
"""Seconds that a run spends on what its profile declares lacking."""

AHEAD = 8
"""So many trials are handed to the pool at once: what it has is run even when the time is over."""

RETRIES = 1
"""A death is told after so many more tries, each in a fresh worker: the one before may have poisoned the process."""


def trials(pool: Pool, spec: str, tasks: Sequence[Task], seconds: float) -> Iterator[Trial]:
    """Each task's trial as it ends, and, when the time is over, those that were not made. Raises TargetError where no
    worker can be started, and Stopped."""
    left, tries = {task.name: task for task in tasks}, dict.fromkeys((task.name for task in tasks), 0)
    waiting = deque(tasks)
    for _ in range(min(AHEAD, len(waiting))):
        pool.submit(waiting.popleft())
    for task, answer in pool.ended(seconds):
        if task not in tasks:  # of earlier trials, whose time was over
            continue
        if waiting:
            pool.submit(waiting.popleft())
        if isinstance(answer, Death):
            if answer.fate is Fate.NEVER_STARTED:
                raise unusable(spec, answer)
            tries[task.name] += 1
            if answer.fate is Fate.CRASH and tries[task.name] <= RETRIES:
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
    """One trial of everything that a profile declares lacking: by the name of what is there after all, the sentence
    that says so, with what to delete (`told`); and sentences on what was not tried."""
    there, notes = {}, []
    words = {Outcome.WORKS: "works", Outcome.FAILS: "is there and fails otherwise", Outcome.DIED: "ends its process"}
    if not tasks:
        return {}, []
    with place.pool(spec, limits, 1, modules) as pool:
        try:
            pool.ask(os.getpid)  # the time counts from where the target is loaded
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
