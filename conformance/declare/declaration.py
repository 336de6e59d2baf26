"""Declarations: one type for all differences that a file or a target declares in advance, with a reason.

Defines `Declaration` with its `Scope`, `read`, `dumps` and `check`. A misspelt word would silently declare too much. So
every key, property and name must exist, and a mistake is one sentence with the file, the line and the nearest word.
This module must not import torch, and it runs nothing.
"""

from __future__ import annotations

import datetime
import fnmatch
import itertools
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from conformance.record import versions
from conformance.record.accuracy import ACCURACY
from conformance.record.errors import ReportError
from conformance.record.finding import PROPERTIES, Finding
from conformance.record.names import ORACLES, RUN_ORACLES, nearest

ANY = "*"
"""The property of a declaration that covers every difference of its subjects."""
CASES, FINDINGS, PARTS_OF_TARGET = "cases of op_db", "findings of drawn programs", "parts of a target"
ANSWERS = "answers of torch CPU"
"""The subjects of a declaration; accuracy and sizes have cases, too."""
UNSUPPORTED = "unsupported"
"""The property of parts of a target that are not run. Its class declares them, and its profile."""

UNDEFINED = (
    *("undefined", "order of equal elements", "choice next to nan", "gradient at nan", "sign of zero"),
    *("spread of inf and nan", "cancellation", "direction of infinity", "singular matrices", "repeated elements"),
    "order, sign or basis",
)
"""The parts of torch CPU's answers that are undefined. `engine/rules.py` has a rule for most of them."""


PARTS = ("op", "step", "layout", "pattern", "error", "kind", "first_wrong_step")
"""The parts of a finding that a scope matches, each by globs."""

SUBJECTS = {
    CASES: (("op", "variant", "dtype", "layout", "samples"), (*ORACLES, *RUN_ORACLES, ACCURACY, ANY)),
    FINDINGS: ((*PARTS, "program", "programs", "seed", "options"), (*ORACLES, *RUN_ORACLES, *PROPERTIES, ANY)),
    PARTS_OF_TARGET: (("feature", "dtype", "operator", "op", "step"), (UNSUPPORTED,)),
    ANSWERS: (("op", "family", "variant"), (*UNDEFINED, "crash")),
}
"""The keys that a scope in a file may have, and the properties that may differ, by subject."""

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Subjects that a declaration selects. Each tuple holds globs, and an empty one selects everything.

    A case of op_db has an `op` (the full name of its OpInfo), a `variant`, a `dtype` and a `layout`. With `samples`, a
    case that compared fewer samples need not fail, since the failure may show only in a later sample.

    A finding has the parts of `PARTS`: the `op` of its cause, its `pattern`, and the parts of its signature. It must
    show in each campaign of at least `programs` programs with this `seed` (any seed if it is None) and these `options`.
    With `program`, the scope covers saved programs of these names only, and the finding must show in each run of them.

    An answer of torch CPU is that of an `op` or a `family` of ops, in a `variant`.

    A part of a target in a profile is a `feature` (`FEATURES`), a `dtype`, or an `operator` of the dispatcher with the
    `op`s of op_db and the `step`s that need it. A class may also name a `step` or a family of steps, a `state`, a
    `trait` of programs (`program/unsupported.py`), and a `variant` of op_db. These names are no globs.
    """

    feature: Names = ()
    operator: Names = ()
    op: Names = ()
    step: Names = ()
    variant: Names = ()
    dtype: Names = ()
    layout: Names = ()
    pattern: Names = ()
    error: Names = ()
    kind: Names = ()
    first_wrong_step: Names = ()
    state: Names = ()
    trait: Names = ()
    family: Names = ()
    program: Names = ()
    programs: int = 0
    seed: int | None = None
    options: str = ""
    samples: int = 0

    def selects(self, names: Mapping[str, str]) -> bool:
        """Whether a subject with these names, by key, is in the scope. A key without a name is not compared."""
        return all(among(name, getattr(self, key)) for key, name in names.items())

    def toml(self) -> str:
        """Return the scope as an inline table; if that is too long, lists have one name a line."""
        values = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}
        text = f"scope = {{{', '.join(f'{key} = {_toml(value)}' for key, value in values.items())}}}"
        if len(text) <= 120:
            return text
        return f"scope = {{{', '.join(f'{key} = {_toml(value, many=True)}' for key, value in values.items())}}}"


@dataclass(frozen=True)
class Declaration:
    """A known difference of some subjects.

    `property` lists the oracles or properties that may differ. `torch` is a PEP 440 specifier: with another version the
    declaration stays in the file and declares nothing. After `until`, a date or a version of torch, the file is
    refused. `file` and `line` are its place, if it was read from a file.
    """

    scope: Scope
    property: Names
    reason: str
    issue: str = ""
    torch: str = ""
    until: str = ""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @cached_property
    def subject(self) -> str:
        """The subjects that the declaration is about, a key of `SUBJECTS`."""
        if UNSUPPORTED in self.property:
            return PARTS_OF_TARGET
        if not {*UNDEFINED}.isdisjoint(self.property):
            return ANSWERS
        return FINDINGS if self.scope.program or self.scope.programs else CASES

    @cached_property
    def where(self) -> str:
        """The place of the declaration. A declaration of a target's class has no file."""
        return f"{self.file}, line {self.line}" if self.file else "its class"

    @cached_property
    def holds(self) -> bool:
        """Whether the declaration applies to the installed torch."""
        return versions.holds(self.torch)

    @cached_property
    def why(self) -> str:
        """The reason, followed by the issue if there is one."""
        return f"{self.reason} {self.issue}".strip()

    @cached_property
    def covers_all(self) -> bool:
        """Whether every failure of its subjects is covered: `op = "*"` and `property = "*"`, for example."""
        globs = (glob for key in NAMES for glob in getattr(self.scope, key))
        return ANY in self.property and not any(glob.strip(ANY) for glob in globs)

    def names(self, word: str) -> bool:
        """Whether the declaration covers this oracle or property."""
        return word in self.property or ANY in self.property

    def covers(self, result: Any) -> bool:
        """Whether the declaration is about this result, or about a case with name, variant, dtype and layout. A fault
        of the harness in a drawn program is never declared."""
        finding = getattr(result, "finding", None)
        if not self.holds or self.subject is not (CASES if finding is None else FINDINGS):
            return False
        if finding is None:
            names = {key: getattr(result, key) for key in ("variant", "dtype", "layout")}
            return self.scope.selects({"op": result.name, **names})
        saved = not self.scope.program or any(among(name, self.scope.program) for name in finding.saved)
        return saved and finding.kind in KINDS and self.describes(finding)

    def describes(self, finding: Finding) -> bool:
        """Whether the cause and the parts of one of the finding's signatures match, whichever program showed it."""
        return any(
            self.scope.selects(parts_of(seen))
            and (
                self.names(seen.property or seen.parts.oracle) or seen.parts.oracle in {*self.property} - {*PROPERTIES}
            )
            for seen in finding.seen_as()
        )

    def passes(self, what: str) -> str:
        """Return the sentence on a declaration that does not apply: its place, and how to remove it."""
        return (
            f"{self.where} declares it, and {what}: delete or narrow that [[declare]] entry, or let the same command "
            f"with --update-expectations do so (its reason: {self.why})"
        )

    def toml(self) -> str:
        """Return the declaration as TOML, without fields that have their default value."""
        texts = [f"{key} = {_toml(value)}" for key in KEYS[1:] if (value := getattr(self, key))]
        return "\n".join(["[[declare]]", self.scope.toml(), *texts]) + "\n"

    def __str__(self) -> str:
        named = self.property if ANY not in self.property else ()
        parts = (*named, *(name for key in NAMES for name in getattr(self.scope, key)))
        return " / ".join(parts) or ANY


