"""Command-line flags of all commands: each flag has one definition, one meaning and one group.

Defines `FLAGS`, `parser`, `add_flag` and `defaults`. A command names the flags that it takes and their usual values. A
wrong value ends the command with exit code 2 and one sentence; a misspelt flag is answered with the nearest one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.declare import profile as profiles
from conformance.record.command_line import Parser
from conformance.record.errors import UsageError
from conformance.record.names import GROUPS as VARIANT_GROUPS
from conformance.record.names import LAYOUTS, METAMORPHIC, VARIANTS, nearest
from conformance.run.messages import COMPILE_LIMIT, Limits

GROUPS = ("target", "what to run", "limits", "output", "distribution")
"""Groups of flags, in the order of `--help`."""

EXIT_CODES = (
    "Exit code: 0 all as expected; 1 findings that are not declared, flaky ones included, or regressions since the "
    "baseline, or with --strict less judged than planned; 2 nothing compared, or bad usage; 130 Ctrl-C, 143 SIGTERM."
)


@dataclass(frozen=True)
class Flag:
    """One flag: its group, its help, and the other arguments of `add_argument`. The help may name the command's usual
    value as `{usual}`."""

    help: str
    also: Sequence[str] = ()
    """Further spellings of the flag."""
    arguments: Mapping[str, Any] | None = None
    values: Callable[[], str] | None = None
    """Returns the known values, which the help appends. Called only if the command takes the flag."""
    group: str = ""


def natural(text: str) -> int:
    """Parse a whole number, 0 or more."""
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative: give 0 or more")
    return number


def at_least_one(text: str) -> int:
    """Parse a whole number, 1 or more."""
    number = natural(text)
    if not number:
        raise argparse.ArgumentTypeError("0 is not enough: give 1 or more")
    return number


def positive(text: str) -> float:
    """Parse a number above 0."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def zero_or_more(text: str) -> float:
    """Parse a number, 0 or more."""
    number = _number(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error


def steps_range(text: str) -> tuple[int, int]:
    """Parse `MIN..MAX` into a pair of numbers."""
    low, dots, high = text.partition("..")
    if not (dots and low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range: write MIN..MAX, for example 1..8")
    if int(high) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a program without steps shows nothing, so let MAX be 1 or more")
    return int(low), int(high)


def shard(text: str) -> tuple[int, int]:
    """Parse `2/4` into (2, 4)."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not i/n with 1 <= i <= n: write for example 2/4")
    return int(index), int(count)


def oracle(text: str) -> str:
    """Parse the name of an oracle that judges a whole run."""
    if text != METAMORPHIC:
        raise argparse.ArgumentTypeError(f"{text!r} is no oracle of a run: write {METAMORPHIC}")
    return text


def named(text: str) -> str:
    """Parse a name, which must not be empty: an unset variable of a script would select the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is empty: give one, or leave the flag out")
    return text


def assignment(text: str) -> str:
    """Parse `K=V`, the setting of an environment variable."""
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V: write for example DEBUG=1")
    return text


def words(text: str) -> list[str]:
    """Parse names that are joined by commas."""
    result = [word.strip() for word in named(text).split(",") if word.strip()]
    if not result:
        raise argparse.ArgumentTypeError(f"no name in {text!r}: write for example A,B")
    return result


def resources(text: str) -> tuple[tuple[str, float], ...]:
    """Parse `CPU=1,GPU=0.5` into pairs."""
    pairs = []
    for word in text.split(","):
        name, _, amount = word.partition("=")
        try:
            pairs.append((name.strip(), float(amount)))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word!r} is not NAME=N: write for example CPU=1,GPU=1") from None
        if not name.strip() or not 0 <= pairs[-1][1] < float("inf"):
            raise argparse.ArgumentTypeError(f"{word!r} is not NAME=N with N of 0 or more")
    return tuple(pairs)


def chosen(
    names: Iterable[str], known: Iterable[str], what: str, groups: Mapping[str, Iterable[str]] | None = None
) -> list[str]:
    """Return the names, or every known name for `all`, each once. A name of `groups` stands for its members. Raises
    UsageError for an unknown name and for no name."""
    known, names = list(known), list(names)
    if names == ["all"]:
        return known
    names = [member for name in names for member in (groups or {}).get(name, (name,))]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}{nearest(name, known) or '; choose from ' + ', '.join(known)}")
    if not names:
        raise UsageError(f"no {what} is named; choose from {', '.join(known)}")
    return list(dict.fromkeys(names))


