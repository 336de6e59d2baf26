"""Count the calls of each aten operator in real programs, for the table of missing operators.

    python scripts/operator_usage.py            measure, and write the file (needs the extra `clients`)
    python scripts/operator_usage.py --check    exit code 1 when the file is stale

The file is conformance/record/usage.json. A device needs the operators that programs call, not the operators that op_db
lists. So operators are counted below autograd, where a device receives them. The programs are one training step and one
inference of small models with random weights, half of them from transformers. The check measures the smallest program
again, and compares the names of all programs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no downloads: configurations are defined here, weights are random

DATA = Path(__file__).resolve().parent.parent / "conformance" / "record" / "usage.json"
VOCABULARY = 32
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
# Token numbers within the vocabulary; the packages' defaults lie far outside it.
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}

Loss = Callable[[Any], Tensor]


class Calls(TorchDispatchMode):
    """Dispatch mode that counts calls by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            overload = func._schema.overload_name
            self.counts[func._schema.name + (f".{overload}" if overload else "")] += 1
        return func(*args, **(kwargs or {}))


def mlp() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    x, labels = torch.randn(4, 8), torch.randint(4, (4,))
    return model, lambda model: nn.functional.cross_entropy(model(x), labels)


def cnn() -> tuple[nn.Module, Loss]:
    block = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(*block, nn.Conv2d(8, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    x, labels = torch.randn(2, 3, 8, 8), torch.randint(4, (2,))
    return model, lambda model: nn.functional.cross_entropy(model(x), labels)


def lstm() -> tuple[nn.Module, Loss]:
    x = torch.randn(2, 5, 4)
    return nn.LSTM(4, 8, num_layers=2, batch_first=True), lambda model: model(x)[0].square().mean()


def gru() -> tuple[nn.Module, Loss]:
    x = torch.randn(2, 5, 4)
    return nn.GRU(4, 8, batch_first=True, bidirectional=True), lambda model: model(x)[0].abs().mean()


def transformer_encoder() -> tuple[nn.Module, Loss]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, lambda model: nn.functional.mse_loss(model(x, src_key_padding_mask=padding), x)


def autoencoder() -> tuple[nn.Module, Loss]:
    down = (nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
    up = (nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 1, 3, padding=1), nn.Sigmoid())
    x = torch.rand(2, 1, 8, 8)
    return nn.Sequential(*down, *up), lambda model: nn.functional.binary_cross_entropy(model(x), x)


def _language(name: str, config: str, **sizes: Any) -> Callable[[], tuple[nn.Module, Loss]]:
    def make() -> tuple[nn.Module, Loss]:
        transformers = importlib.import_module("transformers")  # an optional dependency
        model = getattr(transformers, name)(getattr(transformers, config)(vocab_size=VOCABULARY, **TOKENS, **sizes))
        tokens = torch.randint(3, VOCABULARY, (2, 6))
        labels = tokens.clone()
        labels[1, 4:] = -100
        return model, lambda model: model(input_ids=tokens, labels=labels).loss

    return make


def vit() -> tuple[nn.Module, Loss]:
    transformers = importlib.import_module("transformers")
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=4, **SIZES)
    pixels, labels = torch.randn(2, 3, 8, 8), torch.randint(4, (2,))
    return transformers.ViTForImageClassification(config), lambda model: model(pixels, labels=labels).loss


MODELS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lstm,
    "gru": gru,
    "transformer encoder": transformer_encoder,
    "convolutional autoencoder": autoencoder,
    "gpt2": _language("GPT2LMHeadModel", "GPT2Config", n_positions=8, n_embd=8, n_layer=2, n_head=2),
    "bert": _language("BertForMaskedLM", "BertConfig", max_position_embeddings=8, **SIZES),
    "llama": _language("LlamaForCausalLM", "LlamaConfig", max_position_embeddings=8, num_key_value_heads=1, **SIZES),
    "mixtral": _language("MixtralForCausalLM", "MixtralConfig", max_position_embeddings=8, num_key_value_heads=1,
                         num_local_experts=2, **SIZES),
    "t5": _language("T5ForConditionalGeneration", "T5Config", d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
                    decoder_start_token_id=0),
    "vit": vit,
}  # fmt: skip
KINDS = ("training", "inference")


def programs() -> Iterator[str]:
    """Names of the measured programs."""
    return (f"{model}, {kind}" for model in MODELS for kind in KINDS)


def measure(program: str) -> dict[str, int]:
    """aten calls of one program, by operator, without the moves of the data."""
    name, _, kind = program.partition(", ")
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    with Calls() as calls:
        if kind == "inference":
            with torch.no_grad():
                loss(model.eval())
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
            loss(model.train()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            optimizer.zero_grad()
    return dict(sorted(calls.counts.items()))


def stale(data: dict[str, Any]) -> str:
    """Reason why the file is stale, or an empty string. Counts belong to a minor version of torch."""
    if list(data["programs"]) != list(programs()):
        return "it measures other programs"
    same_torch = data["torch"].rpartition(".")[0] == torch.__version__.partition("+")[0].rpartition(".")[0]
    first = next(programs())
    if same_torch and data["programs"][first] != measure(first):
        return f"{first} makes other calls"
    return ""


def main(arguments: Sequence[str] | None = None, path: Path = DATA) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the file is stale")
    if parser.parse_args(arguments).check:
        why = stale(json.loads(path.read_text(encoding="utf-8")))
        if why:
            print(f"operator_usage: {path} is stale ({why}); run python scripts/operator_usage.py", file=sys.stderr)
        return int(bool(why))
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        print("operator_usage: the package transformers is missing; install the extra `clients`", file=sys.stderr)
        return 2
    versions = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}
    measured = {program: measure(program) for program in programs()}
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(calls)}" for name, calls in measured.items())
    head = "".join(f" {json.dumps(name)}: {json.dumps(version)},\n" for name, version in versions.items())
    beside = path.with_suffix(".json.new")
    beside.write_text(f'{{\n{head} "programs": {{\n{text}\n }}\n}}\n', encoding="utf-8")
    beside.replace(path)
    print(f"{path}: {len(measured)} programs, {len({op for calls in measured.values() for op in calls})} operators")
    return 0


if __name__ == "__main__":
    sys.exit(main())
