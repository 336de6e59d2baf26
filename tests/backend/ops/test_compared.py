"""Writes by index in compiled graphs, with another index at each run."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import conformance.backend  # noqa: F401 - registers the device
from conformance.backend.ops import compared
from conformance.backend.torch_api.compile import tiny


@pytest.fixture(autouse=True)
def _recorded() -> Iterator[None]:
    """Reset Dynamo for each test, and make a graph that runs eagerly an error."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tiny: a compiled graph runs eagerly")
        yield


A = torch.arange(20.0).reshape(5, 4) / 7 - 1
ROW = torch.tensor([3, 0, 3, 1])
ROWS = torch.tensor([[3, 0], [1, 0], [3, 4]])
S = torch.arange(16.0).reshape(4, 4).cos()
T = torch.arange(6.0).reshape(3, 2).sin()


def agrees(call: Callable[..., object], *operands: Tensor) -> None:
    """Compare a compiled call on tiny with the CPU, also for other indices, which are checked again."""
    run = torch.compile(call, backend=tiny)
    for arguments in (operands, [x if x.is_floating_point() else x.flip(0) for x in operands]):
        results = run(*(x.to("tiny") for x in arguments))
        torch.testing.assert_close(tuple(x.cpu() for x in results), tuple(call(*arguments)))


def several(a: Tensor, row: Tensor, s: Tensor, rows: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    return (
        a.index_add(0, row, s, alpha=2),
        a.index_fill(0, row, 7.0),
        a.scatter_add(0, rows, t),
        a.scatter(0, rows, t),
        a.index_put((row - 2,), s),
        torch.ops.aten.index_put(a, [None, rows % 4], s[:1, :1], True),
    )


def test_by_an_index_that_is_an_input():
    """A graph with an index input is recorded. Formerly each of these calls made its graph run eagerly, and the
    backward of nearly every model with an index too."""
    agrees(several, A, ROW, S, ROWS, T)


def more() -> Iterator[object]:
    def case(name: str, call: Callable[..., Tensor], *operands: Tensor) -> object:
        return pytest.param(call, operands, id=name)

    yield case("index_copy", lambda a, i, s: a.index_copy(0, i, s), A, ROW, S)
    yield case("columns", lambda a, i, s: a.t().index_add(1, i, s), A, ROW, S)
    yield case("value", lambda a, i: a.scatter(0, i, 2.0), A, ROWS)
    yield case("a vector", lambda a, i, t: a.scatter_add(0, i, t), A[:, 0], ROWS[:, 0], T[:, 0])
    yield case("put", lambda a, i, t: a.put(i, t), A, ROWS, T)
    yield case("put and add", lambda a, i, t: a.put(i, t, accumulate=True), A, ROWS, T)
    yield case("index_put and add", lambda a, i, s: a.index_put((i,), s, accumulate=True), A, ROW, S)
    yield case("bool", lambda a, i, s: (a > 0).index_put((i,), s > 0, accumulate=True), A, ROW, S)
    yield case("embedding", lambda s, i: torch.ops.aten.embedding_dense_backward(s, i, 6, 3, False), S, ROW)
    for reduce, own in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):
        call = lambda a, i, t, reduce=reduce, own=own: a.scatter_reduce(0, i, t, reduce, include_self=own)  # noqa: E731
        yield case(f"{reduce}-{own}", call, A, ROWS, T)


@pytest.mark.slow
@pytest.mark.parametrize(("call", "operands"), more())
def test_every_operator(call, operands):
    """Every way to combine writes to one place agrees with the CPU."""
    agrees(lambda *arguments: [call(*arguments)], *operands)


def test_an_index_out_of_range_is_the_cpus_error():
    """Each run of the recording checks the index and raises the CPU's error."""
    run = torch.compile(lambda a, i, s: a.index_add(0, i, s), backend=tiny)
    run(A.to("tiny"), ROW.to("tiny"), S.to("tiny"))
    with pytest.raises(RuntimeError, match="out of bounds"):
        run(A.to("tiny"), (ROW + 2).to("tiny"), S.to("tiny"))


def test_what_is_not_written_keeps_its_sign():
    """Elements without a write keep -0.0. The sum of no writes is 0.0, and must not be added to them."""
    run = torch.compile(lambda a, i, s: a.index_add(0, i, s), backend=tiny)
    result = run(torch.full((5, 4), -0.0).to("tiny"), ROW.to("tiny"), S.to("tiny"))
    assert torch.signbit(result.cpu()[2]).all()


def test_an_index_that_is_known_while_the_graph_is_recorded(monkeypatch):
    """An index computed from numbers only is inverted during recording, without comparisons."""
    monkeypatch.setattr(compared, "MOST", 0)
    agrees(lambda a, s: [a.index_add(0, torch.arange(4, device=a.device) % 3, s)], A, S)


def test_the_gradient_of_an_upsampled_image():
    """The gradient of upsampling is recorded. It formerly made the backward graph of a U-Net run eagerly."""
    image = torch.arange(18.0).reshape(1, 2, 3, 3)
    results = []
    for device, over in (("cpu", None), ("tiny", tiny)):
        x = image.to(device).clone().requires_grad_()
        call = lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")  # noqa: E731
        (call if over is None else torch.compile(call, backend=over))(x).square().sum().backward()
        results.append(x.grad.cpu())
    torch.testing.assert_close(results[1], results[0])


def test_too_much_to_compare_runs_eagerly(monkeypatch):
    """A graph runs eagerly if places times writes exceed the work that one kernel should do."""
    monkeypatch.setattr(compared, "MOST", 5 * 4 * 4 - 1)
    with pytest.raises(UserWarning, match="writes 4 times to one of 5 places, 4 each"):
        agrees(lambda a, i, s: [a.index_add(0, i, s)], A, ROW, S)
