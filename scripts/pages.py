"""Generated part of a page of docs/: the lines between two comments that name the script."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class PageError(ValueError):
    """A page without a place for its generated part; the text is one sentence that says what to do."""


def write(path: Path, text: str) -> None:
    """Write a temporary file in the same folder, then rename it."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as the text of a CSV file. Its cells are Markdown."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class Part:
    """The part of a page, named by its path in a checkout, that `python -m scripts.<script>` writes."""

    page: str
    script: str

    @property
    def begin(self) -> str:
        """Line before the part."""
        return f"<!-- generated: python -m scripts.{self.script} -->"

    @property
    def end(self) -> str:
        """Line after the part."""
        return f"<!-- end of {self.script} -->"

    def replaced(self, text: str, part: str) -> str:
        """Return the text of the page with this part. Raises PageError if the text lacks one of the two lines."""
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not (begin and end):
            raise PageError(
                f"{self.page} lacks the line {self.begin!r} or {self.end!r}: put both where the part belongs"
            )
        return f"{before}{begin}\n\n{part}\n\n{end}{after}"

    def renew(self, part: str, check: bool = False, root: Path = ROOT) -> int:
        """Write the page of a checkout. With `check`, write nothing, and report and return 1 for a stale page.

        Raises PageError or OSError.
        """
        path = root / self.page
        text = path.read_text(encoding="utf-8")
        wanted = self.replaced(text, part)
        if check:
            if wanted != text:
                print(f"{self.page} is stale; run python -m scripts.{self.script}", file=sys.stderr)
            return int(wanted != text)
        write(path, wanted)
        return 0
