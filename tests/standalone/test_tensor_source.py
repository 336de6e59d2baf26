"""Short source text of tensors: it builds the same geometry, values and sharing as the harness's own inputs."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.engine.loading import load_target
from conformance.program.execute import make_inputs
from conformance.program.script import script
from conformance.sources.fuzzing.drawing import Drawing
from conformance.standalone.moving import storage_key
from conformance.standalone.script import own_part
from conformance.standalone.tensor_source import NoSource, input_lines, literal, storage_source, view_source


def inputs_of(text: str) -> dict[str, torch.Tensor]:
    """Tensors that a script's function `inputs` builds on the CPU."""
    scope: dict = {}
    exec(re.split(r"\n(?:for|device) ", own_part(text))[0], scope)  # noqa: S102 - rendered here
    return scope["inputs"]("cpu")


def relations(tensor: torch.Tensor) -> tuple[object, ...]:
    """What autograd and a compiler know about a tensor beyond its geometry and values. AOTAutograd, for example, writes
    to a view through its base."""
    base = None if tensor._base is None else tensor._base.shape
    return tensor._is_view(), base, tensor._version, tensor.requires_grad, tensor.is_leaf


class TestInputs:
    @pytest.mark.parametrize("target", ["cpu", "compile:aot_eager"])
    @settings(max_examples=150)
    @given(st.integers(0, 10**6))
    def test_rendered_inputs_are_those_of_the_harness(self, target, number):
        """Size, strides, offset, dtype, exact values, the whole storage, storage sharing, `requires_grad` and being no
        view are equal. Regression test: a finding of `compile:aot_eager` did not show in its script, whose input was
        `torch.arange(9).view(3, 3)`, a view."""
        program = Drawing(steps=(1, 2)).numbered(77, number)
        want, got = make_inputs(program), inputs_of(script(program, load_target(target)))
        assert list(want) == list(got)
        keys = [[tensor.untyped_storage()._cdata for tensor in inputs.values()] for inputs in (want, got)]
        shared = [[[one == two for two in side] for one in side] for side in keys]
        assert shared[0] == shared[1]
        for name, one in want.items():
            two = got[name]
            assert relations(one) == relations(two), name
            assert one.dtype == two.dtype
            for fact in ("size", "stride", "storage_offset"):
                assert getattr(one, fact)() == getattr(two, fact)(), (name, fact)
            assert repr(one.tolist()) == repr(two.tolist())
            assert bytes(one.untyped_storage()) == bytes(two.untyped_storage())

    @pytest.mark.parametrize(
        ("size", "stride", "offset", "text"),
        [
            ((6,), (1,), 0, ""),
            ((2, 3), (3, 1), 0, ".view(2, 3)"),
            ((3, 2), (1, 3), 0, ".view(2, 3).t()"),
            ((5,), (1,), 1, "[1:]"),
            ((2, 2), (3, 1), 1, ".view(2, 3)[:, 1:]"),
            ((2, 2), (3, 2), 0, ".view(2, 3)[:, ::2]"),
            ((3,), (2,), 0, "[::2]"),
            ((), (), 4, "[4]"),
            ((2, 3, 4), (3, 1, 0), 0, ".view(2, 3, 1).expand(2, 3, 4)"),
            ((2, 2), (1, 1), 0, "[:3].unfold(0, 2, 1)"),
            ((1, 3), (7, 1), 0, "[:3].unfold(0, 3, 7)"),
            ((2, 2), (4, 1), 0, ".unfold(0, 2, 4)"),
            ((1, 1), (7, 0), 0, ".as_strided((1, 1), (7, 0), 0)"),
        ],
    )
    def test_the_form_is_the_one_that_a_person_would_write(self, size, stride, offset, text):
        """`as_strided` appears only if other views are not about as short. Windows cover a last row that is cut off,
        overlapping elements, and strides of single elements. Regression test: a third of all drawn inputs used it."""
        flat = torch.arange(6.0)
        assert view_source(flat, size, stride, offset) == text

    @pytest.mark.parametrize(
        ("flat", "text"),
        [
            (torch.arange(6.0), "torch.arange(6.)"),
            (torch.zeros(3), "torch.zeros(3)"),
            (torch.ones(3, dtype=torch.int8), "torch.ones(3, dtype=torch.int8)"),
            (torch.arange(6), "torch.arange(6)"),
            (torch.arange(6, dtype=torch.int8), "torch.arange(6, dtype=torch.int8)"),
            (torch.arange(250.0) % 100, "(torch.arange(250.) % 100)"),
            (torch.full((5,), 7.0), "torch.full((5,), 7.0)"),
            (torch.tensor([0.1, -0.0]), "torch.tensor([0.1, -0.0])"),
            (torch.tensor([True, False]), "torch.tensor([True, False])"),
            (torch.tensor([torch.nan, -torch.inf]), "torch.tensor([torch.nan, -torch.inf])"),
            (torch.tensor(2.5), "torch.tensor(2.5)"),
            (torch.tensor([1 + 2j]), "torch.tensor([(1+2j)])"),
        ],
    )
    def test_a_storage_is_as_short_as_it_can_be(self, flat, text):
        """A storage is a range, one number, or numbers with as few digits as the dtype needs. The dtype is omitted if
        it is implied."""
        assert storage_source(flat) == text

    def test_zeros_and_ones_need_no_view(self):
        """Zeros and ones are created in their shape and are no views."""
        assert input_lines([("a", torch.zeros(2, 2))]) == ["a = torch.zeros(2, 2).to(device)"]
        assert input_lines([("a", torch.ones(2, 3).t())]) == ["a = torch.ones(6).to(device).view(2, 3).t().data"]

    def test_what_is_too_long_or_has_no_form_is_refused(self):
        """The error makes the caller write another kind of script."""
        with pytest.raises(NoSource):
            input_lines([("a", torch.rand(100))], longest=99)
        with pytest.raises(NoSource):
            literal(object())

    @pytest.mark.parametrize("real", [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan])
    @pytest.mark.parametrize("imag", [0.0, -0.0, 2.5, -2.5, math.inf, -math.inf, math.nan])
    def test_signs_of_complex_zeros(self, real, imag):
        """The source text keeps the signs of complex zeros. Regression test: inputs with signed zeros had no script.
        `(1-0j)` is the difference of 1 and 0j, and `-2j` has the real part -0.0."""
        flat = torch.tensor([complex(real, imag)] * 2 + [complex(imag, real)], dtype=torch.complex64)
        assert repr(eval(storage_source(flat), {"torch": torch}).tolist()) == repr(flat.tolist())  # noqa: S307 - rendered here

    def test_a_dtype_that_does_not_divide_its_storage(self):
        """Only this form needs the storage itself."""
        flat = torch.arange(3, dtype=torch.int16)
        odd = torch.empty(0, dtype=torch.int32).set_(flat.untyped_storage(), 0, (1,), (1,))
        (line,) = input_lines([("a", odd)], {flat.untyped_storage()._cdata: flat})
        assert ".set_(torch.arange(3, dtype=torch.int16).to(device).untyped_storage(), 0, (1,), (1,))" in line
        with pytest.raises(NoSource):
            input_lines([("a", odd)], {flat.untyped_storage()._cdata: flat}, lacks={"storages"})


