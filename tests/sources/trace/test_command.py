"""`conformance trace`: a script under the trace, a summary, a page and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from conformance.record import result as model
from conformance.record.result import SHOWS, Outcome
from conformance.report.html import page_data
from conformance.sources.trace.__main__ import main

ROOT = Path(__file__).parents[3]

TRAIN = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to("toy")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.linspace(-1, 1, 15).view(5, 3).to("toy")).square().mean()
loss.backward()
optimizer.step()
print("trained")
"""


@pytest.fixture
def traced(standalone, tmp_path):
    """Runs `conformance trace` with a script in a process of its own."""

    def run(script, *words, faults=""):
        (tmp_path / "train.py").write_text(script)
        command = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from conformance.report.html import page_data
from conformance.sources.trace.__main__ import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
        words = ["--target", "device:toy,import=tests.planted.toy_device", *words, "train.py"]
        return standalone(command, tmp_path, words, {"TOY_FAULTS": faults, "PYTHONPATH": str(ROOT)})

    return run


SHORT = """
from conformance.record.shortfall import Shortfall
from conformance.sources.trace.api import Trace
Trace.not_judged = [Shortfall("nodes of compiled graph 1 compiled alone", 3, 9, "60 s for all graphs")]
"""


@pytest.mark.parametrize(("words", "end", "code"), [((), ".", 0), (("--strict",), "; --strict makes this a", 1)])
def test_what_was_not_judged_fails_a_strict_run(traced, tmp_path, words, end, code):
    """One sentence, a field of the result, and exit code 1 only with `--strict`."""
    ran = traced(SHORT + TRAIN, *words)
    assert ran.returncode == code, ran.stderr
    said = f"Not judged: 3 of 9 nodes of compiled graph 1 compiled alone (60 s for all graphs){end}"
    assert ran.stdout.count(said) == 1
    (row,) = model.load(tmp_path / "reports/trace.json").not_judged
    assert (row.missing, row.planned) == (3, 9)


def test_a_script_without_time_is_not_judged(traced, tmp_path):
    """A script that --check-scripts leaves out is one, unless the user wants none."""
    ran = traced(TRAIN, "--check-scripts", "0.000001", faults="relu")
    assert ran.returncode == 1, ran.stderr
    assert "Not judged: 1 of 1 scripts of findings (--check-scripts).\n" in ran.stdout
    ran = traced(TRAIN, "--check-scripts", "0", faults="relu")
    assert ran.returncode == 1 and "Not judged" not in ran.stdout


def test_a_wrong_operator_fails_the_run(traced, tmp_path):
    """Exit code 1, the operator with its line, and a page."""
    ran = traced(TRAIN, "--check-scripts", "0", faults="relu")
    assert ran.returncode == 1, ran.stderr
    assert "forward: 1 operator is wrong\n  aten.relu.default, train.py:7: loss = net(" in ran.stdout
    assert "changes the loss by" in ran.stdout and "backward:" not in ran.stdout and "trained" in ran.stdout
    results = {(result.name, result.variant): result for result in model.load(tmp_path / "reports/trace.json").results}
    wrong = [result for result in results.values() if result.outcome is Outcome.FAIL]
    assert [(one.name, one.variant, one.oracles) for one in wrong] == [("aten.relu.default", "forward", ("value",))]
    assert results["aten.threshold_backward.default", "backward"].outcome is Outcome.PASS
    page = (tmp_path / "reports/trace.html").read_text()
    assert "<code>train.py:7: loss = net(" in page, "the table of causes names the line of the user"
    assert ">value of relu<" in page and "1 of " in page and " cases does not do what torch CPU does" in page
    assert {result.family for result in results.values()} == {"aten"}
    file = "reports/failures/trace-forward-aten.relu.default-train.py-7.py"
    assert f"    script: {file}\n" in ran.stdout and "torch.ops.aten.relu.default(" in (tmp_path / file).read_text()


@pytest.mark.slow
def test_the_script_of_a_wrong_operator_shows_it(traced, tmp_path):
    """The minimized script of the call has the difference in a process of its own."""
    traced(TRAIN, faults="relu")
    (wrong,) = model.load(tmp_path / "reports/trace.json").unexpected
    assert wrong.alone == SHOWS


def test_a_right_device_passes(traced):
    """Exit code 0, also with `--strict`, and the number of judged calls."""
    ran = traced(TRAIN, "--strict")
    assert ran.returncode == 0, ran.stderr
    assert "Not judged" not in ran.stdout
    assert "calls judged on toy: no wrong operator\n" in ran.stdout


def test_nan_and_inf_are_found_without_a_reference(traced, tmp_path):
    """`--nonfinite` has exit code 1 and names the first operator, whatever torch CPU would compute."""
    ran = traced(TRAIN.replace(".square()", ".div(0)"), "--nonfinite")
    assert ran.returncode == 1, ran.stderr
    assert "forward: 1 operator makes nan or inf out of finite inputs\n  aten.div.Tensor, train.py:7:" in ran.stdout
    assert "calls judged on toy: the first nan or inf is that of aten.div.Tensor, train.py:7\n" in ran.stdout
    wrong = model.load(tmp_path / "reports/trace.json").unexpected
    assert ("aten.div.Tensor", "forward") in [
        (one.name, one.variant) for one in wrong
    ] and "No script" not in ran.stdout
    page = (tmp_path / "reports/trace.html").read_text()
    assert "differs from finite arithmetic" in page and "torch CPU" not in page.partition("<script")[0]
    ran = traced(TRAIN, "--nonfinite", faults="relu")
    assert ran.returncode == 0 and "no nan or inf\n" in ran.stdout


