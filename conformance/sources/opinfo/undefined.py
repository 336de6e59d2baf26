"""Undefined parts of torch CPU's answer on special values: ties, the spread of a nan, and torch CPU's own faults.

Defines `open_to` and `fault_of`, by the table `undefined.toml`. The rules apply to single elements of a result. An op
that may spread a nan over its result still may not drop one.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from conformance.record.names import TIERS
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.variants import Call
from conformance.standalone.moving import tensors
from conformance.standalone.observation import Observation

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "undefined.toml").read_text(encoding="utf-8"))


def fault_of(case: Case) -> tuple[str, bool]:
    """Return why torch CPU is known to be wrong in this case, and whether it ends its process; an empty reason if it is
    right.
    """
    for fault in TABLE["fault"]:
        if _among(case, fault["ops"]) and TIERS.get(case.variant) in fault["variants"]:
            return f"torch CPU is wrong here: {fault['why']}", fault.get("dies", False)
    return "", False


def open_to(case: Case, call: Call, oracle: str, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor that is true at elements of a result or gradient for which torch CPU's answer decides
    nothing.
    """
    if case.op in TABLE["loops"]["gradient_at_nan"] and oracle == "grad":
        given = call.sample.input.detach()
        return given.isnan() if given.shape == want.shape else torch.zeros(want.shape, dtype=torch.bool)
    if case.op in TABLE["ties"] and oracle == "grad":
        return _shared(case.op, call, want, got)
    if case.op in TABLE["ties"]:
        tied = _tied(call, TABLE["ties"][case.op], want, got)
        return (
            tied | _unordered(call, TABLE["unordered"][case.op], want, got) if case.op in TABLE["unordered"] else tied
        )
    if _among(case, TABLE["lapack"]["ops"]):
        return torch.ones(want.shape, dtype=torch.bool)
    finite = all(bool(one.isfinite().all()) for one in tensors(call.tree) if one.layout is torch.strided)
    if not finite and (_among(case, TABLE["spread"]["ops"]) or (want.is_complex() and cancels(case))):
        return ~got.isfinite()
    if want.is_complex() and case.op in TABLE["direction"]["ops"]:
        return ~got.isfinite() & ~want.isfinite()
    return torch.zeros(want.shape, dtype=torch.bool)


def needs_distinct(name: str) -> bool:
    """Whether an entry has no defined result on repeated elements.

    LAPACK defines no results of a singular matrix, an order defines none among equal elements, and a search none of
    unsorted boundaries.
    """
    globs = [*TABLE["lapack"]["ops"], *TABLE["ties"], *TABLE["distinct"]["ops"]]
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def has_signed_zeros(case: Case) -> bool:
    """Whether the sign of a zero is part of the answer."""
    signed = TABLE["zeros"]
    return case.variant == "specials_zeros" and case.family in signed["families"] and not _among(case, signed["but"])


def cancels(case: Case) -> bool:
    """Whether results are sums of products, where torch CPU's own rounding may dominate the result."""
    return case.family in TABLE["cancels"]["families"]


def of_rounding(case: Case, expected: Observation, actual: Observation) -> bool:
    """Whether only one side reports a singular matrix, which depends on rounding. Nothing can be compared then, since
    only the other side has results and gradients.
    """
    kinds = [side.error.kind if side.error is not None else "" for side in (expected, actual)]
    return kinds[0] != kinds[1] and "_LinAlgError" in kinds and _among(case, TABLE["lapack"]["ops"])


def _among(case: Case, globs: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in (case.op, case.name))


def _tied(call: Call, place: int, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a mask of indices that name equal elements of the input on both sides; nan equals nan."""
    given, none = call.sample.input, torch.zeros(want.shape, dtype=torch.bool)
    if want.dtype != torch.int64 or call.sample.kwargs.get("stable") or not given.dim():
        return none
    dim = _dim(call, place)
    indices = [side if side.dim() == given.dim() else side.unsqueeze(dim) for side in (want, got)]
    if any(bool(((index < 0) | (index >= given.shape[dim])).any()) for index in indices):
        return none
    one, two = (given.detach().gather(dim, index) for index in indices)
    return ((one == two) | (one.isnan() & two.isnan())).view(want.shape)


def _unordered(call: Call, place: int, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a mask of results chosen among elements that include a nan, if the target's result is one of these
    elements or its index.
    """
    given, none = call.sample.input, torch.zeros(want.shape, dtype=torch.bool)
    if not given.dim() or not given.is_floating_point():
        return none
    dim = _dim(call, place)
    side = got if got.dim() == given.dim() else got.unsqueeze(dim)
    if got.dtype == torch.int64:
        among = (side >= 0) & (side < given.shape[dim])
    else:
        among = ((given == side) | (given.isnan() & side.isnan())).any(dim, keepdim=True)
    return (given.isnan().any(dim, keepdim=True) & among).view(want.shape)


def _shared(op: str, call: Call, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a mask of gradients that may be distributed differently among equal elements; their sums must agree.

    For an op that does not order nan, the same holds among all elements next to a nan.
    """
    given, place = call.sample.input.detach(), TABLE["ties"][op]
    if want.shape != given.shape or not given.dim():
        return torch.zeros(want.shape, dtype=torch.bool)
    named = "dim" in call.sample.kwargs or len(call.sample.args) > place
    dim = 0 if op == "msort" else _dim(call, place)
    whole = not named and op in ("median", "nanmedian")
    x, *sides = (one.flatten() if whole else one.transpose(dim, -1) for one in (given, want, got))
    equal = (x.unsqueeze(-1) == x.unsqueeze(-2)) | (x.isnan().unsqueeze(-1) & x.isnan().unsqueeze(-2))
    if op in TABLE["unordered"]:
        equal |= x.isnan().any(-1)[..., None, None]
    sums = [torch.where(equal, side.unsqueeze(-2), 0).sum(-1) for side in sides]
    # rtol is torch.testing's for float32. The sums have few terms, each of the size of the incoming gradient.
    same = torch.isclose(sums[0], sums[1], rtol=1.3e-6, atol=1e-6, equal_nan=True)
    return same.view(want.shape) if whole else same.transpose(dim, -1)


def _dim(call: Call, place: int) -> int:
    """Return the dimension that a call names, at `place` among its arguments after the input, or the last one."""
    args = call.sample.args
    return int(call.sample.kwargs.get("dim", args[place] if len(args) > place else -1))
