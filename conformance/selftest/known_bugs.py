"""The command `conformance known-bugs`: which reported bugs of PyTorch a campaign finds without being told of them.

    conformance known-bugs [--target TARGET ...] [--programs K] [--seed N] [--resume] [--results FILE ...]

Each target of the index gets one campaign of the same seed and number of programs. `--results` reads the `fuzz.json` of
campaigns that ran before, with the findings beside it, and the `opinfo.json` of runs of op_db. A bug is found if a
minimized program, or the call of a failing sample, matches it by the strict rule of `record/upstream.py`. First the
repro of each bug runs, so that a bug that this torch does not show is not counted. The table is printed, and written as
JSON and as a page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from conformance.engine.layers import Layered
from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Target
from conformance.program.accesses import named_operators
from conformance.program.attribution import culprit
from conformance.program.model import ProgramError, call_of
from conformance.program.trial import Trial
from conformance.program.unsupported import operators_of
from conformance.record import versions
from conformance.record.errors import TargetError, UserError
from conformance.record.files import read as read_json
from conformance.record.files import write_atomic
from conformance.record.finding import CRASH, FAIL, FLAKY, TIMEOUT, shown_by
from conformance.record.patterns import base_operator
from conformance.record.result import UNEXPECTED, Failure, Run, counted, exit_code, load
from conformance.record.upstream import Bug, Evidence, bugs
from conformance.report.rendering import rendered
from conformance.run import options
from conformance.run.campaign.campaign import Campaign as Running
from conformance.run.campaign.results import can_be_reported_bug, evidence
from conformance.run.execution_place import LOCAL, preloaded
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Death, Limits, Task
from conformance.run.script_process import Forks
from conformance.selftest import repros
from conformance.sources.fuzzing import command as fuzz
from conformance.sources.opinfo.plan import Case
from conformance.standalone.oracles import Mismatch

PROGRAMS = 400
FLAGS = ("target", "seed", "programs", "resume", "results", "check-scripts", "reports", "jobs")
STEM = "known-bugs"

LONGEST_CASE = 60.0
"""Time limit in seconds for writing the calls of one failing sample as programs."""

OF_DEATH = {"crash": CRASH, "timeout": TIMEOUT}
"""Kind of a finding by the oracle of a failure that ends its process."""

Key = tuple[int, int, str]
"""The program of a finding, its part, and its signature."""

FOUND, MISSED, GONE, NO_TARGET, NOT_RUN = "found", "not found", "gone here", "no target", "no campaign"
"""Statuses of a bug. `gone here`: its repro does not show it on the installed torch."""


@dataclass(frozen=True)
class BugRow:
    """A bug and how a campaign found it. `minutes` is the time of that many programs at the campaign's average rate.
    `why` is what agrees by the rule, `finding` the title of the finding, and `later` as of `Bug`."""

    number: int
    title: str
    target: str
    status: str
    programs: int | None = None
    minutes: float | None = None
    steps: int | None = None
    finding: str = ""
    why: str = ""
    later: int = 0


@dataclass(frozen=True)
class MeasuredCampaign:
    """The findings of a campaign, and its time in seconds. For op_db, a case counts as a program, and its findings come
    with their evidence."""

    target: str
    programs: int
    seconds: float
    findings: Sequence[tuple[FailingProgram, Evidence | None]]


def read(path: Path) -> MeasuredCampaign:
    """Return the campaign of a `fuzz.json` and the minimized findings beside it, or of an `opinfo.json`. Raises
    ReportError."""
    run = load(path)
    if run.drawn is None:
        return MeasuredCampaign(run.target, len(run.results), run.seconds, [*_of_cases(run)])
    name, progress = "", path.parent / "fuzz-progress.json"
    if progress.exists():
        name = str(_data(progress).get("campaign", ""))
    findings = []
    for saved in sorted((path.parent / "failures").glob("*.json")):
        data = _data(saved)
        if data.get("shrunk") and data.get("target") == run.target and (not name or data.get("campaign") == name):
            with contextlib.suppress(ProgramError, KeyError, TypeError):  # no finding, or of another version
                findings.append((FailingProgram.from_json(data), None))
    return MeasuredCampaign(run.target, run.drawn.programs, run.seconds, findings)


def _data(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty for other data. Raises ReportError for a damaged file."""
    data = read_json(path)
    return data if isinstance(data, dict) else {}


