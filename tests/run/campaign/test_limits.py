"""Time limits: for a program, for compiling its kernels, and for the campaign."""

from __future__ import annotations

import contextlib
import html
import io
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from conformance.declare.expectations import update
from conformance.declare.probed import Probe, ProbedFeature, TrialAnswer
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step
from conformance.record.causes import causes_of
from conformance.record.errors import TargetError
from conformance.record.finding import CRASH, FAIL, MEMORY, TIMEOUT
from conformance.record.result import Run
from conformance.report import __main__ as report
from conformance.report import terminal
from conformance.run import options, session, shrink_program
from conformance.run import probe as run_probe
from conformance.run.campaign import tasks
from conformance.run.campaign.campaign import CHECKING, LONGEST_TURN, MEANWHILE, MOST_FOR_SCRIPTS, Campaign
from conformance.run.campaign.listed import ListedPrograms
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.results import run_of
from conformance.run.campaign.source import LIMITS
from conformance.run.campaign.terminal import summarize
from conformance.run.campaign.workers import Workers
from conformance.run.failing_program import FailingProgram, ended
from conformance.run.messages import Limits, OutOfTime, Pool
from conformance.run.placed_pool import PlacedPool
from conformance.run.program_workers import ProgramWorkers
from conformance.run.shrinking import TO_ANSWER, LocalShrinker
from conformance.sources.fuzzing import command
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.oracles import Mismatch
from tests.patience import stretched

PLANTED = Path(__file__).parents[2] / "planted"
WRONG = (Mismatch("value", "b", "1.0", "2.0"),)


def program(*steps: Step) -> Program:
    return Program((Storage("float32", 4, "arange"),), (Input("a", 0, "float32", (4,), (1,)),), steps)


NEG, EXP = Step("neg", ({"t": "a"},), out=("b",)), Step("exp", ({"t": "a"},), out=("c",))


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLANTED))


class TestBuilding:
    """Each kernel takes 1.5 s to compile, and a program has a limit of 1 s."""

    @pytest.fixture
    def replayed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
        def replayed(target: str, *steps: Step, compile_limit: float = 60) -> tuple[int, str]:
            path = tmp_path / "program.json"
            path.write_text(dump(program(*steps)))
            words = ["--target", target, "--limit", "1", "--compile-limit", str(compile_limit), "--replay", str(path)]
            return main(words), capsys.readouterr().out

        return replayed

    def test_the_first_call_of_an_op_is_not_the_programs_time(self, replayed: Any) -> None:
        """Compilation in the first call of an op does not count against the program's limit. Regression test: two ops,
        which take three times the limit, were reported as a hang."""
        code, said = replayed("class:building.Builds", NEG, EXP)
        assert (code, "TIMEOUT at" in said) == (0, False), said

    def test_a_later_call_is(self, replayed: Any) -> None:
        """A call that hangs with a compiled kernel is a TIMEOUT at the program's limit. The compile limit is longer
        than a test may take."""
        code, said = replayed("class:building.Hangs", NEG, NEG, compile_limit=1000)
        assert (code, "TIMEOUT at" in said) == (1, True), said

    def test_building_has_an_end(self, replayed: Any) -> None:
        """A first call that hangs is a TIMEOUT when the compile limit is over."""
        code, said = replayed("class:building.Stuck", NEG, compile_limit=3)
        assert (code, "TIMEOUT at" in said) == (1, True), said


