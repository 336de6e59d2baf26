"""What a campaign's worker process does: draw numbered programs, run them, and keep what is found on disk at once.

The key insight: the device under test may take the process with it, so a program is noted *before* it runs and a
failure is on disk the moment it is seen. A dead worker's findings are there, and what it drew can be drawn again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.core.errors import TargetError, UserError
from conformance.core.executor import Watch
from conformance.core.finding import (
    ALSO,
    CRASH,
    FAIL,
    FLAKY,
    HARNESS,
    INVALID,
    MEMORY,
    MOVE,
    TIMEOUT,
    answers,
    cause_text,
    gist,
    with_signal_number,
)
from conformance.core.loading import describe_target
from conformance.core.observation import out_of_memory
from conformance.core.oracles import Mismatch
from conformance.core.target import Target
from conformance.fuzzing.drawing import Tally
from conformance.fuzzing.kernel_baseline import read_baseline
from conformance.fuzzing.plan import Shard
from conformance.program.alias_probes import with_alias_probes
from conformance.program.cause import cause_of, plainer
from conformance.program.model import Program, ProgramError, digest, read_program
from conformance.program.reduce import reduce_program
from conformance.program.steps.op import Json
from conformance.program.verdict import Verdict, judge_program, leading, signature
from conformance.run.messages import COMPILING, Death, Fate, OutOfTime
from conformance.run.worker import UnitTimeout, at_most, keep, loaded, step, unit

LONGEST_TRIAL = 30.0
"""Seconds that a smaller program may take while a finding is shrunk."""

NOTHING = Program((), ())
"""Stands for a program that was never drawn."""


@dataclass(frozen=True)
class Finding:
    """A program on which the target is wrong: what kind of failure, its group, and the mismatches.

    `kind` is INVALID for a fault of the drawing, a program that means nothing on torch CPU, and HARNESS for one of the
    harness, which failed while it judged the program; of these no cause is known. `before` is the program that the same
    worker had run before, and `said` how the process ended, where it did. `layer` is a target without the backend under
    test on which each mismatch is the same; empty if there is none."""

    kind: str
    seed: int
    number: int
    group: str
    program: Program
    mismatches: tuple[Mismatch, ...] = ()
    step: int | None = None
    property: str = ""
    op: str = ""
    before: int | None = None
    said: str = ""
    layer: str = ""

    def cause(self) -> str:
        """The property that is wrong and the op that is to blame; the empty string where they are not known."""
        cause = cause_text(self.kind, self.property, self.op)
        return cause + ALSO * bool(self.layer and cause)

    def death(self) -> str:
        """How and where the process ended; the empty string where none did."""
        if self.kind not in (CRASH, TIMEOUT, MEMORY):
            return ""
        return f"{self.kind} at {self.op}: the device {with_signal_number(self.said) or 'ended its process'}"

    def flaky(self) -> Finding:
        """This failure, once it has not come again."""
        return replace(self, kind=FLAKY, group=f"flaky / {self.group}")

    def to_json(self) -> dict[str, Json]:
        """The finding as JSON; `--replay` reads it as it reads a program."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "number": self.number,
            "signature": self.group,
            "property": self.property,
            "op": self.op,
            "before": self.before,
            "said": self.said,
            "layer": self.layer,
            "first_bad_step": self.step,
            "mismatches": [vars(mismatch) for mismatch in self.mismatches],
            "program": self.program.to_json(),
        }

    @classmethod
    def from_json(cls, data: Json) -> Finding:
        """The finding that `to_json` wrote."""
        kind, seed, number, group = (data[key] for key in ("kind", "seed", "number", "signature"))
        mismatches = tuple(Mismatch(**mismatch) for mismatch in data["mismatches"])
        cause = {name: data[name] for name in ("property", "op", "before", "said", "layer") if name in data}
        program, step = Program.from_json(data["program"]), data["first_bad_step"]
        return cls(kind, seed, number, group, program, mismatches, step, **cause)


