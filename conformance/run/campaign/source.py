"""The source of a campaign in a session: it runs the campaign under a progress bar, and makes its results the run's.

Defines `CampaignSource`, from which the sources of drawn programs and of recorded calls are made, and the lines that a
campaign shows while it runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from conformance.declare import expectations
from conformance.declare.declaration import FINDINGS, check, read, refuse
from conformance.program.steps.table import FAMILY_OF
from conformance.record.finding import MOVE
from conformance.record.result import WITHOUT_BACKEND, Run
from conformance.record.sentences import headline
from conformance.run import signals
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.listed import SAVED_ONLY
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.results import parts, result_of, run_of, with_counts
from conformance.run.campaign.terminal import summarize
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Limits
from conformance.run.scripts import ScriptChecks
from conformance.run.session import Session, Source
from conformance.run.terminal import View, shown

LIMITS = Limits(unit=60.0, memory=8.0)
"""Default limits of a program."""


class CampaignSource(Source):
    """A source of numbered programs. A subclass states the file of its declarations and the plan."""

    usual, job_summary = LIMITS, False

    def __init__(self, wanted: Callable[[Campaign, FailingProgram], float] | None = None) -> None:
        """`wanted`: see `Campaign.wanted`."""
        self.wanted = wanted
        self.running = Campaign(Plan(SAVED_ONLY))
        self.undeclared = Run("")

    def declarations(self, args: argparse.Namespace) -> Path:
        """Return the file of declared findings. Raises ReportError."""
        raise NotImplementedError

    def plan(self, args: argparse.Namespace, limits: Limits, spec: str, minutes: float | None = None) -> Plan:
        """Return the plan of the campaign. Raises UserError."""
        raise NotImplementedError

    def prepare(self, session: Session) -> None:
        """Read the declarations, and check the options."""
        args = session.args
        self.expected = self.declarations(args)
        self.known = read(self.expected)
        refuse(check(self.known, FINDINGS, parts()))
        self.plan(args, session.limits, session.spec)

    def execute(self, session: Session, seconds: float) -> Run:
        """Run the campaign under the progress bar."""
        minutes = None if seconds == math.inf else seconds / 60
        plan = self.plan(session.args, session.limits, session.target, minutes)
        self.running, interrupted = Campaign(plan, place=session.place, wanted=self.wanted), 0
        checks = ScriptChecks(session.target, session.limits.unit)
        session.checked = checks.known
        if session.checking:
            self.running.check, self.running.kept_for_scripts = checks.run, session.checking
        with shown(session.console) as view, checks:
            try:
                show_progress(self.running, view)
                self.running.run()
            except KeyboardInterrupt:
                interrupted = signals.signal_number()
        self.running.plan = self.plan(session.args, session.limits, session.target, session.args.minutes)
        self.undeclared = run_of(self.running, interrupted)
        result = self._declared()
        result.seconds = self.running.earlier_seconds
        profile = session.profile
        result.lacking = profile.table({}, FAMILY_OF, self.running.result.removed()) if profile else ()
        return result

    def _declared(self) -> Run:
        return with_counts(expectations.apply(self.undeclared, self.known, self.expected))

    def declare(self, session: Session, run: Run) -> list[str]:
        """See `Source.declare`."""
        done = expectations.declare(self.undeclared, self.expected)
        self.known = read(self.expected)
        applied = self._declared()
        run.results, run.drawn, run.expectations = applied.results, applied.drawn, applied.expectations
        return done

    def keep(self, session: Session, run: Run) -> None:
        """Mark the saved findings whose script shows no headline."""
        self.running.findings.mark_scripts(run.results)

    def summarize(self, session: Session, run: Run) -> None:
        """See `Source.summarize`."""
        summarize(self.running, run, session.console, progress_line(self.running))

    def nothing(self, session: Session, run: Run) -> str:
        """See `Source.nothing`."""
        minutes = session.args.minutes
        if minutes is not None and not self.running.result.done:
            why = f"the time of --minutes {minutes:g} was over before the first programs had ended"
            return f"{why}, so nothing was compared: give it more"
        return "no program was run that the target supports, so nothing was compared"


def count_progress(running: Campaign) -> int:
    """Return the number of programs that count towards `--programs`: those that ran, if others replace the rest."""
    return running.result.judged if running.plan.numbered.endless else running.result.done


def progress_line(running: Campaign) -> str:
    """Return the progress of the campaign in one line."""
    done, wanted = count_progress(running), running.plan.wanted
    rate = done / max(running.running_seconds, 1e-9)
    findings = running.findings.distinct()
    failing = len(set[int]().union(*(finding.numbers for finding in findings)))
    noun = running.plan.numbered.noun.split()[-1]
    return (
        f"seed {running.plan.seed}: {done}{f'/{wanted}' if wanted is not None else ''} {noun}, "
        f"{rate:.1f} {noun}/s, {failing} failing, {len(findings)} distinct"
    )


def show_progress(running: Campaign, view: View) -> None:
    """Let the campaign show its progress, and each finding as soon as it is confirmed."""
    known = set[object]()

    def tell(at: Campaign) -> None:
        findings = at.findings.distinct()
        for finding in findings:
            cause = finding.pattern_if_shrunk or finding.signature  # one line for a bug of many operators
            names = {cause, (finding.number, finding.part)}  # a culprit, once found, is another cause of this program
            told = not names.isdisjoint(known)
            known.update(names)
            if not told and finding.op != MOVE:  # one sentence at the end reports a failing move
                result = result_of(finding)
                also = ""
                if at.order.of_torch(finding):
                    also = f" ({WITHOUT_BACKEND}{'' if at.plan.fail_on_torch_bugs else ', so it is not shrunk'})"
                elif not finding.shrunk and at.order.may_be_known(finding):
                    also = f" (may be {at.order.may_be_known(finding)}, so it is shrunk later)"
                view.finding(f"{result.outcome} in program {finding.number}: {headline(result)}{also}")
        failing = len(set[int]().union(*(finding.numbers for finding in findings)))
        view.at(count_progress(at), at.plan.wanted, failing, progress_line(at))

    running.tell = tell
