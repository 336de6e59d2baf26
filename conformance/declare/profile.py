"""The profile of a target, `conformance.toml`: how to load it, its unsupported parts, its limits and tolerances.

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

from conformance.declare import declaration
from conformance.declare.declaration import FORMER, PARTS_OF_TARGET, Declaration, check, quoted, refuse
from conformance.declare.features import FEATURES
from conformance.declare.probed import UNTRIED_DTYPES, Probe
from conformance.declare.tolerances import DeclaredTolerance, declared_tolerances
from conformance.record.errors import ReportError, TargetError
from conformance.record.missing_ops import MissingOperator, ranked
from conformance.record.names import BUILTIN, DTYPES, METAMORPHIC, nearest, without_features, without_relations
from conformance.record.result import Outcome
from conformance.record.usage import usage_of

NAME = "conformance.toml"
"""The profile that commands use if no target is named."""

TINY, TINY_NEEDS = "tiny", "tinygrad"
"""The target if there is no profile either, and the module that it needs."""

FORMS = {"target": "[target]", "environment": "[environment]", "limits": "[limits]", "tolerance": "[[tolerance]]",
         "declare": "[[declare]]"}  # fmt: skip
OPTIONS = ("import", "call", "dynamic")
LIMITS = ("seconds", "compiling", "memory")
KEYS = {"target": ("kind", "name", *OPTIONS), "limits": LIMITS}
"""The keys of a table; the keys of [environment] are names of variables."""


@dataclass(frozen=True)
class Contradiction:
    """A part of a target that is not as the profile says, for example `feature unfold`. It is XPASS if it is declared
    unsupported and works, and FAIL if it is not declared and lacks or is wrong."""

    part: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Profile:
    """The contents of a profile. `declarations` are about features, dtypes and operators that are unsupported. Limits
    are None if the profile does not set them: `seconds` for a program or case, `compiling` for a first kernel, `memory`
    in GiB. `tolerances` are those of its answers (`tolerances.py`)."""

    kind: str = "device"
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    declarations: tuple[Declaration, ...] = ()
    seconds: float | None = None
    compiling: float | None = None
    memory: float | None = None
    tolerances: tuple[DeclaredTolerance, ...] = ()
    file: Path = Path(NAME)

    @property
    def spec(self) -> str:
        """The spec that loads the target, without the profile's further declarations."""
        argument = ",".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])
        return f"{self.kind}:{argument}" if argument else self.kind

    def activate(self) -> None:
        """Set the environment variables, for this process and the processes that it starts."""
        os.environ.update(self.environment)

    def unsupported(self, key: str) -> dict[str, Declaration]:
        """The declaration of each unsupported part, by its name. `key` is a key of a scope, such as "step"."""
        return {
            name: declaration
            for declaration in self.declarations
            if declaration.holds
            for name in getattr(declaration.scope, key)
        }

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of the dispatcher that are declared unsupported."""
        return tuple(self.unsupported("operator"))

    @property
    def dtypes(self) -> tuple[str, ...] | None:
        """The dtypes that the device holds; None if none is declared unsupported."""
        missing = self.unsupported("dtype")
        return tuple(name for name in DTYPES if name not in missing) if missing else None

    def remedy(self, key: str, name: str) -> str:
        """Return the instruction for a part that is supported after all: the entry or name to delete."""
        entry = self.unsupported(key)[name]
        alone = sum(len(getattr(entry.scope, kind)) for kind in ("feature", "dtype", "op", "step")) == 1
        return f"{entry.where}: delete {'' if alone else f'{name!r} from '}that [[declare]] entry"

    @property
    def tried(self) -> tuple[str, ...]:
        """The unsupported features and dtypes, which a probe tries."""
        return (*self.unsupported("feature"), *self.unsupported("dtype"))

    def contradicted(self, seen: Probe | None) -> tuple[list[Contradiction], list[str]]:
        """Compare the declarations of features and dtypes with a probe of the device. Returns the contradictions, each
        with the line to change, and sentences on declarations that were not probed.

        Both directions fail a run. A feature that is declared and works silently costs oracles and steps. One that is
        wrong and not declared need not make any program fail: three cases of `abs` passed on a device whose `unfold`
        returned a copy."""
        if seen is None:
            return [], []
        if seen.unmade:
            names = ", ".join(self.tried)
            return [], [f"{names}: declared in {self.file} and not tried: {seen.unmade}."] if names else []
        found = []
        for key, works in ("feature", FEATURES.keys() - seen.lacks), ("dtype", {*seen.dtypes}):
            for name in self.unsupported(key):
                if name in works:
                    reason = f"declared lacking, and works: {self.remedy(key, name)}"
                    found.append(Contradiction(f"{key} {name}", Outcome.XPASS, reason))
        wrong = {
            ("feature", row.name): f"{row.answer}{f' ({row.detail})' if row.detail else ''}"
            for row in seen.rows
            if row.name in seen.lacks - {*self.tried, *seen.declared}
        }
        for name in sorted({*(self.dtypes or ())} - {*seen.dtypes} - UNTRIED_DTYPES):
            wrong["dtype", name] = "that its values do not survive the way to the device and back"
        for (key, name), answer in wrong.items():
            reason = (
                f"{self.file} does not declare the {key} {name!r} unsupported, and the probe's answer is {answer}: "
                "mend the device, or declare it"
            )
            found.append(Contradiction(f"{key} {name}", Outcome.FAIL, reason))
        return found, []

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
        for operator, entry in self.unsupported("operator").items():
            steps = entry.scope.step if families else ()
            row = MissingOperator(
                operator,
                sum(cases.get(name, 0) for name in entry.scope.op),
                steps,
                *usage_of(operator),
                entries=tuple(
                    sorted({*(name for name in entry.scope.op if cases.get(name)), *entries.get(operator, ())})
                ),
                families=tuple(sorted({families[name] for name in steps if name in families})),
            )
            if row.cases or row.steps or row.entries:
                rows.append(row)
        return ranked(rows)


def is_profile(spec: str) -> bool:
    """Whether the spec of a target is the path of a profile."""
    return spec.endswith(".toml")


def identity(spec: str) -> str:
    """Return the name of a target: its kind, name and options, without the features that it lacks. A profile has the
    name of the target that it loads. Raises TargetError."""
    profile, plain = of(spec), without_relations(spec)
    return spec.removesuffix(plain) + without_features(profile.spec if profile is not None else plain)


def file_name(spec: str) -> str:
    """Return the target's name as a file name: letters, digits, dot, dash and underscore only. For a profile it is the
    stem of the profile's file, unless that file has the default name. Raises TargetError."""
    plain = without_relations(spec)
    named = is_profile(plain) and Path(plain).name != NAME
    name = spec.removesuffix(plain) + Path(plain).stem if named else identity(spec)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "target"


