"""Flags: one definition for all commands, groups in `--help`, and bad usage in one sentence."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable

import pytest

from conformance.run import options

COMMANDS: dict[str, str] = {
    "fuzz": "conformance.sources.fuzzing.command",
    "opinfo": "conformance.sources.opinfo.runner",
    "accuracy": "conformance.sources.accuracy.__main__",
    "sizes": "conformance.sources.sizes.__main__",
    "mutants": "conformance.selftest.hunting",
    "init": "conformance.sources.init.__main__",
    "test": "conformance.sources.whole",
}


def main_of(command: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = importlib.import_module(COMMANDS[command]).main
    return main


@pytest.fixture
def ended(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command that ends while it parses its arguments. Returns the exit code and the output."""

    def run(command: str, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main_of(command)([*words])
        output = capsys.readouterr()
        return int(str(caught.value.code)), output.out, output.err

    return run


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_flags_stand_in_their_groups(self, command: str, ended) -> None:
        """`--help` shows only known flags, each in its group, and the groups in one order."""
        code, text, _ = ended(command, "--help")
        assert code == 0
        shown = [group for group in options.GROUPS if f"\n{group}:\n" in text]
        assert "target" in shown and "limits" in shown
        places = [text.index(f"\n{group}:\n") for group in shown]
        assert places == sorted(places)
        for name, flag in options.FLAGS.items():
            if f"\n  --{name} " in text:
                before = max(place for place in places if place < text.index(f"\n  --{name} "))
                assert text[before:].startswith(f"\n{flag.group}:\n")
        assert "{usual}" not in text and "{values}" not in text and "None" not in text

    @pytest.mark.parametrize("command", COMMANDS)
    def test_no_command_defines_a_flag_itself(self, command: str) -> None:
        """Commands call no `add_argument`: a flag has one definition and so one meaning."""
        assert "add_argument(" not in inspect.getsource(importlib.import_module(COMMANDS[command]))


class TestBadUsage:
    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--minuts", "3"], "conformance fuzz: there is no flag --minuts; did you mean --minutes"),
            (["--resum"], "conformance fuzz: there is no flag --resum; did you mean --resume"),
            (["--zzzzz"], "conformance fuzz: there is no flag --zzzzz; --help lists the flags"),
            (["--minutes", "0"], "conformance fuzz: --minutes: 0 is not above 0"),
            (["--seed", "x"], "conformance fuzz: --seed: 'x' is not a whole number"),
            (["--programs", "-1"], "conformance fuzz: --programs: -1 is negative: give 0 or more"),
            (["-n", "0"], "conformance fuzz: -n/--jobs: 0 is not enough: give 1 or more"),
            (["--shard", "3/2"], "conformance fuzz: --shard: '3/2' is not i/n with 1 <= i <= n"),
            (["--steps", "0..0"], "a program without steps shows nothing"),
            (["--check-scripts", "-1"], "conformance fuzz: --check-scripts: -1 is not 0 or more"),
            (["--check-scripts", "x"], "conformance fuzz: --check-scripts: 'x' is not a number"),
            (["--minutes", "nan"], "conformance fuzz: --minutes: nan is not above 0"),
            (["--target", ""], "conformance fuzz: --target: the value is empty: give one, or leave the flag out"),
            (["--dtype", ""], "conformance fuzz: --dtype: the value is empty"),
            (["--dtype", ","], "conformance fuzz: --dtype: no name in ','"),
            (["--per-worker", "CPU=x"], "'CPU=x' is not NAME=N"),
        ],
    )
    def test_one_sentence_and_exit_code_2(self, words: list[str], sentence: str, ended) -> None:
        """A wrong value or flag gives one sentence, and no usage text."""
        code, out, err = ended("fuzz", *words)
        assert code == 2
        assert sentence in err
        assert err.count("\n") == 1 and not out

    def test_a_flag_has_the_same_rule_in_every_command(self, ended) -> None:
        """The same wrong value is refused with the same words."""
        for command in ("fuzz", "opinfo", "accuracy", "sizes", "test"):
            code, _, err = ended(command, "--limit", "0")
            assert (code, err) == (2, f"conformance {command}: --limit/--timeout: 0 is not above 0\n")


class TestValues:
    @pytest.mark.parametrize("text", ["DEBUG", "=1", ""])
    def test_an_environment_variable_needs_name_and_value(self, text: str) -> None:
        """Regression test: `--env DEBUG` set an empty variable, and `--env =1` raised an OSError."""
        with pytest.raises(argparse.ArgumentTypeError, match="is not K=V"):
            options.assignment(text)
        assert options.assignment("A=b=c") == "A=b=c"

    @pytest.mark.parametrize("text", ["0", "0.0", "00", "1e-3"])
    def test_zero_or_more(self, text: str) -> None:
        """Regression test: `--check-scripts 0.0` was refused as not above 0."""
        assert options.zero_or_more(text) == float(text)

    def test_names(self) -> None:
        """Names are checked with the nearest one in the message; `all` is every name, and a group its members."""
        known = ["float32", "float64", "int64"]
        assert options.chosen(["int64", "int64"], known, "dtype") == ["int64"]
        assert options.chosen(["all"], known, "dtype") == known
        assert options.chosen(["floats"], known, "dtype", {"floats": known[:2]}) == known[:2]
        with pytest.raises(options.UsageError, match="unknown dtype 'float31'; did you mean float32"):
            options.chosen(["float31"], known, "dtype")
        with pytest.raises(options.UsageError, match="no dtype is named"):
            options.chosen([], known, "dtype")

    def test_defaults_of_flags_that_a_command_lacks(self) -> None:
        """`defaults` gives the value that each flag would have without the user."""
        names = [name for name in options.FLAGS if name not in ("replay",)]
        parser = options.parser("some", "", names, {})
        parsed = vars(parser.parse_args([]))
        assert {name: parsed[name] for name in options.defaults(names)} == options.defaults(names)
        assert isinstance(parser, argparse.ArgumentParser)
