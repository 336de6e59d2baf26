"""Input layouts: a device that lacks an operator gets the same inputs by another method, with the same results."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.record import result as model
from conformance.record.versions import holds
from conformance.sources.fuzzing.command import main
from conformance.sources.opinfo import runner
from conformance.standalone.input_layout import LayoutUnavailable, lay_out, unfolded

ALL = "storages+set_+as_strided+data_ptr"
LACKING = ["storages", "set_", "as_strided", "data_ptr", ALL]


class TestTorchCpuWithout:
    """torch CPU without some operators agrees with torch CPU, because inputs are built by other methods; a call of a
    missing operator raises."""

    PROGRAMS = 400  # five times, so 2,000

    @pytest.mark.parametrize(
        ("seed", "lacking"),
        [pytest.param(*each, marks=pytest.mark.slow if each[0] else ()) for each in enumerate(LACKING)],
    )
    def test_programs_agree(self, seed, lacking, tmp_path):
        """Programs agree without each of these operators. Regression test: 13 of 200 programs failed, because inputs
        rebuilt by as_strided were views without gradient."""
        programs = self.PROGRAMS
        words = ["--target", f"cpu:without={lacking}", "--seed", str(seed), "--programs", str(programs)]
        assert main([*words, "--without", "op_db", "--reports", str(tmp_path)]) == 0
        drawn = model.load(tmp_path / "fuzz.json").drawn
        assert drawn is not None and drawn.programs == programs
        assert sum(drawn.unsupported.values()) < programs / 20, drawn.unsupported

    @pytest.mark.parametrize(
        ("seed", "lacking", "programs"),
        [(4, ALL, 25), *(pytest.param(*each, 50, marks=pytest.mark.slow) for each in enumerate(LACKING))],
    )
    def test_calls_of_op_db_agree(self, seed, lacking, programs, tmp_path):
        """op_db calls agree too. Regression test: without `set_`, a copy of the memory kept the lazy conjugate of
        `fft.ifft`, and rebuilding the tensor lost it."""
        words = ["--target", f"cpu:without={lacking}", "--seed", str(seed), "--programs", str(programs)]
        assert main([*words, "--only", "op_db", "--reports", str(tmp_path)]) == 0
        drawn = model.load(tmp_path / "fuzz.json").drawn
        share = 0.8 if holds("<2.14") else 0.75  # op_db of 2.14 has one more input that no view can build
        assert drawn is not None and drawn.called > 5 * programs and drawn.compared >= share * drawn.programs
        # Other programs replaced those that could not run.
        assert drawn.compared == programs == drawn.programs - sum(drawn.unsupported.values())

    @pytest.mark.slow
    def test_op_db_agrees(self, tmp_path):
        """All operators of op_db in float32 agree, including gradients."""
        options = ["--variant", "forward,backward", "--samples", "3", "--reports", str(tmp_path)]
        assert runner.main(["--target", f"cpu:without={ALL}", *options]) == 0


class TestLayOut:
    BASE = torch.arange(12.0)
    VIEWS = (
        BASE[2:8:2],
        BASE.view(3, 4).t(),
        BASE[1:2].expand(3, 1),
        BASE.view(2, 2, 3)[:, 1],
        BASE[7],
        BASE.view(torch.int32)[3:],
        BASE[:0],
    )

    @pytest.mark.parametrize("lacks", ["", "set_", "storages", "set_+as_strided", "storages+as_strided+data_ptr"])
    @pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{tuple(view.shape)}{view.stride()}")
    def test_the_same_tensor_in_each_way(self, view, lacks):
        """Each method gives the same geometry, memory and values. The tensor is a leaf, no view for autograd, and has
        version 0."""
        flat = self.BASE.clone()
        with torch.no_grad():
            tensor = lay_out(flat, view, lacks.split("+"))
        assert (tensor.size(), tensor.stride(), tensor.storage_offset()) == (
            view.size(),
            view.stride(),
            view.storage_offset(),
        )
        assert tensor.dtype is view.dtype and torch.equal(tensor, view)
        assert tensor.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        assert not tensor._is_view() and tensor.is_leaf and tensor._version == 0

    def test_windows_make_any_geometry(self):
        """Windows build gaps, overlap, dimensions of size 1 and stride 0, in any order. Regression test: 28 of 100
        programs could not run."""
        rng = random.Random(0)
        for _ in range(300):
            size = [rng.randint(1, 4) for _ in range(rng.randint(0, 4))]
            stride = [rng.randint(0, 9) for _ in size]
            offset = rng.randint(0, 5)
            last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
            flat = torch.arange(last + 1 + rng.randint(0, 3))
            tensor = unfolded(flat, size, stride, offset)
            assert tensor is not None
            assert (list(tensor.size()), list(tensor.stride()), tensor.storage_offset()) == (size, stride, offset)

    def test_what_cannot_be_made_is_said(self):
        """A tensor with overlapping elements cannot be built from ordinary views. A copy has other strides, which the
        oracles would judge."""
        overlapping = self.BASE.as_strided((3, 2), (1, 1), 0)
        with pytest.raises(LayoutUnavailable, match=r"size \(3, 2\), strides \(1, 1\) and offset 0"):
            lay_out(self.BASE.clone(), overlapping, {"set_", "as_strided", "unfold"}, alone=True)
        shared = self.BASE[:3]
        with pytest.raises(LayoutUnavailable, match="that shares memory with another input"):
            lay_out(self.BASE.clone(), shared, {"set_", "as_strided", "data"}, alone=False)

    def test_a_plain_copy_is_the_last_way(self):
        """A copy is accepted for a tensor that fills its storage densely, on a device without views and without visible
        strides."""

        class NoViews(torch.Tensor):
            def view(self, *size):
                raise RuntimeError("as_strided: storage_offset is required")

        lacks = {"set_", "as_strided", "unfold", "strides"}
        view = self.BASE.view(3, 4)
        tensor = lay_out(self.BASE.clone().as_subclass(NoViews), view, lacks, alone=True)
        assert torch.equal(tensor, view) and type(tensor) is torch.Tensor

    @pytest.mark.parametrize("view", [BASE.as_strided((3, 2), (1, 1), 0), BASE.view(3, 4).t(), BASE.view(3, 4)[1:, 1:]])
    def test_a_copy_that_is_not_the_same_memory_is_none(self, view):
        """A copy must not replace overlapping, permuted or partial memory. Regression test: if strides were not
        visible, a dense copy replaced every geometry. Overlapping elements became separate, and a step that reads
        outside the view found nothing there."""

        class NoViews(torch.Tensor):
            def __getitem__(self, index):
                raise RuntimeError("a device without views")

            view = __getitem__

        with pytest.raises(LayoutUnavailable):
            lay_out(
                self.BASE.clone().as_subclass(NoViews), view, {"set_", "as_strided", "unfold", "strides"}, alone=True
            )

    def test_views_that_raise_are_not_the_end(self):
        """If one kind of view raises, another is tried. Regression test: that was an error at the move of the inputs of
        every third program."""

        class NoSteps(torch.Tensor):
            def __getitem__(self, index):
                if isinstance(index, slice) and index.step not in (None, 1):
                    raise RuntimeError("as_strided: storage_offset is required")
                return super().__getitem__(index)

        tensor = lay_out(self.BASE.clone().as_subclass(NoSteps), self.BASE[::2], {"set_", "as_strided"}, alone=True)
        assert tensor.stride() == (2,) and torch.equal(tensor.as_subclass(torch.Tensor), self.BASE[::2])


def test_calling_what_is_lacking_raises(monkeypatch):
    """A builder of inputs that still uses set_ fails the agreement tests above."""
    target = load_target("cpu:without=set_")
    target.facts = replace(target.facts, lacks=frozenset({"as_strided"}))
    assert torch.equal(target.send(torch.arange(4.0)[1:]), torch.arange(4.0)[1:])
    monkeypatch.setattr("conformance.targets.cpu.lay_out", lay_out, raising=False)
    target = load_target("cpu:without=set_")
    monkeypatch.setattr("conformance.standalone.device.lay_out", lambda flat, like, lacks, alone: lay_out(flat, like))
    with pytest.raises(NotImplementedError, match="this device has no aten::set_"):
        target.send(torch.arange(4.0)[1:])
