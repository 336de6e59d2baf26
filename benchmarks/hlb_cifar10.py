"""The training of hlb-CIFAR10 on synthetic images: tiny, torch CPU and plain tinygrad in one run.

    python benchmarks/hlb_cifar10.py [--steps N] [--batch N] [--dtype float16] [--way NAME ...]

The script follows the published recipe (version 0.7 of github.com/tysam-code/hlb-CIFAR10), and the device is the only
difference between tiny and torch CPU. A frozen convolution whitens the images with the eigenvectors of their patches.
Three groups follow, each with two convolutions, max-pooling, batch norms with momentum 0.4 and GELU. The convolutions
start near the identity. The head multiplies the maximum over the image by a matrix and by 1/9. The memory format is
channels_last. The images of each epoch are cropped and mirrored at random, and small squares come from other images.
The loss is the sum over the batch of cross-entropy with label smoothing 0.2. Two optimizers, one for biases, apply SGD
with Nesterov momentum and decay at linear one-cycle rates. Every fifth step an average of the weights takes in the
weights and replaces them. After each epoch, the network and the average classify the test images and their mirror
images.

The recipe has 12.1 epochs. `--epochs` is 1 here, so that one epoch has the whole schedule. `--dtype float32` is the
default, since float16 losses differ between correct devices. The images are random, and their patches have distinct
eigenvalues, as in CIFAR-10. Each way runs in a separate process and prints the loss of every step. In plain tinygrad
the network is written again, starts from the same weights, and gets the batches of torch CPU.

A step's time includes forward, backward, both optimizers, the average, and reading the loss. The time before the first
step (whitening and the images of the first epoch) is in the column `start`. `--way "torch CPU, no oneDNN"` shows how
far two sets of torch's own convolutions differ: 1.3e-4 of the loss in six steps of batch 128. The exit code is 1 if a
float32 loss of the first six steps on tiny differs by more than 1e-3.

A whole epoch of 48 steps fits into ten minutes with `--images 3072 --batch 64 --test-images 512 --test-batch 256`. On
2026-11-27 the losses on tiny differed by 1.3 % of torch CPU's on average and by 5.2 % at most, and those of torch
without oneDNN by 0.7 % and 2.6 %; after one step, all agreed to 1e-6. A step took 0.9 processor seconds on torch CPU,
6 on tiny and 33 in plain tinygrad. With the published batch of 1024, a step on tiny takes three minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10
PATCH, SPLIT = 2, 5000  # side of the whitening patches, and images for each estimate of their eigenvectors
PAD = 2  # pixels by which a crop may shift
MOMENTUM, SMOOTHING = 0.85, 0.2
RATE, BIAS_FACTOR, DECAY = 1.525 / 512, 64, 6.687e-4
RISE, FINAL = 0.23, 0.07  # share of the steps before the highest rate, and the last rate as a share of the highest
LOSS_SCALE = 1 / 32
SQUARE, SQUARE_EPOCHS = 3, 6  # side of the exchanged squares, and the number of last epochs with them
AVERAGE_EPOCHS, AVERAGE_DECAY, AVERAGE_POWER = 10, 0.95, 3.0
COMPARED, TOLERANCE = 6, 1e-3  # steps, and the largest relative difference of their float32 losses


@dataclass(frozen=True)
class Recipe:
    """Settings of a training; the defaults are the published ones, except for `epochs` and `dtype`."""

    images: int = 50_000
    test_images: int = 10_000
    batch: int = 1024
    test_batch: int = 2500
    side: int = 32  # height and width of the images in pixels
    width: int = 64  # channels of the first group; the others have 4 and 8 times as many
    epochs: float = 1.0
    every: int = 5  # steps between two updates of the average
    dtype: str = "float32"
    steps: int = 0  # stop after this number of steps; 0 means all epochs

    @property
    def total_steps(self) -> int:
        """Steps of all epochs, which determine the rates."""
        return math.ceil(self.images // self.batch * self.epochs)


@dataclass
class Run:
    """Losses, seconds and processor seconds of the steps, [loss, accuracy, accuracy of the average] of each whole
    epoch, and the seconds before the first step.
    """

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    tests: list[list[float]] = field(default_factory=list)
    start: float = 0.0

    def add(self, loss: float, since: tuple[float, float]) -> None:
        """Record a step that began at these times."""
        self.losses.append(loss / 512)
        for times, now, begin in zip((self.seconds, self.busy), clocks(), since, strict=True):
            times.append(now - begin)
        words = f"step {len(self.losses)}: loss {self.losses[-1]:.6f}, {self.seconds[-1]:.2f} s"
        print(f"{words}, {self.busy[-1]:.2f} s of processor time", file=sys.stderr, flush=True)


def clocks() -> tuple[float, float]:
    """Return the elapsed and the processor time in seconds."""
    return time.perf_counter(), time.process_time()


def made_images(count: int, side: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 3, side, side) with mean 0 and deviation 1 in each channel, and one-hot labels (count, 10).

    Noise is mixed over the channels and smoothed, differently in each direction, so that all eigenvalues of its patches
    are distinct. The direction and the colour of a wave depend on the class.
    """
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=random)
    mix = torch.tensor([[1.0, 0.6, 0.3], [0.2, 0.7, 0.5], [0.1, 0.2, 0.3]])
    noise = torch.einsum("nchw,cd->ndhw", torch.randn(count, 3, side, side, generator=random), mix)
    noise = noise + 0.8 * noise.roll(1, 3) + 0.4 * noise.roll(2, 3)
    noise = noise + 0.5 * noise.roll(1, 2)
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="ij")
    angle = torch.arange(CLASSES) * (torch.pi / CLASSES)
    wave = torch.sin(6 * (angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y))
    colour = torch.stack([angle.cos(), angle.sin(), torch.full((CLASSES,), 0.5)], 1)
    images = noise + (wave[:, None] * colour[:, :, None, None])[labels]
    deviation, mean = torch.std_mean(images, (0, 2, 3), keepdim=True)
    return (images - mean) / deviation, F.one_hot(labels, CLASSES)


