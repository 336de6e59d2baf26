"""Standalone scripts: a failing call as Python code that needs only torch and the target, and a one-line summary.

A call that is a program has the script of that program. For any other call, or one with large inputs, the script takes
the sample from op_db. `standalone/script.py` defines the form of both.
"""

from __future__ import annotations

import functools
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

import torch

from conformance.engine.target import Target
from conformance.program.float64 import JudgedProgram
from conformance.program.model import Program
from conformance.program.script import script as program_script
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_script import from_op_db
from conformance.sources.opinfo.sampling import Sample
from conformance.standalone.moving import storage_key, tensors
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import comparison_options
from conformance.standalone.script_runtime import leaves_by_name
from conformance.standalone.tensor_source import input_lines

if TYPE_CHECKING:
    from conformance.sources.opinfo.variants import SampleTrial


def function_name(op: Any) -> str:
    """Return `torch.add` if the OpInfo calls it; "" for a wrapper, which has no name outside op_db."""
    try:
        named = functools.reduce(getattr, op.name.split("."), torch)
    except AttributeError:
        return ""
    return f"torch.{op.name}" if named is op.op else ""


def method_name(op: Any, suffix: str) -> str:
    """Return `torch.Tensor.add_` if it is the OpInfo's method or in-place variant, else ""."""
    name = f"{op.name}{suffix}"
    variant = op.inplace_variant if suffix else op.method_variant
    if name.startswith("_foreach"):
        return f"torch.{name}"
    return f"torch.Tensor.{name}" if getattr(torch.Tensor, name, None) is variant else ""


def summary(name: str, tree: dict[str, Any]) -> str:
    """Return the call in one line: tensors by size, dtype and, if not contiguous, their strides."""
    items = [_brief(tree["input"]), *map(_brief, tree["args"])]
    named = {**tree["kwargs"], **({"out": tree["out"]} if "out" in tree else {})}
    return f"{name}({', '.join(items + [f'{key}={_brief(value)}' for key, value in named.items()])})"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout is not torch.strided:
            return f"Tensor{list(value.shape)} {dtype} {value.layout}"
        extra = "" if value.is_contiguous() else f" stride {tuple(value.stride())}"
        extra += f" offset {value.storage_offset()}" if value.storage_offset() else ""
        return f"Tensor{list(value.shape)} {dtype}{extra}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_brief, value[:6])) + (", ..." if len(value) > 6 else "")
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def standalone(
    trial: SampleTrial,
    finding: str,
    mismatch: Mismatch | None = None,
    program: Program | None = None,
    *,
    sparse: bool = False,
) -> str:
    """Return the script that makes the call on the CPU and on the target and prints both answers.

    `mismatch` has the names of the `program`, if there is one. `sparse` says that a result is sparse.
    """
    case, sample, target, given = trial.case, trial.sample, trial.target, trial.program
    tree, terms = given.trees, JudgedProgram(given).terms
    own_process = sample.process is not None
    notes = [f"Again: {again(case, target.spec, sample.index)}"]
    if program is not None:
        mismatches = [mismatch] if mismatch is not None else []
        return program_script(program, target, mismatches, [f"Case {program.note}", *notes], None, finding)
    options = {
        **comparison_options(terms.oracles or target.facts.oracles - {"version"}, target.facts.lacks),
        "undefined": str((*terms.undefined, "value of result") if own_process else terms.undefined),
        "tolerance": str({name: terms.tolerance[name] for name in [case.dtype] if name in terms.tolerance}),
    }
    if sparse or any(tensor.layout is not torch.strided for tensor in tensors(tree)):
        mismatch = None  # it may be about a component of a sparse tensor, which has no such name
    stays = {name for name, x in leaves_by_name(tree).items() if isinstance(x, torch.Tensor) and _kept(x, sample)}
    return from_op_db(
        case,
        target.script(),
        sample.index,
        textwrap.shorten(finding, 110),
        mismatch,
        notes=[textwrap.shorten(finding, 500), *notes],
        options=options,
        out=_out_lines(tree["out"], target) if "out" in tree else [],
        lacks=target.facts.lacks,
        stays=stays,
        processed=own_process,
        plain=case.layout == "as_sampled" and not stays and _plain(sample.tree),
        origin=sample.origin,
    )


def again(case: Case, target: str, index: int) -> str:
    """Return the command that runs this sample again."""
    words = ["python", "-m", "conformance.opinfo_runner", "--target", target, "--replay", f"{case.id}#{index}"]
    return shlex.join(words)


def _kept(tensor: torch.Tensor, sample: Sample) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta and storage_key(tensor) in sample.kept


def _plain(tree: dict[str, Any]) -> bool:
    """Whether `.to(device)` preserves all properties of the tensors: each is dense and has a separate storage."""
    parts = tensors(tree)
    dense = all(
        part.layout is torch.strided
        and part.is_contiguous()
        and part.untyped_storage().nbytes() == part.nbytes
        and not (part.is_conj() or part.is_neg() or part.is_meta)
        for part in parts
    )
    alone = dense and len({storage_key(part) for part in parts}) == len(parts)
    return alone and not any(isinstance(leaf, torch.device) for leaf in leaves_by_name(tree).values())


def _out_lines(out: Any, target: Target) -> list[str]:
    outs = [(f"out_{number}", tensor) for number, tensor in enumerate(tensors(out))]
    names = ", ".join(name for name, _ in outs)
    return [*input_lines(outs, lacks=target.facts.lacks), names if isinstance(out, torch.Tensor) else f"({names},)"]
