"""A campaign while it runs: `conformance watch` renews one page from the samples that the campaign leaves on disk.

Defines `Log`, which a campaign writes, and the command. The key insight: watching only reads files. It can start late,
stop, run on another machine with access to the folder, or show a killed campaign, at no cost to the campaign. This
module must not import torch.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.record.command_line import Parser
from conformance.record.errors import ReportError
from conformance.record.files import write_atomic
from conformance.report.escape import exit_code_of
from conformance.report.history import Trend
from conformance.report.rendering import rendered

NAME, PAGE, FAILURES = "fuzz-live.jsonl", "fuzz-live.html", "failures"
EVERY = 5.0
"""Interval in seconds between samples, and between updates of the page."""

POINTS = 120
"""Maximum number of points in a line over the whole campaign."""

SHOWN = 100
"""Maximum number of causes on the page."""

STILL = 60.0
"""Seconds without a sample after which an unfinished campaign is reported as possibly killed."""


@dataclass(frozen=True)
class CampaignState:
    """State of a campaign at a time (seconds since the epoch): totals since its start, and the number of live workers.
    `lost` counts supervisors and nodes, `deaths` worker processes."""

    at: float
    seconds: float
    programs: int
    cells: int
    causes: int
    workers: int
    deaths: int
    lost: int = 0
    ended: bool = False


class Log:
    """The samples of a campaign in a folder. `afresh` starts a new file."""

    def __init__(self, folder: Path, target: str, afresh: bool) -> None:
        self.path, self.last = folder / NAME, 0.0
        if afresh or not self.path.exists():
            write_atomic(self.path, f"{json.dumps({'target': target})}\n")

    def due(self) -> bool:
        """Whether the next sample is due."""
        return time.time() - self.last >= EVERY

    def add(self, sample: CampaignState) -> None:
        """Append a sample. If the file cannot be written, the sample is lost and the page shows an older state."""
        self.last = sample.at
        with contextlib.suppress(OSError), open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(sample))}\n")


def read(path: Path) -> tuple[str, list[CampaignState]]:
    """The target and the samples so far, without an incomplete last line. Raises ReportError."""
    try:
        head, *lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return str(json.loads(head)["target"]), [CampaignState(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist, so nothing runs here; start one with conformance fuzz.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path} has no samples of a campaign ({error}); start one with conformance fuzz.") from None


@dataclass(frozen=True)
class LiveCause:
    """The saved findings of one property and op, grouped as in the report. `script` belongs to the first program and is
    relative to the page."""

    kind: str
    name: str
    programs: int
    script: str


def causes(folder: Path) -> list[LiveCause]:
    """The causes in a campaign's folder of failures, most programs first. Files that are no finding, or that vanish
    meanwhile, are skipped, since the running campaign may be shrinking them."""
    groups: dict[tuple[str, str], list[tuple[int, Path, int]]] = {}
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            key = (str(data["kind"]), f"{data['property']} / {data['op']}")
            groups.setdefault(key, []).append((int(data["number"]), path, len(data["numbers"])))
    rows = []
    for (kind, name), members in groups.items():
        first = min(members)[1].with_suffix(".py").relative_to(folder.parent)
        rows.append(LiveCause(kind, name, sum(programs for _, _, programs in members), str(first)))
    return sorted(rows, key=lambda cause: (-cause.programs, cause.name))


def page(target: str, samples: Sequence[CampaignState], now: float, groups: Sequence[LiveCause] = ()) -> str:
    """The page of a campaign with these samples at time `now` and these saved findings."""
    last = samples[-1]
    thin = [samples[round(at * (len(samples) - 1) / (POINTS - 1))] for at in range(POINTS)]
    thin = list(samples) if len(samples) <= POINTS else thin
    pairs = [(earlier, later) for earlier, later in zip(thin, thin[1:]) if later.seconds > earlier.seconds]
    rates = tuple((later.programs - earlier.programs) / (later.seconds - earlier.seconds) for earlier, later in pairs)
    lines = [Trend("programs/s", rates, 0)] if len(rates) > 1 else []
    for label, name in (("cells of coverage", "cells"), ("distinct causes", "causes"), ("workers", "workers")):
        values = tuple(float(getattr(moment, name)) for moment in thin)
        lines += [Trend(label, values, 0)] if len(values) > 1 else []
    newest = next((sample for sample in samples if sample.causes == last.causes), last)
    facts = {
        "programs": f"{last.programs:,}",
        "programs/s, now": f"{rates[-1]:.1f}" if rates else "-",
        "distinct causes": str(last.causes),
        "the last new cause": f"{last.seconds - newest.seconds:,.0f} s ago" if last.causes else "none so far",
        "cells of coverage": f"{last.cells:,}",
        "workers": str(last.workers),
        "deaths of workers": str(last.deaths),
        "supervisors and nodes lost": str(last.lost),
        "running for": f"{last.seconds:,.0f} s",
    }
    still = "" if last.ended or now - last.at < STILL else f"No sample for {now - last.at:,.0f} s: was it killed?"
    shown: dict[str, Any] = {"target": target, "facts": facts, "lines": lines, "last": last, "still": still}
    shown |= {"causes": groups[:SHOWN], "more": len(groups) - SHOWN}
    return rendered("live.html.j2", verdicts=[], every=int(EVERY), **shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew the page until the campaign has ended. Return 2 if there is no campaign."""
    parser = Parser("conformance watch", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="of the campaign")
    parser.add_argument("--once", action="store_true", help="write the page and end")
    args = parser.parse_args(arguments)
    return exit_code_of(parser.prog, lambda: _watch(args.reports, args.once))


def _watch(reports: Path, once: bool) -> int:
    announced = False
    while True:
        target, samples = read(reports / NAME)
        if samples:
            groups = causes(reports / FAILURES)
            write_atomic(reports / PAGE, page(target, samples, time.time(), groups))
            if not announced:
                print(reports / PAGE, flush=True)
            announced = True
        if once or (samples and samples[-1].ended):
            return 0
        time.sleep(EVERY)


if __name__ == "__main__":
    sys.exit(main())
