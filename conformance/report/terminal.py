"""A run in the terminal: the features that the probe found, and after the findings its facts, changes and totals.

Defines `probed`, `missing` and `end` for every run, `causes` for runs of cases, and `Replayed`, `show` and `show_all`
for findings that are run again. Users paste a replayed finding into an issue. So its output is the script's own part,
followed by both answers of this run as comments.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.declare.probed import Probe, TrialAnswer
from conformance.record.causes import causes_of
from conformance.record.errors import UsageError
from conformance.record.measurements import Rise
from conformance.record.missing_ops import DECLARED, MissingOperator, removed
from conformance.record.result import NOT_RUN, UNEXPECTED, WITHOUT_BACKEND, Outcome, Run, summary_line
from conformance.report import compare, machine, summary
from conformance.report.escape import escape_control_characters
from conformance.standalone.script import own_part

_STYLE = {
    "PASS": "green",
    "FAIL": "red",
    "CRASH": "bold red",
    "TIMEOUT": "bold red",
    "XPASS": "magenta",
    "XFAIL": "yellow",
    "FLAKY": "yellow",
    "SKIP": "dim",
}
"""Style of an outcome's word."""

LISTED = 25
"""Maximum number of rows in the terminal. A report has all rows."""

MOST_CAUSES = 20
"""Limit on causes listed in the terminal; the page lists all."""


def missing(console: Console, rows: Sequence[MissingOperator]) -> None:
    """Print the table of operators that the target's profile declares lacking, most missed first."""
    if not rows:
        return
    table = Table(title="Lacking, and so not run", title_justify="left", box=box.SIMPLE)
    table.add_column("operator", no_wrap=True)
    for head in ("removes", "used by"):
        table.add_column(head)
    for row in rows[:LISTED]:
        table.add_row(*map(Text, (escape_control_characters(row.operator), removed([row]), row.used)))
    console.print(table)
    rest = rows[LISTED:]
    if rest:
        console.print(f"and {len(rest)} more operators, which remove {removed(rest)}")


def probed(console: Console, target: str, probe: Probe, declared: Collection[str] | None = None) -> None:
    """Print a line with the features that work, a row for each other feature, the dtypes, and the consequences. If
    there is a profile, `declared` has the operators that it declares lacking. Print nothing if the probe made no
    trial."""
    if probe.unmade:
        return
    table = Table(title=f"What {target} has", title_justify="left", box=box.SIMPLE, show_header=False)
    there = [row.name for row in probe.rows if row.answer is TrialAnswer.YES]
    table.add_row("yes", Text(", ".join(there)))
    for row in probe.rows:
        if row.answer is not TrialAnswer.YES:
            table.add_row(str(row.answer), Text(f"{row.name}: {escape_control_characters(row.detail)}"))
    table.add_row("dtypes", Text(", ".join(probe.dtypes)))
    for sentence in probe.consequences(declared):
        table.add_row("so", Text(sentence))
    console.print(table)


def causes(console: Console, run: Run) -> None:
    """Print the number of cases by outcome, then the causes of the failures, the worst first, each with its smallest
    example."""
    counts = run.counts()
    table = Table("outcome", "cases")
    for word in sorted(counts, key=lambda word: list(Outcome).index(Outcome(word)), reverse=True):
        table.add_row(Text(word, _STYLE[word]), str(counts[word]))
    console.print(table)
    console.print(f"{escape_control_characters(run.title)}: {run.compared} samples in {run.seconds:.0f} s")
    known = causes_of(result for result in run.results if result.outcome in UNEXPECTED and not result.layer)
    if not known:
        return
    table = Table("cause", "cases", "operators", "smallest example", title="Failures by cause")
    for cause in known[:MOST_CAUSES]:
        mark = cause.results[0].script_mark
        example = cause.results[0].id + (f" ({mark})" if mark else "")
        texts = cause.pattern, str(len(cause.results)), cause.named, example
        table.add_row(*(Text(escape_control_characters(text)) for text in texts))
    console.print(table)
    if known[MOST_CAUSES:]:
        console.print(f"and {len(known) - MOST_CAUSES} more causes, on the page")


