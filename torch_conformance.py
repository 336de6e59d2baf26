"""Entry point of the command `conformance`, in a module whose name no other distribution has.

PyPI's `conformance` is another project, with a package of the same name. If Python finds that one first, the command
says so instead of running a stranger's code.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def foreign(here: Path) -> str:
    """The file of a package `conformance` that Python finds in place of the one beside this module; empty without."""
    found = find_spec("conformance")
    place = Path(found.origin) if found is not None and found.origin else None
    return "" if place is not None and place.parent.parent == here else str(place or "a namespace package")


def main() -> int:
    """Run the command. Exit code 2 if another package `conformance` is found first."""
    other = foreign(Path(__file__).resolve().parent)
    if other:
        text = f"another package named conformance is found before that of torch-conformance: {other}"
        print(f"conformance: {text}; uninstall it, or leave the folder in which it lies", file=sys.stderr)
        return 2
    from conformance.__main__ import main as command

    return command()