def _of_cases(run: Run) -> Iterator[tuple[FailingProgram, Evidence]]:
    """Yield the failures of op_db's cases as findings, with the number of the case as that of the program. Only
    failures of a property that a bug of the index has on this target count. A worker writes and runs the programs,
    which may end it."""
    properties = {bug.property for bug in bugs() if run.target in bug.targets}
    with LOCAL.pool(run.target, Limits(unit=LONGEST_CASE), 1, [__name__]) as pool:
        for number, result in enumerate(run.results):
            case = Case(result.op, result.overload, result.family, result.dtype, result.variant, result.layout, None)
            for failure in result.failures if result.outcome in UNEXPECTED else ():
                if _property(failure) in properties:
                    arguments = (run.target, case, number, failure)
                    pool.submit(Task(f"{number} {failure.oracle}", programs_with_evidence, arguments))
        for _, answer in pool.ended():
            if not isinstance(answer, Death) and answer.error is None:
                yield from answer.value


def _property(failure: Failure) -> str:
    return failure.oracle if failure.oracle in OF_DEATH else shown_by(failure)


def programs_with_evidence(
    spec: str, case: Case, number: int, failure: Failure
) -> list[tuple[FailingProgram, Evidence]]:
    """Return the calls of a failing sample of the case with this number as programs, with the evidence of each."""
    from conformance.sources.opinfo.sample_failure import programs_of  # imports op_db, which takes seconds

    target, result = load_target(spec), []
    mismatch = Mismatch(failure.oracle, failure.where, failure.expected, failure.actual, failure.detail)
    kind, op = OF_DEATH.get(failure.oracle, FAIL), base_operator(case.name)
    # If torch CPU is wrong, its answer may differ in each run. Then no program passes the check.
    programs = programs_of(case, failure, target)[0] or programs_of(case, failure, target, checked=False)[0]
    for program in programs:
        cause = _property(failure), op
        finding = FailingProgram(case.id, kind, number, *cause, program=program, mismatches=(mismatch,), bad_step=1)
        facts = evidence(with_culprit(finding, target), target)
        result += [(finding, facts)] if facts is not None else []
    return result


def with_culprit(finding: FailingProgram, target: Target) -> FailingProgram:
    """Return the finding with its culprit. A finding of an earlier version, or one that time did not suffice for, has
    none, and its program runs here."""
    compared = finding.kind == FAIL and finding.mismatches and can_be_reported_bug(finding)
    if finding.culprit or not compared or not isinstance(target, Layered):
        return finding
    with contextlib.suppress(Exception):  # a compiler may raise anything when its parts are off
        return replace(finding, culprit=culprit(Trial.of(finding.program, target), finding.difference))
    return finding


def rows(measured: Sequence[Bug], campaigns: Iterable[MeasuredCampaign], gone: Iterable[int] = ()) -> Iterator[BugRow]:
    """Yield a row for each bug: the earliest finding that matches it in the campaigns on its targets."""
    every = [(campaign, _matched(campaign, measured)) for campaign in campaigns]
    for bug in measured:
        own = [(campaign, matches) for campaign, matches in every if campaign.target in bug.targets]
        ranked = [(first, campaign, finding, why) for campaign, matches in own
                 for number, first, finding, why in matches if number == bug.number]  # fmt: skip
        if ranked:
            first, campaign, finding, why = min(ranked, key=lambda match: match[0])
            minutes = round((first + 1) * campaign.seconds / max(campaign.programs, 1) / 60, 2)
            found = first + 1, minutes, len(finding.program.steps), finding.cause(), why
            yield BugRow(bug.number, bug.title, campaign.target, FOUND, *found, later=bug.later)
        else:
            status = GONE if bug.number in gone else MISSED if own else NOT_RUN if _loads(bug.targets[0]) else NO_TARGET
            target = own[0][0].target if own else bug.targets[0]
            yield BugRow(bug.number, bug.title, target, status, later=bug.later)


