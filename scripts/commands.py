"""Generate docs/commands.md: the `--help` of every command, and the docstrings of the public names.

    python -m scripts.commands            write the page
    python -m scripts.commands --check    exit code 1 when docs/commands.md is stale

The page needs torch and tinygrad, because the public names of `tiny` are among them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import runpy
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from unittest import mock

from conformance.__main__ import JOBS
from scripts.pages import PageError, Part

PART = Part("docs/commands.md", "commands")
WIDE = "10000"
"""Width at which argparse wraps no line."""

PUBLIC = ("conformance", "conformance.report", "conformance.backend.kernels", "conformance.backend")
"""Modules whose `__all__` is public."""

CLASSES = ("conformance.engine.target.Target", "conformance.engine.facts.TargetFacts")
"""Classes that a user derives from, or makes; their public attributes are part of the page."""


def help_of(module: str, name: str) -> str:
    """Return the `--help` of a command, without line breaks inside a paragraph."""
    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [f"conformance {name}", "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": WIDE, "NO_COLOR": "1"}),
        contextlib.redirect_stdout(said),
        contextlib.suppress(SystemExit),
        warnings.catch_warnings(action="ignore"),  # runpy warns of a module that is already imported
    ):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return said.getvalue()


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield (flags, meaning) of each option and (word, meaning) of each choice of a `--help`, and ("", text) of each
    paragraph, without the usage and `--help`."""
    flags, words = "", list[str]()
    for line in [*text.partition("\n\n")[2].splitlines(), ""]:
        begins = re.match(r"  (?:  )?(\S+|\S.*?)(?:  +(\S.*))?$", line)
        if (begins or not line.startswith(" ")) and words and not flags.startswith(("-h", "{")):
            yield flags, " ".join(words)
        if begins:
            flags = re.sub(r"^(--?\w+) \S+, (?=-)", r"\1, ", begins[1])  # Python 3.13 names the value once
            words = [begins[2]] if begins[2] else []
        elif line.startswith(" "):
            words.append(line.strip())
        else:
            flags, words = "", []
            if line and not line.endswith(":"):
                yield "", line


def markdown(text: str) -> str:
    """Return a text of a `--help` as Markdown: options and placeholders as code, or they would read as HTML."""
    return re.sub(r"(?<![`\w])(--\w[\w-]*|[\w./-]*(?:<\w+>[\w./-]*)+)", r"`\1`", text)


def command(name: str, text: str, seen: set[tuple[str, str]], paragraphs: set[str]) -> str:
    """Section of one command, from its `--help`. Options in `seen` are named only, and paragraphs in `paragraphs` are
    left out; the others are added to these sets."""
    parts, options, same = [f"### conformance {name}"], list[str](), list[str]()
    for flags, meaning in entries(re.sub(r"torch-\d+\.\d+", "torch-<minor>", text)):
        if not flags:
            if meaning not in paragraphs:
                parts.append(markdown(meaning))
            paragraphs.add(meaning)
        elif (flags, meaning) in seen:
            same.append(f"`{flags.split()[-2] if ' ' in flags else flags}`")
        else:
            options.append(f"- `{flags}`: {markdown(meaning)}")
            seen.add((flags, meaning))
    if same:
        options.append(f"- as above: {', '.join(same)}")
    return "\n\n".join([*parts[:2], "\n".join(options), *parts[2:]])


def sentence(text: str | None) -> str:
    """First sentence of a docstring, in one line; empty without one."""
    return re.split(r"(?<=\.) (?=[A-Z`])", " ".join((text or "").partition("\n\n")[0].split()))[0]


def public(module: ModuleType) -> Iterator[str]:
    """Yield a line for each class and function among the public names of a module."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            arguments = f"({', '.join(inspect.signature(thing).parameters)})" if inspect.isroutine(thing) else ""
            yield f"- `{name}{arguments}`: {sentence(inspect.getdoc(thing))}"


def attributes(cls: type) -> Iterator[str]:
    """Yield a line for each public attribute of a class, and of its bases in this package, that has a docstring of its
    own."""
    for base in cls.__bases__:
        if base.__module__.startswith("conformance."):
            yield from attributes(base)
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for node, after in zip(tree.body, [*tree.body[1:], None]):
        if isinstance(node, ast.FunctionDef):
            name, text = node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            name, text = node.target.id, str(ast.literal_eval(after.value))
        else:
            continue
        if text and not name.startswith("_") and not text.startswith("See "):
            yield f"- `{name}`: {sentence(text)}"


def listed() -> str:
    """Generated part of the page."""
    seen, paragraphs = set[tuple[str, str]](), set[str]()
    sections = (command(name, help_of(module, name), seen, paragraphs) for name, (module, _) in JOBS.items())
    parts = ["## Commands", *sections, "## Public names"]
    for name in PUBLIC:
        module = importlib.import_module(name)
        parts += [f"### {name}", "\n".join(public(module))]
    for name in CLASSES:
        module_name, _, cls = name.rpartition(".")
        documented = getattr(importlib.import_module(module_name), cls)
        parts += [f"### {name}", sentence(inspect.getdoc(documented)), "\n".join(attributes(documented))]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page. Returns 1 for a stale page, 2 for a page without the markers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="report a stale page, and write nothing")
    args = parser.parse_args(arguments)
    try:
        return PART.renew(listed(), args.check)
    except PageError as error:
        print(f"commands: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
