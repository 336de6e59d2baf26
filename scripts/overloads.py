"""Count the called aten overloads, and list them: `python -m scripts.overloads [--write] [--names]`.

Runs op_db and the entries of sources/opinfo/overloads.py on torch CPU under PyTorch's profiler, which names each
overload that the dispatcher calls, composites included. Prints the count of each class. Exits with 1 if an overload
that takes tensors is in no class. With --write, renews the table of docs/checks.md and the calls in
conformance/sources/opinfo/overloads.toml. With --names, prints every overload with its entry or reason. Takes several
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # otherwise the profiler announces itself

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from conformance.engine.aten_ops import OperatorNames
from conformance.record import result as model
from conformance.sources.opinfo import catalog, overloads
from conformance.sources.opinfo.overload_rows import ROWS
from conformance.sources.opinfo.sampling import Sample, samples
from conformance.standalone.moving import MARKER
from conformance.standalone.torch_compat import operator_names
from scripts.pages import ROOT, Part

TABLE = ROOT / "conformance" / "sources" / "opinfo" / "overloads.toml"
PART = Part("docs/checks.md", "overloads")
SAMPLES = {"float32": 60, "int64": 6, "complex64": 6, "bool": 3}
"""Largest number of samples of each entry that are called, by dtype."""


TRIED = 6
"""Number of samples of an entry outside op_db that are called."""


def reached_by_op_db() -> tuple[dict[str, str], dict[str, str]]:
    """(first entry that calls each overload, entry and direction of each overload that is called below autograd)."""
    whole: dict[str, str] = {}
    below: dict[str, str] = {}
    for (name, rest), op in catalog.by_name().items():
        entry = f"{name}.{rest}".removesuffix(".")
        for dtype, most in SAMPLES.items():
            for backward in (False, True):
                if getattr(torch, dtype) not in (op.supported_backward_dtypes("cpu") if backward else op.dtypes):
                    continue
                operators = OperatorNames()
                for called in profiled(op, dtype, most, backward, operators):
                    whole.setdefault(called, entry)
                for called in operators.names:
                    below.setdefault(called.removeprefix("aten::"), entry + " backward" * backward)
    return whole, below


def profiled(op: Any, dtype: str, most: int, backward: bool, operators: OperatorNames | None = None) -> list[str]:
    """aten overloads that the samples of an entry call, in every form of the entry."""
    config = _ExperimentalConfig(capture_overload_names=True)
    variant = "backward" if backward else "forward"
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as seen:
        try:
            for sample in samples(op, variant, getattr(torch, dtype), "as_sampled", most):
                for _ in attempts(op, sample, backward):
                    pass
                if operators is not None:
                    with operators:
                        next(attempts(op, sample, backward), None)
        except RuntimeError as error:  # op_db contains the failing sampler, and the runner counts it
            print(f"{op.name}: {error}", file=sys.stderr)
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()  # the raw events: building their tree takes more time than the calls
    called = {(event.name(), event.overload_name()) for event in events}
    return [f"{name[6:]}.{rest}".removesuffix(".") for name, rest in called if name.startswith("aten::")]


def attempts(op: Any, sample: Sample, backward: bool) -> Iterator[None]:
    """Call the sample in each form of the entry; a call that the CPU refuses does not count."""

    def function() -> Any:
        result = op.op(sample.input, *sample.args, **sample.kwargs)
        tensors = [
            tensor for tensor in (result if isinstance(result, (tuple, list)) else [result]) if torch.is_tensor(tensor)
        ]
        if backward and any(tensor.requires_grad for tensor in tensors):
            wanted = [tensor for tensor in tensors if tensor.requires_grad]
            torch.autograd.backward(wanted, [torch.ones_like(tensor) for tensor in wanted])
        return result

    forms = [function]
    if not backward:
        if op.method_variant:
            forms.append(lambda: op.method_variant(sample.input, *sample.args, **sample.kwargs))
        if op.inplace_variant and torch.is_tensor(sample.input):
            forms.append(lambda: op.inplace_variant(sample.input.clone(), *sample.args, **sample.kwargs))
        if op.supports_out:
            forms.append(lambda: op.op(sample.input, *sample.args, **sample.kwargs, out=torch.empty_like(function())))
    for form in forms:
        try:
            form()
        except Exception:
            continue
        yield


def calls(whole: dict[str, str], below: dict[str, str], left: list[str]) -> dict[str, str]:
    """Source of a working call for each overload in `left`; overloads without one are absent."""
    named = defaultdict(list)
    for (name, rest), op in catalog.by_name().items():
        entry = f"{name}.{rest}".removesuffix(".")
        for word in {name, op.aten_name, *(alias.name for alias in op.aliases)}:
            named[word.replace(".", "_")].append(entry)
    sources = {}
    for name in left:
        for source in candidates(name, named, below):
            dtypes = [dtype for dtype in SAMPLES if works(name, f"{source}; {dtype}")]
            if dtypes:
                sources[name] = f"{source}; {', '.join(dtypes)}"
                break
    return sources


def candidates(name: str, named: dict[str, list[str]], below: dict[str, str]) -> Iterator[str]:
    """Yield sources of arguments that may work, the best first."""
    op, (base, _, rest) = overloads.overload(name), name.partition(".")
    plain = base.removesuffix("_") if not base.endswith("__") else base
    with contextlib.suppress(LookupError):
        near = overloads.name_of(overloads.functional(op))
        yield from (f"row {one}" for one in (name, near, f"{plain}.{rest}".removesuffix(".")) if one in ROWS)
    for word in dict.fromkeys((base, plain, plain.removesuffix("_copy"))):
        yield from (f"sample {entry}" for entry in named.get(word, ()))
    for word in dict.fromkeys((base, plain, plain.removesuffix("_copy"), f"_{plain}", f"{plain}_forward")):
        packet = getattr(torch.ops.aten, word, None)
        for rest in packet.overloads() if packet is not None and hasattr(packet, "overloads") else ():
            near = f"{word}.{rest}".removesuffix(".default")
            if near in below and overloads.types(overloads.overload(near)) == overloads.types(op):
                yield f"below {below[near]} > {near}"
    yield "schema"


def works(name: str, source: str) -> bool:
    """Whether torch CPU answers at least one of the calls.

    The calls run in a child process: torch's internal overloads need not check their arguments, and some end the
    process.
    """
    child = os.fork()
    if not child:
        os._exit(not answers(name, source))
    return os.waitpid(child, 0)[1] == 0


def answers(name: str, source: str) -> bool:
    """As `works`, in this process."""
    op, answered = overloads.overload(name), 0
    try:
        dtypes, arguments = overloads.source_of(op, source)
        [dtype] = dtypes
        entry = overloads.Overload(name, op, dtypes, arguments)
        for sample in itertools.islice(entry.sample_inputs(MARKER, dtype), TRIED):
            answered += len(list(attempts(entry, sample, False)))
    except Exception:
        return answered > 0
    return answered > 0


def reached_by_entries() -> dict[str, str]:
    """Overloads that the entries outside op_db call, and the entry of each."""
    entries: dict[str, str] = {}
    for name, op in overloads.infos().items():
        dtype = next(one for one in SAMPLES if getattr(torch, one) in op.dtypes)
        for called in profiled(op, dtype, TRIED, False):
            entries.setdefault(called, name)
    return entries


def classes(whole: dict[str, str], beside: dict[str, str]) -> dict[str, dict[str, str]]:
    """Every overload in the first class that contains it, with its entry or reason."""
    by_class: dict[str, dict[str, str]] = {"op_db": {}, "entries beside op_db": {}, "not called": {}, "unknown": {}}
    for name in sorted(name[6:] for name in operator_names() if name.startswith("aten::")):
        reason = overloads.excluded(name)
        if name in whole:
            by_class["op_db"][name] = whole[name]
        elif name in beside:
            by_class["entries beside op_db"][name] = beside[name]
        elif reason or not takes_tensors(name):
            by_class["not called"][name] = reason or "no tensor among its arguments and results"
        else:
            by_class["unknown"][name] = ""
    return by_class


def takes_tensors(name: str) -> bool:
    """Whether an overload has tensors among its arguments or results."""
    op = overloads.overload(name)
    return op is not None and "Tensor" in str(op._schema)


def counts(by_class: dict[str, dict[str, str]]) -> list[str]:
    """Lines of the table in docs/checks.md: the number of overloads in each class."""
    op_db, beside, excluded, unknown = (f"{len(names):,}" for names in by_class.values())
    return [
        f"| torch {torch.__version__.partition('+')[0]} | overloads | by |",
        "|---|---|---|",
        f"| called by op_db | {op_db} | `conformance opinfo`, and as steps of drawn programs |",
        f"| called by an entry beside op_db | {beside} | `conformance opinfo --suite overloads` |",
        f"| not called, with a reason | {excluded} | |",
        f"| unknown | {unknown} | |",
        f"| all | {sum(map(len, by_class.values())):,} | |",
    ]


def table(sources: dict[str, str]) -> str:
    """Text of overloads.toml with these calls; the excluded overloads are unchanged."""
    before, _, rest = TABLE.read_text().partition("[calls]\n")
    _, _, excluded = rest.partition("[excluded]\n")
    rows = [f"{name!r} = {source!r}\n".replace("'", '"') for name, source in sorted(sources.items())]
    return "".join([before, "[calls]\n", *rows, "\n[excluded]\n", excluded])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the calls, and the table of the page")
    parser.add_argument("--names", action="store_true", help="print every overload with its entry or reason")
    args = parser.parse_args()
    write = args.write
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    whole, below = reached_by_op_db()
    if write:
        by_class = classes(whole, {})
        left = [name for name in by_class["unknown"] if overloads.overload(name) is not None]
        model.write_atomic(TABLE, table(calls(whole, below, left)))
        overloads.TABLE = tomllib.loads(TABLE.read_text())
        overloads.infos.cache_clear()
    by_class = classes(whole, reached_by_entries())
    if write:
        PART.renew("\n".join(counts(by_class)))
    if args.names:
        print("\n".join(f"{name}: {why}" for names in by_class.values() for name, why in sorted(names.items())))
    print("\n".join(f"{len(names):5,} {kind}" for kind, names in by_class.items()))
    if by_class["unknown"]:
        print("unknown:", " ".join(by_class["unknown"]))
    return bool(by_class["unknown"])


if __name__ == "__main__":
    sys.exit(main())
