"""Train and run the models of `models.py` on a device, eager and compiled: docs/models.csv, a table of performance.md.

    python tests/clients/model_runs.py [NAME ...]   runs them, compares with torch CPU, prints the rows
    ... --write                                     and puts the rows into docs/models.csv

tiny draws the same random numbers as the CPU. The losses of a model are therefore comparable at each step, and a wrong
gradient shows in the loss of the next step. Times are processor times, which are also valid on a busy machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import conformance.backend as backend
from conformance.backend.torch_api.compile import tiny as tiny_compiler

sys.path.insert(0, str(Path(__file__).parents[2]))  # for use as a script
from tests.clients.models import BY_NAME, MODELS, Model, network

STEPS = 3
REPLAYED, MEASURED = 6, 3  # number of steps before an eager step is replayed, and number of steps measured after that
NEW_TOKENS = 3
TABLE = Path(__file__).parents[2] / "docs" / "models.csv"
HEADER = "model,eager: kernels,eager: ms,compiled: kernels,compiled: ms,torch CPU: ms,generates"


@dataclass
class Training:
    """Losses of three training steps, and the cost of a further step."""

    losses: Tensor
    kernels: int = 0  # per step
    seconds: float = 0.0  # processor time per step


def compiled(net: nn.Module) -> Any:
    """Return the model compiled by the backend "tiny", without need of an installed entry point."""
    torch.compiler.reset()
    return torch.compile(net, backend=tiny_compiler)


def train(model: Model, device: str, *, compile: bool = False, dropout: bool = True, measure: bool = False) -> Training:
    """Train a model for three steps. With `measure`, train for more steps and measure time and kernels of the last
    ones."""
    net = network(model, device, dropout=dropout).train()
    call = compiled(net) if compile else net
    inputs = {name: tensor.to(device) for name, tensor in model.inputs().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=model.lr, momentum=0.9)
    losses, seconds, kernels = [], [], 0
    for step in range(STEPS + (REPLAYED + MEASURED) * measure):
        torch.manual_seed(step)
        before, start = backend.stats()["kernels"], time.process_time()
        optimizer.zero_grad()
        loss = model.loss(call(**inputs))
        loss.backward()
        optimizer.step()
        assert loss.device.type == device
        losses.append(loss.detach().cpu())
        torch.accelerator.synchronize()
        kernels = backend.stats()["kernels"] - before
        seconds.append(time.process_time() - start)
    return Training(torch.stack(losses[:STEPS]), kernels, statistics.median(seconds[-MEASURED:]))


def generate(model: Model, device: str, *, compile: bool = False) -> tuple[Tensor, Tensor]:
    """Generate tokens after a prompt with the key-value cache. Return the tokens, of shape (rows, new tokens), and
    their logits."""
    net: Any = network(model, device, dropout=False).eval()
    if compile:
        net.forward = compiled(net.forward)
    prompt = model.inputs()[model.prompt].to(device)
    with torch.no_grad():
        output = net.generate(
            **{model.prompt: prompt}, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
            use_cache=True, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    assert output.sequences.device.type == device
    return output.sequences[:, -NEW_TOKENS:].cpu(), torch.stack([logits.cpu() for logits in output.logits])


class Positional(nn.Module):
    """A wrapper for torch.jit.trace that takes positional arguments and returns a tuple of tensors."""

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the model's result tensors in order."""
        return tuple(leaves(self.net(**dict(zip(self.names, inputs, strict=True)))))


def leaves(result: Any) -> list[Tensor]:
    """Return the tensors in a model's result."""
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return [tensor for part in parts for tensor in leaves(part)]


def traced(model: Model, device: str) -> list[Tensor]:
    """Trace the model with torch.jit.trace, save and load it, and return its results for the inputs in reverse
    order."""
    net: Any = network(model, device, dropout=False).eval().requires_grad_(False)
    if hasattr(getattr(net, "config", None), "use_cache"):
        net.config.use_cache = False  # a cache is not a tensor
    inputs = {name: tensor.to(device) for name, tensor in model.inputs().items()}
    captured = torch.jit.trace(Positional(net, list(inputs)), tuple(inputs.values()), check_trace=False)
    file = io.BytesIO()
    torch.jit.save(captured, file)
    file.seek(0)
    results = torch.jit.load(file)(*(tensor.flip(0) for tensor in inputs.values()))
    assert {tensor.device.type for tensor in results} == {device}
    return [tensor.cpu() for tensor in results]


def row(model: Model) -> str:
    """Return one row of the table. Raises AssertionError if the device disagrees with torch CPU."""
    expected = train(model, "cpu", measure=True)
    eager = train(model, "tiny", measure=True)
    torch.testing.assert_close(eager.losses, expected.losses)
    plain = train(model, "cpu", dropout=False)
    fused = train(model, "tiny", compile=True, dropout=False, measure=True)
    torch.testing.assert_close(fused.losses, plain.losses)
    text = ""
    if model.prompt:
        words, logits = generate(model, "cpu")
        for compile in (False, True):
            tokens, by_device = generate(model, "tiny", compile=compile)
            assert torch.equal(tokens, words)
            torch.testing.assert_close(by_device, logits)
        text = "yes"
    times = [f"{1000 * run.seconds:.0f}" for run in (eager, fused)]
    numbers = (eager.kernels, times[0], fused.kernels, times[1], f"{1000 * expected.seconds:.1f}")
    return ",".join([model.name, *map(str, numbers), text])


def rows_of(text: str) -> dict[str, str]:
    """Return the rows of the table by model name. Raises ValueError if the first line is no header of the table."""
    header, *rows = text.splitlines()
    if header != HEADER:
        raise ValueError(f"{TABLE.name} does not begin with the line {HEADER!r}")
    return {row.partition(",")[0]: row for row in rows}


def written(text: str, rows: dict[str, str]) -> str:
    """Return the table with some rows replaced, in the order of `MODELS`."""
    rows = {**rows_of(text), **rows}
    return "\n".join([HEADER, *[rows[name] for name in BY_NAME if name in rows], ""])


def main(arguments: list[str]) -> int:
    """Run the named models, or all without a name. Return exit code 1 if a model disagrees with torch CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model's name, or a pattern such as 'timm.*'")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/models.csv")
    args = parser.parse_args(arguments)
    chosen = [m for m in MODELS if not args.names or any(fnmatch.fnmatch(m.name, n) for n in args.names)]
    if not chosen:
        parser.error(f"no model is named {args.names[0]!r}; the names are {', '.join(BY_NAME)}")
    failed = []
    print(HEADER)
    for model in chosen:
        try:
            line = row(model)
        except Exception as error:
            failed.append(model.name)
            print(f"{model.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        print(line, flush=True)
        if args.write:
            beside = TABLE.with_suffix(".part")
            beside.write_text(written(TABLE.read_text(), {model.name: line}))
            os.replace(beside, TABLE)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} agree with torch CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
