"""What a program may take, what building its kernels may besides, and when a campaign ends."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.core.errors import TargetError
from conformance.core.finding import CRASH, FAIL, TIMEOUT
from conformance.core.probed import Answer, Probe, Row
from conformance.fuzzing import command, isolation, worker
from conformance.fuzzing.campaign import Campaign, Group
from conformance.fuzzing.command import main
from conformance.fuzzing.isolation import Workers
from conformance.fuzzing.plan import Plan
from conformance.fuzzing.results import run_of
from conformance.fuzzing.worker import Finding
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step
from conformance.run import probe as run_probe
from conformance.run.messages import Limits, OutOfTime, Pool

PLANTED = Path(__file__).parent.parent / "planted"


def program(*steps: Step) -> Program:
    return Program((Storage("float32", 4, "arange"),), (Input("a", 0, "float32", (4,), (1,)),), steps)


NEG, EXP = Step("neg", ({"t": "a"},), out=("b",)), Step("exp", ({"t": "a"},), out=("c",))


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLANTED))


class TestBuilding:
    """Kernels take 1.5 s to build, and a program may take 1 s."""

    @pytest.fixture
    def replayed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
        def replayed(target: str, *steps: Step, compile_limit: float = 60) -> tuple[int, str, float]:
            path = tmp_path / "program.json"
            path.write_text(dump(program(*steps)))
            began = time.monotonic()
            words = ["--target", target, "--limit", "1", "--compile-limit", str(compile_limit), "--replay", str(path)]
            return main(words), capsys.readouterr().out, time.monotonic() - began

        return replayed

    def test_the_first_call_of_an_op_is_not_the_programs_time(self, replayed: Any) -> None:
        """Of two ops too, which take three times what the program may; that once was a hang."""
        code, said, _ = replayed("class:building.Builds", NEG, EXP)
        assert (code, "TIMEOUT at" in said) == (0, False), said

    def test_a_later_call_is(self, replayed: Any) -> None:
        """What hangs when its kernel is there is a hang at once, whatever compiling may take."""
        code, said, seconds = replayed("class:building.Hangs", NEG, NEG)
        assert (code, "TIMEOUT at" in said) == (1, True), said
        assert seconds < 50

    def test_building_has_an_end(self, replayed: Any) -> None:
        """A first call that hangs is a hang when the limit of compiling is over."""
        code, said, _ = replayed("class:building.Stuck", NEG, compile_limit=3)
        assert (code, "TIMEOUT at" in said) == (1, True), said


class TestHangs:
    """A device that hangs at a first call cost the whole limit of compiling at each death, which was 300 s."""

    def test_two_programs_that_hang_are_enough(self, tmp_path: Path) -> None:
        """The third of an op has the ordinary limit, in all workers, and the result says so."""
        campaign = Campaign(Plan("cpu", reports=tmp_path))
        (tmp_path / "failures").mkdir()
        campaign.add(worker.ended(TIMEOUT, 0, 1, program(NEG), 1))
        assert campaign.hang == {}
        campaign.add(worker.ended(TIMEOUT, 0, 2, program(NEG), 1))
        campaign.add(worker.ended(CRASH, 0, 3, program(EXP), 1))
        campaign.add(worker.ended(CRASH, 0, 4, program(EXP), 1))
        assert campaign.hang == {"neg": 2}
        [note] = run_of(campaign).notes
        assert "neg hung in 2 programs" in note

    @pytest.mark.parametrize("target", ["tiny", "aot_eager"])
    def test_not_where_a_step_is_not_one_op(self, target: str, tmp_path: Path) -> None:
        """A lazy device and a compiler build the kernels of several steps at once."""
        campaign = Campaign(Plan(target, reports=tmp_path))
        for number in range(3):
            finding = worker.ended(TIMEOUT, 0, number, program(NEG), 1)
            campaign.groups.append(Group(finding, {0, 1, 2}, set()))
        assert campaign.hang == {}

    def test_the_ordinary_limit(self) -> None:
        """Of a program that hangs in its first call, when its op is known to."""
        with Workers("class:building.Stuck", 1, compile_limit=1000) as workers:
            workers.hang = frozenset({"neg"})
            began = time.monotonic()
            assert workers.fate(program(NEG)) == TIMEOUT
            assert time.monotonic() - began < 100


class Clock:
    """Time that passes only while something is asked of a pool."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Slow:
    """Answers each question to a pool in 40 s of a clock, or in the time that is left."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.answer, self.asked = clock, None, list[float]()  # type: tuple[Clock, Any, list[float]]

    def ask(self, function: Any, *args: Any, seconds: float | None = None, until: float = math.inf) -> Any:
        self.asked.append(until)
        self.clock.now += max(min(40, until - self.clock.now), 0)
        if self.clock.now >= until:
            raise OutOfTime
        return self.answer


class SlowProbe(Pool):
    """A place and its pool, whose clock begins when the target is loaded, and where a probe takes 100 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.until = 0.0, []  # type: ignore[var-annotated]
        for name in ("time", "monotonic"):
            monkeypatch.setattr(run_probe.time, name, lambda: self.now)

    def pool(self, spec: str, limits: Limits) -> SlowProbe:
        return self

    def loading(self, spec: str, limits: Limits) -> None:
        """It is loaded at once."""

    def close(self) -> None:
        """There is nothing to end."""

    def ask(self, function: Any, *args: Any, seconds: float | None = None, until: float = math.inf) -> Any:
        if not args:
            return 1
        self.until.append(until)
        self.now += 100
        if self.now > until:
            raise OutOfTime
        return Probe((Row("moves", Answer.YES),))


