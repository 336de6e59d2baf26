"""Scripts that take their sample from op_db: for a call without a public name or with large inputs, and for a crash.

op_db draws the same samples everywhere, so the number of a sample is enough to reproduce it. A process that never
imported torch can therefore write the script.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from conformance.record.names import DIFFERENTIATED, ORACLES, SPECIALS_BACKWARD, TIERS
from conformance.sources.opinfo.arguments import Origin, written
from conformance.sources.opinfo.plan import ADDING_UP, Case, takes_specials
from conformance.standalone.script import Bug, carried, defined, judged, render

if TYPE_CHECKING:
    from conformance.standalone.oracles import Mismatch

DRAWN = {
    "error_inputs": "op.error_inputs('cpu')",
    "reference_inputs": "op.reference_inputs(torch.device('cpu', 0), torch.{dtype})",
}
CALLED = {"method": "op.method_variant", "inplace": "op.inplace_variant"}
AROUND = {
    "backward": "gradients",
    "forward_over_backward": "derivatives",
    **dict.fromkeys(SPECIALS_BACKWARD, "gradients"),
}
"""Function that makes the call, by variant."""

UNSEEDED = """from torch.testing._internal import common_methods_invocations as invocations

invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # which no compiler traces
"""
"""Code that makes op_db entries which set a seed call their op directly, as the harness does (`torch_compat`)."""


def from_op_db(
    case: Case,
    setup: str,
    index: int,
    finding: str,
    mismatch: Mismatch | None = None,
    *,
    notes: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    out: Sequence[str] = (),
    stays: Collection[str] = (),
    processed: bool = False,
    plain: bool = False,
    lacks: Collection[str] = (),
    origin: Origin | None = None,
) -> str:
    """Return the script that takes sample number `index` from op_db. It also works for a crash, without a mismatch.

    `out` are the lines that make the out= tensors, the last one an expression. `stays` are inputs that stay on the CPU.
    `processed` means that OpInfo processes the result before the comparison, and `plain` that all tensors are dense.
    `lacks` are the features that the device lacks. `origin` is the changed argument of the sample.
    """
    usual = f"op.sample_inputs(torch.device('cpu', 0), torch.{{dtype}}, requires_grad={case.variant in DIFFERENTIATED})"
    drawn = DRAWN.get(case.variant, usual.replace(", requires_grad=False", "")).format(dtype=case.dtype)
    name, _, turn = case.overload.partition("#")
    number = index
    kept = f", {{storage_key(x) for name, x in leaves(given).items() if name in {sorted(stays)}}}" * bool(stays)
    names = takes_specials(case.op, case.family, case.dtype)
    rest = f"{kept}{f', names={names}' * bool(names)}{', positive=True' * (case.family in ADDING_UP)}"
    special = f"given = placed(given, {TIERS.get(case.variant)!r}, torch.{case.dtype}{rest})"
    layout = "" if case.layout == "as_sampled" else case.layout
    changed, form = list[str](), case.variant
    if origin is not None:
        index, form, new = origin.sample, origin.form, origin.change.to
        imports = [f"import {module}" for module in ("math", "numpy") if f"{module}." in new]
        place = written(origin.place)
        changed = [*imports, f"x = given{place}", f"given = replaced(given, {origin.place!r}, {new})  # {origin}"]
        if origin.change.host and not stays:  # a crash, whose inputs this process does not see
            stays = [f"{origin.place[0]}{written(origin.place[1:])}"]
    windows = "as_strided" in lacks and not plain
    extra = "".join([f", layout={layout!r}" * bool(layout), f", stays={sorted(stays)}" * bool(stays)])
    extra += ", place=unfolded" * windows
    inputs = [
        "given = {'input': sample.input, 'args': sample.args, 'kwargs': sample.kwargs}",
        *changed,
        *[special] * (case.variant in TIERS),
        f"made = {'sent' if plain else 'moved'}(given, device{extra})",
    ]
    parameters = ["input", "args", "kwargs"]
    call = f"{CALLED.get(form, 'op.op')}(input, *args, **kwargs)"
    if case.variant == "out":
        parameters, call = [*parameters, "out"], call.replace(")", ", out=out)")
        *lines, last = out or ["with_gaps(op.op(made['input'], *made['args'], **made['kwargs']), device)"]
        inputs += [*lines, f"made['out'] = {last}"]
    around, process = AROUND.get(case.variant, ""), "sample.output_process_fn_grad"
    calls = f"{around}(program, given, {process})" if around else f"processed(program, given, {process})"
    if processed and around == "gradients":
        calls = f"processed(program, given, {process}, lambda *run: gradients(*run, {process}))"
    wrapped = [f"def call(program, given): return {calls}"] if processed else []
    text = "\n".join([*inputs, *wrapped, f"{around}("])
    helpers = [
        word
        for word in (
            "placed",
            "replaced",
            "with_ends",
            "emptied",
            "single",
            "sent",
            "moved",
            "with_gaps",
            *AROUND.values(),
            "processed",
        )
        if f"{word}(" in text
    ]
    draw = (
        "import itertools\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n"
        f"{UNSEEDED * ('transform' in defined(setup))}\n"
        f"op = [op for op in op_db if (op.name, op.variant_test_name) == {(case.op, name)!r}]"
        f"[{int(turn) - 1 if turn else 0}]\n"
        f"sample = next(itertools.islice({drawn}, {index}, None))"
        f"{'.sample_input' if case.variant == 'error_inputs' else ''}"
    )
    bug = Bug(
        [draw, carried((*helpers, *["unfolded"] * windows)), *wrapped],
        [*inputs, "return made"],
        parameters,
        f"def program({', '.join(parameters)}):\n    return {{'result': {call}}}",
        "call" if processed else around,
    )
    return render(
        bug,
        setup,
        finding[:500].replace("\n", " "),
        mismatch,
        {"apart": "taken_apart", **(options or judged({*ORACLES} - {"version"}, lacks))},
        [f"Case {case.id}, sample {number}", *notes],
        roots=("taken_apart",),
    )
