"""Record the calls of the published models of tests/clients: conformance/sources/models/calls.json.gz.

    python -m scripts.recorded_models                 record all models, and write the file (needs the extra `clients`)
    python -m scripts.recorded_models NAME ...        record these models, and print the counts only

Every model is recorded in several settings: training with SGD and with AdamW, evaluation, batches of other sizes,
longer texts, channels-last images, and generation. Training, evaluation and generation under autocast are a model of
its own, since a device may lack bfloat16.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from conformance.program.recorded import RECORDED
from conformance.sources.models.recorder import CallRecorder
from tests.clients.models import MODELS, Inputs, Model, network

NEW_TOKENS = 3
STEPS = 2
HALF = " bfloat16"
"""End of the name of a model under autocast."""


def rows(inputs: Inputs, count: int) -> Inputs:
    """Return the inputs with another number of rows: the first ones, repeated."""
    return {name: tensor[torch.arange(count) % len(tensor)] for name, tensor in inputs.items()}


def longer(inputs: Inputs) -> Inputs:
    """Return texts of nine tokens; other inputs stay."""
    return {
        name: torch.cat([tensor, tensor[:, :3]], 1) if tensor.dtype is torch.int64 and tensor.dim() == 2 else tensor
        for name, tensor in inputs.items()
    }


def channels_last(inputs: Inputs) -> Inputs:
    """Return images with the channels last in memory."""
    return {
        name: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        for name, tensor in inputs.items()
    }


def sgd(net: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of the tests."""
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)


def adamw(net: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return AdamW with the operators of lists that torch takes on most devices, though not on the CPU."""
    return torch.optim.AdamW(net.parameters(), lr=lr, foreach=True)


def train(model: Model, inputs: Inputs, optimizer: Callable[..., Any] = sgd, last: bool = False) -> None:
    """Make training steps, with the gradients clipped."""
    net: Any = network(model, "cpu", dropout=True).train()
    net = net.to(memory_format=torch.channels_last) if last else net
    steps = optimizer(net, model.lr)
    for step in range(STEPS):
        torch.manual_seed(step)
        steps.zero_grad()
        model.loss(net(**inputs)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        steps.step()


def evaluate(model: Model, inputs: Inputs) -> None:
    """Call the model once, without gradients."""
    net = network(model, "cpu", dropout=False).eval()
    with torch.no_grad():
        net(**inputs)


def generate(model: Model, inputs: Inputs) -> None:
    """Generate tokens greedily and by sampling, with the key-value cache."""
    net: Any = network(model, "cpu", dropout=False).eval()
    for sample in (False, True):
        torch.manual_seed(0)
        net.generate(**{model.prompt: inputs[model.prompt]}, max_new_tokens=NEW_TOKENS, do_sample=sample)


def settings(model: Model, inputs: Inputs, half: bool) -> list[Callable[[], object]]:
    """Return the runs of a model, fewer of them under autocast."""
    runs: list[Callable[[], object]] = [lambda: train(model, inputs), lambda: evaluate(model, inputs)]
    if model.prompt:
        runs.append(lambda: generate(model, inputs))
    if half:
        return runs
    runs += [lambda: train(model, inputs, adamw), lambda: evaluate(model, rows(inputs, 5))]
    runs += [partial(train, model, rows(inputs, count)) for count in (1, 3)]
    if any(tensor.dim() == 4 for tensor in inputs.values()):
        runs.append(lambda: train(model, channels_last(inputs), last=True))
    if "input_ids" in inputs and "CLIP" not in model.name and "DistilBert" not in model.name:
        runs.append(lambda: train(model, longer(inputs)))
    return runs


def record(recorder: CallRecorder, model: Model) -> list[str]:
    """Record a model in all settings, with and without autocast. Returns the settings that torch refuses."""
    refused, inputs = [], model.inputs()
    for half in (False, True):
        name = model.name + HALF * half
        with recorder.model(name):
            for number, run in enumerate(settings(model, inputs, half)):
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    try:
                        run()
                    except (RuntimeError, ValueError) as error:
                        refused.append(f"{name}, setting {number + 1}: {str(error).partition(chr(10))[0][:150]}")
    return refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the models. Returns 0, or 2 if a package or a model is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model's name, or a pattern such as 'timm.*'")
    names = parser.parse_args(arguments).names
    chosen = [m for m in MODELS if not names or any(fnmatch.fnmatch(m.name, name) for name in names)]
    if not chosen:
        print(f"recorded_models: no model is named {names[0]!r}", file=sys.stderr)
        return 2
    recorder = CallRecorder()
    for model in chosen:
        try:
            refused = record(recorder, model)
        except ImportError as error:
            print(f"recorded_models: {error}; install the extra `clients`", file=sys.stderr)
            return 2
        print(f"{model.name}: {len(recorder.calls.calls)} distinct calls so far", flush=True)
        for line in refused:
            print(f"  refused: {line}", flush=True)
    calls = recorder.checked()
    for reason, count in calls.excluded.most_common():
        print(f"not recorded, {count}: {reason}")
    total, operators = sum(calls.made.values()), {call.op for call in calls.calls}
    print(f"{len(calls.models)} models, {total} calls, {len(calls.calls)} distinct, {len(operators)} operators")
    if not names:
        calls.save(RECORDED)
        print(f"{Path(os.path.relpath(RECORDED))}: {RECORDED.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
