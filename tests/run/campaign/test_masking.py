"""A known fault hides no other: programs are judged further behind a difference, and what is not judged is counted."""

from __future__ import annotations

import html
import itertools
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from conformance.declare.declaration import read
from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.record import result as model
from conformance.record.causes import causes_of
from conformance.report.summary import masked
from conformance.run.campaign.plan import Plan, Shard
from conformance.run.campaign.tasks import run_shard
from conformance.run.failing_program import FailingProgram
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawn import DrawnPrograms
from tests.planted.pairs import Pair

FAULTS = (
    "slice drops the offset",
    "transpose is stale",
    "select is stale",
    "view is stale",
    "expand is stale",
    "diagonal is stale",
    "split does not alias",
    "detach does not alias",
    "empty_strided is contiguous",
    "copy_ clobbers the gap",
    "index_put_ does not accumulate",
    "every third write is lost",
    "arithmetic on gaps is lost",
    "fill_ ignores the offset",
    "out= ignores strides",
    "mask is off by one",
    "alpha is ignored",
    "clone is always contiguous",
    "comparison gives uint8",
    "item ignores the offset",
)
"""Twenty faults that are found soon when they are alone. None is planted in operators that another one calls."""

QUICK = (
    ("diagonal is stale", "every third write is lost"),
    ("slice drops the offset", "clone is always contiguous"),
    ("view is stale", "comparison gives uint8"),
    ("split does not alias", "mask is off by one"),
)
MOST = 1000
"""Drawn programs of a pair."""


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def beginning(finding: FailingProgram) -> Program:
    """The finding's program up to its first wrong step."""
    return finding.program.with_steps(finding.program.steps[: finding.bad_step])


def found_alone(findings: list[FailingProgram], fault: str, other: str) -> bool:
    """Whether a finding shows this fault and not the other: its steps up to the first wrong one fail on the one fault
    alone, and pass on the other alone."""
    mine, theirs = load_target(f"mutant:{fault}"), load_target(f"mutant:{other}")
    programs = [beginning(finding) for finding in findings if finding.bad_step]
    return any(judge_program(p, mine).mismatches and not judge_program(p, theirs).mismatches for p in programs)


def hunted(one: str, other: str, folder: Path, monkeypatch) -> tuple[bool, bool]:
    """Whether a campaign on both faults finds each."""
    pair = Pair(one, other)
    pair.prepare()
    monkeypatch.setattr("conformance.run.campaign.tasks.loaded", lambda spec: pair)
    plan = Plan(DrawnPrograms(), f"mutant:{one}", programs=MOST, reports=folder)
    seen = [False, False]
    for shard in plan.shards("pairs"):
        findings = run_shard(shard).findings
        for at, (fault, hidden) in enumerate(((one, other), (other, one))):
            seen[at] = seen[at] or found_alone(findings, fault, hidden)
        if all(seen):
            break
    return seen[0], seen[1]


class TestPairs:
    @pytest.mark.parametrize(("one", "other"), QUICK)
    def test_each_of_two_faults_is_found(self, one, other, tmp_path, monkeypatch):
        assert hunted(one, other, tmp_path, monkeypatch) == (True, True)

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("one", FAULTS)
    def test_every_other_of_twenty_faults_is_found_behind_one(self, one, tmp_path, monkeypatch):
        hidden = [
            other
            for other in FAULTS[FAULTS.index(one) + 1 :]
            if hunted(one, other, tmp_path, monkeypatch) != (True, True)
        ]
        assert hidden == []