class TestHangs:
    """Known hangs cost the ordinary limit. Regression test: each hang in a first call cost the whole compile limit,
    which was 300 s."""

    def test_two_programs_that_hang_are_enough(self, tmp_path: Path) -> None:
        """After two programs hang in the first call of one op, all workers use the ordinary limit for it, and the
        result has a note."""
        campaign = Campaign(Plan(DrawnPrograms(), "cpu", reports=tmp_path))
        (tmp_path / "failures").mkdir()
        campaign.findings.add(ended(TIMEOUT, 0, 1, program(NEG), 1))
        assert campaign.hang == {}
        campaign.findings.add(ended(TIMEOUT, 0, 2, program(NEG), 1))
        campaign.findings.add(ended(CRASH, 0, 3, program(EXP), 1))
        campaign.findings.add(ended(CRASH, 0, 4, program(EXP), 1))
        assert campaign.hang == {"neg": 2}
        [note] = run_of(campaign).notes
        assert "neg hung in 2 programs" in note

    @pytest.mark.parametrize("target", ["tiny", "aot_eager"])
    def test_not_where_a_step_is_not_one_op(self, target: str, tmp_path: Path) -> None:
        """A lazy device and a compiler build the kernels of several steps together, so no single op is responsible."""
        campaign = Campaign(Plan(DrawnPrograms(), target, reports=tmp_path))
        for number in range(3):
            finding = ended(TIMEOUT, 0, number, program(NEG), 1)
            campaign.findings.known.append(replace(finding, numbers=frozenset({0, 1, 2})))
        assert campaign.hang == {}

    def test_the_ordinary_limit(self) -> None:
        """The ordinary limit applies to a program that hangs in its first call if its op is in the list of hanging
        ops. The compile limit is longer than a test may take."""
        with Workers("class:building.Stuck", Limits(unit=1, compiling=1000)) as workers:
            workers.hang = frozenset({"neg"})
            assert workers.ending(program(NEG)) == TIMEOUT


class Clock:
    """Clock that advances only while a pool answers a question."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Slow:
    """Pool that takes 40 s of a clock for each answer, or the remaining time."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.answer, self.asked = clock, None, list[float]()  # type: tuple[Clock, Any, list[float]]

    def ask(self, function: Any, *args: Any, seconds: float | None = None, until: float = math.inf) -> Any:
        self.asked.append(until)
        self.clock.now += max(min(40, until - self.clock.now), 0)
        if self.clock.now >= until:
            raise OutOfTime
        return False if function is shrink_program.survives else self.answer


class SlowProbe(Pool):
    """Execution place and pool in one. Its clock starts when the target is loaded, and each probe takes 100 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.until = 0.0, []  # type: ignore[var-annotated]
        for name in ("time", "monotonic"):
            monkeypatch.setattr(run_probe.time, name, lambda: self.now)

    def pool(self, *args: Any) -> SlowProbe:
        return self

    def loading(self, spec: str, limits: Limits) -> contextlib.nullcontext[None]:
        """Load without delay."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Do nothing: there is no process to end."""

    def ask(self, function: Any, *args: Any, seconds: float | None = None, until: float = math.inf) -> Any:
        if not args:
            return 1
        self.until.append(until)
        self.now += 100
        if self.now > until:
            raise OutOfTime
        return Probe((ProbedFeature("moves", TrialAnswer.YES),))


