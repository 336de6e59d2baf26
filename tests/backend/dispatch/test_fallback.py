"""Operators that read any data pointer as a pointer to host memory. Each of them formerly ended the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import conformance.backend as backend
from conformance.backend.dispatch import schema_kernels

aten = torch.ops.aten


def agree(function: Callable[..., Any], *args: Any) -> None:
    """Compare the result and the changed arguments on tiny with the CPU's. The call must count as a fallback."""
    moved = [a.to("tiny") if isinstance(a, torch.Tensor) else a for a in args]
    backend.reset_stats()
    result = function(*moved)
    assert backend.stats()["fallback"], "the CPU computes it, counted"
    torch.testing.assert_close(_host(result), function(*args), equal_nan=True)
    for ours, expected in zip(moved, args, strict=True):
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(ours.cpu(), expected)


def _host(x: Any) -> Any:
    return x.cpu() if isinstance(x, torch.Tensor) else type(x)(map(_host, x)) if isinstance(x, tuple | list) else x


class TestHostMemory:
    """These operators run on CPU copies, and count as fallbacks."""

    def test_grid_sampler_of_the_cpu(self) -> None:
        image, grid = torch.rand(1, 2, 3, 4), 2 * torch.rand(1, 2, 2, 2) - 1
        agree(aten._grid_sampler_2d_cpu_fallback, image, grid, 0, 0, False)
        agree(aten._grid_sampler_2d_cpu_fallback_backward, torch.rand(1, 2, 2, 2), image, grid, 0, 0, False)

    def test_saturated_weights(self) -> None:
        """The CPU kernel writes to its argument although the schema denies it. The device's kernel does not."""
        x = torch.tensor([[1e6, -1e6], [0.5, 3.0]]).to("tiny")
        assert aten._saturate_weight_to_fp16(x).tolist() == [[65504.0, -65504.0], [0.5, 3.0]]
        assert x[0, 0].item() == 1e6

    def test_pruned_rows(self) -> None:
        agree(aten._rowwise_prune, torch.rand(3, 4), torch.tensor([True, False, True]), torch.int32)

    def test_quantization_parameters(self) -> None:
        """The CPU finds the parameters by a search over the tensor's elements."""
        agree(lambda x: torch.choose_qparams_optimized(x, 16, 4, 0.1, 8), torch.rand(16))

    def test_sobol_numbers(self) -> None:
        state = torch.zeros(2, 30, dtype=torch.long)
        agree(torch._sobol_engine_initialize_state_, state.clone(), 2)
        torch._sobol_engine_initialize_state_(state, 2)
        agree(lambda q, s: torch._sobol_engine_draw(q, 4, s, 2, 0, torch.float32), state[:, 0].clone(), state)
        agree(lambda q, s: torch._sobol_engine_ff_(q, 3, s, 2, 0), state[:, 0].clone(), state)

    @pytest.mark.parametrize(
        "pack", [torch.fbgemm_linear_quantize_weight, torch.fbgemm_pack_gemm_matrix_fp16]
    )  # fmt: skip
    def test_what_only_kernels_of_the_cpu_read_is_refused(self, pack: Callable[..., Any]) -> None:
        with pytest.raises(NotImplementedError, match=r"tiny: aten\.fbgemm_.* packs weights for kernels of the CPU"):
            pack(torch.rand(4, 4).to("tiny"))


class TestMissingLayouts:
    """Tensors in an unsupported layout are refused in one sentence. Quantizing formerly ended the process."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.quantize_per_tensor(torch.rand(4, device="tiny"), 0.1, 0, torch.quint8),
            lambda: torch.quantize_per_tensor_dynamic(torch.rand(4, device="tiny"), torch.quint8, False),
            lambda: torch.quantize_per_tensor(torch.rand(4), 0.1, 0, torch.quint8).to("tiny"),
            lambda: torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=torch.quint8, device="tiny"),
        ],
    )
    def test_quantized(self, make: Callable[[], torch.Tensor]) -> None:
        with pytest.raises(NotImplementedError, match="tiny: there are no quantized tensors: quantize on the CPU"):
            make()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.nested.nested_tensor([torch.rand(2, 3, device="tiny")]),
            lambda: torch.nested.nested_tensor([torch.rand(2, 3)]).to("tiny"),
            lambda: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device="tiny"),
            lambda: torch.nested.as_nested_tensor([torch.rand(2, 3)], device="tiny"),
            lambda: torch._nested_tensor_from_mask(torch.rand(1, 2, 3).to("tiny"), torch.ones(1, 2).bool().to("tiny")),
        ],
    )
    def test_strided_nested(self, make: Callable[[], torch.Tensor]) -> None:
        with pytest.raises(NotImplementedError, match=r"tiny: there are no nested tensors in the strided layout"):
            make()

    def test_mkldnn(self) -> None:
        """to_mkldnn is refused. It formerly raised KeyError: 'torch._mkldnn'."""
        with pytest.raises(NotImplementedError, match="tiny: there are no tensors in the layout of oneDNN"):
            torch.rand(3, 3, device="tiny").to_mkldnn()


class TestWindows:
    """torch.kaiser_window equals the CPU's. It formerly failed with an internal assertion of torch."""

    def test_kaiser(self) -> None:
        for arguments in ((7,), (7, False), (7, True, 3.0)):
            window = torch.kaiser_window(*arguments, device="tiny")
            assert window.device.type == "tiny"
            torch.testing.assert_close(window.cpu(), torch.kaiser_window(*arguments))


class TestOneTensorTwice:
    """A tensor that is input and output of a call is copied back once. Formerly a second copy restored its old
    content."""

    def test_smm(self) -> None:
        """torch.smm passes its empty result as an input. Formerly the computed values were lost, and the result was
        empty."""
        matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (2, 2)).coalesce()
        result = torch.smm(matrix.to("tiny"), torch.eye(2, device="tiny"))
        assert torch.equal(result.cpu().to_dense(), torch.smm(matrix, torch.eye(2)).to_dense())


class TestFaultsOfValueFunctions:
    """For an error while a graph is built, torch CPU runs the call only if the arguments may have caused the error."""

    @staticmethod
    def call(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> torch.Tensor:
        """Return `neg` of a size that no other test has, with a value function that raises `error`."""

        def fails(*_: Any) -> Any:
            raise error("planted")

        monkeypatch.setattr(schema_kernels.FunctionalOverload, "_compute", fails)
        backend.reset_stats()
        return torch.arange(7919.0).to("tiny").neg()

    def test_an_attribute_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An AttributeError reaches the caller. Formerly the CPU computed the result."""
        with pytest.raises(AttributeError, match="planted"):
            self.call(monkeypatch, AttributeError)
        assert not backend.stats()["fallback"]

    def test_an_error_of_the_arguments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a ValueError, the CPU computes the result, which counts as a fallback."""
        assert self.call(monkeypatch, ValueError)[:3].tolist() == [0, -1, -2]
        assert backend.stats()["fallback"] == {"aten.neg.default": 1}
