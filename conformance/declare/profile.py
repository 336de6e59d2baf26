"""The profile of a target, `conformance.toml`: how to load it, its dtypes, the features it lacks, and its limits.

Defines `Profile`, `load` and `dumps`. A file that the user reads and keeps declares all missing features and operators.
A run never infers them from an exception, so nothing can hide a bug by calling itself unsupported. A misspelt word
would silently declare something else, so an unknown word is an error. This module must not import torch: a profile's
environment variables must be set before any other import.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.declare import declared
from conformance.declare.declared import quoted
from conformance.record.errors import ReportError, TargetError
from conformance.record.missing_ops import MissingOperator, ranked
from conformance.record.names import BUILTIN, DTYPES, nearest, without_features
from conformance.record.usage import usage_of

NAME = "conformance.toml"
"""The profile that commands use if no target is named."""

TINY, TINY_NEEDS = "tiny", "tinygrad"
"""The target if there is no profile either, and the module that it needs."""

FORMS = {"target": "[target]", "environment": "[environment]", "limits": "[limits]", "lacking": "[[lacking]]"}
OPTIONS = ("import", "call", "dynamic")
LIMITS = ("seconds", "compiling", "memory")
KEYS = {
    "target": ("kind", "name", *OPTIONS, "lacks", "dtypes"),
    "limits": LIMITS,
    "lacking": ("operator", "opinfos", "steps", "said"),
}
"""The keys of each table; the keys of [environment] are names of variables."""


@dataclass(frozen=True)
class Missing:
    """One operator without a kernel, the OpInfos and steps that need it, the error's text, and the line of the
    entry."""

    operator: str
    opinfos: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    said: str = ""
    line: int = 0


@dataclass(frozen=True)
class Profile:
    """The contents of a profile. `lacks` are names of features; `dtypes` None means all. Limits are None if the profile
    does not set them: `seconds` for a program or case, `compiling` for a first kernel, `memory` in GiB."""

    kind: str = "device"
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    lacking: tuple[Missing, ...] = ()
    seconds: float | None = None
    compiling: float | None = None
    memory: float | None = None
    file: Path = Path(NAME)

    @property
    def spec(self) -> str:
        """The spec that loads the target, without the profile's further declarations."""
        argument = ",".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])
        return f"{self.kind}:{argument}" if argument else self.kind

    def activate(self) -> None:
        """Set the environment variables, for this process and the processes that it starts."""
        os.environ.update(self.environment)

    @property
    def opinfos(self) -> dict[str, str]:
        """The missing operator, by the OpInfo that needs it."""
        return {name: missing.operator for missing in self.lacking for name in missing.opinfos}

    @property
    def steps(self) -> dict[str, str]:
        """The missing operator, by the step that needs it."""
        return {name: missing.operator for missing in self.lacking for name in missing.steps}

    def check(self, what: str, known: Collection[str]) -> None:
        """Reject unknown words in `lacks`, `opinfos` or `steps`. Raises TargetError with the file and line."""
        groups = (
            [(getattr(entry, what), entry.line) for entry in self.lacking] if what != "lacks" else [(self.lacks, 0)]
        )
        for names, line in groups:
            for name in names:
                if name not in known:
                    where = f"{self.file}, line {_line_of(self.file, name, line)}"
                    raise TargetError(f"{where}: unknown name {name!r} in {what!r}{nearest(name, known)}")

    def told(self, name: str, what: str) -> str:
        """Return the instruction for an OpInfo or step whose operator is no longer missing: the entry or name to
        delete. `what` is "opinfos" or "steps"."""
        entry = next(entry for entry in self.lacking if name in getattr(entry, what))
        beside = ""
        if len(entry.opinfos) + len(entry.steps) > 1:
            beside = f", or on line {_line_of(self.file, name, entry.line)} {name!r} alone"
        return f"{self.file}, line {entry.line}: delete the [[lacking]] entry of {entry.operator}{beside}"

    def where(self, key: str, name: str = "") -> str:
        """Return `FILE, line N` of a key of [target], or of a name in its list. If the key does not exist, the line is
        the table's."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        table = declared.line_of(lines, r"\[\s*target\s*\]", 0)
        line = declared.line_of(lines, rf"[\"']?{key}[\"']?\s*=", table)
        return f"{self.file}, line {_line_of(self.file, name, line) if name else line}"

    def table(
        self,
        cases: Mapping[str, int] = {},
        families: Mapping[str, str] = {},
        entries: Mapping[str, Collection[str]] = {},
    ) -> tuple[MissingOperator, ...]:
        """Return the rows of a run's table, one for each declared operator that removes something. `cases` counts the
        op_db cases removed, by OpInfo. `families` maps each step to its family; it is empty if the run draws no steps.
        `entries` lists the op_db entries not drawn, by operator."""
        rows = []
        for one in self.lacking:
            steps = one.steps if families else ()
            row = MissingOperator(
                one.operator,
                sum(cases.get(name, 0) for name in one.opinfos),
                steps,
                *usage_of(one.operator),
                entries=tuple(
                    sorted({*(name for name in one.opinfos if cases.get(name)), *entries.get(one.operator, ())})
                ),
                families=tuple(sorted({families[name] for name in steps if name in families})),
            )
            if row.cases or row.steps or row.entries:
                rows.append(row)
        return ranked(rows)


def _line_of(file: Path, name: str, after: int) -> int:
    """Return the first line from `after` on that has this string, or `after` itself."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((number for number, line in enumerate(lines, 1) if number >= after and quoted(name) in line), after)


