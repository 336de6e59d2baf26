"""`conformance operator`: one result for each check, one page, one exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.record import result as model
from conformance.record.names import OPERATOR
from conformance.record.result import SHOWS, Outcome, Result, Run
from conformance.record.shortfall import Shortfall
from conformance.run.cases import CaseRun
from conformance.sources.operator import tasks
from conformance.sources.operator.__main__ import main
from conformance.sources.operator.verdict import CheckVerdict

VERDICT = CheckVerdict("values", 12, "12 of 40 inputs, the time was over", late=28)


def test_the_names_of_the_checks_need_no_torch():
    """The command line knows the checks without importing torch."""
    code = "import sys, conformance.sources.operator.__main__; raise SystemExit('torch' in sys.modules)"
    assert subprocess.call([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) == 0


def test_checks_that_run_only_if_they_are_named(capsys):
    """The help names them."""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "all but strides, batch, forbid, inductor, refusals)" in " ".join(capsys.readouterr().out.split())


def test_a_lie_fails_the_run(tmp_path, capfd):
    """Exit code 1, a page, and a script that shows the headline in a process of its own."""
    words = ["tests.planted.kernels:compiled", "--like", "nn.functional.silu"]
    code, out = (
        main([*words, "--checks", "values,dtype,fake", "--strict", "--reports", str(tmp_path)]),
        capfd.readouterr(),
    )
    assert code == 0 and "5 passed, 0 failed, 1 skipped" in out.out and "Not judged" not in out.out
    inputs = tmp_path / "inputs.toml"
    inputs.write_text('x = "float32[n, m]"\nsizes = {n = "1..9", m = "1..9"}\n')
    words = ["tests.planted.kernels:structure", "--reference", "tests.planted.kernels:halves", "--inputs", str(inputs)]
    code = main([*words, "--checks", "structure,values", "--exclude", "values=known", "--reports", str(tmp_path)])
    out = capfd.readouterr().out
    assert code == 1 and "not judged: values: known" in out and "3 passed, 1 failed" in out
    assert "cause: structure of tests.planted.kernels.structure: " in out and "(1 check: structure)" in out
    result = next(one for one in model.load(tmp_path / "operator.json").results if one.outcome is Outcome.FAIL)
    assert (result.op, result.variant, result.alone) == ("tests.planted.kernels.structure", "structure", SHOWS)
    page = (tmp_path / "operator.html").read_text()
    assert "halves" in page and "differs from the reference" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--checks", "empty"), "no call shows it"),
        (("--checks", "values", "--exclude", "dtype=for accumulation"), "the dtype differs, which is excluded"),
    ],
)
def test_named_checks_that_compare_nothing(tmp_path, capfd, words, said):
    """Exit code 2. Regression test: that no call crashed, hung or took all memory counted as three passed checks."""
    inputs = tmp_path / "inputs.toml"
    inputs.write_text('x = "float32[n]"\nsizes = {n = "1..9"}\n')
    request = [f"{__name__}:doubles_widely", "--reference", f"{__name__}:doubles", "--inputs", str(inputs)]
    assert main([*request, *words, "--reports", str(tmp_path)]) == 2
    out = capfd.readouterr()
    assert said in " ".join(out.out.split()) and "\n0 passed, 0 failed, 4 skipped" in out.out
    assert out.err == "conformance operator: nothing was measured in 4 cases\n"
    assert main([*request, "--checks", "crash", "--reports", str(tmp_path)]) == 0, "that is what he asks"


def ends(x):
    """Ends the process as if all were well, after some calls."""
    CALLS.append(x)
    return x * 2 if len(CALLS) < 4 else os._exit(0)


def doubles(x):
    return x * 2


def doubles_widely(x):
    return x.double() * 2


CALLS: list[object] = []


@pytest.mark.parametrize("checks", ["values,dtype", "vmap", "repetition"])
def test_an_operator_that_ends_the_process_fails(tmp_path, capfd, checks):
    """Exit code 1, whichever checks are named. Regression test: an exit code of 0 ended the calls, and the checks
    passed."""
    inputs = tmp_path / "inputs.toml"
    inputs.write_text('x = "float32[n]"\nsizes = {n = "1..9"}\n')
    words = [f"{__name__}:ends", "--reference", f"{__name__}:doubles", "--inputs", str(inputs), "--checks", checks]
    assert main([*words, "--reports", str(tmp_path)]) == 1
    assert "ended its process with exit code 0" in capfd.readouterr().out


def of_numpy(x):
    return x.numpy() * 2


def raises(x):
    raise ValueError("no such kernel")


@pytest.mark.parametrize(
    ("operator", "reference", "described", "code", "said"),
    [
        ("of_numpy", "doubles", '"float32[n]"', 1, "result should be a Tensor and is a numpy.ndarray"),
        ("doubles", "of_numpy", '"float32[n]"', 2, "the result of the reference is a numpy.ndarray"),
        ("doubles", "raises", '"float32[n]"', 2, "first with ValueError: no such kernel"),
        ("doubles", "doubles", "1979-05-27", 2, "describes an input by a date or a time: write text"),
    ],
)
def test_bad_use_of_a_function(tmp_path, capfd, operator, reference, described, code, said):
    """One sentence, and exit code 1 only for a fault of the operator. Regression test: an array of NumPy passed the
    check of values."""
    inputs = tmp_path / "inputs.toml"
    inputs.write_text(f'x = {described}\nsizes = {{n = "1..9"}}\n')
    words = [f"{__name__}:{operator}", "--reference", f"{__name__}:{reference}", "--inputs", str(inputs)]
    assert main([*words, "--checks", "values", "--reports", str(tmp_path)]) == code
    out = capfd.readouterr()
    assert said in out.out + out.err and "Traceback" not in out.err
    assert code == 2 or "1 of 1 scripts show their headline" in out.out or "does not reproduce" not in out.out


@pytest.mark.parametrize(("words", "end", "code"), [((), ".", 0), (("--strict",), "; --strict makes this a", 1)])
def test_inputs_without_time(tmp_path, capfd, monkeypatch, words, end, code):
    """One sentence, a field of the result, and exit code 1 only with `--strict`."""
    late = Result("torch.abs", "float32", "values", OPERATOR, Outcome.PASS, samples=12, late=28)
    monkeypatch.setattr(CaseRun, "perform", lambda *_: Run("cpu", [late]))
    assert main(["torch.abs", "--like", "abs", "--checks", "values", "--reports", str(tmp_path), *words]) == code
    said = f"Not judged: 28 of 40 inputs of values (time of all checks){end}"
    assert capfd.readouterr().out.count(said) == 1
    run = model.load(tmp_path / "operator.json")
    assert run.not_judged == [Shortfall("inputs of values", 28, 40, "time of all checks")] and run.results == [late]


def test_a_worker_counts_the_inputs_without_time(monkeypatch):
    """The result of a check has their number."""
    monkeypatch.setattr(tasks, "_judging", lambda subject: SimpleNamespace(verdict=lambda check: VERDICT))
    result = tasks.run("cpu", tasks.OperatorCase(tasks.CheckTask("torch.abs", "abs"), "values"))
    assert (result.outcome, result.samples, result.late) == (Outcome.PASS, 12, 28)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_module:f", "--like", "abs"], "module 'no_module' cannot be imported"),
        (["torch.abs", "--like", "abs", "--dtype", "floot32"], "unknown dtype 'floot32'; did you mean float32"),
        (
            ["torch.abs", "--reference", "torch.abs", "--inputs", "no.toml", "--dtype", "float32"],
            "--dtype chooses samples of op_db: give it with --like",
        ),
        (["torch.abs", "--like", "abs", "--device", ""], "unknown target ''"),
        (
            ["torch.abs", "--like", "abs", "--batch", "y=0", "--checks", "batch"],
            "batch={'y': 0}: there is no such input",
        ),
        (["torch.abs"], "give either --like NAME"),
        (["torch.abs", "--reference", "torch.abs"], "--reference and --inputs belong together"),
        (["torch.abs", "--like", "abs", "--checks", "valeus"], "did you mean values"),
        (["torch.abs", "--like", "abs", "--exclude", "values"], "write CHECK=REASON"),
        (["torch.abs", "--like", "abs", "--batch", "x"], "write ARGUMENT=DIMENSION"),
        (["torch.abs", "--reference", "torch.abs", "--inputs", "no.toml"], "no.toml cannot be read"),
        (["torch.abs", "--like", "asb"], "op_db has no operator 'asb'"),
    ],
)
def test_bad_usage_is_one_sentence(words, said, tmp_path, capfd):
    """Exit code 2 and a sentence that says what to do."""
    assert main([*words, "--reports", str(tmp_path)]) == 2
    err = capfd.readouterr().err
    assert said in err and "Traceback" not in err
