"""An `Observation`: everything observable of an outcome, on the host; `observe` makes one, with one copy per storage.

The key insight: a correct value is only one property of a tensor. Its dtype, shape, strides, offset, contiguity, the
tensors that share its storage, and the cells of the storage *outside* the view can each be wrong as well. An
observation holds no device tensor, so it outlives the target. `oracles` compares two observations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from conformance.record.error_text import text_of
from conformance.standalone.moving import copied_to_host, map_tensors, rebuild, storage_key, whole_storage
from conformance.standalone.torch_compat import leave_forward_ad, version_of, with_memory

_OUT_OF_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|not enough memory|out of ?memory|bad_alloc|MemoryError", re.I
)
LATER_JVP = "a later jvp"
"""Name of the answer of a run that left forward-mode AD entered: the error of the next call of `jvp`."""


def out_of_memory(text: str) -> bool:
    """Whether an error's type or text says that memory ran out, in the wording of Python, torch, C++ or the system."""
    return _OUT_OF_MEMORY.search(text) is not None


@dataclass(frozen=True)
class Raised:
    """A recorded exception: the name of its type, the names of the type's ancestors, and its text."""

    kind: str
    ancestors: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Record this exception."""
        return cls(type(error).__name__, tuple(base.__name__ for base in type(error).__mro__), text_of(error))

    @property
    def not_implemented(self) -> bool:
        """Whether the error says that the operation is missing. Such an error is a `RuntimeError`, but never a correct
        answer."""
        return "NotImplementedError" in self.ancestors


@dataclass(frozen=True)
class Foreign:
    """A result that is neither a plain tensor nor plain data: the name of its type, and its text."""

    kind: str
    text: str


def contiguity(tensor: torch.Tensor) -> str:
    """Return layout flags as words: the flags that torch derives from the geometry, the lazy conj and neg bits, and
    "inference". A tensor without elements has no memory format; the oracle `stride` compares its strides."""
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


FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda tensor: tensor.dtype,
    "shape": lambda tensor: tuple(tensor.shape),
    "stride": lambda tensor: tuple(tensor.stride()),
    "storage_offset": lambda tensor: int(tensor.storage_offset()),
    "contiguity": contiguity,
}
"""How to read each fact of `record.names.METADATA` from a tensor, on either side and in a script."""


def metadata_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the facts of a tensor by the oracle that compares them."""
    return {oracle: read(tensor) for oracle, read in FACTS.items()}


@dataclass(frozen=True)
class Seen:
    """One tensor on the host. `value` is detached and has the original's geometry, and `metadata` has its facts by
    oracle. `alias` is the name of the first tensor with the same storage. `version` counts in-place writes since the
    start passed to `observe`; None without a start. `device` is the type of the original's device."""

    value: torch.Tensor
    metadata: Mapping[str, Any]
    alias: str
    requires_grad: bool
    version: int | None
    device: str = "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """The original's dtype."""
        dtype: torch.dtype = self.metadata["dtype"]
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The original's shape."""
        shape: tuple[int, ...] = self.metadata["shape"]
        return shape


@dataclass(frozen=True)
class Observation:
    """One outcome: tensors and plain values by name, whole storages by their alias name, gradients by leaf, error."""

    tensors: Mapping[str, Seen] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    storages: Mapping[str, torch.Tensor] = field(default_factory=dict)
    grads: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    error: Raised | None = None


def names_of(tree: Any, root: str) -> dict[str, Any]:
    """Return the tree's leaves by name: `out`, `out[0]`, `out['key'][1]`. An empty container is a leaf."""
    if isinstance(tree, (tuple, list)) and tree:
        parts: Any = enumerate(tree)
    elif isinstance(tree, dict) and tree:
        parts = tree.items()
    else:
        return {root: tree}
    return {name: leaf for key, part in parts for name, leaf in names_of(part, f"{root}[{key!r}]").items()}


def tensors_by_name(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a call's arguments by name: `x`, `x[0]`."""
    return {
        name: leaf
        for key, value in inputs.items()
        for name, leaf in names_of(value, key).items()
        if isinstance(leaf, torch.Tensor)
    }


class Observable(Protocol):
    """A device, as far as observing its tensors needs it."""

    def fetch(self, tree: Any) -> Any:
        """Return the tree on the CPU, with one copy per storage."""

    def key(self, tensor: torch.Tensor) -> int:
        """Return a key that is equal for tensors known to share a storage."""


def versions_of(tree: Any) -> dict[int, int]:
    """Return the current version counters of the tree's tensors; pass them to `observe` as the start of counting."""
    versions: dict[int, int] = {}
    map_tensors(tree, lambda tensor: versions.setdefault(id(tensor), version_of(tensor)))
    return versions


def observe(
    outcome: Any = None,
    inputs: Any = (),
    *,
    target: Observable | None = None,
    error: BaseException | None = None,
    versions: Mapping[int, int] | None = None,
) -> Observation:
    """Observe an outcome and the inputs after it, fetched with one copy per storage.

    `outcome` and `inputs` are trees of tensors and plain values; a `Raised` among them is an expected error. If the
    root of a tree is a dict, its keys are the names; otherwise the names start with `out` and `in`. The observation
    keeps storages of inputs whole, for the oracle 'storage'. It does not keep storages of fresh results, since PyTorch
    defines no content outside their views. Gradients belong to leaf inputs. `target` is None for torch CPU. Errors that
    the device raises while it computes are raised here. An answer `a later jvp` exists only if that call would raise.
    """
    stuck = leave_forward_ad()
    named = {**_rooted(outcome, "out"), **_rooted(inputs, "in")} if error is None else _rooted(inputs, "in")
    tensors = {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}
    others = {name: leaf for name, leaf in named.items() if not isinstance(leaf, torch.Tensor)}
    others |= {} if stuck is None else {LATER_JVP: Raised.of(stuck)}
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
            metadata_of(tensor),
            alias,
            tensor.requires_grad,
            version_of(tensor) - versions[id(tensor)] if versions and id(tensor) in versions else None,
            tensor.device.type,
        )
        if name in kept:
            storages.setdefault(alias, _flat(host))
    return Observation(seen, others, storages, grads, error)


def _flat(host: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return whole_storage(host)