KINDS = ("FAIL", "FLAKY", "CRASH", "TIMEOUT", "MEMORY")
KEYS = ("scope", "property", "reason", "issue", "torch", "until")
"""The keys of a declaration in a file, in the file's order."""
AS_DOCUMENTED = "write [[declare]] with scope, property (formerly oracle) and reason, as docs/ci.md shows"
AGAIN = "write the profile again, with conformance init --force"
FORMER = {"expect": AS_DOCUMENTED, "finding": AS_DOCUMENTED, "lacking": AGAIN, "lacks": AGAIN, "dtypes": AGAIN}
"""Tables and keys of the former form, and how to renew them."""


def parts_of(finding: Finding) -> dict[str, str]:
    """Return the parts of a finding that a scope matches: those of `PARTS`."""
    parts = finding.parts
    of_signature = {"step": parts.op, "layout": parts.layout, "error": parts.error}
    return {name: of_signature[name] if name in of_signature else getattr(finding, name) for name in PARTS}


def unsupported(reason: str, **scope: str | Iterable[str]) -> Declaration:
    """Return the declaration of a target's class that parts of it are unsupported. `scope` holds names or lists of
    names, by key, such as `step="backward"`."""
    lists: Any = {key: (value,) if isinstance(value, str) else tuple(value) for key, value in scope.items()}
    return Declaration(Scope(**lists), (UNSUPPORTED,), reason)


