"""op_db cases that fail on a compiler backend and without it: bugs of PyTorch itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.declare.declaration import Declaration, Scope
from conformance.declare.expectations import update as declared
from conformance.record import result as model
from conformance.record.result import SHOWS, WITHOUT_BACKEND, Failure, Outcome, Result, Run
from conformance.sources.opinfo.plan import Selection
from conformance.sources.opinfo.runner import Request, main, run

SPEC = "compile:negates_relu,import=tests.planted.lying_compilers"
RELU, DROPOUT = (f"nn.functional.{name}::float32::forward::as_sampled" for name in ("relu", "dropout"))


def failed(*failures: Failure, outcome: Outcome = Outcome.FAIL, failed: int = 1) -> Result:
    return Result("relu", "float32", "forward", "as_sampled", outcome, samples=2, failed=failed, failures=failures)


class TestFailsAs:
    """Whether a case fails in the same way in two runs."""

    VALUE = Failure("value", "result", "[1.0]", "[2.0]", "1 of 1 elements differ", sample=1)
    ERROR = Failure("error", "the whole run", "no error", "RuntimeError", "sizes 3 and 4 do not match")

    @pytest.mark.parametrize(
        ("other", "same"),
        [
            (failed(VALUE), True),
            (failed(VALUE, failed=2), False),
            (failed(VALUE, ERROR), False),
            (failed(), False),
            (failed(VALUE, outcome=Outcome.CRASH), False),
            (failed(Failure("value", "result", "[1.0]", "[3.0]", "1 of 1 elements differ", sample=1)), False),
            (failed(Failure("value", "result", "[1.0]", "[2.0]", "1 of 1 elements differ", sample=0)), False),
            (failed(Failure("value", "input", "[1.0]", "[2.0]", "1 of 1 elements differ", sample=1)), False),
        ],
    )
    def test_each_answer_counts(self, other: Result, same: bool) -> None:
        """The comparison uses the failing samples and, for each oracle, the tensor and both answers."""
        assert failed(self.VALUE).fails_as(other) == same

    def test_numbers_in_an_error_do_not(self) -> None:
        """Numbers in error messages are ignored; error types and words are not."""
        one = failed(self.ERROR)
        other = Failure("error", "the whole run", "no error", "RuntimeError", "sizes 5 and 6 do not match")
        assert one.fails_as(failed(other))
        assert not one.fails_as(failed(Failure("error", "the whole run", "no error", "RuntimeError", "out of range")))

    def test_where_nothing_was_compared(self) -> None:
        """If nothing was compared, no run can excuse the case."""
        nothing = failed(Failure("not compared", "the whole case", "a comparison", "none"))
        assert not nothing.fails_as(nothing)

    def test_they_are_not_declared(self) -> None:
        """Updating expectations adds no entry for PyTorch's own failures, and keeps an entry that covers one."""
        excused = failed(self.VALUE).without_backend("compile:aot_eager", fails=False)
        assert (excused.outcome, excused.layer) == (Outcome.XFAIL, "compile:aot_eager")
        assert declared([], Run(SPEC, [excused]), "a reason") == ([], [])
        entry = Declaration(Scope(op=("relu",), variant=("forward",)), ("value",), "known")
        assert declared([entry], Run(SPEC, [excused]), "a reason") == ([entry], [])


class TestRun:
    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_from_end_to_end(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A dropout that drops nothing returns a copy through AOTAutograd, which excuses it; the relu failure is the
        backend's own."""
        words = ["--target", SPEC, "--op", "nn.functional.relu", "--op", "nn.functional.dropout", "--samples", "8"]
        assert main([*words, "--dtype", "float32", "--reports", str(tmp_path)]) == 1
        said = capsys.readouterr().out
        assert "2 of 2 scripts show their headline" in said
        _, heading, after = said.partition(f" {WITHOUT_BACKEND} ")
        assert heading and f"XFAIL {DROPOUT} (alias): compile:aot_eager" in after
        results = {result.id: result for result in model.load(tmp_path / "opinfo.json").results}
        assert (results[RELU].outcome, results[RELU].layer, results[RELU].alone) == (Outcome.FAIL, "", SHOWS)
        assert (results[DROPOUT].outcome, results[DROPOUT].alone) == (Outcome.XFAIL, SHOWS)
        assert f"### {WITHOUT_BACKEND.capitalize()}" in (tmp_path / "opinfo-summary.md").read_text()

    @pytest.mark.timeout(300)
    def test_they_fail_a_run_that_asks_for_it(self) -> None:
        """With `fail_on_torch_bugs`, such a case fails, and the result still names the layer. A declared failure stays
        declared, even if it is PyTorch's own."""
        selections = [Selection(("nn.functional.dropout",), samples=8)]
        (result,) = run(SPEC, Request(selections, fail_on_torch_bugs=True)).results
        assert (result.outcome, result.layer) == (Outcome.FAIL, "compile:aot_eager")
        entry = Declaration(Scope(op=("nn.functional.dropout",)), ("alias",), "known")
        (result,) = run(SPEC, Request(selections, expected=[entry])).results
        assert (result.outcome, result.reason, result.layer) == (Outcome.XFAIL, "known", "")
