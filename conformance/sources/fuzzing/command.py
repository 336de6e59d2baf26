"""The command `conformance fuzz`: draw programs, run them on a target and on torch CPU, show what differs.

Defines `Programs`, the source of drawn programs. `campaign.py` runs them; `run/session.py` does the rest. Findings
before an interruption are on disk.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.declare import expectations
from conformance.declare.declaration import FINDINGS, check, read, refuse
from conformance.engine.loading import describe_target
from conformance.program.steps.table import FAMILIES, FAMILY_OF
from conformance.program.unsupported import KNOWN, check_declarations, held, unsupported_steps, unsupported_traits
from conformance.record import result as model
from conformance.record.errors import TargetError
from conformance.record.finding import MOVE
from conformance.record.names import nearest
from conformance.record.result import WITHOUT_BACKEND, Finding, Result, Run
from conformance.record.sentences import headline
from conformance.report import __main__ as report
from conformance.run import options, signals
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Limits
from conformance.run.profile_trials import contradictions
from conformance.run.scripts import ScriptChecks
from conformance.run.session import Session, Source, limits_of, usual
from conformance.run.session import main as run_command
from conformance.run.terminal import View, shown
from conformance.sources.fuzzing import plainest
from conformance.sources.fuzzing.campaign import Campaign
from conformance.sources.fuzzing.drawing import DTYPES, STEPS, Drawing
from conformance.sources.fuzzing.kernel_baseline import BASELINE, write_baseline
from conformance.sources.fuzzing.listed import Listed, number_of
from conformance.sources.fuzzing.plan import Plan
from conformance.sources.fuzzing.replay import corpus_of, expectations_file, kernels_of, replay
from conformance.sources.fuzzing.results import parts, result_of, run_of, with_counts
from conformance.sources.fuzzing.terminal import summarize

PROGRAMS = 200
"""Number of programs, unless the user gives a number or a time."""

SUBJECTS = ("seed", "programs", "programs-from", "steps", "only", "without", "dtype", "corpus", "shard")
RUN = ("resume", "stop-at-first-failure", "minutes", *options.LIMITS, "strict", "check-scripts", "also-on", "reports",
       *options.DECLARED)  # fmt: skip
FLAGS = ("target", "oracle", *SUBJECTS, *RUN, "families", "replay", "minimize", "baseline", "kernels", "record-kernels",
         "fail-on-torch-bugs", *options.PLACE)  # fmt: skip
LIMITS = Limits(unit=60.0, memory=8.0)
"""Default limits of a program."""
USUAL = {
    **usual(LIMITS, replay="the program in a JSON file, or each program in a folder"),
    "programs": f"{PROGRAMS}, or as many as --minutes allows",
    "steps": STEPS,
    "dtype": "the dtypes that the target holds",
    "baseline": "none",
    "kernels": str(BASELINE),
}


class Programs(Source):
    """The source of drawn programs."""

    title = "drawn programs"
    stem, usual, job_summary = "fuzz", LIMITS, False

    def __init__(self, wanted: Callable[[Campaign, FailingProgram], float] | None = None) -> None:
        """`wanted`: see `Campaign.wanted`."""
        self.wanted = wanted
        self.running = Campaign(Plan())
        self.undeclared = Run("")

    def files(self, args: argparse.Namespace) -> list[Path | None]:
        """Return the kernel counts and the saved programs."""
        return [args.kernels or BASELINE, *(sorted(args.corpus.glob("*.json")) if args.corpus else [])]

    def prepare(self, session: Session) -> None:
        """Read the baseline and the declarations, and check the options."""
        args = session.args
        self.baseline = report.load_of_kind(args.baseline, self.stem) if args.baseline else None
        self.expected = self.declarations(args)
        self.known = read(self.expected)
        refuse(check(self.known, FINDINGS, parts()))
        self.plan(args, session.limits, session.spec)

    def declarations(self, args: argparse.Namespace) -> Path:
        """Return the file of declared findings. Raises ReportError."""
        return expectations_file(args)

    def plan(self, args: argparse.Namespace, limits: Limits, spec: str, minutes: float | None = None) -> Plan:
        """Return the plan of the campaign. Raises UserError."""
        return plan_of(args, limits, spec, minutes)

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

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """See `Source.stale`."""
        found, notes = contradictions(session, "step", plainest.subject_of, seconds)
        results = []
        for one in found:
            title = f"{'declared' if one.outcome is model.Outcome.XPASS else 'not declared'} lacking: {one.part}"
            finding = Finding(title, str(one.outcome), count=0)
            results.append(Result(one.part, "", "program", "", one.outcome, reason=one.reason, finding=finding))
        return results, notes

    def keep(self, session: Session, run: Run) -> None:
        """Mark the saved findings whose script shows no headline, and write the kernel counts of the programs."""
        self.running.mark_scripts(run.results)
        if session.args.record_kernels and not run.interrupted:
            write_baseline(session.args.kernels or BASELINE, session.target, self.running.result.counts)

    def summarize(self, session: Session, run: Run) -> None:
        """See `Source.summarize`."""
        summarize(self.running, run, session.console, line(self.running))

    def nothing(self, session: Session, run: Run) -> str:
        """See `Source.nothing`."""
        minutes = session.args.minutes
        if minutes is not None and not self.running.result.done:
            why = f"the time of --minutes {minutes:g} was over before the first programs had ended"
            return f"{why}, so nothing was compared: give it more"
        return "no program was run that the target supports, so nothing was compared"


def main(
    arguments: Sequence[str] | None = None, wanted: Callable[[Campaign, FailingProgram], float] | None = None
) -> int:
    """Run the command and return its exit code. `wanted`: see `Campaign.wanted`."""
    about = "Draw programs, run them on a target and on torch CPU, and report every difference."
    parser = options.parser("conformance fuzz", about, FLAGS, USUAL)
    return run_command(parser, arguments, lambda args: [Programs(wanted)], instead)


def instead(args: argparse.Namespace) -> int | None:
    """Answer `--families`, `--replay` and `--minimize`, which run no campaign."""
    if args.families:
        print("\n".join(FAMILIES))
        return 0
    if not (args.replay or args.minimize):
        return None
    args.replay = Path(args.replay) if args.replay else None
    return replay(args, limits_of(args, Programs.usual))


def plan_of(args: argparse.Namespace, limits: Limits, spec: str, minutes: float | None = None) -> Plan:
    """Return the plan that the options describe. Raises UserError for options that contradict each other."""
    target = describe_target(spec)
    check_declarations(target)
    facts = target.facts
    declared = unsupported_steps(facts)
    for names, known in ((args.only, FAMILIES), (args.without, KNOWN["step"])):
        for name in {*names} - {*known}:
            hint = nearest(name, known) or f": choose from {', '.join(FAMILIES)}"
            raise TargetError(f"unknown step family {name!r}{hint}")
    for family in args.only:
        if family in (*args.without, *declared):
            by = "--without" if family in args.without else f"target {spec}"
            raise TargetError(f"--only asks for the family {family!r}, which {by} leaves out, so none of it would run")
    listed = Listed(args.programs_from, words=("--programs-from", args.programs_from)) if args.programs_from else None
    wanted = args.programs if args.programs is not None or args.minutes is not None else PROGRAMS
    if listed is not None:
        wanted = number_of(listed, args.programs)
    dtypes = tuple(options.chosen(args.dtype, dict.fromkeys(DTYPES), "dtype")) if args.dtype else DTYPES
    return Plan(
        spec,
        args.seed,
        wanted,
        minutes,
        Drawing(
            args.steps,
            tuple(args.only),
            (*args.without, *declared),
            held(dtypes, facts),
            lacking=facts.profile.operators if facts.profile else (),
            compiled=facts.compiles and facts.on == "cpu",  # the factories of whole functions name no device
            traits=unsupported_traits(facts),
        ),
        args.jobs,
        Path(args.reports),
        limits,
        args.stop_at_first_failure,
        corpus=corpus_of(args.corpus)[args.shard[0] - 1 :: args.shard[1]],
        resume=args.resume,
        kernels=kernels_of(args),
        record=args.record_kernels,
        part=args.shard,
        fail_on_torch_bugs=args.fail_on_torch_bugs,
        listed=listed,
    )


def progress(running: Campaign) -> int:
    """Number of programs that count towards `--programs`: those that ran, since others replace the rest."""
    return running.result.done if running.plan.listed is not None else running.result.judged


def line(running: Campaign) -> str:
    """Return the progress of the campaign in one line."""
    done, wanted = progress(running), running.plan.wanted
    rate = done / max(running.running_seconds, 1e-9)
    findings = running.distinct()
    failing = len(set[int]().union(*(finding.numbers for finding in findings)))
    noun = running.plan.listed.noun.split()[-1] if running.plan.listed is not None else "programs"
    return (
        f"seed {running.plan.seed}: {done}{f'/{wanted}' if wanted is not None else ''} {noun}, "
        f"{rate:.1f} {noun}/s, {failing} failing, {len(findings)} distinct"
    )


def show_progress(running: Campaign, view: View) -> None:
    """Let the campaign show its progress, and each finding as soon as it is confirmed."""
    known = set[object]()

    def tell(at: Campaign) -> None:
        findings = at.distinct()
        for finding in findings:
            cause = finding.pattern_if_shrunk or finding.signature  # one line for a bug of many operators
            names = {cause, (finding.number, finding.part)}  # a culprit, once found, is another cause of this program
            told = not names.isdisjoint(known)
            known.update(names)
            if not told and finding.op != MOVE:  # one sentence at the end reports a failing move
                result = result_of(finding)
                also = ""
                if at.of_torch(finding):
                    also = f" ({WITHOUT_BACKEND}{'' if at.plan.fail_on_torch_bugs else ', so it is not shrunk'})"
                elif not finding.shrunk and at.may_be_known(finding):
                    also = f" (may be {at.may_be_known(finding)}, so it is shrunk later)"
                view.finding(f"{result.outcome} in program {finding.number}: {headline(result)}{also}")
        failing = len(set[int]().union(*(finding.numbers for finding in findings)))
        view.at(progress(at), at.plan.wanted, failing, line(at))

    running.tell = tell


if __name__ == "__main__":
    sys.exit(main())
