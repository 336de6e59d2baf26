"""What a campaign's worker process does: draw numbered programs, run them, and keep what is found on disk at once.

The key insight: the machine under test may take the process with it, so a program is written down *before* it runs and
a failure the moment it is seen. What a dead worker knew is then on disk, and what it drew can be drawn again.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.core.errors import TargetError
from conformance.core.loading import describe_target, load_target
from conformance.core.oracles import Mismatch
from conformance.core.result import write_atomic
from conformance.core.target import Target
from conformance.fuzzing.drawing import Drawing, Tally
from conformance.fuzzing.kernel_baseline import read_baseline
from conformance.programs.alias_probes import with_alias_probes
from conformance.programs.model import Program, ProgramError, digest, read_program
from conformance.programs.reduce import reduce_program
from conformance.programs.steps.op import Json
from conformance.programs.verdict import Verdict, gist, judge, leading, signature

FAIL, FLAKY, CRASH, TIMEOUT, MEMORY, INVALID = "FAIL", "FLAKY", "CRASH", "TIMEOUT", "MEMORY", "INVALID"
"""What can be found; INVALID is a fault of the drawing: a program that means nothing on torch CPU."""

LAST_WORDS = {-1: TIMEOUT, -2: MEMORY}
"""Written down instead of a step when the worker ends itself, since a program ran too long or took too much memory."""

OUT_OF_MEMORY = ("MemoryError", "can't allocate memory", "bad_alloc", "Cannot allocate memory", "out of memory")
"""How Python, torch, C++ and the system say it."""


PARENT_PID: list[int] = []
"""The process that started this worker. When it is gone, another campaign may do this one's work, in the same files."""

NOTHING = Program((), ())
"""Stands for a program that was never drawn."""


class ProgramTimeout(BaseException):
    """A program ran longer than it may. Not an Exception, so that no step of the program can answer it."""


