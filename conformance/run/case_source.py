"""The source of a list of cases in a session: it selects the cases and runs them in workers.

Defines `CaseSource`, with the journal and the declarations of any cases, and `JobSource`, for cases that a `Job` runs
in the workers of a `JobPool`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declaration import CASES, Declaration, check, read, refuse
from conformance.record import shortfall, versions
from conformance.record.footprint import SHORT
from conformance.record.missing_ops import DECLARED
from conformance.record.result import Failure, Named, Outcome, Result, Run
from conformance.run import options
from conformance.run.cases import CaseOptions, CasePool, CaseRun, Listener
from conformance.run.execution_place import ExecutionPlace
from conformance.run.journal import Journal
from conformance.run.messages import TARGET, Death, ExitReason, Limits, Task
from conformance.run.placed_pool import OUTCOMES
from conformance.run.session import Session, Source
from conformance.run.terminal import shown


@dataclass(frozen=True)
class Job:
    """Code that runs in workers, by the target's spec: `run` returns the result of a case, and `describe_environment`
    the target's environment and the dtypes that it holds (None: all). `modules` are imported beforehand.
    """

    describe_environment: Callable[[str], tuple[dict[str, str], tuple[str, ...] | None]]
    run: Callable[[str, Any], Result]
    modules: Sequence[str]


def expectations_file(name: str, target: str) -> Path:
    """Return the file of a target's known findings; it is separate from op_db's file, which is about other cases."""
    return expectations.FOLDER / name / f"{target if target == '<target>' else profiles.file_name(target)}.toml"


def declared(name: str, file: Path, ops: Iterable[str], variants: Sequence[str]) -> list[Declaration]:
    """Return the known findings in a file, none if it does not exist. Raises ReportError for a name without a row."""
    declarations = read(file)
    refuse(check(declarations, CASES, expectations.WORDS | {"op": [*ops], "variant": variants, "layout": (name,)}))
    return declarations


class JobPool(CasePool):
    """Workers that run the cases of a job, `jobs` at a time. Use as a context manager."""

    def __init__(self, place: ExecutionPlace, target: str, limits: Limits, jobs: int, job: Job) -> None:
        super().__init__(place, target, limits, jobs, job.modules)
        self.job = job

    def task_of(self, case: Named) -> Task:
        """See `CasePool.task_of`."""
        return Task(case.id, self.job.run, (self.target, case))

    def after_death(self, task: Task, case: Named, death: Death) -> Result:
        """Return the result of a case whose worker died."""
        if reason := _too_small(death):
            return case.result(Outcome.SKIP, skipped=1, reason=reason)
        outcome, oracle = OUTCOMES[death.reason]
        phase = death.note.steps[-1] if death.note and death.note.steps else "the worker"
        failure = Failure(oracle, phase, "an answer", death.said, call=case.call)
        return case.result(outcome, samples=1, failed=1, failures=(failure,))


def _too_small(death: Death) -> str:
    """Return the reason if the worker died at its memory limit before the target ran, or with less memory than the call
    may take; "" for any other death.
    """
    steps = death.note.steps if death.note is not None and death.reason is ExitReason.MEMORY else ()
    noted = next((text for text in steps if text.startswith(SHORT)), "")
    return noted or (f"{SHORT} before the target runs" if steps and TARGET not in steps else "")


class CaseSource(Source):
    """A source of cases, whose results are in a journal. A subclass runs them."""

    stem: str
    title: str
    usual: Limits
    file: Path
    """The file of known findings, which need not exist."""
    done = "measured"
    """What happens with a case, in words."""

    @property
    def what(self) -> str:
        """The name of its cases in a shortfall."""
        return shortfall.CASES.format(self.stem)

    def identity(self, session: Session) -> dict[str, Any]:
        """Return the facts that an interrupted run must have in common with this one, beside target and torch."""
        raise NotImplementedError

    def run_cases(self, session: Session, seconds: float, finished: Sequence[Result], listener: Listener) -> Run:
        """Run the cases that are not finished; at a stop, return the results so far. Raises TargetError for a target
        that cannot be loaded or has no values."""
        raise NotImplementedError

    def read_declarations(self) -> Sequence[Declaration]:
        """Return the declarations of known findings."""
        return read(self.file)

    def execute(self, session: Session, seconds: float) -> Run:
        """Run the cases under the progress bar. `--resume` continues an interrupted run from its journal."""
        args = session.args
        identity = {"target": session.spec, **self.identity(session), "torch": str(versions.installed())}
        with Journal(args.reports, self.stem, identity, args.resume) as journal, shown(session.console) as view:
            listener = Listener(started=view.start, ended=journal.add, judged=view.add)
            run = self.run_cases(session, seconds, journal.finished, listener)
            self.journal = journal
        run.seconds = journal.seconds
        run.expectations = str(self.file) if self.file.exists() else ""
        return run

    def declare(self, session: Session, run: Run) -> list[str]:
        """See `Source.declare`."""
        done = expectations.declare(run, self.file)
        run.results = expectations.accept(run.results, self.read_declarations())
        run.expectations = str(self.file)
        return done

    def keep(self, session: Session, run: Run) -> None:
        """Delete the journal unless `--resume` can use it."""
        self.journal.discard_after(run, self.what, session.resumable)

    def nothing(self, session: Session, run: Run) -> str:
        """See `Source.nothing`."""
        if not run.results and session.seconds < math.inf:
            return f"the time was over before the first case had ended, so nothing was {self.done}: give --minutes more"
        return f"nothing was {self.done} in {len(run.results)} cases"


class JobSource(CaseSource):
    """A source of cases that a job runs. A subclass selects them, and shows their results."""

    job: Job
    pool: type[JobPool] = JobPool
    variants: Sequence[str] = ()
    """The variants of its cases."""
    listed = 10
    """Number of cases that the terminal shows, the worst first."""

    def cases(self, args: argparse.Namespace) -> tuple[Sequence[Named], list[str]]:
        """Return the chosen cases, and the selection in words. Raises UsageError for unknown words."""
        raise NotImplementedError

    def rows(self) -> Iterable[str]:
        """Return the names that a declaration may hold."""
        raise NotImplementedError

    def worst(self, run: Run) -> Sequence[Result]:
        """Return the results to show, the worst first."""
        raise NotImplementedError

    def line(self, result: Result) -> str:
        """Return one result in words."""
        raise NotImplementedError

    def prepare(self, session: Session) -> None:
        """Select the cases and read the declarations."""
        chosen, self.selection = self.cases(session.args)
        lacking = set(session.profile.unsupported("op")) if session.profile else set()
        self.chosen = [case for case in chosen if case.op.partition(" ")[0] not in lacking]
        self.lacking = len(chosen) - len(self.chosen)
        self.file = expectations.file_of(session.args, expectations_file(self.stem, session.spec))
        self.expected = declared(self.stem, self.file, self.rows(), self.variants)

    def identity(self, session: Session) -> dict[str, Any]:
        """See `CaseSource.identity`."""
        return {"selection": "; ".join([self.stem, *self.selection])}

    def run_cases(self, session: Session, seconds: float, finished: Sequence[Result], listener: Listener) -> Run:
        """See `CaseSource.run_cases`."""
        limits = session.limits
        chosen = CaseOptions.of_session(session, seconds, expected=self.expected, finished=finished)
        run = CaseRun(session.target, self.what, chosen, listener).perform(self._run)
        small = sum(result.outcome is Outcome.SKIP and result.reason.startswith(SHORT) for result in run.results)
        notes = {
            f"{small} cases were not measured, since each {SHORT} {limits.memory:g} GiB.": small,
            f"{self.lacking} cases of ops that the profile declares lacking were left out.": self.lacking,
        }
        run.notes += [note for note, count in notes.items() if count]
        run.environment |= self.identity(session)
        return run

    def _run(self, running: CaseRun) -> None:
        """Run the cases of dtypes that the target holds."""
        chosen, target = running.options, running.target
        with self.pool(chosen.place, target, chosen.limits, chosen.jobs, self.job) as pool:
            running.result.environment, held = pool.ask_first(self.job.describe_environment, target)
            wanted = [case for case in self.chosen if held is None or case.dtype in held]
            if unheld := len(self.chosen) - len(wanted):
                running.result.notes.append(f"{unheld} cases of dtypes that the target does not hold were left out.")
            running.begin(wanted)
            running.run(pool)

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """See `Source.stale`. No operator is tried: op_db and drawn programs do that."""
        found, notes = session.profile.contradicted(session.seen) if session.profile is not None else ([], [])
        return [Result(one.part, "", DECLARED, self.stem, one.outcome, reason=one.reason) for one in found], notes

    def summarize(self, session: Session, run: Run) -> None:
        """Print the worst cases, one line each, and the cases that were not measured."""
        for result in self.worst(run)[: self.listed]:
            session.print(self.line(result))
        for result in run.results:
            if result.outcome is Outcome.SKIP:
                session.print(f"not measured: {result.id}: {result.reason}")


SUBJECTS = ("op", "dtype", "variant")
AGAIN = ("resume", "stop-at-first-failure", "rerun-failures")
"""Flags of a run of cases."""
FLAGS = ("target", *SUBJECTS, *AGAIN, "minutes", *options.LIMITS, "strict", "check-scripts", "reports",
         *options.DECLARED, *options.PLACE)  # fmt: skip
