"""What the checks of an operator said: `CheckVerdict`, of one check, and `Verdicts`, of all, as a table and as JSON.

    print(conformance.check(my_silu, like=torch.nn.functional.silu))

A check that compared nothing says why, so that a pass is never taken for more than it is.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.table import NOT_SHOWN
from conformance.standalone.moving import tensors
from conformance.standalone.oracles import Mismatch

COLUMNS = ("check", "calls", "sizes", "not judged")


@dataclass(frozen=True)
class Difference:
    """A difference under the name of a check, in a call of the plan. `recurs` is False if the same call shows none
    when no call precedes it. `cut` says that a limit of time ended the search for a smaller call, and `cause` is the
    check whose difference explains this one, if that is known (`causes`)."""

    check: str
    mismatch: Mismatch
    call: DrawnCall
    recurs: bool = True
    cut: bool = False
    cause: str = ""


@dataclass(frozen=True)
class CheckVerdict:
    """The outcome of one check: the calls that it compared, the reason if it was not judged or is excluded, and the
    difference if there is one. `others` counts further calls with a difference, and `late` the calls that were not
    judged since `limit`, an argument of `conformance.check`, was reached; `reason` then says so. `refused` counts the
    calls without an answer to compare beside those with one, for example since the operator refuses strided inputs, and
    `refusal` is the first reason. `sizes` are those of the calls that it compared."""

    check: str
    compared: int = 0
    reason: str = ""
    excluded: bool = False
    finding: Difference | None = None
    others: int = 0
    late: int = 0
    limit: str = "budget"
    sizes: str = field(default="", compare=False)
    refused: int = 0
    refusal: str = ""

    @property
    def unexplained(self) -> bool:
        """Whether nothing was compared, and nothing but the lack of a call is the reason."""
        return not (self.compared or self.finding or self.excluded) and self.reason in ("", NOT_SHOWN)

    @property
    def said(self) -> str:
        """Why calls were not judged, in words: `3 of 8 calls: the operator refuses them: ...`."""
        some = f"{self.refused} of {self.compared + self.refused} calls: {self.refusal}" if self.refused else ""
        return "; ".join(filter(None, (self.reason, some)))


class Verdicts(Sequence[CheckVerdict]):
    """The verdicts on an operator, check by check. The text is a table. `operator` and `reference` are their names,
    `device` is where the operator ran, and `seed` that of the drawn inputs."""

    def __init__(self, rows: Iterable[CheckVerdict], operator: str, reference: str, device: str, seed: int) -> None:
        self.rows, self.operator, self.reference = tuple(rows), operator, reference
        self.device, self.seed = device or "cpu", seed

    def __getitem__(self, at: Any) -> Any:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)

    def with_causes(self, groups: Mapping[str, Sequence[Difference]]) -> Verdicts:
        """Return the verdicts whose differences have their causes: `groups` are the differences by cause."""
        known = {(one.check, id(one.call)): cause for cause, group in groups.items() for one in group}

        def explained(row: CheckVerdict) -> CheckVerdict:
            if row.finding is None:
                return row
            cause = known.get((row.finding.check, id(row.finding.call)), row.finding.check)
            return replace(row, finding=replace(row.finding, cause=cause))

        return Verdicts(map(explained, self.rows), self.operator, self.reference, self.device, self.seed)

    def __str__(self) -> str:
        head = f"{self.operator} against {self.reference}, on {self.device}, seed {self.seed}"
        lines = [COLUMNS, *map(columns_of, self.rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(3)]
        return "\n".join([head, *(laid_in_columns(line, widths) for line in lines)])

    def as_dict(self) -> dict[str, Any]:
        """Return the verdicts, the seed and the versions as plain data."""
        return {
            "operator": self.operator,
            "reference": self.reference,
            "device": self.device,
            "seed": self.seed,
            "passed": not any(row.finding for row in self.rows),
            "compared": sum(row.compared for row in self.rows),
            "checks": [
                {
                    "check": row.check,
                    "compared": row.compared,
                    "late": row.late,
                    "refused": row.refused,
                    "refusal": row.refusal,
                    "sizes": row.sizes,
                    "reason": row.reason,
                    "excluded": row.excluded,
                    "difference": str(row.finding.mismatch) if row.finding else "",
                    "cause": row.finding.cause if row.finding else "",
                }
                for row in self.rows
            ],
            "versions": dict(versions()),
        }

    def as_json(self) -> str:
        """Return the verdicts as JSON."""
        return json.dumps(self.as_dict(), indent=2)


class WrongOperator(AssertionError):
    """The operator is wrong, or with `strict` not judged completely. `verdicts` are those of all checks."""

    __module__ = "conformance"  # the name by which users import it, as pytest prints it

    def __init__(self, text: str, verdicts: Verdicts) -> None:
        super().__init__(text)
        self.verdicts = verdicts


def columns_of(row: CheckVerdict) -> tuple[str, str, str, str]:
    """Return a verdict as a row of the table."""
    said = f"excluded: {row.reason}" if row.excluded else row.said
    if row.finding:
        cause = row.finding.cause
        said = "WRONG" + f", as {cause}" * (cause not in ("", row.check))
    return row.check, str(row.compared), row.sizes, said


def laid_in_columns(line: tuple[str, str, str, str], widths: Sequence[int]) -> str:
    """Return a row of the table as text; numbers end where their column ends."""
    name, count, sizes, said = line
    return f"{name:<{widths[0]}}  {count:>{widths[1]}}  {sizes:<{widths[2]}}  {said}".rstrip()


def span_of_sizes(calls: Sequence[DrawnCall]) -> str:
    """Return the least and the largest value of each size of the calls, or of their numbers of elements."""
    if not calls:
        return ""
    if all(call.sizes for call in calls):
        named = {name: [call.sizes[name] for call in calls] for name in calls[0].sizes}
    else:
        named = {"elements": [sum(tensor.numel() for tensor in tensors(call.values)) for call in calls]}
    return ", ".join(f"{name} {span(values)}" for name, values in named.items())


def span(values: Sequence[int]) -> str:
    """Return the ends of these numbers: `1..9`."""
    return f"{min(values)}..{max(values)}" if min(values) < max(values) else str(min(values))


def versions() -> Iterator[tuple[str, str]]:
    """Yield the versions of what judged the operator."""
    yield "python", platform.python_version()
    for name in ("torch", "torch-conformance", "numpy", "triton"):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
