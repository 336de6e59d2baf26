"""Generate the tables of docs/device.md: the share of op_db that the tiny device gets right, and its CPU fallbacks.

    python -m scripts.device_tables collect RUN/opinfo.json ...   runs of conformance.opinfo_runner into tracked data
    python -m scripts.device_tables                               that data into docs/device.md
    python -m scripts.device_tables --check                       exit code 1 when docs/device.md is stale

The check compares the page with tracked data, not with a live run, so it takes no time and needs no device. The run to
collect is `python -m conformance.opinfo_runner --target tiny --suite sweep`. If several runs contain the same case, the
later run replaces the earlier one. A new line of data (dtype and variant) replaces the whole line of older data. The
data also has the commands of the runs and the slowest samples. Every operator that falls back needs a reason in
reasons.toml.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.pages import ROOT, Part, csv_text, write

DATA = Path("reports/coverage/tiny.json")
REASONS = Path("reports/coverage/reasons.toml")
PART, TABLE = Part("docs/device.md", "device_tables"), Path("docs/fallbacks.csv")
SLOWEST = 20
PLAIN = "float32|forward"
FORMS = ("forward", "backward", "inplace", "method", "out")
"""Variants with a column; other variants and layouts have a line."""


class TablesError(Exception):
    """Data without a valid table; the text is one sentence that says what to do."""


def collect(runs: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Data behind the tables, from the JSON of runs (record/result.py), earliest first, and from older data."""
    old = before or {}
    cases: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for run in runs:
        if run.get("target") != "tiny":
            raise TablesError(f"a run of target {run.get('target')!r} was given; the tables are of tiny")
        for result in run["results"]:
            name = result["op"] + (f".{result['overload']}" if result.get("overload") else "")
            cases[name, result["dtype"], result["variant"], result["layout"]] = result
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    compared: Counter[str] = Counter()
    for result in cases.values():
        outcomes[_line(result)][_outcome(result)] += 1
        compared[_line(result)] += result.get("samples", 0)
    plain = {name: r for (name, *rest), r in cases.items() if rest == ["float32", "forward", "as_sampled"]}
    counts = [r.get("measurements", {}).get("counts", {}) for r in plain.values()]
    served = Counter(next((name for name in ("fallback", "decomposed") if each.get(name)), "native") for each in counts)
    fallbacks: dict[str, list[str]] = defaultdict(list)
    for name, result in sorted(plain.items()):
        for op in result.get("measurements", {}).get("parts", {}).get("fallback", {}):
            fallbacks[op].append(name)
    slowest = sorted(((r["seconds"], name, r["samples"]) for name, r in plain.items()), reverse=True)[:SLOWEST]
    lines = {key: dict(sorted(counts.items())) for key, counts in outcomes.items()}
    kept = [{**run, "lines": [key for key in run["lines"] if key not in lines]} for run in old.get("runs", ())]
    whole = {
        "runs": [*(run for run in kept if run["lines"]), *map(_described, runs)],
        "outcomes": dict(sorted({**old.get("outcomes", {}), **lines}.items())),
        "compared": dict(sorted({**old.get("compared", {}), **compared}.items())),
    }
    if not plain and old:
        return {**old, **whole}
    return {
        **whole,
        "served": dict(sorted(served.items())),
        "samples": sum(r["samples"] for r in plain.values()),
        "seconds": round(sum(r["seconds"] for r in plain.values())),
        "fallbacks": dict(sorted(fallbacks.items())),
        "slowest": [[name, round(seconds, 1), samples] for seconds, name, samples in slowest],
    }


def _line(result: Mapping[str, Any]) -> str:
    """Line of the table that contains a case."""
    layout = "" if result["layout"] == "as_sampled" else f", {result['layout']}"
    return f"{result['dtype']}|{result['variant']}{layout}"


def _described(run: Mapping[str, Any]) -> dict[str, Any]:
    """Command of a run (without the report folder), its start, its duration, and its lines of the table."""
    command = re.sub(r" --reports \S+", "", run["command"])
    lines = sorted({_line(r) for r in run["results"]})
    return {"command": command, "started": run["started"], "seconds": round(run["seconds"]), "lines": lines}


def _outcome(result: Mapping[str, Any]) -> str:
    """Outcome of a case; KERNELS if the number of kernels is the only difference."""
    failures = result.get("failures", ())  # for declared failures, only their names
    differing = {failure if isinstance(failure, str) else failure["oracle"] for failure in failures}
    return "KERNELS" if result["outcome"] in ("XFAIL", "FAIL") and differing == {"kernels"} else str(result["outcome"])


