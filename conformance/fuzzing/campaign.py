"""A campaign: numbered programs of one seed, run in shards by workers that may die, and what they find, by group.

The key insight: a shard is a pure function of its seed and numbers, so a shard whose worker died is run again from the
program after the one that killed it, and the result does not depend on how many workers there are. Groups are by
signature: a campaign shows several distinct bugs, each once and small, not one bug a hundred times. All that a campaign
leaves on disk bears its name, so that what is resumed is its own and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.core.loading import describe_target
from conformance.core.result import counted, write_atomic
from conformance.fuzzing import worker
from conformance.fuzzing.drawing import DTYPES, STEPS, Drawing
from conformance.fuzzing.isolation import SHARD, Workers, found_by
from conformance.fuzzing.worker import CRASH, HARNESS, INVALID, MEMORY, TIMEOUT, Finding, Result, Shard
from conformance.program.model import ProgramError
from conformance.program.script import script
from conformance.program.steps.op import Json
from conformance.program.unsupported import unsupported_steps
from conformance.run.messages import COMPILE_LIMIT, Fate, OutOfTime, WorkerDied

PROGRESS = 3
"""The schema of the file that says how far a campaign is."""

LONGEST_NAME = 90
"""Characters of a finding's file name before a digest tells it from the others."""

SHRINKING = 0.2
"""The part of `--minutes` that is kept for shrinking, once there is something to shrink."""

SEVERITY = (CRASH, TIMEOUT, MEMORY, HARNESS)
"""The kinds that are listed first, since the device, or the harness, did not survive the program."""


@dataclass(frozen=True)
class Plan:
    """What to run. `programs` None: until `minutes` have passed, which include shrinking. `limit`: seconds that a
    program may take; `compile_limit`: that building kernels may in it, besides. `part` (i, n): only the i-th of every n
    blocks of `SHARD` programs. `kernels`: the file with the kernels that programs took before; `record`: keep the
    kernels of this run's programs."""

    target: str = "tiny"
    seed: int = 0
    programs: int | None = 200
    minutes: float | None = None
    drawing: Drawing = field(default_factory=Drawing)
    jobs: int = 1
    reports: Path = Path("reports")
    limit: float = 60.0
    stop_at_first: bool = False
    trials: int = 200
    memory: float | None = None
    corpus: tuple[str, ...] = ()
    resume: bool = False
    kernels: str = ""
    record: bool = False
    part: tuple[int, int] = (1, 1)
    compile_limit: float = COMPILE_LIMIT

    @property
    def failures(self) -> Path:
        """Where findings are kept."""
        return self.reports / "failures"

    @property
    def progress(self) -> Path:
        """Where it is written down how far the campaign is."""
        return self.reports / "fuzz-progress.json"

    def identity(self) -> dict[str, Json]:
        """What must be the same when the campaign goes on."""
        made_of = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self.drawing).items()}
        return {
            "target": self.target,
            "seed": self.seed,
            "drawing": made_of,
            "corpus": list(self.corpus),
            "part": list(self.part),
        }

    @property
    def options(self) -> list[str]:
        """The words of the command line by which the drawing differs from the usual one."""
        words = []
        if self.drawing.steps != STEPS:
            words += ["--steps", "{}..{}".format(*self.drawing.steps)]
        if self.drawing.dtypes != DTYPES:
            words += ["--dtype", ",".join(self.drawing.dtypes)]
        if self.part != (1, 1):
            words += ["--shard", "{}/{}".format(*self.part)]
        declared = unsupported_steps(describe_target(self.target))
        for option, names in (("--only", self.drawing.only), ("--without", self.drawing.without)):
            words += [word for name in names if name not in declared for word in (option, name)]
        return words

    @property
    def command(self) -> str:
        """The command line that draws the same programs."""
        corpus = ["--corpus", str(Path(self.corpus[0]).parent)] if self.corpus else []
        words = ["python", "-m", "conformance.fuzz", "--target", self.target, "--seed", str(self.seed)]
        return shlex.join([*words, *self.options, *corpus])

    @property
    def wanted(self) -> int | None:
        """How many programs there are to run, of this part of the seed and of the corpus; None without an end."""
        if self.programs is None:
            return None
        return len(self.corpus) + sum(shard.count for shard in self.shards(""))

    def shards(self, campaign: str, first: int = 0) -> Iterator[Shard]:
        """The shards in order, from this program on; without end when only time limits the campaign."""
        if first < 0:
            yield self.shard(campaign, first, -first)
            first = 0
        index, count = self.part
        while self.programs is None or first < self.programs:
            block = first // SHARD
            end = (block + 1) * SHARD if self.programs is None else min((block + 1) * SHARD, self.programs)
            if block % count == index - 1:
                yield self.shard(campaign, first, end - first)
            first = end

    def shard(self, campaign: str, first: int, count: int) -> Shard:
        """So many programs from this one on."""
        return Shard(
            self.target,
            self.drawing,
            self.seed,
            first,
            count,
            str(self.failures),
            self.corpus,
            self.kernels,
            self.record,
            campaign,
            self.stop_at_first,
        )


