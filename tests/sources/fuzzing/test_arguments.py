"""Changed arguments at the end of drawn programs: which are drawn, and which careless targets they catch."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.shadow import reference
from conformance.program.steps.op import Step, tensor
from conformance.program.steps.table import OPS
from conformance.program.unsupported import TRAITS
from conformance.record import names
from conformance.record.program_stats import ProgramStats
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing import arguments
from conformance.sources.fuzzing.drawing import Drawing

PLANTED = Path(__file__).parents[2] / "planted"
COPIES = Drawing(only=("copy", "errors"))


def drawn(
    drawing: Drawing, count: int, unsupported: tuple[str, ...] = ()
) -> tuple[list[Program], list[Program], Tally]:
    """Programs of seed 3, the same programs with changed arguments, and the counts."""
    tally, plain, changed = Tally(), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            plain.append(drawing.numbered(3, number))
            source = random.Random(f"3:{number}:arguments").randint
            changed.append(arguments.extended(plain[-1], source, unsupported, tally))
    return plain, changed, tally


@pytest.fixture(scope="module")
def of_copies() -> tuple[list[Program], list[Program], Tally]:
    return drawn(COPIES, 600)


@pytest.fixture(scope="module")
def of_tensors() -> tuple[list[Program], list[Program], Tally]:
    return drawn(Drawing(only=("copy", "out of place", "fusion", "errors")), 700)


@pytest.fixture(scope="module")
def careless() -> Iterator[Any]:
    """The module of targets that mishandle arguments."""
    sys.path.insert(0, str(PLANTED))
    import careless

    yield careless
    sys.path.remove(str(PLANTED))


class TestDrawing:
    def test_a_share_of_programs_ends_with_changed_steps(self, of_copies: Any) -> None:
        """The steps before are unchanged, and each longer program has a meaning on torch CPU."""
        plain, changed, _ = of_copies
        longer = [program for one, program in zip(plain, changed, strict=True) if program is not one]
        assert len(plain) / arguments.SHARE / 2 < len(longer) < 2 * len(plain) / arguments.SHARE
        for one, program in zip(plain, changed, strict=True):
            assert program.steps[: len(one.steps)] == one.steps
            assert len(program.steps) <= len(one.steps) + arguments.MOST
            reference(program)
            assert Program.from_json(program.to_json()) == program

    def test_before_the_steps_of_the_caller(self) -> None:
        """Changed steps of a function come before the steps of its caller. Regression test: they came last, so
        torch CPU ran them after the caller's writes, a compiled function before, and `--replay` refused the program."""
        plain, changed, _ = drawn(Drawing(only=("hazards",)), 150)
        longer = [program for one, program in zip(plain, changed, strict=True) if program is not one]
        assert any(program.steps[-1].after for program in longer)
        for program in longer:
            reference(program)
            assert Program.from_json(program.to_json()) == program

    def test_a_number_is_copied(self, of_copies: Any) -> None:
        """`x.copy_(3.0)` is drawn: a number for the tensor of a method, and most kinds, accepted and refused."""
        keys = {tuple(key.split("|")) for key in of_copies[2].arguments}
        assert ("copy_", "args[0]", "kind_number", "accepted") in keys
        assert {variant for *_, variant, _ in keys} >= {*names.KINDS} - {"kind_list", "kind_none"}
        assert {"accepted", "TypeError", "RuntimeError", "IndexError"} <= {outcome for *_, outcome in keys}

    def test_steps_that_a_target_does_not_support(self) -> None:
        """A target without refused calls gets programs without them, and the accepted calls stay."""
        unsupported = ("a refused call", "a write that raises")
        plain, changed, _ = drawn(COPIES, 150, unsupported)
        for one, program in zip(plain, changed, strict=True):
            assert not any(TRAITS[trait](program) and not TRAITS[trait](one) for trait in unsupported)
        assert any(len(program.steps) > len(one.steps) for one, program in zip(plain, changed, strict=True))

    def test_a_call_that_does_not_end(self) -> None:
        """Regression test: `combinations` of the greatest int64 elements hung the worker that drew it."""
        step = Step("op_db:combinations", (tensor("a"),), {"r": 2}, out=("b",))
        options = arguments._options(step, {"input": torch.zeros(1), "args": (), "kwargs": {"r": 2}})
        variants = {change.variant for _, change in options}
        assert "refused_size" in variants and "refused_range" not in variants

    def test_without_errors_nothing_is_changed(self) -> None:
        """`--without errors` leaves out changed arguments, which may be refused."""
        assert COPIES.changes_arguments
        assert not Drawing(without=("errors",)).changes_arguments

    def test_coverage_counts_pairs(self) -> None:
        """The report counts pairs of argument and kind by variant and outcome."""
        stats = ProgramStats(arguments={"add|args[0]|kind_bool|accepted": 3, "mul|args[0]|kind_bool|accepted": 1})
        assert stats.changed == {("kind_bool", "accepted"): 2}


