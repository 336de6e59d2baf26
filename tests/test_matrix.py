"""docs/matrix.md is generated from stored runs, which have counts of one selection on at least ten targets."""

from __future__ import annotations

import re

from conformance.program.recorded import RECORDED, chosen
from conformance.record.models import ModelRow
from conformance.record.result import Outcome, Result, Run
from conformance.sources.opinfo.runner import parser
from scripts import matrix

RUN = Run(
    "mydevice",
    [
        Result("add", "float32", "forward", "as_sampled", Outcome.PASS, samples=2, family="arithmetic"),
        Result("add", "float32", "backward", "transposed", Outcome.FAIL, samples=2, family="arithmetic"),
        Result("sort", "int64", "forward", "as_sampled", Outcome.SKIP, skipped=1, family="order"),
    ],
    environment={"torch": "2.13.0"},
)


def test_the_page_is_current():
    assert matrix.main(["--check"]) == 0


def test_there_are_ten_targets_of_one_selection():
    """Devices, compilers and transforms, each with date and command, and one of them right everywhere."""
    runs = matrix.stored()
    assert len(runs) >= 10 and {"cpu", "tiny"} <= {run["target"] for run in runs}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"]) and run["torch"] for run in runs)
    assert len({run["command"].replace(run["target"], "", 1) for run in runs}) == 1
    [cpu] = [run for run in runs if run["target"] == "cpu"]
    assert not any(wrong for _, wrong, _ in cpu["families"].values())
    wrong = {run["target"] for run in runs if any(row[1] for row in run["families"].values())}
    assert {"device:toy,import=toy_device", "compile:toy,import=toy_compiler"} <= wrong  # they have planted faults
    assert [*cpu["calls"][1:]] == [0, 0] and cpu["calls"][0] > 200


def test_what_is_stored():
    """A case that differs is counted as wrong, one without a comparison as neither."""
    stored = matrix.condense("mydevice", RUN, "2026-11-29")
    assert stored["families"] == {"arithmetic": [1, 1, 0], "order": [0, 0, 1]}
    assert stored["columns"]["views"] == [0, 1, 0] and stored["columns"]["plain"] == [1, 0, 1]
    assert stored["complete"] and "--target mydevice" in stored["command"]


def test_calls_of_the_model():
    """A call that stops the model is one that differs; a call that was left out is none."""
    row = ModelRow(matrix.MODEL, calls=10, compared=7, stopped={"aten::a": 1}, wrong={"aten::b": 2})
    assert matrix.calls_of(Run("mydevice", models=(row,))) == [4, 3, 3]


def test_the_table():
    part = matrix.tables([matrix.condense("mydevice", RUN, "2026-11-29", [4, 3, 3])])
    assert "| `mydevice` | **1 of 2** | – |" in part
    assert part.count("| **4 of 7** |\n") == 1 and "| a model |\n" in part
    assert matrix.tables([matrix.condense("meta", RUN, "2026-11-29")]).count("| – |\n") == 2
    assert "conformance opinfo --target TARGET" in part and "conformance models --target TARGET" in part


def test_the_command_exists():
    """The options of the stored command are taken."""
    args = parser().parse_args(matrix.command("cpu")[2:])
    assert args.op == [*matrix.OPS] and args.layout == ["as_sampled", "transposed"]
    assert matrix.models_command("cpu")[4:6] == ["--model", matrix.MODEL]
    assert matrix.MODEL in chosen(str(RECORDED), ())[0].models
