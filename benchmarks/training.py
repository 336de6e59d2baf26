"""Time and memory of a training step and of inference on tiny, torch CPU and tinygrad, all in one run.

Each way runs in a separate process: tiny eager; tiny with the loss and the optimizer's step compiled
(`torch.compile(backend="tiny")`); tiny with the whole step, `backward` included, compiled as one graph; torch CPU;
plain tinygrad; tinygrad with TinyJit; with ``--cuda`` torch on the GPU, by a Python whose torch supports it; and with
``--peer`` tinygrad's own torch backend from a checkout. tinygrad's variable ``DEV`` names the device of tiny and
tinygrad; with ``DEV=NULL NULL_ALLOW_COPYOUT=1`` no kernel runs, and the host's part is left. The networks, batch 32: an
MLP 784-128-128-10, a batch-norm CNN on 28x28 images, and a GPT with two layers. The ratios are the meaningful figures.
Times are medians of the steps after a dozen; memory is the most that tinygrad's buffers held in a step.

Usage: ``python benchmarks/training.py [--steps N] [--rounds N] [--net NAME] [--optimizer NAME] [--peer PATH]``
       ``python benchmarks/training.py --flat 2000`` for the deciles of time and memory over 2000 eager steps
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

WARM_UP = 12
BATCH, CONTEXT, VOCABULARY, WIDTH = 32, 16, 64, 32

Step = Callable[[], float]


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a layer norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, context, width) to the same shape; four heads, each position attends to itself and earlier ones."""
        parts = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) / (WIDTH // 4) ** 0.5
        later = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(later, float("-inf")).softmax(-1) @ parts[2]
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.norms[1](x))


class GPT(nn.Module):
    """Embeddings of tokens and positions, two blocks, logits for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, context) tokens to (batch * context, vocabulary) logits."""
        places = torch.arange(CONTEXT, device=x.device)
        return self.blocks(self.tokens(x) + self.places(places)).flatten(0, 1)


def mlp() -> nn.Module:
    """784-128-128-10"""
    layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    """Two convolutions with batch-norm, max-pool, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 10),
    )  # fmt: skip


NETS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "gpt": GPT}
OPTIMIZERS: dict[str, dict[str, Any]] = {"adam": {}, "sgd": {"lr": 0.01, "momentum": 0.9}}
# Compiled part of a tiny step: nothing, the loss and the optimizer's step separately, or the step as one graph.
TINY = ("tiny", "tiny compiled", "tiny compiled whole")
WAYS = (*TINY, "torch CPU", "tinygrad", "tinygrad TinyJit")
CUDA = "torch CUDA"


def torch_steps(net_name: str, optimizer_name: str, device: str, way: str = "") -> tuple[Step, Step]:
    """(training step, inference) on a torch device; each reads the loss, or the sum of the outputs."""
    compiled, whole = "compiled" in way, "whole" in way
    torch.manual_seed(0)
    net = NETS[net_name]().to(device)
    if net_name == "gpt":
        x, y = torch.randint(0, VOCABULARY, (BATCH, CONTEXT)), torch.randint(0, VOCABULARY, (BATCH * CONTEXT,))
    else:
        x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    x, y = x.to(device), y.to(device)
    options = {**OPTIMIZERS[optimizer_name], **({"capturable": True} if compiled and optimizer_name == "adam" else {})}
    optimizer = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer_name](net.parameters(), **options)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(x), y)

    def outputs(x: torch.Tensor) -> torch.Tensor:
        return net(x).sum()

    advance = optimizer.step
    if compiled:
        outputs = torch.compile(outputs, backend="tiny")
    if compiled and not whole:
        loss_of, advance = (torch.compile(f, backend="tiny") for f in (loss_of, advance))

    def train() -> float:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        advance()
        return float(loss.item())

    if whole:
        step = whole_step(list(net.parameters()), loss_of, optimizer_name)

        def train() -> float:
            return float(step(x, y).item())

    def infer() -> float:
        with torch.no_grad():
            return float(outputs(x).item())

    return train, infer


def whole_step(
    parameters: list[nn.Parameter], loss_of: Callable[..., torch.Tensor], optimizer_name: str
) -> Callable[..., torch.Tensor]:
    """Loss, gradients and update as one graph, by torch's functional optimizers: the optimizer classes break graphs."""
    values: list[torch.Tensor] = list(parameters)
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    counts = [torch.zeros((), device=p.device) for p in parameters]
    off = {"weight_decay": 0.0, "maximize": False}

    def update(gradients: list[torch.Tensor]) -> None:
        if optimizer_name == "adam":
            options: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "lr": 1e-3, "eps": 1e-8, "amsgrad": False, **off}
            adam(values, gradients, first, second, [], counts, foreach=True, capturable=True, **options)
        else:
            options = {"momentum": 0.9, "lr": 0.01, "dampening": 0.0, "nesterov": False, **off}
            sgd(values, gradients, [*first], foreach=True, **options)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            update(list(gradients))
        return loss.detach()

    torch._dynamo.config.trace_autograd_ops = True
    return torch.compile(step, backend="tiny", fullgraph=True)


