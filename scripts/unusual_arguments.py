"""Calls with one unusual argument: whether tiny answers, or refuses, as torch CPU does.

    python -m scripts.unusual_arguments [--op GLOB] [-n N] [--json FILE] [--write]

The script takes each argument of each OpInfo from the first sample of op_db that has it, and changes it in turn.
CHANGES lists the changes, such as another dtype, a shorter operand, no elements, a number instead of a tensor, nan or
inf, a wrong string, and None. In-place forms get the same changes, and OUTS lists changes of out=. The script then
calls the methods of torch.Tensor that op_db does not call, each with the argument lists of METHODS. torch CPU and tiny
get the same arguments. If the changed argument is not a tensor, the script also compares gradients.

Every call runs in a worker process with a time limit, so a crash or a hang on either side is one verdict. Prints a line
for each difference, then the table. Every difference needs a reason in REASONS, and every reason a difference. Exits
with 1 for a difference without a reason. With --write, renews the tables in docs/; the whole run takes five
minutes with two processes and filled caches.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import conformance.backend  # noqa: F401 - before op_db, which asks for the registered devices
from conformance.run import worker
from conformance.run.messages import Death, Limits, Task
from conformance.run.pool import LocalPool
from conformance.sources.opinfo import catalog, seeding
from conformance.sources.opinfo.sampling import Sample, samples
from conformance.standalone.moving import leaves, map_leaves, storage_key
from conformance.standalone.rounding import widened
from conformance.standalone.torch_compat import nondeterministic
from scripts.pages import ROOT, Part, csv_text, write

PART, TABLE = Part("docs/device.md", "unusual_arguments"), ROOT / "docs" / "unusual_arguments.csv"
MODULE = "scripts.unusual_arguments"

SAME, SAME_ERROR = "same answer", "same error"
OTHER_TEXT, OTHER_TYPE = "same type of error, other text", "other type of error"
OTHER, ONLY_TINY, ONLY_CPU = "other answer", "only tiny answers", "only the CPU answers"
INTERNAL, LATE, DIED, CPU_DIED = (
    "internal error",
    "tiny takes too long",
    "tiny ends its process",
    "the CPU does not end",
)
VERDICTS = (SAME, SAME_ERROR, OTHER_TEXT, OTHER_TYPE, OTHER, ONLY_TINY, ONLY_CPU, INTERNAL, LATE, DIED, CPU_DIED)
GOOD = frozenset({SAME, SAME_ERROR, CPU_DIED})
REASONS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    ((ONLY_CPU,), "grid_sampler_*", "", "a mode that does not exist; torch CPU returns memory without a value"),
    ((ONLY_CPU, OTHER_TEXT), "*native_batch_norm* _batch_norm_with_update", r"args\[",
     "parameters of another length; torch CPU reads memory beyond their end"),
    ((ONLY_CPU,), "linalg.solve_triangular", "tensor ->", "two dtypes; torch CPU reads the memory of one as the other"),
    ((OTHER_TEXT,), "lu_unpack", "", "pivots of another length; torch CPU reads memory beyond their end"),
    ((DIED,), "_segment_reduce.offsets", "no elements", "torch CPU computes it, and ends its process"),
    ((OTHER,), "nn.functional.hardtanh", "nan",
     "the gradient; torch CPU's vectorized and scalar loops differ, and tiny agrees with the vectorized one"),
    ((OTHER,), "nn.functional.ctc_loss", "shorter", "targets that are no class; torch CPU reads memory beyond the end"),
    ((OTHER,), "addbmm baddbmm stft", "", "rounding"),
    ((ONLY_TINY,), "histc", "int64", "integers are counted, as on CUDA"),
    ((ONLY_TINY,), "ldexp nn.functional.scaled_dot_product_attention", "",
     "torch composes the operator on devices other than the CPU, without the CPU kernel's check"),
    ((OTHER_TEXT, OTHER_TYPE), "nn.functional.one_hot resize_ *native_batch_norm* native_dropout_backward", "",
     "torch's check for devices other than the CPU says it in other words"),
    ((ONLY_CPU,), "to", "number", "pinned memory, which torch asks from a C++ hook"),
)  # fmt: skip
"""Reasons of differences: the verdicts, OpInfos by globs, a pattern of the change, and the reason."""
CLEAR = ("RuntimeError", "TypeError", "ValueError", "IndexError", "NotImplementedError", "OutOfMemoryError")
"""Exceptions that tiny itself may raise."""
SECONDS = 20.0
"""Limit of one changed call on both sides together."""
SEEN = 40
"""Number of samples of an OpInfo that are searched for arguments."""
NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
"""Dtypes of results that are compared in a narrower dtype, because most samples have float32 elements."""

Tree = Any
Change = Callable[[Any], Any]


def _shorter(x: Any) -> Any:
    """A tensor without the last element of its last dimension."""
    return x.narrow(-1, 0, x.size(-1) - 1) if x.dim() and x.size(-1) else None


CHANGES: dict[str, dict[str, Change]] = {
    "tensor": {
        "int64": lambda x: x.long() if not (x.is_complex() or x.dtype == torch.int64) else None,
        "float32": lambda x: x.float() if not (x.is_complex() or x.is_floating_point()) else None,
        "bool": lambda x: x.bool() if x.dtype != torch.bool else None,
        "float64": lambda x: x.double() if x.is_floating_point() else None,
        "shorter": _shorter,
        "no elements": lambda x: x.reshape(-1)[:0].reshape(0, *x.shape[1:]) if x.dim() else x[None][:0],
        "0-d": lambda x: x.reshape(-1)[0] if x.dim() and x.numel() else None,
        "one more dimension": lambda x: x[None],
        "negative": lambda x: -1 - x if x.dtype == torch.int64 else None,
        "number": lambda x: 2,
        "None": lambda x: None if x is None else "None",
    },
    "float": {
        "nan": lambda x: math.nan, "inf": lambda x: math.inf, "-inf": lambda x: -math.inf, "negative": lambda x: -1.5,
        "huge": lambda x: 1e300, "zero": lambda x: 0.0, "string": lambda x: "zz", "None": lambda x: "None",
        "complex": lambda x: 1 + 2j,
    },
    "int": {
        "negative": lambda x: -1, "very negative": lambda x: -7, "large": lambda x: 7, "zero": lambda x: 0,
        "float": lambda x: 1.5, "nan": lambda x: math.nan, "inf": lambda x: math.inf, "string": lambda x: "zz",
        "None": lambda x: "None", "bool": lambda x: True,
    },
    "bool": {"flipped": lambda x: not x, "string": lambda x: "zz", "None": lambda x: "None", "number": lambda x: 2},
    "str": {"unknown": lambda x: "zz", "empty": lambda x: "", "None": lambda x: "None", "number": lambda x: 1},
    "dtype": {
        "int64": lambda x: torch.int64, "bool": lambda x: torch.bool, "float64": lambda x: torch.float64,
        "complex64": lambda x: torch.complex64, "string": lambda x: "zz",
    },
    "list": {
        "shorter": lambda x: x[:-1] if len(x) else None, "longer": lambda x: [*x, x[-1]] if len(x) else None,
        "empty": lambda x: [], "None": lambda x: "None", "number": lambda x: 1,
        "negative": lambda x: [-1, *x[1:]] if len(x) and type(x[0]) is int else None,
        "large": lambda x: [7, *x[1:]] if len(x) and type(x[0]) is int else None,
        "doubled": lambda x: [x[0]] * len(x) if len(x) > 1 and type(x[0]) is int else None,
    },
}  # fmt: skip
"""Changes of an argument by its kind. A change gives None where it does not apply, and "None" for None itself."""

METHODS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "()": lambda x, y: (), "(tensor)": lambda x, y: (y,), "(2)": lambda x, y: (2,), "(0.5)": lambda x, y: (0.5,),
    "(nan)": lambda x, y: (math.nan,), "(-7)": lambda x, y: (-7,), "('zz')": lambda x, y: ("zz",),
    "(None)": lambda x, y: (None,), "(0, 1)": lambda x, y: (0, 1), "(tensor, tensor)": lambda x, y: (y, y),
    "(0, tensor)": lambda x, y: (0, y), "(0, tensor, 2.0)": lambda x, y: (0, y, 2.0),
    "([0, 1])": lambda x, y: ([0, 1],), "(shorter)": lambda x, y: (y[:1],), "(int64)": lambda x, y: (y.long(),),
    "(bool)": lambda x, y: (y.bool(),), "(0, int64, tensor)": lambda x, y: (0, y[0].long(), y),
    "(no elements)": lambda x, y: (y[:0],),
}  # fmt: skip
"""Arguments of the methods that op_db does not call, from two tensors of the same size."""

OUTS: dict[str, Callable[[], Any]] = {
    "of int64": lambda: torch.empty(0, dtype=torch.int64),
    "of bool": lambda: torch.empty(0, dtype=torch.bool),
    "of float64": lambda: torch.empty(0, dtype=torch.float64),
    "of complex64": lambda: torch.empty(0, dtype=torch.complex64),
    "expanded": lambda: torch.zeros(1).expand(2, 2), "a number": lambda: 1, "a list": lambda: [torch.empty(0)],
}  # fmt: skip
"""Arguments out= that do not suit a result."""

EXCLUDED = {
    "memory of the host": "numpy|tolist|(const_)?data_ptr|share_memory_|is_shared|pin_memory|is_pinned|(un)?(typed_)?"
                          "storage(_type)?|module_load|to_mkldnn",
    "the device or layout itself": "cpu|cuda|xpu|mtia|hpu|ipu|xla|maia|get_device|type|type_as|to|is_.*|tiny|device|"
                                   "new|sparse_.*|to_sparse.*|q_.*|int_repr|dequantize|to_dense|to_padded_tensor|crow_.*|"
                                   "ccol_.*|col_indices|row_indices|indices|values|coalesce|layout|as_subclass|"
                                   "record_.*",
    "Python's own": "_.*|backward|register_.*|retain_grad|requires_grad_|reinforce|refine_names|align_.*|rename.*|"
                    "names|has_names|map_|map2_|apply_|share_.*|m?[HT]|grad.*|data|name|volatile|output_nr|shape|dtype|"
                    "itemsize|nbytes|ndim|real|imag|dim_order|element_size|storage_offset",
    "random numbers": "bernoulli_|cauchy_|exponential_|geometric_|log_normal_|normal_|random_|uniform_|multinomial",
    "memory without a value": "new_empty.*|resize.*|set_",
}  # fmt: skip
"""Methods that are not compared, by reason."""


def names(glob: str) -> list[str]:
    """OpInfos and methods by name: the tasks of a run."""
    ops = [f"{name}.{rest}".removesuffix(".") for name, rest in sorted(catalog.by_name())]
    called = set()
    for op in catalog.by_name().values():
        aliases = [alias.name for alias in op.aliases]
        called |= {n.rpartition(".")[2] for n in (op.name, *aliases)}
        called |= {getattr(f, "__name__", "") for f in (op.method_variant, op.inplace_variant)}
    excluded = re.compile("|".join(EXCLUDED.values()))
    own = (n for n in dir(torch.Tensor) if callable(getattr(torch.Tensor, n)) and not excluded.fullmatch(n))
    methods = [f"Tensor.{n}" for n in own if n not in called]
    return [name for name in [*ops, *methods] if fnmatch.fnmatchcase(name, glob)]


def kind_of(leaf: Any) -> str:
    """The kind of an argument in CHANGES; "" if it is not changed."""
    if isinstance(leaf, torch.Tensor):
        return "tensor" if leaf.layout is torch.strided else ""
    if isinstance(leaf, (list, tuple)):
        return "list"
    return {float: "float", int: "int", bool: "bool", str: "str", torch.dtype: "dtype"}.get(type(leaf), "")


def changed_calls(op: Any) -> Iterator[tuple[str, Any, Tree]]:
    """(description, sample, changed tree) of each change of each argument, from the first sample that has it."""
    dtypes = sorted(op.dtypes, key=str)
    if not dtypes:  # an operator that torch CPU does not have
        return
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    seen = set()
    grad = op.supports_autograd and dtype.is_floating_point
    for sample in samples(op, "backward" if grad else "forward", dtype, "as_sampled", SEEN):
        for place, leaf, put in _places(sample.tree):
            kind = kind_of(leaf)
            if (place, kind) in seen or not kind:
                continue
            seen.add((place, kind))
            for word, change in CHANGES[kind].items():
                with torch.no_grad():
                    new = change(leaf)
                if new is None:
                    continue
                if isinstance(new, torch.Tensor):
                    new = new.detach().clone()
                    if storage_key(leaf) in sample.kept:
                        sample.kept.add(storage_key(new))
                yield f"{place} {kind} -> {word}", sample, put(None if isinstance(new, str) and new == "None" else new)


def _places(tree: Tree) -> Iterator[tuple[str, Any, Callable[[Any], Tree]]]:
    """(name, argument, function that gives the tree with another argument) of each argument; of a list, also of its
    first tensor."""
    flat: list[tuple[str, Any, Callable[[Any], Tree]]] = [("input", tree["input"], lambda v: {**tree, "input": v})]
    for i, value in enumerate(tree["args"]):
        before, after = tree["args"][:i], tree["args"][i + 1 :]
        flat.append((f"args[{i}]", value, lambda v, b=before, a=after: {**tree, "args": (*b, v, *a)}))  # type: ignore[misc]
    for key, value in tree["kwargs"].items():
        flat.append((key, value, lambda v, key=key: {**tree, "kwargs": {**tree["kwargs"], key: v}}))  # type: ignore[misc]
    for name, value, put in flat:
        yield name, value, put
        if type(value) in (list, tuple) and value and kind_of(value[0]) == "tensor":
            yield f"{name}[0]", value[0], lambda v, value=value, put=put: put([v, *value[1:]])  # type: ignore[misc]


def judged(name: str, skipped: dict[int, str]) -> list[tuple[str, str, str, str]]:
    """(name, change, verdict, detail) of each changed call of an OpInfo or method; calls of these numbers have killed a
    worker before, and get their verdict without a call."""
    warnings.simplefilter("ignore")
    verdicts, before = [], None
    for number, (what, op, sample, tree, call) in enumerate(_calls(name)):
        if sample is not before:  # equal calls are answered from caches
            before = sample
            with worker.unit(""):
                outcome(op, sample, sample.tree, call, "tiny", grad=False)
        side, grad = CPU_DIED, "tensor ->" not in what
        try:
            with worker.unit(str(number)):
                expected = None
                if number not in skipped:
                    worker.step("cpu")
                    expected = outcome(op, sample, tree, call, "cpu", grad)
                side = LATE
                if skipped.get(number) != DIED:
                    worker.step("tiny")
                    got = outcome(op, sample, tree, call, "tiny", grad)
            if expected is None:
                verdict, why = skipped[number], ""
                if verdict == CPU_DIED and got[0] == "internal":
                    verdict, why = INTERNAL, f"{got[1]}: {got[2]}"[:160]
            else:
                verdict, why = compared(op, expected, got)
                if verdict == OTHER:
                    exact = outcome(op, sample, tree, call, "cpu", grad, wide=True)
                    verdict, why = (SAME, "") if no_worse(got, expected, exact) else (verdict, why)
        except worker.UnitTimeout:
            verdict, why = side, ""
        verdicts.append((name, what, verdict, why))
    return verdicts


def _calls(name: str) -> Iterator[tuple[str, Any, Any, Tree, Callable[..., Any]]]:
    if not name.startswith("Tensor."):
        op = next(op for (n, rest), op in catalog.by_name().items() if f"{n}.{rest}".removesuffix(".") == name)
        for what, sample, tree in changed_calls(op):
            yield what, op, sample, tree, op
            if op.inplace_variant is not None and not re.fullmatch(EXCLUDED["random numbers"], f"{op.name}_"):
                yield f"in place, {what}", op, sample, tree, _in_place(op)
        if op.supports_out:
            yield from _with_out(op)
        return
    method = name.removeprefix("Tensor.")
    for dtype in (torch.float32, torch.int64):
        for words, arguments in METHODS.items():
            x, y = (torch.tensor(n).reshape(2, 2).to(dtype) for n in ([1.0, 2.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]))
            sample = Sample(0, x, arguments(x, y), {})
            yield f"{str(dtype)[6:]} {words}", None, sample, sample.tree, lambda x, *args: getattr(x, method)(*args)


def _in_place(op: Any) -> Callable[..., Any]:
    """The in-place form of an OpInfo, for an input that requires no gradient."""
    return lambda x, *args, **kwargs: op.inplace_variant(x.detach(), *args, **kwargs)


def _with_out(op: Any) -> Iterator[tuple[str, Any, Any, Tree, Callable[..., Any]]]:
    """Calls of the first sample with an out= that does not suit the result."""
    dtype = torch.float32 if torch.float32 in op.dtypes else min(op.dtypes, key=str)
    for sample in samples(op, "forward", dtype, "as_sampled", 1):
        for word, make in OUTS.items():
            tree = {**sample.tree, "kwargs": {**sample.kwargs, "out": make()}}
            yield f"out= {word}", op, sample, tree, op


def outcome(
    op: Any, sample: Any, tree: Tree, call: Any, device: str, grad: bool, wide: bool = False
) -> tuple[str, Any, Any]:
    """("answer", results, None) or ("error", exception's type, text) of a call on a device; `wide` in float64."""
    known: dict[int, Any] = {}

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            stays = leaf.layout is torch.strided and storage_key(leaf) in sample.kept
            there = "cpu" if stays else device
            copy = leaf.detach().clone().to(there, widened(leaf.dtype) if wide else leaf.dtype)
            return copy.requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    mine = map_leaves(tree, lambda leaf: known.setdefault(id(leaf), moved(leaf)))
    seeding.seed()
    try:
        result = call(mine["input"], *mine["args"], **mine["kwargs"])
        results = leaves(sample.process(result) if sample.process is not None else result)
        if grad:
            inputs = [leaf for leaf in leaves(mine) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            outputs = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            if inputs and outputs:
                ones = [torch.ones_like(output) for output in outputs]
                results += torch.autograd.grad(outputs, inputs, ones, allow_unused=True)
        return "answer", [_on_host(leaf) for leaf in results], None
    except Exception as error:
        return "internal" if is_internal(error) else "error", type(error).__name__, str(error)


def is_internal(error: Exception) -> bool:
    """Whether an exception comes from tinygrad, NumPy or tiny's own code, and is not one of torch's kinds."""
    inside = traceback.extract_tb(error.__traceback__)[-1].filename
    if "tinygrad" in inside or "numpy" in inside:
        return True
    return "conformance/backend" in inside and type(error).__name__ not in CLEAR


def no_worse(actual: tuple[str, Any, Any], expected: tuple[str, Any, Any], exact: tuple[str, Any, Any]) -> bool:
    """Whether all results have the CPU's metadata, and are at most twice as far from float64 as the CPU's own."""
    if not actual[0] == expected[0] == exact[0] == "answer" or not len(actual[1]) == len(expected[1]) == len(exact[1]):
        return False
    for got, cpu, wide in zip(actual[1], expected[1], exact[1], strict=True):
        if not (isinstance(got, tuple) and isinstance(cpu, tuple) and isinstance(wide, tuple)) or got[:3] != cpu[:3]:
            return False
        if not (got[0].is_floating_point or got[0].is_complex) or got[1] != wide[1]:
            return False
        exact_dtype = torch.complex128 if got[0].is_complex else torch.float64
        off, allowed = ((one[-1].to(exact_dtype) - wide[-1].to(exact_dtype)).abs() for one in (got, cpu))
        if not bool((off <= 2 * allowed.max()).all()):  # a nan makes this false
            return False
    return True


def _on_host(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    if leaf.layout is not torch.strided:
        leaf = leaf.to_dense()
    return (leaf.dtype, tuple(leaf.shape), tuple(leaf.stride()), leaf.cpu().resolve_conj().resolve_neg())


def _plain(text: str) -> str:
    """An error's text without the name of the device."""
    text = re.sub(r"tiny(\w+)Type", r"torch.\1Tensor", text)
    text = re.sub(r"tiny(:0)?", "cpu", text).replace("PrivateUse1", "CPU").replace("PRIVATEUSEONE", "CPU")
    text = re.sub(r"torch\.cpu\.", "torch.", re.sub(r"0x[0-9a-f]+", "0x", text))
    return re.sub(r"torch\.(\w+)Tensor", r"CPU\1Type", text).split("\n")[0]


def compared(op: Any, expected: tuple[str, Any, Any], actual: tuple[str, Any, Any]) -> tuple[str, str]:
    """The verdict of a call, and its difference."""
    said = f"{actual[1]}: {str(actual[2])[:160]!r}" if actual[0] != "answer" else ""
    wanted = f"{expected[1]}: {str(expected[2])[:160]!r}" if expected[0] != "answer" else ""
    if actual[0] == "answer":
        if expected[0] != "answer":
            return ONLY_TINY, f"not {wanted}"
        why = difference(op, expected[1], actual[1])
        return (OTHER, why) if why else (SAME, "")
    if expected[0] != "answer" and (expected[1], _plain(expected[2])) == (actual[1], _plain(actual[2])):
        return SAME_ERROR, ""
    if actual[0] == "internal":
        return INTERNAL, f"{said}, not {wanted or 'an answer'}"
    if expected[0] == "answer":
        return ONLY_CPU, said
    return (OTHER_TEXT if expected[1] == actual[1] else OTHER_TYPE), f"{said}, not {wanted}"


def difference(op: Any, expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """The first difference between two lists of results; "" if there is none."""
    if len(expected) != len(actual):
        return f"{len(actual)} results, not {len(expected)}"
    free = op is not None and (nondeterministic(op) or not catalog.has_value(op) or op.name == "nn.functional.rrelu")
    for wanted, got in zip(expected, actual, strict=True):
        if not (isinstance(wanted, tuple) and len(wanted) == 4 and isinstance(wanted[-1], torch.Tensor)):
            same = wanted == got or (wanted != wanted and got != got) or str(wanted) == _plain(str(got))
            if not same:
                return f"{got!r}, not {wanted!r}"[:160]
            continue
        if not isinstance(got, tuple) or wanted[:2] != got[:2]:
            return f"{got[:2] if isinstance(got, tuple) else got}, not {wanted[:2]}"
        if free:
            continue
        kind = NARROW.get(wanted[0]) or wanted[0]
        granted = catalog.tolerances(op, kind) if op is not None else {}
        rtol, atol = granted.get(str(kind).removeprefix("torch."), (None, None))
        ours, theirs = got[-1].to(kind), wanted[-1].to(kind)
        try:
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:160]
        if wanted[2] != got[2] and wanted[-1].numel() > 1:
            return f"strides {got[2]}, not {wanted[2]}"
    return ""


def run(tasks: Sequence[str], jobs: int) -> Iterator[tuple[str, str, str, str]]:
    """The judged calls of all tasks. A task whose worker dies runs again without the call that killed it."""
    called = importlib.import_module(MODULE).judged  # this module may run as __main__, which workers cannot import
    skipped: dict[str, dict[int, str]] = {name: {} for name in tasks}
    with LocalPool("tiny", Limits(unit=SECONDS, memory=6.0), jobs, (MODULE,)) as pool:
        for name in tasks:
            pool.submit(Task(name, called, (name, {})))
        for task, answer in pool.ended():
            if isinstance(answer, Death):
                note = answer.note
                if note is None or not note.unit:
                    yield task.name, "", DIED, answer.said
                    continue
                skipped[task.name][int(note.unit)] = DIED if "tiny" in note.steps else CPU_DIED
                pool.submit(Task(task.name, called, (task.name, skipped[task.name])))
            elif answer.error is not None:
                raise answer.error
            else:
                yield from answer.value


FORMS = ("functional", "in place", "out=", "methods")


def form(name: str, what: str) -> str:
    """The form of a call: one of FORMS."""
    if name.startswith("Tensor."):
        return "methods"
    return next((f for f in FORMS[1:3] if what.startswith(f)), "functional")


def reason_of(name: str, what: str, verdict: str) -> int | None:
    """Index in REASONS of the reason for a difference."""
    for number, (verdicts, names_, changes, _) in enumerate(REASONS):
        named = any(fnmatch.fnmatchcase(name, n) for n in names_.split())
        if named and verdict in verdicts and re.search(changes, what):
            return number
    return None


def table(verdicts: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Markdown: the counts by verdict and form."""
    counts = Counter((verdict, form(name, what)) for name, what, verdict, _ in verdicts)
    lines = [f"| verdict | {' | '.join(FORMS)} |", "| --- " * (1 + len(FORMS)) + "|"]
    for verdict in VERDICTS:
        lines.append(f"| {verdict} | {' | '.join(str(counts[verdict, f] or '') for f in FORMS)} |")
    return lines


def by_reason(verdicts: Sequence[tuple[str, str, str, str]]) -> list[list[str]]:
    """The table of the calls that differ, by reason."""
    reasons = Counter(reason_of(name, what, verdict) for name, what, verdict, _ in verdicts if verdict not in GOOD)
    rows = [["calls", "of", "reason"]]
    for number, (_, names_, _, reason) in enumerate(REASONS):
        if reasons[number]:
            rows.append([str(reasons[number]), ", ".join(f"`{n}`" for n in names_.split()), reason])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="*", help="OpInfos, and methods as Tensor.NAME, by a glob of their name")
    parser.add_argument("-n", type=int, default=1, help="worker processes")
    parser.add_argument("--json", type=Path, help="a file for all verdicts")
    parser.add_argument("--write", action="store_true", help="renew the tables in docs/")
    options = parser.parse_args()
    verdicts, explained = [], set()
    failed = False
    for name, what, verdict, why in run(names(options.op), options.n):
        verdicts.append((name, what, verdict, why))
        if verdict in GOOD:
            continue
        reason = reason_of(name, what, verdict)
        explained.add(reason)
        failed |= reason is None
        print(f"{'NO REASON: ' if reason is None else ''}{verdict}: {name}: {what}: {why}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(verdicts))
    lines = table(verdicts)
    print(*lines, sep="\n")
    if options.op == "*":
        for number in set(range(len(REASONS))) - explained:
            print(f"this reason has no difference: {REASONS[number]}")
            failed = True
    if options.write:
        PART.renew("\n".join(lines))
        write(TABLE, csv_text(by_reason(verdicts)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