def _matched(campaign: MeasuredCampaign, measured: Sequence[Bug]) -> list[tuple[int, int, FailingProgram, str]]:
    """The pairs of a bug and a finding that match: the bug's number, the first program, the finding, and why."""
    if not any(campaign.target in bug.targets for bug in measured):
        return []
    target, result = load_target(campaign.target), []
    for finding, known in campaign.findings:
        finding = with_culprit(finding, target) if known is None else finding
        facts = evidence(finding, target) if known is None else known
        for bug in measured:
            if facts is not None and campaign.target in bug.targets and (why := bug.matches(facts)):
                result.append((bug.number, max(min(finding.numbers), 0), finding, why))
    return result


def _loads(spec: str) -> bool:
    try:
        describe_target(spec)
    except TargetError:
        return False
    return True


def gone_here(measured: Iterable[Bug]) -> set[int]:
    """Return the numbers of the bugs whose repro does not show them on the installed torch. It takes minutes, so a bar
    on a terminal shows how far it is."""
    tried, console = [bug for bug in measured if _loads(bug.targets[0])], Console(stderr=True)
    about = f"{counted(len(tried), 'repro')} on torch {versions.installed()}"
    console.print(f"running {about}; --check-scripts 0 leaves this out", highlight=False)
    with contextlib.closing(Forks(("torch._dynamo", *preloaded("inductor")))) as forks:
        shown = track(tried, about, console=console, transient=True, disable=not console.is_terminal)
        return {bug.number for bug in shown if not repros.runs(bug, forks=forks)}


class Candidates:
    """How much each finding of a campaign is to be minimized, which takes a minute on a compiler: not at all, unless it
    may be a bug that no minimized finding is. The more, the fewer such bugs it may be and the shorter its program is:
    one of 60 steps takes many minutes. A finding that ends its process comes last, since each trial costs a worker."""

    def __init__(self, spec: str) -> None:
        self.target = describe_target(spec)
        self.bugs = [bug for bug in bugs() if bug.repro and spec in bug.targets]
        self._matched, self._operators = dict[Key, set[int]](), dict[Key, frozenset[str]]()

    def __call__(self, campaign: Running, finding: FailingProgram) -> float:
        found = {number for other in campaign.findings if other.shrunk for number in self.matched(other)}
        wrong, operators = finding.property, self.operators(finding)
        count = sum(bug.number not in found and bug.may_be(wrong, operators) for bug in self.bugs)
        cost = max(finding.steps, 1) * (1000 if finding.kind in (CRASH, TIMEOUT) else 1)
        return 1 / (count * cost) if count else 0.0

    def matched(self, finding: FailingProgram) -> set[int]:
        """Return the bugs that a minimized finding is."""
        key = finding.number, finding.part, finding.signature
        if key not in self._matched:
            facts = evidence(finding, self.target)
            self._matched[key] = {bug.number for bug in self.bugs if facts is not None and bug.matches(facts)}
        return self._matched[key]

    def operators(self, finding: FailingProgram) -> frozenset[str]:
        """Return the operators that the steps of a finding's program name, and those that torch CPU calls for it. A
        program that ends its process does not run."""
        key = finding.number, finding.part, finding.signature
        if key not in self._operators:
            program = call_of(finding.program, len(finding.program.calls))
            runs = finding.kind in (FAIL, FLAKY)
            called = operators_of(program, program.steps) if runs else ()
            self._operators[key] = frozenset({*named_operators(program), *called})
        return self._operators[key]


