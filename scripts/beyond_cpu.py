"""Calls that CUDA accepts and torch CPU refuses: the share that tiny accepts, and whether its numbers are right.

    python scripts/beyond_cpu.py [--op GLOB] [--samples N] [--write]

op_db lists for each OpInfo the dtypes of CUDA (`dtypesIfCUDA`, `backward_dtypesIfCUDA`) and the dtypes of the CPU.
This script runs the samples of the difference on tiny. The reference is torch CPU in float64, complex128 or a wider
integer, rounded once to the dtype of the result. Only tiny has to accept the call itself, because a wider dtype is the
better reference.

A result that differs from the reference is compared with two weaker references, and counted separately. The first one
rounds the result of each operator, like a device that computes composite operators, or gradients, by 16-bit kernels. A
result also agrees with it if its error is at most twice the error of that reference. The second one is torch CPU's own
result, if the CPU accepts the call after all. Random results are compared only in their geometry.

Prints a line for each OpInfo, dtype and direction that is refused, wrong, or right by a weaker reference, then the
counts. Exits with 1 if one is wrong. With --write, renews the table in docs/device.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import math
import os
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import conformance.backend  # noqa: F401 - before op_db, which asks for the registered devices
from conformance.sources.opinfo import catalog, seeding
from conformance.sources.opinfo.sampling import Sample, samples
from conformance.standalone.moving import leaves, map_leaves, storage_key
from conformance.standalone.rounding import widened
from conformance.standalone.torch_compat import nondeterministic

PAGE = Path(__file__).parents[1] / "docs" / "device.md"
BEGIN, END = "<!-- table: python scripts/beyond_cpu.py --write -->", "<!-- end of that table -->"
RIGHT = ("right", "right if rounded at each operator", "right as torch CPU")
"""Verdicts of a case by its weakest sample: the reference that it agrees with, strongest first."""
VERDICTS = (*RIGHT, "refused", "wrong")


@dataclass(frozen=True, eq=False)
class Case:
    """OpInfo in a dtype that CUDA accepts and the CPU does not, forward or backward."""

    name: str
    op: Any
    dtype: torch.dtype
    backward: bool

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]} {'backward' if self.backward else 'forward'}"


def cases() -> Iterator[Case]:
    """All cases of op_db; a dtype without gradients has no backward case."""
    for (name, rest), op in sorted(catalog.by_name().items()):
        whole = f"{name}.{rest}".removesuffix(".")
        for backward, cuda, cpu in (
            (False, op.dtypesIfCUDA, op.dtypes),
            (True, op.backward_dtypesIfCUDA, op.backward_dtypes),
        ):
            for dtype in sorted(set(cuda) - set(cpu), key=str):
                if not backward or (op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)):
                    yield Case(whole, op, dtype, backward)


def judged(case: Case, limit: int) -> tuple[str, str]:
    """One of VERDICTS, and the error or difference of the first sample that is not right by the strongest reference."""
    tried, weakest, why = 0, 0, ""
    for sample in samples(case.op, "backward" if case.backward else "forward", case.dtype, "as_sampled", limit):
        tried += 1
        try:
            results = list(_run(case, sample, case.op, _on_tiny(sample)))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            return "refused", f"sample {sample.index}: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
        reference = DEFINITIONS.get(case.op.name, case.op)
        wide = list(_run(case, sample, reference, _wide(case)))
        drawn = _drawn(case, sample)
        said = _compared(case, results, wide, drawn)
        if not said:
            continue
        rounded = _rounded(case, sample, reference) if case.dtype in ROUNDED else None
        if rounded is not None and (not _compared(case, results, rounded, drawn) or _no_worse(results, wide, rounded)):
            by = 1
        elif not _compared(case, results, _of_the_cpu(case, sample), drawn):
            by = 2
        else:
            return "wrong", f"sample {sample.index}: {said}"
        weakest, why = max(weakest, by), why or f"sample {sample.index}: {said}"
    return (RIGHT[weakest], why) if tried else ("refused", "there is no sample")


def _no_worse(results: list[Any], wide: list[Any], rounded: list[Any]) -> bool:
    """Whether no result is off by more than twice what rounding after each operator costs: where large parts cancel,
    two sums of them that differ in their last bit are far apart, relatively."""
    if not len(results) == len(wide) == len(rounded):
        return False
    for ours, exact, other in zip(results, wide, rounded, strict=True):
        if ours is None or exact is None or other is None or ours.shape != exact.shape:
            return False
        off, allowed = ours.detach().cpu().to(exact.dtype) - exact.detach(), (other - exact).detach()
        if not bool((off.abs() <= 2 * allowed.abs().max()).all()):  # a nan makes this false
            return False
    return True


def _rounded(case: Case, sample: Sample, reference: Any) -> list[Any]:
    """Wide results with each operator's result rounded."""
    with Rounded(case.dtype):
        return list(_run(case, sample, reference, _wide(case)))


