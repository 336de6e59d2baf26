"""Tables of measured errors: on the page of their run, on the page of an op_db run, and in the job summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.record import result as model
from conformance.record.accuracy import ACCURACY, Accuracy
from conformance.record.result import Run
from conformance.report.__main__ import main, write
from tests.report.runs import failed, result, run


@pytest.fixture
def measured() -> Run:
    errors = Accuracy("result, near pi", 570.0, 0.55, 25.0, 0.21, "x = -3.2e+32", 600)
    good = Accuracy("gradient of x", 0.5, 0.5, 0.3, 0.3, "element 3", 10)
    bad = failed("sin", ACCURACY, layout=ACCURACY, accuracy=errors)
    return run(result("mean", layout=ACCURACY, accuracy=good), bad)


class TestWrite:
    def test_forms(self, tmp_path: Path, measured: Run) -> None:
        """The files of an accuracy run have its name. The page and the summary have the table, largest error first."""
        text = write(measured, tmp_path, None)
        names = {path.name for path in tmp_path.iterdir()} - {"history.sqlite"}
        forms = ("json", "xml", "ctrf.json", "html")
        assert names == {*(f"accuracy.{form}" for form in forms), "accuracy-summary.md"}
        assert "| `sin float32 forward` | result, near pi | 570 | 0.55 | 25 | 0.21 | 1.04e+03 |" in text.replace(
            "&#43;", "+"
        )
        page = (tmp_path / "accuracy.html").read_text()
        assert 0 < page.index("result, near pi") < page.index("gradient of x")
        assert '"command":"conformance accuracy --target tiny","table":true' in page
        assert '<b class="mark o-FAIL">1.04e+03</b>' in page
        assert model.load(tmp_path / "accuracy.json").errors[0].accuracy == measured.errors[0].accuracy

    def test_beside_a_run(self, tmp_path: Path, measured: Run) -> None:
        """The page of an op_db run shows the measured errors of its own target only; a damaged file becomes a note."""
        write(measured, tmp_path, None)
        write(run(result()), tmp_path, None)
        page = tmp_path / "conformance.html"
        assert "result, near pi" in page.read_text()
        assert main(["html", str(tmp_path / "opinfo.json")]) == 0 and "result, near pi" in page.read_text()
        other = run(result())
        other.target = "device:other"
        write(other, tmp_path, None)
        assert "result, near pi" not in page.read_text()
        (tmp_path / "accuracy.json").write_text("{")
        write(run(result()), tmp_path, None)
        assert "Without the measured errors" in page.read_text()