@dataclass
class Result(Tally):
    """What a shard did: what was drawn, how many programs ran, their kernels and those allowed, and what was found."""

    done: int = 0
    kernels: int = 0
    allowed: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    """Programs that were not run, by what the target had declared that it leaves out."""
    arbitrated: int = 0
    """Programs that differ from torch CPU and pass by its answer in float64."""
    compared: int = 0
    """Programs whose kernels were compared with a baseline."""
    counts: dict[str, int] = field(default_factory=dict)
    """The kernels of programs by digest, where they are recorded."""
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        """The counts; findings have files of their own."""
        return {**super().to_json(), "findings": []}


@functools.cache
def counted(file: str, spec: str) -> Mapping[str, int]:
    """The kernels that programs took before, read once a process."""
    return read_baseline(Path(file), spec) if file else {}


def environment(spec: str) -> dict[str, str]:
    """Load the target and say what it runs on. Raises TargetError."""
    return loaded(spec).environment()


class _Ran:
    """What this process ran last."""

    last: int | None = None


def run_shard(shard: Shard) -> Result:
    """Draw and run the shard's programs. A failure is run again, and FLAKY when it does not fail twice. A shard that
    stops at the first failure, or at its time, leaves the rest to the campaign: `done` says how many ran."""
    result = Result()
    for number in range(shard.first, shard.first + shard.count):
        if (shard.plan.stop_at_first and result.findings) or time.time() >= shard.until:
            break
        found = _run_program(shard, number, result)
        if found is not None:
            found = replace(found, before=_Ran.last)
            keep(shard.found(number), json.dumps(found.to_json()))
            result.findings.append(found)
        result.done, _Ran.last = result.done + 1, number
    return result


def _run_program(shard: Shard, number: int, result: Result) -> Finding | None:
    """Draw and judge one program, and count it in the result: the finding, if it is one. What the harness itself raises
    is a finding too, since the next programs can be judged all the same."""
    program = NOTHING
    try:
        with unit(json.dumps({"number": number})):
            try:
                program = program_of(shard, number, result)
            except Exception as error:
                return Finding(INVALID, shard.plan.seed, number, f"invalid / drawing: {error}", NOTHING)
        verdict = _judged(shard, number, program, locate=True)
        result.kernels += verdict.kernels or 0
        result.allowed += verdict.allowed or 0
        result.unsupported[verdict.unsupported] += bool(verdict.unsupported)
        result.arbitrated += verdict.arbitrated
        result.compared += verdict.baseline is not None
        if shard.plan.record and verdict.kernels is not None and {"kernels"} >= {m.oracle for m in verdict.mismatches}:
            result.counts[digest(program)] = verdict.kernels
        if exhausted(verdict):
            raise MemoryError
        return confirmed(shard, number, program, verdict) if verdict.mismatches else None
    except ProgramError as error:
        return Finding(INVALID, shard.plan.seed, number, f"invalid / {error}", program)
    except (MemoryError, OSError, UserError):  # the worker's, the disk's and the user's, not the program's
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        wrong = Mismatch("harness", "the harness itself", "no error", said, where)
        return Finding(HARNESS, shard.plan.seed, number, f"harness / {said[:200]}", program, (wrong,))


def _judged(shard: Shard, number: int, program: Program, locate: bool) -> Verdict:
    """The verdict on a program, within the time that a program may take, each of its steps noted before it runs."""
    target, baseline = loaded(shard.plan.target), counted(shard.plan.kernels, shard.plan.target)
    with unit(json.dumps({"number": number, "program": program.to_json()})):
        return judge_program(program, target, locate=locate, watch=watching(program, shard.hang), baseline=baseline)


