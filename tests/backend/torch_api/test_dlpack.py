"""DLPack with torch and with other libraries. Formerly torch raised "Unknown device type tiny", numpy "Unsupported
device", and a capsule of a part of a storage was a tensor that nothing could read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import conformance.backend as backend


def numbers() -> torch.Tensor:
    """Six numbers on tiny."""
    return torch.arange(6.0).to("tiny")


def capsule(x: torch.Tensor) -> object:
    """Torch's function of today, which the first use of the device replaces."""
    return torch.utils.dlpack.to_dlpack(x)


def capsule_of_torch(x: torch.Tensor) -> object:
    """The same function by its other name."""
    return torch.to_dlpack(x)


class TestWithinTorch:
    @pytest.mark.parametrize("device", [None, "tiny", "tiny:0"])
    def test_the_storage_is_shared(self, device: str | None) -> None:
        """A part of a tensor, imported on its own device, sees writes and is written through."""
        x = numbers()
        part = x[1:5:2]
        shared = torch.from_dlpack(part, device=device)
        x[3] = 9.0
        shared[0] = 7.0
        assert shared.tolist() == [7.0, 9.0]
        assert x.tolist() == [0.0, 7.0, 2.0, 9.0, 4.0, 5.0]
        assert (shared.stride(), shared.storage_offset()) == (part.stride(), part.storage_offset())

    def test_a_copy_if_wanted(self) -> None:
        x = numbers()
        copied = torch.utils.dlpack.from_dlpack(x, copy=True)
        x[0] = 9.0
        assert copied.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert copied.device == x.device

    def test_to_the_cpu(self) -> None:
        moved = torch.from_dlpack(numbers()[2:], device="cpu")
        assert moved.device.type == "cpu"
        assert moved.tolist() == [2.0, 3.0, 4.0, 5.0]

    def test_from_the_cpu(self) -> None:
        assert torch.from_dlpack(np.arange(3.0), device="tiny").tolist() == [0.0, 1.0, 2.0]

    def test_to_the_cpu_without_a_copy(self) -> None:
        with pytest.raises(ValueError, match="from tiny:0 to cpu without copying"):
            torch.from_dlpack(numbers(), device="cpu", copy=False)

    @pytest.mark.parametrize("device", ["cpu", "tiny"])
    def test_a_tensor_with_a_gradient_is_refused(self, device: str) -> None:
        with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
            torch.from_dlpack(torch.ones(2).to(device).requires_grad_())

    def test_tensors_of_the_cpu_are_shared_as_before(self) -> None:
        numbers()
        x = torch.zeros(3)
        torch.from_dlpack(x)[0] = 1.0
        torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))[1] = 2.0
        np.from_dlpack(x)[2:].shape  # noqa: B018
        assert x.tolist() == [1.0, 2.0, 0.0]
        assert x.__dlpack_device__() == (1, 0)


class TestOtherLibraries:
    def test_the_device_is_named(self) -> None:
        """The protocol's number for devices that it does not list, and the index."""
        assert numbers().__dlpack_device__() == (12, 0)

    def test_a_copy_on_the_cpu(self) -> None:
        """A consumer that asks for the CPU gets elements, of a lazy value too, in one copy out."""
        x = numbers() * 2
        before = backend.stats()["copies_out"]
        array = np.from_dlpack(Consumer(x, dl_device=(1, 0)))  # type: ignore[arg-type]
        assert array.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        assert backend.stats()["copies_out"] - before == 1

    @pytest.mark.parametrize(
        "export",
        [
            np.from_dlpack,
            lambda x: x.__dlpack__(),
            lambda x: x.__dlpack__(dl_device=(1, 0), copy=False),
            lambda x: x.__dlpack__(dl_device=(12, 0)),
            capsule,
            capsule_of_torch,
        ],
        ids=["numpy", "no device", "no copy", "own device", "capsule", "capsule of torch"],
    )
    def test_memory_is_not_shared(self, export: Callable[[torch.Tensor], object]) -> None:
        """One sentence names the remedy."""
        x = numbers()
        with pytest.raises(BufferError, match=r"from_dlpack\(x, device=\"cpu\"\) or x.cpu\(\)"):
            export(x)


class Consumer:
    """A tensor as a library sees it that passes these options to it, as numpy 2 does with ``device="cpu"``."""

    def __init__(self, tensor: torch.Tensor, **options: object) -> None:
        self.tensor, self.options = tensor, options

    def __dlpack__(self, **_: object) -> object:
        return self.tensor.__dlpack__(**self.options)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