def tinygrad_gpt() -> list[Any]:
    """Layers of `GPT` in tinygrad."""
    from tinygrad import Tensor
    from tinygrad import nn as tnn

    class Layer:
        def __init__(self) -> None:
            self.norms = [tnn.LayerNorm(WIDTH) for _ in range(2)]
            self.qkv, self.out = tnn.Linear(WIDTH, 3 * WIDTH), tnn.Linear(WIDTH, WIDTH)
            self.feed: list[Any] = [tnn.Linear(WIDTH, 4 * WIDTH), lambda t: t.gelu(), tnn.Linear(4 * WIDTH, WIDTH)]

        def __call__(self, x: Any) -> Any:
            parts = self.qkv(self.norms[0](x)).reshape(*x.shape[:2], 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
            seen = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(*x.shape))
            return x + self.norms[1](x).sequential(self.feed)

    class Embeddings:
        def __init__(self) -> None:
            self.tokens, self.places = tnn.Embedding(VOCABULARY, WIDTH), tnn.Embedding(CONTEXT, WIDTH)

        def __call__(self, x: Any) -> Any:
            return self.tokens(x) + self.places(Tensor.arange(CONTEXT))

    head = [tnn.LayerNorm(WIDTH), tnn.Linear(WIDTH, VOCABULARY), lambda t: t.flatten(0, 1)]
    return [Embeddings(), Layer(), Layer(), *head]


def tinygrad_steps(net_name: str, optimizer_name: str, jit: bool) -> tuple[Step, Step]:
    """(training step, inference) in tinygrad."""
    from tinygrad import Tensor, TinyJit
    from tinygrad import nn as tnn
    from tinygrad.helpers import Context

    Tensor.manual_seed(0)
    layers: list[Any]
    shape: tuple[int, ...] = (BATCH, 1, 28, 28)
    classes = 10
    if net_name == "gpt":
        layers, shape, classes = tinygrad_gpt(), (BATCH, CONTEXT), VOCABULARY
    elif net_name == "cnn":
        first = [tnn.Conv2d(1, 16, 3), tnn.BatchNorm(16), Tensor.relu, Tensor.max_pool2d]
        second = [tnn.Conv2d(16, 32, 3), tnn.BatchNorm(32), Tensor.relu, Tensor.max_pool2d]
        layers = [*first, *second, lambda t: t.flatten(1), tnn.Linear(32 * 5 * 5, 10)]
    else:
        linear = tnn.Linear
        layers = [lambda t: t.flatten(1), linear(784, 128), Tensor.relu, linear(128, 128), Tensor.relu, linear(128, 10)]
    parameters = tnn.state.get_parameters(layers)
    optimizer: Any = tnn.optim.Adam(parameters) if optimizer_name == "adam" else tnn.optim.SGD(parameters, 0.01, 0.9)
    x = Tensor.randint(*shape, high=VOCABULARY) if net_name == "gpt" else Tensor.randn(*shape)
    y = Tensor.randint(BATCH * (CONTEXT if net_name == "gpt" else 1), high=classes)
    Tensor.realize(x, y)

    def train() -> Any:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = x.sequential(layers).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optimizer.schedule_step())

    def infer() -> Any:
        return x.sequential(layers).sum().realize()

    run_train, run_infer = (TinyJit(f) if jit else f for f in (train, infer))
    return (lambda: float(run_train().item())), (lambda: float(run_infer().item()))


