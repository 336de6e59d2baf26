"""`torch.tiny.FloatTensor`, `torch.tiny.FloatStorage` and similar names for a dtype on the device.

Defines `classes` and `install`, which allows these types as the default tensor type. The types have no instances: a
call makes an ordinary tensor, and `isinstance` compares dtype and device. A class implements only these two operations.
torch has such classes for storages, which find their device by their module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..runtime import torch_compat
from .replacements import replace_at_import
from .storages import refuse_file

NAMES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
    "ShortTensor": torch.int16, "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip

STORAGES = {name.replace("Tensor", "Storage"): dtype for name, dtype in NAMES.items()} | {
    "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128,
}  # fmt: skip


class _Meta(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.device.type == "tiny" and instance.dtype == cls.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        """A tensor of the given sizes, or with the elements of a sequence or tensor."""
        if not args:
            return torch.empty(0, dtype=cls.dtype, device="tiny")
        if all(isinstance(x, int) for x in args) or isinstance(args[0], torch.Size):
            return torch.empty(*args, dtype=cls.dtype, device="tiny")
        if isinstance(args[0], torch.Tensor):
            if args[0].dtype != cls.dtype:
                raise TypeError(f"expected a tensor of {cls.dtype}, but got one of {args[0].dtype}")
            return args[0].to("tiny")
        return torch.tensor(args[0], dtype=cls.dtype, device="tiny")


def classes() -> dict[str, type]:
    """The classes by their names in `torch.tiny`."""
    # torch's `Tensor.type` reads the C name of a class, which is set when the class is created.
    tensors = {name: _Meta(f"torch.tiny.{name}", (), {"dtype": dtype}) for name, dtype in NAMES.items()}
    base = torch_compat.LegacyStorage
    of_all = {"__module__": "torch.tiny", "from_file": staticmethod(refuse_file)}
    storages = {
        name: type(base)(name, (base,), {"dtype": dtype, "_dtype": dtype, **of_all}) for name, dtype in STORAGES.items()
    }
    return tensors | storages


def install() -> None:
    """Make `torch.set_default_tensor_type` accept tiny's types: it sets the default dtype and the default device."""
    replace_at_import("torch._C:_set_default_tensor_type", _serving)


def _serving(original: Callable[[Any], None]) -> Callable[[Any], None]:
    ours = False

    def set_default_tensor_type(t: Any, /) -> None:
        nonlocal ours
        if isinstance(t, _Meta):
            if not t.dtype.is_floating_point:
                raise TypeError("invalid type object: only floating-point types are supported as the default type")
            torch.set_default_dtype(t.dtype)
            torch.set_default_device("tiny")
            ours = True
            return
        if ours:
            torch.set_default_device(None)
            ours = False
        original(t)

    return set_default_tensor_type
