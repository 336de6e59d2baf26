"""Conditions of a call: fenced memory, and fake tensors."""

from __future__ import annotations

import pytest
import torch

from conformance.standalone.conditions import Conditions, Faked, Guarded, stand_ins
from conformance.standalone.operator_checks import observe_call
from conformance.standalone.torch_compat import fake_tensor_mode


def two_views():
    base = torch.arange(6.0)
    return {"x": base[:4].view(2, 2).t(), "y": [base[2:]]}


@pytest.mark.parametrize("conditions", [Conditions(), Guarded(), Guarded(at_end=False), Faked(fake_tensor_mode())])
def test_the_geometry_of_inputs_stays(conditions):
    """Sizes, strides and shared memory are those of the inputs under all conditions."""
    seen = observe_call(lambda x, y: x.t(), two_views, conditions)
    assert seen.error is None and seen.tensors["x"].metadata["stride"] == (1, 2)
    assert {seen.tensors[name].alias for name in ("x", "y[0]", "result")} == {seen.tensors["x"].alias}


def test_a_fake_tensor_has_no_values():
    """A call that asks for them raises, and the others answer with metadata."""
    fake = Faked(fake_tensor_mode())
    assert observe_call(lambda x, y: x.sum().item(), two_views, fake).error is not None
    assert observe_call(lambda x, y: x @ x, two_views, fake).tensors["result"].shape == (2, 2)


def test_new_memory_has_the_chosen_byte():
    """An operator that leaves its result unwritten shows it."""
    seen = observe_call(lambda x, y: torch.empty(3, dtype=torch.uint8), two_views, Guarded(fresh=0x3C))
    assert seen.tensors["result"].value.tolist() == [0x3C] * 3


def test_a_write_into_a_gap_is_told():
    """The bytes between the elements of an input belong to nobody."""

    def write(x):
        x.as_strided((2,), (1,)).fill_(1)

    guarded = Guarded()
    assert observe_call(write, lambda: {"x": torch.zeros(4)[::2]}, guarded).error is None
    assert guarded.trespassed().endswith("in the gaps between its elements")


def test_stand_ins_share_memory_as_their_originals():
    """Their values are zeros."""
    inputs = two_views()
    x, y, other = (one.untyped_storage().data_ptr() for one in stand_ins([inputs["x"], *inputs["y"], torch.ones(3)]))
    assert x == y != other
    assert stand_ins(inputs["x"]).stride() == (1, 2) and not stand_ins(inputs["x"]).any()
