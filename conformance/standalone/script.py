"""A finding as a standalone Python script that needs only torch and the target; one form for programs and op_db cases.

The first screen of a script is the bug in plain torch, so that it can be pasted into an issue: the inputs, the calls,
and a print of the one answer that differs, from the CPU and from the target. The script loads the device first, since
autograd counts the devices before the first `backward`. A device may push modes under which torch CPU answers
differently. The CPU therefore answers in another thread, which has no modes. After a marker comes the comparison by the
harness's rules; its exit code says whether anything differs. That part is the source of the harness, read from its
files without importing them: a process that must not load torch writes scripts too.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.declare.features import FEATURES
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE

if TYPE_CHECKING:
    from conformance.standalone.oracles import Mismatch

CPU = '"cpu"'
"""torch CPU, as a script names it."""

MARKER = "# The full comparison: exit code 1 where anything differs that is judged, 0 where nothing does."
"""Separates the bug in plain torch from the functions that each script carries."""

ROOM = Path(__file__).parent.parent
MODULES = (
    "record/names.py",
    "record/accuracy.py",
    "record/error_text.py",
    "record/footprint.py",
    "standalone/torch_compat.py",
    "standalone/input_layout.py",
    "standalone/moving.py",
    "standalone/device.py",
    "standalone/observation.py",
    "standalone/modes.py",
    "standalone/transforms.py",
    "standalone/guarded_memory.py",
    "standalone/oracles.py",
    "standalone/script_runtime.py",
    "standalone/script_end.py",
    "standalone/layouts.py",
    "standalone/specials.py",
    "standalone/extreme_arguments.py",
    "standalone/sample_runtime.py",
    "standalone/stateful.py",
    "standalone/device_tests.py",
    "standalone/accuracy.py",
    "standalone/sizes.py",
    "standalone/conditions.py",
    "standalone/rounding.py",
    "standalone/global_state.py",
    "standalone/operator_checks.py",
    "standalone/repro.py",
    "standalone/derivative_checks.py",
    "standalone/transform_checks.py",
)
"""Modules with the functions that scripts carry. If two modules define the same name, the later one counts."""

IMPORTS = {
    "atexit.": "import atexit",
    ": builtins,": "import builtins",
    "importlib.util.": "import importlib.util",
    "os._exit(": "import os",
    "inspect.": "import inspect",
    "unittest.": "import unittest",
    "os.environ": "import os",
    "sys.modules[": "import sys",
    "contextlib.": "import contextlib",
    "copy.deepcopy(": "import copy",
    "dataclasses.": "import dataclasses",
    "functools.": "import functools",
    "futures.": "from concurrent import futures",
    "overrides._": "from torch import overrides",
    "dispatch._": "from torch.utils import _python_dispatch as dispatch",
    "io.": "import io",
    "linecache.": "import linecache",
    "math.": "import math",
    "itertools.": "import itertools",
    "random.Random(": "import random",
    "re.compile(": "import re",
    "re.search(": "import re",
    "@dataclass": "from dataclasses import dataclass",
    "field(default": "from dataclasses import field",
    "zlib.crc": "import zlib",
    "Counter(": "from collections import Counter",
    "ctypes.": "import ctypes",
    "(is_not,": "from operator import is_not",
    "mmap.mmap": "import mmap",
    "(NamedTuple)": "from typing import NamedTuple",
    "(TorchDispatchMode)": "from torch.utils._python_dispatch import TorchDispatchMode",
    "DispatchKeySet(": "from torch._C import DispatchKey, DispatchKeySet",
    "gc.": "import gc",
    "time.p": "import time",
    ": time}": "import time",
    "tree_leaves(": "from torch.utils._pytree import tree_leaves",
    "tree_map(": "from torch.utils._pytree import tree_map",
    "forward_ad.": "from torch.autograd import forward_ad",
    "default_tolerances(": "from torch.testing._comparison import default_tolerances",
}
"""Imports that carried functions need in addition to torch. Each key is a text in the functions that need the
import."""

ANSWERS = {
    "dtype": "{}.dtype",
    "shape": "tuple({}.shape)",
    "stride": "{}.stride()",
    "storage_offset": "{}.storage_offset()",
    "version": "{}._version",
    "storage": "{0}.data.set_({0}.untyped_storage()).tolist()",
    "device": "{}.device",
}
"""The expression that prints a tensor's answer, by the oracle that saw the difference."""

