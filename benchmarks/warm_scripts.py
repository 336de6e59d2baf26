"""Small training scripts in a new process whose kernels are all in the cache: what a second run of a script costs.

Each script runs in three processes: one on `tiny` that fills the cache, one on `tiny` that is measured, and one on
torch CPU. Times are process times of the whole training without the imports, so they contain every first call; `step`
is the median of the last half of the steps. `drift` is the largest relative difference of a number that both log.

Usage: ``python benchmarks/warm_scripts.py [SCRIPT ...] [--steps 30] [--profile SCRIPT]``
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

Script = Callable[[str], Iterator[float]]
"""A training script on a device, which yields a number that it logs after each step."""


def lstm(device: str) -> Iterator[float]:
    """A character model: an LSTM over 12 characters."""
    embed, cells, head = nn.Embedding(20, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 20)
    model = nn.ModuleList([embed, cells, head]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    text = torch.randint(20, (512,))
    while True:
        starts = torch.randint(490, (8,))
        x = torch.stack([text[i : i + 12] for i in starts]).to(device)
        y = torch.stack([text[i + 1 : i + 13] for i in starts]).to(device)
        out, _ = cells(embed(x))
        loss = F.cross_entropy(head(out).reshape(-1, 20), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def seq2seq(device: str) -> Iterator[float]:
    """A GRU encoder, and a decoder of GRU cells with attention, which reverses sequences of changing length."""
    embed, encoder, cell, head = (
        nn.Embedding(12, 16),
        nn.GRU(16, 24, batch_first=True),
        nn.GRUCell(40, 24),
        nn.Linear(24, 12),
    )
    model = nn.ModuleList([embed, encoder, cell, head]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(1 << 30):
        length = 4 + step % 3
        x = torch.randint(2, 12, (8, length))
        x, y = x.to(device), x.flip(1).to(device)
        memory, hidden = encoder(embed(x))
        state, token = hidden[0], torch.zeros(8, dtype=torch.long, device=device)
        loss = torch.zeros((), device=device)
        for t in range(length):
            weights = torch.softmax((memory @ state.unsqueeze(2)).squeeze(2), 1)
            context = (weights.unsqueeze(1) @ memory).squeeze(1)
            state = cell(torch.cat([embed(token), context], 1), state)
            loss = loss + F.cross_entropy(head(state), y[:, t])
            token = y[:, t]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item() / length


def vae(device: str) -> Iterator[float]:
    """A variational autoencoder whose noise comes from the CPU, so that both devices see the same."""
    encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16)).to(device)
    decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64)).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    data = torch.rand(256, 64)
    while True:
        for batch in data.split(64)[:3]:
            x = batch.to(device)
            mean, log_variance = encoder(x).chunk(2, dim=1)
            z = mean + torch.exp(0.5 * log_variance) * torch.randn(mean.shape).to(device)
            reconstruction = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
            divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
            loss = reconstruction + divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield loss.item() / 64


def many_losses(device: str) -> Iterator[float]:
    """Eighteen losses of one output, each logged by itself."""
    model = nn.Linear(10, 6).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pairs: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss,
        lambda out, y: F.cross_entropy(out, y.argmax(1)), lambda out, y: F.nll_loss(out.log_softmax(1), y.argmax(1)),
        lambda out, y: F.kl_div(out.log_softmax(1), y.softmax(1), reduction="batchmean"),
        lambda out, y: F.binary_cross_entropy(out.sigmoid(), y.sigmoid()),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y.sigmoid()),
        lambda out, y: F.poisson_nll_loss(out, y.abs()),
        lambda out, y: F.gaussian_nll_loss(out, y, torch.ones_like(y)),
        lambda out, y: F.soft_margin_loss(out, y.sign()),
        lambda out, y: F.multi_margin_loss(out, y.argmax(1)),
        lambda out, y: F.multilabel_soft_margin_loss(out, (y > 0).float()),
        lambda out, y: F.cosine_embedding_loss(out, y, torch.ones(len(y), device=y.device)),
        lambda out, y: F.hinge_embedding_loss(out, y.sign()),
        lambda out, y: F.margin_ranking_loss(out[:, 0], y[:, 0], y[:, 1].sign()),
        lambda out, y: F.triplet_margin_loss(out, y, y.flip(0)),
    ]  # fmt: skip
    x, y = torch.randn(16, 10).to(device), torch.randn(16, 6).to(device)
    while True:
        total = 0.0
        for function in pairs:
            optimizer.zero_grad()
            loss = function(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        yield total


def gan(device: str) -> Iterator[float]:
    """A generator and a discriminator with two optimizers, both losses logged."""
    make = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2)).to(device)
    judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
    for_make, for_judge = (torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.999)) for m in (make, judge))
    ones, zeros = torch.ones(32, 1, device=device), torch.zeros(32, 1, device=device)
    while True:
        real, noise = torch.randn(32, 2).to(device) * 0.5 + 1, torch.randn(32, 4).to(device)
        fake = make(noise)
        wrong = F.binary_cross_entropy_with_logits
        loss = wrong(judge(real), ones) + wrong(judge(fake.detach()), zeros)
        for_judge.zero_grad()
        loss.backward()
        for_judge.step()
        other = wrong(judge(fake), ones)
        for_make.zero_grad()
        other.backward()
        for_make.step()
        yield loss.item() + other.item()


def policy(device: str) -> Iterator[float]:
    """PPO on a cart that must stay near zero: an action read for each move, then four epochs of minibatches."""
    actor = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
    random = torch.Generator().manual_seed(1)
    while True:
        states, actions, rewards, at, speed = [], [], [], 1.0, 0.0
        for _ in range(16):
            state = torch.tensor([at, speed])
            with torch.no_grad():
                chance = actor(state.to(device)).softmax(0).cpu()
            action = int(torch.multinomial(chance, 1, generator=random))
            speed += 0.1 if action else -0.1
            at += speed
            states.append(state)
            actions.append(action)
            rewards.append(-abs(at))
        x, a = torch.stack(states).to(device), torch.tensor(actions, device=device)
        returns: list[float] = []
        total = 0.0
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        r = torch.tensor(returns, device=device)
        with torch.no_grad():
            before = actor(x).log_softmax(1).gather(1, a[:, None])[:, 0]
            advantage = r - critic(x)[:, 0]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        last = 0.0
        for _ in range(2):
            for rows in torch.arange(16).split(8):
                i = rows.to(device)
                logits = actor(x[i]).log_softmax(1)
                ratio = (logits.gather(1, a[i][:, None])[:, 0] - before[i]).exp()
                gain = torch.min(ratio * advantage[i], ratio.clamp(0.8, 1.2) * advantage[i]).mean()
                entropy = -(logits.exp() * logits).sum(1).mean()
                loss = -gain + 0.5 * F.mse_loss(critic(x[i])[:, 0], r[i]) - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
                optimizer.step()
                last = loss.item()
        yield last


class Block(nn.Module):
    """A transformer block with a key-value cache."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The block's output, and its keys and values so far."""
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None and x.shape[1] > 1)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x)), (k, v)


