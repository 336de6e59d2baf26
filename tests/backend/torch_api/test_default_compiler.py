"""torch.compile without a backend. Formerly every graph of tiny tensors raised inside Inductor, which does not support
the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from conformance.backend import kernels


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class TestDefaultCompiler:
    """`torch.compile(model)` with Inductor's modes and options."""

    @pytest.mark.parametrize("options", [{}, {"mode": "max-autotune"}, {"options": {"max_fusion_size": 8}}])
    def test_a_training_step_agrees_with_the_cpu(self, options: dict) -> None:
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
        moved = copy.deepcopy(net).to("tiny")
        net(x).pow(2).sum().backward()
        torch.compile(moved, **options)(x.to("tiny")).pow(2).sum().backward()
        for ours, expected in zip(moved.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), expected.grad)

    def test_one_schedule_runs_again(self) -> None:
        """The tiny compiler runs the graph, and the second call is one kernel."""
        run = torch.compile(lambda x: (x * 2 + 1).relu() * 3)
        x = torch.randn(7).to("tiny")
        run(x).cpu()
        with kernels.count() as counted:
            result = run(x).cpu()
        torch.testing.assert_close(result, (x.cpu() * 2 + 1).relu() * 3)
        assert counted.kernels == 1

    def test_shapes_that_change(self) -> None:
        run = torch.compile(lambda x: x.softmax(-1) * x.shape[0], dynamic=True)
        for n in (3, 5, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(run(x.to("tiny")).cpu(), x.softmax(-1) * n)

    def test_a_graph_without_inputs(self) -> None:
        """A graph that only creates tensors works. It formerly raised StopIteration with backend="tiny"."""
        result = torch.compile(lambda: torch.arange(3, device="tiny") + 1, fullgraph=True)()
        assert result.device.type == "tiny"
        assert result.tolist() == [1, 2, 3]

    def test_a_graph_of_cpu_tensors_stays_inductors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch._inductor.compile_fx

        seen = []

        def compile_fx(graph, inputs, **_):
            seen.append(graph)
            return graph

        monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", compile_fx)
        assert torch.compile(lambda x: x + 1)(torch.ones(2)).tolist() == [2.0, 2.0]
        assert len(seen) == 1


@pytest.mark.slow  # torch.export and Inductor are imported
def test_a_package_of_compiled_code_is_refused_in_one_sentence() -> None:
    """A program of `torch.export` reaches Inductor past torch's compilers: formerly `KeyError: 'tiny'`."""
    model = torch.nn.Linear(3, 2).to("tiny")
    program = torch.export.export(model, (torch.zeros(1, 3, device="tiny"),))
    with pytest.raises(RuntimeError, match="export the model on the CPU"):
        torch._inductor.aoti_compile_and_package(program)


def test_the_device_module_has_no_other_names() -> None:
    """Inductor's classes are given by name, and no name else."""
    assert not hasattr(torch.tiny, "no_such_name")  # type: ignore[attr-defined]
