"""Isolation: programs that kill or hang their worker, parts of a campaign, time limits, other campaigns' files."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step
from conformance.record import result as model
from conformance.record.finding import FAIL
from conformance.run import execution_place, shrink_progress
from conformance.run.campaign import tasks
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan, Shard
from conformance.run.campaign.workers import Workers
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Limits
from conformance.run.shrinking import LocalShrinker
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.oracles import Mismatch
from tests.run.campaign.saved import fuzz_result

SHARD = Shard(Plan(DrawnPrograms(), "cpu"), 0, 20)
PROGRAM = Program(
    (Storage("float32", 4, "arange"),),
    (Input("a", 0, "float32", (4,), (1,)),),
    (Step("neg_", ({"t": "a"},)), Step("unfold", ({"t": "a"}, 0, 2, 1), out=("b",))),
)
SETITEM = ("--seed", "5", "--programs", "8", "--only", "setitem", "--check-scripts", "0")


@pytest.fixture
def targets(tmp_path, monkeypatch) -> str:
    """Spec prefix of a module of targets that end their process in `unfold`, each in a different way; `Once` does so
    only once."""
    (tmp_path / "ending_targets.py").write_text(
        textwrap.dedent("""
        import inspect, os, pathlib, signal, sys, time
        from conformance.program import trial
        from conformance.selftest.mutants import MutantTarget, Planted
        from conformance.selftest.faults import Fault

        class Ending(MutantTarget):
            def __init__(self, argument=""):
                super().__init__("zero_ clears the storage")
                self.mode = Planted(Fault("unfold", self.act, "test"))

        class Aborts(Ending):
            def act(self, call): os.abort()

        class Exits(Ending):
            def act(self, call): os._exit(3)

        class Leaves(Ending):
            def act(self, call): sys.exit(0)

        class Sleeps(Ending):
            def act(self, call): time.sleep(1000)

        class Deaf(Ending):
            def act(self, call):
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                time.sleep(1000)

        class OnTorch(MutantTarget):
            '''Torch CPU's own answer to `unfold` ends the process, or never comes.'''

            end = staticmethod(os.abort)

            def __init__(self, argument=""):
                super().__init__("zero_ clears the storage")

            def prepare(self):
                super().prepare()
                answer = trial.reference

                def ending(program):
                    if any(step.op == "unfold" for step in program.steps):
                        self.end()
                    return answer(program)

                trial.reference = ending

        class OnSlowTorch(OnTorch):
            end = staticmethod(lambda: time.sleep(1000))

        class Fragile(Ending):
            def __init__(self, argument=""):
                super().__init__()
                self.mode = Planted(Fault("neg_", self.act, "test"))

            def act(self, call):
                return call.first if call.first.numel() > 3 else os.abort()

        class Unjudged(MutantTarget):
            stated = MutantTarget.facts

            def __init__(self, argument=""):
                super().__init__("zero_ clears the storage")

            @property
            def facts(self):
                if {"_judged", "shrink"} & {frame.function for frame in inspect.stack()}:
                    raise RuntimeError("no verdict")
                return self.stated

            @facts.setter
            def facts(self, stated):
                self.stated = stated

        class Once(Ending):
            def act(self, call):
                mark = pathlib.Path(__file__).with_name("died")
                if mark.exists():
                    return call.run()
                mark.touch()
                os.abort()
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "class:ending_targets."


def numbers(shard: Shard) -> range:
    return range(shard.first, shard.first + shard.count)


def findings(reports: Path) -> list[dict]:
    return fuzz_result(reports)["findings"]


