"""Programs of torch.jit.trace, torch.export and flex_attention on tiny."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import conformance.backend  # noqa: F401 - registers the device
from conformance.backend.torch_api.compile import tiny


class Text(nn.Module):
    """A module with embeddings, a residual layer and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embedding(x)
        return self.out(self.norm(torch.relu(self.inner(y)) + y))


class Image(nn.Module):
    """A module with a convolution, batch norm and a maximum over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.conv(x))).amax((2, 3)))


def drawn(kind: type[nn.Module]) -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """Return a module on the CPU and on the device, its CPU input, and its result."""
    torch.manual_seed(0)
    module = kind().eval()
    x = torch.randint(16, (2, 5)) if kind is Text else torch.randn(2, 3, 6, 6)
    return module, copy.deepcopy(module).to("tiny"), x, module(x).detach()


@pytest.mark.parametrize("kind", [Text, Image])
def test_a_traced_module(kind):
    """A traced module runs, and runs again after save and load. (Formerly a size was a tensor inside a kernel, and a
    convolution was a constant.)"""
    _, module, x, expected = drawn(kind)
    traced = torch.jit.trace(module, x.to("tiny"))
    other = x.flip(0)
    torch.testing.assert_close(traced(other.to("tiny")).cpu(), expected.flip(0))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file, map_location="tiny")(x.to("tiny")).cpu(), expected)


def test_a_traced_assignment():
    """A traced indexed assignment works. torch disables the tracer during the assignment, and asserts that it stays so.
    T5, BART and Whisper, which shift their labels this way, could formerly not be traced."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        result = x.new_zeros(x.shape)
        result[..., 1:] = x[..., :-1].clone()
        result[..., 0] = 7
        return result

    x = torch.arange(12).view(2, 6)
    traced = torch.jit.trace(shifted, (x.to("tiny"),))
    assert torch.equal(traced(x.flip(1).to("tiny")).cpu(), shifted(x.flip(1)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Text, Image])
def test_an_exported_module(kind):
    """A module exported on the device with a dynamic batch size runs after save and load, and after decomposition."""
    _, module, x, expected = drawn(kind)
    program = torch.export.export(module, (x.to("tiny"),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file), program.run_decompositions()):
        torch.testing.assert_close(exported.module()(x.to("tiny")).cpu(), expected)
    one = torch.cat([x, x, x])
    torch.testing.assert_close(program.module()(one.to("tiny")).cpu(), torch.cat([expected] * 3))


@pytest.mark.slow
def test_a_program_exported_on_the_cpu():
    """A program exported on the CPU runs after torch's own pass moves it to the device."""
    from torch.export.passes import move_to_device_pass

    module, _, x, expected = drawn(Image)
    program = move_to_device_pass(torch.export.export(module, (x,)), "tiny")
    torch.testing.assert_close(program.module()(x.to("tiny")).cpu(), expected)


def bias(score, batch, head, i, j):
    return score + (i - j) * 0.1


def causal(batch, head, i, j):
    return i >= j


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("compiler", [None, tiny, "inductor"], ids=["eager", "tiny", "default"])
def test_flex_attention(compiler, masked):
    """flex_attention with a score function and a mask agrees with explicit attention. Gradients agree too, which torch
    CPU does not support."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 2, 8, 4, generator=draw).requires_grad_() for _ in range(3)]
    there = [x.detach().to("tiny").requires_grad_() for x in inputs]
    call = flex_attention if compiler is None else torch.compile(flex_attention, backend=compiler)
    mask = create_block_mask(causal, None, None, 8, 8, device="tiny") if masked else None
    output = call(*there, score_mod=bias, block_mask=mask)
    i = torch.arange(8)
    scores = inputs[0] @ inputs[1].transpose(-1, -2) / 2 + (i[:, None] - i) * 0.1
    scores = scores.masked_fill(i[:, None] < i, -torch.inf) if masked else scores
    expected = scores.softmax(-1) @ inputs[2]
    torch.testing.assert_close(output.cpu(), expected)
    expected.square().sum().backward()
    output.square().sum().backward()
    for x, y in zip(inputs, there, strict=True):
        torch.testing.assert_close(y.grad.cpu(), x.grad)


def test_flex_attention_elsewhere():
    """Devices other than tiny keep torch's behaviour."""
    x = torch.randn(1, 1, 2, 2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(x, x, x)
