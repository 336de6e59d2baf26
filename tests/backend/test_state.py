"""State of the device under other global settings. Random programs found each of these faults."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import pytest
import torch

import conformance.backend  # noqa: F401 - registers the device
from conformance.program.steps import snippets
from tests.patience import stretched


@pytest.fixture(autouse=True)
def _warn_always():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def said(call) -> list[str]:
    """Return the texts of the call's warnings, without the line of torch's source."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message).partition(" (Triggered")[0] for warning in caught]


class TestFilledMemory:
    """New memory under deterministic algorithms is filled. It formerly read as zeros."""

    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.uint8, torch.int64, torch.bool]
    )
    @pytest.mark.parametrize(
        "make",
        [
            lambda like: torch.empty(2, 3, dtype=like.dtype, device=like.device),
            lambda like: torch.empty_strided((2, 2), (1, 3), dtype=like.dtype, device=like.device),
            torch.empty_like,
            lambda like: like.new_empty(4),
            lambda like: like.clone().resize_(9),
        ],
        ids=["empty", "empty_strided", "empty_like", "new_empty", "resize_"],
    )
    def test_it_holds_what_the_cpu_s_holds(self, make, dtype):
        """New memory holds nan or the largest number, as on the CPU. `resize_` fills only the new part."""
        with snippets.deterministic():
            cpu, tiny = (make(torch.ones(2, 3, dtype=dtype, device=device)) for device in ("cpu", "tiny"))
        torch.testing.assert_close(tiny.cpu(), cpu, equal_nan=True)

    def test_it_is_zeros_where_nobody_asks(self):
        """New memory is zero by default, and if `fill_uninitialized_memory` is off."""
        torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            with snippets.deterministic():
                assert torch.empty(3, device="tiny").tolist() == [0.0, 0.0, 0.0]
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = True
        assert torch.empty(3, device="tiny").tolist() == [0.0, 0.0, 0.0]


class TestWarnings:
    """Warnings of a call whose metadata are cached. Formerly they came only at the first call, twice, or never."""

    @pytest.mark.parametrize("kind", ["real", "resize", "freedom", "transpose", "mask", "grad", "loss", "meshgrid"])
    def test_they_come_each_time(self, kind):
        """Every call warns as often as on the CPU, with the same text."""
        for _ in range(3):
            assert snippets.warned(kind, "tiny") == snippets.warned(kind, "cpu")

    @pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
    def test_degrees_of_freedom(self, name):
        """The warning has the CPU's whole text, with the name of the function."""
        texts = [said(lambda d=d: getattr(torch, name)(torch.ones(3, 1, device=d), 1)) for d in ("cpu", "tiny")]
        assert texts[0] == texts[1] != []
        assert said(lambda: getattr(torch, name)(torch.ones(3, 2, device="tiny"), 1)) == []

    def test_a_complex_number_is_true_by_either_part(self):
        """A conversion of complex to bool discards nothing, and does not warn. The device formerly warned."""
        tensor = torch.tensor([0, 1j, 1, 1 + 1j])
        for convert in (lambda: tensor.to("tiny").bool(), lambda: torch.zeros(4, device="tiny").bool().copy_(tensor)):
            assert said(convert) == []
            assert convert().tolist() == [False, True, True, True]


class TestDefaultDevice:
    """Tensors that the device makes internally ignore the default device."""

    def test_a_tensor_is_saved_and_loaded(self):
        """A tensor is saved and loaded under a default device. torch copies a storage where no mode sees it. The copy
        was formerly created on tiny itself, which raised."""
        tensor = torch.arange(6.0, device="tiny").reshape(2, 3)[:, 1:]
        with snippets.default_device("tiny"):
            loaded = snippets.pickled(tensor)
        assert loaded.device.type == "tiny"
        assert loaded.tolist() == tensor.tolist()


class TestSubnormals:
    """`set_flush_denormal` applies to the CPU, at the time of a call."""

    @pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU flushes nothing")
    def test_what_was_computed_before_is_not_flushed(self):
        """A lazy value is not flushed if the CPU flushes when it is read. It was formerly zero."""
        tensor = torch.tensor([1.0, 2.0], device="tiny") * 2.0**-130 * 2.0**100 * 2.0**30
        with snippets.flush_denormal():
            assert tensor.tolist() == [1.0, 2.0]
            assert (torch.full((), 2.0**-130) * 1.0).tolist() == 0.0
        assert (torch.full((), 2.0**-130) * 1.0).tolist() != 0.0


class TestFork:
    """A forked child of a process that has used the device can compute on it."""

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    @pytest.mark.parametrize("threads", ["threads:1", "threads:2"])
    def test_a_child_computes(self, threads):
        """The child reads values that the parent computed, and computes new ones. (torch CPU with two threads
        hangs.)"""
        count = torch.get_num_threads()
        torch.set_num_threads(int(threads[-1]))
        try:
            tensor = torch.arange(1000.0, device="tiny")
            assert (tensor + 1).sum().item() == 500500.0
            assert self.of_child(lambda: (tensor * 2).sum().item()) == "999000.0"
        finally:
            torch.set_num_threads(count)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_what_a_child_writes_is_its_own(self):
        """A child's writes do not reach the parent, because buffers from before the fork are copied. (Formerly all
        processes shared one memory.)"""
        tensor = torch.ones(10_000).to("tiny")
        assert tensor.add_(1).sum().item() == 20_000
        assert self.of_child(lambda: tensor.add_(1).sum().item()) == "30000.0"
        assert tensor.sum().item() == 20_000

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_what_children_make_is_their_own(self):
        """Memory cached for reuse before the fork is separate in the child. (Formerly a loader's workers made the same
        batch.)"""
        torch.ones(10_000).to("tiny").sum().item()  # its buffer is free now
        tensor = torch.full((10_000,), 2.0)
        reads, writes = os.pipe()
        here: list[torch.Tensor] = []

        def in_child() -> float:
            moved = tensor.to("tiny")
            os.write(writes, b"made")
            time.sleep(0.5)
            return moved.sum().item()

        def in_parent() -> None:
            os.read(reads, 4)
            here.append((tensor * 3).to("tiny"))

        thread = threading.Thread(target=in_parent)
        thread.start()
        assert self.of_child(in_child) == "20000.0"
        thread.join()
        assert here[0].sum().item() == 60_000

    @staticmethod
    def of_child(call) -> str:
        """Return the result of the call in a child as text, or an empty string if the child is not done in time."""
        reads, writes = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns about threads, and tinygrad keeps some
            child = os.fork()
        if not child:
            try:
                os.write(writes, str(call()).encode())
            finally:
                os._exit(0)
        os.close(writes)
        until, done = time.monotonic() + stretched(60), 0
        while not done and time.monotonic() < until:
            done, _ = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not done:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        with os.fdopen(reads) as said:
            return said.read()
