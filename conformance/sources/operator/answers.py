"""Answers of the process in which the operator runs, as bytes that the judging process reads without running any code.

    unpack_answer(pack_answer(observation)) == observation

The operator may have replaced every function of its own process, so nothing in there compares anything: it sends what
it saw, and `unpack_answer` makes plain data of it. A pickle may name any function, so `unpack_answer` takes few types
only.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any

import torch

from conformance.standalone.observation import Foreign, Observation, Raised, Seen

TYPES = (Observation, Seen, Raised, Foreign, complex, slice, frozenset, torch.Size)
"""Types of objects in answers, beside tensors, dtypes, and the types that a pickle writes without a name."""


class UnknownAnswer(Exception):
    """Bytes that hold anything but an answer."""


def pack_answer(answer: Any) -> bytes:
    """Return an answer as bytes."""
    file = io.BytesIO()
    _Packer(file, protocol=5).dump(answer)
    return file.getvalue()


def unpack_answer(content: bytes) -> Any:
    """Return the answer of these bytes. Raises UnknownAnswer."""
    try:
        return _Unpacker(io.BytesIO(content)).load()
    except Exception as error:  # the operator's process may have written anything
        raise UnknownAnswer(f"{type(error).__name__}: {error}") from None


class _Packer(pickle.Pickler):
    """Writes the memory of a tensor, and of any other object its type and its text."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            content = ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""
            geometry = int(value.storage_offset()), tuple(value.shape), value.stride()
            return tensor_of, (content, value.dtype, *geometry, value.is_conj(), value.is_neg())
        return NotImplemented


def tensor_of(
    content: bytes,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    conj: bool,
    neg: bool,
) -> torch.Tensor:
    """Return a tensor on new memory with this content."""
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    value = torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), offset, size, stride)
    value = value.conj() if conj else value
    return torch.ops.aten._neg_view(value) if neg else value


class _Unpacker(pickle.Unpickler):
    """Reads tensors and plain data."""

    def find_class(self, module: str, name: str) -> Any:
        known: dict[str, Any] = {kind.__name__: kind for kind in (*TYPES, tensor_of)}
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if name in known and known[name].__module__ == module:
            return known[name]
        raise UnknownAnswer(f"{module}.{name}")
