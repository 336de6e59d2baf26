"""Saved programs run again: one with its script and both answers, or a folder, a line each; `--minimize` shrinks one.

The key insight: a replay is a campaign of one program, in a worker that may die of it, under the same judge. Its output
has the form of `report/terminal.py`, which replays of op_db samples use too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from conformance.declare import expectations
from conformance.declare import profile as profiles
from conformance.declare.declaration import FINDINGS, check, read, refuse
from conformance.engine.loading import describe_target
from conformance.program.model import ProgramError, dump, read_program
from conformance.program.script import script
from conformance.program.unsupported import check_declarations
from conformance.record.files import write_atomic
from conformance.record.finding import INVALID
from conformance.record.result import Outcome
from conformance.record.sentences import sentence
from conformance.report import summary
from conformance.report.terminal import Replayed, show, show_all
from conformance.run.campaign.kernel_baseline import BASELINE, read_baseline
from conformance.run.campaign.listed import SAVED_ONLY
from conformance.run.campaign.plan import Plan, Shard, again
from conformance.run.campaign.results import parts, replayed, replayed_result
from conformance.run.campaign.workers import Workers
from conformance.run.execution_place import ExecutionPlace, log_aside
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Limits
from conformance.run.shrinking import LocalShrinker
from conformance.run.temporary import OwnedFolder

Rerun = Callable[[Path], tuple[FailingProgram | None, str]]

MINIMIZE_TRIALS = 1000
"""Number of smaller programs that `--minimize` tries."""


def kernels_of(args: argparse.Namespace) -> str:
    """The file of kernel counts to compare with, or the empty string. Raises ProgramError if it cannot be read."""
    file = args.kernels or (BASELINE if BASELINE.exists() else None)
    if file is None or args.record_kernels:
        return ""
    read_baseline(file, args.target)
    return str(file)


def corpus_of(folder: Path | None) -> tuple[str, ...]:
    """The program files in a folder. Raises ProgramError if there is none, or if one cannot be read."""
    if folder is None:
        return ()
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ProgramError(f"{folder}: there is no program (*.json) in this folder")
    for path in paths:
        read_program(path)
    return tuple(str(path) for path in paths)


@contextmanager
def replaying(args: argparse.Namespace, limits: Limits) -> Iterator[tuple[Workers, Rerun]]:
    """A worker, and a function that runs a saved program in it as a campaign would.

    The function returns the finding, if any, and the unsupported feature that the target declares, if the program needs
    it. It raises ProgramError, naming the file, if the program has no meaning on torch CPU."""
    spec, kernels, place = args.target, kernels_of(args), ExecutionPlace(starting=args.starting, tell=log_aside)
    check_declarations(describe_target(spec))
    with OwnedFolder() as notes, Workers(spec, limits, place=place) as workers:
        workers.load()

        def rerun(path: Path) -> tuple[FailingProgram | None, str]:
            plan = Plan(SAVED_ONLY, spec, reports=Path(notes), corpus=(str(path),), kernels=kernels)
            result = workers.run(Shard(plan, -1, 1))
            finding = result.findings[0] if result.findings else None
            if finding is not None and finding.kind == INVALID:
                raise ProgramError(f"{path}: {finding.signature.removeprefix('invalid / ')}")
            return finding, "".join(+result.unsupported)

        yield workers, rerun


def replay(args: argparse.Namespace, limits: Limits) -> int:
    """Run the program that `--replay` or `--minimize` names again, show it, and return 1 if something differs. The
    target is the option's, else the file's, else the command's default. Raises ProgramError, also if a folder has only
    programs that the target does not support."""
    path = args.minimize or args.replay
    if path.is_dir() and not args.minimize:
        args.target = profiles.usual(args.target, args.oracle)
        return replay_folder(path, args, limits)
    program = read_program(path)
    args.target = profiles.usual(args.target or target_of(path), args.oracle)
    with replaying(args, limits) as (workers, rerun):
        finding, lacks = rerun(path)
        if finding and args.minimize:
            with LocalShrinker(workers, MINIMIZE_TRIALS) as shrinker:
                finding = shrinker.smaller(finding)
    replayed = _replayed(path, args, finding, lacks)
    if finding:
        print(dump(finding.program))
    show(replayed)
    if finding and args.minimize:  # after the output, since the disk may be full
        saved = _minimal(path, args)
        write_atomic(saved, json.dumps({**finding.to_json(), "target": args.target}, indent=1))
        write_atomic(saved.with_suffix(".py"), replayed.script)
        before, after = len(program.steps), len(finding.program.steps)
        print(f"# {before} steps became {after}; saved as {saved}, beside its script")
    return int(bool(replayed.kind))


def replay_folder(folder: Path, args: argparse.Namespace, limits: Limits) -> int:
    """Run every saved program of a folder, for example the corpus, and print a line for each. A declared finding is
    XFAIL. Raises ProgramError if the target supports none of the programs."""
    paths, file = [Path(name) for name in corpus_of(folder)], expectations_file(args)
    known = read(file)
    refuse(check(known, FINDINGS, parts()))
    findings: list[FailingProgram] = []
    lines: list[Replayed] = []
    with replaying(args, limits) as (_, rerun):
        for path in paths:
            finding, lacks = rerun(path)
            line = _replayed(path, args, finding, lacks)
            if finding is not None:
                findings.append(replace(finding, saved=(path.stem,)))
                result = expectations.judged(replayed_result(findings[-1]), known)
                line = replace(line, kind="XFAIL", about=[result.reason]) if result.declared else line
            lines.append(line)
    skipped = sum(bool(line.lacks) for line in lines)
    run = replayed(args.target, findings, [path.stem for path in paths], skipped)
    run = expectations.apply(run, known, file)
    for result in run.findings:
        if result.outcome is Outcome.XPASS:
            print(f"XPASS {result.reason}")
    show_all(lines)
    print("".join(f"{text}\n" for text in summary.known(run)), end="")
    if skipped == len(paths):
        raise ProgramError(f"{folder}: {args.target} leaves out every program, so there is nothing to compare")
    return run.exit_code()


def expectations_file(args: argparse.Namespace) -> Path:
    """The file of declared findings. Raises ReportError if `--expectations` names a file that does not exist."""
    return expectations.file_of(args, expectations.path_for(args.target))


def _minimal(path: Path, args: argparse.Namespace) -> Path:
    return Path(args.reports) / "failures" / f"{path.stem}-minimal.json"


def _replayed(path: Path, args: argparse.Namespace, finding: FailingProgram | None, lacks: str) -> Replayed:
    steps = f"all {len(read_program(path).steps)} steps"
    if finding is None:
        return Replayed(str(path), args.target, steps, lacks=lacks)
    saved = _minimal(path, args) if args.minimize else path
    named = args.minimize or target_of(path) == args.target  # the file names its target
    notes = [f"{finding.kind}: {finding.signature}", f"Again: {again(saved, '' if named else args.target)}"]
    target = describe_target(args.target)
    text = script(finding.program, target, finding.differences, notes, finding.bad_step, finding.death())
    lines = [*map(sentence, finding.differences[:1]), *map(str, finding.differences)]
    about = lines or [finding.death() or finding.signature]
    return Replayed(str(path), args.target, steps, finding.kind, about, text)


def target_of(path: Path) -> str:
    """The target of a saved finding; the empty string for a program alone."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return str(data.get("target", "")) if isinstance(data, dict) else ""
