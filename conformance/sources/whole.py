"""The command `conformance test`: a complete test of a target within a time, with one page and one exit code.

It probes the target, runs op_db, with `--all` the accuracy and the sizes of operators and recorded models, and draws
programs until the time is over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from conformance.record.errors import UsageError
from conformance.run import options
from conformance.run.session import Source
from conformance.run.session import main as run_command
from conformance.sources.accuracy.__main__ import Accuracy
from conformance.sources.fuzzing import command as fuzzing
from conformance.sources.models import __main__ as models
from conformance.sources.models.__main__ import Models
from conformance.sources.opinfo import runner as opinfo
from conformance.sources.sizes.__main__ import Sizes

MINUTES = 10.0
FLAGS = ("target", "oracle", "all", "seed", "programs", "minutes", *options.LIMITS, "check-scripts", "also-on",
         "reports", "update-expectations", "fail-on-torch-bugs", *options.PLACE)  # fmt: skip
USUAL = {
    "programs": "as many as the time allows",
    "minutes": MINUTES,
    "limit": "60 to 300",
    "memory": "8 to 10",
    "check-scripts": "a tenth of the time",
}


def sources_of(args: argparse.Namespace) -> list[Source]:
    """Return the sources in the order in which they run. Drawn programs take the time that the others leave."""
    if args.all and args.oracle:
        raise UsageError("--all measures against a reference, and --oracle metamorphic has none: give one of both")
    measured: list[Source] = [Accuracy(), Sizes(), Models()] if args.all else []
    return [opinfo.OpDb(), *measured, fuzzing.Programs()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Test a target completely within a time: probe it, run PyTorch's op_db and drawn programs on it and on torch "
        "CPU, and write one page."
    )
    parser = options.parser("conformance test", about, FLAGS, USUAL)
    parser.set_defaults(**options.defaults({*fuzzing.FLAGS, *opinfo.FLAGS, *models.FLAGS, "class", "scale"} - {*FLAGS}))
    parser.set_defaults(steps=fuzzing.STEPS)
    return run_command(parser, arguments, sources_of)


if __name__ == "__main__":
    sys.exit(main())