BY_STRIDES = "{}.detach().as_strided(({}.untyped_storage().nbytes() // {}.element_size(),), (1,), 0).tolist()"
"""A whole storage on a device without `set_`."""

FLAGS = {
    "conj": "{}.is_conj()",
    "neg": "{}.is_neg()",
    "inference": "{}.is_inference()",
    "channels_last": "{}.is_contiguous(memory_format=torch.channels_last)",
    "channels_last_3d": "{}.is_contiguous(memory_format=torch.channels_last_3d)",
}
"""The expression that prints a layout flag, by the flag's word in `contiguity`."""


class ScriptBody(NamedTuple):
    """The part of a script that is specific to the bug.

    `functions` are functions that the calls use. `inputs` are the lines that make the inputs (named `given`) and return
    them by name. `program` is the text of the function `program`. If running the program takes more than a plain call,
    `call` names the function in `functions` that does it. `transform` names the function that transforms the program.
    With a `relation`, `program` also has the text of the function `related`, whose answers must be the same.
    """

    functions: Sequence[str]
    inputs: Sequence[str]
    names: Collection[str]
    program: str
    call: str = ""
    transform: str = "transform"
    relation: str = ""


def render(
    bug: ScriptBody,
    setup: str,
    about: str,
    mismatch: Mismatch | None,
    options: Mapping[str, str],
    notes: Sequence[str] = (),
    roots: Sequence[str] = (),
) -> str:
    """Return the script. `about` is its docstring, which may hold any text, and `notes` are comments after the marker.
    `setup` is the target's `script()`. `mismatch` selects the printed answer; None prints all results. `options` are
    further arguments of `compare`, as expressions, and `roots` the carried functions that they name."""
    names = {"transform": "transform", "MODE": "mode", "ON": "on"}
    chosen = {key: name for name, key in names.items() if name in defined(setup)}
    chosen |= {"transform": bug.transform} if "transform" in chosen else {}
    chosen |= {"call": bug.call} if bug.call else {}
    chosen |= {"related": "related"} if bug.relation else {}
    chosen |= {key: value for key, value in options.items() if value not in ("[]", "()", "{}", "None")}
    arguments = ", ".join(["inputs", "program", "DEVICE", *(f"{key}={value}" for key, value in chosen.items())])
    early = any("torch.testing._internal" in text for text in bug.functions)
    loading = load(setup, early)
    own = [
        f'"""{inert(about)}"""\n{loading.head}',
        *bug.functions,
        "\n".join(["def inputs(device):", *(f"    {line}" for line in bug.inputs)]),
        bug.program,
        loading.late,
        define_function(
            "print_both",
            _both(bug, setup, mismatch, options, loading.pushes),
            users="\n".join([setup, bug.program, *bug.functions]),
        ),
    ]
    text = "\n\n".join(part.strip("\n") for part in own if part)
    remarks = [f"# {line}" for note in notes for line in inert(note).splitlines()]
    rest = carried(("compare", "end_script", *roots), frozenset(defined(text)))
    anew = ["torch.compiler.reset()  # print_both() compiled the function"] if "torch.compile(" in setup else []
    main = define_function("main", ["print_both()", *anew, f"return compare({arguments})"])
    return f"{text}\n\n" + "\n".join([MARKER, *remarks, rest, "", main, "", "end_script(main)"]) + "\n"


