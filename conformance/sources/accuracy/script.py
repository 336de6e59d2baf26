"""Standalone script of an accuracy finding: the call on torch CPU and on the target, and both errors in ulp.

For an elementary function one number is enough, in a tensor long enough for a vectorized loop and its tail. Any other
op runs on the inputs of the measurement, with its float64 answer as the exact one. The script carries the source of the
functions that compute and measure answers (`standalone/script.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.record.accuracy import limit
from conformance.record.result import Failure
from conformance.record.sentences import sentence
from conformance.sources.accuracy.measure import MeasuredAnswer
from conformance.sources.accuracy.table import AccuracyCase
from conformance.standalone.accuracy import SEED
from conformance.standalone.script import carried, defined, inert

LENGTH = 1003
"""Elements that hold the one number: more than any vector register has, and no multiple of its length."""

MARKER = "# The errors in ulp: exit code 1 where the target's is beyond what is allowed beside torch CPU's."


def standalone(case: AccuracyCase, setup: str, part: MeasuredAnswer, wanted: Sequence[str], failure: Failure) -> str:
    """Return the script; if the target's error exceeds the limit, it reports the `failure` and its exit code is 1, else
    0.

    `setup` is the target's `script()`, and `wanted` are the inputs whose gradients are measured.
    """
    row, known, each = case.row, defined(setup), bool(case.row.exact)
    title = f"{case.id}: {sentence(failure)}"
    report = f"{failure.oracle} of {failure.where}: expected {failure.expected}, got"
    full = f"torch.full(({LENGTH},), {{!r}}, dtype={{}})".format
    lines, exact, low = row.input_lines(), "answer(torch.float64, 'cpu', program)", "torch.zeros_like(exact)"
    if each:
        tensors = zip(row.arguments, (full(number, "DTYPE") for number in part.arguments), strict=True)
        lines = [f"given = {{{', '.join(f'{name!r}: {text}' for name, text in tensors)}}}"]
        exact, low = (full(number, "torch.float64") for number in part.exact)
    run, device = ("transform(program)", "'cpu'") if "transform" in known else ("program", "DEVICE")
    got = f"got = answer(DTYPE, {device}, {run})"
    answer = [
        "def answer(dtype, device, run):",
        "    given = widened_inputs(widened_inputs(inputs(), DTYPE), dtype)",
        f"    made = answers(run, {{name: x.to(device) for name, x in given.items()}}, {[*wanted]!r}, {each})",
        f"    return made[{part.answer!r}].detach().cpu()",
    ]
    index = 0 if each else part.index
    calls = [
        f"exact = {exact}",
        "cpu = answer(DTYPE, 'cpu', program)",
        *(["with MODE:", f"    {got}"] if "MODE" in known else [got]),
        *(f"print({name!r}, {name}.flatten()[{index}].item())" for name in ("exact", "cpu", "got")),
    ]
    own = "\n\n".join(
        [
            f'"""{inert(title)}"""\nimport torch\nimport torch.nn.functional as F\n{setup.strip()}',
            f"DTYPE, SEED = torch.{case.dtype}, {SEED}",
            "\n".join(["def inputs():", *(f"    {line}" for line in lines), "    return given"]),
            row.program(),
            "\n".join(["def print_both():", "    global exact, cpu, got", *(f"    {line}" for line in calls)]),
        ]
    )
    accuracy = part.accuracy
    beyond = "beyond(off, usual)"
    if each:  # one number has no mean; the limit follows from torch CPU's error at all points
        largest = limit(accuracy.cpu)
        beyond = f"bool(off.max() > {largest if accuracy.target > largest else limit(accuracy.cpu_rms)!r})"
    main = [
        "print_both()",
        f"off, usual = (errors(x, exact, {low}, DTYPE, {each}) for x in (got, cpu))",
        "print('the largest errors in ulp: target', off.max().item(), 'cpu', usual.max().item())",
        f"found = {beyond}",
        "if found:",
        f"    print({report!r}, off.max().item(), 'ulp')",
        "return found",
    ]
    rest = carried(("answers", "widened_inputs", "errors", "beyond", "end_script"), frozenset(defined(own)))
    end = ["def main():", *(f"    {line}" for line in main), "", "end_script(main)"]
    return "\n".join([own, "", MARKER, rest, "", *answer, "", *end, ""])
