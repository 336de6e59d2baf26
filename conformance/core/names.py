"""The names that users write: targets, oracles, dtypes, variants, layouts; and the nearest known one to a misspelt one.

The key insight: planning, expectations and reports need names only, so this module must import neither torch nor a
target. What the names stand for is defined where they are used, and tests hold the two together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

BUILTIN = {
    "cpu": "conformance.targets.cpu:CpuTarget",
    "tiny": "conformance.targets.tiny:TinyTarget",
    "tinygrad-upstream": "conformance.targets.tinygrad_upstream:TinygradUpstreamTarget",
    "device": "conformance.targets.device:DeviceTarget",
    "meta": "conformance.targets.meta:MetaTarget",
    "fake": "conformance.targets.fake:FakeTarget",
    "functionalize": "conformance.targets.functionalize:FunctionalizeTarget",
    "compile": "conformance.targets.compiler:CompileTarget",
    "aot_eager": "conformance.targets.aot_eager:AotEagerTarget",
    "inductor": "conformance.targets.inductor:InductorTarget",
    "mutant": "conformance.selftest.mutants:MutantTarget",
}
"""Built-in targets, by the word before the colon of a spec, and where their classes are."""

ORACLES = (
    "structure",
    "dtype",
    "shape",
    "stride",
    "storage_offset",
    "contiguity",
    "alias",
    "value",
    "storage",
    "error",
    "grad",
    "version",
    "kernels",
)
SIGNIFICANT_STRIDE = "significant_stride"
"""In place of `stride`, for targets that follow PyTorch's own rule: strides of dimensions of length 1 and of tensors
without elements mean nothing (pytorch#77553), nor where a tensor without elements begins, which follows from such
strides. A difference is reported as `stride` all the same."""

RUN_ORACLES = ("crash", "timeout", "memory", "message", "device", "harness", "skip")
"""Oracles beyond those of a result; "skip" is a sample that could not be compared though neither OpInfo nor torch CPU
nor the target's declarations say why."""

VARIANTS = {
    "forward": "the function, on OpInfo's sample inputs",
    "method": "the Tensor method",
    "inplace": "the in-place method, on a copy of the input",
    "out": "the function with out=: right-sized, empty, and with gaps",
    "backward": "the gradients of all inputs that OpInfo differentiates",
    "forward_over_backward": "the derivatives of those gradients along drawn tangents, in forward mode",
    "error_inputs": "inputs that must raise, with OpInfo's message pattern",
    "reference_inputs": "the function, on OpInfo's larger set of inputs",
}
SPECIALS = {
    "specials_zeros": "0.0 and -0.0, which are zero divisors too",
    "specials_ties": "only -1, 0 and 1",
    "specials_equal": "all elements equal",
    "specials_negative": "negative numbers",
    "specials_subnormal": "subnormal floats, and the smallest normal ones",
    "specials_extremes": "the largest and the least of the dtype",
    "specials_large": "floats of large magnitude",
    "specials_inf": "the infinities",
    "specials_nan": "nan",
}
"""Variants that are the function on OpInfo's sample inputs with such values among theirs, by tier."""
SPECIALS_BACKWARD = {f"{tier}_backward": tier for tier in SPECIALS}
"""The same of gradients: the tier of a variant's name."""
TIERS = {**{tier: tier for tier in SPECIALS}, **SPECIALS_BACKWARD}
"""The tier of each variant that has one."""
VARIANTS |= {name: f"the function, with special values placed: {what}" for name, what in SPECIALS.items()}
VARIANTS |= {
    name: f"the gradients, with special values placed: {SPECIALS[tier]}" for name, tier in SPECIALS_BACKWARD.items()
}
DIFFERENTIATED = ("backward", "forward_over_backward", *SPECIALS_BACKWARD)
"""Variants whose sample inputs require gradients."""

LAYOUTS = {
    "as_sampled": "strides as OpInfo made them",
    "transposed": "dimensions stored in reverse order",
    "gaps": "every other element of the storage",
    "offset": "a storage offset, and storage left over behind",
    "expanded": "stride 0 in the first dimension that is not of size 1",
    "channels_last": "4-d tensors stored channels last",
}

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
"""The names that torch has for dtypes, so that a misspelt one is noticed without importing torch."""


def without_features(spec: str) -> str:
    """A target's spec without the features that a probe found lacking: these are no part of its name."""
    return re.sub(r",without=[^,]*", "", spec) if spec.startswith("device:") else spec


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?` or nothing: names with this last part first (`relu` is `nn.functional.relu`), then names
    that are spelt alike."""
    known = list(known)
    same_end = [name for name in known if name.rpartition(".")[2] == word]
    near = [*same_end, *difflib.get_close_matches(word, known, n=3, cutoff=0.6)]
    return f"; did you mean {', '.join(dict.fromkeys(near[:3]))}?" if near else ""