def watching(program: Program, hang: Collection[str] = ()) -> Watch:
    """What notes a step before it runs; where it may build kernels, that is not the program's time, unless its op is
    one of those that hang."""

    def watch(number: int, builds: bool) -> None:
        op = program.steps[number - 1].op if 0 < number <= len(program.steps) else ""
        step(str(number), COMPILING if builds and op not in hang else "")

    return watch


def program_of(shard: Shard, number: int, tally: Tally | None = None) -> Program:
    """The shard's program of this number: from its corpus, or drawn, and then with writes at its end that show who
    shares memory with whom where the target does not."""
    if number < 0:
        return read_program(Path(shard.plan.corpus[number]))
    program, target = shard.plan.drawing.numbered(shard.plan.seed, number, tally), described(shard.plan.target)
    return program if target.exposes_storages else with_alias_probes(program, target.unsupported)


described = functools.cache(describe_target)
"""The target of a spec, not prepared, made once a process."""


def exhausted(verdict: Verdict) -> bool:
    """Whether the target failed for want of memory."""
    return any(out_of_memory(f"{one.actual} {one.detail}") for one in verdict.mismatches if one.oracle == "error")


def confirmed(shard: Shard, number: int, program: Program, verdict: Verdict) -> Finding:
    """The failure after a second run. It is the same process's: whether it fails in another is asked before it is
    reported (`isolation.Workers.confirm`)."""
    cause = cause_of(program, verdict)
    group, step = str(signature(program, verdict)), verdict.bad_step
    found = Finding(FAIL, shard.plan.seed, number, group, program, verdict.mismatches, step, cause.property, cause.op)
    with unit(json.dumps({"number": number, "program": program.to_json()})):
        found = replace(found, layer=_unexplained(loaded(shard.plan.target), program, verdict.mismatches)[1])
    return found.flaky() if verdict.vanished or _judged(shard, number, program, locate=False).passed else found


def ended(kind: str, seed: int, number: int, program: Program, step: int) -> Finding:
    """A crash or a hang in this step, and the program up to it; step 0 is the move of the inputs, and one past the
    last the observation."""
    where = [MOVE, *(one.op for one in program.steps), "the observation"][step]
    word, beginning = kind.lower(), program.with_steps(program.steps[:step])
    return Finding(kind, seed, number, f"{word} / {where}", beginning, step=step, property=word, op=where)


def _unexplained(target: Target, program: Program, wrong: Sequence[Mismatch]) -> tuple[Sequence[Mismatch], str]:
    """Those of the mismatches that the target shows and PyTorch does not without the backend, and the target without
    the backend that shows all of them, if there is one. Without such targets, all mismatches."""
    for spec in target.without_backend if wrong else ():
        there = answers(judge_program(program, loaded(spec), locate=False, watch=watching(program)).mismatches)
        left = [one for one in wrong if not answers([one]) <= there]
        if not left:
            return [], spec
        wrong = left
    return wrong, ""


def reduce_until(program: Program, fails: Callable[[Program], bool], trials: int, until: float = math.inf) -> Program:
    """The smallest failing program after so many trials, or when it is `until`, in seconds since the epoch."""
    smallest = program

    def still_fails(candidate: Program) -> bool:
        nonlocal smallest
        if time.time() >= until:
            raise OutOfTime
        failed = fails(candidate)
        smallest = candidate if failed else smallest
        return failed

    with contextlib.suppress(OutOfTime):
        reduce_program(program, still_fails, trials)
    return smallest


