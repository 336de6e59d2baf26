"""A finding as a standalone Python script that needs torch and the target only; both kinds of finding in one shape.

The key insight: the first screen of a script is the bug, as a person would type it: the finding and its command, the
inputs, the calls, and one line that compares. All that this line needs comes behind a marker. That part is carried as
the very source of the harness's own rules, read from its files and not imported, so that a process that must not load
torch can write a script as well.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE

CARRIED = "# What follows runs the calls on both and prints what differs."
"""Stands between a script's own part and the functions that each script carries."""

CORE = Path(__file__).parent
Source = tuple[Path, tuple[str, ...]]
"""A file, and the functions of it that are carried; none for all."""
RUNTIME: tuple[Source, ...] = (
    (CORE / "moving.py", ("whole_storage",)),
    (CORE / "observation.py", ("names_of", "contiguity")),
    (CORE / "oracles.py", ("differing", "_defaults", "same_sign")),
    (CORE / "script_runtime.py", ()),
)
IMPORTS = {
    "contextlib.": "import contextlib",
    "math.": "import math",
    "forward_ad.": "from torch.autograd import forward_ad",
    "default_tolerances(": "from torch.testing._comparison import default_tolerances",
}
"""What the carried functions need beside torch, by how they call it."""


def render(
    about: Sequence[str],
    setup: str,
    own: Sequence[str],
    inputs: Sequence[str],
    program: str,
    options: Mapping[str, str],
    *,
    extra: Iterable[Source] = (),
) -> str:
    """The script. `about` are the lines of its docstring, which may hold any text; `setup` is the target's `script()`,
    `own` are functions that the calls use, `inputs` the lines that make the inputs and return them by name, `program`
    the text of the function `program`, and `options` what else `compare` is given, as expressions."""
    usual = {name: name for name in ("transform",) if name in defined(setup)}
    usual |= {"mode": "MODE"} if "MODE" in defined(setup) else {}
    given = {key: value for key, value in {**usual, **options}.items() if value not in ("[]", "()", "None")}
    call = ", ".join(["inputs", "program", "DEVICE", *(f"{key}={value}" for key, value in given.items())])
    made = "def inputs(on):\n    global device\n    device = on\n" if uses_device(program) else "def inputs(device):\n"
    parts = [
        "\n".join([f'"""{inert(chr(10).join(about))}\n"""', "import torch"]),
        setup,
        *own,
        made + textwrap.indent("\n".join(inputs), "    "),
        program.rstrip("\n"),
        f"def main():\n    compare({call})",
        CARRIED,
        _carried((*RUNTIME, *extra)),
        "main()\n",
    ]
    return "\n\n".join(part.strip("\n") for part in parts[:-1]) + "\n\n" + parts[-1]


def own_part(text: str) -> str:
    """The part of a script that is its own: the finding, the inputs and the calls."""
    return text.partition(CARRIED)[0].rstrip("\n")


def unjudged(oracles: Collection[str]) -> list[str]:
    """Oracles that a script leaves out: those that the target is not judged by, and kernels, which it cannot count."""
    loose = ["insignificant stride"] if SIGNIFICANT_STRIDE in oracles else []
    judged = {*oracles, "kernels", *(["stride"] if loose else [])}
    return [oracle for oracle in ORACLES if oracle not in judged] + loose


def inert(text: str) -> str:
    """Text from anywhere as part of a docstring: it neither ends it, nor escapes, nor moves a terminal's cursor."""
    escaped = text.replace("\\", "\\\\").replace('"', "'")
    return "".join(c if (c.isascii() and c.isprintable()) or c == "\n" else f"<{ord(c):x}>" for c in escaped)


def uses_device(text: str) -> bool:
    """Whether a text of calls names the device, other than as a keyword."""
    return re.search(r"\bdevice\b(?!=)", text) is not None


@functools.cache
def defined(setup: str) -> frozenset[str]:
    """The names that a target's `script()` defines, such as `DEVICE`, `MODE` and `transform`."""
    try:
        nodes = list(ast.walk(ast.parse(setup)))
    except SyntaxError:  # it is anybody's text; the script will say so
        return frozenset()
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(names | {node.name for node in nodes if isinstance(node, ast.FunctionDef)})


@functools.cache
def _carried(sources: tuple[Source, ...]) -> str:
    bodies = [node for path, names in sources for node in _definitions(path, names)]
    text = "\n\n".join(map(ast.unparse, bodies))
    return "\n".join([line for used, line in IMPORTS.items() if used in text]) + f"\n\n{text}"


def _definitions(path: Path, names: tuple[str, ...]) -> list[ast.AST]:
    """Functions, classes and named constants of a file, without annotations and docstrings: they are what a reader
    scrolls past."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [_Bare().visit(node) for node in body if (_named(node) in names if names else _named(node))]


def _named(node: ast.stmt) -> str:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) and target.id.startswith("_") else ""
    return node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ""


class _Bare(ast.NodeTransformer):
    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value, lineno=node.lineno) if node.value else None

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        return self.undocumented(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        return self.undocumented(node)

    def undocumented(self, node: Any) -> Any:
        node.body = node.body[ast.get_docstring(node) is not None :] or [ast.Pass()]
        return node
