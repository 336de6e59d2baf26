"""A network and training loop in the manner of hlb-CIFAR10, on synthetic images, on tiny as on the CPU.

The published recipe has these parts: a whitening convolution that is computed from the data and frozen; three residual
groups of convolution, max-pooling, batch normalization and GELU; a global maximum; a scaled linear head. Images are
shifted and mirrored at random, and labels are smoothed. SGD uses Nesterov momentum, decay on weights but not on biases,
and a one-cycle rate. A moving average of the weights is tested at the end. Widths are small here, and the structure is
complete. `STEPS=n` changes the number of steps from five.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import conformance.backend  # noqa: F401 - registers the device

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = int(os.environ.get("STEPS", "5"))
BATCH, SIDE, CLASSES = 8, 16, 10


def made_images(count: int) -> tuple[Tensor, Tensor]:
    """Return waves with noise whose direction and colour depend on the class, so that the network can learn them."""
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(0, CLASSES, (count,), generator=random)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    angle = labels.float() * (torch.pi / CLASSES)
    wave = torch.sin(6 * (angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y))
    colour = torch.stack([angle.cos(), angle.sin(), 0.5 * torch.ones(count)], 1)
    noise = 0.3 * torch.randn(count, 3, SIDE, SIDE, generator=random)
    return wave[:, None] * colour[:, :, None, None] + noise, labels


def whitening_filters(images: Tensor) -> Tensor:
    """Return the eigenvectors of 2x2 patches, each divided by the root of its eigenvalue: (12, 3, 2, 2)."""
    patches = F.unfold(images, 2).transpose(1, 2).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    return (vectors / (values + 1e-2).sqrt()).T.reshape(12, 3, 2, 2)


class Group(nn.Module):
    """A block that halves the image and widens it, followed by a convolution with a residual connection."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, padding=1, bias=False)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(wide, momentum=0.5), nn.BatchNorm2d(wide, momentum=0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first_norm(F.max_pool2d(self.first(x), 2)))
        return x + F.gelu(self.second_norm(self.second(x)))


class Network(nn.Module):
    """Whitening, its result with both signs, three groups, the maximum over the image, and the head."""

    def __init__(self, filters: Tensor) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 12, 2, bias=False)
        self.whiten.weight = nn.Parameter(filters, requires_grad=False)
        self.groups = nn.Sequential(Group(24, 8), Group(8, 12), Group(12, 16))
        self.head = nn.Linear(16, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.whiten(F.pad(x, (1, 0, 1, 0))))
        x = self.groups(torch.cat([x, -x], 1))
        return self.head(x.amax((2, 3))) / 9


def augmented(images: Tensor) -> Tensor:
    """Return a batch that is shifted by up to two pixels, with some images mirrored."""
    down, right = torch.randint(0, 5, (2,)).tolist()
    shifted = F.pad(images, (2, 2, 2, 2), mode="reflect")[..., down : down + SIDE, right : right + SIDE]
    mirrored = torch.rand(len(images)).to(images.device) < 0.5
    return torch.where(mirrored[:, None, None, None], shifted.flip(-1), shifted)


def trained(device: str) -> tuple[Tensor, Tensor]:
    """Return the losses of all steps, and the averaged network's outputs for eight images."""
    images, labels = made_images(64)
    torch.manual_seed(0)
    net = Network(whitening_filters(images)).to(device, memory_format=torch.channels_last)
    images, labels = images.to(device), labels.to(device)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    trainable = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p in trainable if p.dim() > 1], "weight_decay": 5e-4},
            {"params": [p for p in trainable if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=0.1, momentum=0.85, nesterov=True,
    )  # fmt: skip
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.2, total_steps=max(STEPS, 2), pct_start=0.25, cycle_momentum=False
    )
    order = torch.randperm(len(images)).to(device)
    losses = []
    for step in range(STEPS):
        chosen = order[torch.arange(step * BATCH, (step + 1) * BATCH).to(device) % len(order)]
        net.train()
        loss = F.cross_entropy(net(augmented(images[chosen])), labels[chosen], label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        average.update_parameters(net)
        losses.append(loss.detach())
    average.eval()
    with torch.no_grad():
        answers = average(images[:8])
    return torch.stack(losses).cpu(), answers.cpu()


def test_training() -> None:
    """The losses of every step and the outputs of the averaged network equal the CPU's."""
    torch.set_num_threads(1)
    expected, actual = trained("cpu"), trained("tiny")
    assert len(set(expected[0].tolist())) == STEPS
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[1], expected[1])
