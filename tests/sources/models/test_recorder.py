"""The recorder: which calls it notes, and how it describes them."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from torch import nn

from conformance.program.recorded import Calls, RecordedCall
from conformance.sources.models.recorder import CallRecorder, fault_of, values_of


def recorded(function) -> Calls:
    """The calls of a function, not checked."""
    recorder = CallRecorder()
    with recorder.model("one"):
        function()
    return recorder.calls


def only(function) -> RecordedCall:
    (call,) = recorded(function).calls
    return call


class TestRecorder:
    def test_forward_backward_and_optimizer(self):
        """All reach the dispatcher below autograd; a second step makes no new call."""
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            net(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()

        recorder = CallRecorder()
        with recorder.model("net"):
            step()
            step()
            known, count = len(recorder.calls.calls), recorder.calls.made["net"]
            step()
        assert {"addmm.default", "relu.default", "threshold_backward.default", "mul_.Tensor"} <= {
            call.op for call in recorder.calls.calls
        }
        assert len(recorder.calls.calls) == known
        assert recorder.calls.made["net"] > count
        assert recorder.checked().excluded == {}

    def test_no_data(self, tmp_path):
        """A number of a tensor is not in the file; an argument is."""
        recorder = CallRecorder()
        with recorder.model("one"):
            torch.add(torch.tensor([0.123456, 2.0, 3.0]), torch.tensor([7, 7123, 8000]), alpha=4.25)
        recorder.checked().save(tmp_path / "calls.json")
        text = (tmp_path / "calls.json").read_text()
        assert "0.123456" not in text
        assert "7123" not in text
        assert "4.25" in text

    def test_geometry_and_shared_storage(self):
        """Sizes, strides, offset, and views of one storage."""
        base = torch.arange(20.0)

        def write() -> None:
            base[3:15].view(3, 4).t().add_(base[16:20, None])

        call = next(one for one in recorded(write).calls if one.op == "add_.Tensor")
        assert call.inputs == ((0, "float32", (4, 3), (1, 4), 3), (0, "float32", (4, 1), (1, 1), 16))
        assert call.storages == (("float32", 20, {"low": 0.1, "high": 1.0}),)
        assert call.results == "i"

    @pytest.mark.parametrize(("function", "letters"), [
        (lambda: torch.ones(2).neg(), "t"), (lambda: torch.ones(4).split(2), "(tt"),
        (lambda: torch.ones(4).max(0), "(tt"), (lambda: torch.ones(1).item(), "-"),
        (lambda: torch.neg(torch.ones(2), out=torch.empty(2)), "o"), (lambda: torch.ones(2).neg_(), "i"),
        (lambda: torch._foreach_neg([torch.ones(2)]), "(t"),
    ])  # fmt: skip
    def test_letters_of_results(self, function, letters):
        """And each call is one that torch CPU repeats."""
        call = recorded(function).calls[-1]
        assert call.results == letters
        assert fault_of(call) == ""

    def test_the_same_call_of_two_models(self):
        """It is one call of both."""
        recorder, one = CallRecorder(), torch.ones(2)
        for name in ("one", "two", "one"):
            with recorder.model(name):
                torch.neg(one)
        (call,) = recorder.calls.calls
        assert (call.models, recorder.calls.made) == ((0, 1), {"one": 2, "two": 1})

    def test_attention_is_recorded_by_its_parts(self):
        """Another device does not have the fused attention of torch CPU."""
        q = torch.randn(1, 2, 4, 8)
        ops = {call.op for call in recorded(lambda: nn.functional.scaled_dot_product_attention(q, q, q)).calls}
        assert {"bmm.default", "_safe_softmax.default"} <= ops
        assert not any("attention" in op for op in ops)

    @pytest.mark.parametrize(("function", "reason"), [
        (lambda: torch.eye(3).to_sparse().neg(), "sparse"),
        (lambda: torch.empty(1_100_000).neg(), "more than 1,000,000"),
        (lambda: torch.ones(2).bernoulli(generator=torch.Generator()), "Generator"),
        (lambda: torch.ops.prims.neg(torch.ones(2)), "an operator of prims"),
        (lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*[torch.ones(1, 2, 4, 8)] * 3),
         "an operator of torch CPU alone"),
    ])  # fmt: skip
    def test_a_call_that_no_program_holds_is_counted(self, function, reason):
        """It is excluded with its reason."""
        assert any(reason in text for text in recorded(function).excluded)

    def test_the_device_is_that_of_the_target(self):
        """A factory makes its tensor on the device under test, and not on the CPU."""
        assert only(lambda: torch.zeros(2, device="cpu")).kwargs["device"] == {"device": 0}

    def test_a_call_that_changes_is_excluded(self):
        """Memory that nothing has written, behind a view."""
        recorder = CallRecorder()
        call = RecordedCall("resize_.default", ({"t": "a"}, [64]), {}, (("float32", 2, {"low": 0.0, "high": 1.0}),),
                    ((0, "float32", (2,), (1,), 0),), "i", (0,))  # fmt: skip
        recorder.calls.models, recorder.calls.made = ["one"], {"one": 2}
        bad = RecordedCall("mm.default", ({"t": "a"}, {"t": "a"}), {}, (("float32", 6, {"low": 0.0, "high": 1.0}),),
                   ((0, "float32", (2, 3), (3, 1), 0),), "t", (0,))  # fmt: skip
        recorder.calls.calls = [bad]
        checked = recorder.checked()
        assert gc.get_freeze_count() > 100_000  # torch stays excluded from garbage collection
        assert checked.calls == []
        assert "aten::mm.default" in next(iter(checked.excluded))
        assert call.name == "aten::resize_"


class TestValues:
    @pytest.mark.parametrize(("values", "expected"), [
        (torch.tensor([-1.0, 3.0]), {"low": -2.0, "high": 2.0}), (torch.tensor([0.0, 3.0]), {"low": 0.0, "high": 1.0}),
        (torch.tensor([4.0, 3.0]), {"low": 0.1, "high": 1.0}),
        (torch.tensor([0.0, -torch.inf]), {"low": -2.0, "high": 2.0, "beside": {"number": "-inf"}}),
        (torch.tensor([5, 3, 3]), {"low": 3, "high": 5}),
        (torch.tensor([5, 3]), {"low": 3, "high": 5, "distinct": True}),
        (torch.tensor([3, 3, 5]), {"low": 3, "high": 5, "sorted": True}),
        (torch.tensor([4, -100, 2]), {"low": 2, "high": 4, "beside": -100}),
        (torch.tensor([True]), {"low": 0, "high": 1}), (torch.empty(0, dtype=torch.int64), {"low": 0, "high": 0}),
        (torch.arange(3).expand(2, 3), {"low": 0, "high": 2, "distinct": True, "sorted": True}),
    ])  # fmt: skip
    def test_the_range_keeps_a_call_defined(self, values, expected):
        assert values_of([values]) == expected
        json.dumps(expected)