def campaign_on(spec: str, args: argparse.Namespace) -> Path:
    """Run a campaign on a target by the one run of `conformance fuzz`, and return its results. Raises TargetError if
    nothing was compared."""
    reports = args.reports / STEM / "".join(mark if mark.isalnum() else "-" for mark in spec)
    words = ["--target", spec, "--seed", str(args.seed), "--programs", str(args.programs), "--jobs", str(args.jobs)]
    words += ["--resume"] if args.resume else []
    code = fuzz.main([*words, "--check-scripts", "0", "--reports", str(reports)], Candidates(spec))
    if code >= 128:
        raise KeyboardInterrupt
    if code == 2:
        raise TargetError(f"the campaign on {spec} compared nothing; see the line above")
    return reports / "fuzz.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Returns 1 if a bug that was measured is not found, and 2 if none was."""
    about = "Measure " + __doc__.partition("\n")[0].partition(": ")[2]
    usual = {"programs": PROGRAMS, "check-scripts": "as long as they take"}
    changes = {"target": {"action": "append"}}
    args = options.parser(f"conformance {STEM}", about, FLAGS, usual, changes=changes).parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        versions.check()
        measured = [bug for bug in bugs() if bug.repro and (not args.target or {*args.target} & {*bug.targets})]
        if not measured:
            known = ", ".join(_targets(bugs()))
            raise TargetError(f"no bug of the index shows on {', '.join(args.target)}; choose from {known}")
        for file in args.results:  # a damaged file is refused before anything runs
            spec, targets = load(file).target, _targets(bugs())
            if spec not in targets:
                raise TargetError(f"{file}: no bug of the index shows on {spec}; choose from {', '.join(targets)}")
        gone = set[int]() if args.check_scripts == 0 else gone_here(measured)
        chosen = args.target or _targets(measured)
        files = args.results or [campaign_on(spec, args) for spec in chosen if _loads(spec)]
        table = [*rows(measured, map(read, files), gone)]
        data = {"torch": str(versions.installed()), "seed": args.seed, "results": [*map(str, files)]}
        data |= {"bugs": [*map(asdict, table)]}
        write_atomic(args.reports / f"{STEM}.json", json.dumps(data, indent=1))
        page = rendered("known_bugs.html.j2", verdicts=[], rows=table, total=summary(table), target="known bugs")
        write_atomic(args.reports / f"{STEM}.html", page)
    except UserError as error:
        print(f"conformance {STEM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        more = "nothing was changed" if args.results else "--resume goes on from there"
        print(f"conformance {STEM}: interrupted; {more}", file=sys.stderr)
        return 130
    show(table)
    print(f"report: {args.reports / STEM}.html")
    compared = sum(row.status in (FOUND, MISSED) for row in table)
    return exit_code(sum(row.status == MISSED for row in table) if compared else 0, compared)


def _targets(some: Iterable[Bug]) -> list[str]:
    return list(dict.fromkeys(spec for bug in some if bug.repro for spec in bug.targets))


def summary(table: Sequence[BugRow]) -> str:
    """Return the totals in one sentence, and the share of the reports that were collected after a drawing, if any."""
    counts = {
        status: sum(row.status == status for row in table) for status in (FOUND, MISSED, GONE, NO_TARGET, NOT_RUN)
    }
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    total = f"{len(table)} reported bugs: {parts}"
    for drawing in sorted({row.later for row in table} - {0}):
        measured = [row.status for row in table if row.later == drawing and row.status in (FOUND, MISSED)]
        total += f"; found of those collected after drawing {drawing}: {measured.count(FOUND)} of {len(measured)}"
    return total


def show(table: Sequence[BugRow]) -> None:
    """Print the table and its totals."""
    shown = Table("bug", "title", "target", "status", "programs", "minutes", "steps", "finding")
    for row in table:
        numbers = ["" if value is None else f"{value:g}" for value in (row.programs, row.minutes, row.steps)]
        shown.add_row(f"#{row.number}", row.title, row.target, row.status, *numbers, row.finding)
    console = Console(width=150)
    console.print(shown)
    console.print(summary(table))


if __name__ == "__main__":
    sys.exit(main())
