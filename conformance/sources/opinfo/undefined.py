"""Undefined parts of torch CPU's answer on special values: ties, the spread of a nan, and torch CPU's own faults.

Defines `rules_of` and `fault_of`. The declarations in `undefined.toml` say which answers are undefined. The rules of
`engine/rules.py` find the elements.
"""

from __future__ import annotations

import functools
from pathlib import Path

from conformance.declare.declaration import ANSWERS, UNDEFINED, Declaration, among, read
from conformance.engine.rules import CHOICE, FAULT, LARGE, REPEATED, RULES, SIGNED_ZEROS, SINGULAR, SPECIAL, TIES, ZEROS
from conformance.record.names import CHANGED, TIERS
from conformance.sources.opinfo.plan import Case

DECLARATIONS = [
    declaration for declaration in read(Path(__file__).parent / "undefined.toml", (ANSWERS,)) if declaration.holds
]
LARGE_TIERS = ("specials_extremes", "specials_large")
"""Tiers where torch CPU's own rounding, or an overflow on the way, may dominate a result."""


def declared(case: Case, part: str) -> Declaration | None:
    """Return the declaration that this part of torch CPU's answer is undefined, if there is one."""
    return _declared(case.family, case.variant, case.op, case.name, part)


@functools.cache
def _declared(family: str, variant: str, op: str, name: str, part: str) -> Declaration | None:
    where = [{"family": family, "variant": variant, "op": one} for one in (op, name)]
    return next(
        (
            declaration
            for declaration in DECLARATIONS
            if declaration.names(part) and any(map(declaration.scope.selects, where))
        ),
        None,
    )


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
    return any(
        declaration.names(FAULT) and declaration.scope.op and declaration.scope.selects(where)
        for declaration in DECLARATIONS
    )


@functools.lru_cache(maxsize=1)  # of one case after the other, each asked for every sample
def rules_of(case: Case) -> tuple[str, ...]:
    """Return the names of the judge's rules for a case: the order of equal elements, and the choices of a
    decomposition, are open in every case, the other parts with special values or changed arguments."""
    special = case.variant in (*TIERS, *CHANGED)
    names = [name for name in (*RULES, CHOICE) if name in UNDEFINED and declared(case, name)]
    if not special:
        return tuple(name for name in names if name in (TIES, CHOICE))
    names = [SPECIAL, *names]
    names += [LARGE] if TIERS.get(case.variant) in LARGE_TIERS else []
    return (*names, *([SIGNED_ZEROS] if case.variant == "specials_zeros" and not declared(case, ZEROS) else []))


def needs_distinct(name: str) -> bool:
    """Whether an entry has no defined result on repeated elements.

    LAPACK defines no results of a singular matrix, an order defines none among equal elements, and a search none of
    unsorted boundaries.
    """
    parts = (SINGULAR, TIES, REPEATED)
    return any(among(name, declaration.scope.op) for declaration in DECLARATIONS if any(map(declaration.names, parts)))


def is_free(name: str) -> bool:
    """Whether the order, sign or basis of an entry's results is free, as that of eigenvalues is."""
    return any(among(name, declaration.scope.op) for declaration in DECLARATIONS if declaration.names(CHOICE))


def needs_order(name: str) -> bool:
    """Whether the result of an entry contains the order of the elements of its input."""
    return any(among(name, declaration.scope.op) for declaration in DECLARATIONS if declaration.names(TIES))
