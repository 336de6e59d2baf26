"""The command `conformance test`: a complete test of a target within a time, with one page and one exit code.

It probes the target, runs op_db, with `--all` the accuracy and the sizes of operators and recorded models, and draws
programs until the time is over. `--only` selects parts of this.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence

from conformance.record.errors import UsageError
from conformance.run import options
from conformance.run.session import Source
from conformance.run.session import main as run_command
from conformance.sources.accuracy.__main__ import AccuracyCases
from conformance.sources.fuzzing import command as fuzzing
from conformance.sources.models import __main__ as models
from conformance.sources.models.__main__ import Models
from conformance.sources.opinfo import runner as opinfo
from conformance.sources.opinfo.plan import plan_complete_test
from conformance.sources.sizes.__main__ import SizesCases

MINUTES = 10.0
PARTS: dict[str, Callable[[], Source]] = {
    opinfo.OpDb.stem: functools.partial(opinfo.OpDb, plan_complete_test),
    **{source.stem: source for source in (AccuracyCases, SizesCases, Models, fuzzing.DrawnSource)},
}
"""The parts of a complete test, in the order in which they run. Drawn programs take the time that the others leave."""
WITH_REFERENCE = {AccuracyCases.stem, SizesCases.stem, Models.stem}
"""Parts that need the answers of torch CPU, and run only with `--all` or `--only`."""
FLAGS = ("target", "oracle", "only", "all", "seed", "programs", "minutes", *options.LIMITS, "strict", "check-scripts",
         "also-on", "reports", "update-expectations", "fail-on-torch-bugs", *options.PLACE)  # fmt: skip
USUAL = {
    "programs": "as many as the time allows",
    "minutes": MINUTES,
    "limit": "60 to 300",
    "memory": "8 to 10",
    "check-scripts": "a tenth of the time",
}


def sources_of(args: argparse.Namespace) -> list[Source]:
    """Return the sources of the run: the parts that `--only` names, all parts with `--all`, else op_db and programs."""
    if args.all and args.only:
        raise UsageError("--all runs every part, and --only names some: give one of both")
    named, args.only = args.only, []  # the fuzzer's flag of this name selects families of steps, and all are drawn
    names = options.chosen(named or [part for part in PARTS if args.all or part not in WITH_REFERENCE], PARTS, "part")
    measured = [part for part in PARTS if part in names and part in WITH_REFERENCE]
    if measured and args.oracle:
        raise UsageError(f"--oracle metamorphic has no reference, which {measured[0]} needs: leave one of both out")
    return [source() for part, source in PARTS.items() if part in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Test a target completely within a time: probe it, run PyTorch's op_db and drawn programs on it and on torch "
        "CPU, and write one page."
    )
    parts = {"only": f"parts: {', '.join(PARTS)}"}
    parser = options.parser("conformance test", about, FLAGS, USUAL, parts, {"only": {"metavar": "PART"}})
    parser.set_defaults(**options.defaults({*fuzzing.FLAGS, *opinfo.FLAGS, *models.FLAGS, "class", "scale"} - {*FLAGS}))
    parser.set_defaults(steps=fuzzing.STEPS)
    return run_command(parser, arguments, sources_of)


if __name__ == "__main__":
    sys.exit(main())
