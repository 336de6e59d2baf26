"""Which cases to run: the catalogue of OpInfos crossed with what the user asked for.

Defines `Entry` (what the planner must know of one OpInfo), `Case` (one op x dtype x variant x layout) and `select`. The
key insight: a plan is made of names only, so it is made without torch, and it is the same on every machine of a matrix.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VARIANTS = {
    "forward": "the function, on OpInfo's sample inputs",
    "method": "the Tensor method",
    "inplace": "the in-place method, on a copy of the input",
    "out": "the function with out=: right-sized, empty, and with gaps",
    "backward": "the gradients of all inputs that OpInfo differentiates",
    "error_inputs": "inputs that must raise, with OpInfo's message pattern",
    "reference_inputs": "the function, on OpInfo's larger set of inputs",
}
LAYOUTS = {
    "as_sampled": "strides as OpInfo made them",
    "transposed": "dimensions stored in reverse order",
    "gaps": "every other element of the storage",
    "offset": "a storage offset, and storage left over behind",
    "expanded": "stride 0 in the first dimension that is not of size 1",
    "channels_last": "4-d tensors stored channels last",
}
# The names torch has for dtypes, so that a misspelt one is noticed without importing torch.
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
# `conformance.target.ORACLES`, spelt out because that module imports torch; a test holds the two together.
ORACLES = (
    *("structure", "dtype", "shape", "stride", "storage_offset", "contiguity", "alias", "value", "storage"),
    *("error", "grad", "version", "kernels"),
)
# Oracles beyond those of a result; "skip" is a sample that could not be compared though neither OpInfo nor
# torch CPU nor the target's declared dtypes say why.
RUN_ORACLES = ("crash", "timeout", "memory", "message", "device", "harness", "skip")


class UsageError(Exception):
    """What the user asked for names nothing; the text is one sentence that says what, and what is near it."""


@dataclass(frozen=True)
class Entry:
    """One OpInfo as the planner sees it: `dtypes` and `backward_dtypes` by name, `variants` those it has."""

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
class Case:
    """One op x dtype x variant x layout."""

    op: str
    overload: str
    family: str
    dtype: str
    variant: str
    layout: str

    @property
    def name(self) -> str:
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @property
    def id(self) -> str:
        return f"{self.name}::{self.dtype}::{self.variant}::{self.layout}"


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?` or nothing."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {', '.join(near)}?" if near else ""


def chosen(asked: str | Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """The names in a comma-separated list, or every known one for `all`. Raises UsageError for one that is unknown."""
    known = list(known)
    words = [word.strip() for word in (asked.split(",") if isinstance(asked, str) else asked) if word.strip()]
    if words == ["all"]:
        return known
    for word in words:
        if word not in known:
            near = nearest(word, known) or f"; choose from {', '.join(known)}"
            raise UsageError(f"unknown {what} {word!r}{near}")
    if not words:
        raise UsageError(f"no {what} given; choose from {', '.join(known)}")
    return list(dict.fromkeys(words))


def matching(globs: Sequence[str], catalog: Sequence[Entry]) -> list[Entry]:
    """The entries whose full name, or op name, matches one of the globs. Raises UsageError for a glob without match."""
    if not globs:
        return list(catalog)
    taken: dict[Entry, None] = {}
    for glob in globs:
        found = [e for e in catalog if fnmatch.fnmatchcase(e.name, glob) or fnmatch.fnmatchcase(e.op, glob)]
        if not found:
            names = {entry.name for entry in catalog}
            near = nearest(glob, names) or nearest(glob.rpartition(".")[2], names)
            raise UsageError(f"no op in PyTorch's op_db matches {glob!r}{near}")
        taken.update(dict.fromkeys(found))
    return list(taken)


def parse_shard(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4). Raises UsageError unless 1 <= i <= n."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise UsageError(f"--shard {text!r} is not i/n with 1 <= i <= n; write for example 2/4")
    return int(index), int(count)


def select(
    catalog: Sequence[Entry],
    *,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = ("float32",),
    variants: Sequence[str] = ("forward",),
    layouts: Sequence[str] = ("as_sampled",),
    shard: tuple[int, int] = (1, 1),
) -> list[Case]:
    """The cases that exist among those asked for, in op_db's order. Raises UsageError when there is none."""
    cases = []
    for entry in matching(ops, catalog):
        for variant in variants:
            if variant not in entry.variants:
                continue
            # Error inputs choose their dtypes and layouts themselves.
            own = variant == "error_inputs"
            supported = entry.backward_dtypes if variant == "backward" else entry.dtypes
            for dtype in dtypes[:1] if own else [name for name in dtypes if name in supported]:
                for layout in layouts[:1] if own else layouts:
                    cases.append(Case(entry.op, entry.overload, entry.family, dtype, variant, layout))
    if not cases:
        raise UsageError(
            f"no op among those chosen supports {', '.join(variants)} with dtype {', '.join(dtypes)}; "
            "choose others with --op, --variant or --dtype"
        )
    index, count = shard
    return cases[index - 1 :: count]