@dataclass
class Group:
    """One distinct finding: the smallest program known, and the numbers of all programs that showed it."""

    finding: Finding
    numbers: set[int]
    found_as: set[str]
    shrunk: bool = False
    elsewhere: dict[str, str] = field(default_factory=dict)
    """What becomes of the program on each target that is related to the one under test."""


@dataclass
class Campaign:
    """A running campaign: what was done so far, and the groups found. `tell` is called after each shard."""

    plan: Plan
    tell: Callable[[Campaign], None] = lambda campaign: None
    result: Result = field(default_factory=Result)
    groups: dict[str, Group] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    running: int = 0
    """The shards that workers have."""
    running_seconds: float = 0.0
    earlier_seconds: float = 0.0
    unfinished: dict[int, Shard] = field(default_factory=dict)
    """The shards that were begun and not taken over yet, by their first program."""
    following: int = 0
    """The first program of the next shard."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """What tells its files from those of other campaigns, in the same folder or on the same target."""

    def run(self) -> None:
        """Run the plan, then shrink what was found. Raises TargetError when the target cannot be loaded, and
        ProgramError when there is another campaign to be resumed than this one.

        When it ends early, in whatever way, the groups found so far are on disk, and `resume` goes on from there."""
        self.plan.failures.mkdir(parents=True, exist_ok=True)
        self.following = -len(self.plan.corpus)
        if self.plan.resume:
            self._restore()
        plan = self.plan
        with Workers(plan.target, plan.limit, plan.memory, plan.jobs, plan.compile_limit) as workers:
            self.environment = workers.load()
            self._note_progress()
            self.began, self.began_at = time.monotonic(), time.time()
            try:
                self._run_shards(workers)
            finally:
                self._count_seconds()
                self._take_found()
            # Of many groups only some are small where a campaign is ended while it shrinks.
            for group in self.ranked():
                if not group.shrunk and not self._late():
                    self._shrink(workers, group)
        for relative in describe_target(self.plan.target).siblings:
            if not self._late():
                self._compare(relative)

    def _compare(self, relative: str) -> None:
        """Run every finding on a related target, in a process of its own, to say whose bug it is."""
        plan, until = self.plan, self._deadline()
        longest = 2 * plan.limit + plan.compile_limit
        with Workers(relative, plan.limit, plan.memory, compile_limit=plan.compile_limit) as workers:
            for group in self.ranked():
                if relative in group.elsewhere or not group.finding.program.inputs or self._late():
                    continue
                program, limit = group.finding.program, plan.limit
                try:
                    answer = workers.pool.ask(worker.elsewhere, relative, program, limit, seconds=longest, until=until)
                except OutOfTime:
                    return
                except WorkerDied as died:
                    answer = "runs too long" if died.death.fate is Fate.TIMEOUT else "fails (crash)"
                group.elsewhere[relative] = answer
                self._save(group)

    def ranked(self) -> list[Group]:
        """The groups as they are listed: those that ended their process first, then the commonest of the others."""
        rank = {kind: at for at, kind in enumerate(SEVERITY)}
        return sorted(self.groups.values(), key=lambda one: (rank.get(one.finding.kind, len(rank)), -len(one.numbers)))

    def _deadline(self, part: float = 1.0) -> float | None:
        """When this part of the campaign's time has passed, in seconds since the epoch."""
        return None if self.plan.minutes is None else self.began_at + part * 60 * self.plan.minutes

    def _drawing_deadline(self) -> float | None:
        return self._deadline(1 - SHRINKING if self.groups else 1.0)

    def _late(self) -> bool:
        deadline = self._deadline()
        return deadline is not None and time.time() >= deadline

    def _count_seconds(self) -> None:
        self.running_seconds = self.earlier_seconds + time.monotonic() - self.began

    def _run_shards(self, workers: Workers) -> None:
        waiting, again = self.plan.shards(self.name, self.following), list(self.unfinished.values())

        def begin() -> None:
            while self.running < self.plan.jobs and not self._enough():
                shard = again.pop() if again else next(waiting, None)
                if shard is None:
                    break
                self.unfinished[shard.first] = shard
                self.following = max(self.following, shard.first + shard.count)
                self.running += 1
                workers.begin(replace(shard, until=self._drawing_deadline()))

        begin()
        deadline = self._deadline()
        for shard, result, rest in workers.ended(None if deadline is None else deadline - time.time()):
            self.running -= 1
            del self.unfinished[shard.first]
            if rest is not None:
                again.append(rest)
                self.unfinished[rest.first] = rest
            self._take(result)  # first, since what was found may be enough
            begin()
            self._count_seconds()
            self._note_progress()
            self.tell(self)

    def _take_found(self) -> None:
        """Take over what is on disk of the shards that did not end; `resume` runs them again, and finds the same."""
        for shard in self.unfinished.values():
            for finding in found_by(shard, shard.first, shard.first + shard.count):
                self.add(finding)

    def _note_progress(self) -> None:
        write_atomic(
            self.plan.progress,
            json.dumps(
                {
                    "schema": PROGRESS,
                    "campaign": self.name,
                    **self.plan.identity(),
                    "following": self.following,
                    "seconds": self.running_seconds,
                    "unfinished": [[shard.first, shard.count] for shard in self.unfinished.values()],
                    "result": self.result.to_json(),
                }
            ),
        )

    def _restore(self) -> None:
        """Take up what an earlier run of this campaign left: how far it was, its groups, and other findings."""
        path = self.plan.progress
        if not path.exists():
            return
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != PROGRESS:
                raise ValueError("it is of another version")
            identity, self.name = {key: data[key] for key in self.plan.identity()}, str(data["campaign"])
            self.result = Result.from_json(data["result"])
            self.unfinished = {first: self.plan.shard(self.name, first, count) for first, count in data["unfinished"]}
            self.following, self.earlier_seconds = int(data["following"]), float(data["seconds"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProgramError(
                f"{path} does not say how far a campaign is ({error}): run without --resume, or choose "
                "another --reports"
            ) from error
        if identity != self.plan.identity():
            raise ProgramError(
                f"{path} is of another campaign: --resume needs the target, seed, families, dtypes, "
                "steps, corpus and shard that it was started with"
            )
        untaken: list[Finding] = []
        for saved in sorted(self.plan.failures.glob("*.json")):
            try:
                found = json.loads(saved.read_text(encoding="utf-8"))
                finding = Finding.from_json(found)
            except (OSError, ValueError, KeyError, TypeError, ProgramError):
                continue  # not of a campaign: a program that somebody put there
            if saved.name.startswith(f"found-{self.name}-"):
                untaken.append(finding)
            elif found.get("campaign") == self.name:
                self.groups[finding.group] = Group(
                    finding,
                    set(found["numbers"]),
                    {finding.group, *found["found_as"]},
                    found["shrunk"],
                    found["elsewhere"],
                )
        self.groups = dict(sorted(self.groups.items(), key=lambda item: min(item[1].numbers)))
        for finding in sorted(untaken, key=lambda one: one.number):
            self.add(finding)

    def _enough(self) -> bool:
        deadline = self._drawing_deadline()
        late = deadline is not None and time.time() >= deadline
        return late or (self.plan.stop_at_first and bool(self.groups))

    def _take(self, result: Result) -> None:
        found, result.findings = result.findings, []
        self.result.add(result)
        for finding in found:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        """Put a finding into its group, and on disk when it is the first there."""
        for group in self.groups.values():
            if finding.group in group.found_as:
                group.numbers.add(finding.number)
                break
        else:
            group = Group(finding, {finding.number}, {finding.group})
            self.groups[finding.group] = group
        self._save(group)
        self.plan.shard(self.name, finding.number, 1).found(finding.number).unlink(missing_ok=True)

    def _shrink(self, workers: Workers, group: Group) -> None:
        finding = group.finding
        if finding.kind in (INVALID, HARNESS):
            return
        try:
            small = workers.shrink(finding, self.plan.trials, self._deadline())
        except Exception as error:  # a fault of the harness; the finding is kept as it is, and says so
            small = finding
            group.elsewhere["shrinking"] = f"failed: {type(error).__name__}: {error}"
        before = self._paths(group)
        del self.groups[finding.group]
        same = self.groups.get(small.group)
        if same is not None:
            same.numbers |= group.numbers
            same.found_as |= group.found_as
            if len(small.program.steps) < len(same.finding.program.steps):
                same.finding = small
            group = same
        else:
            group.finding, group.shrunk = small, True
            self.groups[small.group] = group
        group.found_as.add(small.group)
        self._save(group)
        for path in {*before} - {*self._paths(group)}:
            path.unlink(missing_ok=True)
        self.tell(self)

    def _paths(self, group: Group) -> tuple[Path, Path]:
        slug = re.sub(r"[^a-z0-9_.]+", "-", f"{self.plan.target} {group.finding.group}".lower()).strip("-")
        if len(slug) > LONGEST_NAME:
            slug = f"{slug[:LONGEST_NAME]}-{hashlib.sha256(group.finding.group.encode()).hexdigest()[:6]}"
        return self.plan.failures / f"{slug}.json", self.plan.failures / f"{slug}.py"

    def _save(self, group: Group) -> None:
        data, text = self._paths(group)
        found = {
            "campaign": self.name,
            "target": self.plan.target,
            "count": len(group.numbers),
            "numbers": sorted(group.numbers),
            "found_as": sorted(group.found_as),
            "shrunk": group.shrunk,
            "elsewhere": group.elsewhere,
        }
        write_atomic(data, json.dumps({**group.finding.to_json(), **found}, indent=1))
        write_atomic(text, self.script(group))

    def path(self, group: Group) -> Path:
        """The group's script."""
        return self._paths(group)[1]

    def again(self, group: Group) -> str:
        """The command that runs the group's program again."""
        return shlex.join(
            ["python", "-m", "conformance.fuzz", "--target", self.plan.target, "--replay", str(self._paths(group)[0])]
        )

    def script(self, group: Group) -> str:
        """The group's program as a standalone script."""
        finding, versions = group.finding, ", ".join(f"{name} {value}" for name, value in self.environment.items())
        notes = [
            f"{finding.kind} in {counted(len(group.numbers), 'program')}: {finding.group}",
            f"Again: {self.again(group)}",
            f"Found by: {self.plan.command}  (program {finding.number})",
        ]
        return script(
            finding.program,
            describe_target(self.plan.target),
            finding.mismatches,
            [*notes, *([f"With: {versions}"] if versions else [])],
            finding.step,
        )