def _list_of(what: str) -> Mapping[str, Any]:
    return {"type": words, "action": "extend", "metavar": what}


def _many(what: str, **more: Any) -> Mapping[str, Any]:
    return {"action": "append", "default": [], "metavar": what, **more}


def _value(kind: Callable[[str], Any], what: str, usual: Any = None) -> Mapping[str, Any]:
    return {"type": kind, "metavar": what, **({} if usual is None else {"default": usual})}


_FILE: Mapping[str, Any] = {"type": Path, "metavar": "FILE"}
_SECONDS: Mapping[str, Any] = {"type": positive, "metavar": "SECONDS"}
_SWITCH: Mapping[str, Any] = {"action": "store_true"}

_BY_GROUP: Mapping[str, Mapping[str, Flag]] = {
    "target": {
        "target": Flag(
            "what is under test: device:NAME[,import=MODULE], compile:NAME[,import=MODULE], class:MODULE.CLASS, a "
            "profile FILE.toml, tiny, tiny:RENDERER, cpu, passthrough, meta, fake, functionalize, vmap, grad, jvp, "
            "export, decompositions, aot_eager, inductor, tinygrad-upstream:PATH, mutant:FAULT "
            f"(default: {profiles.NAME} in the current folder, else {profiles.TINY})",
            arguments={"type": named},
        ),
        "oracle": Flag("judge without torch CPU, by relations: metamorphic", arguments=_value(oracle, "NAME")),
        "env": Flag(
            "environment variable that is set before anything is imported; may be repeated",
            arguments=_many("K=V", type=assignment),
        ),
    },
    "what to run": {
        "all": Flag("also the accuracy and the sizes of operators, and recorded models", arguments=_SWITCH),
        "seed": Flag(
            "the same seed draws the same programs, or inputs (default: 0)", arguments={"type": natural, "default": 0}
        ),
        "programs": Flag("number of programs (default: {usual})", arguments=_value(natural, "K")),
        "steps": Flag("number of steps of a program (default: {usual})", arguments=_value(steps_range, "MIN..MAX")),
        "only": Flag(
            "only these {values}; may be repeated", arguments=_many("FAMILY"), values=lambda: "step families, and views"
        ),
        "without": Flag("not these step families; may be repeated", arguments=_many("FAMILY")),
        "families": Flag("list the step families, and run nothing", arguments=_SWITCH),
        "programs-from": Flag(
            "the programs that this function returns or yields, in place of drawn ones",
            arguments={"metavar": "MODULE:FUNCTION"},
        ),
        "corpus": Flag("saved programs that run first", arguments=_value(Path, "DIR")),
        "tests": Flag(
            "file of PyTorch's device-type tests, or folder of such files, such as a checkout; may be repeated",
            arguments=_many("PATH", type=Path),
        ),
        "op": Flag("only operators with this name; may be repeated", arguments=_many("GLOB")),
        "dtype": Flag("only these dtypes, or all (default: {usual})", arguments=_list_of("A,B")),
        "variant": Flag("only these variants, or all (default: {usual}): {values}", arguments=_list_of("A,B")),
        "layout": Flag(
            "only these layouts of the inputs, or all (default: {usual}): {values}",
            arguments=_list_of("A,B"),
            values=lambda: ", ".join(LAYOUTS),
        ),
        "samples": Flag("number of samples of an operator (default: {usual})", arguments={"metavar": "N|all"}),
        "like": Flag("operator of op_db that gives samples and tolerances", arguments={"metavar": "NAME"}),
        "reference": Flag("slow, right version of the operator", arguments={"metavar": "MODULE:NAME"}),
        "inputs": Flag("description of its inputs", arguments=_FILE),
        "checks": Flag("only these checks, or all (default: {usual})", arguments=_list_of("A,B")),
        "exclude": Flag("check that is not judged, and why; may be repeated", arguments=_many("CHECK=REASON")),
        "batch": Flag("dimension that the check batch splits; may be repeated", arguments=_many("NAME=DIM")),
        "device": Flag(
            "device of torch, or target, on which the operator runs (default: torch CPU)", arguments={"metavar": "NAME"}
        ),
        "reference-on-device": Flag("run the reference on the device as well, not on torch CPU", arguments=_SWITCH),
        "ties": Flag(
            "an index of any of several equal elements is right", arguments={"choices": ("any",), "default": None}
        ),
        "random": Flag("the operator draws its own random numbers: compare distributions", arguments=_SWITCH),
        "forbid": Flag(
            "operator of torch that may not be called, aten::NAME; may be repeated", arguments=_many("NAME")
        ),
        "every": Flag("only each N-th call of an operator (default: 1)", arguments=_value(at_least_one, "N", 1)),
        "divergence": Flag("also compare with a free run of torch CPU, and tell where the two part", arguments=_SWITCH),
        "save": Flag("save the results of the calls, for --against on another machine", arguments=_FILE),
        "against": Flag(
            "also compare with a saved run, and tell which one leaves the right way, and where", arguments=_FILE
        ),
        "nonfinite": Flag(
            "find operators that make nan or inf out of finite inputs, on any device, without torch CPU",
            arguments=_SWITCH,
        ),
        "training-steps": Flag(
            "only these steps of the script's optimizers, counted from 1 (default: all)",
            arguments=_value(steps_range, "MIN..MAX"),
        ),
        "suite": Flag("a set of dtypes and variants by name: {values}"),
        "class": Flag("only rows of these classes: {values}", arguments={"dest": "classes", **_list_of("A,B")}),
        "scale": Flag("sizes of the tensors: {values} (default: {usual})", arguments={"default": "large"}),
        "fault": Flag("only this planted fault; may be repeated", arguments=_many("NAME")),
        "plain": Flag("draw without bias", arguments=_SWITCH),
        "model": Flag(
            "only the calls of this recorded model; may be repeated (default: {usual})", arguments=_many("NAME")
        ),
        "calls": Flag("recorded calls (default: {usual})", arguments=_FILE),
        "shard": Flag("only the i-th of n parts, for a matrix of machines", arguments=_value(shard, "i/n", (1, 1))),
        "replay": Flag("run a finding again: {usual}", arguments={"metavar": "FILE"}),
        "minimize": Flag("make the failing program in a JSON file smaller", arguments=_FILE),
        "also-on": Flag(
            "run the scripts of the findings under this Python too, whose torch may be another, and name the versions "
            "that show them; may be repeated",
            arguments=_many("PYTHON"),
        ),
        "results": Flag(
            "measure these results of earlier campaigns, and run none; may be repeated",
            arguments=_many("FILE", type=Path),
        ),
        "resume": Flag("go on where the same run in --reports stopped", arguments=_SWITCH),
        "stop-at-first-failure": Flag("end with the first finding that is not declared", arguments=_SWITCH),
        "rerun-failures": Flag("run a failure again, up to N times (default: 0)", arguments=_value(natural, "N", 0)),
    },
    "limits": {
        "minutes": Flag(
            "end after this time, which includes loading the target, shrinking and running scripts (default: {usual})",
            arguments=_value(positive, "M"),
        ),
        "limit": Flag(
            "time of one program, case or trial (default: the profile's, else {usual})",
            also=("--timeout",),
            arguments=_SECONDS,
        ),
        "compile-limit": Flag(
            "time of building kernels, in addition to --limit: in the first run of an operator on its dtypes, and "
            "always "
            f"on a compiler or a lazy device (default: the profile's, else a shorter --limit, else {COMPILE_LIMIT:g})",
            arguments=_SECONDS,
        ),
        "memory": Flag(
            "memory of a worker; more is a finding (default: the profile's, else {usual})",
            arguments=_value(positive, "GIB"),
        ),
        "strict": Flag("fail if a limit kept something from being judged, as the last lines say", arguments=_SWITCH),
        "starting": Flag(f"time of loading the target (default: {Limits().starting:g})", arguments=_SECONDS),
        "check-scripts": Flag(
            "time in which scripts of findings are run before they are listed, 0 for none (default: {usual})",
            arguments=_value(zero_or_more, "SECONDS"),
        ),
    },
    "output": {
        "reports": Flag("folder of the results (default: reports)", arguments=_value(Path, "DIR", Path("reports"))),
        "expectations": Flag("declarations of known failures (default: {usual})", arguments=_FILE),
        "update-expectations": Flag("declare the failures of this run in that file", arguments=_SWITCH),
        "baseline": Flag("earlier results to compare with (default: {usual})", arguments=_FILE),
        "update-baseline": Flag("write this run to the baseline", arguments=_SWITCH),
        "kernels": Flag(
            "earlier kernel counts of programs; a higher count is a finding (default: {usual})", arguments=_FILE
        ),
        "record-kernels": Flag("write the kernel counts of this run to that file, and compare none", arguments=_SWITCH),
        "workloads": Flag("kernel counts of whole workloads, to compare as well", arguments=_FILE),
        "fail-on-torch-bugs": Flag(
            "fail also for findings that compile:eager or compile:aot_eager show without the backend", arguments=_SWITCH
        ),
        "output": Flag("the profile (default: {usual})", arguments=_FILE),
        "force": Flag("replace an existing file", arguments=_SWITCH),
    },
    "distribution": {
        "jobs": Flag("worker processes (default: {usual})", also=("-n",), arguments=_value(at_least_one, "N", 1)),
        "pool": Flag(
            "place of the workers: local, ray (one that ends with the command), ray://HOST:PORT, or a cluster's "
            "address (default: local)",
            arguments={"default": "local", "metavar": "ADDRESS"},
        ),
        "per-worker": Flag(
            "resources of a Ray cluster for each worker, as CPU=1,GPU=1,NAME=1 (default: CPU=1)",
            arguments=_value(resources, "NAME=N[,..]", (("CPU", 1.0),)),
        ),
    },
}

