"""`conformance.check(device=...)`: the operator runs on a device, and the reference on torch CPU.

Autograd refuses to run in a fork of a process whose backward pass has used a device, as other tests do. So each test
judges its operators in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance.record.errors import TargetError, UsageError
from conformance.sources.operator.__main__ import main
from tests.planted.device_kernels import CORRECT, INPUTS, LIES, sums

ROOT = Path(__file__).parents[3]
TOY = "device:toy,import=tests.planted.toy_device"

JUDGE = """
import json, sys
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.finding import minimized
from conformance.sources.operator.script import script
from tests.planted import device_kernels as kernels

device, rows, shown = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
for name, function, reference, checks in rows:
    operator = getattr(kernels, function)
    table = {**kernels.LIES, **kernels.CORRECT}
    request = CheckRequest(operator, reference=table[reference][1], inputs=kernels.INPUTS, checks=checks, device=device,
                           near=kernels.__name__, budget=90.0)
    trial, texts = examination(request), {}
    results = [*verdicts(trial, request)]
    for result in results:
        if result.finding is not None and result.check in shown:
            texts[result.check] = script(trial, minimized(trial, result.finding, 1.0))
    found = {result.check: str(result.finding.mismatch) for result in results if result.finding}
    judged = {result.check: [result.compared, result.reason] for result in results}
    print("ROW", json.dumps([name, found, judged, texts]))
