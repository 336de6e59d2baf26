"""The command `conformance fuzz`: draw programs, run them on a target and on torch CPU, show what differs.

Defines `DrawnSource`. `run/campaign` runs the programs, and `run/session.py` does the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.engine.loading import describe_target
from conformance.program.steps.table import FAMILIES
from conformance.program.unsupported import KNOWN, check_declarations, held, unsupported_steps, unsupported_traits
from conformance.record import result as model
from conformance.record.errors import TargetError
from conformance.record.names import nearest
from conformance.record.result import Finding, Result, Run
from conformance.report import __main__ as report
from conformance.run import options
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.kernel_baseline import BASELINE, write_baseline
from conformance.run.campaign.listed import ListedPrograms, number_of
from conformance.run.campaign.numbered import NumberedPrograms
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.replay import corpus_of, expectations_file, kernels_of, replay
from conformance.run.campaign.source import LIMITS, CampaignSource
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Limits
from conformance.run.profile_trials import contradictions
from conformance.run.session import Session, limits_of, usual
from conformance.run.session import main as run_command
from conformance.sources.fuzzing import shortest_program
from conformance.sources.fuzzing.drawing import DTYPES, STEPS, Drawing
from conformance.sources.fuzzing.drawn import DrawnPrograms

PROGRAMS = 200
"""Number of programs, unless the user gives a number or a time."""

SUBJECTS = ("seed", "programs", "programs-from", "steps", "only", "without", "dtype", "corpus", "shard")
RUN = ("resume", "stop-at-first-failure", "minutes", *options.LIMITS, "strict", "check-scripts", "also-on", "reports",
       *options.DECLARED)  # fmt: skip
FLAGS = ("target", "oracle", *SUBJECTS, *RUN, "families", "replay", "minimize", "baseline", "kernels", "record-kernels",
         "fail-on-torch-bugs", *options.PLACE)  # fmt: skip
USUAL = {
    **usual(LIMITS, replay="the program in a JSON file, or each program in a folder"),
    "programs": f"{PROGRAMS}, or as many as --minutes allows",
    "steps": STEPS,
    "dtype": "the dtypes that the target holds",
    "baseline": "none",
    "kernels": str(BASELINE),
}


class DrawnSource(CampaignSource):
    """The source of drawn programs, and of those that a function of the user lists."""

    title, stem = "drawn programs", "fuzz"

    def files(self, args: argparse.Namespace) -> list[Path | None]:
        """Return the kernel counts and the saved programs."""
        return [args.kernels or BASELINE, *(sorted(args.corpus.glob("*.json")) if args.corpus else [])]

    def declarations(self, args: argparse.Namespace) -> Path:
        """See `CampaignSource.declarations`."""
        return expectations_file(args)

    def plan(self, args: argparse.Namespace, limits: Limits, spec: str, minutes: float | None = None) -> Plan:
        """See `CampaignSource.plan`."""
        return plan_of(args, limits, spec, minutes)

    def prepare(self, session: Session) -> None:
        """Read the baseline and the declarations, and check the options."""
        baseline = session.args.baseline
        self.baseline = report.load_of_kind(baseline, self.stem) if baseline else None
        super().prepare(session)

    def keep(self, session: Session, run: Run) -> None:
        """Mark the saved findings whose script shows no headline, and write the kernel counts of the programs."""
        super().keep(session, run)
        if session.args.record_kernels and not run.interrupted:
            write_baseline(session.args.kernels or BASELINE, session.target, self.running.result.counts)

    def stale(self, session: Session, run: Run, seconds: float) -> tuple[list[Result], list[str]]:
        """See `Source.stale`."""
        return contradicted_steps(session, seconds)


def contradicted_steps(session: Session, seconds: float) -> tuple[list[Result], list[str]]:
    """Return the steps that the profile declares lacking and that run, or the reverse, from trials of at most
    `seconds`, and notes."""
    found, notes = contradictions(session, "step", shortest_program.subject_of, seconds)
    results = []
    for one in found:
        title = f"{'declared' if one.outcome is model.Outcome.XPASS else 'not declared'} lacking: {one.part}"
        finding = Finding(title, str(one.outcome), count=0)
        results.append(Result(one.part, "", "program", "", one.outcome, reason=one.reason, finding=finding))
    return results, notes


def main(
    arguments: Sequence[str] | None = None, wanted: Callable[[Campaign, FailingProgram], float] | None = None
) -> int:
    """Run the command and return its exit code. `wanted`: see `Campaign.wanted`."""
    about = "Draw programs, run them on a target and on torch CPU, and report every difference."
    parser = options.parser("conformance fuzz", about, FLAGS, USUAL)
    return run_command(parser, arguments, lambda args: [DrawnSource(wanted)], instead)


def instead(args: argparse.Namespace) -> int | None:
    """Answer `--families`, `--replay` and `--minimize`, which run no campaign."""
    if args.families:
        print("\n".join(FAMILIES))
        return 0
    if not (args.replay or args.minimize):
        return None
    args.replay = Path(args.replay) if args.replay else None
    return replay(args, limits_of(args, LIMITS))


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
    wanted = args.programs if args.programs is not None or args.minutes is not None else PROGRAMS
    dtypes = tuple(options.chosen(args.dtype, dict.fromkeys(DTYPES), "dtype")) if args.dtype else DTYPES
    drawing = Drawing(
        args.steps,
        tuple(args.only),
        (*args.without, *declared),
        held(dtypes, facts),
        lacking=facts.profile.operators if facts.profile else (),
        compiled=facts.compiles and facts.on == "cpu",  # the factories of whole functions name no device
        traits=unsupported_traits(facts),
    )
    numbered: NumberedPrograms = DrawnPrograms(drawing)
    if args.programs_from:
        numbered = listed = ListedPrograms(args.programs_from, options=("--programs-from", args.programs_from))
        wanted = number_of(listed, args.programs)
    return Plan(
        numbered,
        spec,
        args.seed,
        wanted,
        minutes,
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
    )


if __name__ == "__main__":
    sys.exit(main())
