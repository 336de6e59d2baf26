"""The command `conformance init --target ...`: test the features of a target, and write its profile, conformance.toml.

All trials run in workers. The file is written atomically, and replaces an existing one only with --force.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conformance.declare import profile as profiles
from conformance.program.steps.table import FAMILY_OF
from conformance.record.errors import UsageError
from conformance.record.files import write_atomic
from conformance.record.missing_ops import AttemptOutcome
from conformance.record.names import without_features
from conformance.record.result import counted
from conformance.report import terminal
from conformance.report.escape import escape_control_characters, exit_code_of
from conformance.run import options, signals
from conformance.run.execution_place import ExecutionPlace, log
from conformance.run.messages import Limits
from conformance.run.profile_trials import LATE
from conformance.run.worker_log import log_file
from conformance.sources.init import upstream_configs
from conformance.sources.init.init import Investigation, investigate

FLAGS = ("target", "env", "minutes", "limit", "memory", "output", "force", "starting", "jobs")
USUAL = {"minutes": 30.0, "limit": 120.0, "memory": 8.0, "output": Path(profiles.NAME), "starting": 180.0}
DEATHS = "not lacking but a finding: it ended or hung its process"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, 2 for an error that the user must fix, or 128 plus the signal of a
    stop.
    """
    about = "Test the features of a target, try each operator, and write the target's profile, conformance.toml."
    parser = options.parser("conformance init", about, FLAGS, USUAL, changes={"target": {"required": True}})
    args = parser.parse_args(arguments)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with signals.deferred():
            return exit_code_of(parser.prog, lambda: init(args, words))
    except KeyboardInterrupt:
        print(f"conformance init: interrupted; {args.output} is as it was", file=sys.stderr)
        return 128 + signals.signal_number()


def init(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Investigate the target and write its profile. Raises UserError."""
    if profiles.is_profile(args.target):
        raise UsageError(f"--target {args.target} is a profile; give the target itself, such as device:NAME")
    if without_features(args.target) != args.target:
        raise UsageError(f"--target {args.target} says what it lacks, which init finds out: leave out without=")
    if not profiles.is_profile(str(args.output)):
        raise UsageError(f"--output {args.output} must end in .toml, by which a profile is known")
    for file in (args.output, upstream_configs.file_for(args.output)):
        if file.exists() and not args.force:
            raise UsageError(f"{file} is there already; give --force to write over it, or another --output")
    environment = dict(_variable(text) for text in args.env)
    os.environ.update(environment)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    limits = Limits(unit=args.limit, compiling=args.limit, starting=args.starting, memory=args.memory)
    with log_file(args.output.with_suffix(".log"), option="--output") as file:
        investigation = investigate(
            args.target, limits, args.jobs, args.minutes * 60, console, ExecutionPlace(worker_log=file, tell=log)
        )
    if investigation.probe is not None:
        terminal.probed(console, args.target, investigation.probe)
    late = sum(trial.said == LATE for trial in investigation.of(AttemptOutcome.UNTRIED))
    written = investigation.profile(environment, args.memory, args.output)
    head = [
        "How conformance loads this target, and what it lacks; written by",
        f"{shlex.join(['conformance', 'init', *words])}",
        f"with {', '.join(f'{name} {value}' for name, value in investigation.environment.items())}.",
        "What is declared lacking is not run, but tried once in each run: what works then is reported.",
        *(f"{DEATHS.capitalize()}: {trial.name} ({trial.said})." for trial in investigation.of(AttemptOutcome.DIED)),
        *([f"{late} of {len(investigation.trials)} trials had no time: nothing is declared of them."] if late else []),
    ]
    write_atomic(args.output, profiles.dumps(written, head))
    configs = upstream_configs.file_for(args.output)
    text = upstream_configs.test_configs(
        investigation, environment, shlex.join(["conformance", "init", *words]), configs.name
    )
    if text:
        write_atomic(configs, text)
    entries = {operator: declaration.scope.op for operator, declaration in written.unsupported("operator").items()}
    terminal.missing(console, written.table(families=FAMILY_OF, entries=entries))
    for sentence in sentences(investigation):
        console.print(escape_control_characters(sentence))
    console.print(f"profile: {args.output}")
    if text:
        console.print(f"the same for PyTorch's own tests: {configs}")
    return 128 + investigation.interrupted if investigation.interrupted else 0


MOST_NAMED = 20
"""Number of failing trials that are named with their errors."""


def sentences(investigation: Investigation) -> list[str]:
    """Return the results of the trials in words."""
    counts = {outcome: len(investigation.of(outcome)) for outcome in AttemptOutcome}
    lines = [
        f"of {len(investigation.trials)} trials {counts[AttemptOutcome.WORKS]} work, "
        f"{counts[AttemptOutcome.LACKING]} lack a kernel, {counts[AttemptOutcome.FAILS]} fail though they have one, "
        f"{counts[AttemptOutcome.DIED]} end their process, and {counts[AttemptOutcome.UNTRIED]} were not made; "
        "only those that lack a kernel are declared"
    ]
    lines += [f"{DEATHS}: {trial.name} {trial.said}" for trial in investigation.of(AttemptOutcome.DIED)]
    failing = investigation.of(AttemptOutcome.FAILS)
    lines += [f"fails, which is a finding: {trial.name}: {trial.said}" for trial in failing[:MOST_NAMED]]
    if failing[MOST_NAMED:]:
        lines.append(f"and {len(failing) - MOST_NAMED} more fail: conformance opinfo and conformance fuzz show them")
    reasons: dict[str, list[str]] = {}
    for trial in investigation.of(AttemptOutcome.UNTRIED):
        if trial.said != LATE:
            reasons.setdefault(trial.said, []).append(trial.name)
    lines += [f"not made, since {reason}: {', '.join(names)}" for reason, names in reasons.items()]
    late = [trial for trial in investigation.of(AttemptOutcome.UNTRIED) if trial.said == LATE]
    if late:
        why = "interrupted, so" if investigation.interrupted else "had no time, so"
        lines.append(f"{counted(len(late), 'trial')} {why} nothing is declared of them: give more --minutes")
    return lines


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--env {text} is not understood: write --env NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