class TestMinutes:
    """`--minutes` is kept whatever shrinking would take: a campaign of 2 minutes once ran 2.5, since a worker that
    shrinks had 30 s more, and each smaller program that hangs its whole limit."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(worker.time, "time", clock.time)
        return clock

    @pytest.fixture
    def slow(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Slow:
        slow = Slow(clock)
        monkeypatch.setattr(Workers, "ask", lambda self, *args, **options: slow.ask(*args, **options))
        return slow

    @pytest.mark.parametrize("kind", [isolation.MEMORY, TIMEOUT, FAIL])
    @pytest.mark.parametrize("left", [0.5, 30.0, 100.0])
    def test_shrinking_ends_on_time(self, kind: str, left: float, clock: Clock, slow: Slow) -> None:
        """Each question has the campaign's deadline, and after it there is none; the finding is kept, not FLAKY."""
        steps = [NEG] * 8
        finding = Finding(kind, 0, 7, "a group", program(*steps), step=8)
        until = clock.now + left
        slow.answer = False if kind != FAIL else finding
        with Workers("cpu", 60) as workers:
            small = workers.shrink(finding, 200, until)
        assert clock.now <= until
        assert slow.asked
        assert set(slow.asked) == {until}
        if left < 40:
            assert small == finding

    def test_a_worker_answers_before_the_deadline(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has a second to judge what it has got so far."""
        given: list[Any] = []
        monkeypatch.setattr(Workers, "ask", lambda self, *args, **options: given.append((args, options)))
        with Workers("cpu", 60) as workers:
            workers.shrink(Finding(FAIL, 0, 7, "a group", program(NEG)), 200, clock.now + 50)
        [((_, _, _, _, early), options)] = given
        assert (early, options["until"]) == (clock.now + 50 - isolation.TO_ANSWER, clock.now + 50)

    def test_the_probe_is_part_of_them(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The probe of a device whose kernels take a minute came before them: one minute was four. At the end it said
        that no program was supported, when there had been no time for any."""
        asked: list[Any] = []
        left: list[float | None] = []

        def resolve(*args: Any, **options: Any) -> tuple[str, Probe]:
            asked.append(options)
            return "cpu", Probe(seconds=45.0)

        monkeypatch.setattr(command, "resolve", resolve)
        monkeypatch.setattr(command, "run_shown", lambda running, console: left.append(running.plan.minutes))
        assert main(["--target", "device:cpu", "--minutes", "1", "--reports", str(tmp_path)]) == 2
        assert asked == [{"strict": 6.0, "seconds": 60.0}] and left == [0.25]
        said = "conformance.fuzz: the time of --minutes 1 was over before the first programs had ended"
        assert capsys.readouterr().err == f"{said}, so nothing was compared: give it more\n"

    def test_a_probe_ends_with_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a profile nothing can run then; with one, what it says remains, and was not tried."""
        late = SlowProbe(monkeypatch)
        with pytest.raises(TargetError) as caught:
            run_probe.resolve("device:cpu", Limits(), late, seconds=60)  # type: ignore[arg-type]
        assert str(caught.value) == (
            "target 'device:cpu' was not run: the probe did not end within 60 s; give more --minutes"
        )
        assert late.until == [60.0]
        assert run_probe.probe(late, "device:cpu", 200).seconds == 100.0

    def test_what_siblings_say_too(self, clock: Clock, slow: Slow, tmp_path: Path) -> None:
        """Loading a sibling, and running a finding on it, ends with the campaign."""
        campaign = Campaign(Plan("cpu", minutes=1.0, reports=tmp_path))
        campaign.began_at = clock.now
        for number in range(3):
            finding = Finding(FAIL, 0, number, f"group {number}", program(NEG))
            campaign.groups.append(Group(finding, {number}, set()))
        slow.answer = "agrees"
        campaign._compare("cpu")
        assert clock.now == campaign.began_at + 60
        assert slow.asked == [clock.now] * 2
        assert [group.elsewhere for group in campaign.groups] == [{"cpu": "agrees"}, {}, {}]
