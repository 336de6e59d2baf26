"""The one run: resolve the target, probe it, read the profile, execute sources, declare, run scripts, report.

Defines `Source`, the interface of a source of subjects, and `Session`, which runs sources on one target. Drawn
programs, op_db, accuracy and sizes are sources. A source plans its subjects, executes them in a pool and returns a
`Run`; everything before and after that exists here once.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from conformance.declare import profile as profiles
from conformance.declare.declaration import read
from conformance.declare.expectations import warn_of_all_covering
from conformance.declare.probed import Probe
from conformance.declare.profile import Profile
from conformance.declare.tolerances import unneeded_by_cases
from conformance.record import result as model
from conformance.record import versions
from conformance.record.command_line import Parser
from conformance.record.errors import UserError
from conformance.record.result import Result, Run
from conformance.record.shortfall import FINDINGS, MINUTES, Shortfall, add_up
from conformance.report import __main__ as report
from conformance.report import compare, history, summary, terminal
from conformance.report.escape import escape_control_characters, exit_code_of
from conformance.run import scripts, signals
from conformance.run.execution_place import ExecutionPlace, place_of
from conformance.run.messages import Limits
from conformance.run.options import reports_expectations
from conformance.run.probe import resolve
from conformance.run.profile_trials import BUDGET
from conformance.run.worker_log import log_file

SHARE = 0.1
"""Share of `--minutes` for the probe, for the trials of a profile, and for running scripts, each."""

LEAST_CHECKING = 0.25
"""Part of the time for scripts that they have if the source ended late, as on a busy machine."""

UNIT_SHARE, LEAST_UNIT = 0.25, 20.0
"""Share of `--minutes` that one program or case may take at most, and the least such limit in seconds."""


class Source(Protocol):
    """A source of subjects: it runs them on the session's target and summarizes the results."""

    stem: str
    """Name of its files in --reports: fuzz, opinfo, accuracy or sizes."""
    title: str
    """Heading of its part of the output, if a command has several sources."""
    usual: Limits
    """Limits of a worker, unless the options or the profile say otherwise."""
    job_summary: bool = True
    """Whether its Markdown summary goes to the summary page of a CI job."""
    baseline: Run | None = None
    """Earlier results to compare with, read by `prepare`."""

    def prepare(self, session: Session) -> None:
        """Check the options and read the files that they name, before anything runs. Raises UserError."""

    def files(self, args: argparse.Namespace) -> Iterable[Path | None]:
        """Return the files that workers read."""
        return ()

    def execute(self, session: Session, seconds: float) -> Run:
        """Run the subjects for at most `seconds`, apply the declarations, and return the results so far if the run is
        interrupted. The run's seconds are those of an earlier run that it resumes."""

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """Return evidence against the target's profile, from trials of at most `seconds`: results and notes."""
        return [], []

    def declare(self, session: Session, run: Run) -> list[str]:
        """Write the failures of the run to the declarations, apply them to the run, and return a summary."""

    def keep(self, session: Session, run: Run) -> None:
        """Write the further files that the options ask for, such as a baseline."""

    def summarize(self, session: Session, run: Run) -> None:
        """Print the findings."""

    def nothing(self, session: Session, run: Run) -> str:
        """Return why nothing was compared."""


def usual(limits: Limits, stem: str = "", **more: str) -> dict[str, str]:
    """Return the usual values of the options that most commands share, for their help, and of `more` options."""
    return {
        "minutes": "no limit",
        "limit": f"{limits.unit:g}, at most a quarter of --minutes",
        "memory": f"{limits.memory:g}",
        "check-scripts": f"{scripts.BUDGET:g}, or a tenth of --minutes",
        "expectations": reports_expectations(stem),
        **more,
    }


def limits_of(args: argparse.Namespace, usual: Limits, seconds: float = math.inf) -> Limits:
    """Return the limits of workers: the options', else those of the target's profile, else the usual ones. `--limit`
    alone also bounds the building of kernels: a first call that hangs must not take 300 s under `--limit 5`.

    The usual limits are at most a quarter of a run's `seconds`. Without that, one call that hangs takes all the time of
    `--minutes 2`, and the run ends with exit code 0."""
    spec, longest = args.target or "", max(UNIT_SHARE * seconds, LEAST_UNIT)
    compiling = min(usual.compiling, longest if args.limit is None else args.limit)
    return replace(
        usual,
        unit=profiles.limit(spec, "seconds", args.limit, min(usual.unit, longest)),
        compiling=profiles.limit(spec, "compiling", args.compile_limit, compiling),
        memory=profiles.limit(spec, "memory", args.memory, usual.memory or 8.0),
    )