@dataclass(frozen=True)
class Finding:
    """A program on which the target is wrong: what kind of failure, its group, and the mismatches."""

    kind: str
    seed: int
    number: int
    group: str
    program: Program
    mismatches: tuple[Mismatch, ...] = ()
    step: int | None = None

    def to_json(self) -> dict[str, Json]:
        """The finding as JSON; `--replay` reads it as it reads a program."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "number": self.number,
            "signature": self.group,
            "first_bad_step": self.step,
            "mismatches": [asdict(mismatch) for mismatch in self.mismatches],
            "program": self.program.to_json(),
        }

    @classmethod
    def from_json(cls, data: Json) -> Finding:
        """The finding that `to_json` wrote."""
        return cls(
            data["kind"],
            data["seed"],
            data["number"],
            data["signature"],
            Program.from_json(data["program"]),
            tuple(Mismatch(**mismatch) for mismatch in data["mismatches"]),
            data["first_bad_step"],
        )


@dataclass(frozen=True)
class Shard:
    """Some programs of a seed, to be run by one worker. `notes` is where it writes down what it runs and finds, under
    the name of its campaign; `limit` is how many seconds a program may take."""

    target: str
    drawing: Drawing
    seed: int
    first: int
    count: int
    notes: str
    limit: float
    corpus: tuple[str, ...] = ()
    """Files of programs that are run first, under the numbers -1, -2, ... counted from the end."""
    kernels: str = ""
    """The file with the kernels that programs took before, if there is one."""
    record: bool = False
    """Whether the kernels of each program are kept, for such a file."""
    campaign: str = ""
    stop_at_first: bool = False
    """Whether the shard ends with the first program that fails."""

    @property
    def running(self) -> Path:
        """The file that says which program is being run."""
        return Path(self.notes) / f"running-{self.campaign}-{self.first}.note"

    def found(self, number: int) -> Path:
        """The file of a failure that nobody has taken over yet."""
        return Path(self.notes) / f"found-{self.campaign}-{number}.json"


@dataclass
class Result:
    """What a shard did: how many programs ran, what was drawn and found, kernels run and allowed, seconds each."""

    done: int = 0
    tally: Tally = field(default_factory=Tally)
    findings: list[Finding] = field(default_factory=list)
    kernels: int = 0
    allowed: int = 0
    seconds: list[float] = field(default_factory=list)
    unsupported: Counter[str] = field(default_factory=Counter)
    """Programs that were not run, by what the target had declared that it leaves out."""
    arbitrated: int = 0
    """Programs that differ from torch CPU and pass by its answer in float64."""
    compared: int = 0
    """Programs whose kernels were compared with a baseline."""
    counts: dict[str, int] = field(default_factory=dict)
    """The kernels of programs by digest, where they are recorded."""

    def add(self, other: Result) -> None:
        """Put another's programs beside one's own."""
        self.done += other.done
        self.tally.add(other.tally)
        self.findings += other.findings
        self.kernels += other.kernels
        self.allowed += other.allowed
        self.seconds += other.seconds
        self.unsupported += other.unsupported
        self.arbitrated += other.arbitrated
        self.compared += other.compared
        self.counts |= other.counts

    def to_json(self) -> dict[str, Json]:
        """The counts; findings have files of their own."""
        return {
            "done": self.done,
            "kernels": self.kernels,
            "allowed": self.allowed,
            "unsupported": dict(self.unsupported),
            "tally": self.tally.to_json(),
            "compared": self.compared,
            "counts": self.counts,
            "arbitrated": self.arbitrated,
        }

    @classmethod
    def from_json(cls, data: Json) -> Result:
        """The counts that `to_json` wrote."""
        return cls(
            data["done"],
            Tally.from_json(data["tally"]),
            [],
            data["kernels"],
            data["allowed"],
            [],
            Counter(data["unsupported"]),
            data.get("arbitrated", 0),
            data.get("compared", 0),
            data.get("counts", {}),
        )


def start(memory: float | None = None) -> None:
    """Prepare a worker: the campaign alone answers Ctrl-C, torch's warnings are not news, and from `memory` GiB of
    writable memory on the system refuses more (on Linux: RLIMIT_DATA, which leaves out what is only reserved)."""
    PARENT_PID[:] = [os.getppid()]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory * 2**30), resource.getrlimit(resource.RLIMIT_DATA)[1]))


@functools.cache
def loaded(spec: str) -> Target:
    """The target, loaded once a process."""
    return load_target(spec)


@functools.cache
def counted(file: str, spec: str) -> Mapping[str, int]:
    """The kernels that programs took before, read once a process."""
    return read_baseline(Path(file), spec) if file else {}


def environment(spec: str) -> dict[str, str]:
    """Load the target and say what it runs on. Raises TargetError."""
    return loaded(spec).environment()


def run_shard(shard: Shard) -> Result:
    """Draw and run the shard's programs. A failure is run again, and FLAKY when it does not fail twice. A shard that
    stops at the first leaves the rest to the campaign: `done` says how many ran."""
    target, result, baseline = loaded(shard.target), Result(), counted(shard.kernels, shard.target)
    for number in range(shard.first, shard.first + shard.count):
        if shard.stop_at_first and result.findings:
            break
        shard.running.write_text(json.dumps({"number": number}), encoding="utf-8")
        try:
            program = program_of(shard, number, result.tally)
        except Exception as error:
            result.findings.append(Finding(INVALID, shard.seed, number, f"invalid / drawing: {error}", NOTHING))
            result.done += 1
            continue
        shard.running.write_text(json.dumps({"number": number, "program": program.to_json()}), encoding="utf-8")
        began = time.perf_counter()

        def watch(step: int) -> None:
            with shard.running.open("a", encoding="utf-8") as note:
                note.write(f"\n{step}")

        try:
            with at_most(shard.limit):
                verdict = judge(program, target, watch=watch, baseline=baseline)
            result.seconds.append(time.perf_counter() - began)
            result.kernels += verdict.kernels or 0
            result.allowed += verdict.allowed or 0
            result.unsupported[verdict.unsupported] += bool(verdict.unsupported)
            result.arbitrated += verdict.arbitrated
            result.compared += verdict.baseline is not None
            if shard.record and verdict.kernels is not None and {"kernels"} >= {m.oracle for m in verdict.mismatches}:
                result.counts[digest(program)] = verdict.kernels
            if out_of_memory(verdict):
                raise MemoryError
            if verdict.mismatches:
                shard.running.touch()
            found = confirmed(shard, number, program, verdict) if verdict.mismatches else None
        except ProgramError as error:
            found = Finding(INVALID, shard.seed, number, f"invalid / {error}", program)
        except (ProgramTimeout, MemoryError) as error:
            # Whatever was interrupted, an import perhaps, is left half done: this process is not to be trusted.
            watch(-1 if isinstance(error, ProgramTimeout) else -2)
            os._exit(1)
        if found is not None:
            write_atomic(shard.found(number), json.dumps(found.to_json()))
            result.findings.append(found)
        result.done += 1
    shard.running.unlink(missing_ok=True)
    return result


def program_of(shard: Shard, number: int, tally: Tally | None = None) -> Program:
    """The shard's program of this number: from its corpus, or drawn, and then with writes at its end that show who
    shares memory with whom where the target does not."""
    if number < 0:
        return read_program(Path(shard.corpus[number]))
    program, target = shard.drawing.numbered(shard.seed, number, tally), described(shard.target)
    return program if target.exposes_storages else with_alias_probes(program, target.unsupported)


@functools.cache
def described(spec: str) -> Target:
    """The target, not prepared, made once a process."""
    return describe_target(spec)


def out_of_memory(verdict: Verdict) -> bool:
    """Whether the target failed for want of memory."""
    return any(
        word in f"{mismatch.actual} {mismatch.detail}"
        for mismatch in verdict.mismatches
        if mismatch.oracle == "error"
        for word in OUT_OF_MEMORY
    )


def confirmed(shard: Shard, number: int, program: Program, verdict: Verdict) -> Finding:
    """The failure after a second run."""
    with at_most(shard.limit):
        again = judge(program, loaded(shard.target), locate=False, baseline=counted(shard.kernels, shard.target))
    kind = FAIL if not again.passed else FLAKY
    group = f"{kind.lower() + ' / ' if kind == FLAKY else ''}{signature(program, verdict)}"
    return Finding(kind, shard.seed, number, group, program, verdict.mismatches, verdict.bad_step)


def ended(kind: str, seed: int, number: int, program: Program, step: int) -> Finding:
    """A crash or a hang in this step, and the program up to it; step 0 is the move of the inputs, and one past the
    last the observation."""
    if step == 0:
        where = "the move of the inputs"
    else:
        where = program.steps[step - 1].op if step <= len(program.steps) else "the observation"
    return Finding(kind, seed, number, f"{kind.lower()} / {where}", program.with_steps(program.steps[:step]), step=step)


def shrink(spec: str, finding: Finding, trials: int) -> Finding:
    """The failure on a smaller program that is wrong in the same way, with its group worked out anew.

    What comes after the first bad step may be wrong for reasons of its own, so it goes first."""
    target = loaded(spec)

    def verdict_of(candidate: Program) -> Verdict:
        try:
            with at_most(30):
                return judge(candidate, target, locate=False)
        except ProgramTimeout:
            return Verdict()

    program, wrong = finding.program, finding.mismatches
    if finding.step:
        beginning = program.with_steps(program.steps[: finding.step])
        cut = verdict_of(beginning)
        program, wrong = (beginning, cut.mismatches) if cut.mismatches else (program, wrong)
    first = leading(wrong)

    def fails(candidate: Program) -> bool:
        mismatches = verdict_of(candidate).mismatches
        return bool(mismatches) and _alike(first, leading(mismatches))

    small = reduce_program(program, fails, trials)
    verdict = judge(small, target)
    if not verdict.mismatches:
        return finding
    return Finding(
        finding.kind,
        finding.seed,
        finding.number,
        str(signature(small, verdict)),
        small,
        verdict.mismatches,
        verdict.bad_step,
    )


def _alike(one: Mismatch, two: Mismatch) -> bool:
    if "error" not in (one.oracle, two.oracle):
        return one.oracle == two.oracle
    return (one.oracle, one.expected, one.actual, gist(one)) == (two.oracle, two.expected, two.actual, gist(two))


def survives(spec: str, program: Program, limit: float) -> bool:
    """Run a program only to see whether the process survives it. Raises ProgramTimeout after `limit` seconds, and
    MemoryError."""
    with at_most(limit):
        verdict = judge(program, loaded(spec), locate=False)
    if out_of_memory(verdict):
        raise MemoryError
    return True


def elsewhere(spec: str, program: Program, limit: float) -> str:
    """What becomes of a program on a related target: `agrees`, `fails` with the oracle, or why it was not run."""
    try:
        with at_most(limit):
            verdict = judge(program, loaded(spec), locate=False)
    except ProgramTimeout:
        return "runs too long"
    except TargetError as error:
        return f"cannot be used: {error}"
    except ProgramError as error:
        return f"cannot be judged: {error}"
    if verdict.unsupported:
        return f"leaves out {verdict.unsupported}"
    return f"fails ({verdict.mismatches[0].oracle})" if verdict.mismatches else "agrees"


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ProgramTimeout in the block after so many seconds; what hangs outside Python is the campaign's to end. A
    program that ends the interpreter ends the worker, which is a finding like any other death. A worker whose campaign
    is gone begins no block and ends."""
    if PARENT_PID and os.getppid() not in PARENT_PID:
        os._exit(1)

    def ring(*_: Any) -> None:
        raise ProgramTimeout(f"ran longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except SystemExit:
        os._exit(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