class TestParts:
    """A program with several faults has several findings, each of a part of it."""

    def test_a_program_gives_a_finding_for_each_fault(self, tmp_path, monkeypatch):
        pair = Pair("view is stale", "comparison gives uint8")
        pair.prepare()
        monkeypatch.setattr("conformance.run.campaign.tasks.loaded", lambda spec: pair)
        plan = Plan(DrawnPrograms(), "mutant:view is stale", programs=200, reports=tmp_path)
        findings = [
            finding for shard in itertools.islice(plan.shards("parts"), 10) for finding in run_shard(shard).findings
        ]
        parts = {}
        for finding in findings:
            parts.setdefault(finding.number, []).append(finding.part)
        assert any(len(numbers) > 1 for numbers in parts.values())
        assert all(numbers == list(range(len(numbers))) for numbers in parts.values())

    def test_each_finding_is_on_disk_under_its_part(self, tmp_path, monkeypatch):
        pair = Pair("view is stale", "every third write is lost")
        pair.prepare()
        monkeypatch.setattr("conformance.run.campaign.tasks.loaded", lambda spec: pair)
        shard = Shard(Plan(DrawnPrograms(), "mutant:view is stale", reports=tmp_path), 0, 20, "named")
        findings = run_shard(shard).findings
        assert {shard.path_of(finding.number, finding.part) for finding in findings} == {
            *(tmp_path / "failures").glob("found-*")
        }


LIAR = "class:tests.planted.liars.ValueDevice"
"""torch CPU whose `neg` and `mul` are off by one: of the two, a finding names the plainer `neg`."""

MASKED = Program(
    (Storage("float32", 6),),
    (Input("a", 0, "float32", (6,), (1,), requires_grad=True),),
    (Step("mul", (tensor("a"), 2), out=("b",)), Step("sin", (tensor("b"),), out=("c",))),
)
"""A program whose second step needs the wrong result of the first, which no input can stand for: it has a graph."""

JUDGED = Program(MASKED.storages, (Input("a", 0, "float32", (6,), (1,)),), MASKED.steps)
"""The same without a graph: the campaign judges the second step on torch CPU's result."""

RIGHT = JUDGED.with_steps((Step("abs", (tensor("a"),), out=("b",)),))


class TestWarning:
    """A run prints how many programs have steps that known findings mask, and above 10 % it warns."""

    @pytest.fixture
    def lines(self, tmp_path, capsys):
        def lines(*programs: Program, declare: bool = True) -> list[str]:
            """The lines of a campaign on these saved programs about masked steps."""
            corpus = tmp_path / "corpus"
            corpus.mkdir()
            for number, program in enumerate(programs):
                (corpus / f"{number:02}.json").write_text(dump(program))
            words = ["--target", LIAR, "--programs", "0", "--corpus", str(corpus), "--reports", str(tmp_path)]
            declaring = ["--expectations", str(tmp_path / "known.toml"), "--update-expectations"]
            assert main([*words, "--check-scripts", "0", *(declaring if declare else [])]) == (0 if declare else 1)
            run = model.load(tmp_path / "fuzz.json")
            said = [line for line in capsys.readouterr().out.splitlines() if "mask" in line]
            page = html.unescape((tmp_path / "fuzz.html").read_text())
            assert all(line in page for line in said)
            assert said == masked(run)
            return said

        return lines

    def test_more_than_a_tenth(self, lines, tmp_path):
        """The line names the masking finding, and the file and line of its declaration."""
        [line] = lines(MASKED, MASKED, *[RIGHT] * 8)
        where = f"{tmp_path / 'known.toml'}, line {self.declared(tmp_path)}"
        assert line == (
            f"warning: 2 programs (20%) have steps that known findings mask: value / neg (2, declared in {where}); "
            "new faults in these steps stay unseen, so mend or narrow the declared ones"
        )

    def declared(self, folder: Path) -> int:
        """The line of the only declaration."""
        (line,) = [at for at, line in enumerate((folder / "known.toml").read_text().splitlines(), 1) if line[:1] == "["]
        return line

    def test_a_tenth(self, lines):
        [line] = lines(MASKED, JUDGED, *[RIGHT] * 8)
        assert line.startswith("1 program (10%) has steps that known findings mask: value / neg (1, declared in")

    def test_steps_judged_behind_a_difference_are_not_masked(self, lines):
        assert lines(JUDGED, JUDGED) == []

    def test_only_a_declared_finding_masks(self, lines):
        """An undeclared finding fails the run: there is no green run that hides anything."""
        assert lines(MASKED, MASKED, declare=False) == []