def define_function(name: str, lines: Iterable[str], users: str = "") -> str:
    """Return the definition of a function with these lines. It sets the global variable `device` if the functions in
    `users`, which it calls, use that name."""
    shared = ["global device"] if uses_device(users) else []
    return "\n".join([f"def {name}():", *(f"    {line}" for text in [*shared, *lines] for line in text.splitlines())])


def own_part(text: str) -> str:
    """Return the part of a script before the marker, which runs alone: the bug in plain torch. Its calls are the lines
    of the function `print_both`, which the script calls after the marker, so that `end_script` sees their errors."""
    plain = text.partition(MARKER)[0].rstrip("\n")
    before, _, calls = plain.rpartition("\ndef print_both():\n")
    return "\n".join([before, textwrap.dedent(calls).removeprefix("global device\n")]) if before else plain


class Loading(NamedTuple):
    """The lines of a script that load its device: `head`, the first lines after the docstring, and `late`, lines before
    the calls. `pushes` says that the device may have pushed modes onto its thread by then."""

    head: str
    late: str = ""
    pushes: bool = False


def load(setup: str, early: bool) -> Loading:
    """Split a target's `script()` into the lines that register a device, under a `try`, and the others. With `early`,
    only the imports come first: op_db must be imported after a device is registered, and it must generate its samples
    before the device pushes modes."""
    plain = Loading(f"import torch\n{setup.strip()}")
    try:
        body = ast.parse(setup).body
    except SyntaxError:  # the text is the target's; running the script shows the error
        return plain
    first = next((at for at, line in enumerate(body) if not _registers(line)), len(body))
    lines, rest = [*map(ast.unparse, body[:first])], "\n".join(map(ast.unparse, body[first:]))
    used = {node.id for line in body[first:] for node in ast.walk(line) if isinstance(node, ast.Name)}
    bound = {
        (alias.asname or alias.name).partition(".")[0]
        for line in body[:first]
        if isinstance(line, (ast.Import, ast.ImportFrom))
        for alias in line.names
    }
    if not lines or used & bound:
        return plain
    head = f"import sys, torch, concurrent.futures as futures\n{rest}"
    if len(body) - first > 1 or not rest.startswith("DEVICE = "):
        return Loading(f"{head.replace(', concurrent.futures as futures', '')}\n\n{_tried(lines)}")
    calls = [line for line in lines if not line.startswith(("import ", "from ", "os.environ["))] if early else []
    check = "torch.empty(1, device=DEVICE)"
    if not calls:
        return Loading(f"{head}\n\n{_tried([*lines, check])}", pushes=True)
    imports = [line for line in lines if line not in calls]
    return Loading(f"{head}\n\n{_tried(imports)}", _tried([*calls, check]), True)


def _registers(line: ast.stmt) -> bool:
    """Whether a line imports, sets an environment variable, or only calls."""
    if isinstance(line, ast.Assign):
        return ast.unparse(line.targets[0]).startswith("os.environ[")
    return isinstance(line, (ast.Import, ast.ImportFrom, ast.Expr))


def _tried(lines: Sequence[str]) -> str:
    """Return these lines under a `try`. Modules are also found in the current folder, as with the installed command. If
    a line fails, the script prints one sentence and exits with code 2, which differs from the code of a difference."""
    text = "f'device {DEVICE!r} cannot be loaded: {type(error).__name__}: {error}'"
    return "\n".join(
        [
            "try:",
            f"    sys.path.append(''); {'; '.join(lines)}",
            "except Exception as error:",
            f"    print({text}, file=sys.stderr)",
            "    sys.exit(2)",
        ]
    )


