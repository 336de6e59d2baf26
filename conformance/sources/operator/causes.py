"""The cause of a difference: one fault of an operator shows in several checks, and is told once.

    cause_of(trial, gradients_difference, found.__contains__) == "values"

A kernel that multiplies by 1.01 has wrong values, wrong values for strided inputs, at all sizes, and wrong gradients.
So an earlier check is asked about the same call: where the results already differ from the reference's, they explain a
wrong gradient; where they differ for dense inputs, too, layouts are not at fault. A cause is the name of the check that
explains the difference, by default its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from conformance.record.result import counted
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.checks import EVERY, Examination
from conformance.sources.operator.examine import examined
from conformance.sources.operator.table import CHECKS, FATAL
from conformance.sources.operator.verdict import Difference
from conformance.standalone.moving import map_leaves
from conformance.standalone.operator_checks import PROCESS

TRIAL = 3.0
"""Limit on the time of a call that looks for a cause, in seconds."""

LARGE = 1e4
"""Number that takes the place of infinity in a call that looks for a fault of large numbers."""

OF_DERIVATIVES = ("compare", "gradients")
EXPLAINED_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gradients", "gradcheck", "accuracy", "distribution", "overlap", "unwritten"), ("compare",)),
    **dict.fromkeys(("subsets", "second", "forward_mode", "backward", "cotangents"), OF_DERIVATIVES),
    **dict.fromkeys(("repetition", "reads"), ("compare", "fill")),
    **dict.fromkeys(("replay", "contexts"), ("compare", "fill", "repeat")),
    "symbolic": ("fake",),
    "compile": ("fake",),
    **dict.fromkeys(("dynamic", "inductor"), ("fake", "compile")),
}
"""Procedures whose differences in the same call explain that of a check. Others compare the operator with itself only,
as vmap does with a loop, so a wrong result explains nothing there."""


def cause_of(trial: Examination, finding: Difference, is_found: Callable[[str], bool]) -> str:
    """Return the check whose difference explains this one. `is_found` says whether a check has found one."""
    check, call = finding.check, finding.call
    if check in FATAL or finding.mismatch.where == PROCESS:
        return check
    if check in EVERY:
        return cause_of_values(trial, check, call, is_found)
    for procedure in EXPLAINED_BY.get(check, ()):
        for other in differences_in(trial, procedure, call):
            by = cause_of_values(trial, other.check, call, is_found) if other.check in EVERY else other.check
            if is_found(by):
                return by
    return check


def cause_of_values(trial: Examination, check: str, call: DrawnCall, is_found: Callable[[str], bool]) -> str:
    """Return the kind of calls that explains wrong values in a call of one kind: ordinary ones if these are wrong, too,
    and large numbers if infinity in their place is."""
    for cause, infinity in (("values", 1.0), ("blocks", 1.0), ("magnitudes", LARGE)):
        if check == cause:
            return check
        if is_found(cause) and (cause != "magnitudes" or check == kinds.SPECIAL):
            if check in (kinds.OTHER_DTYPES, kinds.MIXED):
                return cause
            if any(one.check in EVERY for one in differences_in(trial, "compare", made_plain(call, infinity))):
                return cause
    return check


def made_plain(call: DrawnCall, infinity: float) -> DrawnCall:
    """Return a call on the same values in dense memory, with numbers in place of infinities and nan. Values of another
    magnitude are moved to -1..1."""

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        dense = leaf.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        if not dense.is_floating_point() or not dense.numel():
            return dense
        dense = dense.nan_to_num(1.0, infinity, -infinity)
        if call.kind != kinds.SCALED:
            return dense
        middle = dense.double().mean()
        spread = (dense.double() - middle).abs().max()
        return ((dense - middle) / spread).to(dense.dtype) if spread else torch.ones_like(dense)

    return call.on(map_leaves(call.values, plain), kind=kinds.SAMPLED)


def differences_in(trial: Examination, procedure: str, call: DrawnCall) -> list[Difference]:
    """Return what a procedure finds in a call that the reference accepts."""
    if not trial.plan.accepts(call):
        return []
    trial = replace(trial, watches=False)  # no change of the global state is asked for
    return [item for item in examined(trial, procedure, [call], TRIAL) if isinstance(item, Difference)]


def by_cause(trial: Examination, found: Iterable[Difference]) -> dict[str, list[Difference]]:
    """Return the differences of several checks by their causes, in the order of the table, each with its cause."""
    differences = {one.check: one for one in found}
    groups: dict[str, list[Difference]] = {}
    for check in sorted(differences, key=[*FATAL, *CHECKS].index):
        one = differences[check]
        cause = cause_of(trial, one, differences.__contains__)
        groups.setdefault(cause, []).append(replace(one, cause=cause))
    return dict(sorted(groups.items(), key=lambda group: [*FATAL, *CHECKS].index(group[1][0].check)))


def also_in(group: list[Difference]) -> str:
    """Return the other checks in which a cause shows, in words; "" if there are none."""
    others = [one.check for one in group[1:]]
    return f"the same fault shows in {counted(len(others), 'other check')}: {', '.join(others)}" if others else ""