class TestDeaths:
    @pytest.mark.parametrize(("name", "kind", "limit"), [
        ("Aborts", "CRASH", "60"), ("Exits", "CRASH", "60"), ("Leaves", "CRASH", "60"),
        pytest.param("Sleeps", "TIMEOUT", "3", marks=pytest.mark.slow),
    ])  # fmt: skip
    def test_a_death_is_a_finding_and_the_campaign_goes_on(self, name, kind, limit, targets, tmp_path, monkeypatch):
        """The campaign identifies the program that killed the worker, shrinks it in other processes to the failing
        step, and runs all other programs."""
        monkeypatch.setattr(shrink_progress, "MOST_DEATHS", 4)
        assert (
            main(
                [
                    "--target",
                    targets + name,
                    *SETITEM,
                    "--limit",
                    limit,
                    "--compile-limit",
                    limit,
                    "--reports",
                    str(tmp_path),
                ]
            )
            == 1
        )
        assert fuzz_result(tmp_path)["programs"] == 8
        assert [(one["kind"], one["signature"], one["steps"]) for one in findings(tmp_path)] == [
            (kind, f"{kind.lower()} / unfold", 1)
        ]
        (script,) = (tmp_path / "failures").glob("*.py")
        said = {
            "Aborts": "killed its process with SIGABRT (signal 6)",
            "Exits": "ended its process with exit code 3",
            "Leaves": "ended its process with exit code 0",
        }
        opened = f'"""{kind} at unfold: the device {said.get(name, "")}'
        assert script.read_text().startswith(opened), script.read_text()[:200]

    @pytest.mark.parametrize(("name", "kind", "limit", "said"), [
        ("OnTorch", "CRASH", "60", "killed its process"), ("OnSlowTorch", "TIMEOUT", "3", "gave no answer in 3 s"),
    ])  # fmt: skip
    def test_the_end_of_torch_cpu_is_not_the_targets(self, name, kind, limit, said, targets, tmp_path, monkeypatch):
        """A process that ends while torch CPU computes its answer is not blamed on the target. Regression test: the
        finding named the target, at the move of the inputs or at the observation."""
        monkeypatch.setattr(shrink_progress, "MOST_DEATHS", 1)
        options = (*SETITEM, "--limit", limit, "--reports", str(tmp_path))
        assert main(["--target", targets + name, *options]) == 1
        (found,) = findings(tmp_path)
        assert (found["kind"], found["signature"]) == (kind, f"{kind.lower()} / torch CPU, not the target")
        (script,) = (tmp_path / "failures").glob("*.py")
        assert script.read_text().startswith(f'"""{kind} at torch CPU, not the target: torch CPU {said}')

    @pytest.mark.slow
    def test_a_hang_that_hears_no_alarm(self, targets, tmp_path, monkeypatch):
        """A program that ignores the alarm is killed soon after its limit. Regression test: the shard waited as long as
        its slowest other programs might have taken."""
        monkeypatch.setattr(shrink_progress, "MOST_DEATHS", 1)
        assert (
            main(
                [
                    "--target",
                    targets + "Deaf",
                    *SETITEM,
                    "--limit",
                    "5",
                    "--compile-limit",
                    "5",
                    "--reports",
                    str(tmp_path),
                ]
            )
            == 1
        )
        assert fuzz_result(tmp_path)["programs"] == 8
        assert [(one["kind"], one["signature"]) for one in findings(tmp_path)] == [("TIMEOUT", "timeout / unfold")]

    def test_a_death_during_shrinking(self, targets):
        """A smaller program that ends the worker is left out, and another worker goes on. Regression test: the finding
        kept its whole program."""
        spec = targets + "Fragile"
        finding = FailingProgram(
            "value / neg_", FAIL, 0, program=PROGRAM, mismatches=(Mismatch("value", "a", "1", "2"),)
        )
        with Workers(spec, Limits(unit=20)) as workers, LocalShrinker(workers, 60) as shrinker:
            small = shrinker.smaller(finding)
        assert [step.op for step in small.program.steps] == ["neg_"]
        assert small.program.inputs[0].size == (4,) and small.mismatches

    def test_a_death_that_does_not_come_again(self, targets, tmp_path):
        """A crash that does not repeat is FLAKY. Regression test: the crash was reported from one run, and its program
        agreed on replay."""
        assert main(["--target", targets + "Once", *SETITEM, "--reports", str(tmp_path)]) == 1
        assert [(one["kind"], one["signature"]) for one in findings(tmp_path)] == [("FLAKY", "flaky / crash / unfold")]

    def test_a_fault_of_the_harness(self, targets, tmp_path):
        """An error in the harness is a finding of kind HARNESS. It counts each affected program, and the campaign
        continues."""
        assert main(["--target", targets + "Unjudged", *SETITEM, "--reports", str(tmp_path)]) == 1
        assert fuzz_result(tmp_path)["programs"] == 8
        [one] = findings(tmp_path)
        assert (one["kind"], one["signature"], one["count"]) == ("HARNESS", "harness / RuntimeError: no verdict", 8)
        assert "in facts" in one["mismatch"].detail