def end(console: Console, run: Run, changes: compare.Diff | None, page: Path, alone: bool = True) -> None:
    """Print the end of a run. `page` is the page that shows it. A run that is not `alone` is a part of a command, which
    says at its end what all parts together did not judge."""

    def say(text: str, soft_wrap: bool = True) -> None:
        console.print(escape_control_characters(text), markup=False, highlight=False, soft_wrap=soft_wrap)

    missing(console, run.lacking)
    for result in run.results:
        if result.variant == DECLARED:
            say(f"{result.outcome} {result.op}: {result.reason}")
    notes = run.notes if run.complete or run.interrupted else []  # else a later sentence says why it ended
    for fact in [*summary.known(run), *summary.masked(run), *summary.facts(run), *notes]:
        say(fact)
    for result in run.unexpected:
        if result.finding is None and result.script_mark and not result.alone.startswith(NOT_RUN):
            say(f"{result.id}: {result.remark}")
    excused = [case for case in run.cases if case.layer]
    if excused:
        console.rule(WITHOUT_BACKEND)
        for result in excused:
            say(f"{result.outcome} {result.id} ({', '.join(result.oracles)}): {result.layer}")
        console.rule()
    for measure in run.measures:
        parts = Counter(run.measured.parts.get(measure.name, {})).most_common()
        if parts and measure.rise is Rise.REGRESSION:
            say(f"{measure.unit}: {', '.join(f'{name} ({count})' for name, count in parts)}")
    if changes is not None:
        # In a log, a case and its outcome stay on one line, so that a search for FAIL also finds the name.
        say(f"since the baseline:\n{compare.text(changes)}", soft_wrap=not console.is_terminal)
    for line in machine.error_lines(run, changes) if os.environ.get("GITHUB_ACTIONS") else ():
        print(line)
    if alone and run.shortfall:
        say(run.shortfall)
    say(f"report: {page}")
    print(summary_line(run, changes.regressions if changes else 0), file=console.file, flush=True)


@dataclass(frozen=True)
class Replayed:
    """The result of a rerun program or case. `kind` is the word for its failure, empty if both sides agree on all of
    `extent`. `about` are the differences with both answers. `lacks` names the part that the target does not support, in
    which case nothing ran."""

    name: str
    target: str
    extent: str
    kind: str = ""
    about: Sequence[str] = ()
    script: str = ""
    lacks: str = ""


def show(replayed: Replayed) -> int:
    """Print one result, and return the exit code. Raises UsageError if nothing was compared."""
    if replayed.lacks:
        raise UsageError(
            f"{replayed.name}: {replayed.target} leaves out {replayed.lacks}, so there is nothing to compare"
        )
    if not replayed.kind:
        print(f"{replayed.name}: {replayed.target} agrees with torch CPU on {replayed.extent}")
        return 0
    if replayed.script:
        print(own_part(replayed.script))
    for line in replayed.about:
        print(f"# {_inert(line)}")
    return 1


def show_all(replayed: Sequence[Replayed]) -> None:
    """Print the result of each program on one line, then the number that agree."""
    for replay in replayed:
        name = replay.name.rpartition("/")[2].removesuffix(".json")
        if replay.kind:
            print(f"{replay.kind} {name}\n     {_inert(replay.about[0])}")
        else:
            print(f"SKIP {name}: {replay.target} leaves out {replay.lacks}" if replay.lacks else f"ok   {name}")
    failed, skipped = sum(bool(replay.kind) for replay in replayed), sum(bool(replay.lacks) for replay in replayed)
    agree = f"{len(replayed) - failed - skipped} of {len(replayed)} programs agree with torch CPU"
    print(agree + (f", {skipped} were not run" if skipped else ""))


def _inert(text: str) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in text)
