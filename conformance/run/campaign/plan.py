"""The plan of a campaign, and its shards. One worker runs one shard.

The key insight: a shard is a pure function of its plan and its numbers. Any worker can run it, and run it again.
"""

from __future__ import annotations

import functools
import json
import math
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.program.model import Program
from conformance.program.steps.op import Json
from conformance.record import versions
from conformance.record.names import without_features
from conformance.run.campaign.numbered import NumberedPrograms
from conformance.run.messages import Limits

SHARD = 20
"""Number of programs in a shard. If a worker crashes, at most this many programs run again."""

HANGS = 2
"""Number of programs that may each use up the compile limit in a step of one op. After them, compiling that op's
kernels counts as program time. Otherwise a device that does not answer would cost `--compile-limit` at every crash of a
worker."""


@dataclass(frozen=True)
class Plan:
    """The plan of a campaign of the `numbered` programs of a seed.

    `programs` is the number of programs to judge; None means until `minutes` have passed, shrinking included. `limits`
    are those of a worker for one program. `part` (i, n) selects the i-th of every n blocks of `SHARD` programs.
    `corpus` names files of programs that run first, with the numbers -1, -2, ... counted from the end. `kernels` is the
    file with earlier kernel counts. With `record` the campaign keeps its counts."""

    numbered: NumberedPrograms
    target: str = "tiny"
    seed: int = 0
    programs: int | None = 200
    minutes: float | None = None
    jobs: int = 1
    reports: Path = Path("reports")
    limits: Limits = field(default_factory=Limits)
    stop_at_first: bool = False
    trials: int = 200
    corpus: tuple[str, ...] = ()
    resume: bool = False
    kernels: str = ""
    record: bool = False
    part: tuple[int, int] = (1, 1)
    fail_on_torch_bugs: bool = False
    """Whether a finding that also fails without the backend under test fails the run."""

    @property
    def failures(self) -> Path:
        """The folder of the findings."""
        return self.reports / "failures"

    @property
    def progress(self) -> Path:
        """The file with the progress of the campaign, for `--resume`."""
        return self.reports / f"{self.numbered.stem}-progress.json"

    def identity(self) -> dict[str, Json]:
        """The settings that `--resume` must not change."""
        made_of = {key: getattr(self, key) for key in ("target", "seed", "corpus", "part")}
        made_of |= {"programs": self.numbered.identity(), "torch": str(versions.installed())}
        plain: dict[str, Json] = json.loads(json.dumps(made_of))
        return plain

    @property
    def options(self) -> list[str]:
        """The options of the command line that select the programs, without the seed."""
        shard = ["--shard", "{}/{}".format(*self.part)] if self.part != (1, 1) else []
        return [*self.numbered.words(self.target), *shard]

    @property
    def command(self) -> str:
        """The command line that draws the same programs."""
        corpus = ["--corpus", str(Path(self.corpus[0]).parent)] if self.corpus else []
        words = ["python", "-m", self.numbered.module, "--target", without_features(self.target)]
        return shlex.join([*words, "--seed", str(self.seed), *self.options, *corpus])

    @functools.cached_property  # it walks through all shards, and each line of progress asks for it
    def wanted(self) -> int | None:
        """Number of programs to judge, of this part of the seed and of the corpus; None without an end."""
        if self.programs is None:
            return None
        return len(self.corpus) + sum(shard.count for shard in self.shards())

    def shards(self, campaign: str = "", first: int = 0) -> Iterator[Shard]:
        """The shards in order, from program `first` on; without end if only time limits the campaign."""
        if first < 0:
            yield Shard(self, first, -first, campaign)
            first = 0
        yield from self._blocks(campaign, first, math.inf if self.programs is None else self.programs)

    def more(self, campaign: str, first: int, count: int) -> Iterator[Shard]:
        """Shards of `count` programs from program `first` on, drawn in place of programs that were not judged."""
        for shard in self._blocks(campaign, first, math.inf):
            shard = replace(shard, count=min(shard.count, count))
            count -= shard.count
            if shard.count:
                yield shard
            if not count:
                return

    def _blocks(self, campaign: str, first: int, end: float) -> Iterator[Shard]:
        """This part's blocks of programs from `first` to before `end`."""
        index, count = self.part
        while first < end:
            block = first // SHARD
            following = int(min((block + 1) * SHARD, end))
            if block % count == index - 1:
                yield Shard(self, first, following - first, campaign)
            first = following


def again(saved: Path, target: str = "") -> str:
    """The command line that runs a saved program again. `target` is needed if the file does not name one."""
    words = ["--target", target] if target else []
    return shlex.join(["python", "-m", "conformance.fuzz", *words, "--replay", str(saved)])


@dataclass(frozen=True)
class Behind:
    """A program whose step `step` ended its worker. A worker has yet to judge the steps behind it, as part `part`."""

    program: Program
    step: int
    part: int


@dataclass(frozen=True)
class Shard:
    """Programs `first` to before `first + count` of a plan.

    Files of its findings carry the name of the campaign. From `until` on, in seconds since the epoch, the worker starts
    no further program and returns. With a finding it does so from `until_found` on, so that time is left for shrinking.
    `began` is when the campaign began, 0 outside one. Building kernels of the ops in `hang` counts as program time. If
    `behind` is set, program `first` has ended a worker, and the shard begins with the steps behind the step that
    crashed."""

    plan: Plan
    first: int
    count: int
    campaign: str = ""
    until: float = math.inf
    until_found: float = math.inf
    began: float = 0.0
    hang: frozenset[str] = frozenset()
    behind: Behind | None = None

    @property
    def elapsed(self) -> float | None:
        """Seconds since the campaign began; None outside a campaign."""
        return round(max(time.time() - self.began, 0.0), 1) if self.began else None

    def path_of(self, number: int, part: int = 0) -> Path:
        """The file of a finding in this part of a program, until the campaign merges it."""
        return self.plan.failures / f"found-{self.campaign}-{number}.{part}.json"
