"""Calls that CUDA supports and torch CPU has no kernel for. The device computes them in a wider dtype and rounds
once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import conformance.backend  # noqa: F401

X = torch.linspace(0.3, 2.5, 12, dtype=torch.float64)
Z = torch.complex(X, X.flip(0))
LABELS = torch.tensor([0, 3, 1])

PROGRAMS: dict[str, tuple[torch.dtype, Callable[[Tensor], Tensor]]] = {
    "polygamma": (torch.float16, lambda x: torch.polygamma(2, x)),
    "round decimals": (torch.float16, lambda x: torch.round(x, decimals=2)),
    "avg_pool3d": (torch.float16, lambda x: F.avg_pool3d(x.view(1, 1, 3, 2, 2), 2)),
    "multi_margin_loss": (torch.bfloat16, lambda x: F.multi_margin_loss(x.view(3, 4), LABELS.to(x.device))),
    "rfft": (torch.float16, torch.fft.rfft),
    "irfft2": (torch.complex32, lambda x: torch.fft.irfft2(x.view(3, 4))),
    "hfft": (torch.complex32, torch.fft.hfft),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_sixteen_bits(name: str) -> None:
    """16-bit calls agree with the wide dtype, and so do their gradients. Formerly each of them was refused."""
    dtype, program = PROGRAMS[name]
    wide = (Z if dtype.is_complex else X).clone()
    x, wide = wide.to(dtype).to("tiny").requires_grad_(), wide.to(dtype).to(wide.dtype).requires_grad_()
    expected, actual = program(wide), program(x)
    rounded = {torch.float64: dtype.to_real() if dtype.is_complex else dtype, torch.complex128: torch.complex32}
    assert actual.dtype == rounded[expected.dtype]
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().to(actual.dtype))
    for y in (actual, expected):
        torch.view_as_real(y).float().sum().backward() if y.is_complex() else y.sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.cpu(), wide.grad.to(dtype), rtol=2e-2, atol=1e-3)


def test_no_elements() -> None:
    """A call without elements works. The CPU, which only checks the call, formerly refused the dtype."""
    result = torch.empty(0, 2, dtype=torch.complex32, device="tiny").exp()
    assert (result.dtype, tuple(result.shape)) == (torch.complex32, (0, 2))


def test_in_place_and_out() -> None:
    """In-place and out= calls write to the given tensor, and its views see the write."""
    x = X.half().to("tiny")
    view = x[2:]
    assert x.polygamma_(1) is x
    expected = torch.polygamma(1, X.half().double()).half()
    torch.testing.assert_close(view.cpu(), expected[2:])
    out = torch.empty(0, dtype=torch.float16, device="tiny")
    assert torch.polygamma(1, X.half().to("tiny"), out=out) is out
    torch.testing.assert_close(out.cpu(), expected)


def test_other_errors_stay_the_cpu_s() -> None:
    """Only a missing kernel is replaced: a shape that torch refuses is refused in 16 bits too."""
    with pytest.raises(RuntimeError, match="tensor expected for input"):
        F.avg_pool3d(torch.ones(2, 2, dtype=torch.float16, device="tiny"), 2)
    with pytest.raises(RuntimeError, match="Low precision dtypes not supported"):
        torch.linalg.inv(torch.eye(2, dtype=torch.float16, device="tiny"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_histc_of_integers(dtype: torch.dtype) -> None:
    """histc of integers counts in the dtype of the elements. The mixture-of-experts models of transformers call it."""
    x = torch.tensor([1, 2, 3, 3, 9, 12], dtype=dtype)
    for bins, low, high in ((3, 0, 9), (4, 0, 0), (10, 0, 10), (7, 2, 12)):
        histogram = torch.histc(x.to("tiny"), bins, low, high)
        assert histogram.dtype == dtype
        assert histogram.tolist() == torch.histc(x.double(), bins, low, high).tolist()
    assert torch.histc(x[:1].to("tiny"), 4).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_nansum(dtype: torch.dtype) -> None:
    """nansum ignores an element if either part is nan. The CPU supports no complex nansum."""
    x = torch.tensor([[1 + 2j, complex("nan")], [complex(3, float("nan")), 4j]], dtype=dtype)
    there = x.masked_fill(x.isnan(), 0)
    assert torch.equal(x.to("tiny").nansum().cpu(), there.sum())
    assert torch.equal(x.to("tiny").nansum(1, keepdim=True).cpu(), there.sum(1, keepdim=True))
    assert torch.equal(x.to("tiny").nanmean(0).cpu(), there.sum(0))


def trains(dtype: torch.dtype, kind: str, options: dict[str, bool]) -> None:
    """Parameters in 16 bits end where the same parameters in float32 end."""
    ends = []
    for d, kept in (("tiny", dtype), ("cpu", torch.float32)):
        p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=kept).to(d))
        optimizer = getattr(torch.optim, kind)([p], lr=0.125, **(options if d == "tiny" else {}))
        for _ in range(3):
            optimizer.zero_grad()
            p.square().sum().backward()
            optimizer.step()
        assert p.dtype == kept
        ends.append(p.detach().float().cpu())
    torch.testing.assert_close(*ends, rtol=2e-2, atol=2e-2)


def test_an_optimizer_trains() -> None:
    trains(torch.float16, "SGD", {"fused": True})
    trains(torch.bfloat16, "SGD", {"foreach": True})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_optimizers_train(dtype: torch.dtype, kind: str, options: dict[str, bool]) -> None:
    trains(dtype, kind, options)


@pytest.mark.parametrize("function", [torch.mm, torch.linalg.solve, torch.linalg.householder_product])
def test_autocast_of_the_cpu_has_no_effect(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The CPU's autocast does not reach a call that runs on the CPU for the device. Formerly `mm` became bfloat16, also
    in later calls outside of the context."""
    a, b = (X[:9].float().view(3, 3) + torch.eye(3)).to("tiny"), torch.ones(3, 3).to("tiny")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = function(a, b if function is not torch.linalg.householder_product else b[0])
    assert inside.dtype is torch.float32