class Norm(nn.BatchNorm2d):
    """Batch norm with a frozen weight."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Group(nn.Module):
    """Two convolutions with batch norm and GELU; the first one widens and is followed by max-pooling."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, padding="same", bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding="same", bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1, self.norm2 = Norm(wide), Norm(wide)

    def forward(self, x: Tensor) -> Tensor:
        """(n, narrow, h, w) to (n, wide, h // 2, w // 2)."""
        x = F.gelu(self.norm1(self.pool(self.conv1(x))))
        return F.gelu(self.norm2(self.conv2(x)))

    def start_near_identity(self) -> None:
        """Add the identity to the first convolution, keep its mean and deviation, and make the second the identity."""
        weight = self.conv1.weight.data
        deviation, mean = torch.std_mean(weight)
        shifted = weight + nn.init.dirac_(torch.empty_like(weight))
        new_deviation, new_mean = torch.std_mean(shifted)
        self.conv1.weight.data = (shifted - new_mean).div_(new_deviation).mul_(deviation).add_(mean)
        nn.init.dirac_(self.conv2.weight)


class Network(nn.Module):
    """The whitening convolution, three groups, the maximum over the image, and the head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        filters = 3 * PATCH**2
        self.whiten = nn.Conv2d(3, filters, PATCH, bias=False)
        widths = (2 * filters, width, 4 * width, 8 * width)
        self.groups = nn.ModuleList(Group(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.head = nn.Linear(widths[-1], CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, side, side) to (n, 10). In evaluation, the mean of the outputs for an image and its mirror image."""
        if not self.training:
            x = torch.cat((x, x.flip(-1)))
        x = F.gelu(self.whiten(x))
        for group in self.groups:
            x = group(x)
        x = x.amax((2, 3)) @ (self.head.weight * (1 / 9)).T
        if not self.training:
            same, mirrored = x.split(len(x) // 2)
            x = 0.5 * same + 0.5 * mirrored
        return x


def whitening(images: Tensor) -> Tensor:
    """Return filters (24, 3, 2, 2): the eigenvectors of the patches, each over the root of its eigenvalue, with both
    signs. They are means over parts of the images. LAPACK's sign of an eigenvector depends on rounding, so the product
    with a fixed direction determines it here.
    """
    values, vectors = [], []
    wide = torch.promote_types(images.dtype, torch.float32)
    direction = torch.randn(3 * PATCH**2, generator=torch.Generator().manual_seed(0)).to(images.device, wide)
    for part in images.split(SPLIT):
        patches = part.unfold(2, PATCH, 1).unfold(3, PATCH, 1).transpose(1, 3).reshape(-1, 3 * PATCH**2).to(wide)
        value, vector = torch.linalg.eigh(torch.cov(patches.t()), UPLO="U")
        vector = vector * torch.sign(direction @ vector)
        values.append(value.flip(0).view(-1, 1, 1, 1))
        vectors.append(vector.t().reshape(-1, 3, PATCH, PATCH).flip(0))
    value, vector = (torch.stack(parts).mean(0).to(images.dtype) for parts in (values, vectors))
    filters = vector / torch.sqrt(value + 1e-2)
    return torch.cat((filters, -filters))


def network(recipe: Recipe, images: Tensor) -> Network:
    """Return the initialized network, on the device of the images (n, 3, side, side) that determine the whitening."""
    net = Network(recipe.width).to(images.device, images.dtype)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        order = torch.randperm(len(images), device=images.device)
        net.whiten.weight.data = whitening(images.index_select(0, order))
        net.whiten.weight.requires_grad = False
        for group in net.groups:
            assert isinstance(group, Group)
            group.start_near_identity()
    return net


def squares(images: Tensor, side: int) -> Tensor:
    """Return masks (n, 1, h, w) of a random square in each image."""
    n, (h, w), even = len(images), images.shape[-2:], int(side % 2 == 0)
    near = []
    for dim, size in enumerate((h, w)):
        centre = torch.empty(n, dtype=torch.long, device=images.device)
        centre.random_(side // 2 - even, size - side // 2 - even)
        shape = (1, 1, h, 1) if dim == 0 else (1, 1, 1, w)
        distance = torch.arange(size, device=images.device).view(shape) - centre.view(-1, 1, 1, 1)
        near.append((distance >= even - side // 2) & (distance <= side // 2))
    return near[0] & near[1]


@torch.no_grad()
def augmented(images: Tensor, targets: Tensor, square: int) -> tuple[Tensor, Tensor]:
    """Return padded images cropped and mirrored at random, and with a square of another image if `square` is not 0."""
    n, side = len(images), images.shape[-1] - 2 * PAD
    images = torch.masked_select(images, squares(images, side)).view(n, 3, side, side)
    images = torch.where(torch.rand_like(images[:, :1, :1, :1]) < 0.5, images.flip(-1), images)
    if square:
        order = torch.randperm(n, device=images.device)
        mask = squares(images, square)
        images = torch.where(mask, images.index_select(0, order), images)
        share = square**2 / side**2
        targets = share * targets.index_select(0, order) + (1 - share) * targets
    return images, targets


@torch.no_grad()
def batches(images: Tensor, targets: Tensor, size: int, share: float = 1.0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield whole batches of a share of the images in random order, in channels_last."""
    order = torch.randperm(len(images), device=images.device)
    if share < 1:
        order = order[: size * round(share * len(images) / size)]
    images = images.to(memory_format=torch.channels_last)
    for i in range(len(order) // size):
        chosen = order[i * size : (i + 1) * size]
        yield images.index_select(0, chosen), targets.index_select(0, chosen)


def optimizers(net: nn.Module, recipe: Recipe) -> list[torch.optim.SGD]:
    """Return the optimizer of the weights and that of the biases."""
    groups: list[list[nn.Parameter]] = [[], []]
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            groups["bias" in name].append(parameter)
    settings = [(RATE, DECAY * recipe.batch), (RATE * BIAS_FACTOR, DECAY * recipe.batch / BIAS_FACTOR)]
    return [
        torch.optim.SGD(group, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=decay, foreach=True)
        for group, (lr, decay) in zip(groups, settings, strict=True)
    ]


def scheduled(optimizer: torch.optim.SGD, recipe: Recipe) -> torch.optim.lr_scheduler.OneCycleLR:
    """Return the rates of an optimizer: linear from almost 0 to the highest rate, and to 0.07 of it."""
    first = 1e16
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=optimizer.param_groups[0]["lr"], total_steps=recipe.total_steps, pct_start=RISE,
        div_factor=first, final_div_factor=1 / (first * FINAL), anneal_strategy="linear", cycle_momentum=False,
    )  # fmt: skip


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the losses (n,) of outputs and soft targets (n, 10)."""
    return F.cross_entropy(outputs, targets, label_smoothing=SMOOTHING, reduction="none")


def total_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum over the batch, scaled as for a batch of 512."""
    return cross_entropy(outputs, targets).mul(LOSS_SCALE * 512 / len(outputs)).sum().div(LOSS_SCALE)


class Average:
    """Moving average of a network's state, which also replaces the state (lookahead)."""

    def __init__(self, net: nn.Module) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module, decay: float) -> None:
        """Move the average towards the network, then the network, without frozen weights, to the average."""
        for mean, (name, new) in zip(self.net.state_dict().values(), net.state_dict().items(), strict=True):
            if new.is_floating_point():
                mean.mul_(decay).add_(new.detach().mul(1 - decay))
                if averaged(name):
                    new.copy_(mean.detach())


def averaged(name: str) -> bool:
    """Whether the average replaces the network's state of this name."""
    return "whiten" not in name and not ("norm" in name and "weight" in name)


def average_decay(step: int, recipe: Recipe) -> float:
    """Return the decay of the average after `step` steps."""
    return AVERAGE_DECAY**recipe.every * (step / recipe.total_steps) ** AVERAGE_POWER


@torch.no_grad()
def tested(net: nn.Module, average: Average | None, images: Tensor, targets: Tensor, size: int) -> list[float]:
    """Return [loss, accuracy, accuracy of the average] on the test images."""
    rows = []
    for x, y in batches(images, targets, size):
        outputs, right = net(x), y.argmax(-1)
        mean = average.net(x) if average else outputs
        hits = [(o.argmax(-1) == right).float().mean() for o in (outputs, mean)]
        rows.append(torch.stack([cross_entropy(outputs, y).float().mean(), *hits]))
    return torch.stack(rows).mean(0).tolist()


def data(recipe: Recipe, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, targets, test images and test targets of the recipe's dtype on a device."""
    dtype = getattr(torch, recipe.dtype)
    pairs = [made_images(count, recipe.side, seed) for seed, count in enumerate((recipe.images, recipe.test_images))]
    images, targets, test_images, test_targets = (t.to(dtype).to(device) for pair in pairs for t in pair)
    return images, targets, test_images, test_targets


def epochs(recipe: Recipe, images: Tensor, targets: Tensor) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Yield the batches of each epoch; images are (n, 3, side, side)."""
    padded = F.pad(images, (PAD,) * 4, "reflect")
    for epoch in range(math.ceil(recipe.epochs)):
        share = 1 if epoch + 1 < recipe.epochs else recipe.epochs - epoch
        square = SQUARE if epoch >= recipe.epochs - SQUARE_EPOCHS else 0
        yield batches(*augmented(padded, targets, square), recipe.batch, share)


def trained(recipe: Recipe, device: str, seed: int = 0) -> Run:
    """Train on a torch device. Random numbers depend on the seed alone."""
    run = Run()
    images, targets, test_images, test_targets = data(recipe, device)
    torch.manual_seed(seed)
    begin = clocks()
    net = network(recipe, images)
    both = optimizers(net, recipe)
    rates = [scheduled(optimizer, recipe) for optimizer in both]
    average, step = None, 0
    for epoch, drawn in enumerate(epochs(recipe, images, targets)):
        net.train()
        for x, y in drawn:
            run.start = run.start or clocks()[0] - begin[0]
            begin = clocks()
            loss = total_loss(net(x), y)
            loss.backward()
            for optimizer, rate in zip(both, rates, strict=True):
                optimizer.step()
                rate.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1
            if epoch >= math.floor(recipe.epochs) - AVERAGE_EPOCHS and step % recipe.every == 0:
                if average is None:
                    average = Average(net)
                else:
                    average.update(net, average_decay(step, recipe))
            run.add(float(loss.item()), begin)
            if step == recipe.steps:
                return run
        net.eval()
        run.tests.append(tested(net, average, test_images, test_targets, recipe.test_batch))
    return run


def tinygrad_forward(w: dict[str, Any], norms: dict[str, Any], x: Any) -> Any:
    """Return the outputs in training of the network with these weights and batch norms."""

    def gelu(t: Any) -> Any:
        return t * 0.5 * (1 + (t / 2**0.5).erf())

    x = gelu(x.conv2d(w["whiten.weight"]))
    for i in range(3):
        x = gelu(norms[f"groups.{i}.norm1"](x.conv2d(w[f"groups.{i}.conv1.weight"], padding=1).max_pool2d(2)))
        x = gelu(norms[f"groups.{i}.norm2"](x.conv2d(w[f"groups.{i}.conv2.weight"], padding=1)))
    return x.max((2, 3)) @ (w["head.weight"] * (1 / 9)).transpose()


def tinygrad_trained(recipe: Recipe, jit: bool, seed: int = 0) -> Run:
    """Train in plain tinygrad, with torch CPU's weights, batches and rates."""
    from conformance.targets.tinygrad_upstream import choose_compiler

    choose_compiler()  # only the compiler: tinygrad is not patched
    from tinygrad import Tensor as TinyTensor
    from tinygrad import TinyJit, dtypes
    from tinygrad import nn as tiny_nn
    from tinygrad.helpers import Context

    run = Run()
    images, targets, _, _ = data(recipe, "cpu")
    torch.manual_seed(seed)
    begin = clocks()
    net = network(recipe, images)
    dtype = {"float64": dtypes.double, "float32": dtypes.float, "float16": dtypes.half}[recipe.dtype]
    w: dict[str, Any] = {
        name: TinyTensor(t.detach().contiguous().numpy()).realize()
        for name, t in net.state_dict().items()
        if t.is_floating_point()
    }
    norms = {}
    for name in [name.removesuffix(".running_mean") for name in w if name.endswith("running_mean")]:
        norms[name] = layer = tiny_nn.BatchNorm(len(w[f"{name}.bias"]), eps=1e-12, momentum=0.4)
        for part in ("weight", "bias", "running_mean", "running_var"):
            setattr(layer, part, w[f"{name}.{part}"])
    both = optimizers(net, recipe)  # of the torch network, for their settings
    rates = [scheduled(optimizer, recipe) for optimizer in both]
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    parts = []
    for optimizer in both:
        (group,) = optimizer.param_groups
        of_group = [w[names[id(parameter)]] for parameter in group["params"]]
        parts.append(tiny_nn.optim.SGD(of_group, 0.0, MOMENTUM, group["weight_decay"], nesterov=True))
    joined = tiny_nn.optim.OptimizerGroup(*parts)

    def advance(x: Any, y: Any) -> Any:
        with Context(TRAINING=1):
            joined.zero_grad()
            smooth = y * (1 - SMOOTHING) + SMOOTHING / CLASSES
            losses = -(tinygrad_forward(w, norms, x).log_softmax() * smooth).sum(-1)
            loss = (losses * (LOSS_SCALE * 512 / recipe.batch)).sum() / LOSS_SCALE
            loss.backward()
            return loss.realize(*joined.schedule_step(), *(w[name] for name in w if "running" in name))

    mean: dict[str, Any] = {}

    def blend(decay: Any) -> None:
        for name, value in w.items():
            mean[name].assign(mean[name] * decay + value * (1 - decay))
            if averaged(name):
                value.assign(mean[name])
        TinyTensor.realize(*mean.values(), *w.values())

    advance, blend = (TinyJit(f) for f in (advance, blend)) if jit else (advance, blend)
    step = 0
    for epoch, drawn in enumerate(epochs(recipe, images, targets)):
        for batch, target in drawn:
            x, y = (TinyTensor(t.contiguous().numpy(), dtype=dtype).realize() for t in (batch, target))
            run.start = run.start or clocks()[0] - begin[0]
            begin = clocks()
            for part, optimizer in zip(parts, both, strict=True):
                part.lr.assign(TinyTensor([optimizer.param_groups[0]["lr"]], dtype=part.lr.dtype)).realize()
            loss = advance(x, y)
            step += 1
            if epoch >= math.floor(recipe.epochs) - AVERAGE_EPOCHS and step % recipe.every == 0:
                if mean:
                    blend(TinyTensor([average_decay(step, recipe)], dtype=dtype).realize())
                else:
                    mean.update({name: value.clone().realize() for name, value in w.items()})
            run.add(float(loss.item()), begin)
            for optimizer, rate in zip(both, rates, strict=True):
                optimizer.step()
                rate.step()
            if step == recipe.steps:
                return run
    return run


def measured(way: str, recipe: Recipe) -> Run:
    """Return the run of a way; imports happen here, so that they do not affect another way."""
    if way.startswith("tinygrad"):
        return tinygrad_trained(recipe, "TinyJit" in way)
    if way == "tiny":
        import conformance.backend

        assert conformance.backend
    if way == "torch CPU, no oneDNN":
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    return trained(recipe, "tiny" if way == "tiny" else "cpu")


WAYS = ("torch CPU", "tiny", "tinygrad TinyJit", "tinygrad", "torch CPU, no oneDNN")


def difference(losses: list[float], expected: list[float]) -> float:
    """Return the largest difference of two loss curves, relative to the expected loss; infinite if a loss is nan."""
    return max(abs(a - b) / abs(b) if a == a else math.inf for a, b in zip(losses, expected, strict=False))


def main() -> int:
    """Print the losses of each way and a table of times and differences. Return 1 if tiny's losses are not torch's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for setting in fields(Recipe):
        kind = {"int": int, "float": float, "str": str}[str(setting.type)]
        parser.add_argument(f"--{setting.name.replace('_', '-')}", type=kind, default=setting.default)
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way; may be repeated")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = vars(parser.parse_args())
    ways, one = args.pop("way") or WAYS[:3], args.pop("one")
    recipe = Recipe(**args)
    if one:
        torch.set_num_threads(1)
        print(json.dumps(asdict(measured(ways[0], recipe))))
        return 0
    runs: dict[str, Run] = {}
    for way in ways:
        print(way, file=sys.stderr, flush=True)
        # Without DEV tiny computes on the CPU, but plain tinygrad on any GPU or OpenCL driver that it finds.
        device = {**os.environ, "DEV": os.environ.get("DEV") or "CPU"}
        command = [sys.executable, "-W", "ignore", __file__, "--one", "--way", way]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in args.items()]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=device)
        runs[way] = Run(**json.loads(done.stdout.splitlines()[-1]))
    reference = runs[ways[0]]
    table = Table(
        "way", "steps", "start s", "ms a step", "processor ms", f"to {ways[0]}", "first loss", "last", "difference",
        title=f"hlb-CIFAR10, batch {recipe.batch}, width {recipe.width}, {recipe.dtype}",
    )  # fmt: skip

    def middle(times: list[float]) -> float:  # ms; the first three steps compile and capture
        return 1e3 * statistics.median(times[3:] or times)

    for way, run in runs.items():
        table.add_row(
            way, str(len(run.losses)), f"{run.start:.1f}", f"{middle(run.seconds):.0f}", f"{middle(run.busy):.0f}",
            f"{middle(run.busy) / middle(reference.busy):.2f}", f"{run.losses[0]:.6f}", f"{run.losses[-1]:.6f}",
            f"{difference(run.losses, reference.losses):.1e}",
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for way, run in runs.items():
        for epoch, (loss, accuracy, mean) in enumerate(run.tests):
            console.print(f"{way}, epoch {epoch}: test loss {loss:.4f}, accuracy {accuracy:.4f}, average {mean:.4f}")
    if recipe.dtype != "float32" or not {"tiny", "torch CPU"} <= runs.keys():
        return 0
    first = difference(runs["tiny"].losses[:COMPARED], runs["torch CPU"].losses[:COMPARED])
    if first > TOLERANCE:
        console.print(f"the first {COMPARED} losses of tiny differ from torch CPU's by {first:.1e}, limit {TOLERANCE}")
    return int(first > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