@dataclass
class Session:
    """A run of a command on one target. `words` are the arguments of `command`, and `place` the place of its workers.

    `target` is the spec with the features that the probe found missing; `spec` is the spec that the user wrote.
    """

    command: str
    words: Sequence[str]
    args: argparse.Namespace
    place: ExecutionPlace
    console: Console = field(default_factory=lambda: Console(highlight=False, markup=False, soft_wrap=True))
    began: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - tests replace the clock
    seen: Probe | None = None
    limits: Limits = field(default_factory=Limits)
    target: str = ""
    runs: list[Run] = field(default_factory=list)
    """The results of the sources so far."""
    changes: compare.Diff | None = None
    """The changes of op_db since its baseline, the one source of several that can have a baseline."""
    resumable: bool = False
    """Whether the command has `--resume`."""
    not_judged: list[Shortfall] = field(default_factory=list)
    """What the probe, and the trials of a profile, did not judge. It belongs to the next run."""
    checked: dict[str, str] = field(default_factory=dict)
    """The scripts that a source has run itself, and what they do (`ScriptChecks.known`)."""
    checking: float = 0.0
    """Seconds that are kept for running the scripts of the source that runs."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """The interpreters of `--also-on`, with their torch versions."""

    @property
    def spec(self) -> str:
        """The spec of the target, as the user wrote it."""
        return str(self.args.target)

    @property
    def profile(self) -> Profile | None:
        """The target's profile, if the target is one."""
        return profiles.of(self.spec)

    @property
    def seconds(self) -> float:
        """The time of `--minutes`; infinity without a limit."""
        minutes = getattr(self.args, "minutes", None)
        return math.inf if minutes is None else 60 * float(minutes)

    @property
    def left(self) -> float:
        """The rest of the time, in seconds."""
        return max(self.seconds - (time.monotonic() - self.began), 0.0)

    @property
    def reports(self) -> Path:
        """The folder of the results."""
        return Path(self.args.reports)

    def print(self, text: str) -> None:
        """Print a line; control characters are escaped."""
        self.console.print(escape_control_characters(text), highlight=False, markup=False, soft_wrap=True)

    def run(self, sources: Sequence[Source]) -> int:
        """Run the sources, one after the other, each within an equal part of the time that is left. Returns the exit
        code. Raises UserError before anything runs, and TargetError for a target that cannot be loaded."""
        self.args.target = profiles.usual(self.args.target, getattr(self.args, "oracle", None))
        for source in sources:
            self.limits = limits_of(self.args, source.usual)
            source.prepare(self)
        self.pythons = scripts.torch_of(getattr(self.args, "also_on", ()))
        history.check(self.reports / report.HISTORY)
        self.limits = limits_of(self.args, sources[0].usual)
        strict = min(BUDGET, SHARE * self.seconds)
        self.target, self.seen = resolve(self.spec, self.limits, self.place, strict=strict, seconds=self.seconds)
        if self.seen is not None:
            if self.seen.late:
                limit = f"{BUDGET:g} s" if strict == BUDGET else MINUTES
                self.not_judged.append(Shortfall("probes of the profile's declarations", 1, 1, limit))
            declared = self.profile.unsupported("feature") if self.profile is not None else None
            terminal.probed(self.console, profiles.identity(self.spec), self.seen, declared)
        codes = []
        for number, source in enumerate(sources):
            self.limits = limits_of(self.args, source.usual, self.seconds)
            if len(sources) > 1:
                self.console.rule(source.title)
            began = time.monotonic() if number else self.began
            try:
                codes.append(self._run(source, self.left / (len(sources) - number), began, len(sources) == 1))
            except UserError as error:  # a source that cannot run here must not end the others
                if len(sources) == 1:
                    raise
                print(f"{self.command}: {source.title}: {escape_control_characters(str(error))}", file=sys.stderr)
                codes.append(2)
            if codes[-1] >= 128:
                break
        if len(sources) > 1 and self.runs:
            self.console.rule()
            self._to_job_summary(report.write_together(self.runs, self.reports, self.changes))
            for verdict in summary.verdicts(*self.runs, regressions=self.changes.regressions if self.changes else 0):
                self.print(verdict.sentence)
            self.print(f"report: {self.reports / report.PAGES['opinfo']}")
        return model.worst(codes)

    @staticmethod
    def _to_job_summary(text: str) -> None:
        """Append Markdown to the summary page of a CI job, if there is one."""
        if os.environ.get("GITHUB_STEP_SUMMARY"):
            with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)

    def _run(self, source: Source, seconds: float, began: float, alone: bool) -> int:
        """Run one source for about `seconds` and return its exit code. Its time counts from `began`. `alone` says that
        the session has no other source."""
        checking = min(scripts.BUDGET, SHARE * seconds) if self.args.check_scripts is None else self.args.check_scripts
        trying = min(BUDGET, SHARE * seconds) if self.profile is not None and self.profile.operators else 0.0
        kept_back = checking + trying if seconds < math.inf else 0.0
        self.checking = checking
        until = time.monotonic() + seconds
        run = source.execute(self, max(seconds - kept_back, 0.0))
        earlier = run.seconds
        begun = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=time.monotonic() - began)
        run.started = begun.isoformat(timespec="seconds")
        run.strict = getattr(self.args, "strict", False)
        tolerances = self.profile.tolerances if self.profile is not None else ()
        if tolerances:
            run.environment["tolerances"] = "; ".join(map(str, tolerances))
            rows = ((result.op, result.dtype, result.samples, bool(result.tolerated)) for result in run.cases)
            run.notes += unneeded_by_cases(tolerances, rows)
        run.environment |= machine() | (self.seen.described() if self.seen is not None else {})
        run.command = run.command or " ".join([self.command, *map(shlex.quote, self.words)])
        if not run.complete and not run.results and not run.drawn:
            print(f"{self.command}: interrupted before anything was compared; no report is written", file=sys.stderr)
            return run.exit_code()
        if self.args.update_expectations and not run.interrupted and run.complete:
            for line in source.declare(self, run):
                self.print(line)
        if run.expectations:
            run.notes += warn_of_all_covering(run, read(run.expectations))
        if not run.interrupted and self.profile is not None:
            there, notes = source.stale(self, run, trying if seconds < math.inf else BUDGET)
            run.results, run.notes = [*run.results, *there], [*run.notes, *notes]
        jobs = 1 if self.limits.recycle == 1 else self.args.jobs  # each may need as much memory as a worker may take
        longest = math.inf
        if seconds < math.inf and self.args.check_scripts is None:  # what the source has left is for scripts, too
            left = until - time.monotonic()
            checking = min(max(left, LEAST_CHECKING * checking), scripts.BUDGET)
            longest = checking + scripts.GRACE
        checking = 0.0 if run.interrupted else checking
        scripts.confirm(run, self.limits.unit, checking, jobs, self.checked, longest)
        if self.pythons and not run.interrupted:
            scripts.also_on(run, self.pythons, self.limits.unit, checking)
        self._count_shortfalls(run)
        run.seconds = round(earlier + time.monotonic() - began, 2)
        accepted = getattr(self.args, "update_baseline", False)
        changes = compare.diff(source.baseline, run, accepted) if source.baseline else None
        self.changes = changes or self.changes
        text = report.write(run, self.reports, source.baseline, accepted)
        self.runs.append(run)
        if source.job_summary and alone:
            self._to_job_summary(text)
        source.keep(self, run)
        source.summarize(self, run)
        terminal.end(self.console, run, changes, self.reports / report.PAGES[source.stem], alone)
        code = run.exit_code(changes.regressions if changes else 0)
        if code == 2:
            print(f"{self.command}: {source.nothing(self, run)}", file=sys.stderr)
        if not run.complete:
            why = "interrupted" if run.interrupted else "; ".join(run.notes)
            more = "; the same command with --resume goes on from there" if self.resumable else ""
            print(f"{self.command}: {why}; the results so far are in the report{more}", file=sys.stderr)
        return code

    def _count_shortfalls(self, run: Run) -> None:
        """Note in the run what the session did not judge for it. An interrupted run says only that it was."""
        if run.interrupted:
            run.not_judged = []
            return
        if self.args.check_scripts != 0:  # with 0 the user wants no script to run
            run.not_judged += scripts.count_unrun(run)
        minimized = [failure for result in run.cases for failure in result.failures if failure.script]
        if cut := sum(failure.cut for failure in minimized):
            run.not_judged.append(Shortfall(FINDINGS, cut, len(minimized), "time of one finding"))
        run.not_judged = add_up([*self.not_judged, *run.not_judged])
        self.not_judged = []


