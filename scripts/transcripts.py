"""Run the commands of the documentation's transcripts again: `python scripts/transcripts.py [--write] [PAGE ...]`.

A transcript is a `text` block that begins with `$ `. The commands of a page run in order, in one empty folder. A Python
block with `Saved as` and a file name after it is a file in that folder. A line `...` matches any lines, and times and
rates are ignored. `--write` replaces the output in the page; if a transcript has a line `...`, only the difference is
printed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\s*Saved as `([\w.]+)`)?", re.DOTALL | re.MULTILINE)
WIDTH = "100"
LIMIT = 300
"""Seconds for one command."""

TIMES = (
    (re.compile(r"\d+(\.\d+)? programs/s"), "N programs/s"),
    (re.compile(r"\d+% of the time"), "N% of the time"),
    (re.compile(r"found after \d+ s"), "found after N s"),
    (re.compile(r"(samples) in \d+ s$"), r"\1 in N s"),
    (re.compile(r"\d\.\de-07 on torch CPU"), "Ne-07 on torch CPU"),
)
"""What depends on the machine: times, and the rounding of torch CPU by its vector width."""

PROGRESS = re.compile(r"seed \d+: .* distinct$|loading .*, at most \d+ s$")
"""Lines of progress, which depend on the machine's speed."""


@dataclass(frozen=True)
class Command:
    """A command of a transcript, with the output in the page and the output of this run."""

    words: str
    shown: tuple[str, ...]
    printed: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both outputs agree; `...` matches any lines."""
        pattern = [r"(?:.*\n)*" if line == "..." else re.escape(f"{line}\n") for line in plain(self.shown)]
        return re.fullmatch("".join(pattern), "".join(f"{line}\n" for line in plain(self.printed))) is not None

    @property
    def difference(self) -> str:
        """The two outputs as a diff."""
        lines = difflib.unified_diff(plain(self.shown), plain(self.printed), "page", "printed", lineterm="")
        return "\n".join([f"$ {self.words}", *lines])


def plain(lines: Sequence[str]) -> list[str]:
    """The lines without times, empty lines, trailing spaces and progress."""
    kept = []
    for line in map(str.rstrip, lines):
        for pattern, instead in TIMES:
            line = pattern.sub(instead, line)
        kept += [line] if line and not PROGRESS.match(line) else []
    return kept


def transcripts(text: str) -> Iterator[re.Match[str]]:
    """Yield the transcripts of a page and the files for them."""
    for block in BLOCK.finditer(text):
        if (block[1] == "text" and block[2].startswith("$ ")) or (block[1] == "python" and block[3]):
            yield block


def run(text: str) -> list[list[Command]]:
    """Run the transcripts of a page, in order, in an empty folder, and return the commands of each."""
    commands = []
    with tempfile.TemporaryDirectory() as folder:
        for block in transcripts(text):
            if block[1] == "python":
                (Path(folder) / block[3]).write_text(block[2])
                continue
            parts = re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]
            commands.append(
                [_run(words, shown.splitlines(), folder) for words, _, shown in (p.partition("\n") for p in parts)]
            )
    return commands


def _run(words: str, shown: Sequence[str], folder: str) -> Command:
    names = {"conformance": [sys.executable, "-m", "conformance"], "python": [sys.executable]}
    first, *rest = shlex.split(words)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": WIDTH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*names.get(first, [first]), *rest], cwd=folder, env=environment, text=True, timeout=LIMIT, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Command(words, tuple(shown), tuple(done.stdout.splitlines()))


def renewed(text: str, outputs: Sequence[Sequence[Command]]) -> str:
    """Return the page with today's output in each transcript that differs and has no line `...`."""
    blocks = [block for block in transcripts(text) if block[1] == "text"]
    for block, commands in reversed(list(zip(blocks, outputs, strict=True))):
        if not all(command.same for command in commands) and not any("..." in command.shown for command in commands):
            lines = [line for command in commands for line in (f"$ {command.words}", *map(str.rstrip, command.printed))]
            text = text[: block.start(2)] + "\n".join([*lines, ""]) + text[block.end(2) :]
    return text


def main() -> int:
    """Show the differences, and return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put what is printed today into the pages")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    args = parser.parse_args()
    wrong = 0
    for page in args.pages:
        text = page.read_text()
        blocks = run(text)
        different = [command for commands in blocks for command in commands if not command.same]
        print("\n".join([f"{page}: {sum(map(len, blocks))} commands", *(one.difference for one in different)]))
        if args.write and different:
            page.write_text(renewed(text, blocks))
        wrong += len(different)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
