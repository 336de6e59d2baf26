"""docs/commands.md lists the options of every command and the public names, from `--help` and docstrings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.__main__ import main as jobs
from conformance.record import versions
from scripts import commands
from scripts.pages import ROOT

HELP = """usage: x [-h] [-n JOBS] {diff,html} ...

Do a thing, then stop.

positional arguments:
  {diff,html}
    diff                compare A and B
    html                write a page

options:
  -h, --help            show this help message and exit
  -n JOBS, --jobs JOBS  worker processes
  --replay [FILE] CASE [CASE ...]
                        run one case again, or
                        two
  --once                end

Exit code: 0.
"""
NEWER = HELP.replace("-n JOBS, --jobs JOBS ", "-n, --jobs JOBS      ")
"""The same in the form of Python 3.13."""


@pytest.mark.parametrize("text", [HELP, NEWER], ids=["3.11", "3.13"])
def test_every_option_is_listed_with_its_meaning(text):
    """Paragraphs, choices and options are listed, the usage line and `--help` are not."""
    assert list(commands.entries(text)) == [
        ("", "Do a thing, then stop."),
        ("diff", "compare A and B"),
        ("html", "write a page"),
        ("-n, --jobs JOBS", "worker processes"),
        ("--replay [FILE] CASE [CASE ...]", "run one case again, or two"),
        ("--once", "end"),
        ("", "Exit code: 0."),
    ]


def test_an_option_of_two_commands_is_explained_once():
    """The second command only names an option that the first one has with the same meaning."""
    seen = set()
    assert "- `-n, --jobs JOBS`: worker processes" in commands.command("x", HELP, seen, set())
    text = commands.command("y", HELP.replace("end\n", "end early\n"), seen, set())
    assert "worker" not in text and "- `--once`: end early" in text and "- as above: `diff`, `html`, `--jobs`" in text


def test_placeholders_are_code():
    """Options and placeholders inside a meaning are code, so that `<target>` is no HTML tag."""
    text = "default: reports/torch-<minor>/<target>.json.gz; not counted in --limit: 3 -- or --no-x"
    assert commands.markdown(text) == (
        "default: `reports/torch-<minor>/<target>.json.gz`; not counted in `--limit`: 3 -- or `--no-x`"
    )
    assert "`<target>`" in commands.command("x", HELP.replace("end\n", "end <target>\n"), set(), set())


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("job", "near"), [("tset", "; did you mean test?"), ("nonsense", "; choose one of test, init, ")]
)
def test_an_unknown_job_is_one_sentence(job, near, monkeypatch, capsys):
    """A misspelt job gives exit code 2 and one sentence with the nearest job, if there is one."""
    monkeypatch.setattr(sys, "argv", ["conformance", job])
    assert jobs() == 2
    assert capsys.readouterr().err.startswith(f"conformance: no job {job!r}{near}")


def test_page_is_current():
    """docs/commands.md shows today's options and docstrings; if not, run python -m scripts.commands."""
    if not versions.holds("==2.13.*"):
        pytest.skip(f"the page is of torch 2.13, and this is {versions.installed()}")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.commands", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
