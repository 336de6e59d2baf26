"""A fuzz campaign as the report sees it: `Campaign` and its `Found`s, read from fuzz.json, joined, and judged.

The key insight: a table of what was reached hides what was not, so a campaign may name the axes that there are; and no
share of "all" cells is ever stated, since nobody knows how many of them can exist. This module must not import torch,
nor the fuzzer: fuzz.json is all that it knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from conformance.core import result as model
from conformance.core.errors import ReportError

SCHEMA = 1
KIND = "fuzz"
NAME = "fuzz.json"
AXES = ("families", "layouts", "dtypes")

Cell = tuple[str, str, str]


@dataclass(frozen=True)
class Found:
    """One distinct finding: its signature, the programs that showed it, and its smallest program as a script.

    `elsewhere` says what becomes of that program on each related target, which tells whose bug it is; `program` is the
    number of the program and `steps` its length."""

    signature: str
    kind: str = "FAIL"
    count: int = 1
    program: int | None = None
    steps: int | None = None
    mismatch: str = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    script: str = ""


@dataclass(frozen=True)
class Campaign:
    """What one campaign, or several joined, did and found.

    `cells` counts steps by family, layout class of the first tensor, and its dtype; `families`, `layouts` and `dtypes`
    name all that there are, reached or not, and are empty where the file does not say. `unsupported` counts programs
    that the target leaves out, by reason, `avoided` steps that were drawn and not run. `kernels_allowed` is 0 when the
    target does not count kernels."""

    target: str
    seeds: tuple[int, ...] = ()
    programs: int = 0
    steps: int = 0
    seconds: float = 0.0
    kernels: int = 0
    kernels_allowed: int = 0
    kernels_compared: int = 0
    arbitrated: int = 0
    complete: bool = True
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, int] = field(default_factory=dict)
    avoided: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[Cell, int] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    findings: tuple[Found, ...] = ()

    @property
    def failing(self) -> int:
        """Programs that showed a finding."""
        return sum(found.count for found in self.findings)

    @property
    def compared(self) -> int:
        """Programs that were run, the failing ones included."""
        return self.programs - sum(self.unsupported.values())

    def verdict(self) -> tuple[bool, str]:
        """Whether all is well, and the sentence that a reader wants first."""
        if self.findings:
            distinct = counted(len(self.findings), "distinct finding")
            return False, f"{self.failing:,} of {counted(self.programs, 'drawn program')} fail: {distinct}."
        if not self.compared:
            return False, "No drawn program was compared."
        if not self.complete:
            return False, f"The fuzz campaign was interrupted after {counted(self.programs, 'program')}."
        unsupported_reason = (
            f"; the target leaves out {self.programs - self.compared:,} more" if self.unsupported else ""
        )
        return True, f"No finding in {counted(self.compared, 'drawn program')}{unsupported_reason}."

    def exit_code(self) -> int:
        """0 when all is well, else 1."""
        return int(not self.verdict()[0])


def counted(number: int, noun: str) -> str:
    """`1 program`, `2 programs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def load(path: Path) -> Campaign:
    """Read a campaign from the fuzz.json at `path`. Raises ReportError when there is none or it is damaged."""
    return from_json(model.read(path), str(path))


def is_campaign(data: Any) -> bool:
    """Whether the JSON says that it is of a campaign."""
    return isinstance(data, dict) and data.get("kind") == KIND


def from_json(data: Any, source: str) -> Campaign:
    """Plain data as a campaign. Raises ReportError, which names `source`, when it is none of a known schema."""
    if not is_campaign(data):
        raise ReportError(f"{source} is no fuzz campaign's result; give the {NAME} that conformance.fuzz wrote.")
    if data.get("schema") != SCHEMA:
        raise ReportError(
            f"{source} has fuzz schema {data.get('schema')!r} and this version reads {SCHEMA}; run the fuzzer again."
        )
    try:
        numbers: dict[str, Any] = {name: _whole(data.get(name, 0)) for name in _SUMMED}
        axes: dict[str, Any] = {name: tuple(map(_text, data.get("axes", {}).get(name, ()))) for name in AXES}
        return Campaign(
            target=_text(data["target"]),
            seeds=(_whole(data["seed"]),) if "seed" in data else (),
            seconds=float(data.get("seconds", 0)),
            complete=data.get("complete", True) is True,
            command=_text(data.get("command", "")),
            environment=_texts(data.get("environment", {})),
            unsupported=_counts(data.get("unsupported", {})),
            avoided=_counts(data.get("avoided", {})),
            cells={
                (family, layout, dtype): count
                for family, layouts in data.get("cells", {}).items()
                for layout, dtypes in layouts.items()
                for dtype, count in _counts(dtypes).items()
            },
            findings=tuple(map(_found, data.get("findings", ()))),
            **numbers,
            **axes,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"{source} is damaged ({repr(error)[:200]}); remove it or run the fuzzer again.") from None


_SUMMED = ("programs", "steps", "kernels", "kernels_allowed", "kernels_compared", "arbitrated")


def _found(data: Mapping[str, Any]) -> Found:
    texts: dict[str, Any] = {name: _text(data[name]) for name in ("kind", "mismatch", "script") if name in data}
    numbers: dict[str, Any] = {name: _whole(data[name]) for name in ("program", "steps") if name in data}
    signature, elsewhere = _text(data["signature"]), _texts(data.get("elsewhere", {}))
    return Found(signature, count=_whole(data["count"]), elsewhere=elsewhere, **texts, **numbers)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _counts(value: Any) -> dict[str, int]:
    return {str(key): _whole(count) for key, count in value.items()}


def _texts(value: Any) -> dict[str, str]:
    return {str(key): _text(text) for key, text in value.items()}


def join(campaigns: Iterable[Campaign]) -> Campaign | None:
    """Several campaigns on one target as one, None for none: counts are added, and what several found is one finding,
    with the shortest of its programs. Raises ReportError when they are on different targets."""
    campaigns = list(campaigns)
    if len(campaigns) < 2:
        return campaigns[0] if campaigns else None
    targets = sorted({each.target for each in campaigns})
    if len(targets) > 1:
        raise ReportError(f"campaigns on different targets cannot be joined: {', '.join(targets)}.")

    def every(name: str) -> list[Any]:
        return [getattr(each, name) for each in campaigns]

    numbers: dict[str, Any] = {name: sum(every(name)) for name in (*_SUMMED, "seconds")}
    tallies: dict[str, Any] = {name: _added(every(name)) for name in ("unsupported", "avoided", "cells")}
    axes: dict[str, Any] = {name: tuple(dict.fromkeys(chain(*every(name)))) for name in AXES}
    return replace(
        campaigns[0],
        seeds=tuple(chain(*every("seeds"))),
        complete=all(every("complete")),
        command="",
        findings=_joined(chain(*every("findings"))),
        **numbers,
        **tallies,
        **axes,
    )


def _added(tallies: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    return dict(sum(map(Counter, tallies), Counter()))


def _joined(findings: Iterable[Found]) -> tuple[Found, ...]:
    groups: dict[str, list[Found]] = {}
    for found in findings:
        groups.setdefault(found.signature, []).append(found)
    return tuple(
        replace(min(group, key=lambda found: found.steps or 0), count=sum(found.count for found in group))
        for group in sorted(groups.values(), key=lambda group: -sum(found.count for found in group))
    )
