"""Findings are shrunk in several threads at a time, with the result of shrinking one after the other."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.record.finding import FAIL
from conformance.run import shrink_progress
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.workers import Workers
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Limits
from conformance.run.shrinking import LocalShrinker, ThreadShrinker
from conformance.run.signals import Stopped
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.standalone.oracles import Mismatch
from tests.patience import stretched

ONE = Program(
    (Storage("float32", 4),), (Input("a", 0, "float32", (4,), (1,)),), (Step("neg", (tensor("a"),), out=("b",)),)
)
FINDINGS = [FailingProgram(f"value / op {number}", FAIL, number) for number in range(3)]
CALLS = {"neg": Step("neg", (tensor("b"),), out=("c",)), "mul": Step("mul", (tensor("b"), 3), out=("c",))}


def campaign(folder: Path, jobs: int) -> dict[str, str]:
    """Run a campaign over two programs, each with a wrong operator behind a view, and return its saved findings."""
    (folder / "corpus").mkdir(parents=True)
    cells, view = Storage("float32", 6, [-1.0, 2.0, -3.0, 4.0, -5.0, 6.0]), Step("t", (tensor("a"),), out=("b",))
    for name, call in CALLS.items():
        program = Program((cells,), (Input("a", 0, "float32", (2, 3), (3, 1)),), (view, call))
        (folder / "corpus" / f"{name}.json").write_text(dump(program))
    words = ["--target", "class:tests.planted.liars.ValueDevice", "--programs", "0", "--corpus", str(folder / "corpus")]
    code = main([*words, "--check-scripts", "0", "--reports", str(folder), "-n", str(jobs)])
    assert code == 1
    return {path.name: path.read_text() for path in sorted((folder / "failures").glob("*.json"))}


def test_a_program_without_inputs() -> None:
    """A program whose tensors come from factories is minimized too."""
    ones = Step("ones.new", ([6],), {}, ("a",))
    view = Step("narrow", (tensor("a"), 0, 0, 2), out=("b",))
    others = [Step(op, (tensor("a"),), out=(out,)) for op, out in (("neg", "c"), ("abs", "d"))]
    program = Program((), (), (ones, others[0], view, Step("zero_", (tensor("b"),)), others[1]))
    spec = "mutant:zero_ clears the storage"
    verdict = judge_program(program, load_target(spec))
    finding = FailingProgram(
        "value / zero_", FAIL, 0, program=program, mismatches=verdict.mismatches, bad_step=verdict.bad_step
    )
    with Workers(spec, Limits()) as workers, LocalShrinker(workers, 60) as shrinker:
        small = shrinker.smaller(finding)
    assert [step.op for step in small.program.steps] == ["ones.new", "narrow", "zero_"]


def test_a_finding_without_mismatches() -> None:
    """A finding with nothing that a smaller program could show stays as it is. Regression test: its shrinking ended
    with an IndexError."""
    zeroed = Step("zero_", (tensor("a"),))
    program = Program((Storage("float32", 6),), (Input("a", 0, "float32", (6,), (1,)),), (zeroed,))
    finding = FailingProgram("value / zero_", FAIL, 0, program=program, bad_step=1)
    with Workers("cpu", Limits()) as workers, LocalShrinker(workers, 60) as shrinker:
        assert shrinker.smaller(finding) is finding


def test_a_finding_whose_smaller_programs_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After too many deaths of workers, a finding has the smallest program that failed until then. Regression test: it
    had its first program again, and twelve steps in place of one."""
    (tmp_path / "deadly_targets.py").write_text(
        textwrap.dedent("""
        import os
        from conformance.selftest.faults import Fault
        from conformance.selftest.mutants import MutantTarget, Planted

        class Deadly(MutantTarget):
            def __init__(self, argument=""):
                super().__init__("zero_ clears the storage")
                self.mode = Planted(Fault("zero_", self.act, "test"))

            def act(self, call):
                return call.first if call.first.numel() >= 4 else os.abort()
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(shrink_progress, "MOST_DEATHS", 2)
    steps = (*(Step("neg", (tensor("a"),), out=(out,)) for out in "bcd"), Step("zero_", (tensor("a"),)))
    program = Program((Storage("float32", 4, [1, 2, 3, 4]),), (Input("a", 0, "float32", (4,), (1,)),), steps)
    spec = "class:deadly_targets.Deadly"
    verdict = judge_program(program, load_target(spec))
    finding = FailingProgram(
        "value / zero_", FAIL, 0, program=program, mismatches=verdict.mismatches, bad_step=verdict.bad_step
    )
    with Workers(spec, Limits()) as workers, LocalShrinker(workers, 60) as shrinker:
        small = shrinker.smaller(finding)
    assert [step.op for step in small.program.steps] == ["zero_"] and small.mismatches


def test_a_finding_whose_smaller_programs_compile_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling a smaller program has a limit of its own, and after too many time-outs no further one is tried.
    Regression test: each could take the worker's whole limit, 300 s for a compiler."""
    (tmp_path / "stuck_compiler.py").write_text(
        textwrap.dedent("""
        import pathlib, time
        from torch._dynamo import register_backend
        from conformance.run import shrink_program, shrink_progress

        TICKS = pathlib.Path(__file__).with_name("ticks")
        shrink_program.LONGEST_COMPILING, shrink_progress.MOST_DEATHS = 0.5, 2

        @register_backend
        def stuck(graph, inputs):
            if inputs[0].numel() < 4:
                for _ in range(100):
                    time.sleep(0.1)
                    with TICKS.open("a") as file:
                        file.write(".")
            return lambda *arguments: [result + 1 for result in graph(*arguments)]
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    steps = (Step("neg", (tensor("a"),), out=("b",)), Step("abs", (tensor("b"),), out=("c",)))
    program = Program((Storage("float32", 4, [1, 2, 3, 4]),), (Input("a", 0, "float32", (4,), (1,)),), steps)
    spec = "compile:stuck,import=stuck_compiler"
    wrong = (Mismatch("value", "c", "1.0", "2.0"),)
    finding = FailingProgram("value / abs", FAIL, 0, program=program, mismatches=wrong)
    with Workers(spec, Limits(compiling=1000)) as workers, LocalShrinker(workers, 60) as shrinker:
        small = shrinker.smaller(finding)
    assert len(small.program.steps) == 1 and small.mismatches
    ticks = len((tmp_path / "ticks").read_text())
    assert 1 <= ticks <= 50, ticks  # two trials of 0.5 s, on a busy machine of 2 s; each had 100 before


def without_seconds(saved: str) -> dict[str, Any]:
    """A saved finding without the time after which it was found."""
    data: dict[str, Any] = json.loads(saved)
    assert data.pop("seconds") >= 0
    return data


class TestThreads:
    def test_same_findings(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With two jobs, both programs are shrunk at the same time. They are of one cause, as with one job."""
        monkeypatch.setattr("conformance.run.campaign.campaign.uuid.uuid4", lambda: type("", (), {"hex": "0" * 12}))
        both, smaller = threading.Barrier(2, timeout=stretched(60)), LocalShrinker.smaller

        def together(self: LocalShrinker, finding: FailingProgram, until: float) -> FailingProgram:
            both.wait()  # raises if the other one does not begin
            return smaller(self, finding, until)

        one = campaign(tmp_path / "one", 1)
        monkeypatch.setattr(LocalShrinker, "smaller", together)
        two = campaign(tmp_path / "two", 2)
        (saved,) = two.values()
        assert (json.loads(saved)["shrunk"], json.loads(saved)["numbers"]) == (True, [-2, -1])
        same = {name: text.replace("/two/", "/one/").replace("-n 2", "-n 1") for name, text in two.items()}
        assert {name: without_seconds(text) for name, text in same.items()} == {
            name: without_seconds(text) for name, text in one.items()
        }

    def test_no_thread_waits_for_a_long_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """While one finding takes long, the other threads shrink all others. Regression test: they shrunk three others,
        and then waited; on a compiler, one finding took twelve minutes."""
        others = threading.Semaphore(0)

        def smaller(self: LocalShrinker, finding: FailingProgram, until: float) -> FailingProgram:
            if finding.number == 0:
                for _ in range(9):
                    assert others.acquire(timeout=stretched(20)), "another finding did not begin"
            others.release()
            return replace(finding, cut=True)

        monkeypatch.setattr(LocalShrinker, "smaller", smaller)
        monkeypatch.setattr(LocalShrinker, "confirm", lambda self, finding, small, until: small)
        running = Campaign(Plan(DrawnPrograms(), "cpu", reports=tmp_path, programs=0, jobs=2))
        for number in range(10):
            wrong = (Mismatch("value", "b", "1", "2"),)
            running.findings.add(FailingProgram(f"value / op {number}", FAIL, number, "value", f"op {number}",
                                                program=ONE, mismatches=wrong))  # fmt: skip
        running._run_and_shrink()
        assert [finding.shrunk for finding in running.findings] == [True] * 10
        assert not any(finding.elsewhere.get("shrinking") for finding in running.findings)

    def test_the_end_of_a_campaign_ends_shrinking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the campaign ends, the threads stop while their workers are busy, and later findings do not begin."""
        begun: list[int] = []

        def forever(self: LocalShrinker, finding: FailingProgram, until: float) -> FailingProgram:
            begun.append(finding.number)
            self.workers.ask(time.sleep, 600)
            return finding

        monkeypatch.setattr(LocalShrinker, "smaller", forever)
        with Workers("cpu", Limits()) as workers, ThreadShrinker(workers, 2, 200) as threads:
            futures = [threads.begin(finding) for finding in FINDINGS]
            assert threads.running == 3
            while len(begun) < 2:
                time.sleep(0.01)
        assert [type(future.exception()) for future in futures[:2]] == [Stopped, Stopped]
        assert futures[2].cancelled()
        assert sorted(begun) == [0, 1]

    def test_a_finding_begins_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A finding that was begun ahead of its turn is not shrunk again, and an error of the harness is raised."""
        begun: list[int] = []

        def odd(self: LocalShrinker, finding: FailingProgram, until: float) -> FailingProgram:
            begun.append(finding.number)
            raise RuntimeError("odd")

        monkeypatch.setattr(LocalShrinker, "smaller", odd)
        with Workers("cpu", Limits()) as workers, ThreadShrinker(workers, 1, 200) as threads:
            threads.begin(FINDINGS[0])
            for _ in range(2):
                with pytest.raises(RuntimeError, match="odd"):
                    threads.shrink(FINDINGS[0], 0.0)
            assert begun == [0]
            with pytest.raises(RuntimeError, match="odd"):
                threads.shrink(replace(FINDINGS[0], part=1), 0.0)  # another part of the same program
        assert begun == [0, 0]