"""


def judge(
    device: str, rows: list[list[Any]], shown: Collection[str] = (), **environment: str
) -> dict[str, tuple[Any, Any, Any]]:
    """What differs, how much was compared, and the scripts of the `shown` checks, by the name of a row. A row has the
    name of its check, the function, the name of the pair with its reference, and the checks."""
    line = [sys.executable, "-W", "ignore", "-c", JUDGE, device, json.dumps(rows), *shown]
    env = {**os.environ, "TOY_FAULTS": "", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parsed = [json.loads(line.removeprefix("ROW ")) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return {name: (found, judged, texts) for name, found, judged, texts in parsed}


def run(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    (tmp_path / "script.py").write_text(script)
    env = {**os.environ, "TOY_FAULTS": "", "PYTHONPATH": str(ROOT), **environment}
    line = [sys.executable, "-W", "ignore", str(tmp_path / "script.py")]
    return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def lies(*names: str) -> list[list[Any]]:
    """The rows of these lies."""
    return [[name, LIES[name][0].__name__, name, [name]] for name in names]


SOME = ("values", "structure", "writes", "reads", "gradients")
SHOWN = ("writes", "gradients")
"""Checks whose scripts run in the fast tests: one looks at memory, one asks for a gradient."""

HONEST = ["values", "layouts", "writes", "reads", "unwritten", "gradients", "replay", "contexts", "autocast"]


@pytest.fixture(scope="module")
def on_toy() -> dict[str, tuple[Any, Any, Any]]:
    """Some lies and an honest kernel, judged on a device in Python."""
    return judge(TOY, [*lies(*SOME), ["pointwise", "right", "pointwise", HONEST]], SHOWN)


def test_lies_are_found_on_a_python_device(on_toy, tmp_path):
    """Each check finds its lie, and the script that runs on the device shows it."""
    assert [name for name in SOME if name not in on_toy[name][0]] == []
    for name in SHOWN:
        done = run(on_toy[name][2][name], tmp_path)
        assert done.returncode == 1 and f"{name} of " in done.stdout, (name, done.stdout, done.stderr)


@pytest.mark.slow
def test_scripts_of_lies_run_on_a_python_device(tmp_path):
    """Those that the fast test leaves out."""
    names = [name for name in SOME if name not in SHOWN]
    for name, (_, _, texts) in judge(TOY, lies(*names), names).items():
        done = run(texts[name], tmp_path)
        assert done.returncode == 1 and f"{name} of " in done.stdout, (name, done.stdout, done.stderr)


def test_an_honest_kernel_passes_on_a_python_device(on_toy):
    """No check differs, the inputs were on the device, and what the device cannot do is a reason."""
    found, judged, _ = on_toy["pointwise"]
    assert not found
    assert all(judged[name][0] for name in HONEST if name != "autocast")
    assert judged["autocast"][1].startswith("the device has no answer to x + x there: ")


def test_a_lost_device_ends_one_fork(tmp_path):
    """A call after which the device answers nothing is a crash. The calls before it were judged, and so is the next
    procedure, in a process of its own."""
    rows = [["crash", "crash", "values", ["values", "mutation", "contexts"]]]
    found, judged, texts = judge(TOY, rows, ["crash"], TOY_FAULTS="lost_after_sort")["crash"]
    assert found["crash"] == "crash of the process: expected an answer, got left the device unusable"
    assert judged["values"][0] and judged["contexts"] == [3, ""] and {*found} == {"crash"}
    done = run(texts["crash"], tmp_path, TOY_FAULTS="lost_after_sort")
    assert done.returncode == 1 and "left the device unusable" in done.stdout


@pytest.mark.slow
@pytest.mark.tiny
def test_lies_are_found_on_tiny(tmp_path):
    """Its scripts import the device."""
    for name, (found, _, texts) in judge("tiny", lies("values", "writes"), ["values", "writes"]).items():
        assert name in found, name
        done = run(texts[name], tmp_path)
        assert done.returncode == 1 and f"{name} of " in done.stdout, (name, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("device", [TOY, pytest.param("tiny", marks=pytest.mark.tiny)])
class TestDevices:
    def test_every_lie_is_found(self, device):
        """Each check finds its lie on the device."""
        rows = judge(device, [*lies(*LIES), ["beside", "writes_beside_input", "writes", ["writes"]]])
        assert "writes" in rows.pop("beside")[0]
        assert [name for name, (found, _, _) in rows.items() if name not in found] == []

    def test_honest_kernels_pass(self, device):
        """No usual check differs but those that compile, which are not among them."""
        checks = ["values", "layouts", "blocks", "magnitudes", "specials", "aliasing", "mutation", "version", "globals"]
        checks += ["repetition", "replay", "contexts", "unwritten", "writes", "reads", "gradients", "cotangents"]
        rows = judge(device, [[name, CORRECT[name][0].__name__, name, checks] for name in CORRECT])
        assert {name: found for name, (found, _, _) in rows.items()} == {name: {} for name in CORRECT}
        assert all(judged["values"][0] and judged["writes"][0] for _, judged, _ in rows.values())


class TestBadDevice:
    @pytest.mark.parametrize(
        ("device", "error", "said"),
        [
            ("tinny", TargetError, "unknown target 'tinny'; did you mean tiny"),
            ("meta", UsageError, "device='meta' is no device with values"),
            ("inductor", UsageError, "device='inductor' is no device with values"),
            ("device:nothing", TargetError, "torch knows no device 'nothing'"),
            (3, UsageError, "device=3 is an int: name it"),
        ],
    )
    def test_it_is_one_sentence(self, device, error, said):
        """Nothing is judged."""
        with pytest.raises(error, match=said):
            conformance.check(sums, reference=sums, inputs=INPUTS, device=device)

    def test_the_command_ends_with_code_2(self, tmp_path, capfd):
        """The sentence is the same, and nothing is said before it. Regression test: the run had begun."""
        inputs = tmp_path / "inputs.toml"
        inputs.write_text('x = "float32[n, m]"\nsizes = {n = "1..9", m = "1..9"}\n')
        name = "tests.planted.device_kernels:sums"
        words = [name, "--reference", name, "--inputs", str(inputs), "--device", "meta"]
        assert main([*words, "--reports", str(tmp_path)]) == 2
        said = capfd.readouterr()
        assert "device='meta' is no device with values" in said.err and "cases on" not in said.out
