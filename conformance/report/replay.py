"""Display of a finding that is run again, in one form for saved programs and op_db samples.

Users paste a replayed finding into an issue. So the output is the script's own part, followed by both answers of this
run as comments. Other modules run the finding again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.record.errors import UsageError
from conformance.standalone.script import own_part


@dataclass(frozen=True)
class Replayed:
    """The result of a rerun program or case. `kind` is the word for its failure, empty if both sides agree on all of
    `extent`. `about` are the differences with both answers. `lacks` names the part that the target does not support, in
    which case nothing ran."""

    name: str
    target: str
    extent: str
    kind: str = ""
    about: Sequence[str] = ()
    script: str = ""
    lacks: str = ""


def show(one: Replayed) -> int:
    """Print one result, and return the exit code. Raises UsageError if nothing was compared."""
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


def show_all(replayed: Sequence[Replayed]) -> None:
    """Print the result of each program on one line, then the number that agree."""
    for one in replayed:
        name = one.name.rpartition("/")[2].removesuffix(".json")
        if one.kind:
            print(f"{one.kind} {name}\n     {_inert(one.about[0])}")
        else:
            print(f"SKIP {name}: {one.target} leaves out {one.lacks}" if one.lacks else f"ok   {name}")
    failed, skipped = sum(bool(one.kind) for one in replayed), sum(bool(one.lacks) for one in replayed)
    agree = f"{len(replayed) - failed - skipped} of {len(replayed)} programs agree with torch CPU"
    print(agree + (f", {skipped} were not run" if skipped else ""))


def _inert(text: str) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in text)
