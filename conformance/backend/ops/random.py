"""Random numbers: drawn by torch's CPU generator and copied over, so that a seed gives the CPU's numbers exactly.

The key insight: bit-identical random numbers make dropout, initialization and sampling comparable by value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..dispatch import transfer
from ..dispatch.fallback import upload
from ..dispatch.tensors import check_writable
from ..runtime import recording
from ..runtime.stats import STATS
from .dynamic import hosted

aten = torch.ops.aten


def _drawn_inplace(op: Any) -> Callable[..., Any]:
    """A kernel that draws into a CPU tensor of the target's layout, since the order of drawing follows memory."""
    name = str(op)

    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        recording.check_closed("it draws random numbers")
        STATS.host[name] += 1
        check_writable(self)
        host = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="cpu")
        return transfer.copy_(self, op(host, *args, **kwargs))

    return kernel


def _drawn_new(op: Any) -> Callable[..., Any]:
    """A kernel that draws a new CPU tensor and moves it over."""
    name = str(op)

    def kernel(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        recording.check_closed("it draws random numbers")
        STATS.host[name] += 1
        return upload(op(*args, device="cpu", **kwargs), torch.device(device).index or 0)

    return kernel


INPLACE = ("uniform_", "normal_", "random_", "random_.from", "random_.to", "exponential_", "cauchy_", "log_normal_",
           "geometric_", "bernoulli_.float")  # fmt: skip
NEW = ("randperm", "randperm.generator")


# Drawn on the CPU from the arguments' own values and layout.
HOSTED = ("bernoulli", "bernoulli.out", "bernoulli.p", "bernoulli_.Tensor", "multinomial", "multinomial.out", "poisson",
          "binomial", "normal.Tensor_float", "normal.Tensor_float_out", "normal.float_Tensor",
          "normal.float_Tensor_out", "normal.Tensor_Tensor", "normal.Tensor_Tensor_out", "_standard_gamma",
          "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_",
          "rrelu_with_noise.out")  # fmt: skip


def native_dropout(input: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, mask): the mask is drawn on the CPU as its kernel does; what it leaves is computed on the device."""
    if train is False or not input.numel() or not input.is_floating_point():
        return _dropout_on_cpu(input, p, train)  # type: ignore[no-any-return]
    recording.check_closed("it draws random numbers")
    kept = 1.0 - p
    like = torch.empty_strided(input.size(), input.stride(), dtype=torch.bool, device="meta")
    drawn = torch.empty_like(like, device="cpu").bernoulli_(kept)
    STATS.host[str(aten.native_dropout.default)] += 1
    mask = upload(drawn, input.device.index or 0)
    # The scale is rounded in the dtype of the input first, as on the CPU.
    return mask.to(input.dtype).mul(1.0 / kept if kept else 0.0).mul(input), mask


_dropout_on_cpu = hosted("native_dropout")


def _find(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


KERNELS: dict[str, Callable[..., Any]] = {
    **{name: _drawn_inplace(_find(name)) for name in INPLACE},
    **{name: _drawn_new(_find(name)) for name in NEW},
    **{name: hosted(name) for name in HOSTED},
    "native_dropout": native_dropout,
}
