"""Tensors as inputs of a program: storages with the same bits, and the exact geometry of each tensor.

Defines `inputs_of`. Two programs start from tensors that already exist: the remainder behind a wrong step, and a sample
of op_db. Tensors on one storage stay on one storage.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from conformance.program.model import Input, Storage
from conformance.program.steps.op import dtype_name
from conformance.program.steps.op import number as json_number
from conformance.standalone.moving import storage_key, whole_storage

LARGEST = 10_000
"""Largest number of cells of a storage that can become an input."""


class NotAnInput(Exception):
    """A tensor that cannot be an input of a program. The message is the reason."""


def inputs_of(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Storage, ...], tuple[Input, ...]]:
    """Return the storages and inputs of CPU tensors by name. Raises NotAnInput."""
    storages: dict[int, tuple[int, Storage]] = {}
    inputs = []
    for name, tensor in tensors.items():
        reason = _obstacle(tensor)
        if reason:
            raise NotAnInput(reason)
        key = storage_key(tensor)
        if key not in storages:
            storages[key] = len(storages), _storage(tensor)
        geometry = tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
        wants_grad = tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        inputs.append(Input(name, storages[key][0], dtype_name(tensor.dtype), *geometry, wants_grad))
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
            as_numbers = Storage(dtype_name(flat.dtype), flat.numel(), [json_number(value) for value in flat.tolist()])
            if torch.equal(as_numbers.make().view(torch.uint8), flat.view(torch.uint8)):
                return as_numbers
        except (RuntimeError, TypeError, NotImplementedError):  # some dtypes have no numbers
            pass
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return Storage("uint8", whole.numel(), whole.tolist())