ROUNDED = (torch.float16, torch.bfloat16, torch.float32, torch.complex32)


def _nansum(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    return x.masked_fill(x.isnan(), 0).sum(dim, keepdim, dtype=dtype)


def _nanmean(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    return _nansum(x, dim, keepdim, dtype=dtype) / x.isnan().logical_not().sum(dim, keepdim)


def _flash_attention(query: Any, key: Any, value: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    return _attention(query, key, value, **named, custom_mask_type=2 * named["is_causal"])


def _attention(query: Any, key: Any, value: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    """The result and logsumexp of attention over (B, rows, heads, D), by its formula. With offsets, the sequences
    follow one another, and there is no logsumexp."""
    if named.get("cu_seqlens_q") is not None:
        starts, outputs = (named.pop(f"cu_seqlens_{side}").tolist() for side in "qk"), []
        for a, b, c, d in (map(int, (*q, *k)) for q, k in zip(*map(itertools.pairwise, starts), strict=True)):
            outputs.append(_attention(query[:, a:b], key[:, c:d], value[:, c:d], **named)[0])
        return (torch.cat(outputs, 1),)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool)
    if kind := named["custom_mask_type"]:
        mask = mask.tril(k.size(-2) - q.size(-2) if kind == 2 else 0)
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), -math.inf)
    bias = bias if named.get("bias") is None else bias + named["bias"]
    scale = named["scale"] or 1 / math.sqrt(q.size(-1))
    scores = q @ k.transpose(-1, -2) * scale + bias
    logsumexp = scores.logsumexp(-1, keepdim=True)
    return ((scores - logsumexp).exp() @ v).transpose(1, 2), logsumexp.squeeze(-1)


ATTENTION = {
    "torch.ops.aten._flash_attention_forward": _flash_attention,
    "torch.ops.aten._efficient_attention_forward": _attention,
}
DEFINITIONS = {"nansum": _nansum, "nanmean": _nanmean, **ATTENTION}
"""What the CPU refuses in every dtype that is wide enough, by its documentation."""


def _of_attention(case: Case, sample: Sample, results: list[Any]) -> list[Any]:
    """Return the results of an attention kernel that the reference has too. Seeds and the padding of queries depend on
    the kernel."""
    out, *rest = results
    named = sample.tree["kwargs"]
    if case.backward or named.get("cu_seqlens_q") is not None or not named.get("compute_log_sumexp", True):
        return [out]
    logsumexp = rest[0][..., : sample.tree["input"].size(1)].detach()
    return [out, logsumexp.to(case.dtype) if logsumexp.dtype is torch.float32 else logsumexp]


class Rounded(TorchDispatchMode):
    """Each operator's floating results lose what a narrower dtype does not hold, and stay wide."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        real = dtype.to_real() if dtype.is_complex else dtype
        self.narrow = {torch.float64: real, torch.complex128: torch.complex32}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func._schema.is_mutable:
            return result

        def rounded(leaf: Any) -> Any:
            narrow = self.narrow.get(leaf.dtype) if isinstance(leaf, torch.Tensor) else None
            return leaf if narrow is None else leaf.to(narrow).to(leaf.dtype)

        return map_leaves(result, rounded)


def _on_tiny(sample: Sample) -> Any:
    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and storage_key(leaf) not in sample.kept:
            return leaf.detach().to("tiny").requires_grad_(leaf.requires_grad)
        return torch.device("tiny") if isinstance(leaf, torch.device) else leaf

    return change


def _wide(case: Case) -> Any:
    # Among operators of integers, histc is the only one that the CPU accepts for floats alone.
    integers = {case.dtype: torch.float64} if case.op.name == "histc" else {torch.bool: torch.int64}

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            wide = integers.get(leaf.dtype) if leaf.dtype is case.dtype else None
            return leaf.detach().to(wide or widened(leaf.dtype)).requires_grad_(leaf.requires_grad)
        return widened(leaf) if isinstance(leaf, torch.dtype) else leaf

    return change


def _of_the_cpu(case: Case, sample: Sample) -> list[Any]:
    """torch CPU's own results in the dtype; empty if it refuses the call."""

    def again(leaf: Any) -> Any:
        return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    try:
        return list(_run(case, sample, case.op, again))
    except RuntimeError:
        return []


def _run(case: Case, sample: Sample, call: Any, change: Any) -> Iterator[Any]:
    """Results of a sample with changed leaves, or their gradients for output gradients of ones."""
    known: dict[int, Any] = {}
    tree = map_leaves(sample.tree, lambda leaf: known.setdefault(id(leaf), change(leaf)))
    seeding.seed()
    result = call(tree["input"], *tree["args"], **tree["kwargs"])
    if sample.process is not None:
        result = sample.process(result)
    results = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
    if case.op.name in ATTENTION:
        results = _of_attention(case, sample, results)
    if not case.backward:
        yield from results
        return
    inputs = [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    outputs = [one for one in results if one.requires_grad]
    yield from torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True)


def _drawn(case: Case, sample: Sample) -> bool:
    """Whether the results are random. Attention is random if its dropout is above 0."""
    if case.op.name in ATTENTION:
        return bool(sample.tree["kwargs"]["dropout_p"])
    return nondeterministic(case.op) or case.op.name == "nn.functional.rrelu"


def _compared(case: Case, results: list[Any], expected: list[Any], drawn: bool) -> str:
    """What differs; random results are compared in their geometry alone."""
    if len(results) != len(expected):
        return f"{len(results)} results, not {len(expected)}"
    granted = catalog.tolerances(case.op, case.dtype)
    for ours, wide in zip(results, expected, strict=True):
        if ours is None or wide is None:
            if ours is not wide:
                return "a gradient that is there on one side only"
            continue
        inexact = ours.dtype.is_floating_point or ours.dtype.is_complex
        real = ours.dtype.to_real() if ours.dtype.is_complex else ours.dtype
        if inexact and case.dtype.is_floating_point and real != case.dtype:
            return f"a result of {ours.dtype}"
        if ours.shape != wide.shape or ours.dtype.is_complex != wide.dtype.is_complex:
            return f"a result of {tuple(ours.shape)} {ours.dtype}, not {tuple(wide.shape)} {wide.dtype}"
        if drawn:
            continue
        if ours.layout is not torch.strided:
            ours, wide = ours.to_dense(), wide.to_dense()
        rtol, atol = granted.get(str(ours.dtype).removeprefix("torch."), (None, None))
        try:
            torch.testing.assert_close(ours.detach().cpu(), wide.detach().to(ours.dtype), rtol=rtol, atol=atol,
                                       equal_nan=True)  # fmt: skip
        except AssertionError as error:
            return " ".join(str(error).split())[:160]
    return ""


def table(verdicts: dict[Case, tuple[str, str]], most: int) -> list[str]:
    """Markdown of the counts by direction, for at most `most` samples per case."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case, (word, _) in verdicts.items():
        counts["backward" if case.backward else "forward"][word] += 1
    head = f"| direction | {' | '.join(VERDICTS)} |"
    lines = [f"OpInfos by what they are, at most {most} samples each:", "", head, "| --- " * (1 + len(VERDICTS)) + "|"]
    for direction, words in sorted(counts.items()):
        lines.append(f"| {direction} | {' | '.join(str(words[w] or '') for w in VERDICTS)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="*", help="OpInfos by a glob of their name")
    parser.add_argument("--samples", type=int, default=20, help="the most samples of each case")
    parser.add_argument("--write", action="store_true", help="renew the table in docs/device.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts = {}
    for case in cases():
        if fnmatch.fnmatch(case.name, options.op):
            verdicts[case] = judged(case, options.samples)
            if verdicts[case][1]:
                print(f"{verdicts[case][0]}: {case}: {verdicts[case][1]}", flush=True)
    lines = table(verdicts, options.samples)
    print(*lines, sep="\n")
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        beside = PAGE.with_suffix(".new")
        beside.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))
        os.replace(beside, PAGE)
    return int(any(word == "wrong" for word, _ in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
