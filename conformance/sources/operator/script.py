"""The script of a failing call: the user's import, the inputs, the calls, and the check that failed.

Defines `script` and `headline`. A script has no check of its own: it carries the functions of
`standalone/operator_checks.py` that the check uses, and calls the one that found the difference.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from conformance.engine.loading import describe_target
from conformance.program.capture import Unwritable
from conformance.program.execute import make_inputs
from conformance.program.steps.op import render
from conformance.record.sentences import ELEMENTS, LONGEST, sentence
from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.checks import PROCEDURES, Examination, checked_call, other_sizes, renewed
from conformance.sources.operator.devices import loaded
from conformance.sources.operator.finding import lazy_views, program_of, variables, without_lazy_views
from conformance.sources.operator.subject import by_finding_name
from conformance.sources.operator.table import CHECKS, FATAL
from conformance.sources.operator.verdict import Difference
from conformance.standalone import derivative_checks, device, operator_checks, script_end, transform_checks
from conformance.standalone.moving import tensors
from conformance.standalone.operator_checks import PROCESS, CheckedCall, of_result
from conformance.standalone.script import MARKER, carried, defined, inert, load, own_name
from conformance.standalone.tensor_source import NoSource, input_lines

FACTS = ("dtype", "shape", "stride", "structure", "value", "storage")
"""Oracles whose differences have a sentence of their own."""


OF_PROCESS = {"crash": "call_operator", "hang": "call_operator", "writes": "writes_beyond"}
"""Functions that end the process as the operator did in a procedure, by check."""


def headline(finding: Difference) -> str:
    """Return the difference as a sentence, with the name of its check."""
    one = finding.mismatch
    one = replace(one, detail=one.detail.removeprefix("the value; "))
    if one.oracle in FACTS or ELEMENTS.match(one.detail):
        text = sentence(one)
    else:
        want, got = (textwrap.shorten(side, LONGEST, placeholder=" ...") for side in (one.expected, one.actual))
        text = f"{one.where}: expected {want}, got {got}" + (f" ({one.detail})" if one.detail else "")
    text += f" ({finding.call.note})" if finding.call.note else ""
    text += (
        "" if finding.recurs else "; this call alone is right: the result depends on earlier calls, or on old memory"
    )
    return textwrap.shorten(f"{finding.check}: {text}", 400)


def script(trial: Examination, finding: Difference, carry: bool = True) -> str:
    """Return the script of a difference. Its exit code is 1 if the operator is wrong. With `carry`, it needs torch
    only; otherwise it imports the check from this package, so that it fits on a screen. A call that no script can write
    has a script with the headline only."""
    about = f'"""{inert(headline(finding))}"""'
    try:
        reach, calls = reaching_lines(trial, finding), call_lines(trial, finding)
    except (Unwritable, NoSource) as error:
        return f"{about}\n# The inputs have no short form: {error}\n"
    procedure = PROCEDURES[CHECKS[finding.check].procedure]
    function, report, work = procedure.run.__name__, "report_differences", "check()"
    if finding.mismatch.where == PROCESS:
        function = OF_PROCESS.get(finding.check, function)
        if finding.check != "crash":  # which ends the script's own process, as it ends the user's
            report, work = "report_in_fork", "check"
    roots: tuple[str, ...] = (function, "CheckedCall", report, "end_script")
    taken = bound_names("\n".join(reach))
    function, made, report, end = (own_name(name, taken) for name in roots)
    roots += ("NamedDevice",) if trial.device else ()
    made += f"({', '.join(call_arguments(trial, finding))})"
    check = ["def check():", f"    return {function}({made})"]
    rest = [MARKER, carried(roots, taken=taken), ""] if carry else []
    main = ["def main():", *printing_lines(trial, finding), f'    return {report}("{finding.check}", {work})', ""]
    reach += [] if carry else imports_of(roots, taken)
    head = [about, "import sys, torch", 'sys.path.append("")  # modules in the current folder are found, too']
    return "\n".join([*head, *reach, "", *calls, *check, "", *main, *rest, f"{end}(main)"]) + "\n"


def imports_of(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return the lines that import carried functions from this package."""
    lines = []
    for module in (operator_checks, derivative_checks, transform_checks, device, script_end):
        defined = [name for name in names if getattr(getattr(module, name, None), "__module__", "") == module.__name__]
        own = [name + f" as {own_name(name, taken)}" * (name in taken) for name in defined]
        if not own:
            continue
        lines.append(f"from {module.__name__} import {', '.join(own)}")
    return lines


def reaching_lines(trial: Examination, finding: Difference) -> list[str]:
    """Return the lines that import the operator, and what its check needs: the reference, modes, a compiler."""
    procedure = PROCEDURES[CHECKS[finding.check].procedure]
    loading = load(describe_target(trial.device).script(), False).head.splitlines()[1:] if trial.device else []
    lines = [*loading, *trial.operator.lines]  # the first line imports torch
    if "reference" in procedure.uses:
        lines += [line for line in trial.reference.lines if line not in lines]
    if procedure.mode is not None:
        lines += procedure.mode.lines
    if procedure.compiler:
        lines += loaded(procedure.compiler).script().splitlines()
    return lines


