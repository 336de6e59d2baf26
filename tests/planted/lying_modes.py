"""Dispatch modes over torch CPU with one fault each: `device:cpu,import=tests.planted.lying_modes,call=FUNCTION`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Nothing(TorchDispatchMode):
    """Mode without a fault."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.changed(str(func), args, func(*args, **(kwargs or {})))

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Return what the operator of this name returns."""
        return result


class TanhBackward(Nothing):
    """The gradient of tanh is 1 % too large."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result * 1.01 if name == "aten.tanh_backward.default" else result


class NegativeCumsum(Nothing):
    """`cumsum` is wrong along a dimension that is counted from the end."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result + 1 if name == "aten.cumsum.default" and args[1] < 0 else result


class Bernoulli(Nothing):
    """`bernoulli_` draws ones for zeros."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result.mul_(-1).add_(1) if name == "aten.bernoulli_.float" else result


class MulOut(Nothing):
    """`mul` with `out=` writes numbers that are 1 too large."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result.add_(1) if name == "aten.mul.out" else result


class PromotingSub(Nothing):
    """`sub` of two tensors returns float64."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        return result.double() if name == "aten.sub.Tensor" and result.is_floating_point() else result


class Addcdiv(Nothing):
    """`addcdiv_` adds a thousandth too much, batch norm keeps a running variance that is a percent too large, and the
    gradient of an embedding is a ten-thousandth too large."""

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        if name == "aten.addcdiv_.default":
            return result.mul_(1.001)
        if name == "aten.embedding_dense_backward.default":
            return result * 1.0001
        if name == "aten.native_batch_norm.default" and args[4] is not None and args[5]:
            args[4].mul_(1.01)
        return result


def stateful() -> None:
    """Enter the mode with a wrong `addcdiv_` and a wrong running variance."""
    Addcdiv().__enter__()


def bernoulli() -> None:
    """Enter the mode with a wrong `bernoulli_`."""
    Bernoulli().__enter__()


def mul_out() -> None:
    """Enter the mode with a wrong `mul(out=)`."""
    MulOut().__enter__()


def promoting_sub() -> None:
    """Enter the mode with a `sub` of another dtype."""
    PromotingSub().__enter__()


def nothing() -> None:
    """Enter the mode without a fault."""
    Nothing().__enter__()


def tanh_backward() -> None:
    """Enter the mode with a wrong gradient of tanh."""
    TanhBackward().__enter__()


def negative_cumsum() -> None:
    """Enter the mode with a wrong `cumsum`."""
    NegativeCumsum().__enter__()


class RoundedProducts(Nothing):
    """Products of float32 matrices are rounded to bfloat16. Those with more than six elements are also 10 % too large
    if `wrong` is set."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def changed(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        if not (name.startswith(("aten.mm.", "aten.addmm.", "aten.bmm.")) and result.dtype == torch.float32):
            return result
        rounded = result.to(torch.bfloat16).float()
        return rounded * 1.1 if self.wrong and result.numel() > 6 else rounded


def rounded_products() -> None:
    """Enter the mode with rounded products of matrices."""
    RoundedProducts().__enter__()


def wrong_products() -> None:
    """Enter the mode with rounded products of matrices, of which large ones are wrong."""
    RoundedProducts(wrong=True).__enter__()
