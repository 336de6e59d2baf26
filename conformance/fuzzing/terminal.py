"""A campaign's end in the terminal: its findings, the worst first, and its totals.

Defines `summarize`. The key insight: the order, the verdict and the facts are those of the report, so a reader of the
page and of the terminal sees the same. Nothing here draws or runs a program.
"""

from __future__ import annotations

import os

from rich.console import Console

from conformance.core import result as model
from conformance.core.result import Outcome, Run, counted
from conformance.core.script import own_part
from conformance.fuzzing.campaign import Campaign
from conformance.fuzzing.results import undefined
from conformance.report import compare, lacking, machine
from conformance.report import summary as sentences
from conformance.report.escape import escape_control_characters

MOST_SCRIPTS = 5
"""So many scripts are printed; the rest are named."""

MOST_SIGNATURES = 5
"""So many other signatures of a finding are named."""


def summarize(running: Campaign, made: Run, changes: compare.Diff | None, console: Console, where: str) -> None:
    """Print the findings, the worst first, and the totals behind `where`, the line that says how far it came."""
    groups = {group.finding.cause() or group.finding.group: group for group in running.distinct()}
    shown, stopped, headed = 0, made.stopped_at_inputs, False
    if stopped is not None:
        console.print(escape_control_characters(sentences.at_inputs(made, stopped)))
    for result in made.listed:
        found = result.finding
        group = groups.get(found.title()) if found else None
        if found is None or (result.outcome is Outcome.XFAIL and not result.layer):
            continue
        if result.layer and not headed:
            headed = True
            console.rule(model.WITHOUT_BACKEND, characters="=")
        if group is None:
            console.rule(f"XPASS {found.signature}")
            console.print(escape_control_characters(result.reason))
            continue
        console.rule(f"{found.kind} in {found.count} of {counted(running.result.done, 'program')}: {found.title()}")
        seen = [*found.signatures[:MOST_SIGNATURES], *([f"and {more} more"] if (more := _more(found)) else [])]
        if seen:
            console.print(escape_control_characters(f"also seen as: {'; '.join(seen)}"))
        if result.remark:
            console.print(escape_control_characters(result.remark))
        if shown < MOST_SCRIPTS:
            console.print(own_part(running.script(group)))
        shown += 1
        if found.elsewhere:
            console.print("elsewhere: " + "; ".join(f"{spec} {answer}" for spec, answer in found.elsewhere.items()))
        console.print(f"script: {running.path(group)}\nagain:  {running.again(group)}")
    done, drawn = running.result, made.drawn
    kernels = (
        f"kernels {done.kernels} (torch CPU's ops and transfers: {done.allowed}; programs compared with the "
        f"baseline: {done.compared}); "
        if done.allowed
        else ""
    )
    called = f"{drawn.called} of op_db's entries in {len(drawn.entries)} cells; " if drawn and drawn.entries else ""
    unsupported = ", ".join(f"{name} ({count})" for name, count in drawn.unsupported.items()) if drawn else ""
    console.print(
        f"{where}; {done.steps} steps, {len(done.cells)} cells of family x layout x dtype; "
        f"{called}"
        f"{kernels}{undefined(done)} undefined or rejected steps not run"
        + (
            f"; {done.unsupported.total()} programs not run, since the target leaves out: {unsupported}"
            if unsupported
            else ""
        )
    )
    report_lines(made, changes, console)
    console.print(f"report: {running.plan.reports / 'fuzz.html'}")
    console.print(model.summary_line(made))


def _more(found: model.Finding) -> int:
    return max(len(found.signatures) - MOST_SIGNATURES, 0)


def report_lines(made: Run, changes: compare.Diff | None, console: Console) -> None:
    """What a run says beside its findings: facts, known findings, changes; on GitHub also annotations."""
    lacking.show(console, made.lacking)
    lines = [*sentences.known(made), *sentences.facts(made), *made.notes]
    lines += [f"since the baseline:\n{compare.text(changes)}"] if changes else []
    lines += machine.error_lines(made) if os.environ.get("GITHUB_ACTIONS") else []
    for text in lines:
        console.print(escape_control_characters(text))
