"""What torch CPU's answer leaves open where inputs hold special values: ties, the spread of a nan, torch CPU's faults.

Defines `open_to` and `fault_of`, by the table `undefined.toml`. The key insight: what is left open is said for each
element of a result, so that an op which may spread a nan over its result may still not drop one.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from conformance.core.moving import tensors
from conformance.core.oracles import Mismatch
from conformance.opinfo.plan import Case
from conformance.opinfo.variants import Call

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "undefined.toml").read_text(encoding="utf-8"))


def fault_of(case: Case) -> tuple[str, bool]:
    """Why torch CPU is known to be wrong in this case, and whether it dies of it; empty where it is not."""
    for fault in TABLE["fault"]:
        if _among(case, fault["ops"]) and case.variant in fault["variants"]:
            return f"torch CPU is wrong here: {fault['why']}", fault.get("dies", False)
    return "", False


def open_to(case: Case, call: Call, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """A bool tensor, true at the elements of a result for which torch CPU's answer decides nothing."""
    if case.op in TABLE["ties"]:
        return _tied(call, TABLE["ties"][case.op], want, got)
    if _among(case, TABLE["lapack"]["ops"]):
        return torch.ones(want.shape, dtype=torch.bool)
    finite = all(bool(one.isfinite().all()) for one in tensors(call.tree) if one.layout is torch.strided)
    if not finite and _among(case, TABLE["spread"]["ops"]):
        return ~got.isfinite()
    return torch.zeros(want.shape, dtype=torch.bool)


def needs_distinct(name: str) -> bool:
    """Whether an entry promises nothing where elements are repeated: LAPACK nothing of a singular matrix, an order
    nothing of equal elements, a search nothing of boundaries that are in no order."""
    globs = [*TABLE["lapack"]["ops"], *TABLE["ties"], *TABLE["distinct"]["ops"]]
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def has_signed_zeros(case: Case) -> bool:
    """Whether the sign of a zero is a part of the answer."""
    signed = TABLE["zeros"]
    return case.variant == "specials_zeros" and case.family in signed["families"] and not _among(case, signed["but"])


def of_rounding(case: Case, mismatch: Mismatch) -> bool:
    """Whether one side alone calls a matrix singular, which is a matter of rounding."""
    singular = "_LinAlgError" in (mismatch.expected, mismatch.actual)
    return mismatch.oracle == "error" and singular and _among(case, TABLE["lapack"]["ops"])


def _among(case: Case, globs: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in (case.op, case.name))


def _tied(call: Call, place: int, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Where two indices name equal elements of the input; nan equals nan."""
    given, none = call.sample.input, torch.zeros(want.shape, dtype=torch.bool)
    args, kwargs = call.sample.args, call.sample.kwargs
    if want.dtype != torch.int64 or kwargs.get("stable") or not given.dim():
        return none
    dim = kwargs.get("dim", args[place] if len(args) > place else -1)
    indices = [side if side.dim() == given.dim() else side.unsqueeze(dim) for side in (want, got)]
    if any(bool(((index < 0) | (index >= given.shape[dim])).any()) for index in indices):
        return none
    one, two = (given.detach().gather(dim, index) for index in indices)
    return ((one == two) | (one.isnan() & two.isnan())).view(want.shape)
