"""Everyday calls of any torch device, and calls that crashed the interpreter on some device."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import conformance.backend


class TestMoving:
    """Moving tensors to the device and back, and printing them."""

    def test_tensor_constructor(self) -> None:
        """torch.tensor(..., device="tiny") keeps dtype and values."""
        t = torch.tensor([[1, 2], [3, 4]], device="tiny")
        assert t.dtype == torch.int64
        assert t.device == torch.device("tiny", 0)
        assert t.tolist() == [[1, 2], [3, 4]]

    def test_round_trips_every_dtype(self) -> None:
        """.to("tiny"), .tiny() and .cpu() are exact in every dtype, views and strides kept."""
        for dtype in (
            torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
            torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64,
            torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
        ):  # fmt: skip
            host = torch.arange(-3, 9).to(torch.float32).to(dtype).view(3, 4).t()
            assert torch.equal(host.to("tiny").cpu().to(torch.complex128), host.to(torch.complex128)), dtype
            assert host.tiny().stride() == host.stride()  # type: ignore[attr-defined]
            assert host.tiny()[1:].cpu().stride() == host[1:].clone().stride()  # type: ignore[attr-defined]

    def test_print(self) -> None:
        """print shows the text of the CPU tensor and the device."""
        assert repr(torch.arange(3.0, device="tiny")) == "tensor([0., 1., 2.], device='tiny:0')"
        assert repr(torch.zeros((), device="tiny", dtype=torch.int64)) == "tensor(0, device='tiny:0')"

    def test_item_and_python_numbers(self) -> None:
        """item(), float(), int(), bool(), len() and iteration work."""
        t = torch.tensor([2.5, -1.0], device="tiny")
        assert t[0].item() == 2.5
        assert (float(t[1]), int(t[0]), bool(t[0] > 0), len(t)) == (-1.0, 2, True, 2)
        assert [x.item() for x in t] == [2.5, -1.0]

    def test_conversions_on_the_device(self) -> None:
        """Casts equal the CPU's: float to int truncates, to bool compares with zero, to uint8 wraps."""
        host = torch.tensor([0.0, 0.4, -1.7, 300.5, 3.0])
        for dtype in (torch.int32, torch.bool, torch.float16, torch.bfloat16, torch.float64, torch.int64):
            assert torch.equal(host.to("tiny").to(dtype).cpu(), host.to(dtype)), dtype
        wide = torch.tensor([-1, 255, 256, 300, -129])
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.bool, torch.float32):
            assert torch.equal(wide.to("tiny").to(dtype).cpu(), wide.to(dtype)), dtype

    def test_numpy_needs_cpu(self) -> None:
        """.numpy() raises torch's error instead of reading invalid memory."""
        with pytest.raises(TypeError, match=r"convert tiny:0 device type tensor to numpy"):
            torch.ones(2, device="tiny").numpy()


class TestSaving:
    """deepcopy, pickle and torch.save work without a crash of the interpreter."""

    def test_deepcopy(self) -> None:
        """copy.deepcopy works for tensors, for views that share a storage, and for modules."""
        a = torch.arange(6.0, device="tiny")
        b, c = copy.deepcopy([a, a[2:4]])
        c.zero_()
        assert b.tolist() == [0, 1, 0, 0, 4, 5]
        assert a.tolist() == [0, 1, 2, 3, 4, 5]
        module = copy.deepcopy(nn.Linear(2, 3).to("tiny"))
        assert module.weight.device.type == "tiny"

    def test_untyped_storage(self) -> None:
        """UntypedStorage(n, device="tiny") can be created and cloned."""
        store = torch.UntypedStorage(16, device="tiny")
        assert store.nbytes() == 16
        t = torch.empty(0, device="tiny").set_(store, 0, (4,), (1,)).fill_(2)
        again = torch.empty(0, device="tiny").set_(store.clone(), 0, (4,), (1,))
        t.zero_()
        assert again.tolist() == [2, 2, 2, 2]
        assert store.device == torch.device("tiny", 0)
        assert torch.UntypedStorage(0, device="tiny").nbytes() == 0

    def test_untyped_storage_elements(self) -> None:
        """A storage's bytes can be read, written, copied to the CPU and back."""
        store = torch.arange(4, dtype=torch.uint8).to("tiny").untyped_storage()
        assert store.tolist() == [0, 1, 2, 3]
        assert store.cpu().tolist() == [0, 1, 2, 3]
        store.fill_(7)
        assert store[2] == 7

    def test_save_and_load(self) -> None:
        """torch.save and torch.load work, with map_location both ways, and shared storages stay shared."""
        a = torch.arange(6.0, device="tiny")
        file = io.BytesIO()
        torch.save({"a": a, "view": a.view(2, 3).t()}, file)
        for where, kind in ((None, "tiny"), ("cpu", "cpu"), ("tiny", "tiny")):
            file.seek(0)
            loaded = torch.load(file, map_location=where)
            assert loaded["a"].device.type == kind
            loaded["a"][1] = 50
            assert loaded["view"].tolist() == [[0, 3], [50, 4], [2, 5]]
        file = io.BytesIO()
        torch.save(torch.ones(3), file)
        file.seek(0)
        assert torch.load(file, map_location="tiny").device.type == "tiny"

    def test_pickle(self) -> None:
        """pickle keeps device, geometry and values."""
        t = pickle.loads(pickle.dumps(torch.arange(6.0, device="tiny").view(2, 3).t()))
        assert t.device.type == "tiny"
        assert t.stride() == (1, 3)
        assert t.tolist() == [[0, 3], [1, 4], [2, 5]]


