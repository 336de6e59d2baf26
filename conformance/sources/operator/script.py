"""The script of a failing call: plain torch, the user's import, the call, both answers, and an exit code.

Defines `script` and `headline`. `BODIES` has the lines of each check as a template. A template names the parts of the
call with `$`; `Parts` lists them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from string import Template

from conformance.program.capture import Unwritable
from conformance.program.execute import make_inputs
from conformance.program.steps.op import render
from conformance.record.sentences import ELEMENTS, LONGEST, sentence
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.checks import Examination
from conformance.sources.operator.examine import Difference
from conformance.sources.operator.finding import GRADIENT, program_of, variables
from conformance.sources.operator.sides import is_differentiable
from conformance.sources.operator.subject import RESULT, finding_name, of_result
from conformance.standalone.script import carried, inert
from conformance.standalone.tensor_source import NoSource, input_lines

MARKER = "# Functions that the script uses."


@dataclass(frozen=True)
class Parts:
    """The parts of a script: the examination, the difference, the text of the call's arguments, the names of the
    tensors, the names of those with gradients, and the names of all tensors by their names in findings."""

    trial: Examination
    finding: Difference
    arguments: str
    names: tuple[str, ...]
    floating: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def where(self) -> str:
        """The tensor that differs."""
        return self.finding.mismatch.where

    @property
    def tolerance(self) -> str:
        """The tolerances of the call as further arguments."""
        call = self.finding.call
        return "" if call.rtol is None else f", rtol={call.rtol}, atol={call.atol}"

    def of(self, side: str) -> str:
        """Return the expression of the compared tensor: a part of a result, or an input."""
        return self.named(self.where, side)

    def named(self, where: str, side: str) -> str:
        """Return the expression of a tensor in a finding, where `side` has the results."""
        return where.replace(RESULT, side, 1) if of_result(where) else self.variables.get(where, where)

    def each(self, line: str) -> str:
        """Return a line for each tensor with a gradient. `{0}` in it is the name of the tensor."""
        return "".join(f"{line.format(name)}\n" for name in self.floating)

    def words(self) -> dict[str, str]:
        """Return the text of each name in a template.

        `fresh` is the line that makes the inputs anew, `want` and `got` the calls of the reference and of the operator,
        `right` and `actual` the compared parts of `want` and `got`, and `name` the input that differs. `said` begins
        the line that prints both answers. `leaf` is the input of a gradient."""
        operator, reference, names = self.trial.operator.text, self.trial.reference.text, ", ".join(self.names)
        leaf = self.named(self.where.removeprefix(GRADIENT), RESULT)
        return {
            "operator": operator,
            "reference": reference,
            "arguments": self.arguments,
            "got": f"{operator}({self.arguments})",
            "want": f"{reference}({self.arguments})",
            "names": names,
            "fresh": f"{names}{',' * (len(self.names) == 1)} = inputs()" if names else "",
            "check": self.finding.check,
            "where": self.where,
            "said": f'"{self.finding.check} of {self.where}: expected"',
            "right": self.of("want"),
            "actual": self.of("got"),
            "exact": self.of("exact"),
            "name": self.of(RESULT),
            "floating": ", ".join(self.floating),
            "leaf": leaf if leaf in self.floating else next(iter(self.floating), ""),
            "leaves": "; ".join(map("{0}.requires_grad_()".format, self.floating)),
            "clones": "; ".join(map("{0} = {0}.clone()".format, self.floating)),
            "double": self.each("{0} = {0}.double()"),
            "wide": self.each("{0} = {0}.double().requires_grad_()"),
            "low": self.each("{0} = {0}.bfloat16() if {0}.dtype == torch.float32 else {0}"),
            "tolerance": self.tolerance,
            "each": str(self.trial.exact),
        }


FACTS = {"dtype": "{}.dtype", "shape": "tuple({}.shape)", "stride": "{}.stride()", "structure": "type({}).__name__"}
"""Expressions of the facts that are compared in place of values, by oracle."""

BOTH = """
$fresh
want = $want
$fresh
got = $got
"""

RAISING = """
$fresh
try:
    $got
