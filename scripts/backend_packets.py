"""The bugs of published backends as issues: one for each line of docs/backends/*.toml that says what is wrong.

    x = torch.arange(3.0, device=d)
    x.eq_(x)
    x.tolist()  # [9.2e-41, 1.0, 2.0], not [1.0, 1.0, 1.0]: bytes of a bool result are written into a float tensor

The last line is a claim: what the backend answers, what torch CPU does, and why. The issue has the claim with the lines
that it needs. A table `searched` names the issues that one search for earlier reports was made for. With `issues`, it
names reports of the same bug, and its claims become no issues. `measured.json` has what the lines of a wrong value
print on torch CPU in float64. `scripts/packets.py` writes the files.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.report import pytorch_issue
from conformance.report.pytorch_issue import WORDS, Packet
from scripts import findings
from scripts.pages import PageError

FOLDER = Path("docs/backends")
MEASURED = FOLDER / "measured.json"
REFERENCE = "On torch CPU, without a compiler and with float64 in place of other floats, the same lines print"
ON_TORCH_CPU = (
    (r"^import torch, .*$", "import torch"),
    (r"^torch\w+\.\w+\(\)\n", ""),
    (r'^d = ".*"$', 'd = "cpu"'),
    (r"\btorch\.(bfloat16|float16|float32)\b", "torch.float64"),
)
"""What replaces the lines of a script that load a backend, and the dtypes in it, for a float64 reference."""
READS = re.compile(r"\w+\.(tolist|cpu|item)\(\)$|\w+$")
"""Lines that only show a tensor: the newest other line has the bug."""
METADATA = re.compile(r"\.(stride|storage_offset)\(\)$|\.(dtype|shape|device|requires_grad)$")
ALIASING = re.compile(r"\bwrit|\blost\b|\bviews?\b|\bits input\b|\bcopies\b")
ERROR = re.compile(r"\b\w*(Error|Failed)\b|INTERNAL ASSERT")


def packets_of(path: Path) -> Iterator[tuple[str, Packet]]:
    """Yield the issues of a backend's file, each with the name of its own file. Raises PageError for a search of
    unknown claims."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    measured = path.parent / MEASURED.name
    references = json.loads(measured.read_text(encoding="utf-8")).get(path.stem, {}) if measured.exists() else {}
    searches = searches_of(path)
    code, versions = data["code"], tuple(part.strip() for part in data["versions"].strip().split(", "))
    backend, lines = versions[0].partition(" ")[0], code.splitlines()
    body = ast.parse(code).body
    comments = [lines[(statement.end_lineno or 1) - 1].partition("  # ")[2] for statement in body]
    for at, (statement, comment) in enumerate(zip(body, comments, strict=True)):
        if not comment:
            continue
        more = _lines_below(lines, statement.end_lineno or 1)
        block = next((index + 1 for index in reversed(range(at)) if comments[index]), 0)  # after the claim before
        start = min(_first_needed(body, at), block)
        before = [line for line, said in zip(body[start:at], comments[start:at], strict=True) if not said]
        packet = _packet(backend, versions, data["setup"], before, statement, " ".join([comment, *more]))
        name = f"{_slug(packet.title)}-{at}"
        search = searches.pop(name, {})
        if search:
            packet = replace(packet, words=(search["words"],), known=pytorch_issue.SEARCHED.format(**search))
        if "issues" not in search:
            yield f"{name}.md", replace(packet, reference=references.get(name, ""), reference_by=REFERENCE)
    if searches:
        raise PageError(f"{path.name} has searches for {', '.join(searches)}, which no claim has as its name")


def searches_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the search for earlier reports of each claim of a backend's file, by its name."""
    result = dict[str, Mapping[str, Any]]()
    for search in tomllib.loads(path.read_text(encoding="utf-8")).get("searched", ()):
        if {*search} - {"issues"} != {"claims", *findings.SEARCHED}:
            raise PageError(f"{path.name} has a search with {', '.join(search)}; give claims, words, date, found")
        result |= dict.fromkeys(search["claims"], search)
    return result


def folder_of(packet: Packet) -> str:
    """Return the folder of a backend's issues."""
    return packet.layer.replace("_", "-")


def reference_script(code: str) -> str:
    """Return the script of an issue without the lines that load the backend, and in float64."""
    for pattern, text in ON_TORCH_CPU:
        code = re.sub(pattern, text, code, flags=re.MULTILINE)
    return code


