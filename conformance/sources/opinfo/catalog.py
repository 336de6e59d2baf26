"""Operator database: OpInfos by name, their tolerances, and ops whose results have no defined value.

Import this only after the target's `prepare()`, which may replace functions of torch. The fork server has imported
op_db itself before. Only op_db's test classes depend on devices, and this module does not use them.

Every tolerance in this project is one that PyTorch's own tests state. An operator's tolerance is the larger of
torch.testing's default and the one that its OpInfo grants on the CPU to a comparison of two runs.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from conformance.program.steps.op import dtype_name
from conformance.record.names import CHANGED, DTYPES, SPECIALS, SPECIALS_BACKWARD
from conformance.sources.opinfo import overloads
from conformance.sources.opinfo.plan import Case, Entry
from conformance.standalone.oracles import Tolerance
from conformance.standalone.torch_compat import default_tolerances, nondeterministic, op_db

_op_db = op_db()

# PyTorch tests that run an op twice, in two ways, and compare the values; their tolerances apply here.
COMPARISONS = {
    "TestCommon": (None, "test_compare_cpu", "test_noncontiguous_samples", "test_numpy_refs", "test_out",
                   "test_variant_consistency_eager"),
    "TestUnaryUfuncs": (None, "test_reference_numerics_normal"),
    "TestBinaryUfuncs": ("test_reference_numerics",),
    "TestReductions": ("test_reference_masked",),
    None: (None,),
}  # fmt: skip

# Further OpInfos whose results hold uninitialized memory although no torch version marks them so.
UNDEFINED = frozenset({"resize_", "resize_as_"})

FAMILIES = {
    name: re.compile(words if isinstance(words, str) else "|".join(words))
    for name, words in tomllib.loads((Path(__file__).parent / "families.toml").read_text()).items()
}
CLASS_FAMILY = {"UnaryUfuncInfo": "unary", "BinaryUfuncInfo": "binary", "ReductionOpInfo": "reductions"}


def family(op: Any) -> str:
    """Return the family of an operator, which groups ops in the report: by its OpInfo class, or by its name."""
    return _family(type(op).__name__, op.name)


@functools.cache
def _family(class_name: str, op_name: str) -> str:
    by_class = CLASS_FAMILY.get(class_name)
    by_name = next((name for name, pattern in FAMILIES.items() if pattern.search(op_name)), None)
    if by_class and (by_name is None or by_name in ("activations", "casts", "shape and views", "linalg")):
        return by_class
    return by_name or by_class or "other"


@functools.cache
def by_name() -> dict[tuple[str, str], Any]:
    """Return OpInfos by (name, overload). If several share a name, the second gets the suffix `#2`, and so on."""
    seen: Counter[tuple[str, str]] = Counter()
    result = {}
    for op in _op_db.ops:
        key = (op.name, op.variant_test_name)
        seen[key] += 1
        result[op.name, op.variant_test_name + (f"#{seen[key]}" if seen[key] > 1 else "")] = op
    return result


def find(case: Case) -> Any:
    """Return the OpInfo of a case, or the `Overload` that stands in for one."""
    return by_name().get((case.op, case.overload)) or overloads.infos()[case.op]


def _variants(op: Any) -> frozenset[str]:
    only: frozenset[str] = getattr(op, "only", frozenset())
    if only:
        return only
    has = {
        "forward": True,
        "reference_inputs": True,
        "method": op.method_variant is not None,
        "inplace": op.inplace_variant is not None,
        "out": op.supports_out,
        "backward": op.supports_autograd,
        "forward_over_backward": op.supports_autograd and op.supports_fwgrad_bwgrad,
        "error_inputs": op.error_inputs_func is not None,
        **dict.fromkeys((*SPECIALS, *CHANGED), True),
        **dict.fromkeys(SPECIALS_BACKWARD, op.supports_autograd),
    }
    return frozenset(name for name, present in has.items() if present)


def entries(beside: bool = False) -> list[Entry]:
    """Return all entries of op_db for the planner; with `beside`, also the entries outside op_db."""
    ops = {**by_name(), **({(name, ""): op for name, op in overloads.infos().items()} if beside else {})}
    return [
        Entry(
            name,
            overload,
            family(op),
            frozenset(map(dtype_name, op.dtypes)),
            frozenset(map(dtype_name, op.supported_backward_dtypes("cpu"))),
            _variants(op),
        )
        for (name, overload), op in ops.items()
    ]


def tolerances(op: Any, dtype: torch.dtype, results: Iterable[str] = DTYPES) -> Tolerance:
    """Return the (rtol, atol) that OpInfo grants beyond torch.testing's defaults for `dtype`, by the dtypes of results.
    The mapping is empty if OpInfo grants none.

    As in TestCase.assertEqual of torch.testing._internal.common_utils, an override widens the default and never narrows
    it.
    """
    rtol, atol = default_tolerances(dtype) if dtype.is_floating_point or dtype.is_complex else (0.0, 0.0)
    granted = False
    for decorator in op.decorators:
        inner = [decorator]
        if isinstance(decorator, _op_db.decorate_info):
            active = decorator.active_if and decorator.test_name in COMPARISONS.get(decorator.cls_name, ())
            here = decorator.device_type in (None, "cpu") and (decorator.dtypes is None or dtype in decorator.dtypes)
            inner = decorator.decorators if active and here else []
        for override in inner:
            if isinstance(override, _op_db.tolerance_override) and dtype in override.d:
                rtol, atol, granted = max(rtol, override.d[dtype].rtol), max(atol, override.d[dtype].atol), True
            elif isinstance(override, _op_db.precision_override) and dtype in override.d:
                atol, granted = max(atol, override.d[dtype]), True
    return dict.fromkeys(results, (rtol, atol)) if granted else {}


def has_value(op: Any) -> bool:
    """Whether the op's result has a defined value; results of `empty` and similar ops are compared by metadata only."""
    return not (nondeterministic(op) or op.name in UNDEFINED)
