"""Names that users write: targets, oracles, dtypes, variants, layouts; and the nearest known name to a misspelt one.

Planning, expectations and reports need names only, so this module must import neither torch nor a target. The
definitions are in the modules that use the names; tests check that both agree.
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
    "passthrough": "conformance.targets.passthrough:PassThroughTarget",
    "meta": "conformance.targets.meta:MetaTarget",
    "fake": "conformance.targets.fake:FakeTarget",
    "functionalize": "conformance.targets.functionalize:FunctionalizeTarget",
    "vmap": "conformance.targets.vmap:VmapTarget",
    "grad": "conformance.targets.grad:GradTarget",
    "jvp": "conformance.targets.jvp:JvpTarget",
    "decompositions": "conformance.targets.decompositions:DecompositionsTarget",
    "export": "conformance.targets.export:ExportTarget",
    "compile": "conformance.targets.compiler:CompileTarget",
    "aot_eager": "conformance.targets.aot_eager:AotEagerTarget",
    "inductor": "conformance.targets.inductor:InductorTarget",
    "mutant": "conformance.selftest.mutants:MutantTarget",
}
"""Built-in targets, by the word before the colon of a spec, and the paths of their classes."""

METADATA = ("dtype", "shape", "stride", "storage_offset", "contiguity")
"""The oracles that compare one fact of a tensor each, which `standalone/observation.py` reads."""
ORACLES = ("structure", *METADATA, "alias", "value", "storage", "error", "grad", "version")
SIGNIFICANT_STRIDE = "significant_stride"
"""Replaces `stride` for targets that follow PyTorch's own rule (pytorch#77553): strides of dimensions of length 1 and
of tensors without elements have no meaning. The storage offset of a tensor without elements follows from such strides
and has no meaning either. A difference is still reported as `stride`."""

RELATIONS = ("layout", "batch", "repetition", "order", "unused step", "derivative")
"""The metamorphic relations, of `program/relations.py`."""
RELATED_ORACLES = frozenset(("structure", "dtype", "shape", "alias", "value", "storage", "error", "grad"))
"""The oracles that compare a target's answers to a program and to a rewritten one. Strides may differ."""
METAMORPHIC = "metamorphic"
"""The oracle without a reference, and the beginning of the spec of a target that it judges: `metamorphic:cpu`."""

TORCH_CPU = "torch CPU"
"""What a target is compared with, if a run does not name anything else."""

NOT_COMPARED = "not compared"
POWER = "power"
"""The oracle of a planted fault that no program finds."""
MUTANTS = "mutants"
"""The command that hunts planted faults."""
TRACE = "trace"
"""The command that judges the operators of a script."""
OPERATOR = "operator"
"""The command that judges an operator of the user, and the layout of its results."""
MEASURED = ("kernels",)
"""Judged measures: the oracle of a count above its bound has the name of the measure."""
MODULES = "modules"
"""The command that runs modules and optimizers, and the layout of its results."""
REPROS = "repros"
"""The command that runs the repros of known bugs, and the layout of its results."""
REPRO = "repro"
"""The oracle of a known bug that the target shows."""
UPSTREAM = "upstream"
"""The command that runs PyTorch's own tests, and the layout of its results."""
TEST_FILES = "files of tests"
"""The entry of its environment that names its files."""
DEVICE_TEST = "test"
"""The oracle of a test of PyTorch that fails."""
RUN_ORACLES = (
    *("crash", "timeout", "memory", "message", "device", "harness"),
    *(*MEASURED, POWER, REPRO, DEVICE_TEST, NOT_COMPARED),
)
"""Further oracles, which exist only for a run. NOT_COMPARED is a sample that could not be compared although neither
OpInfo nor torch CPU nor the target's declarations give a reason."""

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
"""Variants that call the function on OpInfo's sample inputs with special values placed among the elements, by tier."""
SPECIALS_BACKWARD = {f"{tier}_backward": tier for tier in SPECIALS}
"""The gradient variants with special values, each with its tier."""
TIERS = {**{tier: tier for tier in SPECIALS}, **SPECIALS_BACKWARD}
"""The tier of each variant that has one."""
VARIANTS |= {name: f"the function, with special values placed: {what}" for name, what in SPECIALS.items()}
VARIANTS |= {
    name: f"the gradients, with special values placed: {SPECIALS[tier]}" for name, tier in SPECIALS_BACKWARD.items()
}
KINDS = {
    "kind_number": "a Python number: a float for an int, an int for a float, a number for a tensor",
    "kind_bool": "a bool for a number or a tensor",
    "kind_numpy": "a NumPy scalar for a number, a bool or a tensor",
    "kind_list": "a list for a tuple, a tuple for a list, a list for a number, a number for a list",
    "kind_scalar": "a 0-d tensor, on the device or on the CPU, for a number or a tensor",
    "kind_dtype": "a tensor of another dtype, or another dtype",
    "kind_none": "None",
    "kind_value": "a bool that is flipped, 0 or 1 for a number, an empty list",
}
"""Variants that call the function on OpInfo's sample inputs, each time with one argument of another kind."""
REFUSED = {
    "refused_type": "an argument of a wrong type",
    "refused_size": "a tensor or a list of another size",
    "refused_index": "indices out of range",
    "refused_range": "numbers and words out of range",
    "refused_device": "a tensor without values",
}
"""Variants like `KINDS`, with arguments that torch mostly refuses."""
ENDS = {
    "end_values": "the ends of the dtype, -1 and 1 in all integer tensors",
    "end_sizes": "no elements along the dimensions of one size",
    "end_strides": "one element along the dimensions of one size, with a stride of 0, or a large one",
}
"""Variants like `KINDS` that change all tensors of a call together."""
ARGUMENTS = (*KINDS, *REFUSED)
"""Variants that change one argument."""
CHANGED = (*ARGUMENTS, *ENDS)
VARIANTS |= {name: f"the function, with one argument changed: {what}" for name, what in (KINDS | REFUSED).items()}
VARIANTS |= {name: f"the function, with its tensors changed: {what}" for name, what in ENDS.items()}
GROUPS: dict[str, Iterable[str]] = {
    "specials": SPECIALS,
    "specials_backward": SPECIALS_BACKWARD,
    "argument_kinds": KINDS,
    "refused": REFUSED,
    "ends": ENDS,
}
"""Variants with a common name."""
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
"""torch's names of dtypes, so that a misspelt name is detected without importing torch."""


def without_features(spec: str) -> str:
    """Return a target's spec without the features that a probe found missing; they are not part of the target's
    name."""
    return re.sub(r",without=[^,]*", "", spec) if without_relations(spec).startswith("device:") else spec


def without_relations(spec: str) -> str:
    """Return the spec of the target itself: `cpu` for `metamorphic:cpu`."""
    return spec.removeprefix(f"{METAMORPHIC}:")


def with_article(kind: str) -> str:
    """Return the name of a kind with its article: `an int`, `a Tensor`."""
    return f"{'an' if kind[:1] in 'aeio' else 'a'} {kind}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean a, b?` or "". Names that end in this word come first (`relu` is `nn.functional.relu`),
    then names with similar spelling."""
    known = list(known)
    same_end = [name for name in known if name.rpartition(".")[2] == word]
    near = [*same_end, *difflib.get_close_matches(word, known, n=3, cutoff=0.6)]
    return f"; did you mean {', '.join(dict.fromkeys(near[:3]))}?" if near else ""
