"""Nested tensors in the jagged layout: a ragged batch gives the results of its separate sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nested import nested_tensor, nested_tensor_from_jagged
from torch.nn import functional as F

import conformance.backend as backend

LENGTHS = (2, 5, 3)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ragged(d: str, *shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    """Return sequences of 2, 5 and 3 elements of this shape."""
    pieces = [random(n, *(shape or (4,)), seed=seed + n).to(d) for n in LENGTHS]
    return nested_tensor(pieces, layout=torch.jagged, requires_grad=grad)


def gradient(program: Callable[[Tensor], Tensor]) -> Callable[[str], list[Tensor]]:
    """Return a program's result, and the gradient of its sum of squares."""

    def run(d: str) -> list[Tensor]:
        x = ragged(d, grad=True)
        y = program(x)
        (y.values() if y.is_nested else y).square().sum().backward()
        assert x.grad is not None
        return [y, x.grad]

    return run


def trained_layer(make: Callable[[], torch.nn.Module]) -> Callable[[str], list[Tensor]]:
    """Return a module's result, and the gradients of its input and parameters."""

    def run(d: str) -> list[Tensor]:
        torch.manual_seed(0)
        module, x = make().to(d), ragged(d, grad=True)
        y = module(x)
        y.values().pow(3).sum().backward()
        assert x.grad is not None
        return [y, x.grad, *[p.grad for p in module.parameters() if p.grad is not None]]

    return run


def offsets(d: str) -> Tensor:
    return torch.tensor([0, 2, 7, 10]).to(d)


PROGRAMS: dict[str, Callable[[str], Tensor | list[Tensor]]] = {
    "lists": lambda d: nested_tensor([[1.0, 2.0], [3.0]], layout=torch.jagged, device=d),
    "from_jagged": lambda d: nested_tensor_from_jagged(random(10, 4).to(d), offsets(d)),
    "lengths": lambda d: nested_tensor_from_jagged(random(10, 4).to(d), lengths=torch.tensor(LENGTHS).to(d)),
    "moved": lambda d: ragged("cpu").to(d),
    "unary": lambda d: [ragged(d).sin(), F.gelu(ragged(d)), ragged(d).softmax(-1), ragged(d).half()],
    "binary": lambda d: [(x := ragged(d)) * x.cos(), x - 1, 2 / x, x > 0, x + random(4).to(d)],
    "a padded operand": lambda d: ragged(d) * random(3, 1, 4).to(d),
    "linear": trained_layer(lambda: torch.nn.Linear(4, 3)),
    "layer_norm": trained_layer(lambda: torch.nn.LayerNorm(4)),
    "matmul": lambda d: ragged(d) @ random(4, 2).to(d),
    "sum": lambda d: [ragged(d).sum(), ragged(d).sum(1), ragged(d).sum(-1)],
    "mean": lambda d: [ragged(d).mean(), ragged(d).mean(1), ragged(d).mean(-1), ragged(d).amax(1)],
    "unbind": lambda d: list(ragged(d).unbind()),
    "padded": gradient(lambda x: x.to_padded_tensor(0.5)),
    "padded integers": lambda d: nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged, device=d)
    .to_padded_tensor(-1),
    "cut": lambda d: torch.ops.aten._jagged_to_padded_dense_forward(random(10, 4).to(d), [offsets(d)], [3], 0.5),
    "not padded": lambda d: torch.ops.aten._padded_dense_to_jagged_forward(random(3, 6, 4).to(d), [offsets(d)], 10),
    "no sequence has rows": lambda d: nested_tensor_from_jagged(
        random(10, 4).to(d)[:0], torch.zeros(3, dtype=torch.long).to(d), max_seqlen=2
    ).to_padded_tensor(1.0),
    "mean of a product": gradient(lambda x: (x * x.sin()).mean()),
    "product of matrices": gradient(lambda x: x.transpose(1, 2) @ x),
}  # fmt: skip


