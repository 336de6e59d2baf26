"""torch.compile(backend="tiny"): one recorded schedule for repeated calls."""

from __future__ import annotations

import copy
import os
import types
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from conformance import backend
from conformance.backend import kernels
from conformance.backend.lazy import flush
from conformance.backend.lazy.storage import lazy_storage
from conformance.backend.torch_api import compile as compiled


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Reset Dynamo for each test."""
    torch._dynamo.reset()


def network() -> nn.Module:
    """Return a small network with fixed parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class TestInference:
    """Compiled graphs without gradients."""

    @pytest.mark.parametrize("device", ["tiny", "cpu"])
    def test_agrees_with_cpu(self, device: str) -> None:
        """Inputs may be on tiny or on the CPU. Results are on the same device, and equal the CPU's."""
        net, x = network(), torch.randn(5, 6)
        run = torch.compile(copy.deepcopy(net).to(device), backend=compiled.tiny)
        with torch.no_grad():
            for scale in (1.0, 2.0):
                y = run((x * scale).to(device))
                assert y.device.type == device
                torch.testing.assert_close(y.cpu(), net(x * scale))

    def test_second_call_schedules_nothing(self) -> None:
        """A second call with other values runs the same kernels on its own inputs, without a fallback."""
        run = torch.compile(lambda a, b: (a @ b).relu().sum(0), backend=compiled.tiny)
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        run(x.to("tiny"), y.to("tiny")).cpu()
        a, b = y.to("tiny"), x.to("tiny")
        backend.reset_stats()
        torch.testing.assert_close(run(a, b).cpu(), (y @ x).relu().sum(0))
        stats = backend.stats()
        assert (stats["native"], stats["fallback"]) == ({}, {})

    def test_views_and_written_inputs(self) -> None:
        """A result that is a view of an input aliases it, and an input that the graph writes is written."""

        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.add_(1)
            return x.t(), x * 2

        run = torch.compile(function, backend=compiled.tiny)
        x = torch.arange(6.0, device="tiny").view(2, 3)
        for turn in (1, 2):
            view, double = run(x)
            assert x.cpu().tolist() == (torch.arange(6.0).view(2, 3) + turn).tolist()
            assert double.tolist() == (x.cpu() * 2).tolist()
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()

    def test_graph_that_needs_a_value_runs_eagerly(self) -> None:
        """An operator on the CPU cannot be recorded. The graph runs eagerly with a warning that names the operator, and
        the result is right."""
        run = torch.compile(lambda x: torch.linalg.eigvalsh(x) + 1, backend=compiled.tiny)
        x = torch.eye(3) * 2
        with pytest.warns(UserWarning, match=r"runs eagerly: aten\._linalg_eigh\.default needs values[^\n]*$"):
            y = run(x.to("tiny"))
        torch.testing.assert_close(y.cpu(), torch.full((3,), 3.0))


class TestTraining:
    """Forward and backward graphs, each one schedule."""

    def test_gradients_agree_with_cpu(self) -> None:
        """Gradients of a compiled network equal the CPU's."""
        net, x = network(), torch.randn(5, 6)
        on_tiny = copy.deepcopy(net).to("tiny")
        run = torch.compile(on_tiny, backend=compiled.tiny)
        for _ in range(2):
            on_tiny.zero_grad()
            (run(x.to("tiny")) ** 2).sum().backward()
        (net(x) ** 2).sum().backward()
        for mine, reference in zip(on_tiny.parameters(), net.parameters(), strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.cpu(), reference.grad)