def is_profile(spec: str) -> bool:
    """Whether the spec of a target is the path of a profile."""
    return spec.endswith(".toml")


def identity(spec: str) -> str:
    """Return the name of a target: its kind, name and options, without the features that it lacks. A profile has the
    name of the target that it loads. Raises TargetError."""
    profile = of(spec)
    return without_features(profile.spec if profile is not None else spec)


def file_name(spec: str) -> str:
    """Return the target's name as a file name: letters, digits, dot, dash and underscore only. For a profile it is the
    stem of the profile's file, unless that file has the default name. Raises TargetError."""
    named = is_profile(spec) and Path(spec).name != NAME
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(spec).stem if named else identity(spec)).strip("-") or "target"


def usual(spec: str | None) -> str:
    """Return the target of a command: the named target, else the profile in the current folder, else `tiny` if tinygrad
    is installed. Raises TargetError without any of these."""
    if spec or Path(NAME).is_file():
        return spec or NAME
    if importlib.util.find_spec(TINY_NEEDS) is None:
        raise TargetError(
            "no target is named, and the current folder has no profile: name one with --target, as "
            "device:NAME,import=MODULE or compile:NAME,import=MODULE, where MODULE registers NAME with torch"
        )
    return TINY


def of(spec: str) -> Profile | None:
    """Return the profile if a target's spec is the path of one, else None. Raises TargetError."""
    return load(spec) if is_profile(spec) else None


def limit(spec: str, name: str, given: float | None, usual: float) -> float:
    """Return a limit of a command: the given value, else the profile's, else the default. Raises TargetError."""
    profile = of(spec)
    said = getattr(profile, name) if profile is not None else None
    return given if given is not None else said if said is not None else usual


def load(path: Path | str) -> Profile:
    """Read a profile. Raises TargetError: one sentence with the file, the line, and the nearest known word."""
    path = Path(path)
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise TargetError(f"there is no profile {path}: write it with conformance init --target ...") from None
    return _loaded(path, changed)


@dataclass(frozen=True)
class _Table:
    """One table of the file, with the number of its first line."""

    values: Mapping[str, Any]
    file: Path
    lines: list[str]
    head: int

    @property
    def where(self) -> str:
        return f"{self.file}, line {self.head}"

    def text(self, key: str, usual: str = "") -> str:
        value = self.values.get(key, usual)
        if not isinstance(value, str) or (key in self.values and not value.strip()):
            raise ReportError(f"{self.where}: {key!r} must be a non-empty string")
        return value

    def names(self, key: str, known: Collection[str] = ()) -> tuple[str, ...]:
        names = self.values.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ReportError(f"{self.where}: {key!r} must be a list of names")
        for name in names if known else ():
            if name not in known:
                line = declared.line_of(self.lines, f".*{re.escape(quoted(name))}", self.head)
                raise ReportError(f"{self.file}, line {line}: unknown name {name!r} in {key!r}{nearest(name, known)}")
        return tuple(names)

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ReportError(f"{self.where}: {key!r} must be a number above 0")
        return None if value is None else float(value)