class TestMinutes:
    """Shrinking respects `--minutes`. Regression test: a campaign of 2 minutes ran 2.5. A shrinking worker had 30 s
    more, and each smaller program that hung took its whole limit."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(tasks.time, "time", clock.time)
        return clock

    @pytest.fixture
    def slow(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Slow:
        slow = Slow(clock)
        monkeypatch.setattr(ProgramWorkers, "ask", lambda self, *args, **options: slow.ask(*args, **options))
        return slow

    @pytest.mark.parametrize("kind", [MEMORY, TIMEOUT, FAIL])
    @pytest.mark.parametrize("left", [0.5, 30.0, 100.0])
    def test_shrinking_ends_on_time(self, kind: str, left: float, clock: Clock, slow: Slow) -> None:
        """Each question has the campaign's deadline, and none follows it. The finding stays and does not become
        FLAKY."""
        steps = [NEG] * 8
        finding = FailingProgram("a group", kind, 7, program=program(*steps), mismatches=WRONG, bad_step=8)
        until = clock.now + left
        slow.answer = finding
        with Workers("cpu", Limits()) as workers, LocalShrinker(workers, 200) as shrinker:
            small = shrinker.smaller(finding, until)
        assert clock.now <= until
        assert slow.asked
        assert set(slow.asked) == {until}
        if left < 40:
            assert small == replace(finding, cut=True)

    def test_a_worker_answers_before_the_deadline(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """The worker's deadline is a second earlier than the pool's, so that it can judge its result so far."""
        requests: list[Any] = []

        def ask(self: ProgramWorkers, *args: Any, **options: Any) -> FailingProgram:
            requests.append((args, options))
            _, _, finding, *_ = args
            return finding

        monkeypatch.setattr(ProgramWorkers, "ask", ask)
        with Workers("cpu", Limits()) as workers, LocalShrinker(workers, 200) as shrinker:
            shrinker.smaller(FailingProgram("a group", FAIL, 7, program=program(NEG), mismatches=WRONG), clock.now + 50)
        (_, _, _, _, early, *_), options = requests[0]  # the second asks for the attribution
        assert (early, options["until"]) == (clock.now + 50 - TO_ANSWER, clock.now + 50)

    def test_the_probe_is_part_of_them(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The probe counts against `--minutes`. Regression test: for a device whose kernels take a minute, one minute
        became four. The final message said that no program was supported, although there had been no time for any."""
        probes: list[Any] = []
        left: list[float | None] = []

        clock = [1000.0]

        def resolve(*args: Any, **options: Any) -> tuple[str, Probe]:
            probes.append(options)
            clock[0] += 45.0
            return "cpu", Probe(seconds=45.0)

        monkeypatch.setattr(session, "resolve", resolve)
        monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        monkeypatch.setattr(Campaign, "run", lambda running: left.append(running.plan.minutes))
        assert main(["--target", "device:cpu", "--minutes", "1", "--reports", str(tmp_path)]) == 2
        assert probes == [{"strict": 6.0, "seconds": 60.0}]
        assert left == [pytest.approx(0.225)]  # a tenth of the rest is reserved for running scripts
        said = "conformance fuzz: the time of --minutes 1 was over before the first programs had ended"
        assert capsys.readouterr().err == f"{said}, so nothing was compared: give it more\n"

    def test_a_probe_ends_with_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the probe runs out of time and there is no profile, nothing runs. With a profile, its entries stay valid,
        untested."""
        late = SlowProbe(monkeypatch)
        with pytest.raises(TargetError) as caught:
            run_probe.resolve("device:cpu", Limits(), late, seconds=60)  # type: ignore[arg-type]
        assert str(caught.value) == (
            "target 'device:cpu' was not run: the probe did not end within 60 s; give more --minutes"
        )
        assert late.until == [60.0]
        assert run_probe.probe(PlacedPool(late, "device:cpu", Limits()), 200).seconds == 100.0

    def test_a_trial_that_hangs_is_named(self) -> None:
        """The probe of a device that hangs in one operator names it, goes on, and leaves time for the run. Regression
        test: the command ended with "the probe did not end within 120 s; give more --minutes"."""
        spec, probed = run_probe.resolve(
            "device:cpu,import=odd_devices,call=hangs_in_unfold", Limits(), seconds=stretched(16)
        )
        assert probed is not None and spec.endswith(",without=unfold")
        died = [row for row in probed.rows if row.answer is TrialAnswer.DIED]
        assert [row.name for row in died] == ["unfold"] and died[0].detail.startswith("gave no answer in ")

    @pytest.mark.parametrize(
        ("words", "unit", "compiling"),
        [
            ([], 60.0, 300.0),
            (["--limit", "5"], 5.0, 5.0),
            (["--limit", "400"], 400.0, 300.0),
            (["--limit", "5", "--compile-limit", "90"], 5.0, 90.0),
        ],
    )
    def test_one_limit_bounds_a_call(self, words: list[str], unit: float, compiling: float) -> None:
        """`--limit` bounds the building of kernels as well. Regression test: each hang of a device took 300 s under
        `--limit 5`."""
        args = options.parser("conformance fuzz", "", command.FLAGS, command.USUAL).parse_args(
            ["--target", "cpu", *words]
        )
        limits = session.limits_of(args, LIMITS)
        assert (limits.unit, limits.compiling) == (unit, compiling)

    @pytest.mark.parametrize(
        ("words", "unit", "compiling"),
        [
            (["--minutes", "2"], 30.0, 30.0),
            (["--minutes", "0.1"], 20.0, 20.0),
            (["--minutes", "10"], 60.0, 150.0),
            (["--minutes", "2", "--limit", "50"], 50.0, 50.0),
        ],
    )
    def test_a_call_takes_at_most_a_quarter_of_the_minutes(
        self, words: list[str], unit: float, compiling: float
    ) -> None:
        """Regression test: one call that hung took all the time of `--minutes 2`, and the run passed."""
        args = options.parser("conformance fuzz", "", command.FLAGS, command.USUAL).parse_args(
            ["--target", "cpu", *words]
        )
        limits = session.limits_of(args, LIMITS, 60 * args.minutes)
        assert (limits.unit, limits.compiling) == (unit, compiling)

    def test_loading_the_target_counts(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """No program runs if loading takes all of the time. Regression test: the time began behind it, so a run of
        three minutes on a busy machine took five."""
        late, load, now = [0.0], Workers.load, tasks.time.time

        def load_for_a_minute(workers: Workers) -> dict[str, str]:
            known = load(workers)
            late[0] = 60.0
            return known

        monkeypatch.setattr(Workers, "load", load_for_a_minute)
        monkeypatch.setattr(tasks.time, "time", lambda: now() + late[0])
        campaign = Campaign(Plan(DrawnPrograms(), "cpu", programs=3, minutes=1.0, reports=tmp_path))
        campaign.run()
        assert campaign.result.done == 0
        assert [row.missing for row in campaign.shortfalls()][:1] == [3]

    def test_what_siblings_say_too(self, clock: Clock, slow: Slow, tmp_path: Path) -> None:
        """Loading a sibling target and running a finding on it stop at the campaign's deadline."""
        campaign = Campaign(Plan(DrawnPrograms(), "cpu", minutes=1.0, reports=tmp_path))
        campaign.began_at = clock.now
        for number in range(3):
            finding = FailingProgram(f"group {number}", FAIL, number, program=program(NEG))
            campaign.findings.known.append(finding)
        slow.answer = "agrees"
        campaign._compare("cpu")
        assert clock.now == campaign.began_at + 60
        assert slow.asked == [clock.now] * 2
        assert [finding.elsewhere for finding in campaign.findings] == [{"cpu": "agrees"}, {}, {}]


