"""The one judge: a sample of op_db and the program that it becomes are judged on the same terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.engine.executor import Execution, Executor
from conformance.engine.judge import Judged, judge
from conformance.engine.loading import reference
from conformance.engine.target import Target
from conformance.program.execute import ProgramSubject
from conformance.program.float64 import JudgedProgram
from conformance.program.model import Input, Program, ProgramError, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.sources.opinfo import catalog
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import written
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import trials_of
from conformance.standalone.observation import Observation, Seen
from conformance.standalone.oracles import Mismatch


def subjects(op: str, variant: str) -> tuple[JudgedProgram, JudgedProgram]:
    """The first sample of the op with several dimensions, as a program of given inputs and as one that is data."""
    info = catalog.by_name()[op, ""]
    case = Case(op, "", catalog.family(info), "float32", variant, "as_sampled")
    drawn = samples(info, variant, torch.float32, "as_sampled", None)
    sample = next(one for one in drawn if one.input.dim() > 1 and one.input.numel())
    trial = next(trials_of(case, sample, reference()))
    return JudgedProgram(trial.program), JudgedProgram(written(trial)[0])


def judged(subject: Judged, name: str, changed: Any, target: Target | None = None) -> list[Mismatch]:
    """The mismatches if the target's answer has other facts of this tensor, and else equals torch CPU's."""
    run = Executor(reference()).run(subject)
    seen = run.last.tensors
    other = replace(run.last, tensors={**seen, name: replace(seen[name], **changed(seen[name]))})
    target = target or reference()
    return judge(subject, run, Execution((other,)), target, target.facts.oracles).mismatches


def flipped(seen: Seen) -> dict[str, torch.Tensor]:
    return {"value": seen.value.flip(*range(seen.value.dim()))}


class TestSpecialValues:
    def test_order_of_equal_elements(self) -> None:
        """Any index of equal elements is right, in the sample and in its program; other indices are not."""
        given, program = subjects("sort", "specials_equal")
        pairs: tuple[tuple[Judged, str], ...] = (given, "result[1]"), (program, "result_1")
        for subject, name in pairs:
            assert judged(subject, name, flipped) == [], subject
            wrong = judged(subject, name, lambda seen: {"value": seen.value + 100})
            assert [one.oracle for one in wrong] == ["value"]

    def test_without_the_rule(self) -> None:
        """The rule is a fact of the program: without it, another order is a difference."""
        _, subject = subjects("sort", "specials_equal")
        bare = JudgedProgram(replace(subject.program, rules=()))
        assert [mismatch.oracle for mismatch in judged(bare, "result_1", flipped)] == ["value"]

    def test_signed_zeros(self) -> None:
        """The sign of a zero is part of the answer, if the op declares no other, in the sample and in its program."""
        for subject in subjects("neg", "specials_zeros"):
            mismatches = judged(
                subject, "result", lambda seen: {"value": seen.value.where(seen.value != 0, -seen.value)}
            )
            assert ["zeros have the other sign" in mismatch.detail for mismatch in mismatches] == [True]


class TestDevice:
    def test_result_on_the_cpu(self) -> None:
        """A result on the CPU is a difference on a device, also in a program."""
        device = type("Device", (Target,), {"name": "device", "device": torch.device("meta")})()
        for subject in subjects("neg", "forward"):
            mismatches = judged(subject, "result", lambda seen: {"device": "cpu"}, device)
            assert [(mismatch.oracle, mismatch.where) for mismatch in mismatches] == [("device", "result")]

    def test_on_the_device(self) -> None:
        device = type("Device", (Target,), {"name": "device", "device": torch.device("meta")})()
        for subject in subjects("neg", "forward"):
            assert judged(subject, "result", lambda seen: {"device": "meta"}, device) == []


class TestLayout:
    """Layouts in which PyTorch's own meta functions differ from torch CPU."""

    CONVOLUTION = Program(
        (Storage("float32", 12, "arange"),),
        (Input("a", 0, "float32", (2, 3, 2), (6, 1, 3)),),
        (Step("nn.functional.conv1d", (tensor("a"), tensor("a"), None, 1, 1), out=("b",)),),
    )
    DEVICE = type("Device", (Target,), {"name": "device", "device": torch.device("xpu")})()

    def differing(self, strides: tuple[int, ...], contiguity: str, target: Target = DEVICE) -> list[str]:
        def changed(seen: Seen) -> dict[str, Any]:
            facts = {"stride": strides, "contiguity": contiguity}
            return {"device": target.device.type, "metadata": {**seen.metadata, **facts}}

        return [one.oracle for one in judged(JudgedProgram(self.CONVOLUTION), "b", changed, target)]

    def test_the_meta_function_s(self) -> None:
        """A device may have the layout that torch.compile expects of it, where the library of torch CPU has another."""
        assert self.differing((6, 3, 1), "contiguous") == []

    def test_memory_of_a_resized_out(self) -> None:
        """An out= that the meta function resizes to other strides may hold its values in this order, and no others."""
        program = Program(
            (Storage("float32", 4, "arange"), Storage("float32", 1)),
            (Input("a", 0, "float32", (2, 2), (1, 2)), Input("b", 1, "float32", (), ())),
            (Step("op_db.out:log1p", (tensor("a"),), {"out": tensor("b")}),),
        )
        subject = JudgedProgram(program)
        run = Executor(reference()).run(subject)
        seen, device = run.last.tensors["b"], self.DEVICE
        assert seen.metadata["stride"] == (1, 2)

        def mismatches_of(memory: torch.Tensor) -> list[str]:
            facts = {**seen.metadata, "stride": (2, 1), "contiguity": "contiguous"}
            dense = replace(seen, metadata=facts, value=memory.view(2, 2), device=device.device.type)
            other = replace(
                run.last, tensors={**run.last.tensors, "b": dense}, storages={**run.last.storages, "b": memory}
            )
            judgement = judge(subject, run, Execution((other,)), device, device.facts.oracles)
            return [one.oracle for one in judgement.mismatches if one.oracle != "device"]

        values = seen.value.contiguous().flatten()
        assert mismatches_of(values) == []
        assert mismatches_of(values.flip(0)) == ["value"]

    def test_another(self) -> None:
        """A layout that neither has is a difference."""
        assert self.differing((1, 2, 6), "strided") == ["stride"]

    def test_on_the_cpu(self) -> None:
        """What runs on torch CPU has its layout."""
        assert self.differing((6, 3, 1), "contiguous", reference()) == ["stride", "contiguity"]