LACKS_RELU = """
from conformance.engine.executor import Execution
from conformance.sources.trace.call import TracedCall
from conformance.standalone.observation import Observation, Raised
right = TracedCall.by_cpu
lacking = Execution((Observation(error=Raised.of(NotImplementedError("no kernel for CPU"))),))
TracedCall.by_cpu = lambda self: lacking if self.name == "aten.relu.default" else right(self)
"""


def test_calls_that_torch_cpu_lacks_leave_no_verdict(traced):
    """Without a wrong operator the exit code is 2, and the last sentence names the operators that may be wrong.
    Regression test: the exit code was 0."""
    ran = traced(LACKS_RELU + TRAIN)
    assert ran.returncode == 2, ran.stderr
    assert "no verdict, since 1 of 40 calls were not judged, of aten.relu.default\n" in ran.stdout


def test_a_script_that_fails_keeps_the_findings(traced, tmp_path):
    """The operators that were wrong before the error are in the report."""
    ran = traced(TRAIN + "raise ValueError('no more data')\n", "--check-scripts", "0", faults="relu")
    assert ran.returncode == 1 and "aten.relu.default, train.py:7" in ran.stdout
    said = "train.py fails by itself: ValueError: no more data, line 11 of train.py; the results so far are in the"
    assert said in ran.stderr and "Traceback" not in ran.stderr
    assert not model.load(tmp_path / "reports/trace.json").complete


def test_ctrl_c_keeps_the_findings(traced, tmp_path):
    """The exit code is that of the signal, and the report has the results so far."""
    ran = traced(
        TRAIN + "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", "--check-scripts", "0", faults="relu"
    )
    assert ran.returncode == 130 and "aten.relu.default, train.py:7" in ran.stdout
    assert "interrupted" in ran.stderr and model.load(tmp_path / "reports/trace.json").interrupted == 2


COMPILED = """
import sys, torch
sys.path.insert(0, ROOT)
import tests.planted.lying_compilers
loss = torch.compile(lambda x: (torch.relu(x) * x).sum(), backend="negates_relu")
loss(torch.ones(3))
"""


def test_a_wrong_compiler_fails_the_run(tmp_path, monkeypatch, capfd):
    """The wrong node of a compiled graph is a finding of the command, without a device."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(COMPILED.replace("ROOT", repr(str(ROOT))))
    assert main(["--check-scripts", "0", "train.py"]) == 1
    out = capfd.readouterr().out
    assert "forward: 1 operator is wrong\n  torch.relu, train.py:5: loss = torch.compile(" in out
    (result,) = model.load(Path("reports/trace.json")).unexpected
    assert result.op == "compiled graph 1" and "torch.compile(backend='negates_relu'" in result.failures[0].script


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("import nothing_of_this_name", [], "train.py fails by itself: ModuleNotFoundError: No module named"),
        ("import sys; sys.exit(3)", [], "train.py ends itself with exit code 3"),
        ("import sys; sys.exit('no data')", [], "train.py ends itself: no data\n"),
        ("import torch; torch.ones(3).add(1)", [], "train.py runs no operator on a device other than the CPU"),
        ("import torch; torch.ones(3)", ["--target", "cpu", "--op", "x"], "--op, --every and --training-steps exclude"),
        ("", ["--target", "functionalize"], "has no device whose operators can be traced"),
        ("", ["no_such_file.py"], "no_such_file.py does not exist"),
    ],
)
def test_bad_usage_is_one_sentence(script, words, said, tmp_path, monkeypatch, capfd):
    """Exit code 2 and a sentence that says what to do."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    assert main([*words, "train.py"]) == 2
    err = capfd.readouterr().err
    assert said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("accelerate", "that it does not know from ACCELERATE_TORCH_DEVICE=NAME"),
        ("lightning", "Lightning trains on the device of its strategy, so give the Trainer one of this device"),
    ],
)
def test_a_trainer_is_told_the_device(package, said, tmp_path, monkeypatch, capfd):
    """The trainers of these packages run on the CPU, silently, if they are not told a device that they do not know."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    Path("train.py").write_text("import torch; torch.ones(3).add(1)")
    assert main(["train.py"]) == 2
    assert f"{said}\n" in capfd.readouterr().err


def test_the_page_names_the_whole_command(tmp_path, monkeypatch, capfd):
    """No option runs a single row again, so each row has the command of the run."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch; torch.ones(3).neg()")
    assert main(["--target", "cpu", "train.py"]) == 0
    data = page_data(model.load(Path("reports/trace.json")), None)
    assert data["whole"] and data["command"] == "conformance trace --target cpu train.py"
