"""New tensors have the requested dtype, geometry and device, each in separate memory."""

from __future__ import annotations

import pytest
import torch

import conformance.backend  # noqa: F401 - registers the device
from conformance.backend.dispatch.empty_tensor import is_describable
from conformance.backend.dispatch.tensors import Spec, new_tensor

DTYPES = [
    dtype
    for dtype in dict.fromkeys(v for v in vars(torch).values() if isinstance(v, torch.dtype))
    if "quint" not in str(dtype) and "qint" not in str(dtype) and "bits" not in str(dtype)
]


@pytest.mark.parametrize(("dtype", "index"), [(d, i) for d in DTYPES for i in (0, 1) if not i or is_describable(d)])
def test_every_dtype(dtype: torch.dtype, index: int) -> None:
    """Every dtype works on every device that supports it. int4 formerly became int8 on devices other than the first,
    which support only dtypes of DLPack."""
    tensor = new_tensor(Spec(dtype, (2, 3), (1, 2)), index)
    assert (tensor.dtype, tensor.shape, tensor.stride(), tensor.device.index) == (dtype, (2, 3), (1, 2), index)
    assert tensor.untyped_storage().nbytes() == 6 * dtype.itemsize


def test_what_describes_one_is_filled_in_for_the_next() -> None:
    """The reused descriptor does not change earlier tensors, and their storages stay distinct."""
    shapes = [(2, 3), (5, 1), (0, 4), (3, 2)]
    tensors = [torch.empty(shape, device="tiny") for shape in shapes]
    assert [tuple(t.shape) for t in tensors] == shapes
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
    for i, t in enumerate(tensors):
        t.fill_(i)
    assert [t.unique().tolist() for t in tensors] == [[0.0], [1.0], [], [3.0]]


def test_in_inference_mode() -> None:
    """A tensor created in inference mode is an inference tensor, as in torch."""
    with torch.inference_mode():
        tensor = torch.empty(2, device="tiny")
    assert tensor.is_inference()
    assert not torch.empty(2, device="tiny").is_inference()