except Exception as error:
    print(f"$check of $where: expected an answer, got {type(error).__name__}: {error}")
    raise SystemExit(1)
"""


def _value(parts: Parts) -> str:
    one, call = parts.finding.mismatch, parts.finding.call
    if one.expected == "an answer":
        return RAISING
    is_result = of_result(one.where)
    both = BOTH if is_result else "\n$fresh\n$want\nwant = $name\n$fresh\n$got\ngot = $name\n"
    want, got = ("$right", "$actual") if is_result else ("want", "got")
    if one.oracle in FACTS:
        right, actual = FACTS[one.oracle].format(want), FACTS[one.oracle].format(got)
        return f'{both}print($said, {right}, ", got", {actual})\nraise SystemExit({right} != {actual})\n'
    if call.kind == kinds.MIXED:  # PyTorch promises no dtype
        both += f"want, got = {want}.to({call.coarsest}), {got}.to({call.coarsest})\n"
        want, got = "want", "got"
    return f"""{both}print($said, {want}.tolist(), ", got", {got}.tolist())
torch.testing.assert_close({got}, {want}, equal_nan=True$tolerance)
"""


_COUNT = "len({0}) if isinstance({0}, (tuple, list)) else 1"
STRUCTURE = f"""{BOTH}print($said, type(want), {_COUNT.format("want")}, ", got", type(got), {_COUNT.format("got")})
raise SystemExit((type(want), {_COUNT.format("want")}) != (type(got), {_COUNT.format("got")}))
"""

MUTATION = """
$fresh
before = $name.clone()
$got
print($said, before.tolist(), ", got", $name.tolist())
raise SystemExit(not torch.equal(before.nan_to_num(), $name.nan_to_num()))
"""

VERSION = """
$fresh
before = $name._version
$got
print($said, "a version above", before, ", got", $name._version)
raise SystemExit($name._version == before)
"""


def _aliasing(parts: Parts) -> str:
    one = parts.finding.mismatch
    shares = one.actual != "memory of its own"
    other = (one.actual if shares else one.expected).removeprefix("the memory of ")
    partner = parts.named(other, "got")
    return f"""
$fresh
got = $got
shared = $actual.untyped_storage().data_ptr() == {partner}.untyped_storage().data_ptr()
print($said, "shared memory with {other}:", {not shares}, ", got", shared)
raise SystemExit(shared is {shares})
"""


ACCURACY = """
$fresh
${double}exact = $want
$fresh
want = $want
$fresh
got = $got
usual, off = (errors(one, $exact, torch.zeros(()), one.dtype, $each).max().item() for one in ($right, $actual))
print($said, "at most", 4 * max(usual, 0.5), "ulp", ", got", off, "ulp")
raise SystemExit(off > 4 * max(usual, 0.5))
"""

GAPS = """
def run(fill):
    ($names,), _ = fenced([*inputs()], fill=fill)
    return $got

want, got = run(0x3F), run(0x41)  # the bytes between the elements
print($said, $right.tolist(), ", got", $actual.tolist())
raise SystemExit(not torch.equal($right, $actual))
"""

FENCE = """
def run(at_end):
    ($names,), fences = fenced([*inputs()], at_end, PROTECTION)
    with Fresh(KNOWN, at_end, PROTECTION) as mode:
        $got
    return trespassed(fences + mode.fences)

for at_end in (True, False):  # protected memory begins behind the last byte, or ends before the first
    process = os.fork()
    if process == 0:
        os._exit(bool(run(at_end)))
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        print("$check of $where: expected no access, got", code)
        raise SystemExit(1)
"""

FILL = """
def run(fill):
    $fresh
    with Fresh(fill):
        return $got

want, got = run(0xFF), run(0x3C)  # the bytes of new memory
print($said, $right.tolist(), ", got", $actual.tolist())
raise SystemExit($right.tolist() != $actual.tolist())
"""


def _repeat(parts: Parts) -> str:
    is_result = of_result(parts.where)
    return f"""