def prepare(way: str, net: str, optimizer: str, peer: str | None) -> tuple[Step, Step]:
    """(training step, inference) of a way; imports happen here, so that they do not affect another way."""
    if way.startswith("torch"):
        return torch_steps(net, optimizer, way.removeprefix("torch ").lower())
    if way.startswith("tinygrad"):
        from conformance.targets.tinygrad_upstream import choose_compiler

        choose_compiler()  # only the compiler: tinygrad is not patched
        return tinygrad_steps(net, optimizer, "TinyJit" in way)
    if way == "peer":
        from conformance.engine.loading import load_target

        load_target(f"tinygrad-upstream:{peer}").prepare()
        return torch_steps(net, optimizer, "tiny")
    import conformance.backend

    assert conformance.backend
    return torch_steps(net, optimizer, "tiny", way)


def held() -> int:
    """Bytes in tinygrad's buffers now; 0 if tinygrad is not loaded."""
    helpers = sys.modules.get("tinygrad.helpers")
    return int(helpers.GlobalCounters.mem_used) if helpers is not None else 0


def peak(step: Step) -> int:
    """Largest number of bytes in tinygrad's buffers during a step; 0 if tinygrad is not loaded."""
    device = sys.modules.get("tinygrad.device")
    if device is None:
        return 0
    most, allocate = held(), device.Buffer.allocate

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal most
        result = allocate(self, *arguments, **options)
        most = max(most, held())
        return result

    device.Buffer.allocate = counted
    try:
        step()
    finally:
        device.Buffer.allocate = allocate
    return most


def measured(
    step: Step, steps: int, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[float, int, float]]:
    """(ms, bytes held, result) of each step after the warm-up."""
    for i in range(WARM_UP + steps):
        start = clock()
        result = step()
        spent = (clock() - start) * 1e3
        if i >= WARM_UP:
            yield spent, held(), result


def one(way: str, net: str, optimizer: str, steps: int, peer: str | None) -> dict[str, float]:
    """Figures of one way."""
    train, infer = prepare(way, net, optimizer, peer)
    first = train()
    kernels = sys.modules["tinygrad.helpers"].GlobalCounters if "tinygrad.helpers" in sys.modules else None
    runs = list(measured(train, steps))
    if not os.environ.get("DEV", "").startswith("NULL"):
        assert runs[-1][2] < first, f"{way} does not learn: {first} to {runs[-1][2]}"
    before = kernels.kernel_count if kernels else 0
    train()
    count = (kernels.kernel_count if kernels else 0) - before
    megabytes = peak(train) / 1e6
    times = [ms for ms, _, _ in measured(infer, steps)]
    return {
        "train": statistics.median(ms for ms, _, _ in runs), "infer": statistics.median(times),
        "kernels": count, "megabytes": megabytes,
    }  # fmt: skip


