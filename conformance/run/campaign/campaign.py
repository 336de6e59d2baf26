"""A campaign: numbered programs of one seed, run in shards by worker processes, and their distinct findings.

The key insight: a shard is a pure function of its seed and program numbers, so the result does not depend on the number
of workers. If a worker dies, another one runs the steps behind the crash and the rest of the shard. Findings of
equal signatures are joined at once, those of equal causes when they are shrunk. A campaign therefore reports each
distinct bug once, with a small program. All files of a campaign carry its name, so `resume` reads only its own files.
"""

from __future__ import annotations

import functools
import json
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.declare import profile as profiles
from conformance.engine.facts import TargetFacts
from conformance.engine.loading import describe_target
from conformance.program.model import ProgramError
from conformance.program.steps.table import OPS
from conformance.record.errors import TargetError
from conformance.record.finding import FAIL, TIMEOUT
from conformance.record.result import Result, write_atomic
from conformance.record.shortfall import FINDINGS, ON_LAYER, Shortfall
from conformance.report.live import CampaignState, Log
from conformance.run import shrink_program
from conformance.run.campaign.findings import Findings
from conformance.run.campaign.plan import HANGS, Plan, Shard
from conformance.run.campaign.results import result_of
from conformance.run.campaign.shrinking_order import ShrinkingOrder
from conformance.run.campaign.tasks import ShardResult
from conformance.run.campaign.workers import Workers, saved_findings
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import OutOfTime, PoolLost, WorkerDied
from conformance.run.shrinking import Ahead, LocalShrinker, RemoteShrinker, Shrinker, ThreadShrinker

PROGRESS = 10
"""Schema version of the progress file."""

SHRINKING = 0.2
"""Share of `--minutes` reserved for shrinking, once there are findings. Also the share of a pool's workers that shrink
before the last program is drawn, rounded down: none of four."""

MEANWHILE, LONGEST_TURN = 0.15, 30.0
"""Limits on shrinking before the last program is drawn, if `--minutes` limits the campaign: the share of the time so
far, and the seconds for one finding."""

CHECKING = 0.1
"""Share of the time so far for running scripts before the last program is drawn, if `--minutes` limits the campaign.
The script of the first finding runs in any case."""

MOST_FOR_SCRIPTS, SCRIPT_SECONDS = 0.15, 2.0
"""Largest share of `--minutes` that a campaign leaves for scripts in addition to the session's share, and the seconds
that a script is expected to take before one has run."""

PATIENCE = 1.0
"""Interval in seconds between checkpoints. Findings merged since the last checkpoint are still on disk in their shard
files."""