def shrink(spec: str, finding: Finding, trials: int, until: float = math.inf) -> Finding:
    """The failure on a smaller program that is wrong in the same way, with its group worked out anew. From `until` on,
    in seconds since the epoch, no smaller one is tried.

    What comes after the first bad step may be wrong for other reasons, so it goes first. A smaller program of a finding
    that PyTorch shows without the backend, too, has to be such a one, and of one that it does not show, none."""
    target = loaded(spec)

    def verdict_of(candidate: Program) -> Verdict:
        try:
            with at_most(min(LONGEST_TRIAL, max(until - time.time(), 0.01))):
                return judge_program(candidate, target, locate=False, watch=watching(candidate))
        except UnitTimeout:
            return Verdict()

    def own(candidate: Program, wrong: Sequence[Mismatch]) -> Sequence[Mismatch]:
        left, layer = _unexplained(target, candidate, wrong)
        return (wrong if layer else ()) if finding.layer else left

    program, wrong = finding.program, own(finding.program, finding.mismatches) or finding.mismatches
    if finding.step:
        beginning = program.with_steps(program.steps[: finding.step])
        cut = own(beginning, verdict_of(beginning).mismatches)
        program, wrong = (beginning, cut) if cut else (program, wrong)
    first = leading(wrong)

    def fails(candidate: Program) -> bool:
        mismatches = own(candidate, verdict_of(candidate).mismatches)
        return bool(mismatches) and _alike(first, leading(mismatches))

    small = reduce_until(program, fails, trials, until)
    verdict = judge_program(small, target)
    if not verdict.mismatches or verdict.vanished:
        return finding

    def wrong_at_all(other: Program) -> bool:
        return bool(own(other, verdict_of(other).mismatches))

    plain = plainer(small, verdict, wrong_at_all)
    if plain is not None:
        small, verdict = plain, judge_program(plain, target)
    cause = cause_of(small, verdict, wrong_at_all)
    return replace(
        finding,
        group=str(signature(small, verdict)),
        program=small,
        mismatches=verdict.mismatches,
        step=verdict.bad_step,
        property=cause.property,
        op=cause.op,
    )


def fails(spec: str, program: Program, limit: float) -> bool:
    """Whether the target is wrong on a program. Raises ProgramError where it has no meaning on torch CPU."""
    try:
        with at_most(limit):
            return bool(judge_program(program, loaded(spec), locate=False).mismatches)
    except UnitTimeout:
        return True


def _alike(one: Mismatch, two: Mismatch) -> bool:
    if "error" not in (one.oracle, two.oracle):
        return one.oracle == two.oracle
    return (one.oracle, one.expected, one.actual, gist(one.detail)) == (
        two.oracle,
        two.expected,
        two.actual,
        gist(two.detail),
    )


def survives(spec: str, program: Program, hang: Collection[str] = ()) -> bool:
    """Run a program only to see whether the process survives it; False where it only ran out of memory."""
    try:
        with unit("a smaller program"):
            return not exhausted(judge_program(program, loaded(spec), locate=False, watch=watching(program, hang)))
    except MemoryError:
        return False


SAME = "fails in the same way"
"""Said of a related target on which each difference of a finding is the same, with the same answers."""


def elsewhere(spec: str, finding: Finding, limit: float) -> str:
    """The result of a finding's program on a related target: `agrees`, `fails` with the oracle, or why not run."""
    program = finding.program
    try:
        with at_most(limit):
            verdict = judge_program(program, loaded(spec), locate=False, watch=watching(program))
    except UnitTimeout:
        return f"{SAME} (timeout)" if finding.kind == TIMEOUT else "runs too long"
    except TargetError as error:
        return f"cannot be used: {error}"
    except ProgramError as error:
        return f"cannot be judged: {error}"
    if verdict.unsupported:
        return f"leaves out {verdict.unsupported}"
    if not verdict.mismatches:
        return "agrees"
    same = finding.kind == FAIL and answers(finding.mismatches) <= answers(verdict.mismatches)
    return f"{SAME if same else 'fails'} ({verdict.mismatches[0].oracle})"


def died_elsewhere(finding: Finding, death: Death) -> str:
    """The same where a worker of the related target died of the program."""
    if death.fate is Fate.TIMEOUT:
        return f"{SAME} (timeout)" if finding.kind == TIMEOUT else "runs too long"
    return f"{SAME if finding.kind == CRASH and finding.said == death.said else 'fails'} (crash)"