def usual(spec: str | None, oracle: str | None = None) -> str:
    """Return the target of a command: the named target, else the profile in the current folder, else `tiny` if tinygrad
    is installed. With the oracle "metamorphic", the spec begins with it. Raises TargetError without any of these."""
    if oracle == METAMORPHIC:
        return f"{METAMORPHIC}:{without_relations(usual(spec))}"
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
    return load(without_relations(spec)) if is_profile(spec) else None


def limit(spec: str, name: str, wanted: float | None, usual: float) -> float:
    """Return a limit of a command: the given value, else the profile's, else the default. Raises TargetError."""
    profile = of(spec)
    declared = getattr(profile, name) if profile is not None else None
    return wanted if wanted is not None else declared if declared is not None else usual


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
    head: int

    @property
    def where(self) -> str:
        return f"{self.file}, line {self.head}"

    def text(self, key: str, usual: str = "") -> str:
        value = self.values.get(key, usual)
        if not isinstance(value, str) or (key in self.values and not value.strip()):
            raise ReportError(f"{self.where}: {key!r} must be a non-empty string")
        return value

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ReportError(f"{self.where}: {key!r} must be a number above 0")
        return None if value is None else float(value)


@functools.lru_cache
def _loaded(path: Path, changed: int) -> Profile:
    try:
        data, lines = declaration.parsed(path, FORMS)
        tables = {kind: list(_tables(path, lines, data, kind)) for kind in ("target", "environment", "limits")}
        if not tables["target"]:
            raise ReportError(f"{path} has no [target] table, which says how the device is loaded")
        environment = {key: table.text(key) for table in tables["environment"] for key in table.values}
        limits: dict[str, Any] = {name: table.number(name) for table in tables["limits"] for name in LIMITS}
        declarations = tuple(declaration.declared(path, data, lines, (PARTS_OF_TARGET,)))
        refuse(check(declarations, PARTS_OF_TARGET, {"feature": FEATURES, "dtype": DTYPES}))
        target = _target(tables["target"][0])
        tolerances = declared_tolerances(path, data, lines)
        return Profile(
            **target, **limits, environment=environment, declarations=declarations, tolerances=tolerances, file=path
        )
    except ReportError as error:
        raise TargetError(str(error).removesuffix(".")) from None


def _tables(path: Path, lines: list[str], data: Mapping[str, Any], kind: str) -> Iterator[_Table]:
    if kind not in data:
        return
    head = declaration.line_of(lines, rf"\[\s*{kind}\s*\]", 0)
    if not isinstance(data[kind], dict):
        raise ReportError(f"{path}: {kind!r} must be written as {FORMS[kind]}")
    for key in data[kind].keys() & FORMER.keys():
        line = declaration.line_of(lines, rf"[\"']?{key}[\"']?\s*=", head)
        raise ReportError(f"{path}, line {line}: {key!r} is a former form: {FORMER[key]}")
    declaration.known_keys(path, lines, head, data[kind], KEYS.get(kind, tuple(data[kind])))
    yield _Table(data[kind], path, head)


def _target(table: _Table) -> dict[str, Any]:
    kinds = (*BUILTIN, "class")
    kind = table.text("kind", "device")
    if kind not in kinds:
        raise ReportError(f"{table.where}: there is no kind of target {kind!r}{nearest(kind, kinds)}")
    name = table.text("name")
    if not name and kind in ("device", "compile", "class"):
        raise ReportError(f"{table.where}: a target of kind {kind!r} needs a 'name'")
    options = {key: table.text(key) for key in OPTIONS if key in table.values}
    return {"kind": kind, "name": name, "options": options}


def dumps(profile: Profile, head: Iterable[str] = ()) -> str:
    """Return the profile as TOML, with the lines of `head` as comments at the top."""
    lines = [*(f"# {line}".rstrip() for line in head), "", "[target]"]
    lines += [f"{key} = {quoted(value)}" for key, value in (("kind", profile.kind), ("name", profile.name)) if value]
    lines += [f"{key} = {quoted(value)}" for key, value in profile.options.items()]
    if profile.environment:
        lines += ["", "[environment]", *(f"{key} = {quoted(value)}" for key, value in profile.environment.items())]
    limits = [f"{name} = {value:g}" for name in LIMITS if (value := getattr(profile, name)) is not None]
    lines += ["", "[limits]", *limits] if limits else []
    lines += ["", *(tolerance.toml() for tolerance in profile.tolerances)]
    return "\n".join([*lines, *(declaration.toml() for declaration in profile.declarations)]).lstrip("\n")
