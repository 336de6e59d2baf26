"""Rows for op_db and for recorded calls: the step `op_db:nn.functional.gelu` calls that function, `op_db.out:add` calls
`add` with out=, and `aten:gelu.default` calls that overload.

Defines `row_of`, which derives a row from its name. So the table covers all operators of torch without listing them. A
program from a file can call functions and methods of torch's operators only. Arguments come from the samples of op_db;
another module draws them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.program.steps.entry import ROWS_OF_ENTRIES
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import ATTRIBUTE, FUNCTION, LOSSY, METHOD, QUERY, Form, Op, made_by, torch_function
from conformance.standalone.torch_compat import VALUE_DEPENDENT, is_operator

FAMILY = "op_db"

RECORDED, BY_VALUES = "recorded", "recorded by values"
"""Families of recorded calls. The metadata of the second's results, or a plain answer, depends on values."""

MODULES = ("", "nn.functional.", "linalg.", "special.", "fft.", "signal.windows.", "masked.")
"""Modules below `torch` that are searched for functions."""

CALL = Op("op_db", FAMILY, LOSSY, lambda k: None, FUNCTION, fits=lambda t: False, settled=True)
METHOD_CALL = replace(CALL, form=METHOD)
KINDS = {
    "op_db": CALL,
    "op_db.many": replace(CALL, results=0),
    "op_db.query": replace(CALL, effect=QUERY, results=0),
    "op_db.out": replace(CALL, writes="out", may_raise=True),
    "op_db.method": METHOD_CALL,
    "op_db.method.many": replace(METHOD_CALL, results=0),
    "op_db.method.query": replace(METHOD_CALL, effect=QUERY, results=0),
    "op_db.inplace": replace(METHOD_CALL, writes=0),
    "op_db.function.inplace": replace(CALL, writes=0),
    "op_db.attribute": replace(CALL, form=ATTRIBUTE),
    "op_db.forward_over_backward": replace(CALL, form=made_by("forward_over_backward", 2), results=0),
}
"""Rows by the form of the call and the kind of its result: one tensor, several, or a Python value."""

RECORDED_KINDS = {
    f"aten{kind}": replace(KINDS[f"op_db{of}"], family=RECORDED)
    for kind, of in {
        "": "",
        ".many": ".many",
        ".query": ".query",
        ".out": ".out",
        ".inplace": ".function.inplace",
    }.items()
}
"""Rows of recorded calls, by the kind of their result."""


FATAL: dict[str, Callable[[list[Any], dict[str, Any]], bool]] = {
    "_chunk_cat": lambda args, kwargs: any(arg.dim() == 0 for arg in args[0]),
    **dict.fromkeys(("median", "nanmedian", "masked.median"), lambda args, kwargs: _repeats(args[0])),
    "narrow_copy": lambda args, kwargs: "out" in kwargs,
    **dict.fromkeys(("nn.functional.avg_pool3d", "nn.functional.gelu"), lambda args, kwargs: _gappy(kwargs.get("out"))),
    "native_group_norm": lambda args, kwargs: any(arg is not None and not arg.is_contiguous() for arg in args[1:3]),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        lambda args, kwargs: "out" in kwargs and not args[0].is_contiguous(),
    ),
    "polygamma_": lambda args, kwargs: overlaps_itself(args[0]) and not _repeats(args[0]),
    "bucketize": lambda args, kwargs: not _sorted(args[1]),
    "searchsorted": lambda args, kwargs: kwargs.get("sorter") is None and not _sorted(args[0]),
    **dict.fromkeys(
        ("diagonal_scatter", "select_scatter", "slice_scatter"), lambda args, kwargs: overlaps_itself(args[0])
    ),
}
"""Predicates on the arguments of calls without a reproducible answer on torch CPU, by function.

In these calls torch CPU reads or writes memory outside its operands, or leaves elements unwritten (see the findings).
It searches unsorted boundaries, or writes to a copy that overlaps itself. `polygamma_` of elements that overlap reads
its own huge results, for which it runs for minutes."""


def _sorted(boundaries: torch.Tensor) -> bool:
    if not boundaries.dim():  # torch rejects these
        return True
    return not boundaries.isnan().any() and bool((boundaries[..., 1:] >= boundaries[..., :-1]).all())


def _gappy(out: torch.Tensor | None) -> bool:
    return out is not None and not out.is_contiguous()


def _repeats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(
        step == 0 and size > 1 for step, size in zip(value.stride(), value.size(), strict=True)
    )


@functools.cache
def row_of(name: str) -> Op:
    """Return the row of this name. Raises KeyError if the kind or torch's function does not exist."""
    kind, _, call = name.partition(":")
    if kind in ROWS_OF_ENTRIES:
        return replace(ROWS_OF_ENTRIES[kind], name=name, call=call)
    if kind in RECORDED_KINDS and has_function(f"ops.aten.{call}"):
        overload: Any = torch_function(f"ops.aten.{call}")
        by_values = any(tag in overload.tags for tag in VALUE_DEPENDENT)
        family = BY_VALUES if by_values else RECORDED
        return replace(RECORDED_KINDS[kind], name=name, call=f"ops.aten.{call}", family=family)
    row = KINDS[kind]
    if not callable_as(call, row.form):
        raise KeyError(name)
    fatal = FATAL.get(call.removeprefix("Tensor."))
    if fatal is not None and row.form.around:  # the directions come before the operands of the call
        fatal = functools.partial(_fatal_operands, fatal)
    return replace(row, name=name, call=call, fatal=fatal)


def _fatal_operands(
    fatal: Callable[[list[Any], dict[str, Any]], bool], args: list[Any], kwargs: dict[str, Any]
) -> bool:
    """Return whether a call that a function of `snippets` makes has no reproducible answer, by its operands."""
    return fatal(args[2:], kwargs)


def callable_as(call: str, form: Form) -> bool:
    """Return whether torch has an operator of this name in this form."""
    if form.around:
        return has_function(call) or has_method(call.removeprefix("Tensor."), METHOD)
    return has_function(call) if form is FUNCTION else has_method(call, form)


def has_function(path: str) -> bool:
    """Return whether this path below `torch` is the function of an operator, so not, for example, `torch.load`. A path
    below `ops.aten` may end with an overload."""
    if path.startswith("ops.aten."):
        packet, _, overload = path.removeprefix("ops.aten.").partition(".")
        function = getattr(torch.ops.aten, packet, None) if packet.isidentifier() else None
        return callable(function) and (not overload or overload in function.overloads())
    module, _, name = path.rpartition(".")
    home = f"{module}." if module else ""
    if home not in MODULES or not name.isidentifier():
        return False
    place = functools.reduce(getattr, module.split("."), torch) if module else torch
    return is_operator(getattr(place, name, None), name) if not home else callable(getattr(place, name, None))


def has_method(name: str, form: Form) -> bool:
    """Return whether tensors have this method, or this attribute if `form` is not METHOD."""
    return name.isidentifier() and callable(getattr(torch.Tensor, name, None)) == (form is METHOD)