class TestChecksOfElements:
    """Each run of a recording checks indices and labels."""

    def test_a_label_out_of_range_raises_the_cpus_error(self) -> None:
        """A label out of range raises the CPU's error. Formerly a loss recorded with right labels never raised, or the
        loss was not recorded."""
        run = torch.compile(nn.functional.cross_entropy, backend=compiled.tiny)
        x, good = torch.randn(3, 4), torch.tensor([1, -100, 0])
        torch.testing.assert_close(run(x.to("tiny"), good.to("tiny")).cpu(), nn.functional.cross_entropy(x, good))
        backend.reset_stats()
        other = torch.tensor([3, 2, -100])
        torch.testing.assert_close(run(x.to("tiny"), other.to("tiny")).cpu(), nn.functional.cross_entropy(x, other))
        assert backend.stats()["native"] == {}  # the call replays the recording
        with pytest.raises(IndexError, match="Target 7 is out of bounds"):
            run(x.to("tiny"), torch.tensor([1, 7, 0]).to("tiny"))

    def test_the_gradient_of_an_embedding_is_recorded(self) -> None:
        """The gradient of an embedding, which excludes the padding index, is recorded without a warning and equals the
        CPU's."""
        weight, index = torch.randn(5, 3), torch.tensor([[1, 4, 1], [0, 1, 2]])

        def loss(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return (nn.functional.embedding(index, weight, padding_idx=4) ** 2).sum()

        grads = []
        for device in ("cpu", "tiny"):
            w = weight.clone().to(device).requires_grad_()
            run = torch.compile(loss, backend=compiled.tiny) if device == "tiny" else loss
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                for _ in range(2):
                    w.grad = None
                    run(w, index.to(device)).backward()
            assert w.grad is not None
            grads.append(w.grad.cpu())
        torch.testing.assert_close(grads[1], grads[0])

    def test_nothing_is_written_where_an_index_is_wrong(self) -> None:
        """If an index is wrong, a write that precedes it in the graph is not made."""

        def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x.gather(0, i)

        run = torch.compile(function, backend=compiled.tiny)
        x = torch.zeros(3, device="tiny")
        assert run(x, torch.tensor([0, 2]).to("tiny")).tolist() == [1, 1]
        kept = x.clone()
        with pytest.raises(RuntimeError, match="index 3 is out of bounds"):
            run(kept, torch.tensor([0, 3]).to("tiny"))
        assert kept.tolist() == [1, 1, 1]


class TestHostTensors:
    """CPU tensors as inputs of a graph."""

    def test_a_written_cpu_input_is_written(self) -> None:
        """A graph writes to the CPU input itself, not to a copy. The step counts of an optimizer are on the CPU."""

        def function(count: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            count.add_(1)
            return count * 2, x * count

        run = torch.compile(function, backend=compiled.tiny)
        count, x = torch.tensor(1.0), torch.ones(2, device="tiny")
        for step in (2.0, 3.0):
            doubled, scaled = run(count, x)
            assert (count.item(), doubled.item(), scaled.tolist()) == (step, 2 * step, [step, step])
            assert (doubled.device.type, scaled.device.type) == ("cpu", "tiny")

    @pytest.mark.parametrize("capturable", [False, True])
    def test_a_compiled_optimizer_steps_as_the_cpus(self, capturable: bool) -> None:
        """Parameters after four compiled steps of Adam equal the CPU's."""
        nets = [network(), network().to("tiny")]
        x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
        for net, device in zip(nets, ("cpu", "tiny"), strict=True):
            own = capturable and device == "tiny"
            optimizer = torch.optim.Adam(net.parameters(), lr=0.1, capturable=own)
            advance = torch.compile(optimizer.step, backend=compiled.tiny) if device == "tiny" else optimizer.step
            for _ in range(4):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
                advance()
        for ours, theirs in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


class TestWritesInPlace:
    """A graph writes an input into its own buffer, without an effect on other values."""

    @staticmethod
    def tensors(count: int) -> list[torch.Tensor]:
        """Return random tensors on the CPU, seeded by their count."""
        torch.manual_seed(count)
        return [torch.randn(4, 4) for _ in range(count)]

    def test_no_new_buffers(self) -> None:
        """A step of momentum writes both tensors with one kernel each, and allocates no buffer."""

        def step(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
            m.mul_(0.9).add_(g)
            p.sub_(m)

        expected = self.tensors(3)
        actual = [t.to("tiny") for t in expected]
        run = torch.compile(step, backend=compiled.tiny)
        for _ in range(3):
            step(*expected)
            before = [memory_of(t) for t in actual]
            with kernels.count() as counted:
                run(*actual)
            assert [memory_of(t) for t in actual] == before
            assert counted.kernels == 2
        for e, a in zip(expected, actual, strict=True):
            torch.testing.assert_close(a.cpu(), e)

    def test_two_tensors_change_places(self) -> None:
        """Two tensors exchange their contents correctly, although neither can be written first."""

        def swap(a: torch.Tensor, b: torch.Tensor) -> None:
            old = a.clone()
            a.copy_(b)
            b.copy_(old)

        x, y = self.tensors(2)
        a, b = x.to("tiny"), y.to("tiny")
        torch.compile(swap, backend=compiled.tiny)(a, b)
        assert torch.equal(a.cpu(), y)
        assert torch.equal(b.cpu(), x)

    @pytest.mark.parametrize(
        "change", [lambda a: a.t() + 0, lambda a: a.flip(0), lambda a: a @ a, lambda a: a.cumsum(0)]
    )
    def test_a_tensor_computed_from_itself(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Elements read at other positions than the written ones are read first."""

        def function(a: torch.Tensor) -> torch.Tensor:
            a.copy_(change(a))
            return a.sum(0)

        (x,) = self.tensors(1)
        a = x.to("tiny")
        result = torch.compile(function, backend=compiled.tiny)(a)
        torch.testing.assert_close(result.cpu(), function(x))
        torch.testing.assert_close(a.cpu(), x)

    def test_older_values_stay(self) -> None:
        """A copy that shares the buffer and a lazy value keep the old content after a write."""
        (x,) = self.tensors(1)
        a = x.to("tiny")
        run = torch.compile(lambda a: a.add_(1), backend=compiled.tiny)
        run(a)
        for _ in range(2):
            kept, lazy, host = a.clone(), a * 2, a.cpu()
            run(a)
            assert torch.equal(kept.cpu(), host)
            assert torch.equal(lazy.cpu(), host * 2)
            assert torch.equal(a.cpu(), host + 1)

    def test_inputs_that_share_a_buffer(self) -> None:
        """An unwritten copy shares its buffer. The graph must not write that buffer if the copy is another input."""

        def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            a.add_(1)
            b.mul_(2)
            return (a - c.flip(0)) * b

        tensors = self.tensors(1)
        tensors += [tensors[0].clone(), tensors[0].clone()]
        on_tiny = [tensors[0].to("tiny")]
        on_tiny += [on_tiny[0].clone(), on_tiny[0].clone()]
        result = torch.compile(function, backend=compiled.tiny)(*on_tiny)
        torch.testing.assert_close(result.cpu(), function(*tensors))
        for actual, expected in zip(on_tiny, tensors, strict=True):
            torch.testing.assert_close(actual.cpu(), expected)

    def test_the_old_content_as_a_result(self) -> None:
        """A result that is the old content of an input is read before the store."""

        def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
            old = a.clone()
            a.copy_(b)
            return old, old.flip(0), a * 2

        x, y = self.tensors(2)
        a = x.to("tiny")
        results = torch.compile(function, backend=compiled.tiny)(a, y.to("tiny"))
        for actual, expected in zip((*results, a), (*function(x, y), y), strict=True):
            torch.testing.assert_close(actual.cpu(), expected)

    def test_rows_that_change_places(self) -> None:
        """Rows exchange their contents. With a store in place, a row was formerly read after its write: tinygrad checks
        only other hazards."""

        def swap(a: torch.Tensor) -> torch.Tensor:
            kept = a[0].clone()
            a[0] = a[2]
            a[2] = kept
            return a + 1

        (x,) = self.tensors(1)
        a = x.to("tiny")
        torch.testing.assert_close(torch.compile(swap, backend=compiled.tiny)(a).cpu(), swap(x))
        torch.testing.assert_close(a.cpu(), x)

    def test_nothing_is_written_when_a_check_fails(self) -> None:
        """A graph with an index out of range raises, and its inputs stay unchanged."""

        def function(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            a.add_(1)
            return a.index_select(0, i)

        run = torch.compile(function, backend=compiled.tiny)
        (x,) = self.tensors(1)
        a = x.to("tiny")
        run(a, torch.tensor([3, 0]).to("tiny"))
        with pytest.raises(IndexError):
            run(a, torch.tensor([4, 0]).to("tiny"))
        torch.testing.assert_close(a.cpu(), x + 1)


class TestWholeStep:
    """Loss, gradients and the optimizer's update as one graph."""

    @torch._dynamo.config.patch(trace_autograd_ops=True)
    def test_agrees_with_cpu_and_stores_in_place(self) -> None:
        """The losses of five steps equal the CPU's, and the weights' moments keep their buffers."""
        x, y = torch.randn(5, 6), torch.tensor([0, 2, 1, 0, 2])

        def losses(device: str) -> list[float]:
            net = network().to(device)
            parameters = list(net.parameters())
            moments = [torch.zeros_like(p) for p in parameters]

            def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                loss = nn.functional.cross_entropy(net(x), y)
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for p, moment, gradient in zip(parameters, moments, gradients, strict=True):
                        moment.mul_(0.9).add_(gradient)
                        p.sub_(gradient + moment, alpha=0.05)  # Nesterov momentum: gradients are read twice
                return loss.detach()

            run = torch.compile(step, backend=compiled.tiny, fullgraph=True) if device == "tiny" else step
            values = [run(x.to(device), y.to(device)).item()]
            places = [memory_of(t) for t in moments[::2]] if device == "tiny" else []
            values += [run(x.to(device), y.to(device)).item() for _ in range(4)]
            if device == "tiny":
                # Formerly the check of the labels came with the results, so every write went to a new buffer.
                assert [memory_of(t) for t in moments[::2]] == places
                before = [t.cpu() for t in (*parameters, *moments)]
                with pytest.raises(IndexError, match="out of bounds"):
                    run(x.to(device), torch.tensor([0, 2, 3, 0, 2]).to(device))
                for now, then in zip((*parameters, *moments), before, strict=True):
                    assert torch.equal(now.cpu(), then)
            return values

        torch.testing.assert_close(losses("tiny"), losses("cpu"))


def test_dynamo_stays_out_of_kernels() -> None:
    """Dynamo skips the device's own code. Formerly, between two graphs, it followed that code, and compiled and
    recompiled its kernels."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return torch.zeros_like(x) + x.sum()

    compiled_frames: list[str] = []
    original = torch._dynamo.convert_frame.ConvertFrameAssert.__call__

    def seen(self: object, frame: types.FrameType, *args: object, **kwargs: object) -> object:
        compiled_frames.append(frame.f_code.co_filename)
        return original(self, frame, *args, **kwargs)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.convert_frame.ConvertFrameAssert, "__call__", seen)
        run = torch.compile(function, backend=compiled.tiny)
        assert run(torch.ones(3).to("tiny")).tolist() == [6.0] * 3
    assert any(name == __file__ for name in compiled_frames)
    assert not [name for name in compiled_frames if "backend" in name.split(os.sep) and name != __file__]


def memory_of(t: torch.Tensor) -> int:
    """Return the identity of a realized tensor's buffer."""
    lazy = lazy_storage(t)
    flush.flush([lazy])
    return id(flush.flat(lazy).base.buffer)


class TestTensorsThatAGraphMakes:
    def test_a_backward_graph_of_cpu_tensors(self):
        """The gradient of `index_put` works for CPU tensors. It begins with zeros that the graph makes on the CPU,
        which formerly met indices on tiny."""

        def put(x, i, v):
            return x.index_put((i,), v)

        def gradients(function):
            x, v = torch.arange(6.0, requires_grad=True), torch.ones(2, requires_grad=True)
            (function(x, torch.tensor([1, 4]), v) * torch.arange(6.0)).sum().backward()
            return x.grad.tolist(), v.grad.tolist()

        assert gradients(torch.compile(put, backend="tiny")) == gradients(put)