def decoding(device: str) -> Iterator[float]:
    """Greedy decoding of eight tokens with a key-value cache that grows by concatenation."""
    embed, blocks, head = nn.Embedding(20, 16), nn.ModuleList([Block(16) for _ in range(2)]), nn.Linear(16, 20)
    nn.ModuleList([embed, blocks, head]).to(device)
    while True:
        tokens = torch.randint(20, (1, 3))
        with torch.no_grad():
            caches: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(blocks)
            new, total = tokens.to(device), 0.0
            for _ in range(8):
                x = embed(new)
                for i, block in enumerate(blocks):
                    x, caches[i] = block(x, caches[i])
                logits = head(x[:, -1])
                new = logits.argmax(-1, keepdim=True)
                total += float(logits.max()) + int(new)
        yield total


def transformer(device: str) -> Iterator[float]:
    """A small GPT with weight decay, a warm-up of the learning rate and gradient accumulation."""
    embed, blocks, head = nn.Embedding(20, 32), nn.ModuleList([Block(32) for _ in range(2)]), nn.Linear(32, 20)
    model = nn.ModuleList([embed, blocks, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    while True:
        optimizer.zero_grad()
        total = 0.0
        for _ in range(2):
            tokens = torch.randint(20, (4, 17)).to(device)
            x = embed(tokens[:, :-1])
            for block in blocks:
                x, _ = block(x)
            loss = F.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten()) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        schedule.step()
        yield total


def convnet(device: str) -> Iterator[float]:
    """A convolutional net with batch norm and dropout-free augmentation; loss and accuracy logged."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 5),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    while True:
        x, y = torch.randn(8, 1, 12, 12).to(device), torch.randint(5, (8,)).to(device)
        if torch.rand(()) < 0.5:
            x = x.flip(3)
        out = model(x)
        loss = F.cross_entropy(out, y, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item() + (out.argmax(1) == y).sum().item()


def graph_net(device: str) -> Iterator[float]:
    """A graph network: messages along edges, added up at their targets."""
    first, second = nn.Linear(8, 16).to(device), nn.Linear(16, 3).to(device)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
    source, target = torch.randint(30, (2, 90)).to(device)
    x, y, mask = torch.randn(30, 8).to(device), torch.randint(3, (30,)).to(device), (torch.rand(30) < 0.6).to(device)
    degree = torch.zeros(30, device=device).index_add_(0, target, torch.ones(90, device=device)).clamp(min=1)
    while True:
        h = first(x)
        h = torch.zeros_like(h).index_add_(0, target, h[source]) / degree[:, None]
        h = second(h.relu())
        out = torch.zeros_like(h).scatter_add_(0, target[:, None].expand(-1, 3), h[source])
        loss = F.cross_entropy(out[mask], y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def line_search(device: str) -> Iterator[float]:
    """Curve fitting by LBFGS with the strong Wolfe line search, which reads numbers at every turn."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x = torch.linspace(-1, 1, 32)[:, None]
    x, y = x.to(device), (3 * x).sin().to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    while True:
        yield optimizer.step(closure).item()  # type: ignore


def meta_learning(device: str) -> Iterator[float]:
    """MAML: a gradient through two steps of gradient descent, for changing tasks."""
    shapes = ((16, 1), (16,), (1, 16), (1,))
    weights = [(torch.randn(s) * 0.3).to(device).requires_grad_() for s in shapes]
    optimizer = torch.optim.Adam(weights, lr=1e-2)

    def predict(x: torch.Tensor, w: list[torch.Tensor]) -> torch.Tensor:
        return F.linear(torch.tanh(F.linear(x, w[0], w[1])), w[2], w[3])

    while True:
        phase, x = float(torch.rand(())), torch.rand(2, 10, 1) * 4 - 2
        y = (x + phase).sin().to(device)
        x = x.to(device)
        fast = list(weights)
        for _ in range(2):
            inner = F.mse_loss(predict(x[0], fast), y[0])
            slopes = torch.autograd.grad(inner, fast, create_graph=True)
            fast = [w - 0.1 * g for w, g in zip(fast, slopes, strict=True)]
        loss = F.mse_loss(predict(x[1], fast), y[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


SCRIPTS: dict[str, Script] = {
    f.__name__: f
    for f in (
        lstm, seq2seq, vae, many_losses, gan, policy, decoding, transformer, convnet, graph_net, line_search,
        meta_learning,
    )
}  # fmt: skip


def train(name: str, device: str, steps: int, profile: bool = False) -> None:
    """Run one script in this process, and print its times and losses as JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if device == "tiny":
        import conformance.backend as backend
    profiler = cProfile.Profile()
    # torch imports a part of its compiler with the first optimizer, on any device.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0).step()
    torch.manual_seed(0)
    spent, losses = [], []
    before = time.process_time()
    for step, loss in zip(range(steps), SCRIPTS[name](device)):
        if profile and step == steps // 2:
            profiler.enable()
        losses.append(loss)
        now = time.process_time()
        spent.append(now - before)
        before = now
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(45)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumtime").print_stats(70)
    counters = backend.stats() if device == "tiny" else {}
    counts = {k: counters.get(k, 0) for k in ("schedules", "replayed", "scheduled", "loaded", "kernels")}
    print(json.dumps({"spent": spent, "losses": losses, "counts": counts}))


def run(name: str, device: str, steps: int) -> dict[str, list[float]]:
    """Times and losses of a script in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--device", device, "--steps", str(steps)]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, list[float]] = json.loads(result.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "scripts", nargs="*", choices=SCRIPTS, metavar="SCRIPT", help=f"of {', '.join(SCRIPTS)} (default: all)"
    )
    parser.add_argument("--steps", type=int, default=30, help="training steps of each script")
    parser.add_argument("--filled", action="store_true", help="the cache is filled by an earlier run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="tiny", help=argparse.SUPPRESS)
    parser.add_argument("--profile", metavar="SCRIPT", help="profile the last half of one script on tiny instead")
    args = parser.parse_args()
    if args.profile or args.one:
        train(args.profile or args.one, args.device, args.steps, bool(args.profile))
        return
    names = (
        "script",
        "tiny s",
        "CPU s",
        "ratio",
        "step ms",
        "CPU ms",
        "ratio",
        "schedules",
        "replayed",
        "loaded",
        "new",
        "drift",
    )
    table = Table(*names, title=f"{args.steps} steps of training in a new process, kernels cached")
    ratios = []
    for name in args.scripts or SCRIPTS:
        if not args.filled:
            run(name, "tiny", args.steps)
        ours, theirs = run(name, "tiny", args.steps), run(name, "cpu", args.steps)
        half = args.steps // 2
        whole = sum(ours["spent"]), sum(theirs["spent"])
        step = [statistics.median(one["spent"][half:]) * 1e3 for one in (ours, theirs)]
        drift = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours["losses"], theirs["losses"], strict=True))
        ratios.append((whole[0] / whole[1], step[0] / step[1]))
        counts = [str(ours["counts"][k]) for k in ("schedules", "replayed", "loaded", "scheduled")]  # type: ignore[call-overload]
        row = [
            f"{whole[0]:.2f}",
            f"{whole[1]:.3f}",
            f"{ratios[-1][0]:.0f}",
            f"{step[0]:.1f}",
            f"{step[1]:.2f}",
            f"{ratios[-1][1]:.0f}",
        ]
        table.add_row(name, *row, *counts, f"{drift:.0e}")
        print(name, *row, *counts, f"{drift:.0e}", file=sys.stderr, flush=True)
    means = [math.exp(statistics.mean(math.log(r[i]) for r in ratios)) for i in (0, 1)]
    table.add_row("geometric mean", "", "", f"{means[0]:.0f}", "", "", f"{means[1]:.0f}", "", "", "", "", "")
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