def _both(
    bug: ScriptBody, setup: str, mismatch: Mismatch | None, options: Collection[str], pushes: bool
) -> Iterator[str]:
    """Yield the lines that make the calls on both sides and print the answer that differs."""
    run, on, label = "program", "device", "device"
    if bug.relation:
        run, on, label, pushes = "run", "device", "name", False
        transform = bug.transform if "transform" in defined(setup) else ""
        yield f"device = {('ON' if 'ON' in defined(setup) else CPU) if transform else 'DEVICE'}"
        other, own = (f"{transform}({name})" if transform else name for name in ("related", "program"))
        yield f'for name, run in ("{bug.relation}", {other}), ("as written", {own}):'
        if "MODE" in defined(setup):
            yield "    with MODE:"
    elif {"transform", "ON"} <= defined(setup):
        run, on, label = "run", "device", "name"
        if bug.transform != "transform":  # which makes the earlier calls
            yield "device = ON"
        yield f'for name, device, run in ("cpu", "cpu", program), (DEVICE, ON, {bug.transform}(program)):'
    elif "transform" in defined(setup):
        run, on, label = "run", '"cpu"', "name"
        if bug.call or uses_device(bug.program):
            yield 'device = "cpu"'
        yield f'for name, run in ("cpu", program), (DEVICE, {bug.transform}(program)):'
    elif "MODE" in defined(setup):
        label = "name"
        yield 'for name, device, mode in ("cpu", "cpu", torch.enable_grad()), ("target", DEVICE, MODE):'
        yield "    with mode:"
    elif pushes:
        yield (
            "def print_on(on):\n    global device; device = on" if uses_device(bug.program) else "def print_on(device):"
        )
    else:
        yield 'for device in "cpu", DEVICE:'
    whole, by_set = _of_all(bug, mismatch), "by_set" not in options
    shown = "{made}" if whole or mismatch is None else answer(mismatch, bug.names, by_set)
    on_device = "transform" not in defined(setup) or "ON" in defined(setup)
    if on_device:  # where a tensor may be of a subclass, whose tolist() torch refuses
        shown = shown.replace(".tolist()", ".cpu().tolist()")
    call = f"{bug.call}({run}, {{given}})" if bug.call else f"{run}(*{{given}}.values())"
    if "{given}" in shown:
        body = [f"given = inputs({on})", f"{'made = ' * ('{made}' in shown)}{call}", f"print({label}, {shown})"]
    elif shown.count("{made}") > 1:
        body = [f"made = {call}", f"print({label}, {shown})"]
    else:
        body = [f"print({label}, {shown.replace('{made}', call)})"]
    names = {"{given}": "given" if "{given}" in shown else f"inputs({on})", "{made}": "made"}
    body = [functools.reduce(lambda line, name: line.replace(*name), names.items(), line) for line in body]
    if _of_all(bug, mismatch) or (mismatch and mismatch.oracle == "structure"):
        body = ["try:", *(f"    {line}" for line in body)]
        body += ["except Exception as error:", f"    print({label}, repr(error))"]
    within = "MODE" in defined(setup) and label == "name"
    yield from (" " * (8 if within else 4) + line for line in body)
    if pushes:
        yield "futures.ThreadPoolExecutor().submit(print_on, 'cpu').result()  # a thread without the device's modes"
        yield "print_on(DEVICE)"


def _of_all(bug: ScriptBody, mismatch: Mismatch | None) -> bool:
    """Whether the mismatch is about no single answer: an error of the whole run, or of a step that should give an
    answer."""
    if mismatch is None or mismatch.where in ("the whole run", "the error"):
        return True
    return mismatch.oracle == "error" and (mismatch.expected == "no error" or f"{mismatch.where!r}:" not in bug.program)