def among(name: str, globs: Sequence[str]) -> bool:
    """Whether one of the globs matches, or there is none."""
    return not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def literal(text: str) -> str:
    """Return a glob that matches this text alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def refuse(problems: Sequence[str]) -> None:
    """Raise ReportError with the first of these sentences, if there is one."""
    if problems:
        more = f" And {len(problems) - 1} more such entries." if problems[1:] else ""
        raise ReportError(problems[0] + more)


def unknown(declarations: Iterable[Declaration], known: Mapping[str, Collection[str]]) -> list[str]:
    """Return one sentence for each name of a scope that does not exist. `known` are the names that exist, by key."""
    return [
        f"{declaration.where}: unknown {key} {name!r}{nearest(name, words) or '.'}"
        for declaration in declarations
        for key, words in known.items()
        for name in getattr(declaration.scope, key)
        if name not in words and (declaration.subject is PARTS_OF_TARGET or not fnmatch.filter(words, name))
    ]


def check(declarations: Iterable[Declaration], subject: str, known: Mapping[str, Collection[str]]) -> list[str]:
    """Return the mistakes in the declarations of this subject, one sentence each: names that do not exist, and subjects
    declared twice. `known` are the names that exist, by key of the scope.

    Declarations for another torch cannot be checked with the installed one, and are not."""
    checked = [declaration for declaration in declarations if declaration.subject is subject and declaration.holds]
    problems = unknown(checked, known)
    seen: set[tuple[str, ...]] = set()
    for declaration in checked:
        lists = [getattr(declaration.scope, key) for key in NAMES]
        if subject is PARTS_OF_TARGET:
            keys = {(key, name) for key, names in zip(NAMES, lists, strict=True) for name in names}
        else:
            every = itertools.product(declaration.property, *(some or (ANY,) for some in lists))
            keys = {(*where, declaration.scope.options) for where in every}
        problems += [f"{declaration.where}: {declaration} is declared twice."] if keys & seen else []
        seen |= keys
    return problems


def read(path: Path | str, subjects: Sequence[str] = (CASES, FINDINGS)) -> list[Declaration]:
    """Read the declarations of a file, which may be about these subjects; none if there is no file. Raises ReportError
    with the file and the line."""
    data, lines = parsed(Path(path), {"declare": "[[declare]]"})
    return declared(Path(path), data, lines, subjects)


def dumps(declarations: Iterable[Declaration], head: str) -> str:
    """Return a file of these declarations, sorted, so that it changes only where declarations change."""
    ordered = sorted(declarations, key=lambda declaration: (declaration.subject, declaration.toml()))
    return "\n".join([head, *(declaration.toml() for declaration in ordered)])


def quoted(text: str) -> str:
    """Return a TOML basic string. JSON's escapes are TOML's, but DEL must be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: str | int | Names, many: bool = False) -> str:
    if isinstance(value, tuple) and len(value) > 1:
        names = [quoted(name) for name in value]
        return "\n    ".join(["[", *(f"{name}," for name in names)]) + "\n]" if many else f"[{', '.join(names)}]"
    value = value[0] if isinstance(value, tuple) else value
    return quoted(value) if isinstance(value, str) else str(value)


