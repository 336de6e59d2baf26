"""The command `conformance mutants`: the number of programs until the fuzzer finds each planted fault.

Defines `PlantedFaults`, the source of the hunts. Each case hunts one fault in a worker. Faults are planted in torch
CPU, or in the device that `--target` names. `--plain` draws without bias, which measures the effect of the bias.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.engine.loading import describe_target
from conformance.program.unsupported import unsupported_steps
from conformance.record.errors import TargetError
from conformance.record.names import MUTANTS, POWER, nearest
from conformance.record.result import Failure, Named, Outcome, Result, Run
from conformance.run import options
from conformance.run.case_source import AGAIN, Job, JobSource
from conformance.run.messages import Limits
from conformance.run.session import Session, usual
from conformance.run.session import main as run_command
from conformance.run.worker import environment, step, unit
from conformance.selftest.mutants import EVERY, NOTHING, hunt
from conformance.sources.fuzzing.drawing import Drawing

PROGRAMS = 4000
FLAGS = ("target", "seed", "programs", "fault", "plain", *AGAIN, "minutes", *options.LIMITS, "strict", "reports",
         *options.DECLARED, *options.PLACE)  # fmt: skip


@dataclass(frozen=True)
class PlantedFault(Named):
    """The hunt of one fault with the programs of a seed."""

    op: str
    drawing: Drawing
    seed: int
    programs: int
    dtype: str = ""
    variant: str = "fault"
    layout: str = MUTANTS
    overload: str = ""

    @property
    def call(self) -> str:  # type: ignore[override]
        """The bug that the fault imitates."""
        return EVERY[self.op].like


def describe_environment(target: str) -> tuple[dict[str, str], None]:
    """Return the target's environment. Raises TargetError if no fault can be planted in it."""
    return environment(f"mutant:{NOTHING}@{target}"), None


def run(target: str, case: PlantedFault) -> Result:
    """Hunt the fault and return the result."""
    with unit(case.id), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step("the hunt")
        hunted = hunt(case.op, case.drawing, case.seed, case.programs, beneath=target)
    if not hunted.tried:
        return case.result(Outcome.SKIP, skipped=1, reason="no program was run that the target supports")
    if hunted.small is None:
        lost = Failure(POWER, "the fault", f"{case.programs} programs", "not found", call=case.call)
        return case.result(Outcome.FAIL, samples=hunted.tried, failed=1, failures=(lost,))
    steps, inputs = len(hunted.small.steps), len(hunted.small.inputs)
    reason = f"{hunted.oracle}, program {hunted.programs}, {steps} steps and {inputs} inputs when shrunk"
    return case.result(Outcome.PASS, samples=hunted.tried, reason=reason)


class PlantedFaults(JobSource):
    """The source of the hunts, one for each planted fault."""

    title = "planted faults"
    stem, usual = MUTANTS, Limits(unit=600.0, memory=8.0)
    job = Job(describe_environment, run, (__name__,))

    def cases(self, args: argparse.Namespace) -> tuple[list[PlantedFault], list[str]]:
        """See `JobSource.cases`."""
        unknown = [name for name in args.fault if name not in EVERY]
        if unknown:
            known = nearest(unknown[0], EVERY) or f": choose from {', '.join(EVERY)}"
            raise TargetError(f"there is no fault {unknown[0]!r}{known}")
        drawing = Drawing(biased=not args.plain, without=unsupported_steps(describe_target(args.target).facts))
        names = args.fault or list(EVERY)
        words = [*args.fault, f"seed {args.seed}", f"{args.programs} programs", *["without bias"] * args.plain]
        return [PlantedFault(name, drawing, args.seed, args.programs) for name in names], words

    def rows(self) -> Iterable[str]:
        """See `JobSource.rows`."""
        return EVERY

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`: the faults that need the most programs."""
        return sorted((result for result in run.results if result.reason), key=lambda result: -result.samples)

    def line(self, result: Result) -> str:
        """See `JobSource.line`."""
        return f"{result.op}: {result.reason}"

    def summarize(self, session: Session, run: Run) -> None:
        """Print the number of faults found and the medians, too."""
        caught = [result for result in run.results if result.outcome is Outcome.PASS]
        if caught:
            median = statistics.median(warning.samples for warning in caught)
            session.print(f"{len(caught)} of {len(run.results)} found; median {median:g} programs")
        super().summarize(session, run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a fault was not found."""
    about = "Measure the fuzzer's power: the number of programs until it finds each planted fault."
    defaults = {**usual(PlantedFaults.usual, MUTANTS), "programs": PROGRAMS}
    changes = {"target": {"default": "cpu"}}
    parser = options.parser(f"conformance {MUTANTS}", about, FLAGS, defaults, changes=changes)
    parser.set_defaults(**options.defaults(["check-scripts"]))
    return run_command(parser, arguments, lambda args: [PlantedFaults()])


if __name__ == "__main__":
    sys.exit(main())
