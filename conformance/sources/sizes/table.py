"""Table of rows: the call, its inputs and their sizes.

Defines `SizesRow`, `SizesCase`, `load` and `select`. Sizes are names in the rows' expressions. With one scale they have
the sizes of real work, and with another they make a test of the harness. This module must not import torch.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.record.errors import UsageError
from conformance.record.footprint import SIZES
from conformance.record.names import nearest
from conformance.sources.accuracy.table import OfRow

FILE = Path(__file__).parent / "rows.toml"
SCALES: Mapping[str, Mapping[str, int]] = {
    "large": {"BYTES": 2**31 + 5, "ELEMENTS": 2**27, "MILLION": 2_000_003, "MANY": 100_000, "BATCH": 8},
    "small": {"BYTES": 2**25 + 5, "ELEMENTS": 2**21, "MILLION": 200_003, "MANY": 300, "BATCH": 1},
}
"""Values of the size names, by scale: elements of one byte, addends, small tensors, and images or sentences."""


@dataclass(frozen=True)
class SizesRow:
    """One call: `call` is an expression of the `inputs`, which are expressions, too.

    `dtype` names the dtype of the computation. `bits` means that floating answers are moved and not rounded. `backward`
    means that the gradients of the floating inputs are measured too.
    """

    name: str
    family: str
    call: str
    dtype: str
    bits: bool = False
    backward: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether all answers must agree to the bit, since none is rounded."""
        return self.bits or "float" not in self.dtype

    def program(self) -> str:
        """Return the source of the function `program`, which takes the inputs and creates tensors on `device`."""
        lines = [f"def program({', '.join(self.inputs)}):"]
        *before, last = self.call.strip().splitlines()
        return "\n".join([*lines, *(f"    {line}" for line in [*before, f"return {last}"])])

    def input_lines(self) -> str:
        """Return the source of the function `inputs`."""
        lines = [f"{name} = {text}" for name, text in self.inputs.items()]
        last = f"return {{{', '.join(f'{name!r}: {name}' for name in self.inputs)}}}"
        return "\n    ".join(["def inputs():", "torch.manual_seed(1234)", *lines, last])

    def sizes(self, scale: str) -> dict[str, int]:
        """Return the sizes by name, for the names that the row uses."""
        words = set(re.findall(r"[A-Z]+", " ".join([self.call, *self.inputs.values()])))
        return {name: size for name, size in SCALES[scale].items() if name in words}


@dataclass(frozen=True)
class SizesCase(OfRow):
    """One row at one scale, forward or backward."""

    row: SizesRow
    variant: str
    scale: str = "large"
    layout: str = SIZES
    overload: str = ""

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """Dtype of the row's computation."""
        return self.row.dtype


@functools.cache
def load() -> tuple[SizesRow, ...]:
    """Return the rows."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(_row(name, family, dict(data)) for family, table in tables.items() for name, data in table.items())


def _row(name: str, family: str, data: dict[str, Any]) -> SizesRow:
    known = {key: data.pop(key) for key in ("call", "dtype", "bits", "backward") if key in data}
    return SizesRow(name, family, **{"dtype": "float32", **known}, inputs=data)


def families() -> list[str]:
    """Return the classes of sizes."""
    return list(dict.fromkeys(row.family for row in load()))


def select(
    rows: Sequence[str], classes: Sequence[str], dtypes: Sequence[str], variants: Sequence[str], scale: str
) -> list[SizesCase]:
    """Return the cases of these globs of rows in these classes and dtypes (empty: all). Raises UsageError for a word
    without a match, and if no case remains.
    """
    known = load()
    names, held = [row.name for row in known], sorted({row.dtype for row in known})
    for word, among in [*((w, names) for w in rows), *((w, families()) for w in classes), *((w, held) for w in dtypes)]:
        if not fnmatch.filter(among, word):
            raise UsageError(f"nothing in the table of sizes is called {word!r}{nearest(word, among)}")
    cases = [
        SizesCase(row, variant, scale)
        for row in known
        if not rows or any(fnmatch.fnmatchcase(row.name, glob) for glob in rows)
        if not classes or row.family in classes
        if not dtypes or row.dtype in dtypes
        for variant in variants
        if variant == "forward" or row.backward
    ]
    if not cases:
        raise UsageError(f"no row among those chosen runs {', '.join(variants)}")
    return cases
