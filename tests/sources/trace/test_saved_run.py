"""Two runs that do not share a process: one is saved, and the other one is compared with the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import conformance
from conformance.record.errors import UserError
from conformance.record.sentences import headline
from conformance.sources.trace.__main__ import main
from conformance.sources.trace.api import AGAINST
from conformance.sources.trace.saved_run import RunWriter, SavedRun

Run = Callable[[], None]


class Larger(TorchDispatchMode):
    """A device with an operator whose result is too large."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 1.01 if func is torch.ops.aten.tanh.default else result


TENSORS = {
    "a": torch.arange(6.0).view(2, 3).t(), "b": torch.tensor([1.5, -0.0]).to(torch.bfloat16),
    "c": torch.tensor([True, False]), "d": torch.tensor(7), "e": torch.empty(0, 3), "f": torch.tensor([1 + 2j]),
    "g": torch.tensor([1.0, 2.0]).to(torch.float8_e5m2), "h": torch.tensor([2 + 1j]).conj(),
}  # fmt: skip


class TestFile:
    def written(self, path: Path) -> Path:
        writer = RunWriter(path)
        for name, tensor in TENSORS.items():
            writer.add(name, tensor)
        writer.close({"device": "cpu"})
        return path

    def test_it_has_the_format_of_safetensors(self, tmp_path):
        """The length of a header, the header, and the bytes of the tensors without gaps."""
        data = self.written(tmp_path / "run.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        assert header.pop("__metadata__") == {"device": "cpu"}
        assert header["a"] == {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}
        ends = [row["data_offsets"] for row in header.values()]
        assert [first for first, _ in ends[1:]] == [end for _, end in ends[:-1]]
        assert len(data) == 8 + size + ends[-1][1]
        assert [*tmp_path.iterdir()] == [tmp_path / "run.safetensors"]

    def test_it_is_read_as_it_was_written(self, tmp_path):
        """Each dtype, also in a tensor that is not contiguous, empty, or of no dimension."""
        saved = SavedRun(self.written(tmp_path / "run.safetensors"))
        for name, tensor in TENSORS.items():
            read = saved.tensor(name, tensor)
            assert read is not None and read.dtype is tensor.dtype
            assert torch.equal(read.to(torch.complex128), tensor.to(torch.complex128))

    def test_a_file_without_its_end_is_refused(self, tmp_path):
        """A copy that was cut is one sentence; formerly the first tensor behind the cut ended the trace."""
        path = self.written(tmp_path / "run.safetensors")
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(UserError, match="is no run that `conformance trace --save` wrote"):
            SavedRun(path)

    def test_a_write_that_fails_keeps_the_earlier_run(self, tmp_path, monkeypatch):
        """The disk is full when the tensors are copied behind the header."""
        path = self.written(tmp_path / "run.safetensors")
        before = path.read_bytes()

        def fails(*files: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("conformance.sources.trace.saved_run.shutil.copyfileobj", fails)
        with pytest.raises(UserError, match="cannot be written: No space left on device"):
            self.written(path)
        assert path.read_bytes() == before
        assert [*tmp_path.iterdir()] == [path]

    def test_a_tensor_of_another_kind_is_none(self, tmp_path):
        """No tensor of this name, shape or dtype."""
        saved = SavedRun(self.written(tmp_path / "run.safetensors"))
        assert saved.tensor("z", torch.ones(1)) is None
        assert saved.tensor("d", torch.tensor(7.0)) is None and saved.tensor("c", torch.ones(3).bool()) is None
        assert saved.compared == 0

    @pytest.mark.parametrize("data", [b"", b"text that is no run of a trace", b"\x02" + bytes(7) + b"{}"])
    def test_another_file_is_refused(self, tmp_path, data):
        """With one sentence."""
        path = tmp_path / "other"
        path.write_bytes(data)
        with pytest.raises(UserError, match="is no run that"):
            SavedRun(path)


class TestAgainst:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def step(self, seed: int = 0, further: bool = False) -> None:
        """A training step with an in-place write. `further` makes calls that the other run does not make."""
        torch.manual_seed(seed)
        net, x = nn.Linear(2, 4), torch.linspace(-1, 1, 6).view(3, 2)
        optimizer = torch.optim.Adam(net.parameters())
        x[1:].mul_(2)
        y = net(x).tanh()
        if further:
            y.norm().add(1)
        y.square().mean().backward()
        optimizer.step()

    def runs(self, first: Run, second: Run, wrong: int | None = None) -> conformance.sources.trace.api.Trace:
        """Return the trace of the second run against the first one. `wrong` is the run with a wrong operator."""
        modes = [Larger() if wrong == at else contextlib.nullcontext() for at in (0, 1)]
        with modes[0], conformance.trace("cpu", save="run.safetensors"):
            first()
        with modes[1], conformance.trace("cpu", against="run.safetensors") as trace:
            second()
        return trace

    def test_right_runs_do_not_part(self):
        """Also if one makes further calls: calls are aligned by operator and line."""
        trace = self.runs(self.step, lambda: self.step(further=True))
        divergence = trace.mode.divergence
        assert divergence.parting is None and divergence.saved.compared > 20
        assert trace.exit_code == trace.run().exit_code() == 0
        assert f"compared with run.safetensors, a run on cpu: {divergence.saved.compared} results" in str(trace)

    @pytest.mark.parametrize("wrong", [0, 1])
    def test_the_wrong_run_is_named(self, wrong):
        """The first wrong call, whichever run makes it, is a failing case of its own."""
        trace = self.runs(self.step, self.step, wrong)
        parting = trace.mode.divergence.parting
        assert (parting.name, parting.where) == ("aten.tanh.default", "result")
        errors = [parting.saved, parting.device]
        assert errors[wrong] == pytest.approx(0.01, rel=0.1) and errors[1 - wrong] < 1e-6
        assert bool(trace.faults) == bool(wrong)
        failing = [result for result in trace.run().unexpected if result.variant == AGAINST]
        assert [headline(result) for result in failing] == [
            "result should be right but for rounding and is 0.01 off "
            f"{'here' if wrong else 'in run.safetensors'} (relative error)"
        ]
        assert ("the saved run is further off" in str(trace)) == (not wrong)

    def test_other_random_numbers_are_the_reason(self):
        """They are no fault of an operator."""
        trace = self.runs(self.step, lambda: self.step(seed=1))
        assert trace.mode.divergence.parting.name == "aten.uniform_.default"
        assert "the runs draw different random numbers" in str(trace)

    def test_only_selected_calls_are_saved(self):
        """`operators`, `every` and `steps` keep the file small; the numbers of calls count all of them."""
        with conformance.trace("cpu", save="run.safetensors", operators=["aten.tanh.*"]):
            self.step()
        saved = SavedRun(Path("run.safetensors"))
        assert [name.rpartition(" ")[0].split()[1] for name in saved.header] == ["aten.tanh.default"]


def test_the_command_compares_two_processes(tmp_path, monkeypatch, capfd):
    """`--save` in one run, `--against` in another one: exit codes 0, and 2 for runs without a common call."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\ntorch.ones(3).tanh()\n")
    assert main(["--target", "cpu", "--save", "run.safetensors", "train.py"]) == 0
    assert main(["--target", "cpu", "--against", "run.safetensors", "train.py"]) == 0
    assert "divergence: none in 2 calls" in capfd.readouterr().out
    Path("train.py").write_text("import torch\n\n\ntorch.ones(3).sin()\n")
    assert main(["--target", "cpu", "--against", "run.safetensors", "train.py"]) == 2
    assert "0 results of calls that both runs made" in capfd.readouterr().out
    assert main(["--target", "cpu", "--against", "nothing.safetensors", "train.py"]) == 2
    assert "--against nothing.safetensors cannot be read: No such file" in capfd.readouterr().err
    assert main(["--target", "cpu", "--save", "no/run.safetensors", "train.py"]) == 2
    assert "--save no/run.safetensors cannot be written: No such file" in capfd.readouterr().err
