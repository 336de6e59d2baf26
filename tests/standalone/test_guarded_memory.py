"""Fenced memory: an access outside ends the process, a write in a gap shows, and new memory has a known fill."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal

import pytest
import torch

from conformance.standalone.guarded_memory import READ_ONLY, Filled, Fresh, changed_outside, fenced, padded, trespassed


def ends(work) -> int:
    """Exit code of a fork that does the work, negative for a signal."""
    process = os.fork()
    if process == 0:
        faulthandler.disable()
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def first_byte(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class TestFenced:
    @pytest.mark.parametrize(
        "tensor",
        [
            torch.arange(6.0).view(2, 3),
            torch.arange(12.0)[3:].view(3, 3).t(),
            torch.arange(12)[::3],
            torch.tensor(2.0),
            torch.ones(1, 3).expand(2, 3),
            torch.empty(0, 3),
            torch.ones(3, requires_grad=True),
        ],
    )
    @pytest.mark.parametrize("at_end", [True, False])
    def test_the_tensor_stays_the_same(self, tensor, at_end):
        """Values, strides and `requires_grad` stay; the storage has only the bytes in use."""
        (copy,), fences = fenced([tensor], at_end)
        assert torch.equal(copy, tensor) and copy.stride() == tensor.stride()
        assert copy.requires_grad == tensor.requires_grad
        assert not trespassed(fences)

    def test_shared_storages_stay_shared(self):
        """Two views of one storage see each other's writes."""
        base = torch.zeros(4)
        (one, two), fences = fenced([base[:3], base[1:]])
        one.fill_(7)
        assert two.tolist() == [7, 7, 0] and not trespassed(fences)

    @pytest.mark.parametrize("at_end", [True, False])
    def test_an_access_outside_ends_the_process(self, at_end):
        """A read of the byte behind the last one, or before the first one, is a segmentation fault."""
        (copy,), fences = fenced([torch.arange(64.0)], at_end)
        place = first_byte(copy) + fences[0].size if at_end else first_byte(copy) - 1
        assert ends(lambda: ctypes.string_at(place, 1)) == -signal.SIGSEGV
        assert ends(lambda: ctypes.string_at(first_byte(copy), fences[0].size)) == 0

    def test_read_only_pages_permit_reads(self):
        """Only a write to a read-only page ends the process."""
        (copy,), fences = fenced([torch.arange(3.0)], protection=READ_ONLY)
        place = first_byte(copy) + fences[0].size
        assert ends(lambda: ctypes.string_at(place, 1)) == 0
        assert ends(lambda: ctypes.memset(place, 1, 1)) == -signal.SIGSEGV

    def test_a_write_on_the_page_shows(self):
        """A write before the first byte, behind the last one or in a gap is named."""
        (copy,), fences = fenced([torch.arange(8.0)[::2]])
        ctypes.memset(first_byte(copy) + 4, 0, 4)
        assert trespassed(fences) == "4 bytes in the gaps between its elements"
        (copy,), fences = fenced([torch.arange(4.0)])
        ctypes.memset(first_byte(copy) - 2, 0, 2)
        assert trespassed(fences) == "2 bytes before its first byte"
        (copy,), fences = fenced([torch.arange(4.0)], at_end=False)
        ctypes.memset(first_byte(copy) + 16, 0, 1)
        assert trespassed(fences) == "1 bytes behind its last byte"


class TestFresh:
    def test_new_memory_has_the_fill(self):
        """All `empty` functions return filled memory, and functions that fill their result do not change."""
        with Fresh(0x3C) as mode:
            empty = [torch.empty(3), torch.empty_like(torch.ones(2, 2)), torch.ones(2).new_empty(4), torch.empty(2).t()]
            full = [torch.zeros(2), torch.ones(2) + 1]
        assert all(set(tensor.flatten().view(torch.uint8).tolist()) == {0x3C} for tensor in empty)
        assert [tensor.tolist() for tensor in full] == [[0, 0], [2, 2]]
        assert len(mode.fences) >= 4 and not trespassed(mode.fences)

    def test_calls_inside_a_custom_operator_are_seen(self):
        """The kernel of a custom operator gets filled memory, too."""

        @torch.library.custom_op("fences::new", mutates_args=())
        def new(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x)

        with Fresh(0):
            assert new(torch.ones(5)).tolist() == [0] * 5

    def test_bool_tensors_hold_truth_values(self):
        """The byte of a bool is 0 or 1."""
        with Fresh(0xFF):
            assert torch.empty(2, dtype=torch.bool).view(torch.uint8).tolist() == [1, 1]


class TestPadded:
    """Known bytes beside a tensor, for memory without protected pages."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int8, torch.complex64])
    def test_the_geometry_stays(self, dtype):
        """Values, strides and sharing are the same, and the unchanged bytes are no difference."""
        base = torch.ones(6, 4).to(dtype)
        copies = padded([base[1:].t(), base[0]], 0x3F)
        assert torch.equal(copies[0], base[1:].t()) and copies[0].stride() == base[1:].t().stride()
        assert copies[0].untyped_storage()._cdata == copies[1].untyped_storage()._cdata
        assert changed_outside(copies, 0x3F) == ""

    @pytest.mark.parametrize(
        ("at", "place"), [(-1, "before its first"), (1, "in the gaps between"), (9, "behind its last")]
    )
    def test_a_write_outside_is_seen(self, at, place):
        """Each place has a name."""
        (copy,) = padded([torch.arange(10.0)[::2]])
        copy.as_strided((1,), (1,), copy.storage_offset() + at).fill_(0)
        assert changed_outside([copy]).startswith("4 bytes " + place)


class TestFilled:
    """New memory of a device."""

    @pytest.mark.parametrize("pads", [True, False])
    def test_it_holds_the_byte(self, pads):
        """Every dtype, and the bytes beside it."""
        with Filled(0x3C, "cpu", pads) as mode:
            made = torch.empty(3), torch.empty(2, 3, dtype=torch.int16).t(), torch.empty(2, dtype=torch.bool)
        assert made[0].view(torch.uint8).eq(0x3C).all() and made[1].eq(0x3C3C).all() and not made[2].any()
        assert made[1].stride() == torch.empty(2, 3).t().stride()
        assert len(mode.made) == 3 * pads
        assert changed_outside(mode.made, 0x3C) == ""
        if pads:
            made[0].as_strided((1,), (1,), made[0].storage_offset() + 3).fill_(0)
            assert changed_outside(mode.made, 0x3C) == "4 bytes behind its last byte"
