"""Queries of the dispatcher's tables: whether an operator has a kernel for a device's dispatch key.

Defines `backend_key`, `kernel_of` and `lacking`. An operator can run in three ways. First, the device has a kernel for
it. Second, the device has a kernel for its out= form, and torch derives one form from the other ("structured"). Third,
it is a composite of other operators. A fallback that accepts every operator is no kernel. Some devices are not covered
by the tables: those whose tensors dispatch on another key (wrappers on the meta device), and torch CPU with something
around it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import StrEnum

import torch

from conformance.engine.target import Target
from conformance.standalone import torch_compat

OVERRIDEABLE = "_overrideable"
"""Ending of operators such as aten::convolution_overrideable. torch's aten::convolution calls it for foreign devices,
and torch's composite kernel of it only raises."""


class KernelKind(StrEnum):
    """The kind of kernel that an operator has on a device."""

    OWN = "own"
    STRUCTURED = "structured"
    COMPOSITE = "composite"
    NONE = "none"
    """At most a fallback."""


def backend_key(tensor: torch.Tensor) -> str | None:
    """Return the dispatch key of the device of a tensor; None if the tables of that key do not cover the device."""
    keys = torch_compat.dispatch_keys(tensor)
    foreign = {"Meta", "CPU", "Python"} if tensor.device.type != "meta" else {"CPU", "Python"}
    return keys[0] if keys and keys[0] not in foreign else None


def kernel_of(operator: str, key: str) -> KernelKind | None:
    """Return the kind of kernel that runs the operator, such as aten::sum.IntList_out, on the device of this key.
    Return None if torch has no operator of that name."""
    if operator not in torch_compat.operator_names():
        return None
    if torch_compat.has_kernel(operator, key) or torch_compat.has_kernel(operator, f"Autograd{key}"):
        return KernelKind.OWN
    if torch_compat.has_kernel(operator, "CompositeExplicitAutogradNonFunctional"):
        out = torch_compat.out_form(operator)
        return KernelKind.STRUCTURED if out and torch_compat.has_kernel(out, key) else KernelKind.NONE
    if operator.endswith(OVERRIDEABLE):
        return KernelKind.NONE
    composite = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    is_composite = any(torch_compat.has_kernel(operator, other) for other in composite)
    return KernelKind.COMPOSITE if is_composite else KernelKind.NONE


@functools.lru_cache
def key_of(target: Target) -> str | None:
    """Return the key of a prepared target; see `backend_key`."""
    return backend_key(target.upload([torch.zeros(1)])[0])


def lacking(operators: Iterable[str], target: Target) -> str:
    """Return the first operator declared lacking that the device needs for these operators, as torch CPU calls them; ""
    without one. An operator needs itself. If the device registers no kernel for it, it also needs its out= form and its
    overrideable form."""
    declared = frozenset(target.facts.profile.operators if target.facts.profile else ())
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
    """Map every operator that needs an operator declared lacking on this target to the declared operator."""
    needed = {name: lacking([name], target) for name in sorted(torch_compat.operator_names())}
    return {name: declared for name, declared in needed.items() if declared}
