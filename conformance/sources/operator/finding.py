"""A failing call as a small script: plain torch, the user's import, the call, both answers, and an exit code.

Defines `minimized` and `script`. The call becomes a program with one step, and the reducer of programs shrinks it. Each
trial runs the check's procedure in a fork, so a smaller call may crash. A smaller call must fail the same check, the
reference must accept it, and it must keep what its kind is about.
"""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from conformance.program.capture import NotAnInput, Unwritable, as_inputs, inputs_of
from conformance.program.execute import make_inputs
from conformance.program.model import Program, ProgramError
from conformance.program.reduce import CALL_PASSES, reduce_program
from conformance.program.steps.op import Json, Step, decode, render
from conformance.record.sentences import sentence
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.calls import Call
from conformance.sources.operator.checks import CHECKS, REFUSED, Difference, Examination
from conformance.sources.operator.examine import accepts, examined
from conformance.sources.operator.sides import names_of_inputs
from conformance.sources.operator.subject import TAKEN
from conformance.standalone.moving import tensors
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import carried, inert
from conformance.standalone.tensor_source import NoSource, input_lines

TRIALS, SECONDS, TRIAL = 120, 10.0, 3.0
"""Limits on the trials of one difference: their number, the time in which they begin, and the time of one."""

SLOW = {"compile": 12, "dynamic": 12, "inductor": 0, "hang": 0}
"""Limits on the number of trials for slow checks."""

STEP = "operator"
"""Name of the step that calls the operator. The step table does not have it, so only this module runs it."""

MARKER = "# Functions that the script uses."


def program_of(call: Call) -> Program:
    """Return the call as a program with one step. Raises Unwritable."""
    tensors = {_written(name): tensor for name, tensor in names_of_inputs(call.values).items()}
    named, args, kwargs = as_inputs(tensors, *call.arguments())
    try:
        storages, inputs = inputs_of(named)
    except NotAnInput as error:
        raise Unwritable(str(error)) from error
    return Program(storages, inputs, (Step(STEP, tuple(args), kwargs),))


def _written(name: str) -> str:
    """Return the name of an input in a script, which uses some names for itself."""
    return f"{name}0" if name in TAKEN else name


def call_of(program: Program, call: Call) -> Call:
    """Return the call that a program writes, with the names of another call."""
    (step,), env, cpu = program.steps, make_inputs(program), torch.device("cpu")
    names = [*call.values][: call.positional]
    values = dict(zip(names, (decode(arg, env, cpu) for arg in step.args)))
    return call.on({**values, **{key: decode(value, env, cpu) for key, value in step.kwargs.items()}})


def minimized(trial: Examination, finding: Difference, seconds: float = SECONDS) -> Difference:
    """Return the difference in a smaller call."""
    try:
        program = program_of(finding.call)
    except Unwritable:
        return finding
    smallest = finding
    bound = trial.operator.bound

    def fails(candidate: Program) -> bool:
        nonlocal smallest
        call = call_of(candidate, finding.call)
        args, kwargs = call.arguments()
        if not _keeps(call, finding.call) or bound(args, kwargs) is None:
            return False
        if call.kind != REFUSED and not accepts(trial.reference, call):
            return False
        for item in examined(trial, CHECKS[finding.check].procedure, [call], TRIAL):
            if isinstance(item, Difference) and item.check == finding.check:
                if _kind(item.mismatch) != _kind(finding.mismatch):
                    continue
                smallest = item
                return True
        return False

    reduce_program(
        program,
        fails,
        SLOW.get(finding.check, TRIALS),
        (smaller_lengths, *CALL_PASSES[:2], fewer_keywords, *CALL_PASSES[2:]),
        time.time() + seconds,
        _valid,
    )
    return smallest


def _kind(mismatch: Mismatch) -> tuple[str, bool, str]:
    """Return the parts of a difference that a smaller call must repeat: its oracle, whether it is of a gradient, and
    the type of an exception."""
    raised = mismatch.actual if mismatch.expected in ("an answer", "no error") else ""
    return mismatch.oracle, mismatch.where.startswith("gradient"), raised


