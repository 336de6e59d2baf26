"""Steps that write several tensors in one call, or through an operator that torch does not know.

Operators on lists (`torch._foreach_add_`), a fused optimizer, and custom operators that mutate their arguments. A
compiler replaces such a call by a functional one and writes the results back afterwards. It must keep the order of
these writes and other accesses to the same storages, and each copy that the program makes between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import DrawContext, category
from conformance.program.steps.layouts import overlap, overlaps_itself
from conformance.program.steps.op import COMPUTE, DEFINED, FUNCTION, LOSSY, MOVE, Json, Op, Step, tensor, tensors
from conformance.program.steps.predicates import Fits
from conformance.program.steps.rows import Given

LISTS, CUSTOM = "list operators", "custom operators"
"""Names of the families."""

Arguments = Callable[[DrawContext, str], Given | None]
"""Rule that draws all arguments of a call, given the name of the first written tensor."""


def _plain(t: torch.Tensor) -> bool:
    return predicates.number_like(t) and not t.requires_grad


def _signed(t: torch.Tensor) -> bool:
    return predicates.signed(t) and not t.requires_grad


def _dense_floats(t: torch.Tensor) -> bool:
    return t.dtype in (torch.float32, torch.float64) and not t.requires_grad and t.is_contiguous() and t.numel() > 0


def _list(k: DrawContext, name: str, fits: Fits = _plain) -> list[str]:
    """Return the names of a list: the first tensor, and mostly another one that shares no byte with it."""
    other = k.pick(lambda u: fits(u) and not overlaps_itself(u) and not overlap(k[name], u))
    return [name, other] if other is not None and k.chance(3, 4) else [name]


def _with_number(k: DrawContext, names: list[str]) -> Json:
    return k.number(min((k[name] for name in names), key=lambda tensor: category(tensor.dtype)).dtype)


def _paired(k: DrawContext, name: str) -> Given:
    """Draw a list, and a list with an operand for each of its tensors."""
    names = _list(k, name)
    return Given([tensors(names), [_operand(k, k[name]) for name in names]])


def _scaled(k: DrawContext, name: str) -> Given:
    """Draw a list, and one number or a list of operands."""
    if k.chance(1, 2):
        return _paired(k, name)
    names = _list(k, name)
    return Given([tensors(names), _with_number(k, names)])


def _operand(k: DrawContext, t: torch.Tensor) -> Json:
    name = k.pick(lambda u: u.dtype == t.dtype and u.size() == t.size() and not overlap(t, u))
    return tensor(name) if name is not None and k.chance(2, 3) else k.constant(t.size(), t.dtype)


def _alone(fits: Fits) -> Arguments:
    return lambda k, name: Given([tensors(_list(k, name, fits))])


def _descended(k: DrawContext, name: str) -> Given:
    t = k[name]
    options = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.5, "dampening": 0.0, "nesterov": False}
    options |= {"maximize": k.chance(1, 2), "is_first_step": False}
    return Given([tensors([name]), [k.constant(t.size(), t.dtype)], []], options)


def _exchanged(k: DrawContext, name: str) -> Given | None:
    def fits(u: torch.Tensor) -> bool:
        alike = (u.dtype, u.size()) == (k[name].dtype, k[name].size())
        return alike and _plain(u) and not overlaps_itself(u) and not overlap(k[name], u)

    other = k.pick(fits)
    return Given([tensors([name, other])]) if other is not None else None


def _added_to_all(k: DrawContext, name: str) -> Given:
    names = _list(k, name)
    dtype = min((k[name] for name in names), key=lambda tensor: category(tensor.dtype)).dtype
    return Given([tensors(names), k.constant((), dtype)])


def listed(name: str, arguments: Arguments, fits: Fits = _plain, **options: Any) -> Op:
    """Return a row whose first argument is the tensor, or the list of tensors, that it writes."""

    def rule(k: DrawContext) -> Step | None:
        written = k.pick_writable(fits)
        drawn = None if written is None else arguments(k, written)
        return None if drawn is None else Step(name, tuple(drawn.args), drawn.kwargs, drawn.out)

    return Op(name, draw=rule, writes=0, may_raise=True, fits=fits, **options)


foreach = functools.partial(listed, family=LISTS, effect=COMPUTE, form=FUNCTION)
custom = functools.partial(listed, family=CUSTOM, effect=COMPUTE, form=DEFINED)

ROWS = [
    foreach("_foreach_add_", _scaled, weight=3),
    foreach("_foreach_mul_", _scaled, weight=2),
    foreach("_foreach_sub_", _paired),
    foreach("_foreach_maximum_", _paired),
    foreach("_foreach_neg_", _alone(_signed), _signed),
    foreach("_foreach_zero_", _alone(_plain), effect=MOVE),
    foreach("_foreach_copy_", _paired, effect=MOVE, weight=2),
    foreach("_fused_sgd_", _descended, _dense_floats, effect=LOSSY, uncounted=True),
    custom("add_to", lambda k, name: Given([tensor(name), _operand(k, k[name])]), weight=2),
    custom("exchange", _exchanged, effect=MOVE),
    custom("add_to_all", _added_to_all),
]