@functools.lru_cache
def _loaded(path: Path, changed: int) -> Profile:
    try:
        data, lines = declared.parsed(path, FORMS)
        tables = {kind: list(_tables(path, lines, data, kind)) for kind in FORMS}
        if not tables["target"]:
            raise ReportError(f"{path} has no [target] table, which says how the device is loaded")
        environment = {key: table.text(key) for table in tables["environment"] for key in table.values}
        limits: dict[str, Any] = {name: table.number(name) for table in tables["limits"] for name in LIMITS}
        lacking = tuple(map(_missing, tables["lacking"]))
        target = _target(tables["target"][0])
        return Profile(**target, **limits, environment=environment, lacking=lacking, file=path)
    except ReportError as error:
        raise TargetError(str(error).removesuffix(".")) from None


def _tables(path: Path, lines: list[str], data: Mapping[str, Any], kind: str) -> Iterator[_Table]:
    many = kind == "lacking"
    entries = data.get(kind, []) if many else [data[kind]] if kind in data else []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReportError(f"{path}: {kind!r} must be written as {FORMS[kind]}")
    heads = [at for at, line in enumerate(lines, 1) if re.match(rf"\s*\[+\s*{kind}\s*\]", line)]
    heads = heads if len(heads) == len(entries) else [0] * len(entries)
    for head, entry in zip(heads, entries, strict=True):
        declared.known_keys(path, lines, head, entry, KEYS.get(kind, tuple(entry)))
        yield _Table(entry, path, lines, head)


def _target(table: _Table) -> dict[str, Any]:
    kinds = (*BUILTIN, "class")
    kind = table.text("kind", "device")
    if kind not in kinds:
        raise ReportError(f"{table.where}: there is no kind of target {kind!r}{nearest(kind, kinds)}")
    name = table.text("name")
    if not name and kind in ("device", "compile", "class"):
        raise ReportError(f"{table.where}: a target of kind {kind!r} needs a 'name'")
    dtypes = table.names("dtypes", DTYPES) if "dtypes" in table.values else None
    options = {key: table.text(key) for key in OPTIONS if key in table.values}
    return {"kind": kind, "name": name, "options": options, "dtypes": dtypes, "lacks": table.names("lacks")}


def _missing(table: _Table) -> Missing:
    names = {key: table.names(key) for key in ("opinfos", "steps")}
    if not any(names.values()) or "operator" not in table.values:
        raise ReportError(f"{table.where}: an entry needs an 'operator', and 'opinfos' or 'steps' that are not run")
    return Missing(table.text("operator"), **names, said=table.text("said"), line=table.head)


def dumps(profile: Profile, head: Iterable[str] = ()) -> str:
    """Return the profile as TOML, with the lines of `head` as comments at the top."""
    lines = [*(f"# {line}".rstrip() for line in head), "", "[target]"]
    lines += [f"{key} = {quoted(value)}" for key, value in (("kind", profile.kind), ("name", profile.name)) if value]
    lines += [f"{key} = {quoted(value)}" for key, value in profile.options.items()]
    lines += _list("lacks", profile.lacks)
    lines += _list("dtypes", profile.dtypes) if profile.dtypes is not None else []
    if profile.environment:
        lines += ["", "[environment]", *(f"{key} = {quoted(value)}" for key, value in profile.environment.items())]
    limits = [f"{name} = {value:g}" for name in LIMITS if (value := getattr(profile, name)) is not None]
    lines += ["", "[limits]", *limits] if limits else []
    for entry in profile.lacking:
        lines += ["", "[[lacking]]", f"operator = {quoted(entry.operator)}"]
        lines += [line for key in ("opinfos", "steps") for line in _list(key, getattr(entry, key))]
        lines += [f"said = {quoted(entry.said)}"] if entry.said else []
    return "\n".join(lines).lstrip("\n") + "\n"


def _list(key: str, names: tuple[str, ...]) -> list[str]:
    """Return a list as one line, or, if that is too long, with one name a line, so that a user can delete a name."""
    line = f"{key} = [{', '.join(map(quoted, names))}]"
    if not names or len(line) <= 100:
        return [line] if names else []
    return [f"{key} = [", *(f"    {quoted(name)}," for name in names), "]"]
