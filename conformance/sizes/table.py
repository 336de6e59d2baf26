"""The table of rows: what is called, on inputs of which sizes.

Defines `Row`, `Case`, `load` and `select`. The key insight: sizes are names in the rows' expressions, so that one scale
of them is real work and another is a test of the harness. This module must not import torch.
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

from conformance.accuracy.table import OfRow
from conformance.core.errors import UsageError
from conformance.core.footprint import SIZES
from conformance.core.names import nearest

FILE = Path(__file__).parent / "rows.toml"
SCALES: Mapping[str, Mapping[str, int]] = {
    "large": {"BYTES": 2**31 + 5, "MILLION": 2_000_003, "MANY": 100_000, "BATCH": 8},
    "small": {"BYTES": 2**25 + 5, "MILLION": 200_003, "MANY": 300, "BATCH": 1},
}
"""What the names of sizes stand for: elements of one byte, addends, small tensors, and images or sentences."""


@dataclass(frozen=True)
class Row:
    """One call: `call` is an expression of the `inputs`, which are expressions, too. `dtype` names what it computes
    in. `bits`: floating answers are moved, and not rounded. `backward`: the gradients of its floating inputs, too."""

    name: str
    family: str
    call: str
    dtype: str
    bits: bool = False
    backward: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether all answers agree to the bit, none being rounded."""
        return self.bits or "float" not in self.dtype

    def program(self) -> str:
        """The text of the function `program`, of the inputs; what it makes lies on `device`."""
        lines = [f"def program({', '.join(self.inputs)}):"]
        *before, last = self.call.strip().splitlines()
        return "\n".join([*lines, *(f"    {line}" for line in [*before, f"return {last}"])])

    def made(self) -> str:
        """The text of the function `inputs`."""
        lines = [f"{name} = {text}" for name, text in self.inputs.items()]
        given = f"return {{{', '.join(f'{name!r}: {name}' for name in self.inputs)}}}"
        return "\n    ".join(["def inputs():", "torch.manual_seed(1234)", *lines, given])

    def sizes(self, scale: str) -> dict[str, int]:
        """The sizes by the names that the row uses."""
        words = set(re.findall(r"[A-Z]+", " ".join([self.call, *self.inputs.values()])))
        return {name: size for name, size in SCALES[scale].items() if name in words}


@dataclass(frozen=True)
class Case(OfRow):
    """One row at one scale, forward or backward."""

    row: Row
    variant: str
    scale: str = "large"
    layout: str = SIZES
    overload: str = ""

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The dtype that the row computes in."""
        return self.row.dtype


@functools.cache
def load() -> tuple[Row, ...]:
    """The rows."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(_row(name, family, dict(data)) for family, table in tables.items() for name, data in table.items())


def _row(name: str, family: str, data: dict[str, Any]) -> Row:
    known = {key: data.pop(key) for key in ("call", "dtype", "bits", "backward") if key in data}
    return Row(name, family, **{"dtype": "float32", **known}, inputs=data)


def families() -> list[str]:
    """The classes of sizes."""
    return list(dict.fromkeys(row.family for row in load()))


def select(
    rows: Sequence[str], classes: Sequence[str], dtypes: Sequence[str], variants: Sequence[str], scale: str
) -> list[Case]:
    """The cases of these globs of rows in these classes and dtypes (none: all). Raises UsageError for a word without a
    match, and where nothing is left."""
    known = load()
    names, held = [row.name for row in known], sorted({row.dtype for row in known})
    for word, among in [*((w, names) for w in rows), *((w, families()) for w in classes), *((w, held) for w in dtypes)]:
        if not fnmatch.filter(among, word):
            raise UsageError(f"nothing in the table of sizes is called {word!r}{nearest(word, among)}")
    cases = [
        Case(row, variant, scale)
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