def answer(mismatch: Mismatch, inputs: Collection[str], by_set: bool = True) -> str:
    """Return the expression of the answer that differs, with `{made}` for the results and `{given}` for the inputs,
    both by name. `by_set` says that the device has `set_`."""
    where = mismatch.where.removeprefix("grad of ")
    tensor, ends = _named(where, inputs), (mismatch.expected, mismatch.actual)
    if mismatch.oracle == "structure":
        root, nested, _ = where.partition("[")
        return f"{{made}}.get({root!r})" if nested else f"type({{made}}.get({where!r})).__name__"
    if mismatch.oracle == "alias":
        other = next((name for name in ends if name != where), where)
        return f"{tensor}.untyped_storage()._cdata == {_named(other, inputs)}.untyped_storage()._cdata"
    if mismatch.oracle == "contiguity":
        flags = set(ends[0].split()) ^ set(ends[1].split())
        return next((text for word, text in FLAGS.items() if word in flags), "{}.is_contiguous()").replace("{}", tensor)
    if mismatch.oracle == "grad":
        if where == mismatch.where:
            return f"{tensor}.requires_grad"
        tensor += ".grad"
        if "none" in ends:
            return f"{tensor} is None"
        if ends[0].startswith("torch."):
            return f"{tensor}.dtype, tuple({tensor}.shape)"
    if mismatch.oracle == "storage" and not by_set:
        return BY_STRIDES.replace("{}", tensor)
    if mismatch.oracle in ANSWERS:
        return ANSWERS[mismatch.oracle].replace("{0}", "{}").replace("{}", tensor)
    if mismatch.oracle in ("value", "grad") and mismatch.detail:
        return f"{tensor}[{mismatch.first}].item()" if " elements, first " in ends[0] else f"{tensor}.tolist()"
    return f"repr({tensor})"


def _named(where: str, inputs: Collection[str]) -> str:
    """Return `result[0]` as an expression. The name of an input refers to the input."""
    if where in inputs:
        return f"{{given}}[{where!r}]"
    root, bracket, rest = where.partition("[")
    return f"{{{'given' if root in inputs else 'made'}}}[{root!r}]{bracket}{rest}"


def comparison_options(oracles: Collection[str], lacks: Collection[str] = ()) -> dict[str, str]:
    """Return the options of `compare` that depend on a target's oracles and on the features that the device lacks."""
    unseen = set[str]().union(*(FEATURES[name].oracles for name in lacks))
    unseen |= {"storage"} if {"set_", "as_strided"} <= {*lacks} else set()
    chosen = [oracle for oracle in (*ORACLES, SIGNIFICANT_STRIDE) if oracle in {*oracles} - unseen]
    return {"oracles": repr(chosen), **({"by_set": "False"} if "set_" in lacks else {})}


def inert(text: str) -> str:
    """Escape arbitrary text for a docstring: it cannot end the docstring, start an escape, or move a terminal's
    cursor."""
    escaped = text.replace("\\", "\\\\").replace('"', "'")
    return "".join(c if (c.isascii() and c.isprintable()) or c == "\n" else f"<{ord(c):x}>" for c in escaped)


def uses_device(text: str) -> bool:
    """Whether a text of calls names the device, other than as a keyword."""
    return re.search(r"\bdevice\b(?!=)", text) is not None


@functools.cache
def defined(text: str) -> frozenset[str]:
    """Return the names that a text defines at its top level, such as `DEVICE`, `ON`, `MODE` and `transform` in a
    target's `script()`."""
    try:
        body = ast.parse(text).body
    except SyntaxError:  # the text is the target's; running the script shows the error
        return frozenset()
    blocks = [line for line in body if isinstance(line, (ast.FunctionDef, ast.ClassDef))]
    lines = [line for line in body if line not in blocks]
    return frozenset([*(block.name for block in blocks), *(name for line in lines for name in _stored(line))])


def _stored(node: ast.AST) -> list[str]:
    """Return the names that a statement assigns."""
    names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


