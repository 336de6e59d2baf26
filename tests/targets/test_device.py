"""Third-party devices: how they are loaded, and isolation of torch CPU from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import _python_dispatch as dispatch

from conformance.engine.loading import describe_target, load_target
from conformance.engine.probe import trial
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.record.errors import TargetError
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_script import from_op_db
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import own_part
from tests.program.test_script import own_lines

GUARDED = Path(__file__).parent.parent / "planted" / "guarded_device.py"
PUSHES_MODES = """
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.neg else result

class Counting(TorchDispatchMode):
    seen = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counting.seen += 1
        return func(*args, **(kwargs or {}))

def enable():
    Counting().__enter__()
    Doubling().__enter__()
"""


@pytest.fixture
def pushing(tmp_path, monkeypatch):
    """Target whose module pushes modes permanently."""
    (tmp_path / "pushes_modes.py").write_text(PUSHES_MODES)
    monkeypatch.syspath_prepend(tmp_path)
    return load_target("device:cpu,import=pushes_modes,call=enable,without=nothing")


def program_of(op):
    return Program(
        (Storage("float32", 3),), (Input("a", 0, "float32", (3,), (1,)),), (Step(op, (tensor("a"),), out=("b",)),)
    )


def run(text, folder):
    """Run the script in a new process, from another folder than the module that it loads."""
    (folder / "failures").mkdir()
    path = folder / "failures" / "one.py"
    path.write_text(text)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=folder, check=False)


class TestModes:
    @pytest.mark.parametrize("mode", ["Counting", "Doubling"])
    def test_a_mode_that_is_returned_and_not_entered_is_refused(self, mode, tmp_path, monkeypatch):
        """torch CPU would be compared with itself, and each run would pass."""
        text = PUSHES_MODES.replace("    Counting().__enter__()", f"    return {mode}()")
        (tmp_path / f"returns_{mode}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(TargetError, match=rf"enable\(\) returns a {mode} that is not active, so torch CPU would"):
            load_target(f"device:cpu,import=returns_{mode},call=enable,without=nothing")

    def test_torch_cpu_is_not_under_the_modes_of_a_device(self, pushing):
        """Modes of a device are active only inside the target. Regression test: torchax pushes a function mode under
        which plain torch CPU raises, so the judge failed in 6 of 120 programs."""
        assert torch.ones(1).neg().item() == -1
        with pushing.entered():
            assert torch.ones(1).neg().item() == -2
        assert torch.ones(1).neg().item() == -1

    def test_torch_knows_of_no_active_mode(self, pushing):
        """Regression test: the modes were taken from torch's stacks, and its flags that a mode is active stayed set. A
        compiled function of the same process was then compiled anew at each call."""
        compiled: list[int] = []

        def backend(graph, example_inputs):
            compiled.append(len(compiled))
            return graph.forward

        function = torch.compile(lambda x: x.neg() + 1, backend=backend)
        before = dispatch.is_in_torch_dispatch_mode()
        with pushing.entered():
            assert dispatch.is_in_torch_dispatch_mode()
        assert [function(torch.ones(2)).tolist() for _ in range(2)] == [[0.0, 0.0]] * 2
        assert (before, dispatch.is_in_torch_dispatch_mode(), compiled) == (False, False, [0])

    @pytest.mark.parametrize("shown", [True, False])
    def test_nor_in_a_script(self, pushing, shown, tmp_path):
        """In a script, the CPU's side runs without the device's modes. Regression test: the CPU's side ran under the
        modes of a device that was loaded first. Both answers were equal: "no difference here", exit code 0."""
        step = "neg" if shown else "abs"
        verdict = judge_program(program_of("neg"), pushing)
        text = script(program_of(step), pushing, verdict.mismatches, bad_step=1)
        assert own_lines(text) <= 25
        done = run(text, tmp_path)
        assert done.returncode == shown, done.stdout + done.stderr
        answers = [line.split(" ", 1)[1] for line in done.stdout.splitlines()[:2]]
        assert (answers[0] != answers[1]) == shown
        assert ("no difference here" in done.stdout) != shown

    def test_the_device_is(self, pushing):
        """Only a program on the target goes through the modes, and so does a trial of the probe."""
        import pushes_modes

        verdict = judge_program(program_of("neg"), pushing)
        assert [(mismatch.oracle, mismatch.expected) for mismatch in verdict.mismatches] == [
            ("value", "[-0.0, -1.0, -2.0]")
        ]
        before = pushes_modes.Counting.seen
        assert trial(pushing, "copy_").answer == "yes"
        assert pushes_modes.Counting.seen > before


class TestLoading:
    """Loading of a script's device, whose module is in the current folder."""

    def test_a_device_that_cannot_be_loaded_is_no_difference(self, tmp_path):
        """A load failure exits with 2. Regression test: ModuleNotFoundError ended a script with 1, the code for a
        difference."""
        text = script(program_of("neg"), describe_target("device:cpu,import=not_there"))
        done = run(text, tmp_path)
        assert done.returncode == 2
        assert done.stderr == "device 'cpu' cannot be loaded: ModuleNotFoundError: No module named 'not_there'\n"

    def test_a_module_that_registers_nothing(self, tmp_path):
        """A device that torch does not have after the import exits with 2 too."""
        (tmp_path / "empty_module.py").touch()
        done = run(script(program_of("neg"), describe_target("device:absent,import=empty_module")), tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("device 'absent' cannot be loaded: RuntimeError: ")

    def test_a_script_of_op_db_registers_the_device_first(self, tmp_path):
        """The device is registered before the import of op_db, but its modes are pushed after the CPU's answer."""
        (tmp_path / "pushes_modes.py").write_text(PUSHES_MODES)
        setup = describe_target("device:cpu,import=pushes_modes,call=enable").script()
        text = from_op_db(Case("neg", "", "", "float32", "method", "as_sampled"), setup, 0, "a finding")
        own = own_part(text)
        assert own.index("import pushes_modes") < own.index("import op_db") < own.index("pushes_modes.enable()")
        done = run(text, tmp_path)
        assert done.returncode == 1, done.stderr
        assert "value of result" in done.stdout


class TestBackward:
    """Autograd counts the devices before the first `backward` of a process."""

    WRITTEN = Program(
        (Storage("float32", 3),),
        (Input("a", 0, "float32", (3,), (1,), requires_grad=True),),
        (
            Step("mul.grad", (tensor("a"), 2), out=("b",)),
            Step("backward", (tensor("b"), {"tensor": [1.0, 1.0, 1.0], "dtype": "float32"})),
        ),
    )

    def test_the_device_is_there_before(self, tmp_path, monkeypatch):
        """The script loads the device before any `backward`. Regression test: the script ran `backward` on torch CPU
        before it loaded the device, and then died on the device: `device_ready_queues_ INTERNAL ASSERT FAILED`.

        Torch refuses `tolist` on the device's tensors, since they are of a subclass. Regression test: the script called
        it to print its answer, and ended with torch's error."""
        wrong = Mismatch("grad", "grad of a", "[2.0, 2.0, 2.0]", "[3.0, 3.0, 3.0]", "3 of 3 elements differ")
        target = describe_target("device:guarded,import=guarded_device,without=storages+set_+as_strided+data_ptr")
        text = script(self.WRITTEN, target, [wrong], bad_step=1)
        (tmp_path / "guarded_device.py").write_text(GUARDED.read_text())
        done = run(text, tmp_path)
        assert "INTERNAL ASSERT" not in done.stdout + done.stderr
        assert done.stdout.splitlines()[:2] == ["cpu [2.0, 2.0, 2.0]", "guarded [3.0, 3.0, 3.0]"], done.stderr
        assert "grad of grad of a: expected [2.0, 2.0, 2.0], got [3.0, 3.0, 3.0]" in done.stdout
        assert done.returncode == 1