def deciles(net: str, steps: int) -> dict[str, float]:
    """Ratio of the largest to the smallest decile of time and of bytes held, over the eager steps of tiny.

    A decile is the median of a tenth of the steps. Time is the processor time of this process (all threads), which
    other load on the machine affects less.
    """
    train, _ = prepare("tiny", net, "adam", None)
    runs = list(measured(train, steps, time.process_time))
    tenth = len(runs) // 10
    parts = [runs[i * tenth : (i + 1) * tenth] for i in range(10)]
    times = [statistics.median(ms for ms, _, _ in part) for part in parts]
    sizes = [statistics.median(b for _, b, _ in part) for part in parts]
    return {"time": max(times) / min(times), "memory": max(sizes) / min(sizes), "last to first": times[-1] / times[0]}


def apart(*arguments: str, python: str = "") -> dict[str, float]:
    """Run one measurement of this file in a separate process, or with another Python and its own packages."""
    # Without DEV tiny computes on the CPU, but plain tinygrad on any GPU or OpenCL driver that it finds.
    device = {**os.environ, "DEV": os.environ.get("DEV") or "CPU"}
    if python:
        device = {
            key: value for key, value in device.items() if key not in ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
        }
    command = [python or sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=device)
    return json.loads(done.stdout.splitlines()[-1])


def middle(rounds: list[dict[str, dict[str, float]]], way: str, figure: str, to: str = "") -> float:
    """Median of the rounds; with `to`, of the ratio to the figure of that way in the same round."""
    return statistics.median(times[way][figure] / (times[to][figure] if to else 1) for times in rounds)


def main() -> None:
    """Print one table for each network and optimizer."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each way (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="how often, all ways in turn; medians are printed")
    parser.add_argument("--net", choices=NETS, action="append", help="only this network")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="only this optimizer")
    parser.add_argument("--peer", metavar="PATH", help="a checkout of tinygrad, whose torch backend is measured too")
    parser.add_argument("--cuda", metavar="PYTHON", default="", help="a Python whose torch is measured on CUDA too")
    parser.add_argument("--flat", type=int, metavar="STEPS", help="only whether eager steps stay as they are")
    parser.add_argument("--way", choices=(*WAYS, CUDA, "peer"), help="only this way, as JSON")
    args = parser.parse_args()
    nets, optimizers = args.net or list(NETS), args.optimizer or list(OPTIMIZERS)
    if args.way:
        print(json.dumps(one(args.way, nets[0], optimizers[0], args.steps, args.peer)))
        return
    if args.flat:
        for net in args.net or ["mlp", "cnn"]:
            tenths = deciles(net, args.flat)
            print(f"{net}: largest to smallest decile of {args.flat} steps: {tenths}")
        return
    console = Console(width=None if sys.stdout.isatty() else 110)
    peer = ["--peer", args.peer] if args.peer else []
    for net in nets:
        for optimizer in optimizers:
            ways = [*WAYS, *[CUDA] * bool(args.cuda), *["peer"] * bool(peer)]
            settings = ["--net", net, "--optimizer", optimizer, "--steps", str(args.steps), *peer]
            rounds = [
                {way: apart("--way", way, *settings, python=args.cuda if way == CUDA else "") for way in ways}
                for _ in range(args.rounds)
            ]
            reference, jit = "tinygrad", "tinygrad TinyJit"
            table = Table(
                "way", "ms a step", f"to {reference}", f"to {jit}", "kernels", "MB", "ms inference", f"to {jit}",
                title=f"{net}, batch {BATCH}, {optimizer}",
            )  # fmt: skip
            for way in ways:
                figures = ("train", "kernels", "megabytes", "infer")
                ms, kernels, megabytes, infer = (middle(rounds, way, figure) for figure in figures)
                ratios = [middle(rounds, way, "train", to) for to in (reference, jit)]
                ratios.append(middle(rounds, way, "infer", jit))
                to_reference, to_jit, inference = (f"{ratio:.2f}" for ratio in ratios)
                table.add_row(
                    way, f"{ms:.2f}", to_reference, to_jit, f"{kernels:.0f}", f"{megabytes:.1f}", f"{infer:.2f}",
                    inference,
                )  # fmt: skip
            console.print(table)


if __name__ == "__main__":
    main()
