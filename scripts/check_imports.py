"""Check the imports of the package: no cycle, no dead or private import, and no import that `pyproject.toml` forbids.

The rules of the package ("the device does not depend on the harness") are a graph over names. The script reads the
graph from the source without importing anything, and the allowed graph is data.

A room is a module or folder directly under the package, or one inside it that the table names by its path, such as
"backend/lazy". The room of a module is the longest such path. Permission to import a room does not extend to its
sub-rooms.

Usage: ``python scripts/check_imports.py [ROOT]``; prints one line for each fault and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

PACKAGE = "conformance"

SOURCE_FILE = re.compile(r"\w+(?:/\w+)+\.py")
"""A string that names a module by its path inside the package."""


@dataclass(frozen=True)
class Import:
    """One imported module or name, at a line of a file."""

    file: Path
    line: int
    target: str
    runs: bool = True  # False in a block for type checkers only


def main(root: Path) -> int:
    """Print every fault under `root`; return 1 if there is one, 2 if nothing can be checked."""
    modules = {module_name(root, path): path for path in sorted((root / PACKAGE).rglob("*.py"))}
    if not modules:
        print(f"check_imports: no package {PACKAGE!r} in {root}", file=sys.stderr)
        return 2
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"][PACKAGE]
    try:
        imports = {name: list(imports_of(path, name)) for name, path in modules.items()}
    except SyntaxError as error:
        print(f"{error.filename}:{error.lineno}: {error.msg}", file=sys.stderr)
        return 2
    messages = [*cycles(imports), *dead(imports, modules), *trespasses(imports, settings), *private(modules, settings)]
    faults = list(dict.fromkeys(messages))
    print("\n".join(faults) or f"{len(modules)} modules, {sum(map(len, imports.values()))} imports: no fault")
    return 1 if faults else 0


def module_name(root: Path, path: Path) -> str:
    """Dotted name of a file; for an `__init__.py` the name of the package."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, name: str) -> Iterator[Import]:
    """Yield every import of the file, as absolute dotted names; `from a import b` counts as `a.b`.

    A string that is the path of a file, such as "record/names.py", counts as an import that does not run.
    """
    tree = ast.parse(path.read_text(), str(path))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    unused = {id(inner) for node in ast.walk(tree) if is_for_checkers(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            targets = [f"{origin}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and SOURCE_FILE.fullmatch(node.value):
            targets = [".".join([PACKAGE, *node.value.removesuffix(".py").split("/")])]
        else:
            continue
        for target in targets:
            yield Import(path, node.lineno, target, id(node) not in unused and not isinstance(node, ast.Constant))


def is_for_checkers(node: ast.AST) -> bool:
    """Whether a node is a block for type checkers only, which never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def module_of(target: str, imports: dict[str, list[Import]]) -> str | None:
    """Module of the package that contains a dotted name: the longest prefix that is a module."""
    while target and target not in imports:
        target = target.rpartition(".")[0]
    return target or None


def cycles(imports: dict[str, list[Import]]) -> Iterator[str]:
    """Yield an import cycle, imports inside functions included; imports for type checkers do not count."""
    graph: dict[str, set[str]] = {}
    for name, statements in imports.items():
        targets = {module_of(statement.target, imports) for statement in statements if statement.runs}
        graph[name] = {target for target in targets if target not in (None, name, PACKAGE)}  # type: ignore[misc]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"import cycle: {' -> '.join(error.args[1])}"


def dead(imports: dict[str, list[Import]], modules: dict[str, Path]) -> Iterator[str]:
    """Yield imports from the package of a module or name that does not exist."""
    defined = {name: set(top_level_names(path)) for name, path in modules.items()}
    for statement in (
        statement
        for statements in imports.values()
        for statement in statements
        if statement.target.split(".")[0] == PACKAGE
    ):
        module = module_of(statement.target, imports)
        rest = statement.target.removeprefix(module or "").lstrip(".")
        if module and rest and rest != "*" and rest not in defined[module] and "__getattr__" not in defined[module]:
            yield f"{statement.file}:{statement.line}: dead import: {module} has no {rest}"


def top_level_names(path: Path) -> Iterator[str]:
    """Names that a module defines, assigns or imports outside of functions and classes."""
    tree = ast.parse(path.read_text(), str(path))
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        pending.extend(ast.iter_child_nodes(node))


def trespasses(imports: dict[str, list[Import]], settings: dict[str, Any]) -> Iterator[str]:
    """Yield imports between rooms, or from outside the package, that the tables in `pyproject.toml` do not allow."""
    rooms, forbidden = settings["rooms"], settings["forbidden"]
    for name, statements in imports.items():
        room = room_of(name, rooms)
        if room and room not in rooms:
            yield f"{name}: a new room: name it, and what it may import, in [tool.{PACKAGE}.rooms] of pyproject.toml"
            continue
        for statement in statements:
            if statement.target.split(".")[0] in forbidden.get(name, ()):
                yield f"{statement.file}:{statement.line}: {name} must not import {statement.target.split('.')[0]}"
            module = module_of(statement.target, imports)
            other = room_of(module, rooms) if module else None
            if room and other and other != room and other not in rooms[room]:
                yield f"{statement.file}:{statement.line}: {room} must not import {other}"


def private(modules: dict[str, Path], settings: dict[str, Any]) -> Iterator[str]:
    """Yield uses of private names of another package outside of the modules that the table `private` allows."""
    for package, allowed in settings.get("private", {}).items():
        attributes = frozenset(settings.get("private_attributes", {}).get(package, ()))
        for name, path in modules.items():
            if name in allowed:
                continue
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                for said in private_names(node, package, attributes):
                    yield f"{path}:{node.lineno}: {name} uses the private {said}: let {allowed[0]} or its like do it"  # type: ignore[attr-defined]


def private_names(node: ast.AST, package: str, attributes: Container[str] = ()) -> Iterator[str]:
    """Yield the private names of the package in an import or an attribute.

    A name is private if one of its parts begins with one underscore, or if it ends in one of `attributes`. An attribute
    of a module's own `self` or `cls`, or of a table of operators named `aten`, does not count.
    """
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names] if not node.level else []
    elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        names = [ast.unparse(node)]
    else:
        return
    for name in names:
        parts = name.split(".")
        if parts[:2] == [package, "ops"]:
            continue  # names of operators; the tables that use them check them
        of_object = isinstance(node, ast.Attribute) and node.attr in attributes
        of_object = of_object and parts[-2] != "aten" and parts[:-1] not in (["self"], ["cls"])
        of_package = parts[0] == package and any(one.startswith("_") and not one.startswith("__") for one in parts)
        if of_object or of_package:
            yield name


def room_of(name: str, rooms: Container[str]) -> str | None:
    """Longest path in `rooms` that contains a module, otherwise the folder directly under the package.

    None for the package itself and for the commands, which are modules next to the folders.
    """
    top, *parts = name.split(".")
    if top != PACKAGE or not parts or (len(parts) == 1 and parts[0] not in rooms):
        return None
    paths = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((path for path in paths if path in rooms), parts[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent))
