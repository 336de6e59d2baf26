"""Every public way to use storages. Several formerly raised messages of torch's C++ for backend authors, and two ended
the process."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch

import conformance.backend  # noqa: F401


def storage() -> torch.UntypedStorage:
    return torch.arange(6, dtype=torch.uint8).to("tiny").untyped_storage()


class TestUntyped:
    """torch.UntypedStorage on tiny."""

    @pytest.mark.parametrize(("size", "expected"), [(8, [0, 1, 2, 3, 4, 5]), (3, [0, 1, 2])])
    def test_resize(self, size: int, expected: list[int]) -> None:
        x = torch.arange(6, dtype=torch.uint8).to("tiny")
        assert x.untyped_storage().resize_(size).nbytes() == size
        assert x.untyped_storage().tolist()[: len(expected)] == expected

    def test_new_is_empty_and_on_the_device(self) -> None:
        """new() works. It formerly ended the process."""
        empty = storage().new()
        assert (empty.nbytes(), empty.device.type) == (0, "tiny")

    def test_byteswap(self) -> None:
        """byteswap works. It formerly ended the process."""
        held = storage()
        held.byteswap(torch.int16)
        assert held.tolist() == [1, 0, 3, 2, 5, 4]

    def test_moved_by_method(self) -> None:
        moved = torch.arange(3, dtype=torch.uint8).untyped_storage().tiny()
        assert moved.is_tiny
        assert moved.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("sequence", [lambda: [3, 1], lambda: torch.tensor([3, 1], dtype=torch.uint8).tolist()])
    def test_of_a_sequence(self, sequence: type) -> None:
        assert torch.UntypedStorage(sequence(), device="tiny").tolist() == [3, 1]

    @pytest.mark.parametrize("size", [-1, 1.5, "a"])
    def test_of_what_is_no_size(self, size: object) -> None:
        """Invalid sizes raise torch's errors. They formerly raised a TypeError of an internal function of torch."""
        with pytest.raises(RuntimeError, match=r"-1 bytes|Expected a sequence type|instead of int"):
            torch.UntypedStorage(size, device="tiny")

    def test_of_no_such_device(self) -> None:
        with pytest.raises(RuntimeError, match="no device tiny:7"):
            torch.UntypedStorage(4, device="tiny:7")

    @pytest.mark.parametrize("copied", [lambda s: s.clone(), copy.copy, copy.deepcopy])
    def test_copies_are_apart(self, copied: type) -> None:
        held = storage()
        copied_storage = copied(held)
        held[0] = 9
        assert copied_storage[0] == 0

    def test_slices_are_refused(self) -> None:
        """A slice of a storage is refused. It formerly returned an unreadable storage: KeyError, with an address."""
        with pytest.raises(NotImplementedError, match="tiny: a storage has no slices"):
            storage()[2:4]
        assert storage().cpu()[2:4].tolist() == [2, 3]

    def test_other_devices_keep_torchs_methods(self) -> None:
        held = torch.arange(4, dtype=torch.uint8).untyped_storage()
        held.byteswap(torch.int16)
        assert held.resize_(2).tolist() == [1, 0]
        assert held.new().device.type == "cpu"


class TestTyped:
    """torch.TypedStorage on tiny, which torch still supports."""

    @pytest.fixture(autouse=True)
    def _quiet(self) -> None:
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")

    def test_resize_read_write_pickle(self) -> None:
        held = torch.arange(3.0).to("tiny").storage()
        held.resize_(4)
        held[3] = 7.0
        assert held.tolist() == [0.0, 1.0, 2.0, 7.0]
        assert pickle.loads(pickle.dumps(held)).tolist() == held.tolist()
        assert held.is_tiny
        assert torch.zeros(2).storage().tiny().device.type == "tiny"


class TestPinning:
    """Pinned host memory is ordinary memory that reports itself as pinned. It formerly did not."""

    def test_a_pinned_copy(self) -> None:
        x = torch.arange(3.0)
        pinned = x.pin_memory()
        assert (x.is_pinned(), pinned.is_pinned(), pinned[1:].is_pinned()) == (False, True, True)
        assert pinned.data_ptr() != x.data_ptr()
        assert pinned.pin_memory() is pinned
        assert pinned.to("tiny", non_blocking=True).tolist() == [0.0, 1.0, 2.0]

    def test_a_tensor_on_the_device(self) -> None:
        x = torch.ones(2, device="tiny")
        assert not x.is_pinned()
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            x.pin_memory()

    @pytest.mark.parametrize("make", [torch.empty, torch.ones, torch.randn])
    def test_a_factory_on_the_device_refuses(self, make) -> None:
        """The device has no pinned memory. Formerly the word was ignored."""
        with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
            make(3, device="tiny", pin_memory=True)
        with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
            torch.empty_strided((2, 2), (1, 2), device="tiny", pin_memory=True)

    @pytest.mark.parametrize("dtype", [None, torch.int32])
    def test_a_copy_to_the_host_that_need_not_block(self, dtype: torch.dtype | None) -> None:
        """torch wanted pinned memory for it, and raised NotImplementedError."""
        x = torch.tensor([[1.5, 2.0], [3.0, 4.0]], device="tiny", requires_grad=dtype is None).t()
        on_cpu = x.to("cpu", dtype=dtype, non_blocking=True)
        assert (on_cpu.device.type, on_cpu.stride(), on_cpu.dtype) == ("cpu", (1, 2), dtype or x.dtype)
        assert on_cpu.tolist() == x.tolist() if dtype is None else on_cpu.tolist() == [[1, 3], [2, 4]]
        assert on_cpu.requires_grad is x.requires_grad

    def test_a_data_loader(self) -> None:
        loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
        assert all(batch.is_pinned() for batch in loader)