@dataclass
class Campaign:
    """A running campaign: the totals so far and the distinct findings. It calls `tell` after each shard."""

    plan: Plan
    tell: Callable[[Campaign], None] = lambda campaign: None
    wanted: Callable[[Campaign, FailingProgram], float] | None = None
    """Shrinking priority of a finding: highest first, 0 = never. By default all are shrunk, but few of one pattern."""
    result: ShardResult = field(default_factory=ShardResult)
    findings: Findings = field(init=False)
    order: ShrinkingOrder = field(init=False)
    began: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    running: int = 0
    """Number of shards that workers are running."""
    shrinking: float = 0.0
    """Seconds of shrinking so far."""
    tried: int = 0
    """Number of smaller programs that shrinking has judged."""
    seconds: float = 0.0
    """Seconds of the whole campaign, without those of an earlier run that it resumes."""
    check: Callable[[Result, float], str] | None = None
    """Runs the script of a result before a time, and returns what it does; "" without an answer. None: scripts do not
    run during the campaign."""
    checking: float = 0.0
    """Seconds of running scripts so far."""
    kept_for_scripts: float = 0.0
    """Seconds behind the campaign's own time in which the session runs the scripts that are left."""
    running_seconds: float = 0.0
    earlier_seconds: float = 0.0
    unfinished: dict[int, Shard] = field(default_factory=dict)
    """Shards that were started and are not merged yet, by their first program."""
    following: int = 0
    """First program of the next shard."""
    undrawn: bool = False
    """Whether the drawing ended before all programs of the plan had run."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Identifier in the names of its files. It separates campaigns in one folder or on one target."""
    place: ExecutionPlace = LOCAL
    _checked: set[Path] = field(default_factory=set)
    """The scripts that have run."""
    _layers: dict[str, Workers] = field(default_factory=dict)
    """Workers of the targets without the backend under test that have judged a finding."""
    _noted: float = 0.0

    def __post_init__(self) -> None:
        self.findings, self.order = Findings(self.plan, self.name), ShrinkingOrder(self)

    @functools.cached_property
    def facts(self) -> TargetFacts:
        """The facts of the target. To describe a target takes 20 ms, since entry points may name it."""
        return describe_target(self.plan.target).facts

    def run(self) -> None:
        """Run the plan, then shrink the findings. Raises TargetError if the target cannot be loaded, and ProgramError
        if the progress file is of another campaign.

        If the run ends early for any reason, the findings so far are on disk, and `resume` continues from there."""
        self.began_at = time.time()  # loading the target counts, too
        self.plan.failures.mkdir(parents=True, exist_ok=True)
        self.following = -len(self.plan.corpus)
        if self.plan.resume:
            self._restore()
        try:
            self._run_and_shrink()
            for relative in self.facts.siblings:
                if not self._late():
                    self._compare(relative)
        finally:
            self.seconds = time.time() - self.began_at
            for workers in self._layers.values():
                workers.close()
            self._layers.clear()

    def _run_and_shrink(self) -> None:
        plan = self.plan
        with Workers(plan.target, plan.limits, plan.jobs, self.place, plan.numbered) as workers:
            remote = None if self.place.local else RemoteShrinker(workers, plan.trials)
            self.findings.environment = workers.load()
            self._note_progress()
            self.began = time.monotonic()
            with LocalShrinker(workers, plan.trials) as local:
                shrinker = remote or local
                try:
                    self._run_shards(workers, shrinker, remote)
                finally:
                    self.running_seconds = self.earlier_seconds + time.monotonic() - self.began
                    self._take_found()
                    self._note_progress()
                threads = min(plan.jobs, sum(map(self.order.is_due, self.order.queue()))) if remote is None else 0
                if threads < 2:
                    self._shrink_all(shrinker, remote, len(self.findings))
        if threads > 1:  # the workers that ran the programs have ended, since each thread has workers of its own
            with ThreadShrinker(workers, threads, plan.trials) as ahead:
                ahead.on_free = functools.partial(self._shrink_ahead, ahead, 2 * threads)
                self._shrink_all(ahead, ahead, 2 * threads)

    def _shrink_all(self, shrinker: Shrinker, ahead: Ahead | None, most: int) -> None:
        """Shrink the findings in the order of their rank, and up to `most` of them ahead of their turn. The first
        finding of a cause, and so the set of findings that are shrunk, does not depend on the scheduling of a pool."""
        # If the campaign ends meanwhile, the remaining findings stay unshrunk.
        self._judge_without_backend()
        while not self._late() and (finding := next(filter(self.order.is_due, self.order.queue()), None)) is not None:
            if ahead is not None:
                self._shrink_ahead(ahead, most)
            self._shrink_timed(shrinker, finding)
            self._check_scripts()

    def _judge_without_backend(self) -> None:
        """Judge findings that may be PyTorch's own without the backend, in a separate process, before any is shrunk. A
        finding that does not fail there in the same way is the backend's."""
        for finding in [finding for finding in self.findings if self.order.unanswered(finding)]:
            for layer in self.order.unanswered(finding):
                if layer not in self._layers:
                    self._layers[layer] = Workers(layer, self.plan.limits, 1, self.place)
                answer = self._elsewhere(self._layers[layer], layer, finding) if not self._late() else None
                if answer is None:
                    return
                judged = replace(finding, elsewhere={**finding.elsewhere, layer: answer})
                if finding.layer and not answer.startswith(shrink_program.SAME):
                    self.findings.delete_files(finding)
                    self.findings.substitute(finding)
                    self.findings.add(replace(judged, layer=""))
                    break
                self.findings.substitute(finding, judged)
                self.findings.save(judged)
                finding = judged

    def _shrink_ahead(self, ahead: Ahead, most: int) -> None:
        """Start to shrink findings that probably have distinct causes ahead of their turn, until `most` are running."""
        causes = {finding.cause() for finding in self.findings if finding.shrunk}
        for finding in self.order.queue():
            known = finding.precise and finding.cause() in causes
            causes.add(finding.cause())
            if ahead.running < most and not known and self.order.is_due(finding):
                ahead.begin(finding, until=self._deadline())

    def _compare(self, relative: str) -> None:
        """Run each finding on a related target, in a separate process, to show which side has the bug."""
        with Workers(relative, self.plan.limits, 1, self.place) as workers:
            for finding in self.findings.ranked():
                if relative in finding.elsewhere or not finding.program.inputs or self._late():
                    continue
                answer = self._elsewhere(workers, relative, finding)
                if answer is None:
                    return
                compared = replace(finding, elsewhere={**finding.elsewhere, relative: answer})
                self.findings.substitute(finding, compared)
                self.findings.save(compared)

    def _elsewhere(self, workers: Workers, relative: str, finding: FailingProgram) -> str | None:
        """Return the result of a finding's program on a related target; None if the time is over."""
        limits, until = self.plan.limits, self._deadline()
        longest = 2 * limits.unit + limits.compiling
        try:
            answer: str = workers.ask(
                shrink_program.elsewhere, relative, finding, limits.unit, seconds=longest, until=until
            )
            return answer
        except OutOfTime:
            return None
        except WorkerDied as died:
            return shrink_program.died_elsewhere(finding, died.death)
        except TargetError as error:
            return f"cannot be used: {error}"

    @property
    def hang(self) -> dict[str, int]:
        """Ops in whose steps at least `HANGS` programs timed out, with the number of programs. Empty if a step of the
        target is not one op, because the target is lazy or transforms programs."""
        if self.facts.lazy or self.facts.transforms_program:
            return {}
        hangs = {finding.op: finding.count for finding in self.findings.distinct() if finding.kind == TIMEOUT}
        return {op: count for op, count in hangs.items() if op in OPS and count >= HANGS}

    def _deadline(self, part: float = 1.0) -> float:
        """Time at which this share of the campaign's minutes has passed, in seconds since the epoch; infinity without a
        limit. The time for scripts that the session has no time for is left out."""
        if self.plan.minutes is None:
            return math.inf
        return self.began_at + part * (60 * self.plan.minutes - self._for_scripts(60 * self.plan.minutes))

    def _for_scripts(self, seconds: float) -> float:
        """Seconds of a limited campaign to leave for scripts in addition to those that the session keeps."""
        if self.check is None or not self.findings:
            return 0.0
        ran = len(self._checked)
        left = len({finding.title() for finding in self.findings}) - ran
        expected = left * (self.checking / ran if ran else SCRIPT_SECONDS)
        return min(max(expected - self.kept_for_scripts, 0.0), MOST_FOR_SCRIPTS * seconds)

    def _drawing_deadline(self, found: bool = False) -> float:
        return self._deadline(1 - SHRINKING if self.findings or found else 1.0)

    def _late(self) -> bool:
        return time.time() >= self._deadline()

    def _shrink_meanwhile(self, shrinker: Shrinker) -> None:
        """Shrink findings between shards, within `MEANWHILE` of a limited time. Without a time limit, findings are
        shrunk at the end, in an order that does not depend on the scheduling of a pool. Listed programs all come first
        too: a model, for example, runs on the target only if all its calls do."""
        if not self.plan.numbered.endless:
            return
        while self.plan.minutes is not None and self.shrinking < MEANWHILE * (time.monotonic() - self.began):
            finding = next(filter(self.order.is_due, self.order.queue()), None)
            if finding is None:
                return
            self._shrink_timed(shrinker, finding, min(self._drawing_deadline(), time.time() + LONGEST_TURN))
            self._check_scripts(CHECKING * (time.monotonic() - self.began))

    def _shrink_timed(self, shrinker: Shrinker, finding: FailingProgram, until: float | None = None) -> None:
        begin = time.monotonic()
        self._shrink(shrinker, finding, until)
        self.shrinking += time.monotonic() - begin

    def _check_scripts(self, most: float = math.inf) -> None:
        """Run the scripts of findings that are shrunk, while running scripts has taken less than `most` seconds. They
        come before more drawing and shrinking: a script that shows its headline is what a user looks at first."""
        if self.plan.minutes is None or self.check is None:
            return
        for finding in self.findings.ranked():
            path = self.findings.path(finding)
            if self._checked and (self.checking >= most or self._late()):
                return
            if finding.shrunk and path not in self._checked:
                begin = time.monotonic()
                self._checked.add(path)
                self.check(result_of(finding, self.findings.script(finding)), self._deadline())
                self.checking += time.monotonic() - begin

    def _run_shards(self, workers: Workers, shrinker: Shrinker, remote: RemoteShrinker | None) -> None:
        """Run the shards, and merge the result of each as it ends. Shrink some findings meanwhile."""
        shards = _Shards(self)
        log = Log(self.plan.reports, profiles.identity(self.plan.target), afresh=not self.plan.resume)
        aside = int(SHRINKING * self.plan.jobs) if remote is not None else 0
        if remote is not None:
            workers.aside = remote.take

        def begin() -> None:
            taken = min(remote.running, aside) if remote is not None else 0
            while self.running < self.plan.jobs - taken and not self._enough():
                shard = shards.following()
                if shard is None:
                    break
                self.unfinished[shard.first] = shard
                self.following = max(self.following, shard.first + shard.count)
                self.running += 1
                workers.hang = frozenset(self.hang)
                until, until_found = self._drawing_deadline(), self._drawing_deadline(found=True)
                began = self.began_at - self.earlier_seconds
                workers.begin(replace(shard, until=until, until_found=until_found, began=began))

        begin()
        for shard, result, rest in workers.shards(self._deadline() - time.time()):
            self.running -= 1
            self.running_seconds = self.earlier_seconds + time.monotonic() - self.began
            del self.unfinished[shard.first]
            if rest is not None:
                shards.unfinished.append(rest)
                self.unfinished[rest.first] = rest
            self._take(result)  # first, since its findings may end the campaign
            if remote is not None and aside:
                self._shrink_ahead(remote, aside)
            elif remote is None:
                self._judge_without_backend()
                self._shrink_meanwhile(shrinker)
            begin()
            if time.monotonic() - self._noted >= PATIENCE:
                self._note_progress()
            if log.due():
                log.add(self._sample(workers))
            self.tell(self)

        self.undrawn = bool(self.unfinished) or shards.following() is not None
        log.add(replace(self._sample(workers), ended=True))

    def _sample(self, workers: Workers) -> CampaignState:
        done, causes, lost = self.result, len(self.findings.distinct()), len(getattr(workers.pool, "lost", ()))
        now, seconds = time.time(), self.running_seconds
        return CampaignState(now, seconds, done.done, len(done.cells), causes, workers.alive(), workers.deaths, lost)

    def _take_found(self) -> None:
        """Merge findings that unfinished shards left on disk. `resume` runs these shards again and finds the same."""
        for shard in self.unfinished.values():
            for finding in saved_findings(shard, shard.first, shard.first + shard.count):
                self.findings.add(finding)

    def _note_progress(self) -> None:
        """Write a checkpoint: first the findings, then the progress file. Then delete the files of merged findings.
        `resume` finds again any finding merged after the checkpoint, and counts it once."""
        self.findings.save_unsaved()
        progress = {
            "schema": PROGRESS,
            "campaign": self.name,
            **self.plan.identity(),
            "following": self.following,
            "seconds": self.running_seconds,
            "unfinished": [[shard.first, shard.count] for shard in self.unfinished.values()],
            "result": self.result.to_json(),
        }
        write_atomic(self.plan.progress, json.dumps(progress))
        self.findings.delete_merged()
        self._noted = time.monotonic()

    def _restore(self) -> None:
        """Load the state of an earlier run of this campaign: its progress, its findings, and those not merged yet."""
        path = self.plan.progress
        if not path.exists():
            return
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != PROGRESS:
                raise ValueError(f"it has schema {data['schema']!r}, and this version reads schema {PROGRESS}")
            identity, self.name = {key: data[key] for key in self.plan.identity()}, str(data["campaign"])
            self.result = ShardResult.from_json(data["result"])
            self.unfinished = {first: Shard(self.plan, first, count, self.name) for first, count in data["unfinished"]}
            self.following = int(data["following"])
            self.earlier_seconds = self.running_seconds = float(data["seconds"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProgramError(
                f"{path} does not say how far a campaign is ({error}): run without --resume, or choose "
                "another --reports"
            ) from error
        if identity != self.plan.identity():
            raise ProgramError(
                f"{path} is of another campaign: --resume needs the target, seed, families, dtypes, "
                "steps, corpus, shard, torch and version of the drawing that it was started with"
            )
        self.findings.name = self.name
        self.findings.restore()

    def _enough(self) -> bool:
        return time.time() >= self._drawing_deadline() or (self.plan.stop_at_first and bool(self.findings))

    def _take(self, result: ShardResult) -> None:
        new, result.findings = result.findings, []
        self.result.add(result)
        alike: dict[tuple[object, ...], list[FailingProgram]] = {}
        for finding in new:
            # Not errors: those of one signature may have several causes, so each is compared with the known ones.
            own = (finding.number, finding.part) if finding.an_error else ()
            alike.setdefault((finding.signature, finding.layer, *own), []).append(finding)
        for first, *others in alike.values():
            self.findings.add(first, *others)

    def _shrink(self, shrinker: Shrinker, finding: FailingProgram, until: float | None = None) -> None:
        """Shrink the program of a finding to find its cause. If another finding has this cause, join the two. A finding
        with a new cause must also fail in a fresh worker."""
        until = self._deadline() if until is None else until
        if self.order.is_unshrinkable(finding):
            return
        same = self.findings.of_cause(finding) if finding.precise else None
        small, broken = finding, False
        if same is None:
            try:
                small = shrinker.shrink(finding, until)
                same = self.findings.of_cause(small)
                if same is None and small.kind == FAIL and time.time() < until:
                    small = shrinker.confirm(finding, small, until)
                    same = self.findings.of_cause(small)
            except PoolLost:
                raise
            except Exception as error:  # a fault of the harness: the finding stays as it is and records the error
                why, broken = f"failed: {type(error).__name__}: {error}", True
                small = replace(small, elsewhere={**small.elsewhere, "shrinking": why})
        # A pool may have shrunk the finding ahead of its turn, when fewer programs had shown it.
        self.tried += small.tried
        shrunk = replace(small.of_programs(finding), shrunk=True, others=finding.others, tried=0)
        before = [finding]
        if shrunk.an_error and time.time() < until and not broken:
            shrunk = replace(shrunk, needed=shrunk.operators & finding.operators)
            shrunk = self.findings.split(finding, shrunk)
        else:
            self.findings.substitute(finding, shrunk)
        if same is not None:
            same = self.findings.of_cause(shrunk)  # again, since `split` may have added programs to it
            assert same is not None
            before.append(same)
            self.findings.substitute(shrunk)
            shrunk = replace(same.joined(shrunk), needed=same.needed)
            self.findings.substitute(same, shrunk)
        self.findings.save(shrunk)
        for old in before:
            if self.findings.path(old) != self.findings.path(shrunk):
                self.findings.delete_files(old)
        self.tell(self)

    def shortfalls(self) -> list[Shortfall]:
        """What `--minutes` kept from being judged. Without `--programs` the time is the amount, so that the number of
        programs is never too small; 0 programs are."""
        plan, done = self.plan, self.result
        if plan.minutes is None:
            return []
        rows, programs = list[Shortfall](), plan.numbered.noun
        judged = done.judged if plan.numbered.endless else done.done
        if plan.wanted is None and not done.done:
            rows.append(Shortfall(programs))
        elif plan.wanted is not None and self.undrawn and not (plan.stop_at_first and self.findings):
            rows.append(Shortfall(programs, plan.wanted - judged, plan.wanted))
        late = [*filter(self.order.is_due, self.order.queue())]
        shrunk = [finding for finding in self.findings if finding.shrunk]
        rows.append(Shortfall(FINDINGS, len(late) + sum(finding.cut for finding in shrunk), len(late) + len(shrunk)))
        tried = [finding for finding in self.findings if finding.program.inputs]
        for relative in self.facts.siblings:
            # Of targets without the backend, only answers that an outcome depends on: a worker has judged the others.
            only_asked = relative in self.facts.without_backend
            unjudged = [finding for finding in tried if relative not in finding.elsewhere]
            missing = [one for one in unjudged if not only_asked or relative in self.order.unanswered(one)]
            rows.append(Shortfall(ON_LAYER.format(relative), len(missing), len(tried)))
        return [row for row in rows if row.missing or (not row.planned and row.what == programs)]


class _Shards:
    """The shards that a campaign has yet to begin: first unfinished ones, then the plan's shards. When all have ended,
    shards follow that replace programs that were not judged."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign, self.redrawn = campaign, 0
        self.unfinished = list(campaign.unfinished.values())
        self.planned = campaign.plan.shards(campaign.name, campaign.following)

    def following(self) -> Shard | None:
        """Return the next shard; None if there is none now."""
        campaign, plan = self.campaign, self.campaign.plan
        shard = self.unfinished.pop() if self.unfinished else next(self.planned, None)
        if shard is not None or campaign.unfinished or plan.wanted is None or not plan.numbered.endless:
            return shard
        missing = min(plan.wanted - campaign.result.judged, plan.wanted - self.redrawn)
        if missing > 0:
            self.redrawn += missing
            self.planned = plan.more(campaign.name, campaign.following, missing)
        return next(self.planned, None)