def parsed(path: Path, tables: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Parse a TOML file that may hold only these tables, given by name and by their form in the file. Returns the data
    and the lines, both empty if there is no file. Raises ReportError with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except FileNotFoundError:
        return {}, []
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{path} is not valid TOML: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read ({error}).") from None
    lines = text.splitlines()
    for name in data.keys() - tables.keys():
        line = line_of(lines, rf"\[+\s*{re.escape(name)}\b|{re.escape(name)}\s*=", 0)
        if name in FORMER:
            raise ReportError(f"{path}, line {line}: {name!r} is a former form: {FORMER[name]}.")
        only = " and ".join(tables.values())
        raise ReportError(f"{path}, line {line}: only {only} entries belong in this file, not {name!r}"
                          f"{nearest(name, tables)}")  # fmt: skip
    return data, lines


def declared(path: Path, data: Mapping[str, Any], lines: list[str], subjects: Sequence[str]) -> list[Declaration]:
    """Return the declarations in the data of a file, which may be about these subjects. Raises ReportError with the
    file and the line."""
    tables = data.get("declare", [])
    heads = [number for number, line in enumerate(lines, 1) if re.match(r"\s*\[\[\s*declare\s*\]\]", line)]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ReportError(f"{path}: 'declare' must be written as [[declare]] entries.")
    heads = heads if len(heads) == len(tables) else [0] * len(tables)
    declarations = [_declaration(path, lines, head, table) for table, head in zip(tables, heads, strict=True)]
    for declaration in declarations:
        if declaration.subject not in subjects:
            raise ReportError(
                f"{declaration.where}: declarations of {declaration.subject} do not belong in this file, which is "
                f"about {' and '.join(subjects)}."
            )
    return declarations


def known_keys(path: Path, lines: list[str], head: int, table: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Check that every key of the table, which begins on line `head`, is one of these. Raises ReportError."""
    for key in table.keys() - set(keys):
        line = line_of(lines, rf".*\b{re.escape(key)}[\"']?\s*=", head)
        hint = nearest(key, keys) or f"; use {', '.join(sorted(keys))}."
        raise ReportError(f"{path}, line {line}: unknown key {key!r}{hint}")


NAMES = tuple(item.name for item in fields(Scope) if item.type == "Names")
"""The keys of a scope that hold globs."""
NUMBERS = {"programs": 1, "samples": 1, "seed": 0}
"""The keys of a scope that hold a number, and the least number."""


def _declaration(path: Path, lines: list[str], head: int, table: dict[str, Any]) -> Declaration:
    where = f"{path}, line {head}"
    known_keys(path, lines, head, table, KEYS)
    for key in KEYS[2:]:
        if (key in table or key == "reason") and not (isinstance(table.get(key), str) and table[key].strip()):
            raise ReportError(f"{where}: an entry needs a non-empty {key!r}.")
    scope = table.get("scope")
    if not isinstance(scope, dict) or not scope:
        raise ReportError(f"{where}: an entry needs a 'scope', such as scope = {{op = \"add\"}}.")
    values: dict[str, Any] = {key: names_of(where, key, scope[key]) for key in scope if key in NAMES}
    for key, least in NUMBERS.items():
        if key in scope and not (type(scope[key]) is int and scope[key] >= least):
            raise ReportError(f"{where}: {key!r} must be a whole number, {least} or more.")
    if not isinstance(scope.get("options", ""), str):
        raise ReportError(f"{where}: 'options' must be a string.")
    known_keys(path, lines, head, scope, [item.name for item in fields(Scope)])
    rest = {key: table[key] for key in KEYS[2:] if key in table}
    properties = names_of(where, "property", table.get("property"))
    declaration = Declaration(Scope(**(scope | values)), properties, **rest, file=str(path), line=head)
    _check_subject(declaration, scope)
    _check_versions(declaration)
    return declaration


def names_of(where: str, key: str, value: Any) -> Names:
    """Return a name, or a list of names, as a tuple. Raises ReportError."""
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ReportError(f"{where}: {key!r} must be a name or a non-empty list of names.")
    return tuple(value)


def _check_subject(declaration: Declaration, keys: Iterable[str]) -> None:
    """Check that the scope and the property belong to the same subjects. Raises ReportError."""
    allowed, properties = SUBJECTS[declaration.subject]
    for key in keys:
        if key not in allowed:
            more = (
                f"; {FINDINGS} need 'programs', the number of programs from which on a campaign must show one, or "
                "'program', the name of a saved program."
            )
            raise ReportError(
                f"{declaration.where}: {key!r} is no part of the scope of {declaration.subject}"
                f"{more if key in SUBJECTS[FINDINGS][0] else '; use ' + ', '.join(allowed) + '.'}"
            )
    operators = len(declaration.scope.operator), bool(declaration.scope.op or declaration.scope.step)
    if declaration.subject is PARTS_OF_TARGET and operators not in ((0, False), (1, True)):
        raise ReportError(
            f"{declaration.where}: an 'operator' needs the 'op' or 'step' that are not run, and these need one."
        )
    if declaration.subject is CASES and not declaration.scope.op:
        raise ReportError(f"{declaration.where}: the scope of {CASES} needs an 'op'.")
    for word in declaration.property:
        if word not in properties:
            hint = nearest(word, properties) or f"; use {', '.join(dict.fromkeys(properties))}."
            raise ReportError(f"{declaration.where}: {declaration.subject} have no property {word!r}{hint}")


def _check_versions(declaration: Declaration) -> None:
    """Check `torch` and `until`. Raises ReportError, also if `until` has passed."""
    try:
        versions.specifier(declaration.torch or ">=0")
        passed = bool(declaration.until) and _passed(declaration.until) and declaration.holds
    except InvalidVersion:
        raise ReportError(
            f"{declaration.where}: 'until' must be a date (2027-01-31), or a version of torch (2.15)."
        ) from None
    except ValueError as error:
        raise ReportError(f"{declaration.where}: 'torch': {error}.") from None
    if passed:
        raise ReportError(
            f"{declaration.where}: the entry was valid until {declaration.until}, which has passed: delete it, or "
            f"correct 'until' (its reason: {declaration.why})."
        )


def _passed(until: str) -> bool:
    """Whether the day is over, or the installed torch is this version or newer."""
    try:
        return datetime.date.fromisoformat(until) < datetime.datetime.now(datetime.UTC).date()
    except ValueError:
        return versions.installed() >= Version(until)


def line_of(lines: list[str], pattern: str, after: int) -> int:
    """Return the number of the first line after `after` that starts with the pattern, or `after` itself."""
    numbers = (
        number for number, line in enumerate(lines, 1) if number > after and re.match(rf"\s*(?:{pattern})", line)
    )
    return next(numbers, after)