def machine() -> dict[str, str]:
    """Return facts about a run that the target does not report: Python, machine and commit."""
    result = {
        "python": sys.version.split()[0],
        "machine": f"{os.uname().sysname} {os.uname().machine}, {os.cpu_count()} cores",
    }
    with suppress(OSError, subprocess.SubprocessError):
        line = ["git", "rev-parse", "--short", "HEAD"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=10, check=True)
        result["commit"] = done.stdout.strip()
    return result


def main(
    parser: Parser,
    arguments: Sequence[str] | None,
    sources: Callable[[argparse.Namespace], Sequence[Source]],
    instead: Callable[[argparse.Namespace], int | None] = lambda args: None,
) -> int:
    """Run a command: parse its arguments, run its sources, and return the exit code. `instead` may answer in place of a
    run, as `--replay` does. Bad usage is one sentence and exit code 2."""
    args = parser.parse_args(arguments)
    words = list(sys.argv[1:] if arguments is None else arguments)

    def job() -> int:
        versions.check()
        with signals.deferred():
            code = instead(args)
            if code is not None:
                return code
            chosen = sources(args)
            files = [file for source in chosen for file in source.files(args)]
            log = args.reports / f"{chosen[0].stem}-workers.log"
            with log_file(log, not getattr(args, "resume", False)) as file:
                place = replace(place_of(args, *files), worker_log=file)
                session = Session(parser.prog, words, args, place, resumable=parser.takes("--resume"))
                return session.run(chosen)

    try:
        return exit_code_of(parser.prog, job)
    except KeyboardInterrupt:  # a source handles it itself and returns its results
        print(f"{parser.prog}: interrupted; nothing was changed", file=sys.stderr)
        return 128 + signals.signal_number()
    except OSError as error:
        problem = f"{error.filename or args.reports} cannot be written or read ({error.strerror})"
        print(f"{parser.prog}: {problem}; make room or choose another --reports", file=sys.stderr)
        return 2