def call_lines(trial: Examination, finding: Difference) -> list[str]:
    """Return the functions `inputs`, `got` and `want`, `other_inputs` if sizes of another call are wrong, and
    `new_inputs` for other values. Raises
    Unwritable and NoSource."""
    operator, reference = trial.operator.text, trial.reference.text
    taken = frozenset({operator.partition(".")[0], reference.partition(".")[0]})
    program = program_of(without_lazy_views(finding.call), taken)
    (step,) = program.steps
    arguments = ", ".join([*map(render, step.args), *(f"{key}={render(value)}" for key, value in step.kwargs.items())])
    names = ", ".join(make_inputs(program))
    lines = [*input_function("inputs", finding.call, taken), ""]
    if other := call_of_other_sizes(trial, finding):
        lines += [*input_function("other_inputs", other, taken), ""]
    if (values := new_values(finding)) is not None:
        lines += [*input_function("new_inputs", finding.call.on(values), taken), ""]
    lines += [f"def got({names}):", f"    return {operator}({arguments})", ""]
    if "reference" in PROCEDURES[CHECKS[finding.check].procedure].uses:
        lines += [f"def want({names}):", f"    return {reference}({arguments})", ""]
    return lines


def input_function(name: str, call: DrawnCall, taken: Collection[str]) -> list[str]:
    """Return the text of a function that makes the inputs of a call, by their names in findings."""
    env = make_inputs(program_of(without_lazy_views(call), taken))
    by_variable = {variable: where for where, variable in reversed(variables(call, taken).items())}
    items = ", ".join(f"{by_variable[variable]!r}: {variable}" for variable in env)
    lines = [*(input_lines([*env.items()], stays=env) if env else []), *lazy_view_lines(call, taken)]
    return [f"def {name}():", *(f"    {line}" for line in lines), f"    return {{{items}}}"]


def lazy_view_lines(call: DrawnCall, taken: Collection[str]) -> list[str]:
    """Return the lines that turn the inputs of `without_lazy_views` into the views of the call."""
    names = variables(call, taken)
    views = lazy_views(call.on(by_finding_name(call.values)))
    return [f"{names[where]} = {lazy.text.format(names[where])}" for where, lazy in views.items()]


def call_of_other_sizes(trial: Examination, finding: Difference) -> DrawnCall | None:
    """Return the call whose sizes a difference names; None if they are those of its own call, or none."""
    if finding.check not in ("symbolic", "dynamic"):
        return None
    others = (other for other in other_sizes(trial, finding.call) if shapes_in_words(other) in finding.mismatch.detail)
    return None if shapes_in_words(finding.call) in finding.mismatch.detail else next(others, None)


def new_values(finding: Difference) -> dict[str, Any] | None:
    """Return the other values of the inputs, if the check that found a difference uses them."""
    return renewed(finding.call) if "renewed" in PROCEDURES[CHECKS[finding.check].procedure].uses else None


def shapes_in_words(call: DrawnCall) -> str:
    """Return the shapes of a call's tensors as a difference of `symbolic` or `dynamic` states them."""
    return str([tuple(tensor.shape) for tensor in tensors(call.values)])


def call_arguments(trial: Examination, finding: Difference) -> Iterator[str]:
    """Yield the arguments of `CheckedCall` in a script: those that the check uses, without the defaults."""
    procedure, checked = PROCEDURES[CHECKS[finding.check].procedure], checked_call(trial, finding.call)
    yield from ("got", "inputs")
    given = {
        "reference": "want",
        "mode": procedure.mode.text if procedure.mode and trial.operator.overload is not None else None,
        "transform": "transform",
        "others": "[other_inputs]" if call_of_other_sizes(trial, finding) else None,
        "renewed": "new_inputs",
    }
    if trial.device:
        given["device"] = device_of(trial)
    for one in fields(CheckedCall):
        text = given.get(one.name) if one.name in given else repr(getattr(checked, one.name))
        if one.name in (*procedure.uses, "device") and text not in (None, repr(one.default)):
            yield text if one.name == "reference" else f"{one.name}={text}"


def device_of(trial: Examination) -> str:
    """Return the expression of the operator's device in a script."""
    target = describe_target(trial.device)
    missing = f", {sorted(target.missing)}" if target.missing else ""
    return f"NamedDevice(DEVICE{missing}{', mode=MODE' if 'MODE' in defined(target.script()) else ''})"


def printing_lines(trial: Examination, finding: Difference) -> list[str]:
    """Return the lines of `main` that print both results, if the operator and its reference have different ones."""
    if CHECKS[finding.check].procedure != "compare" or finding.check in FATAL or not of_result(finding.mismatch.where):
        return []
    if finding.mismatch.expected == "an answer" or finding.check == "structure":  # what is no tensor may not print
        return []
    lines = ['    print("expected", want(*inputs().values()))', '    print("got", got(*inputs().values()))']
    if trial.device:
        answer = "device.fetch(got(*device.send(inputs()).values()))"
        lines[1:] = [f"    device = {device_of(trial)}", "    with device.active():", f'        print("got", {answer})']
    return lines


def bound_names(text: str) -> frozenset[str]:
    """Return the names that the lines of a script import or define at their top level."""
    names = [*defined(text)]
    for line in ast.parse(text).body:
        if isinstance(line, (ast.Import, ast.ImportFrom)):
            names += [(alias.asname or alias.name).partition(".")[0] for alias in line.names]
    return frozenset(names)