@functools.cache
def carried(roots: tuple[str, ...], without: frozenset[str] = frozenset(), taken: frozenset[str] = frozenset()) -> str:
    """Return the source of these functions of the harness and of everything that they use. Annotations and docstrings
    are removed to keep scripts short. Names in `without` are already defined in the script. Names in `taken` belong to
    the user's functions, so functions of the harness get other names (`own_name`)."""
    known = _definitions()
    wanted, left = set[str](), [*roots]
    while left:
        name = left.pop()
        if name in known and name not in wanted and name not in without:
            wanted.add(name)
            left += _used(known[name])
    renamed = _Renamed({name: own_name(name, taken) for name in wanted & taken})
    nodes = [node for name, node in known.items() if name in wanted]
    text = "\n\n".join(_written(renamed.visit(copy.deepcopy(node)) if renamed.names else node) for node in nodes)
    imports = dict.fromkeys(line for used, line in IMPORTS.items() if used in text)
    return "\n".join([*imports, "", text])


def own_name(name: str, taken: Collection[str]) -> str:
    """Return the name of a carried function in a script where other functions have the names in `taken`."""
    return f"{name}_" if name in taken else name


def _used(node: ast.AST) -> set[str]:
    """Return the names that a definition takes from outside."""
    inner = {*_stored(node), *(argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg))}
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - inner


@functools.cache
def _definitions() -> dict[str, ast.AST]:
    """Return functions, classes and constants of the modules by name."""
    result: dict[str, ast.AST] = {}
    for module in MODULES:
        for name, node in definitions_of(ROOM / module).items():
            result.pop(name, None)
            result[name] = node
    return result


def definitions_of(file: Path) -> dict[str, ast.AST]:
    """Return functions, classes and constants of a module by name."""
    result: dict[str, ast.AST] = {}
    for node in _bare(file.read_text(encoding="utf-8")).body:
        name = getattr(node, "name", "") or next(iter(_stored(node)), "")
        if name and isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)):
            result[name] = node
    return result


def bare(text: str) -> str:
    """Return the text of functions without annotations and docstrings."""
    return _written(_bare(text))


def _bare(text: str) -> ast.Module:
    """Return the syntax tree of a text without annotations and docstrings."""
    empty = {number for number, line in enumerate(text.split("\n"), 1) if not line}
    return _Bare(empty).visit(ast.parse(text))


def _written(node: ast.AST) -> str:
    """Return the text of a syntax tree that `_bare` made."""
    return re.sub(rf" *{EMPTY_LINE}\n\n?", "\n", ast.unparse(node))


PACKAGE_OPERATORS, SCRIPT_OPERATORS = "conformance::", "script::"
"""Namespaces of custom operators. A script that runs in a process of the package must not replace the package's
operators: a call of a replaced operator may end the process."""

EMPTY_LINE = "__empty_line__"
"""Statement that stands for an empty line in a definition, since `ast.unparse` drops empty lines."""


class _Renamed(ast.NodeTransformer):
    """Renames definitions and all names that refer to them; parameters of the same name as well."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.names.get(node.arg, node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._named(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self._named(node)

    def _named(self, node: Any) -> Any:
        node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)


class _Bare(ast.NodeTransformer):
    """Removes annotations and docstrings, and marks the lines of definitions whose numbers are in `empty`."""

    def __init__(self, empty: Set[int]) -> None:
        self.empty = empty

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and node.value.startswith(PACKAGE_OPERATORS):
            node.value = node.value.replace(PACKAGE_OPERATORS, SCRIPT_OPERATORS, 1)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else None

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        return self.undocumented(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        for line in node.body:
            if isinstance(line, ast.AnnAssign):  # a field of a dataclass needs an annotation, whatever it says
                line.annotation = ast.Name("object", ast.Load())
            else:
                self.visit(line)
        return self.undocumented(node)

    def undocumented(self, node: Any) -> Any:
        body = node.body[ast.get_docstring(node) is not None :] or [ast.Pass()]
        node.body = body[:1]
        for before, line in itertools.pairwise(body):
            if not self.empty.isdisjoint(range(before.end_lineno, line.lineno)):
                node.body.append(ast.Expr(ast.Name(EMPTY_LINE, ast.Load())))
            node.body.append(line)
        return node