class TestParts:
    def test_parts_are_the_whole(self):
        """Each program belongs to exactly one part, for any number of programs; a part does not depend on the
        others."""
        for programs in (0, 7, 20, 61, 200):
            whole = [n for shard in Plan(DrawnPrograms(), "cpu", programs=programs).shards("") for n in numbers(shard)]
            parts = [Plan(DrawnPrograms(), "cpu", programs=programs, part=(index, 3)) for index in (1, 2, 3)]
            drawn = [n for part in parts for shard in part.shards("") for n in numbers(shard)]
            assert sorted(drawn) == whole == list(range(programs))
            assert [part.wanted for part in parts] == [sum(s.count for s in part.shards("")) for part in parts]

    def test_a_part_goes_on(self):
        """A part resumes where it stopped, even if more programs are requested than at first."""
        plan = Plan(DrawnPrograms(), "cpu", programs=100, part=(2, 2))
        assert [(shard.first, shard.count) for shard in plan.shards("", 30)] == [(30, 10), (60, 20)]

    def test_the_command(self, tmp_path, capsys):
        """The saved command contains the part; a part that does not exist is rejected."""
        words = ("--target", "cpu", "--programs", "41", "--without", "op_db", "--reports", str(tmp_path))
        assert main([*words, "--shard", "3/3"]) == 0
        done = model.load(tmp_path / "fuzz.json")
        assert (done.drawn.programs, "--shard 3/3" in done.command) == (1, True)
        assert main([*words, "--resume", "--shard", "2/3"]) == 2
        assert "another campaign" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main([*words, "--shard", "4/3"])


class TestMinutes:
    def test_a_shard_ends_at_its_time(self):
        """Programs that a shard has not started stay with the campaign."""
        result = tasks.run_shard(replace(SHARD, until=0.0))
        assert (result.done, result.findings) == (0, [])

    def test_a_shard_with_a_finding_ends_earlier(self, tmp_path):
        """The time for shrinking counts from the first finding. Regression test: a device whose first shard took all of
        `--minutes` shrank nothing, and the page said `4 of 0 drawn programs fail`."""
        plan = Plan(DrawnPrograms(Drawing(without=("op_db",))), "class:tests.planted.liars.WrongCell", reports=tmp_path)
        plan.failures.mkdir()
        result = tasks.run_shard(Shard(plan, 0, 200, until_found=0.0))
        assert 0 < result.done < 200
        assert {finding.number for finding in result.findings} == {result.done - 1}

    def test_time_is_kept_for_shrinking(self, tmp_path, monkeypatch):
        """Drawing ends earlier if there are findings to shrink."""
        running = Campaign(Plan(DrawnPrograms(), "cpu", minutes=10, reports=tmp_path), began_at=0.0)
        assert running._drawing_deadline() == 600
        running.findings.known.append(FailingProgram("FAIL", FAIL, 0, program=PROGRAM))
        assert running._drawing_deadline() == 480
        assert running._deadline() == 600

    def test_what_was_not_run_is_run_later(self, tmp_path):
        """A campaign whose time ends immediately has run nothing, and `--resume` runs its programs."""
        words = ("--target", "cpu", "--programs", "21", "--without", "op_db", "--reports", str(tmp_path))
        assert main([*words, "--minutes", "1e-9"]) == 2
        assert main([*words, "--resume"]) == 0
        assert fuzz_result(tmp_path)["programs"] == 21


class TestReplay:
    @pytest.mark.parametrize(("name", "kind", "limit"), [
        ("Aborts", "CRASH", "60"),
        pytest.param("Leaves", "CRASH", "60", marks=pytest.mark.slow),
        pytest.param("Sleeps", "TIMEOUT", "5", marks=pytest.mark.slow)])  # fmt: skip
    def test_a_program_that_ends_its_process(self, name, kind, limit, targets, tmp_path, monkeypatch, capsys):
        """Replay and minimization of a program that ends its process report a finding. Regression test: the program
        ended the command, and `sys.exit(0)` looked like agreement. The saved file contains the target, so `--target` is
        not needed again."""
        monkeypatch.setattr(shrink_progress, "MOST_DEATHS", 1)
        saved, words = tmp_path / "found.json", ("--limit", limit, "--compile-limit", limit, "--reports", str(tmp_path))
        saved.write_text(json.dumps({"target": targets + name, "program": PROGRAM.to_json()}))
        for option in ("--replay", "--minimize"):
            assert main([option, str(saved), *words]) == 1
            said = capsys.readouterr().out
            assert f"# {kind} at unfold: the device " in said
        again = f"Again: python -m conformance.fuzz --replay {tmp_path / 'failures' / 'found-minimal.json'}"
        assert again in (tmp_path / "failures" / "found-minimal.py").read_text()
        smaller = json.loads((tmp_path / "failures" / "found-minimal.json").read_text())
        assert (smaller["target"], smaller["kind"]) == (targets + name, kind)
        assert len(smaller["program"]["steps"]) == 1
        assert main(["--target", "cpu", "--replay", str(saved), *words]) == 0

    def test_a_program_on_which_the_harness_fails(self, targets, tmp_path, capsys):
        """Replay and minimization report the fault. Regression test: minimization ended with its traceback."""
        saved, words = tmp_path / "found.json", ("--target", targets + "Unjudged", "--reports", str(tmp_path))
        saved.write_text(dump(PROGRAM))
        for option in ("--replay", "--minimize"):
            assert main([option, str(saved), *words]) == 1
            said = capsys.readouterr()
            assert "RuntimeError: no verdict" in said.out
            assert not said.err

    def test_a_folder(self, targets, tmp_path, capsys, monkeypatch):
        """Programs after a crashing one still run. Regression test: the line about a target that loads for long was in
        the output, before the table."""
        monkeypatch.setattr(execution_place, "PATIENCE", 0.0)
        folder = tmp_path / "programs"
        folder.mkdir()
        (folder / "a.json").write_text(dump(PROGRAM))
        (folder / "b.json").write_text(dump(PROGRAM.with_steps(())))
        assert main(["--target", targets + "Aborts", "--replay", str(folder)]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "CRASH a",
            "     CRASH at unfold: the device killed its process with SIGABRT (signal 6)",
            "ok   b",
            "1 of 2 programs agree with torch CPU",
        ]


