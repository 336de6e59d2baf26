"""What the dispatcher's tables say of a device: whether an operator has a kernel for its key.

Defines `backend_key`, `kernel_of` and `lacking`. The key insight: an operator runs by a kernel of the device's own, by
that of its out= form where torch makes one from the other ("structured"), or as a composite of other operators; a
fallback that takes everything is no kernel. Of a device whose tensors dispatch on another key (wrappers on the meta
device), or of torch CPU with something around it, the tables say nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import StrEnum

import torch

from conformance.core import torch_compat
from conformance.core.target import Target

OVERRIDEABLE = "_overrideable"
"""Ending of the operators that torch calls for a device in place of one of its own, such as aten::convolution. torch's
composite kernels of these only raise."""


class Kernel(StrEnum):
    """By what an operator runs on a device, if it does."""

    OWN = "own"
    STRUCTURED = "structured"
    COMPOSITE = "composite"
    NONE = "none"
    """At most a fallback."""


def backend_key(tensor: torch.Tensor) -> str | None:
    """The dispatch key of the device that a tensor lies on; None where the tables of that key say nothing of it."""
    keys = torch_compat.dispatch_keys(tensor)
    foreign = {"Meta", "CPU", "Python"} if tensor.device.type != "meta" else {"CPU", "Python"}
    return keys[0] if keys and keys[0] not in foreign else None


def kernel_of(operator: str, key: str) -> Kernel | None:
    """By what the operator, such as aten::sum.IntList_out, runs on the device of this key; None where torch has no
    operator of that name."""
    if operator not in torch_compat.operator_names():
        return None
    if torch_compat.has_kernel(operator, key) or torch_compat.has_kernel(operator, f"Autograd{key}"):
        return Kernel.OWN
    if torch_compat.has_kernel(operator, "CompositeExplicitAutogradNonFunctional"):
        out = torch_compat.out_form(operator)
        return Kernel.STRUCTURED if out and torch_compat.has_kernel(out, key) else Kernel.NONE
    if operator.endswith(OVERRIDEABLE):
        return Kernel.NONE
    composite = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return Kernel.COMPOSITE if any(torch_compat.has_kernel(operator, each) for each in composite) else Kernel.NONE


@functools.lru_cache
def key_of(target: Target) -> str | None:
    """The key of a prepared target; see `backend_key`."""
    return backend_key(target.upload([torch.zeros(1)])[0])


def lacking(operators: Iterable[str], target: Target) -> str:
    """The first of these operators, as torch CPU calls them, for which the device needs one that its profile declares
    lacking; "" without one. An operator needs itself. If the device has no kernel of its own for it, it also needs its
    out= form, or its overrideable form."""
    declared = frozenset(entry.operator for entry in target.profile.lacking) if target.profile else frozenset()
    key = key_of(target) if declared else None
    for operator in operators if declared else ():
        forms = [operator]
        if operator not in declared and key is not None and not torch_compat.has_kernel(operator, key):
            forms += [torch_compat.out_form(operator), f"{operator}{OVERRIDEABLE}"]
        needed = next((form for form in forms if form in declared), "")
        if needed:
            return needed
    return ""


@functools.lru_cache
def needing(target: Target) -> Mapping[str, str]:
    """Every operator for which the target needs one that its profile declares lacking, with that one."""
    needed = {name: lacking([name], target) for name in sorted(torch_compat.operator_names())}
    return {name: declared for name, declared in needed.items() if declared}