class TestLazyClone:
    """torch._lazy_clone works. It formerly failed with an assertion about a storage that C++ does not have."""

    def test_geometry_stays_and_memory_is_apart(self) -> None:
        x = torch.arange(12.0).to("tiny").view(3, 4).t()[1:]
        clone = torch._lazy_clone(x)
        assert (clone.stride(), clone.storage_offset()) == (x.stride(), x.storage_offset())
        x.zero_()
        assert torch.equal(clone.cpu(), torch.arange(12.0).view(3, 4).t()[1:])


class TestDeterministicMode:
    """torch.utils.deterministic.fill_uninitialized_memory applies. It was formerly ignored, and new memory read as
    zeros."""

    @pytest.fixture(autouse=True)
    def _deterministic(self):
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)

    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool]
    )
    @pytest.mark.parametrize(
        "make",
        [
            lambda d, t: torch.empty(3, dtype=t, device=d),
            lambda d, t: torch.empty_strided((2, 2), (2, 1), dtype=t, device=d),
            lambda d, t: torch.empty_like(torch.zeros(2, dtype=t, device=d)),
            lambda d, t: torch.zeros(1, dtype=t, device=d).new_empty(2),
        ],
    )
    def test_new_memory_is_filled_as_on_the_cpu(self, make, dtype: torch.dtype) -> None:
        torch.testing.assert_close(make("tiny", dtype).cpu(), make("cpu", dtype), equal_nan=True)

    def test_not_where_the_user_says_so(self) -> None:
        torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            assert torch.empty(3, device="tiny").tolist() == [0.0] * 3
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = True

    def test_what_a_tensor_grows_by(self) -> None:
        grown = torch.zeros(2, device="tiny").resize_(4)
        assert grown[:2].tolist() == [0.0, 0.0]
        assert grown[2:].isnan().all()


class TestFiles:
    """torch.from_file is refused. It formerly returned a copy, whose writes never reached the file."""

    @pytest.mark.parametrize(
        "mapped",
        [
            lambda path: torch.from_file(path, shared=True, size=4, device="tiny"),
            lambda path: torch.tiny.FloatStorage.from_file(path, True, 4),
        ],
    )
    def test_refused(self, tmp_path, mapped) -> None:
        path = tmp_path / "numbers"
        path.write_bytes(bytes(16))
        with pytest.raises(NotImplementedError, match="tiny: a file cannot be mapped into the device's memory"):
            mapped(str(path))
        assert torch.from_file(str(path), shared=True, size=4).to("tiny").tolist() == [0.0] * 4


def test_nothing_is_shared() -> None:
    """Memory of the device is not shared. torch assumes it for every accelerator."""
    x = torch.ones(2, device="tiny")
    assert not x.untyped_storage().is_shared()
    assert not x.is_shared()
    assert torch.ones(2).share_memory_().is_shared()


class TestTooSmall:
    """A tensor over a storage that was shrunk is refused. Formerly its text showed the memory behind the storage."""

    @pytest.mark.parametrize("nbytes", [0, 6, 8])
    @pytest.mark.parametrize(
        "use",
        [
            lambda x: x.tolist(), repr, lambda x: x[3].item(), lambda x: torch.equal(x + 1, x),
            lambda x: x.add_(1).cpu(), lambda x: x.fill_(3), lambda x: x[1:].zero_(), lambda x: x.copy_(torch.ones(4)),
            lambda x: x.copy_(torch.ones(4, device="tiny") * 2), lambda x: x.view(2, 2).t().tolist(),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize(
        "tensor",
        [lambda: torch.arange(4.0, device="tiny"), lambda: torch.zeros(4, device="tiny")],
        ids=["range", "zeros"],
    )
    def test_use_is_refused(self, nbytes: int, use, tensor) -> None:
        """A call equal to an earlier one is refused immediately too. In the queue it would raise elsewhere."""
        for _ in range(2):
            use(tensor())
        x = tensor()
        x.untyped_storage().resize_(nbytes)
        with pytest.raises(RuntimeError, match=f"are out of bounds for storage of size {nbytes}"):
            use(x)
        torch.tiny.synchronize()

    def test_what_lies_inside_is_read(self) -> None:
        x = torch.arange(4.0, device="tiny")
        x.untyped_storage().resize_(8)
        assert (x[:2] + 1).tolist() == [1.0, 2.0]
        x.untyped_storage().resize_(16)
        assert x.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_the_number_in_an_empty_tensor() -> None:
    with pytest.raises(RuntimeError, match="Empty tensor not supported"):
        torch.ops.aten._local_scalar_dense(torch.empty(0, device="tiny"))


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC95045, -0x400000])
def test_the_bits_of_one_nan(bits: int) -> None:
    """A tensor of one nan keeps the nan's sign and its other bits on the device."""
    x = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    assert x.to("tiny").view(torch.int32).item() == bits
    y = torch.zeros(2, device="tiny")
    y[1].copy_(x[0])
    assert y.view(torch.int32).tolist() == [0, bits]
