"""Trials in workers, one task each, within a time budget. A trial that crashes or hangs affects no other.

Defines `task`, the trial of the plainest subject of one op or step, `trials`, and `contradictions`, which checks the
declarations of a target's profile. `conformance init` and each run's check of the profile make the same trials. Trials
that run out of time are reported as "not tried", so a slow device does not appear to lack features.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from conformance.declare import profile as profiles
from conformance.declare.profile import Contradiction
from conformance.record import result as model
from conformance.record.missing_ops import Attempt, AttemptOutcome
from conformance.record.shortfall import MINUTES, Shortfall
from conformance.run.messages import COMPILING, Death, ExitReason, Task
from conformance.run.placed_pool import PlacedPool
from conformance.run.worker import loaded, step, unit

if TYPE_CHECKING:
    from conformance.engine.executor import Subject
    from conformance.engine.target import Target
    from conformance.run.session import Session

MODULES = ("conformance.engine.attempt",)

LATE = "the time was over"
"""Reason reported for a trial that was not made."""

BUDGET = 60.0
"""Seconds that a run spends on trials of the lacks that its profile declares."""

AHEAD = 8
"""Number of trials that the pool holds at a time; it runs these even after the time is over."""

RETRIES = 1
"""Retries after a death, each in a fresh worker, because an earlier trial may have corrupted the process."""


def trials(pool: PlacedPool, tasks: Sequence[Task], seconds: float) -> Iterator[Attempt]:
    """Yield each task's trial as it ends, then, when the time is over, an UNTRIED trial for each remaining task. Raises
    TargetError if no worker can be started, and Stopped.
    """
    left, tries = {task.name: task for task in tasks}, dict.fromkeys((task.name for task in tasks), 0)
    waiting = deque(tasks)
    for _ in range(min(AHEAD, len(waiting))):
        pool.submit(waiting.popleft())
    for ended, answer in pool.ended(seconds):
        if ended not in tasks:  # of earlier trials that ran out of time
            continue
        if waiting:
            pool.submit(waiting.popleft())
        if isinstance(answer, Death):
            tries[ended.name] += 1
            if answer.reason is ExitReason.CRASH and tries[ended.name] <= RETRIES:
                pool.submit(ended)
                continue
            yield Attempt(ended.name, AttemptOutcome.DIED, said=answer.said)
        elif answer.error is not None:
            yield Attempt(ended.name, AttemptOutcome.FAILS, said=f"{type(answer.error).__name__}: {answer.error}"[:200])
        else:
            yield answer.value
        del left[ended.name]
    for name in left:
        yield Attempt(name, AttemptOutcome.UNTRIED, said=LATE)


Plainest = Callable[["Target", str], "Subject | str"]
"""Function that returns the plainest subject with the op or step of this name, or the reason why there is none. It is
called in a worker, and depends on the name and the target's dtypes alone."""


def task(spec: str, plainest: Plainest, name: str) -> Task:
    """Return the trial of the op or step of this name as a task for a pool."""
    return Task(name, trial, (spec, plainest, name))


def trial(spec: str, plainest: Plainest, name: str) -> Attempt:
    """Run, in a worker, the trial of the op or step of this name."""
    from conformance.engine.attempt import attempt

    target = loaded(spec)
    subject = plainest(target, name)
    if isinstance(subject, str):
        return Attempt(name, AttemptOutcome.UNTRIED, said=subject)
    with unit(name):
        step(name, COMPILING)  # the first kernel is compiled here
        return attempt(name, subject, target)


def contradictions(
    session: Session, key: str, plainest: Plainest, seconds: float, operators: Collection[str] | None = None
) -> tuple[list[Contradiction], list[str]]:
    """Return what contradicts the target's profile, from trials of at most `seconds`, and notes.

    A contradiction is an operator that works, which the profile declares lacking for ops or steps (`key`), or a feature
    or dtype for which the probe's answer is not the profile's. With `operators`, only these are tried. The notes list
    trials that cannot be made. The session gets the trials without time."""
    profile, spec = profiles.load(session.target), session.target
    declared = profile.unsupported("operator").items()
    names = [
        getattr(declaration.scope, key)
        for operator, declaration in declared
        if operators is None or operator in operators
    ]
    tasks = [task(spec, plainest, some[0]) for some in names if some]
    words = {
        AttemptOutcome.WORKS: "works",
        AttemptOutcome.FAILS: "is there and fails otherwise",
        AttemptOutcome.DIED: "ends its process",
    }
    found, notes = profile.contradicted(session.seen)
    if not tasks:
        return found, notes
    with PlacedPool(session.place, spec, session.limits, 1, [plainest.__module__, *MODULES]) as pool:
        pool.ask_first(os.getpid)  # the time counts from when the target is loaded
        tried = list(trials(pool, tasks, seconds))
    for answer in tried:
        if answer.outcome in words:
            detail = f" ({answer.said})" if answer.said else ""
            remedy = profile.remedy(key, answer.name)
            reason = f"declared lacking, and {words[answer.outcome]}{detail}: {remedy}"
            found.append(Contradiction(answer.name, model.Outcome.XPASS, reason))
    late = sum(result.said == LATE for result in tried)
    if late:
        limit = MINUTES if seconds < BUDGET else f"{BUDGET:g} s"
        session.not_judged.append(Shortfall("trials of what the profile declares lacking", late, len(tried), limit))
    untried = sum(result.outcome is AttemptOutcome.UNTRIED for result in tried) - late
    if untried:
        notes = [f"{untried} of {len(tried)} trials of what is declared lacking could not be made.", *notes]
    return found, notes