def run():
    $fresh
    torch.manual_seed(1234)
    result = {"$got" if is_result else "($got, $name)[1]"}
    return {"$where" if is_result else "result"}.clone()

want, *others = [run() for _ in range(3)]
got = next((one for one in others if not torch.equal(want, one)), want)
print($said, want.tolist(), ", got", got.tolist())
raise SystemExit(not torch.equal(want, got))
"""


def _batch(parts: Parts) -> str:
    dims = {parts.named(finding_name(name), RESULT): dim for name, dim in parts.trial.batch.items()}
    cut = [f"    {name} = {name}.narrow({dim}, at, 1)\n" for name, dim in dims.items() if name in parts.names]
    first, dim = next(iter(dims.items()))
    return f"""
$fresh
want = {parts.of("($got)")}
parts = []
for at in range({first}.shape[{dim}]):
    $fresh
{"".join(cut)}    one = $got
    parts.append({parts.of("one")})
got = torch.cat(parts)
print($said, want.tolist(), ", got", got.tolist())
raise SystemExit(not torch.equal(want, got))
"""


def _gradient(parameter: str, function: str, lay: str = "") -> str:
    """Return the lines that define `gradient`: the gradient of a function, along cotangents that `lay` returns."""
    return f"""
def gradient({parameter}):
    $fresh
    $leaves
    leaf = $leaf
    $clones
    result = {function}($arguments)
    torch.manual_seed(1234)
    given = [$floating]  # those that the call wrote are results
    made = [result] if torch.is_tensor(result) else [*(result or ())]
    made += [one for one in given if one._version and not any(one is other for other in made)]
    made = [one for one in made if one.is_floating_point()]
    along = [torch.randint(-8, 9, one.shape) / 8 for one in made]
    along = [{lay}(part.to(one.dtype)) for part, one in zip(along, made)]
    return torch.autograd.grad(made, leaf, along, allow_unused=True)[0]

"""


GRADIENTS = f"""{_gradient("function", "function")}want = gradient($reference)
try:
    got = gradient($operator)
except Exception as error:
    print("$check of $where: expected a gradient, got", repr(error))
    raise SystemExit(1)
print($said, want.tolist(), ", got", None if got is None else got.tolist())
torch.testing.assert_close(got, want, equal_nan=True$tolerance)
"""


def _cotangents(parts: Parts) -> str:
    layout = repr(parts.finding.mismatch.detail.removeprefix("along ").removesuffix(" cotangents"))
    return f"""{_gradient("lay", "$operator", "lay")}\
want = gradient(lambda one: laid_out(one, {layout}).clone(memory_format=torch.contiguous_format))
try:
    got = gradient(lambda one: laid_out(one, {layout}))
except Exception as error:
    print("cotangents of $where: expected a gradient, got", repr(error))
    raise SystemExit(1)
print($said, want.tolist(), ", got", got.tolist())
torch.testing.assert_close(got, want, equal_nan=True)
"""


GRADCHECK = """
$fresh
${wide}try:
    torch.autograd.gradcheck(lambda $floating: $got, ($floating,))
except Exception as error:
    print("gradcheck of $where: expected the finite differences, got", error)
    raise SystemExit(1)
"""

LISTED = """
def listed(result):
    return [*result] if isinstance(result, (tuple, list)) else [result]

"""

_METADATA = "[(one.dtype, tuple(one.shape), one.stride()) for one in listed({})]"
FAKE = f"""
from torch._subclasses.fake_tensor import FakeTensorMode
{LISTED}$fresh
want = $got
mode = FakeTensorMode()
$names, = [mode.from_tensor(one) for one in inputs()]
with mode:
    got = $got
print($said, {_METADATA.format("want")}, ", got", {_METADATA.format("got")})
raise SystemExit({_METADATA.format("want")} != {_METADATA.format("got")})
"""

SYMBOLIC = f"""
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
{LISTED}$fresh
want = $got
mode = FakeTensorMode(shape_env=ShapeEnv())
$names, = [mode.from_tensor(one, static_shapes=False) for one in inputs()]
try:
    with mode:
        got = $got
