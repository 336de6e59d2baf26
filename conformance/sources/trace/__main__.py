"""The command `conformance trace`: a script of the user on its device, with each operator judged by torch CPU."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from conformance.record import versions
from conformance.record.errors import UserError
from conformance.record.names import TRACE
from conformance.report import __main__ as report
from conformance.report.escape import escape_control_characters, exit_code_of
from conformance.run import options, scripts, terminal
from conformance.run.command_end import end_command
from conformance.run.messages import Limits
from conformance.run.session import machine
from conformance.run.user_script import run_script
from conformance.sources.trace.api import Trace, device_target
from conformance.sources.trace.compiled import SECONDS
from conformance.sources.trace.mode import Options

FLAGS = ("target", "env", "op", "every", "training-steps", "divergence", "save", "against", "nonfinite", "strict",
         "check-scripts", "reports")  # fmt: skip
BUDGET = 60.0
"""Usual time in seconds for running the scripts of the findings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = "Run a script on its device, and name the operators that are wrong."
    parser = options.parser(f"conformance {TRACE}", about, FLAGS, {"check-scripts": BUDGET})
    parser.add_argument("script", type=Path, metavar="SCRIPT.py", help="the script, which uses the device")
    rest = parser.add_argument("arguments", nargs="...", metavar="ARGUMENT", help="its arguments")
    rest.required = False  # argparse would name it as missing beside the script
    args = parser.parse_args(arguments)
    words = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code_of(parser.prog, lambda: _traced(parser.prog, args, words))


def _traced(command: str, args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the script under the trace, and report its wrong operators. Raises UserError."""
    versions.check()
    if not args.script.is_file():
        raise UserError(f"{args.script} does not exist: give the path of a Python script")
    os.environ.update(dict(pair.partition("=")[::2] for pair in args.env))
    target = device_target(args.target) if args.target else None
    console = Console(stderr=True)
    said, stopped = "", 0
    with _progress(console, args.script.name) as progress:
        selection = args.every, tuple(args.op), args.training_steps
        compared = args.divergence, args.nonfinite, args.save, args.against
        tracer = Trace(target, Options(*selection, *compared), progress)
        try:
            said = run_script(args.script, args.arguments, tracer.active())
        except KeyboardInterrupt:
            said, stopped = "interrupted", int(signal.SIGINT)
    tracer.attribute(0.0 if stopped else SECONDS)
    run = tracer.run()
    run.command, run.environment = f"{command} {shlex.join(words)}", run.environment | machine()
    run.complete, run.interrupted, run.strict = not said, stopped, args.strict
    if not tracer.judged and not tracer.faults:
        print(f"{command}: {said or _nothing(args.script, tracer)}", file=sys.stderr)
        return run.exit_code() if stopped else 2
    if tracer.faults:
        report.write(run, args.reports, None)  # kept if a smaller call ends this process
        tracer.write_scripts(args.reports / "failures")
        run.results = tracer.run().results
        scripts.confirm(run, Limits().unit, 0.0 if stopped else args.check_scripts, 1)
    if not stopped:  # an interrupted run says only that it was
        run.not_judged = [*tracer.not_judged, *(scripts.count_unrun(run) if args.check_scripts else [])]
    report.write(run, args.reports, None)
    for line in tracer.lines():
        print(escape_control_characters(line))
    if run.shortfall:
        print(escape_control_characters(run.shortfall))
    print(f"report: {args.reports / report.PAGES[TRACE]}")
    if said:
        print(f"{command}: {said}; the results so far are in the report", file=sys.stderr)
    code = run.exit_code() if tracer.faults or stopped or not said else 2
    return code or tracer.exit_code


def _nothing(script: Path, trace: Trace) -> str:
    """Return why no call was judged."""
    if trace.mode.tallies:
        notes = "; ".join(trace.notes()) or "--op, --every and --training-steps exclude all of them"
        return f"no call of {script} was judged: {notes}"
    device = f"the device {trace.devices[0]}" if trace.devices else "a device other than the CPU"
    elsewhere = f"{script} runs no operator on {device}"
    if "accelerate" in sys.modules:  # which the Trainer of transformers uses, too
        name = trace.devices[0] if trace.devices else "NAME"
        return f"{elsewhere}: accelerate takes a device that it does not know from ACCELERATE_TORCH_DEVICE={name}"
    if {"lightning", "pytorch_lightning"} & sys.modules.keys():
        return f"{elsewhere}: Lightning trains on the device of its strategy, so give the Trainer one of this device"
    return f"{elsewhere}: move its model and its inputs to the device"


@contextlib.contextmanager
def _progress(console: Console, name: str) -> Iterator[Callable[[Trace], None]]:
    """Context with a progress bar on a terminal. Yields the function that renews it."""
    if not console.is_terminal:
        yield lambda trace: None
        return
    with terminal.shown(console) as view:
        yield lambda trace: view.at(trace.judged, None, len(trace.faults), f"{name}, step {trace.mode.step}")


if __name__ == "__main__":
    end_command(main())
