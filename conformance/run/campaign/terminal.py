"""The end of a campaign in the terminal: its findings, the worst first, and the counts of programs.

Defines `summarize`. Order, verdict and facts are the same as in the HTML report. This module draws and runs no program.
"""

from __future__ import annotations

from rich.console import Console

from conformance.record import result as model
from conformance.record.causes import Cause, causes_of
from conformance.record.result import Outcome, Result, Run, counted
from conformance.record.sentences import headline, legend
from conformance.report import summary as sentences
from conformance.report.escape import escape_control_characters
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.results import undefined
from conformance.run.failing_program import FailingProgram
from conformance.standalone.script import own_part

MOST_SCRIPTS = 5
"""Number of scripts that are printed in full. Further ones are named."""

MOST_NAMED = 5
"""Number of further findings of a cause whose scripts are named."""

MOST_SIGNATURES = 5
"""Number of further signatures of a finding that are named."""

RULE_ENDS = 4
"""Characters of a rule beside its text, at least."""


def summarize(running: Campaign, run: Run, console: Console, where: str) -> None:
    """Print the findings, the worst first, then the counts after `where`, the line with the campaign's progress."""
    stopped = run.stopped_at_inputs
    if stopped is not None:
        console.print(escape_control_characters(sentences.at_inputs(run, stopped)))
    for result in run.listed:
        if result.finding is not None and not result.finding.count:
            _heading(console, f"{result.outcome} {result.finding.signature}")
            console.print(escape_control_characters(result.reason))
    own = [result for result in run.listed if not result.layer and result.outcome is not Outcome.XFAIL]
    of_torch = [result for result in run.listed if result.layer]
    for heading, results in ("", own), (model.WITHOUT_BACKEND, of_torch):
        if heading and results:
            console.rule(heading, characters="=")
        for shown, cause in enumerate(causes_of(results)):
            _cause(console, cause, running, scripted=shown < MOST_SCRIPTS)
    done, drawn = running.result, run.drawn
    measured = "".join(
        f"{name} {done.measured.counts[name]} (torch CPU's ops and transfers: {most}; programs compared with the "
        f"baseline: {done.recorded}); "
        for name, most in done.measured.most.items()
    )
    called = f"{drawn.called} of op_db's entries in {len(drawn.entries)} cells; " if drawn and drawn.entries else ""
    hazards = f"{len(drawn.hazards)} cells of hazards; " if drawn and drawn.hazards else ""
    changed = f"{len(drawn.arguments)} pairs of argument and kind; " if drawn and drawn.arguments else ""
    unsupported = ", ".join(f"{name} ({count})" for name, count in drawn.unsupported.items()) if drawn else ""
    steps = f"; {done.steps} steps, {len(done.cells)} cells of family x layout x dtype; {called}{hazards}{changed}"
    steps += f"{measured}{undefined(done)} undefined or rejected steps not run"
    console.print(
        (f"{where}{steps}" if running.plan.numbered.endless else where)
        + (
            f"; {done.unsupported.total()} programs not run, since the target leaves out: {unsupported}"
            if unsupported
            else ""
        )
    )
    if running.tried:
        share = running.shrinking / max(running.seconds, running.shrinking, 1e-9)
        console.print(f"shrinking: {counted(running.tried, 'smaller program')}, {share:.0%} of the time")


def _heading(console: Console, text: str) -> None:
    """Print a heading. A rule would cut a long text at its end, where the operator's name is."""
    text = escape_control_characters(text)
    if len(text) + RULE_ENDS <= console.width:
        console.rule(text)
    else:
        console.print(f"── {text}")


def _cause(console: Console, cause: Cause, running: Campaign, scripted: bool) -> None:
    """Print one cause: its smallest finding in full, and the files of some others."""
    results = cause.results
    members = [(result, result.finding) for result in results if isinstance(result.finding, FailingProgram)]
    programs = len({number for _, finding in members for number in finding.numbers})
    kinds = "/".join(dict.fromkeys(finding.kind for _, finding in members))
    done = running.result.done  # a program counts when its shard ends, its finding at once
    where = f"{programs} of {counted(done, 'program')}" if programs <= done else counted(programs, "program")
    _heading(console, f"{kinds} in {where}: {cause.title}")
    _example(console, *members[0], running, scripted)
    for result, finding in members[1 : MOST_NAMED + 1]:
        mark = f" ({escape_control_characters(result.script_mark)})" if result.script_mark else ""
        where = f"{finding.op} in {counted(finding.count, 'program')}: {running.findings.path(finding)}"
        console.print(f"also:   {where}{mark}")
    if members[MOST_NAMED + 1 :]:
        console.print(f"and {len(members) - MOST_NAMED - 1} more findings of this cause, on the page")


def why_not_shrunk(result: Result, finding: FailingProgram, running: Campaign) -> str:
    """Return why a campaign left a finding as it was drawn."""
    if result.layer:
        return "it is no bug of your backend"
    if running.order.has_enough_of(finding):
        return "smaller findings have the same pattern"
    if running.order.is_left_as_known(finding):
        return f"it may be {running.order.may_be_known(finding)}, and others were shrunk first"
    return "--minutes was over before its turn"


def _example(console: Console, result: Result, finding: FailingProgram, running: Campaign, scripted: bool) -> None:
    """Print one finding: its script or its sentence, and the command that runs it again."""
    more = len(finding.signatures) - MOST_SIGNATURES
    seen = [*finding.signatures[:MOST_SIGNATURES], *([f"and {more} more"] if more > 0 else [])]
    if seen:
        console.print(escape_control_characters(f"also seen as: {'; '.join(seen)}"))
    if result.remark:
        console.print(escape_control_characters(result.remark))
    if not finding.shrunk:
        console.print(f"not shrunk: {why_not_shrunk(result, finding, running)}; --minimize makes it small")
    if explanation := legend(finding.title(), *seen):
        console.print(f"where {explanation}")
    script = running.findings.script(finding)
    console.print(own_part(script) if scripted else escape_control_characters(headline(result)))
    if finding.elsewhere:
        console.print("elsewhere: " + "; ".join(f"{spec} {answer}" for spec, answer in finding.elsewhere.items()))
    if origin := finding.origin():
        console.print(escape_control_characters(origin))
    console.print(f"script: {running.findings.path(finding)}\nagain:  {running.findings.again(finding)}")