except Exception as error:
    print(f"$check of result: expected an answer, got {{type(error).__name__}}: {{error}}")
    raise SystemExit(1)
known = [(one.dtype, tuple(map(int, one.shape))) for one in listed(got)]
right = [(one.dtype, tuple(one.shape)) for one in listed(want)]
print($said, right, ", got", [tuple(one.shape) for one in listed(got)])
raise SystemExit(known != right)
"""

COMPILED = f"""
def program($names):
    return $got
{LISTED}compiled = torch.compile(program, OPTIONS)
$fresh
want = [*listed(program($names)), $names]
$fresh
try:
    got = [*listed(compiled($names)), $names]
except Exception as error:
    print(f"$check of result: expected an answer, got {{type(error).__name__}}: {{error}}")
    raise SystemExit(1)
print($said, want, ", got", got)
torch.testing.assert_close(got, want, equal_nan=True)
"""

OPTIONS = {
    "compile": "backend='aot_eager', dynamic=False",
    "dynamic": "backend='aot_eager', dynamic=True",
    "inductor": "backend='inductor', dynamic=False",
}
"""Options of `torch.compile`, by check."""


def _compiled(parts: Parts) -> str:
    options = OPTIONS[parts.finding.check]
    if not parts.where.startswith("gradient"):
        return COMPILED.replace("OPTIONS", options)
    both = GRADIENTS.replace("$operator", "compiled").replace("$reference", "$operator")
    return f"\ncompiled = torch.compile($operator, {options})\n{both}"


VMAP = """
def program($names):
    return $got

given = [torch.stack([one, one.flatten().roll(1).view(one.shape)]) for one in inputs()]
rows = [program(*parts) for parts in zip(*given)]
want = torch.stack(rows) if torch.is_tensor(rows[0]) else [torch.stack(each) for each in zip(*rows)]
got = torch.func.vmap(program)(*given)
print($said, want, ", got", got)
torch.testing.assert_close(got, want if torch.is_tensor(got) else type(got)(want), equal_nan=True)
"""

AUTOCAST = """
$fresh
with torch.autocast("cpu", torch.bfloat16):
    got = $got
$fresh
right = [$got]
$fresh
with torch.autocast("cpu", torch.bfloat16):
    right.append($want)
$fresh
${low}try:
    right.append($got)
except Exception:
    pass

def same(want):
    try:
        return torch.testing.assert_close(got, want, equal_nan=True) is None
    except AssertionError:
        return False

print($said, right, ", got", got)
raise SystemExit(not any(map(same, right)))
"""

FAKE_AUTOCAST = """
from torch._subclasses.fake_tensor import FakeTensorMode

$fresh
with torch.autocast("cpu", torch.bfloat16):
    got = $got
mode = FakeTensorMode()
$names, = [mode.from_tensor(one) for one in inputs()]
with mode, torch.autocast("cpu", torch.bfloat16):
    want = $got
print($said, $right.dtype, ", got", $actual.dtype)
raise SystemExit($right.dtype != $actual.dtype)
"""

REFUSALS = """
$fresh
try:
    $got
except Exception:
    raise SystemExit(0)
print("$check of $where: expected an error, got no error")
raise SystemExit(1)
"""

CRASH = """
$fresh
$got
"""

HANG = """
import signal, time

process = os.fork()
if process == 0:
    $fresh
    $got
    os._exit(0)
for _ in range(100):
    time.sleep(0.1)
    if os.waitpid(process, os.WNOHANG) != (0, 0):
        raise SystemExit(0)
