"""Structures of an input that a description names by a word: `int32[b+1] in 0..n offsets`, `float32[n, n] one_hot`.

    arranged(WORDS["probabilities"], torch.rand(2, 3), 0, 1).sum(-1)  # tensor([1., 1.])

Random values satisfy none of them, so a kernel for such inputs would never get a valid one. Rows are those of the last
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Ends = tuple[float, float]
Arrange = Callable[[torch.Tensor, Ends], torch.Tensor]
Holds = Callable[[torch.Tensor, Ends], torch.Tensor | bool]

CLUSTER, HEIGHT = 4, 8.0
"""Length of a cluster of maxima, and how far they lie above the other values."""


@dataclass(frozen=True)
class Structure:
    """A structure: `arrange` gives it to values within a range, and `holds` says whether values have it. It needs
    `dims` dimensions at least, and a range or whole numbers if it says so."""

    arrange: Arrange
    holds: Holds
    dims: int = 1
    ranged: bool = False
    whole: bool = False

    def obstacle(self, dims: int, dtypes: Sequence[str], ranged: bool) -> str:
        """Return what a description lacks for this structure; "" if nothing."""
        if dims < self.dims:
            return f"{self.dims} dimension{'s' * (self.dims > 1)}"
        if self.ranged and not ranged:
            return "a range, for example in 0..n-1"
        whole = all("int" in dtype for dtype in dtypes)
        return "whole numbers, for example int64" if self.whole and not whole else ""


def arranged(one: Structure, value: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return values with a structure. Random ones hardly ever have it."""
    return one.arrange(value, (low, high)).to(value.dtype) if value.numel() else value


def has_structure(one: Structure, value: torch.Tensor, low: float, high: float) -> bool:
    """Whether values have a structure."""
    return not value.numel() or bool(one.holds(value.detach(), (low, high)))


def ranks(value: torch.Tensor) -> torch.Tensor:
    """Return the rank of each element of a row."""
    return value.argsort(dim=-1, stable=True).argsort(-1)


def ascending(value: torch.Tensor) -> torch.Tensor:
    """Whether each row ascends."""
    return (value[..., 1:] >= value[..., :-1]).all()


def between_ends(value: torch.Tensor, ends: Ends) -> torch.Tensor:
    """Return an ascending row from one end to the other."""
    row = value.clamp(*ends).sort(-1).values
    row[..., -1], row[..., 0] = ends[1], ends[0]
    return row


def one_hot(value: torch.Tensor) -> torch.Tensor:
    """Return rows with a 1 at the largest element, and zeros."""
    return torch.zeros_like(value).scatter(-1, value.argmax(-1, keepdim=True), 1)


def probabilities(value: torch.Tensor) -> torch.Tensor:
    """Return rows of numbers that are not negative, with the sum 1."""
    return value.detach().double().softmax(-1)


def clustered(value: torch.Tensor) -> torch.Tensor:
    """Return rows whose largest elements lie side by side, at another place in each row."""
    flat = value.detach().reshape(-1, value.shape[-1]).clone()
    starts = torch.arange(len(flat))[:, None] * 7 % flat.shape[1]
    places = (starts + torch.arange(min(CLUSTER, flat.shape[1]))) % flat.shape[1]
    return flat.scatter_add(1, places, torch.full_like(flat, HEIGHT)[:, : places.shape[1]]).view(value.shape)


def positive_definite(value: torch.Tensor) -> torch.Tensor:
    """Return symmetric matrices whose eigenvalues are 1 or more."""
    wide = value.detach().double()
    square = wide @ wide.mT / wide.shape[-1]
    return (square + square.mT) / 2 + torch.eye(wide.shape[-1], dtype=torch.float64)


def is_positive_definite(value: torch.Tensor) -> torch.Tensor | bool:
    """Whether matrices are symmetric, up to rounding, and positive definite."""
    if value.shape[-1] != value.shape[-2] or not torch.equal(value, value.mT):
        return False
    return not torch.linalg.cholesky_ex(value.double()).info.any()


def sums_to_1(value: torch.Tensor) -> torch.Tensor:
    """Whether rows sum to 1, up to rounding in their dtype."""
    off = (value.double().sum(-1) - 1).abs()
    return (value >= 0).all() & (off <= torch.finfo(value.dtype).eps * value.shape[-1]).all()


WORDS: Mapping[str, Structure] = {
    "unique": Structure(
        lambda value, ends: ranks(value.reshape(-1)).view(value.shape) + int(ends[0]),
        lambda value, ends: value.unique().numel() == value.numel(), ranged=True, whole=True,
    ),
    "sorted": Structure(
        lambda value, ends: value.sort(-1).values, lambda value, ends: ascending(value), ranged=True
    ),
    "permutation": Structure(
        lambda value, ends: ranks(value),
        lambda value, ends: (value.sort(-1).values == torch.arange(value.shape[-1])).all(), whole=True,
    ),
    "offsets": Structure(
        between_ends,
        lambda value, ends: ascending(value) & (value[..., 0] == ends[0]).all() & (value[..., -1] == ends[1]).all(),
        ranged=True, whole=True,
    ),
    "one_hot": Structure(lambda value, ends: one_hot(value), lambda value, ends: torch.equal(value, one_hot(value))),
    "probabilities": Structure(lambda value, ends: probabilities(value), lambda value, ends: sums_to_1(value)),
    "clustered": Structure(lambda value, ends: clustered(value), lambda value, ends: True),
    "constant_rows": Structure(
        lambda value, ends: value[..., :1].expand(value.shape).contiguous(),
        lambda value, ends: (value == value[..., :1]).all(),
    ),
    "lower_triangular": Structure(
        lambda value, ends: value.tril(), lambda value, ends: torch.equal(value, value.tril()), 2
    ),
    "upper_triangular": Structure(
        lambda value, ends: value.triu(), lambda value, ends: torch.equal(value, value.triu()), 2
    ),
    "positive_definite": Structure(
        lambda value, ends: positive_definite(value), lambda value, ends: is_positive_definite(value), 2
    ),
}  # fmt: skip
"""The words that may follow a described tensor."""