def pieces(x: Tensor) -> list[Tensor]:
    return [y.cpu() for y in (x.unbind() if x.is_nested else [x])]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(name: str) -> None:
    """Layout and values equal the CPU's, without a fallback."""
    expected = PROGRAMS[name]("cpu")
    backend.reset_stats()
    actual = PROGRAMS[name]("tiny")
    assert not backend.stats()["fallback"]
    for a, e in zip(*([r] if isinstance(r, Tensor) else r for r in (actual, expected)), strict=True):
        assert a.device.type == "tiny"
        assert (a.layout, a.dtype) == (e.layout, e.dtype)
        torch.testing.assert_close(pieces(a.detach()), pieces(e.detach()))


PAD, UNPAD = torch.ops.aten._jagged_to_padded_dense_forward, torch.ops.aten._padded_dense_to_jagged_forward


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda d: UNPAD(random(3, 6, 4).to(d), [offsets(d)], 12), "final offset"),
        (lambda d: UNPAD(random(3, 4, 4).to(d), [offsets(d)], 10), "length 5"),
        (lambda d: PAD(random(9, 4).to(d), [offsets(d)], [5]), "must match"),
    ],
)
def test_offsets_that_do_not_fit(program: Callable[[str], Tensor], said: str) -> None:
    """Offsets out of bounds raise the CPU's error, and no row of other memory is read."""
    with pytest.raises(RuntimeError, match=said):
        program("tiny")


class TestAttention:
    """scaled_dot_product_attention of ragged batches works. It formerly raised that nested tensors must be
    contiguous."""

    @staticmethod
    def heads(d: str, seed: int, grad: bool = False) -> Tensor:
        """Return a tensor of shape (3, 2, ragged, 4)."""
        return ragged(d, 2, 4, seed=seed, grad=grad).transpose(1, 2)

    def attend(self, d: str, causal: bool = False) -> list[Tensor]:
        leaves = [ragged(d, 8, seed=seed, grad=True) for seed in (10, 20, 30)]
        q, k, v = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in leaves)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)
        y.values().square().sum().backward()
        return [y.detach(), *[x.grad for x in leaves if x.grad is not None]]

    def test_as_on_the_cpu(self) -> None:
        for actual, expected in zip(self.attend("tiny"), self.attend("cpu"), strict=True):
            torch.testing.assert_close(pieces(actual), pieces(expected))

    def test_causal(self) -> None:
        """Causal attention agrees with each sequence alone, because the CPU refuses it for nested tensors."""
        y, *gradients = self.attend("tiny", causal=True)
        leaves = [[x.requires_grad_() for x in ragged("cpu", 8, seed=seed).unbind()] for seed in (10, 20, 30)]
        for i, sequence in enumerate(zip(*leaves, strict=True)):
            q, k, v = (x.unflatten(-1, (2, 4)).transpose(0, 1) for x in sequence)
            expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(-2)
            expected.square().sum().backward()
            torch.testing.assert_close(y.unbind()[i].cpu(), expected.detach())
            for ours, leaf in zip(gradients, sequence, strict=True):
                assert leaf.grad is not None
                torch.testing.assert_close(ours.unbind()[i].cpu(), leaf.grad)

    def test_queries_and_keys_of_other_lengths(self) -> None:
        """Queries and keys may have different lengths. A sequence without a key gives zeros."""
        q = self.heads("tiny", 1)
        starts = torch.tensor([0, 3, 3, 4]).to("tiny")
        k, v = (nested_tensor_from_jagged(random(4, 2, 4, seed=s).to("tiny"), starts).transpose(1, 2) for s in (2, 3))
        y = F.scaled_dot_product_attention(q, k, v, scale=0.3)
        for ours, *parts in zip(
            y.transpose(1, 2).unbind(), *(x.transpose(1, 2).unbind() for x in (q, k, v)), strict=True
        ):
            expected = F.scaled_dot_product_attention(*(p.cpu().transpose(0, 1) for p in parts), scale=0.3)
            torch.testing.assert_close(ours.cpu(), expected.transpose(0, 1))


def test_an_error_in_a_backward_pass() -> None:
    """An error in a backward pass is raised. torch has no gradient of a nested sum over one dimension, and its
    NotImplementedError formerly ended the process."""
    y = ragged("tiny", grad=True).sum(1)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="_nested_sum_backward"):
            y.square().sum().backward(retain_graph=True)
    x = torch.ones(2, device="tiny", requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
