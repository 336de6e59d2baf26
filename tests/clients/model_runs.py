"""The models of `models.py` trained on a device, eagerly and compiled, and asked for text; the table of docs/models.md.

    python tests/clients/model_runs.py [NAME ...]   runs them, compares with torch CPU, prints the rows
    ... --write                                     and puts the rows into docs/models.md

The key insight: random numbers of tiny are the CPU's, so a model's losses are comparable from step to step, and a wrong
gradient shows in the next step's. Times are of the processor, not of the clock: they hold on a busy machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import os
import re
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

sys.path.insert(0, str(Path(__file__).parents[2]))  # where it is run as a script
from tests.clients.models import BY_NAME, MODELS, Model, made

STEPS = 3
REPLAYED, MEASURED = 6, 3  # steps after which an eager one is replayed, and how many are measured then
NEW_TOKENS = 3
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- table: python tests/clients/model_runs.py --write -->", "<!-- end of table -->"
HEADER = (
    "| model | eager: kernels | eager: ms | compiled: kernels | compiled: ms | torch CPU: ms | generates |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass
class Training:
    """Three steps of training and what a further one costs."""

    losses: Tensor
    kernels: int = 0  # a step
    seconds: float = 0.0  # of the processor, a step


def compiled(net: nn.Module) -> Any:
    """The model compiled by the backend "tiny", which need not be installed to be found."""
    torch.compiler.reset()
    return torch.compile(net, backend=tiny_compiler)


def train(model: Model, device: str, *, compile: bool = False, dropout: bool = True, measure: bool = False) -> Training:
    """Train a model for three steps; with `measure` for more, of which time and kernels of the last are taken."""
    net = made(model, device, dropout=dropout).train()
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
    """New tokens after a prompt, of shape (rows, new tokens), with the key-value cache; and the logits of each."""
    net: Any = made(model, device, dropout=False).eval()
    if compile:
        net.forward = compiled(net.forward)
    prompt = model.inputs()[model.prompt].to(device)
    with torch.no_grad():
        found = net.generate(
            **{model.prompt: prompt}, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
            use_cache=True, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    assert found.sequences.device.type == device
    return found.sequences[:, -NEW_TOKENS:].cpu(), torch.stack([logits.cpu() for logits in found.logits])


class Positional(nn.Module):
    """A model called by place, whose tensors come as a tuple: what torch.jit.trace takes."""

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the model returns, in order."""
        return tuple(leaves(self.net(**dict(zip(self.names, inputs, strict=True)))))


def leaves(found: Any) -> list[Tensor]:
    """The tensors in what a model returns."""
    if isinstance(found, Tensor):
        return [found]
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, (list, tuple)) else ()
    return [tensor for part in parts for tensor in leaves(part)]


def traced(model: Model, device: str) -> list[Tensor]:
    """What the model captured by torch.jit.trace, saved and loaded says of its inputs in another order."""
    net: Any = made(model, device, dropout=False).eval().requires_grad_(False)
    if hasattr(getattr(net, "config", None), "use_cache"):
        net.config.use_cache = False  # a cache is no tensor
    given = {name: tensor.to(device) for name, tensor in model.inputs().items()}
    captured = torch.jit.trace(Positional(net, list(given)), tuple(given.values()), check_trace=False)
    file = io.BytesIO()
    torch.jit.save(captured, file)
    file.seek(0)
    found = torch.jit.load(file)(*(tensor.flip(0) for tensor in given.values()))
    assert {tensor.device.type for tensor in found} == {device}
    return [tensor.cpu() for tensor in found]


def row(model: Model) -> str:
    """One line of the table. Raises AssertionError where the device and torch CPU do not agree."""
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
            found, by_device = generate(model, "tiny", compile=compile)
            assert torch.equal(found, words)
            torch.testing.assert_close(by_device, logits)
        text = "yes"
    times = [f"{1000 * run.seconds:.0f}" for run in (eager, fused)]
    return (
        f"| {model.name} | {eager.kernels} | {times[0]} | {fused.kernels} | {times[1]} "
        f"| {1000 * expected.seconds:.1f} | {text} |"
    )


def rows_of_page(text: str) -> dict[str, str]:
    """The rows of the table in docs/models.md by the names of their models. Raises ValueError where it has no table."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{PAGE.name} has no table: {BEGIN} and {END} must stand there once")
    table = text.split(BEGIN)[1].split(END)[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| (\w+\.\w+) \|.*$", table, re.MULTILINE)}


def written(text: str, rows: dict[str, str]) -> str:
    """The page with some rows of its table replaced, in the order of the models."""
    rows = {**rows_of_page(text), **rows}
    table = "\n".join([HEADER, *[rows[name] for name in BY_NAME if name in rows]])
    return f"{text.split(BEGIN)[0]}{BEGIN}\n\n{table}\n\n{END}{text.split(END)[1]}"


def main(arguments: list[str]) -> int:
    """Run the models that are named, all without a name; exit code 1 where one does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model's name, or a pattern such as 'timm.*'")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/models.md")
    given = parser.parse_args(arguments)
    chosen = [m for m in MODELS if not given.names or any(fnmatch.fnmatch(m.name, n) for n in given.names)]
    if not chosen:
        parser.error(f"no model is named {given.names[0]!r}; the names are {', '.join(BY_NAME)}")
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
        if given.write:
            beside = PAGE.with_suffix(".part")
            beside.write_text(written(PAGE.read_text(), {model.name: line}))
            os.replace(beside, PAGE)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} agree with torch CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
