"""Selection of cases: the catalogue of OpInfos crossed with the user's options.

Defines `Entry` (the planner's view of one OpInfo), `Case` (one op x dtype x variant x layout), `Selection` (the user's
choice), the named `SUITES`, and `select`. A plan consists of names only, so it needs no torch, and it is the same on
every machine of a matrix.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.record.errors import UsageError
from conformance.record.names import (
    ARGUMENTS,
    CHANGED,
    DIFFERENTIATED,
    DTYPES,
    ENDS,
    GROUPS,
    LAYOUTS,
    TIERS,
    VARIANTS,
    nearest,
)
from conformance.record.result import Named
from conformance.run import options


@dataclass(frozen=True)
class Entry:
    """One OpInfo for the planner: `dtypes` and `backward_dtypes` by name, and the `variants` that it has."""

    op: str
    overload: str
    family: str
    dtypes: frozenset[str]
    backward_dtypes: frozenset[str]
    variants: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.op}.{self.overload}" if self.overload else self.op


@dataclass(frozen=True)
class Case(Named):
    """One op x dtype x variant x layout, with a limit on its samples (None: all)."""

    op: str
    overload: str
    family: str
    dtype: str
    variant: str
    layout: str
    samples: int | None = 20


SHOWN = 6
"""Largest number of operators that the words of a selection name."""


@dataclass(frozen=True)
class Selection:
    """A choice of cases: globs of ops (empty: all of op_db) crossed with dtypes, variants and layouts, and a limit on
    the samples of each (None: all).
    """

    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    variants: tuple[str, ...] = ("forward",)
    layouts: tuple[str, ...] = ("as_sampled",)
    samples: int | None = 20

    def __str__(self) -> str:
        """Return the selection in words; runs with the same words can be compared over time."""
        ops = self.ops if len(self.ops) <= SHOWN else (*self.ops[:SHOWN], f"{len(self.ops) - SHOWN} others")
        names = (ops or ("all ops",), self.dtypes, self.variants, self.layouts)
        return "; ".join([*(",".join(part) for part in names), self.most])

    @property
    def most(self) -> str:
        """Limit on the samples of an op, in words."""
        return "all samples" if self.samples is None else f"{self.samples} samples"


OVERLOADS = Path(__file__).parent / "overloads.toml"
BESIDE = ("_foreach*", "ops.aten.*")
"""Globs of the names of entries outside op_db: foreach operators, and overloads that op_db does not call."""


def _internals() -> tuple[str, ...]:
    """Return the operators that op_db calls inside others, and those that it never calls in any form."""
    table = tomllib.loads(OVERLOADS.read_text(encoding="utf-8"))
    alone = (n for n, source in table["calls"].items() if source.startswith(("row", "schema")) and "." not in n)
    return tuple(f"ops.aten.{name}" for name in (*table["internals"], *(n for n in alone if not n.endswith("_"))))


INTERNALS = _internals()
INTEGERS = ("int64", "int32", "int16", "int8")
_QUICK_OPS = ("add", "mm", "sum", "as_strided", "index_put", "nn.functional.conv2d")
# Named suites. "main" fits two cores and a quarter of an hour: 20 samples for a float32 forward run, as usual, and
# fewer where the same shapes come again in another dtype, in place, or with a gradient. "sweep" is the whole of op_db:
# every dtype, and every variant and layout in float32. "overloads" holds the entries outside op_db. "arguments" changes
# each argument of each op in turn, and "ends" all of its tensors. "internals" changes the arguments of operators that
# torch calls inside others, and that need not check their arguments.
SUITES: Mapping[str, tuple[Selection, ...]] = {
    "main": (
        Selection(),
        Selection(dtypes=("int64", "bool"), samples=6),
        Selection(variants=("inplace",), samples=6),
        Selection(variants=("backward",), samples=4),
    ),
    "sweep": (
        Selection(dtypes=DTYPES),
        Selection(variants=tuple(v for v in VARIANTS if v not in ("forward", "reference_inputs", *CHANGED))),
        Selection(layouts=tuple(layout for layout in LAYOUTS if layout != "as_sampled")),
    ),
    "quick": (
        Selection(ops=_QUICK_OPS, dtypes=("float32", "int64", "bool"), samples=2),
        Selection(ops=_QUICK_OPS, variants=("inplace", "backward"), samples=2),
    ),
    "arguments": (Selection(variants=ARGUMENTS, samples=None), Selection(("*",), ("int64",), ARGUMENTS, samples=None)),
    "ends": tuple(
        Selection(ops, dtypes, tuple(ENDS), samples=None) for ops in ((), BESIDE) for dtypes in (("float32",), INTEGERS)
    ),
    "internals": tuple(Selection(INTERNALS, (dtype,), CHANGED, samples=None) for dtype in ("float32", "int64")),
    "overloads": (
        Selection(ops=BESIDE, dtypes=("float32", "int64", "bool")),
        Selection(ops=BESIDE, variants=("inplace", "backward")),
    ),
}


HALVES = ("float16", "bfloat16")
"""Dtypes of two bytes; the default selections take the first that the target holds."""


def usual(held: Collection[str] | None = None) -> tuple[Selection, ...]:
    """Return the default selections: float32, and with fewer samples dtypes that need other kernels. `held` are the
    dtypes that the target holds; None means all.
    """
    half = [name for name in HALVES if held is None or name in held][:1]
    more = [name for name in (*half, "int64", "bool") if held is None or name in held]
    return (Selection(), *([Selection(dtypes=tuple(more), samples=6)] if more else []))


def plan_complete_test(held: Collection[str] | None = None) -> tuple[Selection, ...]:
    """Return the selections of `conformance test`: the default ones, then in float32 what they leave out. A part that
    finds more faults in the same time comes first, since the time of the test may end before the last part."""
    return (
        *usual(held),
        Selection(variants=("backward",), samples=4),
        Selection(variants=("inplace",), samples=4),
        Selection(variants=("refused_range",), samples=None),  # -1 in place of each number, such as a dimension
        Selection(variants=("kind_value",), samples=None),  # each bool flipped
        Selection(variants=("out",), samples=3),
        Selection(variants=tuple(name for name in ARGUMENTS if name not in ("refused_range", "kind_value"))),
    )


def asks_beside(selections: Iterable[Selection]) -> bool:
    """Whether a selection has a glob for entries outside op_db."""
    return any(is_beside(*selection.ops) for selection in selections)


def is_beside(*globs: str) -> bool:
    """Whether one of these names or globs starts like the names of entries outside op_db."""
    return any(glob.startswith(tuple(glob_beside.rstrip("*") for glob_beside in BESIDE)) for glob in globs)


def matching(globs: Sequence[str], catalog: Sequence[Entry]) -> list[Entry]:
    """Return the entries whose full name, or op name, matches one of the globs. Raises UsageError for a glob without
    match.
    """
    if not globs:
        return list(catalog)
    taken: dict[Entry, None] = {}
    for glob in globs:
        entries = [e for e in catalog if fnmatch.fnmatchcase(e.name, glob) or fnmatch.fnmatchcase(e.op, glob)]
        if not entries:
            names = {entry.name for entry in catalog}
            near = nearest(glob, names) or nearest(glob.rpartition(".")[2], names)
            raise UsageError(f"no op in PyTorch's op_db matches {glob!r}{near}")
        taken.update(dict.fromkeys(entries))
    return list(taken)


CASES = ("op", "dtype", "variant", "layout", "samples", "suite", "shard", "rerun-failures")
"""Options that choose cases."""
USUAL = {
    "dtype": "float32; of fewer samples float16 or bfloat16, int64, bool",
    "variant": "forward",
    "layout": "as_sampled",
    "samples": "20, and 6 in dtypes but float32; or as the suite",
}
"""Usual values of the options that choose cases, for their help."""
VALUES = {"variant": options.variants_shown(), "suite": ", ".join(SUITES)}
"""Known values of the options that choose cases."""


def selections_of(
    args: Any, held: Collection[str] | None = None, defaults: Callable[..., tuple[Selection, ...]] = usual
) -> tuple[Selection, ...]:
    """Return the selections of these options. Raises UsageError.

    A suite comes first, narrowed to the given ops or samples; then one selection of the named dtypes; otherwise the
    `defaults` for a target that holds the dtypes `held`.
    """
    samples, suite = args.samples, args.suite
    if samples not in (None, "all") and not (samples.isdigit() and int(samples) > 0):
        raise UsageError(f"--samples {samples!r} is neither a number above 0 nor 'all'")
    changes: dict[str, Any] = {"ops": tuple(args.op)} if args.op else {}
    changes |= {} if samples is None else {"samples": None if samples == "all" else int(samples)}
    for name, known in (("dtype", DTYPES), ("variant", VARIANTS), ("layout", LAYOUTS)):
        words = getattr(args, name)
        if words is not None:
            if suite:
                raise UsageError(f"--suite {suite} chooses {name}s itself; leave out --suite or --{name}")
            changes[f"{name}s"] = tuple(options.chosen(words, known, name, GROUPS))
    if not suite:
        selections = defaults(held) if args.dtype is None else (Selection(),)
        return tuple(replace(selection, **changes) for selection in selections)
    if suite not in SUITES:
        raise UsageError(f"unknown suite {suite!r}; choose from {', '.join(SUITES)}")
    return tuple(replace(selection, **changes) for selection in SUITES[suite])


def select(
    catalog: Sequence[Entry], selections: Sequence[Selection] = (Selection(),), shard: tuple[int, int] = (1, 1)
) -> list[Case]:
    """Return the existing cases of these selections, in op_db's order and without duplicates. Raises UsageError if
    there is none.
    """
    cases: dict[Any, Case] = {}
    for selection in selections:
        for case in _cases(catalog, selection):
            # Error inputs choose their dtypes themselves, so only the first selection takes them.
            key = (case.name, case.variant, case.layout) if case.variant == "error_inputs" else case.id
            cases.setdefault(key, case)
    if not cases:
        variants, dtypes = (
            ", ".join(dict.fromkeys(name for selection in selections for name in getattr(selection, part)))
            for part in ("variants", "dtypes")
        )
        raise UsageError(
            f"no op among those chosen supports {variants} with dtype {dtypes}; choose others with --op, --variant or "
            "--dtype"
        )
    index, count = shard
    return list(cases.values())[index - 1 :: count]


def without(cases: Iterable[Case], lacking: Collection[str]) -> tuple[list[Case], Counter[str]]:
    """Return the cases of OpInfos that are not declared lacking, and the removed cases by OpInfo."""
    cases = list(cases)
    return [case for case in cases if case.name not in lacking], Counter(c.name for c in cases if c.name in lacking)


def _cases(catalog: Sequence[Entry], wanted: Selection) -> Iterable[Case]:
    for entry in matching(wanted.ops, catalog):
        for variant in wanted.variants:
            if variant not in entry.variants:
                continue
            # Error inputs choose their dtypes and layouts themselves.
            own = variant == "error_inputs"
            supported = entry.backward_dtypes if variant in DIFFERENTIATED else entry.dtypes
            if variant in TIERS:
                supported = supported - {"bool"}
            for dtype in wanted.dtypes[:1] if own else [name for name in wanted.dtypes if name in supported]:
                for layout in wanted.layouts[:1] if own else wanted.layouts:
                    yield Case(entry.op, entry.overload, entry.family, dtype, variant, layout, wanted.samples)


SORTED = {"bucketize": ("input",), "searchsorted": ("args",)}
"""Arguments that may take special values, for ops that need another argument sorted."""

ADDING_UP = frozenset(
    {"convolution", "fft", "layers", "linalg", "losses", "matrix products", "normalization", "pooling and resampling",
     "reductions", "scans", "special", "other"}
)  # fmt: skip
"""Families whose results are sums. If the largest and the least value of a dtype are both among the terms, the order of
summation decides the sum.
"""


def takes_specials(op: str, family: str, dtype: str) -> tuple[str, ...]:
    """Return the arguments that take special values; empty means all. An integer argument may be an index, which torch
    CPU need not check.
    """
    return SORTED.get(op, () if dtype.startswith(("float", "bfloat", "complex")) or family == "binary" else ("input",))
