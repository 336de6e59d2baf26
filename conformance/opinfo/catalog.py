"""The operator database: OpInfos by name, their tolerances, and what of them has no defined value.

Import this only after the target's `prepare()`: torch.testing._internal reads the registered devices when it is
imported. The key insight: every tolerance used anywhere in this project is one that PyTorch's own tests state; an
operator's is the largest of torch.testing's default and what its OpInfo grants on the CPU to a comparison of two runs.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from typing import Any

import numpy
import torch

from conformance.core import torch_compat
from conformance.core.torch_compat import default_tolerances, nondeterministic
from conformance.opinfo.plan import Case, Entry

OP_DB = torch_compat.op_db()
SEED: int = OP_DB.seed

__all__ = ["SEED", "entries", "find", "has_value", "seed", "tolerances"]

# PyTorch's tests that run an op twice, in two ways, and compare the values: their tolerances are for what we do.
COMPARISONS = frozenset(
    {
        ("TestCommon", None),
        ("TestCommon", "test_compare_cpu"),
        ("TestCommon", "test_noncontiguous_samples"),
        ("TestCommon", "test_numpy_refs"),
        ("TestCommon", "test_out"),
        ("TestCommon", "test_variant_consistency_eager"),
        ("TestUnaryUfuncs", None),
        ("TestUnaryUfuncs", "test_reference_numerics_normal"),
        ("TestBinaryUfuncs", "test_reference_numerics"),
        ("TestReductions", "test_reference_masked"),
        (None, None),
    }
)

# More OpInfos whose results hold uninitialized memory without saying so themselves, in any version.
UNDEFINED = frozenset({"resize_", "resize_as_"})

FAMILIES: tuple[tuple[str, str], ...] = (
    (r"^linalg\.|^(cholesky|lu|qr|svd|pinverse|geqrf|ormqr|orgqr|triangular_solve|logdet)", "linalg"),
    (r"^fft\.|^(stft|istft)$", "fft"),
    (r"^masked\.", "masked"),
    (r"^special\.", "special"),
    (r"^_foreach", "foreach"),
    (r"^sparse\.|to_sparse", "sparse"),
    (r"^signal\.", "signal windows"),
    (r"^nn\.functional\.(.*conv|.*fold)", "convolution"),
    (r"^nn\.functional\.(.*pool|.*interpolate|.*upsample|grid_sample)|^grid_sampler", "pooling and resampling"),
    (r"norm$|_norm\b|normalize", "normalization"),
    (r"loss|cross_entropy|nll|kl_div|binary_cross", "losses"),
    (r"dropout|^(rand|normal|bernoulli|uniform|cauchy|exponential|geometric|log_normal|multinomial|poisson)", "random"),
    (r"embedding|one_hot|attention|linear$|bilinear|pixel_|channel_shuffle|^nn\.functional\.(pad|pairwise)", "layers"),
    (r"^nn\.functional\.", "activations"),
    (
        r"matmul|^(mm|mv|bmm|addmm|addmv|addbmm|baddbmm|addr|dot|vdot|inner|outer|ger|einsum|tensordot|kron|chain|cdist)",
        "matrix products",
    ),
    (
        r"gather|scatter|index|take|put|masked_|where|nonzero|argwhere|select|__getitem__|searchsorted|bucketize",
        "indexing",
    ),
    (r"sort|topk|kthvalue|median|mode|unique|quantile|histc|histogram|bincount", "sorting and counting"),
    (r"^cum|logcumsumexp|^diff|trapezoid|trapz|gradient", "scans"),
    (
        r"^(empty|zeros|ones|full|new_|arange|linspace|logspace|eye|tri[lu]_indices|scalar_tensor|complex|polar)",
        "factories",
    ),
    (
        r"view|reshape|expand|permute|transpose|^t$|squeeze|split|chunk|unbind|diag|narrow|slice|as_strided|movedim|unfold|"
        r"swap|flatten|unravel|broadcast|stack|^cat$|concat|flip|roll|rot90|tile|repeat|meshgrid|block_diag|cartesian|"
        r"^(real|imag|conj|resolve|contiguous|clone|alias|detach|tri[lu]|resize|atleast|ravel|H|T|mT|mH)",
        "shape and views",
    ),
    (r"^(float|double|half|bfloat16|int|long|short|byte|char|bool|cfloat|cdouble|chalf|to)$|type_as|item", "casts"),
)
CLASS_FAMILY = {"UnaryUfuncInfo": "unary", "BinaryUfuncInfo": "binary", "ReductionOpInfo": "reductions"}


def family(op: Any) -> str:
    """A word for the kind of operator, for grouping in the report: by OpInfo's class, else by its name."""
    by_class = CLASS_FAMILY.get(type(op).__name__)
    by_name = next((name for pattern, name in FAMILIES if re.search(pattern, op.name)), None)
    if by_class and (by_name is None or by_name in ("activations", "casts", "shape and views", "linalg")):
        return by_class
    return by_name or by_class or "other"