def _lines_below(lines: list[str], number: int) -> list[str]:
    """Return the lines of comment directly below a line, which belong to its claim."""
    result = []
    for line in lines[number:]:
        if not line.startswith("# "):
            break
        result.append(line.removeprefix("# "))
    return result


def _first_needed(body: list[ast.stmt], at: int) -> int:
    """Return the index of the first statement that a statement needs: the newest one that binds each of its names."""
    start, wanted = at, [(name, at) for name in _names(body[at], ast.Load)]
    while wanted:
        name, before = wanted.pop()
        bound = next((index for index in reversed(range(before)) if name in _bound(body[index])), None)
        if bound is not None:
            start = min(start, bound)
            wanted += [(inner, bound) for inner in _names(body[bound], ast.Load)]
    return start


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, context)}


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds anew; a write into a tensor binds none."""
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {name for target in statement.targets for name in _names(target, ast.Store)}
    return set()


def _packet(
    backend: str, versions: tuple[str, ...], setup: str, before: list[ast.stmt], claim: ast.stmt, said: str
) -> Packet:
    got, expected, text = claim_parts(said)
    expected = expected or ("an error" if got.startswith("no error") else "no error")
    last = ast.unparse(claim)
    shown = f"print({last})" if isinstance(claim, ast.Expr) else last
    script = [*_setup_lines(setup, "\n".join(map(ast.unparse, [*before, claim]))), "", *map(ast.unparse, before), shown]
    kind = _kind(last, got, expected, text)
    lines = [*map(ast.unparse, before), last]
    culprit = next((line for line in reversed(lines) if not READS.match(line)), last).partition("\n")[0]
    says = f"raises {got}" if kind == "error" and ERROR.match(got) else f"gives {got}" if kind != "crash" else got
    title = f"`{culprit}` {says}" + ("" if expected in ("no error", "an error") else f", not {expected}")
    words = (backend, _operator_of(culprit), WORDS.get(kind, ""))
    code = "\n".join(script)
    return Packet(title, kind, backend, code, "", text, expected, got, versions=versions, words=(*filter(None, words),))


def _operator_of(line: str) -> str:
    """Return the method or function that the outermost call of a line names, but for those that only show a result."""
    called = (node.func for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call))
    names = [function.attr for function in called if isinstance(function, ast.Attribute)]
    return next((name for name in names if name not in ("tolist", "cpu", "item", "stride")), "")


def claim_parts(said: str) -> tuple[str, str, str]:
    """Split `a, not b: why` into the answer, torch CPU's answer, and the rest. Colons in brackets and quotes, and
    in error messages, are part of an answer."""
    quoted = re.sub(r'"[^"]*"|\[[^\]]*\]|\([^)]*\)', lambda match: "_" * len(match[0]), said)
    end = re.search(r"[:;] ", quoted)
    head, text = (said[: end.start()], said[end.end() :]) if end else (said, "")
    at = quoted[: len(head)].find(", not ")
    return (head, "", text) if at < 0 else (head[:at], head[at + len(", not ") :], text)


def _kind(line: str, got: str, expected: str, text: str) -> str:
    """Return the kind of a bug, by its claim."""
    if "ends the process" in got:
        return "crash"
    if ERROR.search(expected) or expected == "an error":
        return "missing error"
    if ERROR.search(f"{got} {text}"):
        return "error"
    if METADATA.search(line):
        return "metadata"
    return "aliasing" if ALIASING.search(f"{got} {expected} {text}") else "value"


def _setup_lines(setup: str, code: str) -> list[str]:
    """Return the lines that load the backend. The text names code, or says which names the lines have."""
    named = re.findall(r"`(\w+)` is `([^`]+)`", setup)
    own = [f"{name} = {value}" for name, value in named]
    own = own or [line for text in re.findall(r"`([^`]*import[^`]*)`", setup) for line in text.split("; ")]
    used = "\n".join([*own, code])
    imports = [f"import {name}" for name in ("copy", "functools", "torch") if f"{name}." in used]
    present = "\n".join(line for line in own if line.startswith("import "))
    return [*(line for line in imports if not re.search(rf"\b{line.split()[1]}\b", present)), *own]


def _slug(title: str) -> str:
    """Return the names in the first code of a title, without those of torch's modules and of the example's tensors."""
    names = re.findall(r"[A-Za-z_]\w+", title.split("`")[1])
    own = [name for name in names if name not in ("torch", "nn", "functional", "ops", "aten", "device", "dtype")]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(own[:4] or ["write"]).lower()).strip("-")
