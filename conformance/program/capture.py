"""Tensors as inputs of a program: storages with the same bits, and the exact geometry of each tensor.

Defines `inputs_of`, and `encoded` for the arguments of a call. Three programs start from tensors that already exist:
the remainder behind a wrong step, a sample of op_db, and a recorded call. Tensors on one storage stay on one storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy
import torch

from conformance.program.model import Input, Storage
from conformance.program.steps.op import Json, constant, dtype_name, is_name, number, tensor
from conformance.standalone.moving import MARKER, storage_key, whole_storage

LARGEST = 10_000
"""Largest number of cells of a storage that can become an input."""


class NotAnInput(Exception):
    """A tensor that cannot be an input of a program. The message is the reason."""


def inputs_of(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Storage, ...], tuple[Input, ...]]:
    """Return the storages and inputs of CPU tensors by name. Raises NotAnInput."""
    storages: dict[int, tuple[int, Storage]] = {}
    inputs = []
    for name, value in tensors.items():
        reason = _obstacle(value)
        if reason:
            raise NotAnInput(reason)
        key = storage_key(value)
        if key not in storages:
            storages[key] = len(storages), _storage(value)
        geometry = tuple(value.size()), tuple(value.stride()), int(value.storage_offset())
        wants_grad = value.requires_grad and (value.is_floating_point() or value.is_complex())
        inputs.append(Input(name, storages[key][0], dtype_name(value.dtype), *geometry, wants_grad))
    return tuple(storage for _, storage in storages.values()), tuple(inputs)


def _obstacle(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be an input; "" if it can."""
    if tensor.layout is not torch.strided:
        return "a sparse tensor"
    if tensor.is_meta:
        return "a tensor without values"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazy conjugate or negative"
    if tensor.is_inference():
        return "an inference tensor"
    if whole_storage(tensor.detach()).numel() > LARGEST:
        return f"a storage of more than {LARGEST:,} elements"
    return ""


def _storage(tensor: torch.Tensor) -> Storage:
    """Return a storage with the same bits as the tensor's: numbers of its dtype if these keep the bits, else uint8."""
    flat = whole_storage(tensor.detach())
    if flat.numel() * flat.element_size() == tensor.untyped_storage().nbytes():
        try:
            as_numbers = Storage(dtype_name(flat.dtype), flat.numel(), [number(value) for value in flat.tolist()])
            if torch.equal(as_numbers.make().view(torch.uint8), flat.view(torch.uint8)):
                return as_numbers
        except (RuntimeError, TypeError, NotImplementedError):  # some dtypes have no numbers
            pass
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return Storage("uint8", whole.numel(), whole.tolist())


class Unwritable(Exception):
    """A call that no program can hold. The message is the reason."""


def encoded(value: Any, marker: Callable[[torch.Tensor], Json]) -> Json:
    """Return an argument as JSON; `marker` encodes its tensors. Raises Unwritable."""
    if isinstance(value, torch.Tensor):
        return marker(value)
    if isinstance(value, torch.device):
        return {"device": 0} if value == MARKER else str(value)
    for kind, name in ((torch.dtype, "dtype"), (torch.memory_format, "memory_format"), (torch.layout, "layout")):
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) in (float, complex):
        return number(value)
    if isinstance(value, numpy.generic):
        return {"numpy": number(value.item()), "dtype": value.dtype.name}
    if isinstance(value, slice):
        return {"slice": [encoded(part, marker) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": 0}
    if isinstance(value, (tuple, list)):
        parts = [encoded(part, marker) for part in value]
        return parts if isinstance(value, list) else {"tuple": parts}
    raise Unwritable(f"an argument of type {type(value).__name__}")


def as_inputs(
    leaves: Mapping[str, torch.Tensor], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], list[Json], dict[str, Json]]:
    """Return the tensors of a call by the names of a program's inputs, and the arguments of its step. `leaves` holds
    the tensors by their names in the call. Raises Unwritable."""
    known: dict[int, str] = {}
    inputs: dict[str, torch.Tensor] = {}
    for name, leaf in leaves.items():
        if id(leaf) not in known:
            plain = "".join(c if c.isalnum() else "_" for c in name).strip("_").replace("__", "_")
            known[id(leaf)] = plain if is_name(plain) and plain not in (*inputs, "result") else f"x{len(inputs)}"
            inputs[known[id(leaf)]] = leaf

    def marker(leaf: torch.Tensor) -> Json:
        return tensor(known[id(leaf)])

    return (
        inputs,
        [encoded(arg, marker) for arg in args],
        {key: encoded(value, marker) for key, value in kwargs.items()},
    )


def on_host(value: torch.Tensor) -> Json:
    """Return a tensor that stays on the CPU as a constant. Raises Unwritable."""
    if not value.is_contiguous() or value.requires_grad or (value.dim() > 1 and not value.numel()):
        raise Unwritable("a tensor on the CPU with a layout")
    return constant(value, host=True)
