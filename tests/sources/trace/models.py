"""Three small models in plain torch, each as a function that makes a training step: GPT-2, ResNet, a diffusion UNet."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Tensor]
"""A training step: forward, backward and optimizer. Returns the loss."""


Wrap = Callable[[nn.Module], nn.Module]
"""What is done with a model before its first step, such as compiling it."""


class Block(nn.Module):
    """A transformer block: causal attention and a network of two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.after(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with any number of blocks and with tied embeddings."""

    def __init__(self, vocabulary: int = 32, width: int = 16, heads: int = 2, blocks: int = 2, length: int = 8) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.place(places)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


class Residual(nn.Module):
    """Two convolutions with batch normalization, and a shortcut."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(width, 2 * width, 3, stride, 1, bias=False),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(2 * width) for _ in range(2))
        self.short = nn.Conv2d(width, 2 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.one(x)))
        return F.relu(self.norms[1](self.two(inner)) + self.short(x))


class ResNet(nn.Module):
    """A ResNet of two residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(Residual(4, 1), Residual(8, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class UNet(nn.Module):
    """A UNet that predicts the noise of an image at a time step."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Linear(4, width)
        self.first, self.down = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(2, width) for _ in range(2))
        self.middle, self.last = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(2 * width, 3, 3, 1, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.tensor([1.0, 0.1], device=x.device)
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        high = F.silu(self.norms[0](self.first(x))) + embedded[:, :, None, None]
        low = self.middle(F.silu(self.norms[1](self.down(high))))
        return self.last(torch.cat([high, F.interpolate(low, scale_factor=2.0)], 1))


def gpt2(device: str, wrap: Wrap = lambda net: net) -> Step:
    """A step of GPT-2 with AdamW and clipped gradients."""
    torch.manual_seed(0)
    net = wrap(Gpt2().to(device))
    tokens = torch.randint(0, 32, (2, 9)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step() -> Tensor:
        optimizer.zero_grad()
        logits = net(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def resnet(device: str, wrap: Wrap = lambda net: net) -> Step:
    """A step of the ResNet with momentum."""
    torch.manual_seed(0)
    net = wrap(ResNet().to(device))
    images, labels = torch.randn(3, 3, 8, 8).to(device), torch.tensor([0, 4, 2]).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def unet(device: str, wrap: Wrap = lambda net: net) -> Step:
    """A step of the UNet with Adam."""
    torch.manual_seed(0)
    net = wrap(UNet().to(device))
    images, noise = torch.randn(2, 3, 8, 8).to(device), torch.randn(2, 3, 8, 8).to(device)
    times = torch.tensor([0.3, 0.8]).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step() -> Tensor:
        optimizer.zero_grad()
        mixed = times[:, None, None, None].sqrt() * images + (1 - times)[:, None, None, None].sqrt() * noise
        loss = F.mse_loss(net(mixed, times), noise)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


MODELS: dict[str, Callable[..., Step]] = {"gpt2": gpt2, "resnet": resnet, "unet": unet}