class TestTolerance:
    GRANTED = Program(
        (Storage("float32", 2, [1.0, 1.0]),),
        (Input("a", 0, "float32", (2,), (1,)),),
        (Step("cos", (tensor("a"),), out=("b",)),),
        tolerance={"float32": (0.1, 0.0)},
    )

    @pytest.mark.parametrize(("off", "oracles"), [(1.05, []), (1.2, ["value"])])
    def test_granted(self, off: float, oracles: list[str]) -> None:
        mismatches = judged(JudgedProgram(self.GRANTED), "b", lambda seen: {"value": seen.value * off})
        assert [mismatch.oracle for mismatch in mismatches] == oracles

    def test_script(self) -> None:
        """The comparison of the program's script has the tolerance too."""
        text = script(self.GRANTED, reference(), [Mismatch("value", "b", "[1.0]", "[2.0]")])
        assert "tolerance={'float32': (0.1, 0.0)}" in text


def test_terms_are_saved() -> None:
    """A saved program keeps its terms, and an unknown rule is refused."""
    _, subject = subjects("sort", "specials_equal")
    program = subject.program
    assert program.rules and Program.from_json(program.to_json()) == program
    with pytest.raises(ProgramError, match="unknown rule 'guess'"):
        Program.from_json({**program.to_json(), "rules": ["guess"]})


def test_errors_come_first() -> None:
    """An error precedes the differences that it leads to, whichever kind of subject raised."""
    _, subject = subjects("neg", "forward")
    run = Executor(reference()).run(ProgramSubject(subject.program))
    unwritten = replace(run.last.tensors["a"], requires_grad=True)
    error = Executor(reference()).run(ProgramSubject(replace(subject.program, steps=(BROKEN,)))).last.error
    actual = Execution((Observation({"a": unwritten}, error=error),))
    mismatches = judge(subject, run, actual, reference(), reference().facts.oracles).mismatches
    assert mismatches[0].oracle == "error" and len(mismatches) > 1


BROKEN = Step("view", (tensor("a"), [7, 7, 7]), out=("b",))