FLAGS = {name: replace(flag, group=group) for group, flags in _BY_GROUP.items() for name, flag in flags.items()}

PLACE = ("jobs", "pool", "per-worker", "starting")
LIMITS = ("limit", "compile-limit", "memory")
DECLARED = ("expectations", "update-expectations")


def parser(
    command: str,
    about: str,
    names: Iterable[str],
    usual: Mapping[str, Any],
    values: Mapping[str, str] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Parser:
    """Return the parser of a command with these flags, in their groups.

    `usual` holds the values that the help names as the defaults, by flag. A value that is not text also becomes the
    default. `values` holds the known values of a flag, and `changes` other arguments of `add_argument`.
    """
    parser = Parser(command, description=about, epilog=EXIT_CODES)
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for name in names:
        add = groups[FLAGS[name].group].add_argument
        add_flag(add, name, usual.get(name), (values or {}).get(name, ""), **(changes or {}).get(name, {}))
    return parser


def add_flag(add: Callable[..., Any], name: str, usual: Any = None, values: str = "", **changes: Any) -> None:
    """Add one flag by argparse's `add_argument` or pytest's `addoption`."""
    flag = FLAGS[name]
    arguments = {**(flag.arguments or {}), **changes}
    if usual is not None and not isinstance(usual, str):
        arguments["default"] = usual
    shown = "{}..{}".format(*usual) if isinstance(usual, tuple) else f"{usual:g}" if isinstance(usual, float) else usual
    values = values or (flag.values() if flag.values else "")
    text = flag.help.replace("{usual}", str(arguments.get("default") if shown is None else shown))
    text = text.replace("{values}", values).replace("%", "%%")
    add(*sorted((f"--{name}", *flag.also), key=len), help=text, **arguments)


def defaults(names: Iterable[str]) -> dict[str, Any]:
    """Return the values of flags that a command does not offer, by their names in the parsed arguments."""
    result = {}
    for name in names:
        arguments = FLAGS[name].arguments or {}
        switch = arguments.get("action") == "store_true"
        result[arguments.get("dest", name.replace("-", "_"))] = arguments.get("default", False if switch else None)
    return result


def reports_expectations(stem: str = "") -> str:
    """Return the usual path of the declarations, for help."""
    return str(Path("reports/expectations") / stem / "<target>.toml")


def variants_shown() -> str:
    """Return the names of variants for help, with the name of a group for its members."""
    group_of = {name: group for group, members in VARIANT_GROUPS.items() for name in members}
    return ", ".join(dict.fromkeys(group_of.get(name, name) for name in VARIANTS))
