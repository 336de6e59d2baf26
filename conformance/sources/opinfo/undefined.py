"""Undefined parts of torch CPU's answer on special values: ties, the spread of a nan, and torch CPU's own faults.

Defines `open_to` and `fault_of`. The declarations in `undefined.toml` say which answers are undefined, and the rules
here find the elements. An op that may spread a nan over its result still may not drop one.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from conformance.declare.declaration import ANSWERS, UNDEFINED, Declaration, among, read
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.variants import Call
from conformance.standalone.moving import tensors
from conformance.standalone.observation import Observation

DECLARATIONS = [one for one in read(Path(__file__).parent / "undefined.toml", (ANSWERS,)) if one.holds]
FAULT, TIES, BY_NAN, GRADIENT, ZEROS, SPREAD, CANCELS, DIRECTION, SINGULAR, REPEATED = UNDEFINED
DIM_SECOND = ("topk", "kthvalue")
"""Ops whose second argument after the input is `dim`; it is the first argument of the others with ties."""


def declared(case: Case, part: str) -> Declaration | None:
    """Return the declaration that this part of torch CPU's answer is undefined, if there is one."""
    where = [{"family": case.family, "variant": case.variant, "op": op} for op in (case.op, case.name)]
    return next((one for one in DECLARATIONS if one.names(part) and any(map(one.scope.selects, where))), None)


def fault_of(case: Case) -> tuple[str, bool]:
    """Return why torch CPU is known to be wrong in this case, and whether it ends its process; an empty reason if it is
    right.
    """
    fault = declared(case, FAULT)
    return (f"torch CPU is wrong here: {fault.why}", fault.names("crash")) if fault else ("", False)


@functools.cache
def faulty(op: str, variant: str) -> bool:
    """Whether torch CPU is known to be wrong, or to end the process, in calls of the op in this variant."""
    where = {"op": op, "variant": variant}
    return any(one.names(FAULT) and one.scope.op and one.scope.selects(where) for one in DECLARATIONS)


def open_to(case: Case, call: Call, oracle: str, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor that is true at elements of a result or gradient for which torch CPU's answer decides
    nothing.
    """
    if oracle == "grad" and declared(case, GRADIENT):
        given = call.sample.input.detach()
        return given.isnan() if given.shape == want.shape else torch.zeros(want.shape, dtype=torch.bool)
    if declared(case, TIES):
        by_nan = declared(case, BY_NAN) is not None
        if oracle == "grad":
            return _shared(case.op, call, by_nan, want, got)
        tied = _tied(case.op, call, want, got)
        return tied | _unordered(case.op, call, want, got) if by_nan else tied
    if declared(case, SINGULAR):
        return torch.ones(want.shape, dtype=torch.bool)
    finite = all(bool(one.isfinite().all()) for one in tensors(call.tree) if one.layout is torch.strided)
    if not finite and (declared(case, SPREAD) or (want.is_complex() and cancels(case))):
        return ~got.isfinite()
    if want.is_complex() and declared(case, DIRECTION):
        return ~got.isfinite() & ~want.isfinite()
    return torch.zeros(want.shape, dtype=torch.bool)


def needs_distinct(name: str) -> bool:
    """Whether an entry has no defined result on repeated elements.

    LAPACK defines no results of a singular matrix, an order defines none among equal elements, and a search none of
    unsorted boundaries.
    """
    parts = (SINGULAR, TIES, REPEATED)
    return any(among(name, one.scope.op) for one in DECLARATIONS if any(map(one.names, parts)))


def has_signed_zeros(case: Case) -> bool:
    """Whether the sign of a zero is part of the answer."""
    return case.variant == "specials_zeros" and declared(case, ZEROS) is None


def cancels(case: Case) -> bool:
    """Whether results are sums of products, where torch CPU's own rounding may dominate the result."""
    return declared(case, CANCELS) is not None


def of_rounding(case: Case, expected: Observation, actual: Observation) -> bool:
    """Whether only one side reports a singular matrix, which depends on rounding. Nothing can be compared then, since
    only the other side has results and gradients.
    """
    kinds = [side.error.kind if side.error is not None else "" for side in (expected, actual)]
    return kinds[0] != kinds[1] and "_LinAlgError" in kinds and declared(case, SINGULAR) is not None


def _tied(op: str, call: Call, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a mask of indices that name equal elements of the input on both sides; nan equals nan."""
    given, none = call.sample.input, torch.zeros(want.shape, dtype=torch.bool)
    if want.dtype != torch.int64 or call.sample.kwargs.get("stable") or not given.dim():
        return none
    dim = _dim(op, call)
    indices = [side if side.dim() == given.dim() else side.unsqueeze(dim) for side in (want, got)]
    if any(bool(((index < 0) | (index >= given.shape[dim])).any()) for index in indices):
        return none
    one, two = (given.detach().gather(dim, index) for index in indices)
    return ((one == two) | (one.isnan() & two.isnan())).view(want.shape)


def _unordered(op: str, call: Call, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a mask of results chosen among elements that include a nan, if the target's result is one of these
    elements or its index.
    """
    given, none = call.sample.input, torch.zeros(want.shape, dtype=torch.bool)
    if not given.dim() or not given.is_floating_point():
        return none
    dim = _dim(op, call)
    side = got if got.dim() == given.dim() else got.unsqueeze(dim)
    if got.dtype == torch.int64:
        among = (side >= 0) & (side < given.shape[dim])
    else:
        among = ((given == side) | (given.isnan() & side.isnan())).any(dim, keepdim=True)
    return (given.isnan().any(dim, keepdim=True) & among).view(want.shape)


def _shared(op: str, call: Call, by_nan: bool, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return a mask of gradients that may be distributed differently among equal elements; their sums must agree.

    With `by_nan`, the same holds among all elements next to a nan.
    """
    given = call.sample.input.detach()
    if want.shape != given.shape or not given.dim():
        return torch.zeros(want.shape, dtype=torch.bool)
    named = "dim" in call.sample.kwargs or len(call.sample.args) > (op in DIM_SECOND)
    dim = 0 if op == "msort" else _dim(op, call)
    whole = not named and op in ("median", "nanmedian")
    x, *sides = (one.flatten() if whole else one.transpose(dim, -1) for one in (given, want, got))
    equal = (x.unsqueeze(-1) == x.unsqueeze(-2)) | (x.isnan().unsqueeze(-1) & x.isnan().unsqueeze(-2))
    if by_nan:
        equal |= x.isnan().any(-1)[..., None, None]
    sums = [torch.where(equal, side.unsqueeze(-2), 0).sum(-1) for side in sides]
    # rtol is torch.testing's for float32. The sums have few terms, each of the size of the incoming gradient.
    same = torch.isclose(sums[0], sums[1], rtol=1.3e-6, atol=1e-6, equal_nan=True)
    return same.view(want.shape) if whole else same.transpose(dim, -1)


def _dim(op: str, call: Call) -> int:
    """Return the dimension that a call of an op with ties names, or the last one."""
    args, place = call.sample.args, int(op in DIM_SECOND)
    return int(call.sample.kwargs.get("dim", args[place] if len(args) > place else -1))
