"""Where float32 losses of hlb-CIFAR10 come from: steps on tiny and torch CPU against the same steps in float64.

Starts the training of `hlb_cifar10.py`, with few channels, from one set of weights, made on torch CPU or on each device
itself, and prints how far the loss of each step is from that of float64, relative to it. See `docs/notes/drift.md`.

Usage: ``python benchmarks/rounding_drift.py [--seeds 4] [--own-weights]``
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
from typing import Any
from unittest import mock

import hlb_cifar10 as hlb
import torch

WAYS = ("float64", "torch CPU", "torch CPU, no oneDNN", "tiny")
RECIPE = hlb.Recipe(images=192, batch=32, test_images=64, test_batch=64, width=16, steps=6)


def losses(way: str, seed: int, own_weights: bool) -> list[float]:
    """Losses of the first steps; float64 draws the same random numbers, and starts from the same weights."""
    network, augmented, data = hlb.network, hlb.augmented, hlb.data
    device = "tiny" if way == "tiny" else "cpu"
    dtype = torch.float64 if way == "float64" else torch.float32
    if way == "torch CPU, no oneDNN":
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]

    def weights(recipe: hlb.Recipe, images: torch.Tensor) -> Any:
        return network(recipe, images.float() if own_weights else images.float().cpu()).to(device, dtype)

    def augment(padded: torch.Tensor, targets: torch.Tensor, square: int) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(dtype) for t in augmented(padded.float(), targets.float(), square))

    def converted(recipe: hlb.Recipe, on: str) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(dtype) for t in data(recipe, on))

    patched = mock.patch.multiple(hlb, network=weights, augmented=augment, data=converted)
    with patched, contextlib.redirect_stderr(io.StringIO()):
        return hlb.trained(RECIPE, device, seed).losses


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--own-weights", action="store_true", help="each device whitens the images itself")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        torch.set_num_threads(1)
        if args.one == "tiny":
            import conformance.backend

            assert conformance.backend
        print(json.dumps([losses(args.one, seed, args.own_weights) for seed in range(args.seeds)]))
        return
    runs = {}
    for way in WAYS:
        command = [sys.executable, "-W", "ignore", __file__, "--one", way]
        command += ["--seeds", str(args.seeds), *(["--own-weights"] if args.own_weights else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        runs[way] = json.loads(done.stdout.splitlines()[-1])
        for seed, (ours, exact) in enumerate(zip(runs[way], runs["float64"], strict=True)):
            differences = [f"{abs(a - b) / abs(b):.0e}" for a, b in zip(ours, exact, strict=True)]
            print(f"{way:22} seed {seed}: {' '.join(differences)}", flush=True)


if __name__ == "__main__":
    main()
