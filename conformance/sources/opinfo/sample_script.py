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
from conformance.standalone.script import ScriptBody, carried, comparison_options, defined, render

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

HELPERS = (*"placed replaced with_ends emptied single sent moved with_gaps".split(), *AROUND.values(), "processed")
"""Functions that a script carries if it calls them."""

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
    if origin is not None and origin.change.host and not stays:  # a crash, whose inputs this process does not see
        stays = [f"{origin.place[0]}{written(origin.place[1:])}"]
    windows = "as_strided" in lacks and not plain
    inputs = _inputs(case, origin, sorted(stays), plain, windows)
    form = case.variant if origin is None else origin.form
    parameters, call = ["input", "args", "kwargs"], f"{CALLED.get(form, 'op.op')}(input, *args, **kwargs)"
    if case.variant == "out":
        parameters, call = [*parameters, "out"], call.replace(")", ", out=out)")
        *lines, last = out or ["with_gaps(op.op(made['input'], *made['args'], **made['kwargs']), device)"]
        inputs += [*lines, f"made['out'] = {last}"]
    around = AROUND.get(case.variant, "")
    wrapped = [f"def call(program, given): return {_processed(around)}"] if processed else []
    text = "\n".join([*inputs, *wrapped, f"{around}("])
    helpers = [name for name in HELPERS if f"{name}(" in text]
    bug = ScriptBody(
        [
            _sampled(case, index if origin is None else origin.sample, unseeded="transform" in defined(setup)),
            carried((*helpers, *["unfolded"] * windows)),
            *wrapped,
        ],
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
        {"apart": "taken_apart", **(options or comparison_options({*ORACLES} - {"version"}, lacks))},
        [f"Case {case.id}, sample {index}", *notes],
        roots=("taken_apart",),
    )


def _sampled(case: Case, index: int, unseeded: bool) -> str:
    """Return the lines that take the sample from op_db. With `unseeded`, an entry calls its op without setting a
    seed."""
    usual = f"op.sample_inputs(torch.device('cpu', 0), torch.{{dtype}}, requires_grad={case.variant in DIFFERENTIATED})"
    drawn = DRAWN.get(case.variant, usual.replace(", requires_grad=False", "")).format(dtype=case.dtype)
    overload, _, turn = case.overload.partition("#")
    return (
        "import itertools\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n"
        f"{UNSEEDED * unseeded}\n"
        f"op = [op for op in op_db if (op.name, op.variant_test_name) == {(case.op, overload)!r}]"
        f"[{int(turn) - 1 if turn else 0}]\n"
        f"sample = next(itertools.islice({drawn}, {index}, None))"
        f"{'.sample_input' if case.variant == 'error_inputs' else ''}"
    )


def _inputs(case: Case, origin: Origin | None, stays: list[str], plain: bool, windows: bool) -> list[str]:
    """Return the lines that make the inputs `made` on the device from the sample. With `windows`, tensors are made
    without `as_strided`."""
    lines = ["given = {'input': sample.input, 'args': sample.args, 'kwargs': sample.kwargs}"]
    if origin is not None:
        new, place = origin.change.to, written(origin.place)
        lines += [f"import {module}" for module in ("math", "numpy") if f"{module}." in new]
        lines += [f"x = given{place}", f"given = replaced(given, {origin.place!r}, {new})  # {origin}"]
    if case.variant in TIERS:
        kept = f", {{storage_key(x) for name, x in leaves_by_name(given).items() if name in {stays}}}" * bool(stays)
        names = takes_specials(case.op, case.family, case.dtype)
        more = f"{kept}{f', names={names}' * bool(names)}{', positive=True' * (case.family in ADDING_UP)}"
        lines.append(f"given = placed(given, {TIERS[case.variant]!r}, torch.{case.dtype}{more})")
    layout = f", layout={case.layout!r}" * (case.layout != "as_sampled")
    arguments = f"{layout}{f', stays={stays}' * bool(stays)}{', place=unfolded' * windows}"
    return [*lines, f"made = {'sent' if plain else 'moved'}(given, device{arguments})"]


def _processed(around: str) -> str:
    """Return the call of a program whose result OpInfo processes, with the function that makes the call, if any."""
    process = "sample.output_process_fn_grad"
    if around == "gradients":
        return f"processed(program, given, {process}, lambda *run: gradients(*run, {process}))"
    return f"{around or 'processed'}(program, given, {process})"
