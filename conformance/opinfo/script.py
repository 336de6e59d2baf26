"""Standalone scripts: a failing call as Python that needs torch and the target only, and a one-line summary of it.

The key insight: an input is its storage's values and a geometry on it, so a script rebuilds storages and views, and
what it shows does not depend on how the sample was drawn. Where that would be long, or the call has no public name, the
script takes the sample from op_db instead.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from conformance.core.moving import MARKER, storage_key, tensors, whole_storage
from conformance.core.names import DIFFERENTIATED
from conformance.opinfo.plan import Case
from conformance.opinfo.sample_script import SEED, TAIL, from_op_db, head
from conformance.opinfo.sampling import Sample

MAX_LITERAL = 1_500
"""Inputs with more storage elements than this are taken from op_db rather than written out."""


def function_name(op: Any) -> str | None:
    """`torch.add`, when that is what the OpInfo calls; None for a wrapper, which has no name outside op_db."""
    try:
        named = functools.reduce(getattr, op.name.split("."), torch)
    except AttributeError:
        return None
    return f"torch.{op.name}" if named is op.op else None


def method_name(op: Any, suffix: str) -> str | None:
    """`torch.Tensor.add_`, when that is the OpInfo's method or in-place variant."""
    name = f"{op.name}{suffix}"
    variant = op.inplace_variant if suffix else op.method_variant
    return f"torch.Tensor.{name}" if getattr(torch.Tensor, name, None) is variant else None


def summary(name: str, tree: dict[str, Any]) -> str:
    """The call in one line, tensors by size, dtype and, where not contiguous, their strides."""
    items = [_brief(tree["input"]), *map(_brief, tree["args"])]
    named = {**tree["kwargs"], **({"out": tree["out"]} if "out" in tree else {})}
    return f"{name}({', '.join(items + [f'{key}={_brief(value)}' for key, value in named.items()])})"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout is not torch.strided:
            return f"Tensor{list(value.shape)} {dtype} {value.layout}"
        extra = "" if value.is_contiguous() else f" stride {tuple(value.stride())}"
        extra += f" offset {value.storage_offset()}" if value.storage_offset() else ""
        return f"Tensor{list(value.shape)} {dtype}{extra}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_brief, value[:6])) + (", ..." if len(value) > 6 else "")
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def standalone(case: Case, setup: str, source: str | None, tree: dict[str, Any], sample: Sample, finding: str) -> str:
    """The script that makes the call on the CPU and on the target and prints both answers."""
    try:
        body = _literal(case, source, tree, sample)
    except _Unwritable:
        body = None
    if body is None:
        return from_op_db(case, setup, sample.index, finding)
    return f"{head(case, finding)}import torch\n\n{setup}\n\n\n{body}\n{TAIL}"


class _Unwritable(Exception):
    """A value that has no short Python literal."""


def _literal(case: Case, source: str | None, tree: dict[str, Any], sample: Sample) -> str:
    if source is None or case.variant in DIFFERENTIATED:
        raise _Unwritable
    found = tensors(tree)
    if any(t.layout is not torch.strided or t.is_conj() or t.is_neg() for t in found):
        raise _Unwritable
    lines = ["def call(device):"]
    names: dict[int, str] = {}
    total = 0
    for tensor in found:
        key = storage_key(tensor)
        if key in names:
            continue
        flat = whole_storage(tensor)
        total += flat.numel()
        if total > MAX_LITERAL or flat.dtype != tensor.dtype:
            raise _Unwritable
        names[key] = f"s{len(names)}"
        device = "" if key in sample.kept else ", device=device"
        lines.append(f"    {names[key]} = torch.tensor({_python(flat.tolist())}, dtype={tensor.dtype}{device})")

    def write(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            flat_size = value.untyped_storage().nbytes() // value.element_size()
            name = names[storage_key(value)]
            whole = tuple(value.shape) == (flat_size,) and value.is_contiguous() and not value.storage_offset()
            view = f"{name}.as_strided({tuple(value.shape)}, {tuple(value.stride())}, {value.storage_offset()})"
            return (name if whole else view) + (".detach().requires_grad_()" if value.requires_grad else "")
        if isinstance(value, list):
            return f"[{', '.join(map(write, value))}]"
        if type(value) is tuple:
            return f"({', '.join(map(write, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, torch.device) and value == MARKER:
            return "device"
        return _python(value)

    items = [write(tree["input"]), *map(write, tree["args"])]
    named = {**tree["kwargs"], **({"out": tree["out"]} if "out" in tree else {})}
    items += [f"{key}={write(value)}" for key, value in named.items()]
    lines.append(f"    torch.manual_seed({SEED})")
    if case.variant == "inplace":
        lines += [f"    x = {items[0]}", f"    {source}({', '.join(['x', *items[1:]])})", "    return x"]
    else:
        lines.append(f"    return {source}({', '.join(items)})")
    return "\n".join(lines) + "\n"


def _python(value: Any) -> str:
    """A Python expression for a plain value, such that nan and inf survive. Raises _Unwritable when there is none."""
    if isinstance(value, bool) or value is None or value is Ellipsis or isinstance(value, (int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, complex):
        finite = math.isfinite(value.real) and math.isfinite(value.imag)
        return repr(value) if finite else f"complex({_python(value.real)}, {_python(value.imag)})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return repr(str(value))
    if isinstance(value, torch.Size):
        return repr(tuple(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_python, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, slice):
        return f"slice({_python(value.start)}, {_python(value.stop)}, {_python(value.step)})"
    raise _Unwritable