class TestWhatIsResumed:
    FAST = ("--without", "op_db", "--check-scripts", "0")
    WORDS = ("--target", "mutant:slice drops the offset", "--programs", "40", "--only", "view", *FAST)

    def test_findings_of_another_campaign(self, tmp_path):
        """A finding left by a worker of another campaign stays in place. Regression test: it was counted for the next
        target that was resumed in the folder."""
        words = ("--target", "cpu", "--programs", "5", "--without", "op_db", "--reports", str(tmp_path))
        assert main(words) == 0
        program = Drawing().numbered(0, 3)
        other = SHARD.path_of(3).name.replace("found--", "found-another-")
        left = tmp_path / "failures" / other
        left.write_text(json.dumps(FailingProgram("value / slice", FAIL, 3, program=program).to_json()))
        assert main([*words, "--resume"]) == 0
        assert findings(tmp_path) == []
        assert left.exists()

    @pytest.mark.slow
    def test_findings_of_other_options(self, tmp_path):
        """Resuming ignores findings in the folder from campaigns with other steps or families."""
        reports = ("--reports", str(tmp_path))
        assert main([*self.WORDS, *reports]) == 1
        undisturbed = [(one["signature"], one["count"]) for one in findings(tmp_path)]
        assert main([*self.WORDS[:2], "--programs", "60", "--only", "copy", *self.FAST, *reports]) == 1
        assert main([*self.WORDS[:3], "20", *self.WORDS[4:], *reports]) == 1
        assert main([*self.WORDS, "--resume", *reports]) == 1
        again = [(one["signature"], one["count"]) for one in findings(tmp_path)]
        assert sum(count for _, count in again) == sum(count for _, count in undisturbed)
        assert {name for name, _ in again} == {name for name, _ in undisturbed}

    def test_a_mistyped_target(self, tmp_path):
        """A target that cannot be loaded leaves a resumable campaign untouched. Regression test: it had started a new
        campaign."""
        words = ("--target", "cpu", "--without", "op_db", "--reports", str(tmp_path))
        assert main([*words, "--programs", "5"]) == 0
        before = (tmp_path / "fuzz-progress.json").read_bytes()
        assert main(["--target", "device:nodev", *words[2:]]) == 2
        assert (tmp_path / "fuzz-progress.json").read_bytes() == before
        assert main([*words, "--programs", "10", "--resume"]) == 0
        assert fuzz_result(tmp_path)["programs"] == 10

    def test_ctrl_c(self, tmp_path, monkeypatch, capsys):
        """Ctrl-C gives one sentence and exit code 130, without a traceback; the saved program stays unchanged."""
        path = tmp_path / "program.json"
        path.write_text(dump(PROGRAM))

        def interrupted(workers, shard):
            raise KeyboardInterrupt

        monkeypatch.setattr(Workers, "run", interrupted)
        for option in ("--replay", "--minimize"):
            assert main(["--target", "cpu", option, str(path), "--reports", str(tmp_path)]) == 130
            assert capsys.readouterr().err == "conformance fuzz: interrupted; nothing was changed\n"
        assert path.read_text() == dump(PROGRAM)

    def test_a_program_alone_names_no_target(self, tmp_path, capsys):
        """The target then defaults to `tiny`."""
        path = tmp_path / "program.json"
        path.write_text(dump(Drawing().numbered(0, 3)))
        assert main(["--replay", str(path), "--reports", str(tmp_path)]) == 0
        assert "tiny agrees" in capsys.readouterr().out