os.kill(process, signal.SIGKILL)
print("hang of the process: expected an answer, got none in 10 s")
raise SystemExit(1)
"""


def _reads(parts: Parts) -> str:
    return GAPS if "gaps" in parts.finding.mismatch.detail else FENCE.replace("PROTECTION", "NO_ACCESS")


def _autocast(parts: Parts) -> str:
    return FAKE_AUTOCAST if "which the fake kernel" in parts.finding.mismatch.detail else AUTOCAST


BODIES: Mapping[str, str | Callable[[Parts], str]] = {
    "structure": STRUCTURE,
    "mutation": MUTATION,
    "version": VERSION,
    "aliasing": _aliasing,
    "accuracy": ACCURACY,
    "writes": FENCE.replace("PROTECTION", "READ_ONLY"),
    "reads": _reads,
    "unwritten": FILL,
    "repetition": _repeat,
    "batch": _batch,
    "gradients": GRADIENTS,
    "cotangents": _cotangents,
    "gradcheck": GRADCHECK,
    "fake": FAKE,
    "symbolic": SYMBOLIC,
    "compile": _compiled,
    "dynamic": _compiled,
    "inductor": _compiled,
    "vmap": VMAP,
    "autocast": _autocast,
    "refusals": REFUSALS,
    "crash": CRASH,
    "hang": HANG,
    "memory": RAISING,
}
"""The lines that show a difference, by check: a template, or a function that returns one. Other checks compare the
results with the reference's results."""

FENCES = ("fenced", "trespassed", "Fresh", "READ_ONLY", "NO_ACCESS", "KNOWN")
CARRIED = {
    "writes": FENCES,
    "reads": FENCES,
    "unwritten": ("Fresh",),
    "cotangents": ("laid_out",),
    "accuracy": ("errors",),
}
"""Functions of the harness that a script carries."""


def headline(finding: Difference) -> str:
    """Return the difference as a sentence, with the name of its check."""
    one = finding.mismatch
    one = replace(one, detail=one.detail.removeprefix("the value; "))
    if one.oracle in (*FACTS, "value", "storage") or ELEMENTS.match(one.detail):
        text = sentence(one)
    else:
        want, got = (textwrap.shorten(side, LONGEST, placeholder=" ...") for side in (one.expected, one.actual))
        text = f"{one.where}: expected {want}, got {got}" + (f" ({one.detail})" if one.detail else "")
    text += f" ({finding.call.note})" if finding.call.note else ""
    text += (
        "" if finding.recurs else "; this call alone is right: the result depends on earlier calls, or on old memory"
    )
    return textwrap.shorten(f"{finding.check}: {text}", 400)


def script(trial: Examination, finding: Difference) -> str:
    """Return the script of a difference. Its exit code is 1 if the operator is wrong. A call that no script can write
    has a script with the headline only."""
    about = f'"""{inert(headline(finding))}"""'
    try:
        program = program_of(finding.call)
        env = make_inputs(program)
        lines = input_lines([*env.items()], stays=env) if env else []
    except (Unwritable, NoSource) as error:
        return f"{about}\n# The inputs have no short form: {error}\n"
    (step,) = program.steps
    arguments = ", ".join([*map(render, step.args), *(f"{key}={render(value)}" for key, value in step.kwargs.items())])
    floating = tuple(name for name in env if is_differentiable(env[name]))
    parts = Parts(trial, finding, arguments, tuple(env), floating, variables(finding.call))
    template = BODIES.get(finding.check, _value)
    text = template if isinstance(template, str) else template(parts)
    body = Template(text).substitute(parts.words()).removeprefix("\n")
    operator, reference, carries = trial.operator, trial.reference, CARRIED.get(finding.check, ())
    imports = [line for line in reference.lines if line not in operator.lines] if reference.text in body else []
    returned = f"    return {', '.join(env)}{',' * (len(env) == 1)}"
    return "\n".join(
        [
            about,
            "import os, sys, torch",
            'sys.path.append("")  # modules in the current folder are found, too',
            *operator.lines,
            *imports,
            "",
            *([MARKER, carried(carries).strip("\n"), ""] if carries else []),
            *(["def inputs():", *(f"    {line}" for line in lines), returned] if env else []),
            "",
            body.rstrip("\n") + "\n",
        ]
    )
