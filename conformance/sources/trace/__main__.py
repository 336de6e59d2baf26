"""The command `conformance trace`: a script of the user on its device, with each operator judged by torch CPU."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from conformance.record import versions
from conformance.record.errors import UserError, exit_in_a_sentence
from conformance.record.names import TRACE
from conformance.report import __main__ as report
from conformance.report.escape import escape_control_characters, kept_streams
from conformance.run import options, scripts, terminal
from conformance.run.messages import Limits
from conformance.run.session import machine
from conformance.sources.trace.api import Trace, device_target
from conformance.sources.trace.compiled import SECONDS
from conformance.sources.trace.mode import Options
from conformance.sources.trace.places import is_of_user

FLAGS = ("target", "env", "op", "every", "training-steps", "divergence", "check-scripts", "reports")
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
    try:
        versions.check()
        if not args.script.is_file():
            raise UserError(f"{args.script} does not exist: give the path of a Python script")
        os.environ.update(dict(pair.partition("=")[::2] for pair in args.env))
        target = device_target(args.target) if args.target else None
        console = Console(stderr=True)
        with _progress(console, args.script.name) as progress:
            tracer = Trace(target, Options(args.every, tuple(args.op), args.training_steps, args.divergence), progress)
            ended = _run_script(args.script, args.arguments, tracer)
        tracer.attribute(0.0 if ended.signal else SECONDS)
        run = tracer.run()
        run.command, run.environment = f"{parser.prog} {shlex.join(words)}", run.environment | machine()
        run.complete, run.interrupted = not ended.said, ended.signal
        if not tracer.judged and not tracer.faults:
            print(f"{parser.prog}: {ended.said or _nothing(args.script, tracer)}", file=sys.stderr)
            return run.exit_code() if ended.signal else 2
        if tracer.faults:
            report.write(run, args.reports, None)  # kept if a smaller call ends this process
            tracer.write_scripts(args.reports / "failures")
            run.results = tracer.run().results
            scripts.confirm(run, Limits().unit, 0.0 if ended.signal else args.check_scripts, 1)
        report.write(run, args.reports, None)
        for line in tracer.lines():
            print(escape_control_characters(line))
        print(f"report: {args.reports / report.PAGES[TRACE]}")
        if ended.said:
            print(f"{parser.prog}: {ended.said}; the results so far are in the report", file=sys.stderr)
        return run.exit_code() if tracer.faults or ended.signal or not ended.said else 2
    except UserError as error:
        print(f"{parser.prog}: {escape_control_characters(str(error))}", file=sys.stderr)
        return 2


class Ended:
    """The end of the script: `said` is the reason in words if it ended early, and `signal` the number of a signal."""

    said = ""
    signal = 0


def _run_script(script: Path, arguments: Sequence[str], trace: Trace) -> Ended:
    """Run the script as Python does, under the trace."""
    ended, before = Ended(), (sys.argv, [*sys.path])
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.parent.resolve())]
    try:
        with kept_streams(), trace.active():
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            ended.said = exit_in_a_sentence(script, stop)
    except KeyboardInterrupt:
        ended.said, ended.signal = "interrupted", int(signal.SIGINT)
    except Exception as error:
        ended.said = f"{script} fails by itself: {_sentence(error)}"
    finally:
        sys.argv, sys.path[:] = before
    return ended


def _sentence(error: Exception) -> str:
    """Return an error in one sentence, with the line of the user's code that raised it."""
    lines = [one for one in traceback.extract_tb(error.__traceback__) if is_of_user(one.filename)]
    at = f", line {lines[-1].lineno} of {Path(lines[-1].filename).name}" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{at}"


def _nothing(script: Path, trace: Trace) -> str:
    """Return why no call was judged."""
    if trace.mode.tallies:
        notes = "; ".join(trace.notes()) or "--op, --every and --training-steps exclude all of them"
        return f"no call of {script} was judged: {notes}"
    device = f"the device {trace.devices[0]}" if trace.devices else "a device other than the CPU"
    return f"{script} runs no operator on {device}: move its model and its inputs to the device"


@contextlib.contextmanager
def _progress(console: Console, name: str) -> Iterator[Callable[[Trace], None]]:
    """Context with a progress bar on a terminal. Yields the function that renews it."""
    if not console.is_terminal:
        yield lambda trace: None
        return
    with terminal.shown(console) as view:
        yield lambda trace: view.at(trace.judged, None, len(trace.faults), f"{name}, step {trace.mode.step}")


if __name__ == "__main__":
    sys.exit(main())
