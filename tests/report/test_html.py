"""The page: what it says, and that text from outside stays text."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser

from conformance.report import html
from conformance.report.model import Failure, Run
from tests.report.runs import HOSTILE, failed, result, run


class Page(HTMLParser):
    """The page's elements and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "onerror")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data


class TestHtml:
    """The page."""

    def test_hostile_text_is_inert(self, hostile: Run) -> None:
        """Op names, exceptions, reasons and environments add no element, and no control character survives."""
        text = html.render(
            hostile, hostile, {"findings": [{"signature": HOSTILE, "script": HOSTILE}], HOSTILE: HOSTILE}
        )
        page = Page(text)
        assert page.tags.count("script") == 2
        assert "img" not in page.tags
        assert page.sources == []
        assert not set(text) & {"\x1b", "\x00", "\u202e"}

    def test_self_contained(self) -> None:
        """Nothing is fetched: no source, no stylesheet link, and a policy that forbids it."""
        text = html.render(run(result()))
        assert not {"link", "img", "iframe"} & set(Page(text).tags)
        assert "default-src 'none'" in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")

    def test_data_is_what_was_found(self) -> None:
        """The rows that the browser reads are the results, worst first."""
        data = json.loads(Page(html.render(run(result("good"), failed("bad")))).scripts[0])
        names = [data["names"][row[0]] for row in data["rows"]]
        assert names == ["bad", "good"]
        assert list(data["details"]) == ["0"]

    def test_changes_come_first(self) -> None:
        """With a baseline, its section is before the map and the cases."""
        text = html.render(run(failed()), run(result()))
        assert text.index('id="changes"') < text.index('id="map"') < text.index('id="cases"')

    def test_heat_map_counts(self) -> None:
        """A cell counts its cases, and a column is named by what varies."""
        heat = html.heat_map([result("a"), failed("b"), result("c", dtype="int64")])
        assert heat["columns"] == ["float32", "int64"]
        cell = heat["rows"][0]["cells"][0]
        assert (cell["passed"], cell["total"], cell["step"]) == (1, 2, "2")

    def test_details_have_a_budget(self) -> None:
        """Very many long failures do not make a page that no browser opens."""
        long = [dataclasses.replace(failed(f"op{i}"), failures=(Failure("value", "w", "e", "a", script="x" * 50_000),)) for i in range(400)]  # fmt: skip  # noqa: E501
        assert len(html.render(run(*long))) < 5_000_000