def seed(device: torch.device | None = None) -> None:
    """Seed the generators that op_db's samplers draw from, and those of `device`.

    `torch.manual_seed` also queues a call, with a formatted traceback, for each kind of device that was never used:
    more than a millisecond each time, for nothing.
    """
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
    module: Any = getattr(torch, device.type, None) if device is not None else None
    if hasattr(module, "manual_seed_all"):
        module.manual_seed_all(SEED)


@functools.cache
def _by_name() -> dict[tuple[str, str], Any]:
    """OpInfos by (name, overload); of several with one name the second is `#2` and so on: none hides another."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    for op in OP_DB.ops:
        key = (op.name, op.variant_test_name)
        seen[key] += 1
        found[op.name, op.variant_test_name + (f"#{seen[key]}" if seen[key] > 1 else "")] = op
    return found


def find(case: Case) -> Any:
    """The OpInfo of a case."""
    return _by_name()[case.op, case.overload]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _variants(op: Any) -> frozenset[str]:
    has = {
        "forward": True,
        "reference_inputs": True,
        "method": op.method_variant is not None,
        "inplace": op.inplace_variant is not None,
        "out": op.supports_out,
        "backward": op.supports_autograd,
        "forward_over_backward": op.supports_autograd and op.supports_fwgrad_bwgrad,
        "error_inputs": op.error_inputs_func is not None,
    }
    return frozenset(name for name, present in has.items() if present)


def entries() -> list[Entry]:
    """All of op_db, for the planner."""
    return [
        Entry(
            name,
            overload,
            family(op),
            frozenset(map(_name, op.dtypes)),
            frozenset(map(_name, op.supported_backward_dtypes("cpu"))),
            _variants(op),
        )
        for (name, overload), op in _by_name().items()
    ]


def tolerances(op: Any, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """(rtol, atol) that OpInfo grants beyond torch.testing's defaults for `dtype`, (None, None) when it grants none.

    As in TestCase.assertEqual of torch.testing._internal.common_utils, an override widens the default and never narrows
    it.
    """
    rtol, atol = default_tolerances(dtype) if dtype.is_floating_point or dtype.is_complex else (0.0, 0.0)
    granted = False
    for decorator in op.decorators:
        inner = [decorator]
        if isinstance(decorator, OP_DB.decorate_info):
            active = decorator.active_if and (decorator.cls_name, decorator.test_name) in COMPARISONS
            here = decorator.device_type in (None, "cpu") and (decorator.dtypes is None or dtype in decorator.dtypes)
            inner = decorator.decorators if active and here else []
        for each in inner:
            if isinstance(each, OP_DB.tolerance_override) and dtype in each.d:
                rtol, atol, granted = max(rtol, each.d[dtype].rtol), max(atol, each.d[dtype].atol), True
            elif isinstance(each, OP_DB.precision_override) and dtype in each.d:
                atol, granted = max(atol, each.d[dtype]), True
    return (rtol, atol) if granted else (None, None)


def has_value(op: Any) -> bool:
    """Whether the op's result has a defined value; that of `empty` and its kin is compared by metadata only."""
    return not (nondeterministic(op) or op.name in UNDEFINED)