CRASHING = "class:tests.planted.planted.PlantedTarget"
"""torch CPU whose `atan` ends the process, and whose `add` is off by one."""


class TestCrash:
    def test_a_crash_hides_no_wrong_value_behind_it(self, tmp_path):
        """The worker that runs the program after the crash begins behind the step that crashed."""
        (tmp_path / "corpus").mkdir()
        steps = (Step("atan", (tensor("a"),), out=("b",)), Step("add", (tensor("b"), 1), out=("c",)))
        (tmp_path / "corpus" / "one.json").write_text(dump(JUDGED.with_steps(steps)))
        words = ["--target", CRASHING, "--programs", "0", "--corpus", str(tmp_path / "corpus"), "--check-scripts", "0"]
        assert main([*words, "--reports", str(tmp_path)]) == 1
        run = model.load(tmp_path / "fuzz.json")
        assert [(result.finding.title(), result.finding.masked) for result in run.findings] == [
            ("crash / atan", 0),
            ("value / add", 0),
        ]
        assert run.drawn.programs == run.drawn.failing == 1


PLANTED = Path(__file__).parents[2] / "planted"
COMPILER = ("compile:toy,import=toy_compiler", "--seed", "1", "--programs", "12", "--steps", "2..6")
DEVICE = ("device:toy,import=toy_device", "--seed", "2", "--programs", "30",
          "--only", "fusion", "--only", "copy", "--only", "layers")  # fmt: skip
"""Seeds with a program that shows the second fault behind the first one only."""


class TestDeclaredFault:
    """The author of a backend declares one bug and plants another: the run is red, and shows that bug alone."""

    @pytest.fixture
    def fuzz(self, tmp_path):
        def fuzz(faults: str, target: str, *words: str) -> tuple[int, model.Run, str]:
            """Exit code, result and output of a campaign on a toy backend with these faults."""
            folders = [str(PLANTED), os.environ.get("PYTHONPATH", "")]
            environment = {**os.environ, "TOY_FAULTS": faults, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
            command = [sys.executable, "-m", "conformance.fuzz", "--target", target, "--without", "op_db"]
            command += ["--check-scripts", "0", "--expectations", str(tmp_path / "known.toml"), *words]
            done = subprocess.run(
                [*command, "--reports", str(tmp_path)],
                capture_output=True, text=True, check=False, env=environment, cwd=PLANTED.parent.parent,
            )  # fmt: skip
            return done.returncode, model.load(tmp_path / "fuzz.json"), done.stdout

        return fuzz

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_a_compiler_whose_views_are_copies_loses_a_write(self, fuzz, tmp_path):
        """With 42 declared findings of the copies, the lost `add_` was not seen: exit code 0."""
        code, run, _ = fuzz("copies", *COMPILER, "--update-expectations")
        assert (code, run.failing_programs) == (0, 0)
        known = read(tmp_path / "known.toml")
        assert [entry.scope.pattern for entry in known] == [("results are copies instead of views",)]
        code, run, said = fuzz("copies,lost_add_", *COMPILER)
        assert code == 1
        assert [cause.pattern for cause in causes_of(run.unexpected)] == ["value of add"]
        assert " known findings in " in said

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_a_device_without_convolutions_loses_a_copy(self, fuzz):
        """A missing operator is the declared one: the program of the lost copy calls it first."""
        code, run, _ = fuzz("", *DEVICE, "--update-expectations")
        assert (code, run.failing_programs) == (0, 0)
        code, run, said = fuzz("lost_copy_", *DEVICE)
        assert code == 1
        # a lost copy also accepts a copy that torch refuses
        patterns = {cause.pattern for cause in causes_of(run.unexpected)}
        assert patterns == {"value of copy", "accepts what torch refuses with RuntimeError"}
        assert re.search(r"1 known finding in [1-9]\d* programs", said)