class Shrinking:
    """Shrinker that needs `seconds` of a clock for each finding and records the time it may take."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.given = clock, seconds, list[float]()

    def shrink(self, finding: FailingProgram, until: float) -> FailingProgram:
        self.given.append(until - self.clock.now)
        self.clock.now += self.seconds
        return replace(finding, signature=f"value / {finding.op}", program=finding.program.with_steps(()))

    def confirm(self, finding: FailingProgram, small: FailingProgram, until: float) -> FailingProgram:
        return small


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only shrinking and scripts move."""
    clock = Clock()
    for name in ("time", "monotonic"):
        monkeypatch.setattr(tasks.time, name, clock.time)
    return clock


class TestShrinkingMeanwhile:
    """With `--minutes`, findings shrink during drawing. Regression test: shrinking came last, and 211 of 241 findings
    of one campaign were never shrunk."""

    @staticmethod
    def running(clock: Clock, folder: Path, findings: int, minutes: float | None, drawn: float) -> Campaign:
        """Campaign with this number of findings that has drawn programs for `drawn` seconds."""
        plan = Plan(DrawnPrograms(), "cpu", minutes=minutes, reports=folder)
        campaign = Campaign(plan, began=clock.now, began_at=clock.now)
        (folder / "failures").mkdir(parents=True)
        for number in range(findings):
            finding = FailingProgram(
                f"group {number}", FAIL, number, program=program(NEG), bad_step=1, property="value", op=f"op{number}"
            )
            campaign.findings.known.append(finding)
        clock.now += drawn
        return campaign

    def small(self, campaign: Campaign) -> int:
        return sum(finding.shrunk for finding in campaign.findings)

    def test_it_takes_its_share(self, clock: Clock, tmp_path: Path) -> None:
        """Findings shrink until their share of the elapsed time is used; then the campaign draws programs again."""
        campaign, shrinker = self.running(clock, tmp_path, 50, 60.0, drawn=100.0), Shrinking(clock, 10.0)
        campaign._shrink_meanwhile(shrinker)
        first = self.small(campaign)
        assert campaign.shrinking == 10.0 * first
        assert campaign.shrinking >= MEANWHILE * (clock.now - campaign.began) > campaign.shrinking - 10.0
        campaign._shrink_meanwhile(shrinker)
        assert self.small(campaign) == first
        clock.now += 100.0
        campaign._shrink_meanwhile(shrinker)
        assert self.small(campaign) > first

    def test_one_finding_has_its_turn(self, clock: Clock, tmp_path: Path) -> None:
        """A turn ends after the longest turn, or with the remaining time for drawing."""
        campaign, shrinker = self.running(clock, tmp_path, 1, 10.0, drawn=100.0), Shrinking(clock, 1.0)
        campaign._shrink_meanwhile(shrinker)
        assert shrinker.given == [LONGEST_TURN]
        campaign.findings.known[0] = replace(campaign.findings.known[0], shrunk=False)
        clock.now = campaign._drawing_deadline() - 5.0
        campaign._shrink_meanwhile(shrinker)
        assert shrinker.given == [LONGEST_TURN, 5.0]

    def test_all_of_them_and_no_more(self, clock: Clock, tmp_path: Path) -> None:
        """The campaign returns to drawing when every finding is shrunk."""
        campaign, shrinker = self.running(clock, tmp_path, 3, 60.0, drawn=1000.0), Shrinking(clock, 1.0)
        campaign._shrink_meanwhile(shrinker)
        assert (self.small(campaign), len(shrinker.given)) == (3, 3)

    def test_without_a_limit_it_comes_last(self, clock: Clock, tmp_path: Path) -> None:
        """The first finding of each cause must not depend on the timing of a pool."""
        campaign, shrinker = self.running(clock, tmp_path, 3, None, drawn=1000.0), Shrinking(clock, 1.0)
        campaign._shrink_meanwhile(shrinker)
        assert (self.small(campaign), campaign.shrinking) == (0, 0.0)

    def test_recorded_calls_come_first(self, clock: Clock, tmp_path: Path) -> None:
        """Whether a model runs needs all its calls. Regression test: 8 minutes on a device compared 120 of 16,877."""
        campaign, shrinker = self.running(clock, tmp_path, 3, 60.0, drawn=1000.0), Shrinking(clock, 1.0)
        campaign.plan = replace(campaign.plan, numbered=ListedPrograms("programs:programs"))
        campaign._shrink_meanwhile(shrinker)
        assert (self.small(campaign), campaign.shrinking) == (0, 0.0)

    def test_a_campaign_shrinks_between_its_shards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shrinking runs after each shard whose findings were merged. Regression test: it showed 2e10 programs per
        second after the first shard, since the campaign had not noted its time yet."""
        seen: list[tuple[int, bool]] = []
        monkeypatch.setattr(
            Campaign,
            "_shrink_meanwhile",
            lambda self, shrinker: seen.append((self.result.done, self.running_seconds > 0)),
        )
        plan = Plan(DrawnPrograms(Drawing(without=("op_db",))), "cpu", minutes=5.0, programs=60, reports=tmp_path)
        Campaign(plan).run()
        assert seen == [(20, True), (40, True), (60, True)]


class TestScriptsMeanwhile:
    """With `--minutes`, the scripts of the first findings run before more is drawn. Regression test: 22 of 25 scripts
    did not run in three minutes."""

    def checking(self, clock: Clock, folder: Path, findings: int, minutes: float | None) -> tuple[Campaign, list[str]]:
        """A campaign whose scripts take 2 s each, and the operators whose scripts have run."""
        campaign, ran = TestShrinkingMeanwhile.running(clock, folder, findings, minutes, drawn=100.0), list[str]()

        def check(result: Any, until: float) -> str:
            ran.append(result.op)
            clock.now += 2.0
            return "shows its headline"

        campaign.check = check
        return campaign, ran

    def test_they_take_their_share(self, clock: Clock, tmp_path: Path) -> None:
        """Each script runs once, after its finding is shrunk, within a tenth of the time so far."""
        campaign, ran = self.checking(clock, tmp_path, 50, 60.0)
        campaign._shrink_meanwhile(Shrinking(clock, 1.0))
        shrunk = [finding.op for finding in campaign.findings if finding.shrunk]
        assert 5 <= len(ran) < len(shrunk) and {*ran} < {*shrunk} and len({*ran}) == len(ran)
        assert campaign.checking == 2.0 * len(ran) < CHECKING * (clock.now - campaign.began) + 2.0
        assert campaign.shrinking == len(shrunk)

    def test_the_first_always_runs(self, clock: Clock, tmp_path: Path) -> None:
        """A user sees after seconds whether the report will show what it says."""
        campaign, ran = self.checking(clock, tmp_path, 3, 60.0)
        campaign.findings.known[0] = replace(campaign.findings.known[0], shrunk=True)
        campaign._check_scripts(0.0)
        campaign._check_scripts(0.0)
        assert ran == ["op0"]

    def test_time_is_left_for_the_others(self, clock: Clock, tmp_path: Path) -> None:
        """With more findings than the session has time for, drawing and shrinking end earlier, up to a bound."""
        deadlines = []
        for findings in (0, 3, 20, 1000):
            campaign, _ = self.checking(clock, tmp_path / str(findings), findings, 3.0)
            campaign.kept_for_scripts = 20.0
            deadlines.append(campaign.began_at + 180 - campaign._deadline())
        assert deadlines == [0.0, 0.0, 20.0, MOST_FOR_SCRIPTS * 180]

    def test_without_a_limit_they_run_at_the_end(self, clock: Clock, tmp_path: Path) -> None:
        campaign, ran = self.checking(clock, tmp_path, 3, None)
        campaign.findings.known[0] = replace(campaign.findings.known[0], shrunk=True)
        campaign._check_scripts()
        assert not ran


class TestNotShrunk:
    """Every list marks a finding that was not shrunk for lack of time."""

    @pytest.fixture
    def not_shrunk(self, tmp_path: Path) -> tuple[Campaign, Run]:
        campaign = Campaign(Plan(DrawnPrograms(), "cpu", minutes=1.0, reports=tmp_path))
        (tmp_path / "failures").mkdir()
        for number, op in enumerate(("neg", "exp", "abs", "sin")):
            finding = FailingProgram(
                f"value / {op}",
                FAIL,
                number,
                program=program(NEG, EXP),
                mismatches=WRONG,
                bad_step=1,
                property="value",
                op=op,
            )
            campaign.findings.known.append(replace(finding, shrunk=op == "sin"))
        campaign.result.done = 4
        return campaign, run_of(campaign)

    def test_its_cause_is_not_known(self, not_shrunk: tuple[Campaign, Run]) -> None:
        """An unshrunk finding has no known cause. Its pattern has the wrong property alone, separate from shrunk
        findings, and blames no operator."""
        _, run = not_shrunk
        assert [cause.pattern for cause in causes_of(run.results)] == ["not shrunk: value", "value of sin"]
        assert {result.finding.shrunk for result in run.results if result.finding and result.finding.op != "sin"} == {
            False
        }

    def test_the_terminal_says_so(self, not_shrunk: tuple[Campaign, Run]) -> None:
        campaign, run = not_shrunk
        console = Console(record=True, width=200, file=io.StringIO())
        summarize(campaign, run, console, "seed 0")
        terminal.end(console, run, None, Path("fuzz.html"))
        said = console.export_text()
        assert "not shrunk: value: 3 operators" in said
        assert "not shrunk: --minutes was over before its turn; --minimize makes it small" in said
        assert "Not judged: 3 of 4 findings in their smallest form (--minutes)." in said

    def test_programs_of_a_shard_that_did_not_end(self, not_shrunk: tuple[Campaign, Run]) -> None:
        """A program counts when its shard ends. Regression test: the heading of a finding was `in 3 of 0 programs`."""
        campaign, run = not_shrunk
        for done, heading in ((4, "FAIL in 3 of 4 programs: "), (0, "FAIL in 3 programs: ")):
            campaign.result.done = done
            console = Console(record=True, width=200, file=io.StringIO())
            summarize(campaign, run, console, "seed 0")
            assert heading in console.export_text()

    def test_page_and_summary_say_so(self, not_shrunk: tuple[Campaign, Run], tmp_path: Path) -> None:
        """The page and the summary mark each of the three unshrunk findings, and not the shrunk one."""
        _, run = not_shrunk
        report.write(run, tmp_path, None)
        page, text = (html.unescape((tmp_path / name).read_text()) for name in ("fuzz.html", "fuzz-summary.md"))
        assert page.count(", not shrunk") == text.count("FAIL, not shrunk") == 3
        assert "Not judged: 3 of 4 findings in their smallest form (--minutes)." in text

    def test_it_is_not_declared(self, not_shrunk: tuple[Campaign, Run]) -> None:
        """`--update-expectations` declares shrunk findings only, and gives the reason for each one not added."""
        entries, done = update([], not_shrunk[1])
        assert [str(entry) for entry in entries] == ["value / sin / FAIL"]
        assert sum(line.startswith("not added: ") for line in done) == 3
