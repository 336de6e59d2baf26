"""Measure how hard the prose of this repository is to read, and fail above the limits in pyproject.toml.

    python scripts/prose.py [--worst N] [FOLDER ...]

Prose is docstrings, comments and paragraphs of Markdown. A marker is a construction that makes technical English hard
for readers with another first language: a relative clause without a noun, a passive without an actor, an agent without
a name, an archaic connective. The rate is markers per 1,000 words. `[tool.conformance.prose]` has a limit for each
folder; `nox -s lint` runs this script without arguments.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import signal
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHORTEST = 4
"""Words of the shortest sentence that counts."""

WHAT = (
    "is was has had were are it they a an the no none one either each such can may must comes came falls fails differs "
)
PARTICIPLES = "told asked said met given taken held meant left brought kept known found shown judged drawn made"
MARKERS = {
    "relative clause without a noun": [
        rf"\b[Ww]hat (?:{'|'.join(WHAT.split())})\b",
        r"\b(?:of|by|from|to|in|on|with|after) which\b",
        r"\bthat which\b",
        r"\bthose (?:that|of|who|which)\b",
        r"\b(?:one|ones|it|that|this|they) (?:that|who|which)\b",
    ],
    "passive without an actor": [
        rf"\b(?:is|are|was|were|be) (?:{'|'.join(PARTICIPLES.split())})\b",
        r"\b(?:is|are|was|were|be) come to\b",
    ],
    "agent without a name": [
        r"\b[Ww]ho(?:ever)?\b",
        r"\b(?:[Nn]o|[Ss]ome|[Ee]very)body\b",
        r"\b[Ss]o many\b",
        r"\b[Aa]ll (?:that|else|of it)\b",
        r"\b[Nn]othing else\b",
        r"\b[Nn]one of (?:it|them|these)\b",
    ],
    "archaic connective": [
        r"\b(?:so|nor) (?:is|are|does)\b",
        r"\bof (?:its|their) own\b",
        r"\bby (?:itself|themselves)\b",
        r"\b(?:apart from|save for|as ever|at once|ever after|in turns?)\b",
        r"\b(?:likewise|beneath|beside|hence|thereof|thereby|wherein|lest)\b",
    ],
}
PATTERNS = {name: re.compile("|".join(parts)) for name, parts in MARKERS.items()}


@dataclass
class Count:
    """Words and markers of a folder, and its sentences with markers as (markers per word, place, sentence)."""

    words: int = 0
    markers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATTERNS, 0))
    sentences: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Markers per 1,000 words."""
        return 1000 * sum(self.markers.values()) / max(self.words, 1)

    def add(self, place: str, text: str) -> None:
        """Count one docstring, comment or paragraph."""
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(text.split())):
            length = len(sentence.split())
            if length < SHORTEST:
                continue
            self.words += length
            hits = {name: len(pattern.findall(sentence)) for name, pattern in PATTERNS.items()}
            for name, count in hits.items():
                self.markers[name] += count
            if total := sum(hits.values()):
                self.sentences.append((total / length, place, sentence))


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, other strings that stand alone, and comments, each with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#(?:!| type:| fmt:| noqa)", token.string):
            yield token.start[0], token.string.strip("# ")


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, each with its line; without code and tables."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    line = 1
    for paragraph in text.split("\n\n"):
        if not paragraph.lstrip().startswith("|"):
            yield line, re.sub(r"`[^`]*`", "X", paragraph)
        line += paragraph.count("\n") + 2


def count(place: Path) -> Count:
    """The count of a file, or of all Python and Markdown files in a folder."""
    total = Count()
    files = [place] if place.is_file() else sorted(place.rglob("*.py")) + sorted(place.rglob("*.md"))
    for file in files:
        read = of_markdown if file.suffix == ".md" else of_python
        for line, text in read(file.read_text(encoding="utf-8")):
            total.add(f"{file.relative_to(ROOT)}:{line}", text)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rate of each folder. Exit code 1 where one is above its limit, 2 for a folder that does not exist."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="default: those with a limit")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst sentences")
    args = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    limits: dict[str, float] = project["tool"]["conformance"]["prose"]
    above, sentences = 0, []
    for folder in args.folders or limits:
        if not (ROOT / folder).exists():
            print(f"scripts/prose.py: there is no {folder} in this repository", file=sys.stderr)
            return 2
        total = count(ROOT / folder)
        limit = limits.get(folder)
        over = limit is not None and total.rate > limit
        above += over
        sentences += total.sentences
        bound = "" if limit is None else f", at most {limit:g}{': too many' if over else ''}"
        print(f"{folder}: {total.rate:.1f} markers in 1,000 of {total.words:,} words{bound}")
    for _, place, sentence in sorted(sentences, reverse=True)[: args.worst]:
        print(f"{place}: {sentence[:200]}")
    return int(bool(above))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if the reader ends first, as in `| head`
    sys.exit(main())
