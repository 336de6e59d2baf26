"""Random choices for drawing rules, all made of whole numbers from one source.

Every choice is a whole number from a range, so the same rules work with two sources. In Hypothesis, each choice
shrinks. In a seeded stream, each program has its seed and number as an address, and programs are independent.
Shrinking moves to the least number of a range and the first option of a sequence, so the simplest choice comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from conformance.program.steps.op import Json, Step, dtype_name, number, tensor
from conformance.standalone.moving import storage_key

T = TypeVar("T")
Source = Callable[[int, int], int]
"""Function that returns a whole number from the first to the second argument, both included."""


class Refused(Exception):
    """A step of a hazard or a topic is rejected, or the inputs do not have what it needs."""


class Draw:
    """Choices, each a whole number from the source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return low if low >= high else self.source(low, high)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options. A repeated option has a higher probability."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, hits: int, of: int) -> bool:
        """Return True with a probability of about `hits` / `of`. False is the simpler choice."""
        return self.integer(1, of) > of - hits

    def permutation(self, n: int) -> list[int]:
        """Return an order of range(n). The identity is the simplest choice."""
        left = list(range(n))
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(n)]

    def subset(self, n: int) -> list[int]:
        """Return a sorted subset of range(n)."""
        return [k for k in range(n) if self.chance(1, 2)]


