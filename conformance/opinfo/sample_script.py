"""Scripts that take their sample from op_db: for a call without a public name or with large inputs, and for a crash.

The key insight: op_db draws the same samples everywhere, so the number of a sample is enough to make it again, and a
process that never imported torch can write the script.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from conformance.core.names import DIFFERENTIATED
from conformance.core.script import Source, render
from conformance.opinfo.plan import Case

HERE = Path(__file__).parent
APART: tuple[Source, ...] = ((HERE / "sampling.py", ("map_leaves", "_COMPRESSED", "parts", "taken_apart")),)
GRADIENTS: tuple[Source, ...] = ((HERE / "sample_runtime.py", ("draws", "differentiable", "gradients")),)
LAYOUTS = ("_contiguous_stride", "_strided_copy", "_transposed", "_expanded", "_channels_last", "_LAYOUTS", "laid_out")
DRAWN = {
    "error_inputs": "op.error_inputs('cpu')",
    "reference_inputs": "op.reference_inputs(torch.device('cpu', 0), torch.{dtype})",
}
CALLED = {"method": "op.method_variant", "inplace": "op.inplace_variant"}
RUN = {"backward": "gradients", "forward_over_backward": "derivatives"}


def from_op_db(
    case: Case,
    setup: str,
    index: int,
    finding: str,
    *,
    notes: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    out: Sequence[str] = (),
    stays: Collection[str] = (),
    processed: bool = False,
) -> str:
    """The script that takes sample number `index` from op_db; also for a crash, where nothing else is known. `out` are
    the lines that make the tensors for out=, the last an expression; `stays` are inputs that stay on the CPU, and
    `processed` says that OpInfo processes the result before it is compared."""
    usual = f"op.sample_inputs(torch.device('cpu', 0), torch.{{dtype}}, requires_grad={case.variant in DIFFERENTIATED})"
    drawn = DRAWN.get(case.variant, usual.replace(", requires_grad=False", "")).format(dtype=case.dtype)
    name, _, number = case.overload.partition("#")
    layout = "" if case.layout == "as_sampled" else case.layout
    extra = "".join([f", layout={layout!r}" * bool(layout), f", stays={sorted(stays)}" * bool(stays)])
    inputs = [
        "given = {'input': sample.input, 'args': sample.args, 'kwargs': sample.kwargs}",
        f"made = moved(given, device{extra})",
    ]
    call = f"{CALLED.get(case.variant, 'op.op')}(input, *args, **kwargs)"
    arguments = "input, args, kwargs"
    if case.variant == "out":
        call, arguments = call.replace(")", ", out=out)"), f"{arguments}, out"
        plain = "made['input'], *made['args'], **made['kwargs']"
        *lines, made = out or [f"with_gaps(op.op({plain}), device)"]
        inputs += [*lines, f"made['out'] = {made}"]
    run = ""
    if case.variant in RUN:
        run = f"{RUN[case.variant]}({'sample.output_process_fn_grad' if processed else ''})"
    if processed and case.variant != "forward_over_backward":
        run = f"processed({', '.join(filter(None, ['sample.output_process_fn_grad', run]))})"
    given = dict(options or {"unjudged": "['version']"}) | ({"run": run} if run else {}) | {"apart": "taken_apart"}
    draw = (
        "import itertools\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n\n"
        f"op = [op for op in op_db if (op.name, op.variant_test_name) == {(case.op, name)!r}]"
        f"[{int(number) - 1 if number else 0}]\n"
        f"sample = next(itertools.islice({drawn}, {index}, None))"
        f"{'.sample_input' if case.variant == 'error_inputs' else ''}"
    )
    return render(
        [finding[:500].replace("\n", " "), "", f"Case {case.id}, sample {index}", *notes],
        setup,
        [draw],
        [*inputs, "return made"],
        f"def program({arguments}):\n    return {{'result': {call}}}",
        given,
        extra=[
            (HERE.parent / "core" / "moving.py", ("storage_key",)),
            *APART,
            *([(HERE / "sampling.py", LAYOUTS)] if layout else []),
            (HERE / "sample_runtime.py", ("moved", *_needed(f"{run} {' '.join(inputs)}"))),
        ],
    )


def _needed(text: str) -> list[str]:
    """The functions of `sample_runtime.py` that the script's own part calls, and what these call."""
    names = [name for name in ("gradients", "derivatives", "processed", "with_gaps") if f"{name}(" in text]
    return ["draws", "differentiable", *names] if {"gradients", "derivatives"} & {*names} else names
