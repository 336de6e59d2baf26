"""Run a fixed selection of op_db and the calls of a model on a target, store the counts in docs/matrix/, and write the
tables of docs/matrix.md.

    python -m scripts.matrix run cpu tiny compile:aot_eager    # one run each, docs/matrix/NAME.json
    python -m scripts.matrix                                   # the page

The selection is small, so that each target takes a minute or two, and the same for all: one or two operators of each
family, in a float and an integer dtype, plain and transposed, forward, backward and in place; and a recorded model with
few calls. A stored run has counts only: its page and its scripts come from the commands that it names.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conformance.declare import profile as profiles
from conformance.record import result as model
from conformance.record.result import UNEXPECTED, Outcome, Result, Run
from scripts.pages import ROOT, Part, write

FOLDER = ROOT / "docs" / "matrix"
PAGE = Part("docs/matrix.md", "matrix")
OPS = ("add", "exp", "sum", "cumsum", "matmul", "nn.functional.linear", "softmax", "nn.functional.layer_norm",
       "nn.functional.conv2d", "nn.functional.mse_loss", "transpose", "reshape", "gather", "sort", "where", "cat",
       "linalg.solve", "masked_fill")  # fmt: skip
SELECTION = ("--dtype", "float32,int64", "--variant", "forward,backward,inplace", "--layout", "as_sampled,transposed",
             "--samples", "2", "--check-scripts", "0")  # fmt: skip
COLUMNS: dict[str, Callable[[Result], bool]] = {
    "float32": lambda result: result.dtype == "float32",
    "int64": lambda result: result.dtype == "int64",
    "plain": lambda result: result.layout == "as_sampled",
    "views": lambda result: result.layout == "transposed",
    "gradients": lambda result: result.variant == "backward",
    "in place": lambda result: result.variant == "inplace",
}
"""The columns of the second table, and which cases each counts."""
MODEL = "timm.ConvMixer"
"""The recorded model whose calls are the last column."""


def command(target: str) -> list[str]:
    """Return the words of a target's run."""
    ops = [word for name in OPS for word in ("--op", name)]
    return ["conformance", "opinfo", "--target", target, *ops, *SELECTION]


def models_command(target: str) -> list[str]:
    """Return the words of a target's run of the model."""
    return ["conformance", "models", "--target", target, "--model", MODEL, "--check-scripts", "0"]


def calls_of(run: Run) -> list[int]:
    """Return how many calls of the model agree with torch CPU, how many do not, and how many were not compared."""
    [row] = run.models
    wrong = sum(row.stopped.values()) + sum(row.wrong.values())
    return [row.compared - wrong, wrong, row.calls - row.compared]


def counts_of(results: Sequence[Result]) -> list[int]:
    """Return how many cases agree with torch CPU, how many do not, and how many were not compared."""
    wrong = sum(result.outcome in UNEXPECTED or bool(result.layer) for result in results)
    passed = sum(result.outcome is Outcome.PASS for result in results)
    return [passed, wrong, len(results) - passed - wrong]


def condense(target: str, run: Run, date: str, calls: Sequence[int] | None = None) -> dict[str, Any]:
    """Return what is stored of a target's run, and of the model's `calls`."""
    families: dict[str, list[Result]] = defaultdict(list)
    for result in run.cases:
        families[result.family].append(result)
    return {
        "target": target,
        "date": date,
        "torch": run.environment["torch"],
        "command": shlex.join(command(target)),
        "complete": run.complete and not run.not_judged,
        "families": {name: counts_of(families[name]) for name in sorted(families)},
        "columns": {name: counts_of([*filter(holds, run.cases)]) for name, holds in COLUMNS.items()},
        "calls": calls,
    }


def measure(target: str) -> Path:
    """Run the selection and the model on a target and store the counts. Raises SystemExit if no case was compared."""
    run, models = _result(command(target), "opinfo.json"), _result(models_command(target), "models.json")
    if run is None:
        raise SystemExit(f"{target}: nothing was compared")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    file = FOLDER / f"{profiles.file_name(target)}.json"
    FOLDER.mkdir(exist_ok=True)
    write(file, json.dumps(condense(target, run, today, calls_of(models) if models else None), indent=1) + "\n")
    return file


def _result(words: Sequence[str], file: str) -> Run | None:
    """Run a command of this package and return its result; None if it compared nothing."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", *words, "--reports", folder]
        code = subprocess.run(line, check=False, stdout=subprocess.DEVNULL).returncode
        return model.load(Path(folder) / file) if code in (0, 1) else None


def tables(runs: Sequence[dict[str, Any]]) -> str:
    """Return the part of the page: the families, then dtypes, views and gradients, then dates and commands."""
    families = sorted({name for run in runs for name in run["families"]})
    parts = [
        _table(runs, "families", families),
        f"By dtype, layout and variant, and the calls of `{MODEL}`:",
        _table(
            [run | {"columns": run["columns"] | {"a model": run["calls"]}} for run in runs],
            "columns",
            [*COLUMNS, "a model"],
        ),
        "\n".join(
            ["| target | date | torch | ran to the end |", "|---|---|---|---|"]
            + [
                f"| `{run['target']}` | {run['date']} | {run['torch']} | {'yes' if run['complete'] else 'no'} |"
                for run in runs
            ]
        ),
        f"Each by\n\n```sh\n{shlex.join(command('TARGET'))}\n{shlex.join(models_command('TARGET'))}\n```"
        if runs
        else "",
    ]
    return "\n\n".join(parts)


def _table(runs: Sequence[dict[str, Any]], key: str, names: Sequence[str]) -> str:
    head = [f"| target | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    rows = [f"| `{run['target']}` | {' | '.join(_cell(run[key].get(name)) for name in names)} |" for run in runs]
    return "\n".join([*head, *rows])


def _cell(counts: Sequence[int] | None) -> str:
    """Return a cell: the cases that agree of those compared, bold if some do not; a dash if none was compared."""
    if counts is None or not counts[0] + counts[1]:
        return "–"
    passed, wrong, _ = counts
    return f"**{passed} of {passed + wrong}**" if wrong else f"{passed}"


def stored() -> list[dict[str, Any]]:
    """Return the stored runs, by target."""
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run targets, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job", nargs="?", choices=("run",))
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--check", action="store_true", help="say whether the page is current")
    args = parser.parse_args(arguments)
    for target in args.targets:
        print(measure(target), flush=True)
    return PAGE.renew(tables(stored()), args.check)


if __name__ == "__main__":
    sys.exit(main())