def reason_for(op: str, reasons: Mapping[str, str]) -> str:
    """Reason of the first pattern that matches an operator's name; raises TablesError if no pattern matches."""
    for pattern, reason in reasons.items():
        if fnmatch.fnmatchcase(op, pattern):
            return reason
    raise TablesError(f"{op} falls back to the CPU without a reason: add one to {REASONS}")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [f"|{'|'.join(map(str, row))}|" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _right(counts: Mapping[str, int]) -> str:
    """Cases that are right, of the cases that compared something."""
    compared = sum(counts.values()) - counts.get("SKIP", 0)
    return f"{counts.get('PASS', 0) + counts.get('KERNELS', 0)}/{compared}" if compared else ""


def _outcomes(data: Mapping[str, Any]) -> str:
    """Tables of the outcomes: by dtype and form of the call, then by other variants and layouts."""
    lines = {tuple(key.split("|")): _right(counts) for key, counts in data["outcomes"].items()}
    dtypes = dict.fromkeys(dtype for dtype, variant in lines if variant in FORMS)
    by_form = [[dtype, *(lines.get((dtype, form), "") for form in FORMS)] for dtype in dtypes]
    others = [[variant, dtype, right] for (dtype, variant), right in lines.items() if variant not in FORMS]
    parts = [_table(["dtype", *FORMS], by_form), _table(["variant, layout", "dtype", "right"], others)]
    return "\n\n".join(parts if others else parts[:1])


def _rate(data: Mapping[str, Any]) -> str:
    """Sentence on the last run that compared only float32 forward, by its own clock; "" without such a run."""
    alone = [run for run in data["runs"] if run["lines"] == [PLAIN] and run.get("seconds")]
    if not alone:
        return ""
    run, rate = alone[-1], data["samples"] / alone[-1]["seconds"]
    return f" The run, `{run['command']}`, took {run['seconds']} s: {rate:.0f} samples a second."


def page_part(data: Mapping[str, Any]) -> str:
    """Generated part of the page."""
    served, total = data["served"], sum(data["served"].values())
    share = _table(
        ["served by", "OpInfos", "share"],
        [[kind, served.get(kind, 0), f"{100 * served.get(kind, 0) / max(total, 1):.1f} %"]
         for kind in ("native", "decomposed", "fallback")],
    )  # fmt: skip
    outcome = _outcomes(data)
    return f"""### Outcomes on op_db

Cells are cases (OpInfo x dtype) that are right, of the cases that compared something. A case that differs in the
number of kernels only is right. Other differences are declared, with their reason, in
`reports/expectations/tiny.toml`. {sum(data["compared"].values()):,} samples were compared in all, at most 20 of a case.

{outcome}

### Fallbacks

Float32, forward: a native OpInfo ran value functions (or views) only, a decomposed one also decompositions, a fallback
handed at least one operator of one sample to the CPU. With filled caches, {data["samples"]:,} samples took
{data["seconds"]} s in all.{_rate(data)}

{share}

```{{csv-table}}
:file: {TABLE.name}
:header-rows: 1
```"""


def fallbacks(data: Mapping[str, Any], reasons: Mapping[str, str]) -> list[list[str]]:
    """The table of operators that fall back to the CPU, by reason."""
    by_reason: dict[str, tuple[list[str], set[str]]] = {}
    for op, names in data["fallbacks"].items():
        ops, of = by_reason.setdefault(reason_for(op, reasons), ([], set()))
        ops.append(f"`{op.removeprefix('aten.')}`")
        of.update(names)
    most = sorted(by_reason.items(), key=lambda entry: -len(entry[1][1]))
    rows = [[", ".join(ops), str(len(of)), reason] for reason, (ops, of) in most]
    return [["operators", "OpInfos", "why"], *rows]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the page is stale")
    parser.add_argument("command", nargs="?", choices=["collect"], help="read runs into the tracked data first")
    parser.add_argument("runs", nargs="*", type=Path, help="opinfo.json files, earliest first")
    args = parser.parse_args(arguments)
    try:
        if args.command == "collect":
            before = json.loads((root / DATA).read_text()) if (root / DATA).exists() else None
            data = collect([json.loads(path.read_text()) for path in args.runs], before)
            write(root / DATA, json.dumps(data, indent=1) + "\n")
        reasons = tomllib.loads((root / REASONS).read_text())["reasons"]
        data = json.loads((root / DATA).read_text())
        table = csv_text(fallbacks(data, reasons))
        if not args.check:
            write(root / TABLE, table)
        elif (root / TABLE).read_text() != table:
            print(f"{TABLE} is stale; run python -m scripts.device_tables", file=sys.stderr)
            return 1
        return PART.renew(page_part(data), args.check, root)
    except (OSError, KeyError, ValueError, TablesError) as error:
        print(f"device_tables: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