ALL = "storages+set_+as_strided+data_ptr"


class TestOfADeviceThatLacks:
    @pytest.mark.parametrize("lacking", ["set_+as_strided", ALL, f"{ALL}+data"])
    def test_no_script_calls_what_is_lacking(self, lacking):
        """A script builds its inputs without the operators that the device lacks. Regression test: 17 of 600 scripts
        for a device without `as_strided` used it for inputs, and ended with its error."""
        names = lacking.split("+")
        target, refusing = load_target(f"device:cpu,without={lacking}"), load_target(f"cpu:without={lacking}")
        for number in range(250):
            program = Drawing(steps=(1, 2), without=("op_db",)).numbered(7, number)
            text = script(program, target)
            source = own_part(text).partition("def inputs(")[2].partition("\ndef ")[0]
            for word in (".as_strided(", ".set_(", "untyped_storage", *[".data"] * ("data" in names)):
                assert word not in source.replace(".detach()", ""), source
            scope: dict = {}
            exec(own_part(text).partition("\nfor device")[0], scope)  # noqa: S102 - rendered here
            with refusing._refused():
                got = scope["inputs"]("cpu")
            for name, one in make_inputs(program).items():
                assert relations(one) == relations(got[name]), (name, source)
                for fact in ("size", "stride", "storage_offset"):
                    assert getattr(one, fact)() == getattr(got[name], fact)(), (name, fact, source)
                assert repr(one.tolist()) == repr(got[name].tolist())

    @pytest.mark.parametrize(
        ("size", "stride", "offset"),
        [((1, 1), (7, 0), 0), ((2, 1, 2), (0, 0, 1), 1), ((2, 2, 2), (1, 2, 1), 0), ((), (), 0), ((1,), (0,), 2)],
    )
    def test_ordinary_views_make_any_geometry(self, size, stride, offset):
        """Ordinary views build any geometry, including a stride of 0 at size 1, which `expand` alone cannot give."""
        flat = torch.arange(6.0)
        text = view_source(flat, size, stride, offset, {"as_strided"})
        view = eval(f"flat{text}", {"flat": flat})  # noqa: S307 - rendered here
        assert "as_strided" not in text
        assert (view.size(), view.stride(), view.storage_offset()) == (size, stride, offset)

    def test_windows_may_be_lacking_too(self):
        """Without windows, slices remain, and `set_` if the device has it."""
        flat, view = torch.arange(6.0), torch.arange(6.0).as_strided((2, 2), (1, 1), 0)
        with pytest.raises(NoSource):
            view_source(flat, (2, 2), (1, 1), 0, {"as_strided", "unfold"})
        (line,) = input_lines([("a", view)], lacks={"as_strided", "unfold"})
        assert ".set_(torch.arange(6.).to(device).untyped_storage(), 0, (2, 2), (1, 1))" in line

    def test_an_empty_tensor_of_any_strides_is_moved_as_it_is(self):
        """A window always has elements, so an empty tensor is moved without its strides."""
        (line,) = input_lines([("a", torch.arange(6.0).as_strided((0, 2), (5, 3), 1))], lacks={"as_strided", "set_"})
        assert line.startswith("a = torch.arange(6.)") and line.endswith(".to(device)")

    def test_another_dtype_is_seen_before_the_move(self):
        """The dtype view is created before the move. Regression test: a script called `view(dtype)` on a device without
        it."""
        floats = torch.arange(2.0)
        (line,) = input_lines([("a", floats.view(torch.int32))], {storage_key(floats): floats}, lacks={"view_dtype"})
        assert line == "a = torch.arange(2.).view(torch.int32).to(device)"