def _valid(program: Program) -> Program | None:
    """Return the program if torch can create its inputs."""
    try:
        replace(program, steps=()).check()
        return program
    except ProgramError:
        return None


def _keeps(call: Call, before: Call) -> bool:
    """Whether a call still has what its kind is about."""
    inputs = tensors(call.values)
    if before.kind == kinds.EMPTY:
        return any(not tensor.numel() for tensor in inputs)
    if before.kind == kinds.SCALARS:
        return any(not tensor.dim() for tensor in inputs)
    if before.kind == kinds.STRIDED:
        return any(not tensor.is_contiguous() or tensor.storage_offset() for tensor in inputs)
    if before.kind == kinds.MIXED:
        return len({tensor.dtype for tensor in inputs}) >= len({tensor.dtype for tensor in tensors(before.values)})
    return all(tensor.numel() for tensor in inputs) or any(not tensor.numel() for tensor in tensors(before.values))


def smaller_lengths(program: Program) -> Iterator[Program]:
    """Yield the program with one length cut, or with two lengths halved, in all tensors and in tuples and lists of
    lengths alike. Two lengths may be multiples of each other."""
    lengths = sorted({n for input_ in program.inputs for n in input_.size if n > 1}, reverse=True)
    cuts = [
        {length: fewer}
        for length in lengths
        for fewer in dict.fromkeys((1, 2, length // 2, length - 1))
        if fewer < length
    ]
    even = [length for length in lengths if not length % 2]
    cuts += [{size: size // 2, other: other // 2} for size, other in itertools.combinations(even, 2)]
    for cut in cuts:
        if candidate := _cut(program, cut):
            yield candidate


def _cut(program: Program, cut: Mapping[int, int]) -> Program | None:
    """Return the program with these lengths replaced by smaller ones."""
    named = {}
    for name, one in make_inputs(program).items():
        part = one.detach()[tuple(slice(cut.get(n)) for n in one.shape)]
        named[name] = part.clone() if one.is_contiguous() else part

    def numbers(value: Json) -> Json:
        if isinstance(value, list):
            return [cut.get(number, number) if type(number) is int else number for number in value]
        if isinstance(value, dict) and "tuple" in value:
            return {"tuple": numbers(value["tuple"])}
        return value

    (step,) = program.steps
    step = replace(step, args=tuple(map(numbers, step.args)), kwargs={k: numbers(v) for k, v in step.kwargs.items()})
    try:
        storages, inputs = inputs_of(named)
    except NotAnInput:
        return None
    return replace(program, storages=storages, inputs=inputs, steps=(step,))


def fewer_keywords(program: Program) -> Iterator[Program]:
    """Yield the program with one argument fewer."""
    (step,) = program.steps
    for key in step.kwargs:
        yield program.with_steps((replace(step, kwargs={k: v for k, v in step.kwargs.items() if k != key}),))
    if len(step.args) > 1:
        yield program.with_steps((replace(step, args=step.args[:-1]),))


@dataclass(frozen=True)
class Text:
    """The parts of a script: expressions of the operator and the reference, the arguments, the names of the tensors,
    and the difference."""

    operator: str
    reference: str
    arguments: str
    names: tuple[str, ...]
    floating: tuple[str, ...]
    finding: Difference

    @property
    def all(self) -> str:
        """The names of the tensors, separated by commas."""
        return ", ".join(self.names)

    @property
    def got(self) -> str:
        """The operator's call."""
        return f"{self.operator}({self.arguments})"

    @property
    def want(self) -> str:
        """The reference's call."""
        return f"{self.reference}({self.arguments})"

    @property
    def fresh(self) -> str:
        """The line that makes the inputs anew."""
        return f"{self.all} = inputs()" if self.names else ""

    def of(self, side: str) -> str:
        """The expression of the compared tensor: a part of a result, or an input."""
        where = self.finding.mismatch.where
        return where.replace("result", side, 1) if where.startswith("result") else where

    def message(self, expected: str, got: str) -> str:
        """The line that prints both answers."""
        check, where = self.finding.check, self.finding.mismatch.where
        return f'print("{check} of {where}: expected", {expected}, ", got", {got})'


Body = Callable[[Text], Sequence[str]]


def _value(text: Text) -> list[str]:
    one, call = text.finding.mismatch, text.finding.call
    if one.expected == "an answer":
        return _raising(text)
    if not one.where.startswith("result"):
        name = _written(one.where.partition("[")[0])
        ends = [text.fresh, text.want, f"want = {name}", text.fresh, text.got, f"got = {name}"]
    else:
        ends = [text.fresh, f"want = {text.want}", text.fresh, f"got = {text.got}"]
    want, got = (text.of(side) if one.where.startswith("result") else side for side in ("want", "got"))
    if one.oracle in _FACTS:
        fact = _FACTS[one.oracle]
        ends.append(text.message(fact.format(want), fact.format(got)))
        return [*ends, f"raise SystemExit({fact.format(want)} != {fact.format(got)})"]
    tolerance = "" if call.rtol is None else f", rtol={call.rtol}, atol={call.atol}"
    if call.kind == kinds.MIXED:  # PyTorch promises no dtype
        dtypes = {tensor.dtype for tensor in tensors(call.values) if tensor.is_floating_point()}
        coarse = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        ends.append(f"want, got = {want}.to({coarse}), {got}.to({coarse})")
        want, got = "want", "got"
    ends.append(text.message(f"{want}.tolist()", f"{got}.tolist()"))
    check = f"torch.testing.assert_close({got}, {want}, equal_nan=True{tolerance})"
    return [*ends, check]


_FACTS = {"dtype": "{}.dtype", "shape": "tuple({}.shape)", "stride": "{}.stride()", "structure": "type({}).__name__"}


def _structure(text: Text) -> list[str]:
    count = "len({0}) if isinstance({0}, (tuple, list)) else 1"
    lines = [text.fresh, f"want = {text.want}", text.fresh, f"got = {text.got}"]
    lines.append(text.message(f"type(want), {count.format('want')}", f"type(got), {count.format('got')}"))
    return [*lines, f"raise SystemExit((type(want), {count.format('want')}) != (type(got), {count.format('got')}))"]


def _tried(lines: Sequence[str], message: str) -> list[str]:
    """Return lines that end the script with exit code 1 if they raise, and print the `message`."""
    body = [f"    {line}" for line in lines]
    return ["try:", *body, "except Exception as error:", f"    print({message})", "    raise SystemExit(1)"]


def _answering(text: Text, *lines: str, where: str = "result") -> list[str]:
    """Return lines that must give an answer."""
    message = f'f"{text.finding.check} of {where}: expected an answer, got {{type(error).__name__}}: {{error}}"'
    return _tried(lines, message)


def _raising(text: Text) -> list[str]:
    return [text.fresh, *_answering(text, text.got, where=text.finding.mismatch.where)]


def _mutation(text: Text) -> list[str]:
    name = _written(text.finding.mismatch.where.partition("[")[0])
    return [
        text.fresh,
        f"before = {name}.clone()",
        text.got,
        text.message("before.tolist()", f"{name}.tolist()"),
        f"raise SystemExit(not torch.equal(before.nan_to_num(), {name}.nan_to_num()))",
    ]


def _version(text: Text) -> list[str]:
    name = _written(text.finding.mismatch.where.partition("[")[0])
    return [
        text.fresh,
        f"before = {name}._version",
        text.got,
        text.message('"a version above", before', f"{name}._version"),
        f"raise SystemExit({name}._version == before)",
    ]


def _aliasing(text: Text) -> list[str]:
    one = text.finding.mismatch
    shares = one.actual != "memory of its own"
    other = (one.actual if shares else one.expected).removeprefix("the memory of ")
    left, right = (
        name.replace("result", "got", 1) if name.startswith("result") else name for name in (one.where, other)
    )
    return [
        text.fresh,
        f"got = {text.got}",
        f"shared = {left}.untyped_storage().data_ptr() == {right}.untyped_storage().data_ptr()",
        text.message(f'"shared memory with {other}:", {not shares}', "shared"),
        f"raise SystemExit(shared is {shares})",
    ]


def _accuracy(text: Text) -> list[str]:
    double = [f"{name} = {name}.double()" for name in text.floating]
    high, want, got = text.of("exact"), text.of("want"), text.of("got")
    return [
        text.fresh,
        *double,
        f"exact = {text.want}",
        text.fresh,
        f"want = {text.want}",
        text.fresh,
        f"got = {text.got}",
        f"usual, off = (errors(one, {high}, torch.zeros(()), one.dtype, EACH).max().item() for one in ({want}, {got}))",
        text.message('"at most", 4 * max(usual, 0.5), "ulp"', 'off, "ulp"'),
        "raise SystemExit(off > 4 * max(usual, 0.5))",
    ]


def _fence(text: Text) -> list[str]:
    if "gaps" in text.finding.mismatch.detail:
        return [
            "def run(fill):",
            f"    ({text.all},), _ = fenced([*inputs()], fill=fill)",
            f"    return {text.got}",
            "",
            "want, got = run(0x3F), run(0x41)  # the bytes between the elements",
            text.message(f"{text.of('want')}.tolist()", f"{text.of('got')}.tolist()"),
            f"raise SystemExit(not torch.equal({text.of('want')}, {text.of('got')}))",
        ]
    protection = "READ_ONLY" if text.finding.check == "writes" else "NO_ACCESS"
    return [
        "def run(at_end):",
        f"    ({text.all},), fences = fenced([*inputs()], at_end, {protection})",
        f"    with Fresh(KNOWN, at_end, {protection}) as mode:",
        f"        {text.got}",
        "    return trespassed(fences + mode.fences)",
        "",
        "for at_end in (True, False):  # protected memory begins behind the last byte, or ends before the first",
        "    process = os.fork()",
        "    if process == 0:",
        "        os._exit(bool(run(at_end)))",
        "    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])",
        "    if code:",
        f'        print("{text.finding.check} of {text.finding.mismatch.where}: expected no access, got", code)',
        "        raise SystemExit(1)",
    ]


def _fill(text: Text) -> list[str]:
    return [
        "def run(fill):",
        f"    {text.fresh}",
        "    with Fresh(fill):",
        f"        return {text.got}",
        "",
        "want, got = run(0xFF), run(0x3C)  # the bytes of new memory",
        text.message(f"{text.of('want')}.tolist()", f"{text.of('got')}.tolist()"),
        f"raise SystemExit({text.of('want')}.tolist() != {text.of('got')}.tolist())",
    ]


def _repeat(text: Text) -> list[str]:
    where = text.finding.mismatch.where
    value = text.got if where.startswith("result") else f"({text.got}, {where})[1]"
    return [
        "def run():",
        f"    {text.fresh}",
        "    torch.manual_seed(1234)",
        f"    result = {value}",
        f"    return {where if where.startswith('result') else 'result'}.clone()",
        "",
        "want, *others = [run() for _ in range(3)]",
        "got = next((one for one in others if not torch.equal(want, one)), want)",
        text.message("want.tolist()", "got.tolist()"),
        "raise SystemExit(not torch.equal(want, got))",
    ]


def _batch(dims: Mapping[str, int]) -> Body:
    def body(text: Text) -> list[str]:
        cut = [f"{name} = {name}.narrow({dim}, at, 1)" for name, dim in dims.items() if name in text.names]
        first, dim = next(iter(dims.items()))
        joined = text.of("one")
        return [
            text.fresh,
            f"want = {text.of(f'({text.got})')}",
            "parts = []",
            f"for at in range({first}.shape[{dim}]):",
            f"    {text.fresh}",
            *(f"    {line}" for line in cut),
            f"    one = {text.got}",
            f"    parts.append({joined})",
            "got = torch.cat(parts)",
            text.message("want.tolist()", "got.tolist()"),
            "raise SystemExit(not torch.equal(want, got))",
        ]

    return body


def _gradients(text: Text) -> list[str]:
    one, call = text.finding.mismatch, text.finding.call
    body = [
        *_gradient(text, "function"),
        f"want = gradient({text.reference})",
        *_tried(
            [f"got = gradient({text.operator})"],
            f'"{text.finding.check} of {one.where}: expected a gradient, got", repr(error)',
        ),
        text.message("want.tolist()", "None if got is None else got.tolist()"),
    ]
    tolerance = "" if call.rtol is None else f", rtol={call.rtol}, atol={call.atol}"
    return [*body, f"torch.testing.assert_close(got, want, equal_nan=True{tolerance})"]


def _gradient(text: Text, parameter: str, lay: str = "") -> list[str]:
    """Return lines that define `gradient`, of a function or along the cotangents that `lay` returns."""
    name = _written(text.finding.mismatch.where.removeprefix("gradient of ").partition("[")[0])
    name = name if name in text.floating else text.floating[0]
    leaves = [f"{each}.requires_grad_()" for each in text.floating]
    return [
        f"def gradient({parameter}):",
        f"    {text.fresh}",
        f"    {'; '.join(leaves)}",
        f"    leaf = {name}",
        f"    {'; '.join(f'{each} = {each}.clone()' for each in text.floating)}",
        f"    result = {text.operator if lay else parameter}({text.arguments})",
        "    torch.manual_seed(1234)",
        f"    given = [{', '.join(text.floating)}]  # those that the call wrote are results",
        "    made = [result] if torch.is_tensor(result) else [*(result or ())]",
        "    made += [one for one in given if one._version and not any(one is other for other in made)]",
        "    made = [one for one in made if one.is_floating_point()]",
        "    along = [torch.randint(-8, 9, one.shape) / 8 for one in made]",
        f"    along = [{lay}(part.to(one.dtype)) for part, one in zip(along, made)]",
        "    return torch.autograd.grad(made, leaf, along, allow_unused=True)[0]",
        "",
    ]


def _cotangents(text: Text) -> list[str]:
    one = text.finding.mismatch
    layout = repr(one.detail.removeprefix("along ").removesuffix(" cotangents"))
    return [
        *_gradient(text, "lay", "lay"),
        f"want = gradient(lambda one: laid_out(one, {layout}).clone(memory_format=torch.contiguous_format))",
        *_tried(
            [f"got = gradient(lambda one: laid_out(one, {layout}))"],
            f'"cotangents of {one.where}: expected a gradient, got", repr(error)',
        ),
        text.message("want.tolist()", "got.tolist()"),
        "torch.testing.assert_close(got, want, equal_nan=True)",
    ]


def _gradcheck(text: Text) -> list[str]:
    wide = [f"{name} = {name}.double().requires_grad_()" for name in text.floating]
    leaves = ", ".join(text.floating)
    return [
        text.fresh,
        *wide,
        *_tried(
            [f"torch.autograd.gradcheck(lambda {leaves}: {text.got}, ({leaves},))"],
            f'"gradcheck of {text.finding.mismatch.where}: expected the finite differences, got", error',
        ),
    ]


def _facts(name: str) -> str:
    return f"[(one.dtype, tuple(one.shape), one.stride()) for one in listed({name})]"


LISTED = ["def listed(result):", "    return [*result] if isinstance(result, (tuple, list)) else [result]", ""]


def _fake(text: Text) -> list[str]:
    return [
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "",
        *LISTED,
        text.fresh,
        f"want = {text.got}",
        "mode = FakeTensorMode()",
        f"{text.all}, = [mode.from_tensor(one) for one in inputs()]",
        "with mode:",
        f"    got = {text.got}",
        text.message(_facts("want"), _facts("got")),
        f"raise SystemExit({_facts('want')} != {_facts('got')})",
    ]


def _symbolic(text: Text) -> list[str]:
    return [
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
        "",
        *LISTED,
        text.fresh,
        f"want = {text.got}",
        "mode = FakeTensorMode(shape_env=ShapeEnv())",
        f"{text.all}, = [mode.from_tensor(one, static_shapes=False) for one in inputs()]",
        *_answering(text, "with mode:", f"    got = {text.got}"),
        "known = [(one.dtype, tuple(map(int, one.shape))) for one in listed(got)]",
        "right = [(one.dtype, tuple(one.shape)) for one in listed(want)]",
        text.message("right", "[tuple(one.shape) for one in listed(got)]"),
        "raise SystemExit(known != right)",
    ]


def _compiled(backend: str, dynamic: bool) -> Body:
    def body(text: Text) -> list[str]:
        if text.finding.mismatch.where.startswith("gradient"):
            line = f"compiled = torch.compile({text.operator}, backend={backend!r}, dynamic={dynamic})"
            return [line, "", *_gradients(replace(text, operator="compiled", reference=text.operator))]
        return [
            "def program(" + text.all + "):",
            f"    return {text.got}",
            "",
            *LISTED,
            f"compiled = torch.compile(program, backend={backend!r}, dynamic={dynamic})",
            text.fresh,
            f"want = [*listed(program({text.all})), {text.all}]",
            text.fresh,
            *_answering(text, f"got = [*listed(compiled({text.all})), {text.all}]"),
            text.message("want", "got"),
            "torch.testing.assert_close(got, want, equal_nan=True)",
        ]

    return body


def _vmap(text: Text) -> list[str]:
    return [
        "def program(" + text.all + "):",
        f"    return {text.got}",
        "",
        "given = [torch.stack([one, one.flatten().roll(1).view(one.shape)]) for one in inputs()]",
        "rows = [program(*parts) for parts in zip(*given)]",
        "want = torch.stack(rows) if torch.is_tensor(rows[0]) else [torch.stack(each) for each in zip(*rows)]",
        "got = torch.func.vmap(program)(*given)",
        text.message("want", "got"),
        "torch.testing.assert_close(got, want if torch.is_tensor(got) else type(got)(want), equal_nan=True)",
    ]


def _autocast(text: Text) -> list[str]:
    low = [f"{name} = {name}.bfloat16() if {name}.dtype == torch.float32 else {name}" for name in text.floating]
    fake = "which the fake kernel" in text.finding.mismatch.detail
    lines = [text.fresh, 'with torch.autocast("cpu", torch.bfloat16):', f"    got = {text.got}"]
    if fake:
        lines = ["from torch._subclasses.fake_tensor import FakeTensorMode", "", *lines, "mode = FakeTensorMode()"]
        lines += [f"{text.all}, = [mode.from_tensor(one) for one in inputs()]"]
        lines += ['with mode, torch.autocast("cpu", torch.bfloat16):', f"    want = {text.got}"]
        lines += [text.message(f"{text.of('want')}.dtype", f"{text.of('got')}.dtype")]
        return [*lines, f"raise SystemExit({text.of('want')}.dtype != {text.of('got')}.dtype)"]
    lines += [text.fresh, f"right = [{text.got}]", text.fresh]
    lines += ['with torch.autocast("cpu", torch.bfloat16):', f"    right.append({text.want})", text.fresh, *low]
    lines += ["try:", f"    right.append({text.got})", "except Exception:", "    pass", ""]
    return [
        *lines,
        "def same(want):",
        "    try:",
        "        return torch.testing.assert_close(got, want, equal_nan=True) is None",
        "    except AssertionError:",
        "        return False",
        "",
        text.message("right", "got"),
        "raise SystemExit(not any(map(same, right)))",
    ]


def _refusals(text: Text) -> list[str]:
    check, where = text.finding.check, text.finding.mismatch.where
    return [
        text.fresh,
        "try:",
        f"    {text.got}",
        "except Exception:",
        "    raise SystemExit(0)",
        f'print("{check} of {where}: expected an error, got no error")',
        "raise SystemExit(1)",
    ]


def _death(text: Text) -> list[str]:
    if text.finding.check != "hang":
        return [text.fresh, text.got]
    return [
        "import signal, time",
        "",
        "process = os.fork()",
        "if process == 0:",
        f"    {text.fresh}",
        f"    {text.got}",
        "    os._exit(0)",
        "for _ in range(100):",
        "    time.sleep(0.1)",
        "    if os.waitpid(process, os.WNOHANG) != (0, 0):",
        "        raise SystemExit(0)",
        "os.kill(process, signal.SIGKILL)",
        'print("hang of the process: expected an answer, got none in 10 s")',
        "raise SystemExit(1)",
    ]


BODIES: Mapping[str, Body] = {
    "structure": _structure,
    "mutation": _mutation,
    "version": _version,
    "aliasing": _aliasing,
    "accuracy": _accuracy,
    "writes": _fence,
    "reads": _fence,
    "unwritten": _fill,
    "repetition": _repeat,
    "gradients": _gradients,
    "cotangents": _cotangents,
    "gradcheck": _gradcheck,
    "fake": _fake,
    "symbolic": _symbolic,
    "compile": _compiled("aot_eager", False),
    "dynamic": _compiled("aot_eager", True),
    "inductor": _compiled("inductor", False),
    "vmap": _vmap,
    "autocast": _autocast,
    "refusals": _refusals,
    "crash": _death,
    "hang": _death,
    "memory": _raising,
}
"""The lines that show a difference, by check. Other checks compare the results with the reference's results."""

CARRIED = {
    "writes": ("fenced", "trespassed", "Fresh", "READ_ONLY", "NO_ACCESS", "KNOWN"),
    "reads": ("fenced", "trespassed", "Fresh", "READ_ONLY", "NO_ACCESS", "KNOWN"),
    "unwritten": ("Fresh",),
    "cotangents": ("laid_out",),
    "accuracy": ("errors",),
}
"""Functions of the harness that a script carries."""


def headline(finding: Difference) -> str:
    """Return the difference as a sentence, with the name of its check."""
    one = finding.mismatch
    judged = one.oracle in (*_FACTS, "value", "storage")
    text = sentence(one) if judged else f"{one.where}: expected {one.expected}, got {one.actual}"
    text += f" ({one.detail})" if one.detail and not judged else ""
    note = f" ({finding.call.note})" if finding.call.note else ""
    return textwrap.shorten(f"{finding.check}: {text}{note}", 300)


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
    floating = tuple(name for name, value in env.items() if value.is_floating_point() or value.is_complex())
    reference = trial.reference
    text = Text(trial.operator.text, reference.text, arguments, tuple(env), floating, finding)
    body = _batch(trial.batch)(text) if finding.check == "batch" else BODIES.get(finding.check, _value)(text)
    carries = CARRIED.get(finding.check, ())
    uses_reference = any(reference.text in line for line in body)
    plain = tuple(line for line in reference.lines if line not in trial.operator.lines) if uses_reference else ()
    head = ["import os, sys, torch", 'sys.path.append("")  # modules in the current folder are found, too']
    definition = [
        "def inputs():",
        *(f"    {line}" for line in lines),
        f"    return {', '.join(env)}{',' * (len(env) == 1)}",
    ]
    body = [line.replace("EACH", str(trial.exact)) for line in body]
    body = (
        [line.replace(f"{text.all} = inputs()", f"{text.all}, = inputs()") for line in body] if len(env) == 1 else body
    )
    needed = [MARKER, carried(carries).strip("\n"), ""] if carries else []
    parts = [about, *head, *trial.operator.lines, *plain, "", *needed, *(definition if env else []), ""]
    return "\n".join([*parts, *body]).rstrip("\n") + "\n"
