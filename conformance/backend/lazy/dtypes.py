"""torch dtypes as tinygrad dtypes, computed directly or stored only as bits of another dtype.

Defines `element` (storage of one element), `COMPUTED` (dtypes that value functions compute in) and `opmath`.

The dtype of a storage and the dtype of a computation are separate. A complex element is stored as two reals, and a
float8 as a byte. Both pass exactly through every copy and view, even if no kernel computes them.
"""

from __future__ import annotations

import torch
from tinygrad.dtype import DType, dtypes

# Real dtypes which tinygrad loads, stores and computes.
COMPUTED: dict[torch.dtype, DType] = {
    torch.float64: dtypes.float64,
    torch.float32: dtypes.float32,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.int64: dtypes.int64,
    torch.int32: dtypes.int32,
    torch.int16: dtypes.int16,
    torch.int8: dtypes.int8,
    torch.uint64: dtypes.uint64,
    torch.uint32: dtypes.uint32,
    torch.uint16: dtypes.uint16,
    torch.uint8: dtypes.uint8,
    torch.bool: dtypes.bool,
}

TORCH: dict[DType, torch.dtype] = {t: d for d, t in COMPUTED.items()}

# Complex dtypes: the real dtype of the pair.
PAIRS: dict[torch.dtype, DType] = {
    torch.complex128: dtypes.float64,
    torch.complex64: dtypes.float32,
    torch.complex32: dtypes.float16,
}

_BYTES = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def element(dtype: torch.dtype) -> tuple[DType, int]:
    """Storage of one element of `dtype` in a flat value: the tinygrad dtype, and the number of them (2 for complex)."""
    if dtype in COMPUTED:
        return COMPUTED[dtype], 1
    if dtype in PAIRS:
        return PAIRS[dtype], 2
    return _BYTES[dtype.itemsize], 1


def opmath(dtype: DType) -> DType:
    """The arithmetic dtype of CPU kernels on `dtype`: float32 for the 16-bit floats (ATen's OpMathType.h)."""
    return dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
