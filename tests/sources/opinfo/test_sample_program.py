"""Samples of op_db as programs: every variant and layout, the exact geometry, and the calls that cannot be written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.engine.loading import reference as torch_cpu
from conformance.program.calls import judge_program
from conformance.program.capture import Unwritable
from conformance.program.execute import make_inputs
from conformance.program.model import Program, ProgramError
from conformance.program.shadow import reference
from conformance.program.steps.op import tensor
from conformance.program.trial import CpuAnswer
from conformance.record.names import LAYOUTS, SPECIALS, SPECIALS_BACKWARD
from conformance.sources.opinfo import catalog
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import written
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import SampleTrial, trials_of
from conformance.standalone.moving import tensors


def trials(name: str, variant: str = "forward", layout: str = "as_sampled", dtype: str = "float32", count: int = 2
           ) -> list[SampleTrial]:  # fmt: skip
    """The trials of an entry's first samples."""
    op, _, overload = name.partition("/")
    case = Case(op, overload, "", dtype, variant, layout)
    drawn = samples(catalog.find(case), variant, getattr(torch, dtype), layout, count)
    return [trial for sample in drawn for trial in trials_of(case, sample, torch_cpu())]


def on(trial: SampleTrial, **trees: Any) -> SampleTrial:
    """The trial of the same call on other argument trees."""
    given = tuple(replace(one, value=trees.get(one.name, one.value)) for one in trial.program.given)
    program = replace(trial.program, given=given)
    return replace(trial, program=program, calls=(CpuAnswer(program),))


def programs(*args: str, **options: str) -> list[Program]:
    return [written(trial)[0] for trial in trials(*args, **options)]  # type: ignore[arg-type]


def text(program: Program) -> list[str]:
    return [step.op for step in program.steps]


class TestVariants:
    @pytest.mark.parametrize(
        ("variant", "steps"),
        [
            ("forward", ["op_db:add"]),
            ("reference_inputs", ["op_db:add"]),
            ("method", ["op_db.method:add"]),
            ("inplace", ["op_db.inplace:add_"]),
            ("out", ["op_db.out:add"]),
            ("backward", ["op_db:add", "backward"]),
            ("forward_over_backward", ["op_db.forward_over_backward:add"]),
            *((tier, ["op_db:add"]) for tier in SPECIALS),
            *((tier, ["op_db:add", "backward"]) for tier in SPECIALS_BACKWARD),
        ],
    )
    def test_steps(self, variant: str, steps: list[str]) -> None:
        """Each variant is one step. A gradient variant has one more, whose cotangent is an input. Torch CPU passes."""
        written = programs("add", variant)
        assert {tuple(text(program)) for program in written} == {tuple(steps)}
        for program in written:
            assert any(one.requires_grad for one in program.inputs) == ("backward" in variant)
            assert judge_program(program, load_target("cpu")).passed

    def test_several_results(self) -> None:
        """Each result has a name, and each differentiated result its own backward step on the same graph."""
        forward, backward = programs("aminmax", count=1)[0], programs("aminmax", "backward", count=1)[0]  # type: ignore[arg-type]
        assert forward.steps[0].out == ("result_0", "result_1")
        assert [dict(step.kwargs) for step in backward.steps] == [{}, {"retain_graph": True}, {}]

    def test_a_derivative_in_forward_mode(self) -> None:
        """Tangents and cotangents are inputs. A device with a wrong second derivative is found by the program."""
        (program,) = programs("sin", "forward_over_backward", count=1)  # type: ignore[arg-type]
        ((tangent,), (cotangent,), operand) = program.steps[0].args
        assert len({marker["t"] for marker in (tangent, cotangent, operand)}) == 3
        assert judge_program(program, load_target("cpu")).passed
        answer = reference(program).observation.tensors["result_0"].value
        given = make_inputs(program)
        expected = -given[operand["t"]].sin() * given[tangent["t"]] * given[cotangent["t"]]
        torch.testing.assert_close(answer, expected.detach())

    def test_an_input_that_must_raise(self) -> None:
        """Torch CPU's error is declared by the step. Operands after a refused call are not compared."""
        program = programs("cat", "error_inputs")[0]
        assert (program.steps[0].op, program.steps[0].raises, program.steps[0].out) == ("op_db:cat", "RuntimeError", ())
        assert judge_program(program, load_target("cpu")).passed
        accepted = program.with_steps((replace(program.steps[0], op="op_db:numel", args=(tensor("a"),), kwargs={}),))
        with pytest.raises(ProgramError, match=r"declares RuntimeError, but on CPU there is no error"):
            judge_program(accepted, load_target("cpu"))

    def test_random_numbers(self) -> None:
        """A call that draws has the seed around it, so both sides draw the same. Float64 does not arbitrate, since it
        draws others."""
        program = programs("nn.functional.dropout", count=3)[-1]  # type: ignore[arg-type]
        assert program.steps[0].under == ("seed:42",)  # the entry sets it
        assert programs("bernoulli")[0].steps[0].under == ("seed:1234",)
        assert judge_program(program, load_target("cpu")).passed
        other = program.with_steps((replace(program.steps[0], under=()),))
        same = [reference(one).observation.tensors["result"].value for one in (program, program, other)]
        assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])

    def test_a_result_without_a_value(self) -> None:
        """The shape of new memory is compared, and its content is not."""
        program = programs("empty")[0]
        assert program.undefined == ("value of result", "storage of result")
        assert judge_program(program, load_target("cpu")).passed

    def test_written_operands(self) -> None:
        """The three forms of out= tensors are inputs with their exact geometry."""
        right, empty, gaps = (program.inputs[-1] for program in programs("cumsum", "out", count=1))  # type: ignore[arg-type]
        assert right.size == gaps.size and empty.size == (0,)
        assert gaps.stride == tuple(2 * step for step in right.stride)


class TestLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("name", ["mul", "nn.functional.conv2d"])
    def test_geometry_and_values(self, layout: str, name: str) -> None:
        """Each tensor keeps its size, strides, offset and storage, and each value its bits."""
        for trial in trials(name, layout=layout):
            program, _ = written(trial)
            originals = list({id(t): t for t in tensors(trial.program.trees)}.values())
            inputs = [*make_inputs(program).values()]
            for one, two in zip(inputs, originals, strict=True):
                assert (one.size(), one.stride(), one.storage_offset()) == (
                    two.size(),
                    two.stride(),
                    two.storage_offset(),
                )
                assert one.untyped_storage().nbytes() == two.untyped_storage().nbytes()
                assert torch.equal(one, two.detach())
            assert judge_program(program, load_target("cpu")).passed

    def test_tensors_on_one_storage(self) -> None:
        """Tensors that share a storage still share it, and an object that occurs twice is one input."""
        (trial,) = trials("add", count=1)
        base = torch.arange(8.0)
        program, _ = written(on(trial, input=base[1:5], args=(base[3:7],)))
        assert (len(program.storages), [one.offset for one in program.inputs]) == (1, [1, 3])
        assert len(written(on(trial, input=base, args=(base,)))[0].inputs) == 1

    def test_tensor_on_the_cpu(self) -> None:
        """A tensor that OpInfo keeps on the CPU is a constant on the CPU."""
        written = programs("tensor_split", count=3)  # type: ignore[arg-type]
        assert any(isinstance(arg, dict) and arg.get("host") for program in written for arg in program.steps[0].args)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "complex32", "int8", "uint16", "bool"])
    def test_dtypes(self, dtype: str) -> None:
        """Every dtype keeps its bits."""
        for program in programs("clone", dtype=dtype):
            assert judge_program(program, load_target("cpu")).passed
            assert program.inputs[0].dtype == dtype

    def test_tolerance(self) -> None:
        """The program has OpInfo's tolerance, and none if OpInfo grants none."""
        granted = catalog.tolerances(catalog.by_name()["bmm", ""], torch.float32, ["float32"])
        assert granted
        assert programs("bmm")[0].tolerance == granted
        assert programs("clone")[0].tolerance == {}


class TestUnwritable:
    @pytest.mark.parametrize(
        ("name", "variant", "reason"),
        [
            ("lu_unpack", "forward", "a result whose sign or phase is free"),
            ("logit", "forward_over_backward", "a call that torch CPU does not implement"),
            ("sparse.mm/reduce", "forward", "a sparse tensor"),
            ("_segment_reduce/lengths", "forward", "a call without a public name"),
        ],
    )
    def test_reason(self, name: str, variant: str, reason: str) -> None:
        """A call that no program can hold has a reason."""
        for trial in trials(name, variant):
            with pytest.raises(Unwritable, match=f"^{reason}$"):
                written(trial)

    def test_large_input(self) -> None:
        """A storage of more than 10,000 elements is no input."""
        (trial,) = trials("add", count=1)
        with pytest.raises(Unwritable, match=r"more than 10,000 elements"):
            written(on(trial, input=torch.ones(10_001)))

    def test_other_answer(self) -> None:
        """An entry that answers differently from the function of its name is not written as that function."""
        with pytest.raises(Unwritable):
            programs("zero_")
