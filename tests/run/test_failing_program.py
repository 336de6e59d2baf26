"""A finding with its program: what follows from the program, how findings are joined, and its form in files."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.record import simple_values
from conformance.record.finding import CRASH, DRAWING, FAIL, ON_CPU, TIMEOUT, Finding
from conformance.run.failing_program import MOST_OTHERS, FailingProgram, ended
from conformance.standalone.oracles import Mismatch

WRONG = Mismatch("value", "c", "1.0", "7.0")
COPIED = Mismatch("alias", "b", "a", "b")
VIEW, WRITE = Step("t", (tensor("a"),), out=("b",)), Step("fill_", (tensor("b"), 7))


def program(*steps: Step) -> Program:
    return Program((Storage("float32", 4),), (Input("a", 0, "float32", (2, 2), (2, 1)),), steps)


def failing(number: int = 0, signature: str = "value / fill_", *steps: Step, **more: object) -> FailingProgram:
    known = {"mismatches": (WRONG,), "bad_step": 2, "property": "value", "op": "fill_", **more}
    return FailingProgram(signature, FAIL, number, program=program(*(steps or (VIEW, WRITE))), **known)  # type: ignore[arg-type]


class TestDerived:
    """What a report shows of the program follows from it, also after the program is shrunk."""

    def test_of_the_program(self) -> None:
        finding = failing(3)
        assert (finding.steps, finding.first_wrong_step) == (2, "fill_")
        small = replace(finding, program=program(VIEW), bad_step=1)
        assert (small.steps, small.first_wrong_step) == (1, "t")
        assert replace(finding, bad_step=3).first_wrong_step == "", "the observation is no step"

    def test_of_the_numbers(self) -> None:
        assert (failing(3).numbers, failing(3).count, failing(3).masked) == ({3}, 1, 0)
        finding = failing(3, numbers=frozenset({-1, 3, 7}), masking=frozenset({7}))
        assert (finding.count, finding.masked) == (3, 1)

    @pytest.mark.parametrize(
        ("wrong", "mismatch", "shrunk", "pattern"),
        [
            ("value", WRONG, False, "not shrunk: value"),
            ("value", WRONG, True, "value of fill"),
            ("aliasing", COPIED, False, "results are copies instead of views"),
        ],
    )
    def test_the_pattern_needs_a_known_cause(self, wrong: str, mismatch: Mismatch, shrunk: bool, pattern: str) -> None:
        """A wrong value may come from an earlier step until the program is shrunk; a lost alias may not."""
        finding = failing(mismatches=(mismatch,), property=wrong, shrunk=shrunk)
        assert finding.pattern == pattern
        assert not finding.pattern_if_shrunk.startswith("not shrunk")

    def test_a_death_on_a_smaller_program(self) -> None:
        """It is named by the step that ends the process there."""
        death = replace(ended(CRASH, 0, 5, program(VIEW, WRITE), 2), said="was killed")
        small = death.died_on(program(VIEW))
        assert (small.title(), small.signature, small.said, small.bad_step) == (
            "crash / t",
            "crash / t",
            "was killed",
            1,
        )

    @pytest.mark.parametrize(("op", "blamed"), [(DRAWING, "torch CPU"), (ON_CPU, "torch CPU"), ("t", "the device")])
    def test_who_ended_the_process(self, op: str, blamed: str) -> None:
        """Only torch CPU computes while a program is drawn. Regression test: a hang there named the device."""
        finding = FailingProgram(f"timeout / {op}", TIMEOUT, 1, op=op, said="gave no answer in 3 s")
        assert finding.death() == f"TIMEOUT at {op}: {blamed} gave no answer in 3 s"


class TestJoined:
    def test_the_lowest_number_stays(self) -> None:
        """Two programs of one signature give one finding, in whatever order they come."""
        low, high = (failing(number, masking=frozenset({number})) for number in (1, 8))
        assert low.also_in(high) == high.also_in(low)
        assert (low.also_in(high).number, low.also_in(high).numbers, low.also_in(high).masking) == (1, {1, 8}, {1, 8})

    def test_a_shrunk_program_stays(self) -> None:
        shrunk = failing(8, shrunk=True)
        assert shrunk.also_in(failing(1)) == replace(shrunk, numbers=frozenset({1, 8}))

    def test_programs_with_one_error_are_kept(self) -> None:
        """Their causes are open until one is shrunk. Those with the lowest numbers are kept, whatever comes first."""
        numbers = [*range(MOST_OTHERS + 3)]
        for order in (numbers, numbers[::-1]):
            first, *more = (
                failing(number, "error / text", property="error", masking=frozenset({number})) for number in order
            )
            for other in more:
                first = first.also_in(other)
            assert (first.number, [other.number for other in first.others]) == (0, numbers[1 : MOST_OTHERS + 1])
            assert all(other.numbers == other.masking == {other.number} for other in first.others)
            assert not any(other.others for other in first.others)

    def test_of_one_cause(self) -> None:
        """The smaller program stays, and the signatures of both."""
        long, short = failing(1, "value / add_", shrunk=True), failing(4, "value / t", VIEW, shrunk=True)
        for joined in (long.joined(short), short.joined(long)):
            assert (joined.number, joined.numbers, joined.signatures) == (4, {1, 4}, ("value / add_",))
        unshrunk = replace(short, shrunk=False)
        assert unshrunk.joined(long).number == 1, "a shrunk program comes before a shorter one"

    def test_the_first_time_stays(self) -> None:
        """A finding was found when its first program was, whichever program it keeps."""
        early, late, unknown = (failing(number, seconds=seconds) for number, seconds in ((8, 1.5), (1, 9.0), (4, None)))
        assert early.also_in(late).seconds == late.also_in(early).seconds == unknown.joined(early).seconds == 1.5
        assert unknown.joined(unknown).seconds is None


class TestFiles:
    def test_read_again(self) -> None:
        """The file of a campaign keeps all that `--resume` needs."""
        first = failing(
            1, "error / text", property="error", masking=frozenset({1}), needed=frozenset({"t"}), seconds=2.5
        )
        finding = replace(first.also_in(failing(2, "error / text", property="error")), elsewhere={"cpu": "agrees"})
        assert finding.others
        again = FailingProgram.from_json(json.loads(json.dumps(finding.to_json())))
        assert (again, again.seconds) == (finding, 2.5)

    def test_a_result_file_keeps_no_program(self) -> None:
        """It holds the fields of `Finding`, those that follow from the program included."""
        finding = failing(3, shrunk=True, signatures=("value / add_",), numbers=frozenset({3, 9}))
        read = simple_values.load(Finding, json.loads(json.dumps(simple_values.dump(finding))))
        assert read == Finding(**{field.name: getattr(finding, field.name) for field in fields(Finding)})
        assert (read.title(), read.count, read.steps, read.pattern) == ("value / fill_", 2, 2, "value of fill")
