"""Failures that disappear when each step is observed: the campaign finds them and locates the first bad step."""

from __future__ import annotations

import json
import textwrap

import pytest

from conformance.engine.executor import Executor
from conformance.engine.loading import load_target
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.execute import ProgramSubject
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import signature
from conformance.sources.fuzzing.command import main
from tests.run.campaign.saved import fuzz_result

PROGRAM = Program(
    (Storage("float32", 6),),
    (Input("a", 0, "float32", (2, 3), (3, 1)),),
    (
        Step("t", (tensor("a"),), out=("b",)),
        Step("fill_", (tensor("a"), 7)),
        Step("select", (tensor("b"), 0, 1), out=("c",)),
        Step("add_", (tensor("b"), 1)),
        Step("mul_", (tensor("c"), 2)),
        Step("sum.dim", (tensor("a"), 0, False), out=("d",)),
    ),
)


@pytest.fixture
def forgetful(tmp_path, monkeypatch) -> str:
    """Spec of a faulty lazy device: of several pending writes it keeps only the first, so observation after each step
    hides the fault."""
    (tmp_path / "forgetful.py").write_text(
        textwrap.dedent("""
        from conformance.selftest.faults import Fault
        from conformance.selftest.mutants import MutantTarget, Planted

        class Forgetful(MutantTarget):
            def __init__(self, argument=""):
                super().__init__("zero_ clears the storage")
                self.spec, self.waiting = "class:forgetful.Forgetful", 0
                ops = "fill_ add_ mul_ sub_ zero_ copy_ empty empty_strided empty_like new_empty new_empty_strided"
                self.mode = Planted(Fault(ops, self.act, "long chains cut wrongly"))

            def act(self, call):
                if "empty" in str(call.func):  # what is never written is the same in each run
                    return call.run().zero_()
                self.waiting += 1
                return call.run() if self.waiting == 1 else call.args[0]

            def fetch(self, tree):
                self.waiting = 0
                return super().fetch(tree)

            def send(self, tree):
                self.waiting = 0
                return super().send(tree)
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "class:forgetful.Forgetful"


def seen_eagerly(target: Target) -> list[list[float]]:
    return Executor(target).run(ProgramSubject(PROGRAM), stepwise=True).observations[-1].tensors["a"].value.tolist()


def test_the_first_bad_step_is_named(forgetful):
    """Step 4 is the second write. Each write is correct alone, and the two are wrong together."""
    target = load_target(forgetful)
    assert seen_eagerly(target) == seen_eagerly(load_target("cpu"))
    verdict = judge_program(PROGRAM, target)
    assert verdict.mismatches[0].oracle == "value"
    assert (verdict.bad_step, verdict.lazy_only) == (4, True)
    assert str(signature(PROGRAM, verdict)) == "value / only together, up to arithmetic"


def test_a_campaign_names_it(forgetful, tmp_path):
    """The finding shrinks to two writes, and its file contains the first bad step."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "two_writes.json").write_text(dump(PROGRAM))
    words = ["--target", forgetful, "--programs", "0", "--corpus", str(tmp_path / "corpus")]
    assert main([*words, "--check-scripts", "0", "--reports", str(tmp_path)]) == 1
    [saved] = [json.loads(path.read_text()) for path in (tmp_path / "failures").glob("*.json")]
    assert saved["kind"] == "FAIL"
    assert [step["op"] for step in saved["program"]["steps"]] == ["add_", "add_"]
    assert saved["bad_step"] == 2
    assert saved["signature"] == "value / only together, up to arithmetic"
    [reported] = fuzz_result(tmp_path)["findings"]
    assert reported["signature"] == saved["signature"]


def test_drawn_programs_find_it(forgetful, tmp_path):
    """25 drawn programs find the fault without a hint."""
    words = ["--target", forgetful, "--programs", "25", "--without", "op_db", "--check-scripts", "0"]
    assert main([*words, "--reports", str(tmp_path)]) == 1
    saved = [json.loads(path.read_text()) for path in (tmp_path / "failures").glob("*.json")]
    assert any("only together" in finding["signature"] and finding["bad_step"] for finding in saved)
    assert not any("only together" in finding["signature"] and not finding["bad_step"] for finding in saved)