class TestRandom:
    """Random numbers equal the CPU's."""

    @pytest.mark.parametrize(
        "draw",
        [
            lambda d: torch.rand(3, 5, device=d),
            lambda d: torch.randn(7, device=d),
            lambda d: torch.randint(0, 100, (9,), device=d),
            lambda d: torch.randperm(8, device=d),
            lambda d: torch.empty(6, device=d).exponential_(),
            lambda d: torch.bernoulli(torch.full((8,), 0.5, device=d)),
            lambda d: torch.nn.functional.dropout(torch.ones(16, device=d), 0.5),
            lambda d: torch.rand(4, 3, device=d).t().normal_(),
        ],
    )
    def test_bit_identical_to_cpu(self, draw: object) -> None:
        """After torch.manual_seed(0), the same call gives the same bits on both devices."""
        torch.manual_seed(0)
        expected = draw("cpu")  # type: ignore[operator]
        torch.manual_seed(0)
        assert torch.equal(draw("tiny").cpu(), expected)  # type: ignore[operator]

    def test_fork_rng(self) -> None:
        """fork_rng restores the state, with and without naming the device."""
        for arguments in ({}, {"devices": [0], "device_type": "tiny"}):
            torch.manual_seed(1)
            with torch.random.fork_rng(**arguments):
                torch.rand(5, device="tiny")
            first = torch.rand(2)
            torch.manual_seed(1)
            assert torch.equal(first, torch.rand(2))


def train(device: str, optimizer: str, steps: int = 4) -> tuple[list[float], list[torch.Tensor]]:
    """Return the losses and final parameters of a small network trained on `device`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.01}}[optimizer]
    opt = getattr(torch.optim, optimizer)(net.parameters(), **options)
    x, y = torch.randn(5, 6).to(device), torch.randint(0, 3, (5,)).to(device)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in net.parameters()]


class TestTraining:
    """Autograd and optimizers agree with the CPU."""

    @pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
    def test_steps_like_cpu(self, optimizer: str) -> None:
        """Losses and parameters after a few steps equal the CPU's within float tolerance."""
        losses, parameters = train("tiny", optimizer)
        expected_losses, expected = train("cpu", optimizer)
        torch.testing.assert_close(losses, expected_losses)
        torch.testing.assert_close(parameters, expected)

    def test_backward_through_inplace_view(self) -> None:
        """Autograd follows an in-place write to a view into its base."""

        def gradient(device: str) -> torch.Tensor:
            x = torch.arange(6.0, device=device).requires_grad_()
            y = x * 2
            y.view(2, 3)[:, 1].mul_(10)
            (y * y).sum().backward()
            assert x.grad is not None
            return x.grad.cpu()

        assert torch.equal(gradient("tiny"), gradient("cpu"))

    def test_inplace_on_needed_value_raises(self) -> None:
        """Version counters work: backward raises after a write to a saved value."""
        x = torch.ones(3, device="tiny", requires_grad=True)
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_device_is_known_to_torch() -> None:
    """torch.tiny, torch.accelerator and the device type work."""
    assert torch.tiny.is_available()  # type: ignore[attr-defined]
    assert torch.tiny.device_count() == 1  # type: ignore[attr-defined]
    assert torch.accelerator.current_accelerator() == torch.device("tiny")
    torch.tiny.synchronize()  # type: ignore[attr-defined]


def test_unknown_index_raises() -> None:
    """A device index that does not exist raises one clear sentence."""
    with pytest.raises(RuntimeError, match="no device tiny:7"):
        torch.ones(1, device="tiny:7")


def test_no_fallback_names_the_operator() -> None:
    """Inside no_fallback() an operator that would run on the CPU raises, and the error names it."""
    x = torch.eye(3, device="tiny")
    conformance.backend.reset_stats()
    torch.linalg.eigvalsh(x)
    assert any("eigh" in name for name in conformance.backend.stats()["fallback"])
    with pytest.raises(conformance.backend.FallbackError, match="eigh"), conformance.backend.no_fallback():
        torch.linalg.eigvalsh(x)


def test_forward_over_backward_through_dropout():
    """Forward over backward works through dropout. It formerly raised, because torch has no forward derivative of the
    backward that a device's own dropout uses."""
    derivatives = []
    for device in ("cpu", "tiny"):
        x, tangent = torch.arange(12.0).view(3, 4).to(device), torch.full((3, 4), 0.5).to(device)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent).requires_grad_()
            torch.manual_seed(3)
            (gradient,) = torch.autograd.grad(nn.functional.dropout(dual, 0.5).sin().sum(), dual)
            derivatives.append([t.cpu() for t in forward_ad.unpack_dual(gradient)])
    torch.testing.assert_close(derivatives[1], derivatives[0])
    assert derivatives[0][1].count_nonzero() > 2
