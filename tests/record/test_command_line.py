"""Bad usage of any command is one sentence that names the nearest known word."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from conformance.__main__ import main as jobs
from conformance.record.command_line import Parser


def parser() -> Parser:
    tool = Parser("tool")
    commands = tool.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("merge").add_argument("--reports")
    commands.add_parser("diff").add_argument("file", metavar="FILE")
    return tool


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "tool: COMMAND is missing: choose from merge, diff"),
        (["mrge"], "tool: there is no 'mrge'; did you mean merge?"),
        (["zzz"], "tool: there is no 'zzz'; choose from merge, diff"),
        (["merge", "--report=x"], "tool: there is no flag --report; did you mean --reports?"),
        (["merge", "more"], "tool: no argument 'more' is expected; --help lists the arguments"),
        (["diff"], "tool diff: FILE is missing: --help lists the arguments"),
    ],
)
def test_subcommands(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A subcommand or its argument that is missing or misspelt gives one sentence, without the usage."""
    tool = parser()
    tool.allow_abbrev = False
    for command in tool._choices().values():
        command.allow_abbrev = False
    with pytest.raises(SystemExit) as ended:
        tool.parse_args(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{sentence}\n"


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        ("conformance.report.__main__", ["dif"], "conformance report: there is no 'dif'; did you mean diff?"),
        ("conformance.report.__main__", ["diff", "a"], "conformance report diff: B is missing: --help lists"),
        (
            "conformance.report.__main__",
            ["--form", "pytorch-isue", "a"],
            "conformance report form: NAME: there is no 'pytorch-isue'; did you mean pytorch-issue?",
        ),
        (
            "conformance.sources.operator.__main__",
            ["a:b", "--ties", "all"],
            "conformance operator: --ties: there is no 'all'; choose from any",
        ),
        (
            "conformance.sources.init.expectations",
            [],
            "conformance expectations: COMMAND is missing: choose from update",
        ),
        ("conformance.report.live", ["--ones"], "conformance watch: there is no flag --ones; did you mean --once?"),
        ("conformance.sources.models.record", [], "conformance record: SCRIPT.py is missing: "),
        ("conformance.sources.trace.__main__", [], "conformance trace: SCRIPT.py is missing: "),
        (
            "conformance.sources.whole",
            ["tiny"],
            "conformance test: no argument 'tiny' is expected; write --target tiny",
        ),
    ],
)
def test_commands(module: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands with arguments of their own report bad usage in one sentence. Regression test: `report`,
    `expectations`, `watch` and `record` printed their usage over several lines, and `trace` missed ARGUMENT too."""
    with pytest.raises(SystemExit) as ended:
        import_module(module).main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence) and said.count("\n") == 1


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`conformance --version` prints the versions of the package and of torch."""
    monkeypatch.setattr(sys, "argv", ["conformance", "--version"])
    assert jobs() == 0
    assert capsys.readouterr().out.startswith("conformance 0.1.0, torch 2.")
