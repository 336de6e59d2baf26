"""Worker processes that run the shards of a campaign, and recovery of a shard whose worker died.

Defines `Workers`. The key insight: a worker records each program and each step before it runs it. A death therefore
names its program and step, and a worker can make the shard's earlier programs again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from conformance.program.model import Program, ProgramError
from conformance.record.finding import CRASH, DRAWING, ON_CPU, STARTING
from conformance.run.campaign import tasks
from conformance.run.campaign.numbered import NumberedPrograms
from conformance.run.campaign.plan import SHARD, Behind, Shard
from conformance.run.campaign.tasks import MOST_PARTS, ShardResult
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.failing_program import FailingProgram, ended
from conformance.run.messages import Death, Done, Limits, Task
from conformance.run.program_workers import ProgramWorkers


class Workers(ProgramWorkers):
    """Processes that run the shards of a campaign, `jobs` at a time. They import the module that makes its programs, if
    given. Use as a context manager."""

    def __init__(
        self,
        target: str,
        limits: Limits,
        jobs: int = 1,
        place: ExecutionPlace = LOCAL,
        numbered: NumberedPrograms | None = None,
    ) -> None:
        modules = [tasks.__name__, *([type(numbered).__module__] if numbered is not None else [])]
        super().__init__(target, replace(limits, recycle=Limits.recycle // SHARD), jobs, place, modules)
        self.deaths = 0
        """Number of workers that died while they ran a shard."""
        self.aside: Callable[[Task, Done | Death], None] = lambda task, answer: None
        """Callback for the end of a task that is not a shard."""

    def begin(self, shard: Shard) -> None:
        """Run a shard as soon as a worker is free."""
        shard = replace(shard, hang=self.hang)
        self.submit(Task(f"programs {shard.first} to {shard.first + shard.count - 1}", tasks.run_shard, (shard,)))

    def shards(self, seconds: float | None = None) -> Iterator[tuple[Shard, ShardResult, Shard | None]]:
        """Yield each shard when it ends, with its result and a shard of the remaining programs, for at most `seconds`.
        Raises TargetError if no worker can be started, and Stopped."""
        for task, answer in self.ended(seconds):
            if task.function is not tasks.run_shard:
                self.aside(task, answer)
                continue
            (shard,) = task.args
            behind = None
            if isinstance(answer, Death):
                self.deaths += 1
                result, behind = recover_dead_worker(shard, answer)
            elif answer.error is not None:
                raise answer.error
            else:
                result = answer.value
            rest = replace(shard, first=shard.first + result.done, count=shard.count - result.done, behind=behind)
            yield shard, result, rest if rest.count else None

    def run(self, shard: Shard) -> ShardResult:
        """Run one shard to its end, in a new worker after each death."""
        whole = ShardResult()
        self.begin(shard)
        for _, result, rest in self.shards():
            whole.add(result)
            if rest is not None:
                self.begin(rest)
        return whole


def recover_dead_worker(shard: Shard, death: Death) -> tuple[ShardResult, Behind | None]:
    """Return the result of a dead worker's shard, and the unjudged steps behind the crash, if any. The result includes
    a finding for the program that ended the worker. If it ended before its first step on the target, torch CPU
    ended it, and the finding says so."""
    kind, number, note, behind = str(death.reason), shard.first, death.note, None

    def before(op: str) -> FailingProgram:
        word = kind.lower()
        return FailingProgram(f"{word} / {op}", kind, number, seed=shard.plan.seed, property=word, op=op)

    finding = before(STARTING)
    with contextlib.suppress(ValueError, KeyError, TypeError, ProgramError):
        unit = json.loads(note.unit if note is not None else "")
        number = int(unit["number"])
        finding = before(DRAWING)
        step = int(note.steps[-1]) if note is not None and note.steps else 0
        program, part = Program.from_json(unit["program"]), int(unit["part"])
        if step and tasks.described(shard.plan.target).facts.transforms_program:  # the whole program is one step
            step = len(program.steps)
        finding = replace(before(ON_CPU), program=program)
        if note is not None and note.steps:
            finding = ended(kind, shard.plan.seed, number, program, step)
        if kind == CRASH and 0 < step < len(program.steps) and part + 1 < MOST_PARTS:
            behind = Behind(program, step, part + 1)
        masking = frozenset({number} if behind is None and step < len(program.steps) else ())
        ran_before = number - 1 if number > shard.first else None
        finding = replace(finding, before=ran_before, said=death.said, part=part, masking=masking)
    finding = replace(finding, seconds=shard.elapsed)
    left = ShardResult(done=number - shard.first + (behind is None))
    for earlier in range(shard.first, number):
        tasks.program_of(shard, earlier, left)
    left.findings = [*saved_findings(shard, shard.first, number + 1), finding]
    return left, behind


def saved_findings(shard: Shard, first: int, end: int) -> Iterator[FailingProgram]:
    """Yield the findings that a shard left on disk for the programs from `first` to before `end`."""
    for number in range(first, end):
        for path in filter(Path.exists, (shard.path_of(number, part) for part in range(MOST_PARTS))):
            yield FailingProgram.from_json(json.loads(path.read_text(encoding="utf-8")))