class TestMarkers:
    def test_a_numpy_scalar_and_a_tensor_without_values(self) -> None:
        """Both are written as JSON and as Python, and a program of them is checked."""
        import numpy
        import torch

        from conformance.program.steps.op import StepError, decode, render

        cpu = torch.device("cpu")
        scalar = decode({"numpy": 1.5, "dtype": "float32"}, {}, cpu)
        assert (type(scalar), scalar) == (numpy.float32, 1.5)
        assert render({"numpy": 1.5, "dtype": "float32"}) == "numpy.float32(1.5)"
        assert decode({"meta": [2, 3], "dtype": "int64"}, {}, cpu).device.type == "meta"
        with pytest.raises(StepError, match="NumPy has no type 'loadtxt'"):
            decode({"numpy": 1, "dtype": "loadtxt"}, {}, cpu)

    def test_a_script_imports_numpy(self, standalone: Any, tmp_path: Path) -> None:
        """The script of a program with a NumPy scalar runs alone."""
        from conformance.engine.loading import load_target
        from conformance.program.script import script

        step = Step("add.fused", ({"t": "a"}, {"numpy": 2.0, "dtype": "float64"}), out=("b",))
        assert step.op in OPS
        program = Program((Storage("float32", 3),), (Input("a", 0, "float32", (3,), (1,)),), (step,))
        ran = standalone(script(program, load_target("cpu")))
        assert (ran.returncode, ran.stderr) == (0, "")


class TestFaults:
    @pytest.mark.parametrize("name", ["Bools", "NumPy", "Operands", "Accepts", "Internal"])
    def test_a_careless_target_is_caught(self, name: str, careless: Any, of_tensors: Any) -> None:
        """A target that mishandles a kind of argument, or a refused call, fails in a changed step. Programs without
        changed steps do not show it."""
        target = getattr(careless, name)()
        plain, changed, _ = of_tensors
        for one, program in zip(plain, changed, strict=True):
            if len(program.steps) > len(one.steps) and judge_program(program, target, locate=False).mismatches:
                return
        pytest.fail(f"{name} agrees in all programs")


def test_a_changed_step_that_gives_a_result_has_a_tensor() -> None:
    """Regression test: program 3 of seed 0 added two Python numbers, whose sum lies on the CPU."""
    for number in (3, *range(20, 40)):
        base = Drawing().numbered(0, number)
        program = arguments.extended(base, random.Random(f"0:{number}:arguments").randint, (), Tally())
        added = program.steps[len(base.steps) :]
        assert all(step.names() for step in added if not step.raises)


@pytest.mark.parametrize("number", [10087, 15288])
def test_changed_steps_have_a_meaning(number: int) -> None:
    """Regression test, seed 11: torch CPU raised another error after an inspection of a view, and accepted a size of
    -2**63, with which no tensor can be copied. Both were failures of the harness on `cpu`."""
    base = Drawing().numbered(11, number)
    reference(arguments.extended(base, random.Random(f"11:{number}:arguments").randint, (), Tally()))
