"""Random numbers from torch's CPU generator, copied to the device, so that a seed gives exactly the CPU's numbers.

Bit-identical random numbers make dropout, initialization and sampling comparable by value. Operators that read no
elements can draw again at each run of a compiled graph, in the order of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..dispatch import transfer
from ..dispatch.fallback import upload
from ..dispatch.tensors import Spec, check_writable, content_of, tensor_on
from ..lazy.storage import stand_in
from ..runtime import random_state, recording
from ..runtime.stats import STATS
from .dynamic import hosted

aten = torch.ops.aten


def _drawn(
    like: torch.Tensor,
    index: int,
    op: Any,
    arguments: Callable[[], Sequence[Any]],
    named: dict[str, Any],
    name: str = "",
) -> torch.Tensor:
    """Result of the operator on the CPU, copied to the device in the layout of `like`.

    In a recording, the operator draws again at each run, and `arguments` creates its arguments then.
    """

    def counted() -> torch.Tensor:
        STATS.host[name or str(op)] += 1
        with random_state.drawing(op, index, arguments(), named) as (args, kwargs):
            return upload(op(*args, **kwargs), index)

    if not recording.is_open() or not like.numel():
        return counted()
    spec = Spec(like.dtype, tuple(like.size()), tuple(like.stride()))
    real, nbytes = content_of(spec)
    storage, buffer = stand_in(nbytes, index, real)
    recording.feed(buffer, counted)
    return tensor_on(storage, *spec, 0)


def _empty(x: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)


def _drawn_inplace(op: Any) -> Callable[..., Any]:
    """Kernel that draws into a CPU tensor of the target's layout, because the order of drawing follows memory."""

    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        check_writable(self)
        index, like = self.device.index or 0, _empty(self, "meta")
        return transfer.copy_(self, _drawn(like, index, op, lambda: (_empty(like, "cpu"), *args), kwargs))

    return kernel


def _drawn_alike(op: Any) -> Callable[..., Any]:
    """Kernel that draws a new tensor; only the layout of the first argument matters."""

    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        index, like = self.device.index or 0, _empty(self, "meta")
        drawn = op(like, *args, **kwargs)
        return _drawn(drawn, index, op, lambda: (_empty(like, "cpu"), *args), kwargs)

    return kernel


def _randperm(name: str) -> Callable[..., Any]:
    """Kernel that draws a new CPU tensor, with an optional generator, and copies it to the device."""
    op = aten.randperm.generator

    def kernel(n: int, *, generator: Any = None, device: Any = None, **kwargs: Any) -> torch.Tensor:
        index, like = torch.device(device).index or 0, aten.randperm.default(n, device="meta", **kwargs)
        return _drawn(like, index, op, lambda: (n,), {"generator": generator, "device": "cpu", **kwargs}, name)

    return kernel


INPLACE = ("uniform_", "normal_", "random_", "random_.from", "random_.to", "exponential_", "cauchy_", "log_normal_",
           "geometric_", "bernoulli_.float")  # fmt: skip
NEW = ("randperm", "randperm.generator")
ALIKE = ("bernoulli.p",)


# Operators that draw on the CPU from the arguments' own values and layout.
HOSTED = ("bernoulli", "bernoulli.out", "bernoulli_.Tensor", "multinomial", "multinomial.out", "poisson",
          "binomial", "normal.Tensor_float", "normal.Tensor_float_out", "normal.float_Tensor",
          "normal.float_Tensor_out", "normal.Tensor_Tensor", "normal.Tensor_Tensor_out", "_standard_gamma",
          "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_",
          "rrelu_with_noise.out")  # fmt: skip


def native_dropout(input: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, mask): the CPU draws the mask as in its own kernel; the device computes the result."""
    if train is False or not input.numel() or not input.is_floating_point():
        return _dropout_on_cpu(input, p, train)  # type: ignore[no-any-return]
    kept = 1.0 - p
    like = torch.empty_like(_empty(input, "meta"), dtype=torch.bool)
    op, name, index = aten.bernoulli_.float, str(aten.native_dropout.default), input.device.index or 0
    mask = _drawn(like, index, op, lambda: (torch.empty_like(like, device="cpu"), kept), {}, name)
    # The scale is rounded in the dtype of the input first, as on the CPU.
    scale = torch.tensor(1.0 / kept if kept else 0.0, dtype=input.dtype, device="cpu").item()
    return input.mul(mask).mul(scale), mask


_dropout_on_cpu = hosted("native_dropout")


def _find(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


KERNELS: dict[str, Callable[..., Any]] = {
    **{name: _drawn_inplace(_find(name)) for name in INPLACE},
    **{name: _randperm(str(_find(name))) for name in NEW},
    **{name: _drawn_alike(_find(name)) for name in ALIKE},
    **{name: hosted(name) for name in HOSTED},
    "native_dropout": native_dropout,
}
