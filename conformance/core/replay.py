"""A finding run again and how it is shown: in one form for a saved program and for a sample of op_db.

The key insight: who replays a finding wants to paste it, so what is printed is the script's own part, and as comments
behind it both answers as they were observed this time. How something is run again is its own room's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.core.errors import UsageError
from conformance.core.script import own_part


@dataclass(frozen=True)
class Replayed:
    """What became of a program or case: `kind` is the word for its failure, none where it agrees on all of `extent`;
    `about` are the differences with both answers; `lacks` says what the target had declared that it leaves out."""

    name: str
    target: str
    extent: str
    kind: str = ""
    about: Sequence[str] = ()
    script: str = ""
    lacks: str = ""


def show(one: Replayed) -> int:
    """Print one, and return the exit code. Raises UsageError where nothing was compared."""
    if one.lacks:
        raise UsageError(f"{one.name}: {one.target} leaves out {one.lacks}, so there is nothing to compare")
    if not one.kind:
        print(f"{one.name}: {one.target} agrees with torch CPU on {one.extent}")
        return 0
    if one.script:
        print(own_part(one.script))
    for line in one.about:
        print(f"# {_inert(line)}")
    return 1


def show_all(found: Sequence[Replayed], noun: str) -> int:
    """Print each in a line, then how many agree, and return the exit code."""
    for one in found:
        name = one.name.rpartition("/")[2].removesuffix(".json")
        if one.kind:
            print(f"{one.kind} {name}\n     {_inert(one.about[0])}")
        else:
            print(f"SKIP {name}: {one.target} leaves out {one.lacks}" if one.lacks else f"ok   {name}")
    failed, skipped = sum(bool(one.kind) for one in found), sum(bool(one.lacks) for one in found)
    agree = f"{len(found) - failed - skipped} of {len(found)} {noun}s agree with torch CPU"
    print(agree + (f", {skipped} were not run" if skipped else ""))
    return int(failed > 0)


def _inert(text: str) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in text)
