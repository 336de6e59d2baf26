"""An `Observation`: all that can be seen of an outcome on the host; `observe` takes one, with one copy a storage.

The key insight: a value is the least of what a tensor promises. Its dtype, shape, strides, offset, contiguity, which
tensors share its storage, and the cells of the storage *outside* the view can each be wrong while the value is right.
An observation holds no device tensor, so it outlives the target. How two observations differ is `oracles`' business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.core.moving import copied_to_host, map_tensors, rebuild, storage_key, whole_storage
from conformance.core.target import Target
from conformance.core.torch_compat import version_of, with_memory

_OUT_OF_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|not enough memory|out of ?memory|bad_alloc|MemoryError", re.I
)


def out_of_memory(text: str) -> bool:
    """Whether an error's type or text says that memory ran out, in the words of Python, torch, C++ or the system."""
    return _OUT_OF_MEMORY.search(text) is not None


@dataclass(frozen=True)
class Raised:
    """An exception as it was seen: its type's name, the names of the type's ancestors, and its text."""

    kind: str
    ancestors: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """What was seen of this exception."""
        return cls(type(error).__name__, tuple(base.__name__ for base in type(error).__mro__), str(error))

    @property
    def not_implemented(self) -> bool:
        """Whether it says that the operation is missing, which is a `RuntimeError` but no right answer."""
        return "NotImplementedError" in self.ancestors


@dataclass(frozen=True)
class Seen:
    """One tensor on the host. `value` is detached and has the original's geometry; `alias` is the first name seen with
    the same storage; `version` counts in-place writes since the start that was given to `observe`, None without one."""

    value: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    contiguity: str
    alias: str
    requires_grad: bool
    version: int | None

    @property
    def significant_stride(self) -> tuple[int, ...]:
        """The strides that say where an element lies."""
        return tuple(st for n, st in zip(self.shape, self.stride) if n != 1) if 0 not in self.shape else ()


@dataclass(frozen=True)
class Observation:
    """All that was seen: tensors and plain values by name, whole storages by their alias name, gradients by leaf."""

    tensors: Mapping[str, Seen] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    storages: Mapping[str, torch.Tensor] = field(default_factory=dict)
    grads: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    error: Raised | None = None
    kernels: int | None = None


def names_of(tree: Any, root: str) -> dict[str, Any]:
    """The tree's leaves by name: `out`, `out[0]`, `out['key'][1]`; an empty container is a leaf."""
    if isinstance(tree, (tuple, list)) and tree:
        parts: Any = enumerate(tree)
    elif isinstance(tree, dict) and tree:
        parts = tree.items()
    else:
        return {root: tree}
    return {name: leaf for key, part in parts for name, leaf in names_of(part, f"{root}[{key!r}]").items()}


def versions_of(tree: Any) -> dict[int, int]:
    """The version counters of the tree's tensors now, to be given to `observe` as the start of counting."""
    versions: dict[int, int] = {}
    map_tensors(tree, lambda tensor: versions.setdefault(id(tensor), version_of(tensor)))
    return versions


def observe(
    outcome: Any = None,
    inputs: Any = (),
    *,
    target: Target | None = None,
    error: BaseException | None = None,
    kernels: int | None = None,
    versions: Mapping[int, int] | None = None,
) -> Observation:
    """Everything that can be seen of an outcome and of its inputs after it, fetched with one copy a storage.

    `outcome` and `inputs` are trees of tensors and plain values; a `Raised` among them is an error that was expected.
    As a dict at its root, a tree's keys are the names; otherwise the names start with `out` and `in`. Storages that an
    input lies in are kept whole, for the oracle 'storage'; what a fresh result holds outside its views is nobody's
    promise. Gradients are those of leaf inputs.
    `target` is None for torch CPU. Errors that the device raises while it computes are raised here.
    """
    named = {**_rooted(outcome, "out"), **_rooted(inputs, "in")} if error is None else _rooted(inputs, "in")
    tensors = {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}
    others = {name: leaf for name, leaf in named.items() if not isinstance(leaf, torch.Tensor)}
    kept = {name for name, leaf in _rooted(inputs, "in").items() if isinstance(leaf, torch.Tensor)}
    leaves = {name: tensors[name] for name in kept if tensors[name].is_leaf and tensors[name].requires_grad}
    grads = {name: with_memory(leaf.grad) for name, leaf in sorted(leaves.items())}
    fetched, host_grads = target.fetch((tensors, grads)) if target else rebuild((tensors, grads), copied_to_host)
    return _seen(
        tensors,
        fetched,
        kept,
        others,
        host_grads,
        Raised.of(error) if error else None,
        kernels,
        versions,
        target.key if target else storage_key,
    )


def _rooted(tree: Any, root: str) -> dict[str, Any]:
    if isinstance(tree, dict):
        return {name: leaf for key, part in tree.items() for name, leaf in names_of(part, str(key)).items()}
    return names_of(tree, root) if not (isinstance(tree, (tuple, list)) and not tree) else {}


def _seen(
    tensors: dict[str, torch.Tensor],
    fetched: dict[str, torch.Tensor],
    kept: set[str],
    others: dict[str, Any],
    grads: dict[str, torch.Tensor | None],
    error: Raised | None,
    kernels: int | None,
    versions: Mapping[int, int] | None,
    key_of: Callable[[torch.Tensor], int],
) -> Observation:
    first: dict[int, str] = {}
    seen: dict[str, Seen] = {}
    storages: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        alias = first.setdefault(key_of(tensor), name)
        host = fetched[name].detach()
        seen[name] = Seen(
            host,
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            contiguity(tensor),
            alias,
            tensor.requires_grad,
            version_of(tensor) - versions[id(tensor)] if versions and id(tensor) in versions else None,
        )
        if name in kept:
            storages.setdefault(alias, _flat(host))
    return Observation(seen, others, storages, grads, error, kernels)


def _flat(host: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return whole_storage(host)


def contiguity(tensor: torch.Tensor) -> str:
    """The layout flags that torch derives from the geometry, the lazy conj and neg bits, and whether autograd never
    records it, as words. A tensor without elements is stored in no order; its strides are another oracle's."""
    dims = tensor.dim() if tensor.numel() else 0
    flags = {
        "contiguous": tensor.is_contiguous(),
        "channels_last": dims == 4 and tensor.is_contiguous(memory_format=torch.channels_last),
        "channels_last_3d": dims == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "inference": tensor.is_inference(),
    }
    return " ".join(word for word, holds in flags.items() if holds) or "strided"