def category(dtype: torch.dtype) -> int:
    """Return 0 for bool, 1 for integers, 2 for floats, 3 for complex. A result may be written to a dtype of at least
    its own category."""
    return 0 if dtype is torch.bool else 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def broadcasts(source: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a tensor of size `source` can be expanded to the size `to`."""
    return len(source) <= len(to) and all(a in (1, b) for a, b in zip(reversed(source), reversed(to)))


def tensor_of(values: Any, dtype: torch.dtype = torch.int64) -> Json:
    """Return the marker of a constant tensor."""
    return {"tensor": values, "dtype": dtype_name(dtype)}


def index_of(dim: int, at: Json) -> Json:
    """Return the index `[:, :, at]` of dimension `dim`, with full slices of the dimensions before it."""
    return {"tuple": [{"slice": [None, None, None]}] * dim + [at]}


class ShadowState(Protocol):
    """Interface of the shadow for the drawing rules. `Shadow` documents the members."""

    env: dict[str, torch.Tensor]
    steps: list[Step]
    avoided: Counter[str]
    has_pieces: bool

    def converts(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool: ...
    def level(self, tensor: torch.Tensor) -> int: ...
    def overlaps(self, tensor: torch.Tensor) -> bool: ...
    def fresh(self, count: int) -> tuple[str, ...]: ...
    def offer(self, step: Step) -> Step | None: ...


class DrawContext(Draw):
    """Context of a drawing rule: its choices, and the shadow of the program so far, whose tensors it may pick."""

    def __init__(self, source: Source, shadow: ShadowState, dtypes: Sequence[str], biased: bool = True) -> None:
        super().__init__(source)
        self.shadow, self.dtypes, self.biased = shadow, dtypes, biased
        self.only: Callable[[torch.Tensor], bool] | None = None
        """Condition on the first tensor that a rule picks, while the draw aims at a coverage cell."""
        self.hidden: set[str] = set()
        """Tensors that rules must not pick: inputs of later calls."""
        self.once: frozenset[str] = frozenset()
        """Ops that a program may contain only once."""
        self.compiled = False
        """Whether the program is for a compiler."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.shadow.env[name]

    def name_of(self, t: torch.Tensor) -> str:
        """Return the first name of a tensor of the program."""
        return next(name for name, other in self.shadow.env.items() if other is t)

    def holds(self, fits: Callable[[torch.Tensor], bool]) -> bool:
        """Return whether some tensor fits."""
        return any(
            t.numel() <= MOST_ELEMENTS and (self.only is None or self.only(t)) and fits(t)
            for name, t in self.shadow.env.items()
            if name not in self.hidden
        )

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """Return the name of a tensor that fits, or None.

        Three kinds of tensors have more weight: recent ones, tensors on a storage that the last steps used, and tensors
        of several elements."""
        touched = {
            storage_key(self.shadow.env[name])
            for step in self.shadow.steps[-2:]
            for name in (*step.names()[:1], *step.out)
            if name in self.shadow.env
        }
        only, self.only = self.only, None
        names: list[str] = []
        for age, (name, candidate) in enumerate(self.shadow.env.items()):
            if candidate.numel() > MOST_ELEMENTS or name in self.hidden:
                continue
            if (only is None or only(candidate)) and fits(candidate):
                late, near = age >= len(self.shadow.env) - 2, storage_key(candidate) in touched
                weight = (1 + late + NEAR * near) * (TELLING if candidate.numel() > 1 else 1)
                names += [name] * (weight if self.biased else 1)
        return self.choice(names) if names else None

    def pick_writable(self, fits: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """Return the name of a tensor that fits. Mostly prefer tensors that accept writes without an error."""
        if self.chance(1, 10):
            return self.pick(fits)
        only = self.only
        name = self.pick(lambda t: fits(t) and not (t.requires_grad and t.is_leaf) and not self.shadow.overlaps(t))
        if name is None:
            self.only = only
        return name or self.pick(fits)

    def dim(self, t: torch.Tensor) -> int:
        """Return a dimension of the tensor, sometimes counted from the end."""
        if not t.dim():
            return self.choice((0, -1))
        dim = self.integer(0, t.dim() - 1)
        return dim - t.dim() if self.chance(1, 4) else dim

    def number(self, dtype: torch.dtype) -> Json:
        """Return a small number that the dtype represents exactly."""
        if dtype is torch.bool:
            return self.chance(1, 2)
        value = self.integer(0, 5) if not dtype.is_signed else self.integer(-3, 5)
        return number(float(value)) if dtype.is_floating_point and self.chance(1, 2) else value

    def constant(self, size: Sequence[int], dtype: torch.dtype, host: bool = False) -> Json:
        """Return a constant tensor of small whole numbers."""
        start = self.choice((1, 2, 5, 0, 50))
        values = torch.arange(start, start + max(1, int(torch.Size(size).numel())))[: torch.Size(size).numel()]
        values = values % (2 if dtype is torch.bool else 100)
        numbers = values.reshape(tuple(size)).to(torch.bool if dtype is torch.bool else torch.int64).tolist()
        return {**tensor_of(numbers, dtype), **({"host": True} if host else {})}

    def divisor(self, size: Sequence[int], dtype: torch.dtype) -> Json:
        """Return a constant tensor of small whole numbers without 0."""
        count, start = int(torch.Size(size).numel()), self.integer(0, 4)
        values = (torch.arange(start, start + count) % 5 + 1) * (-1 if dtype.is_signed and self.chance(1, 3) else 1)
        return tensor_of(values.reshape(tuple(size)).tolist(), dtype)

    def mask(self, size: Sequence[int]) -> Json:
        """Return a constant bool tensor."""
        count = int(torch.Size(size).numel())
        bits = self.integer(0, 2 ** min(count, 12) - 1)
        values = torch.tensor([bool(bits >> (k % 12) & 1) for k in range(count)], dtype=torch.bool)
        return tensor_of(values.reshape(tuple(size)).tolist(), torch.bool)

    def mask_for(self, t: torch.Tensor) -> Json:
        """Return a mask that broadcasts to the tensor: a bool tensor of the program, or a constant."""
        name = (
            self.pick(lambda m: m.dtype is torch.bool and broadcasts(m.size(), t.size())) if self.chance(1, 3) else None
        )
        return tensor(name) if name else self.mask(self.subsize(t.size()))

    def indices(self, below: int, count: int, distinct: bool = False) -> list[int]:
        """Return `count` indices below `below`. If `distinct`, return at most `below` of them."""
        if distinct:
            return self.permutation(below)[:count]
        return [self.integer(0, below - 1) for _ in range(count)]

    def along(self, t: torch.Tensor, distinct: bool = False) -> tuple[int, list[int]]:
        """Return a dimension and indices into it."""
        dim = self.dim(t)
        return dim, self.indices(t.size(dim), self.integer(1, 3), distinct)

    def factors(self, t: torch.Tensor) -> list[Json]:
        """Return two constant matrices whose product has the tensor's size."""
        return [self.constant((t.size(0), 2), t.dtype), self.constant((2, t.size(1)), t.dtype)]

    def subsize(self, size: Sequence[int]) -> tuple[int, ...]:
        """Return a size that broadcasts to `size`."""
        cut = self.choice((0, 0, 0, *range(len(size) + 1)))
        return tuple(1 if self.chance(1, 5) else n for n in size[cut:])

    def operand(
        self, size: Sequence[int], dtype: torch.dtype, *, same: bool = False, host: bool = False, settled: bool = False
    ) -> Json:
        """Return an operand that broadcasts to `size`: a tensor of the program or a constant.

        Its dtype can be written to `dtype`, or is `dtype` if `same`. If `settled`, it has no rounding errors. If
        `host`, a constant is sometimes on the host."""

        def fits(t: torch.Tensor) -> bool:
            right = t.dtype == dtype if same else category(t.dtype) <= category(dtype)
            return right and broadcasts(t.size(), size) and not (settled and self.shadow.level(t) > 1)

        if self.chance(2, 3):
            name = self.pick(fits)
            if name is not None:
                return tensor(name)
        return self.constant(self.subsize(size), dtype, host and self.chance(1, 3))


NEAR = 1
"""Additional weight of a tensor on a storage that the last two steps used."""

TELLING = 3
"""Factor on the weight of a tensor with more than one element. Other tensors show few bugs."""

MOST_ELEMENTS = 256
"""Largest number of elements of a tensor that rules pick. The limit bounds the growth of programs."""
