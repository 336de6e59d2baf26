"""What a campaign runs: its plan, and the shards that it is cut into, each of which one worker runs.

The key insight: a shard is a pure function of its plan and its numbers, so it can be run by any worker, and again.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.core import versions
from conformance.core.loading import describe_target
from conformance.core.names import without_features
from conformance.fuzzing.drawing import DTYPES, STEPS, Drawing
from conformance.program.model import Program
from conformance.program.steps.op import Json
from conformance.program.unsupported import held, unsupported_steps
from conformance.run.messages import COMPILE_LIMIT

SHARD = 20
"""Programs a shard. A worker's death costs at most so many."""

HANGS = 2
"""Programs that may each take the whole limit of compiling in a step of an op before its kernels have no more time than
the program: a device that does not answer would cost `--compile-limit` at every crash of a worker."""


@dataclass(frozen=True)
class Plan:
    """What to run. `programs` None: until `minutes` have passed, which include shrinking. `limit`: seconds that a
    program may take; `compile_limit`: that building kernels may in it, besides; `memory`: GiB that a worker may. `part`
    (i, n): only the i-th of every n blocks of `SHARD` programs. `corpus`: files of programs that are run first, under
    the numbers -1, -2, ... counted from the end. `kernels`: the file with the kernels that programs took before;
    `record`: keep the kernels of this run's."""

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
    fail_on_torch_bugs: bool = False
    """Whether a finding that also fails without the backend under test fails the run."""

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
        made_of = {key: getattr(self, key) for key in ("target", "seed", "corpus", "part")}
        made_of |= {"drawing": vars(self.drawing), "torch": str(versions.installed())}
        plain: dict[str, Json] = json.loads(json.dumps(made_of))
        return plain

    @property
    def options(self) -> list[str]:
        """The words of the command line by which the drawing differs from the usual one."""
        words = []
        if self.drawing.steps != STEPS:
            words += ["--steps", "{}..{}".format(*self.drawing.steps)]
        target = describe_target(self.target)
        if self.drawing.dtypes != held(DTYPES, target):
            words += ["--dtype", ",".join(self.drawing.dtypes)]
        if self.part != (1, 1):
            words += ["--shard", "{}/{}".format(*self.part)]
        declared = unsupported_steps(target)
        for option, names in (("--only", self.drawing.only), ("--without", self.drawing.without)):
            words += [word for name in names if name not in declared for word in (option, name)]
        return words

    @property
    def command(self) -> str:
        """The command line that draws the same programs."""
        corpus = ["--corpus", str(Path(self.corpus[0]).parent)] if self.corpus else []
        words = [
            "python",
            "-m",
            "conformance.fuzz",
            "--target",
            without_features(self.target),
            "--seed",
            str(self.seed),
        ]
        return shlex.join([*words, *self.options, *corpus])

    @property
    def wanted(self) -> int | None:
        """How many programs there are to run, of this part of the seed and of the corpus; None without an end."""
        if self.programs is None:
            return None
        return len(self.corpus) + sum(shard.count for shard in self.shards())

    def shards(self, campaign: str = "", first: int = 0) -> Iterator[Shard]:
        """The shards in order, from this program on; without end when only time limits the campaign."""
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
    """The command line that runs a saved program again, on this target where the file does not say which."""
    words = ["--target", target] if target else []
    return shlex.join(["python", "-m", "conformance.fuzz", *words, "--replay", str(saved)])


@dataclass(frozen=True)
class Behind:
    """A program whose step `step` ended its worker: the steps behind it are still to be judged, as part `part`."""

    program: Program
    step: int
    part: int


@dataclass(frozen=True)
class Shard:
    """Programs `first` to before `first + count` of a plan. Findings are written down under the name of the campaign.
    From `until` on, in seconds since the epoch, it begins no program; the rest is left to the campaign. Kernels of the
    ops that `hang` are built in the time of their program. With `behind`, program `first` has ended a worker, and only
    its steps behind that one are judged."""

    plan: Plan
    first: int
    count: int
    campaign: str = ""
    until: float = math.inf
    hang: frozenset[str] = frozenset()
    behind: Behind | None = None

    def found(self, number: int, part: int = 0) -> Path:
        """The file of a failure that no campaign has taken over yet, of this part of a program."""
        return self.plan.failures / f"found-{self.campaign}-{number}.{part}.json"
