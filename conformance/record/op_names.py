"""Names of op_db's entries in each tested minor version of torch, as recorded by `scripts/op_names.py`.

Defines `versions_of` and `recorded`. A declaration may name an op that only some versions of torch have. The
record tells such a name from a misspelt one.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

DATA = Path(__file__).with_name("op_names.json")


@functools.cache
def versions_of() -> dict[str, tuple[str, ...]]:
    """Minor versions of torch, such as "2.13", by the name of the entry that they have, such as "linalg.qr"."""
    names: dict[str, str] = json.loads(DATA.read_text(encoding="utf-8"))
    return {name: tuple(versions.split()) for name, versions in names.items()}


def recorded(version: str) -> list[str]:
    """Names of the entries of a minor version. Empty for a version that is not in the record."""
    return [name for name, versions in versions_of().items() if version in versions]
