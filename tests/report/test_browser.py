"""The report's page in a real browser: interaction, appearance, and hostile text.

Skipped with a reason if no Chromium is available; `nox -s tests` tries to install Debian's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from conformance.record.program_stats import ProgramStats
from conformance.record.result import Failure, Outcome, Result
from conformance.report import html
from conformance.report.escape import escape_control_characters
from conformance.report.history import Trend
from scripts import screenshot
from tests.report.runs import campaign, fuzz_finding, run
from tests.report.runs import result as passed

pytest.importorskip("playwright", reason=screenshot.MISSING)
pytestmark = pytest.mark.skipif(screenshot.executable() is None, reason=screenshot.MISSING)

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>\"'`\x1b[31m${{7*7}}\x00"
FELL: dict[str, Any] = {"fallback": 1, "parts": {"fallback": {HOSTILE: 1}}}
TRENDS = (Trend("passed", (3, 5, 4), -1), Trend("kernels", (9, 7, 7), 0))
DRAWN = ProgramStats(
    programs=300,
    families=("views", "writes", "layers"), layouts=("contiguous", "gaps"), dtypes=("bool", "int8"),
    cells={("writes", "contiguous", "int8"): 37, ("writes", "contiguous", "bool"): 3, ("writes", "gaps", "bool"): 3,
           ("views", "contiguous", "int8"): 9},
)  # fmt: skip
FUZZ = campaign(fuzz_finding(count=2, elsewhere={"tiny:clang": "agrees"}, script="print('a finding')"), drawn=DRAWN)


def failed(op: str = "mul", text: str = "1", script: str = "print('script')", **changes: Any) -> Result:
    layouts = {
        side: {"size": [2, 3], "stride": stride, "offset": offset}
        for side, stride, offset in (("expected", [3, 1], 0), ("actual", [1, 2], 1))
    }
    values = (("[0]", text, "2", True), ("[1]", "3", "3", False))
    failure = Failure("value", "result", text, "2", text, 1, text, script, values, layouts)
    return passed(op, outcome=Outcome.FAIL, failures=(failure,), failed=1, **changes)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with screenshot.chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end, check that it made no request and logged no error."""
    seen: list[str] = []
    contexts = []

    def open_page(text: str, fragment: str = "", **look: Any) -> Any:
        (tmp_path / "page.html").write_text(text)
        context = browser.new_context(**(look or screenshot.LOOKS["light"]))
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: seen.append(request.url) if request.url[:5] != "file:" else None)
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
        page.goto((tmp_path / "page.html").as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []


def rows(page: Any) -> int:
    return int(page.locator("#table tr.row").count())


class TestReading:
    """Filters, details, links, keys and copying."""

    def test_a_click_on_the_map_filters(self, opened: Callable[..., Any]) -> None:
        """A click on a cell of the heat map shows its cases, and the address contains the state."""
        page = opened(html.render(run(passed(), failed(), passed("sin", family="unary"))))
        page.locator(".tiles li", has_text="unary").locator("a").click()
        page.wait_for_selector("#count:has-text('1 of 3 cases')")  # the page filters in a later event
        assert rows(page) == 1
        assert "family=unary" in page.url
        page.click("#clear")
        assert rows(page) == 3

    def test_search_and_outcome(self, opened: Callable[..., Any]) -> None:
        """The search text and the outcome buttons filter the table together."""
        page = opened(html.render(run(passed(), failed(), failed("matmul"))))
        page.click("#outcomes button:has-text('FAIL')")
        assert rows(page) == 2
        page.fill("#q", "matmul")
        page.wait_for_selector("#count:has-text('1 of 3 cases')")

    def test_compiled_and_host(self, opened: Callable[..., Any]) -> None:
        """Samples by extent of compilation, and host operators, can be filtered and sorted."""
        counts: dict[str, Any] = {"native": 3, "decomposed": 0, "fallback": 0}
        host: dict[str, Any] = {"host": 2, "parts": {"host": {"item": 2}}}
        whole = passed("whole", compiled=3, partly_compiled=0, not_compiled=0, **host, **counts)
        some = passed("some", compiled=1, partly_compiled=1, not_compiled=1, host=0, **counts)
        page = opened(html.render(run(whole, some)))
        page.select_option("#measure", "not compiled")
        assert page.locator("#table td.name").all_inner_texts() == ["some"]
        assert "measure=not%20compiled" in page.url
        page.select_option("#measure", "-partly compiled")
        page.click("#table tr.row")
        assert "2 on the CPU by design: item (2)" in page.locator("tr.detail").inner_text()
        assert "3 compiled; 0 partly compiled; 0 not compiled" in page.locator("tr.detail").inner_text()
        page.click("#clear")
        page.select_option("#measure", "host")
        assert page.locator("#table td.name").all_inner_texts() == ["whole"]
        page.click("#clear")
        head = page.locator("#table thead th", has_text="compiled").locator("button")
        head.click()
        head.click()
        assert page.locator("#table td.name").all_inner_texts() == ["some", "whole"]
        titles = [bar.get_attribute("title") for bar in page.locator(".cbar").all()]
        assert "1 compiled, 1 partly compiled, 1 not compiled and so not compared" in titles

    def test_sort(self, opened: Callable[..., Any]) -> None:
        """A click on a column's head sorts, and a second click reverses the order."""
        page = opened(html.render(run(*(passed(op, seconds=n) for n, op in enumerate(("a", "b", "c"))))))
        head = page.locator("#table thead th", has_text="ms").locator("button")
        names = "[...document.querySelectorAll('#table td.name')].map(cell => cell.textContent).join('')"
        head.click()
        assert page.evaluate(names) == "cba"
        head.click()
        assert page.evaluate(names) == "abc"

    def test_no_times(self, opened: Callable[..., Any]) -> None:
        """A run that measures no time, such as a trace, has no column of times. Regression test: it was all 0."""
        page = opened(html.render(run(passed("a", seconds=0.0))))
        assert not page.locator("#table thead th", has_text="ms").count()

    def test_a_failure_unfolds(self, opened: Callable[..., Any]) -> None:
        """The details have both answers, the differing values, pictures of both storages, the script and the rerun
        command."""
        page = opened(html.render(run(failed(), passed())))
        page.click("#table tr.row")
        detail = page.locator("tr.detail")
        assert detail.locator("tr.bad").count() == 1
        assert detail.locator("svg.storage").count() == 2
        assert "--op mul --dtype float32 --variant forward --layout as_sampled --samples 3" in detail.inner_text()
        box = detail.locator("svg.storage rect").first.bounding_box()
        assert box is not None
        assert box["width"] > 5

    def test_copy(self, opened: Callable[..., Any]) -> None:
        """The button copies the script to the clipboard."""
        page = opened(html.render(run(failed(script="print('copy me')"))))
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("#table tr.row")
        page.click("details.script summary")
        page.click(".copy-script")
        page.wait_for_selector(".copy-script:has-text('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == "print('copy me')"

    def test_a_link_opens_its_case(self, opened: Callable[..., Any]) -> None:
        """A fragment opens the page with one case expanded; changing it on the page shows another case."""
        page = opened(html.render(run(failed(), failed("other"))), "#case=" + quote(failed().id, safe=""))
        assert rows(page) == 1
        assert page.locator("tr.detail").count() == 1
        page.evaluate("location.hash = 'q=other'")
        page.wait_for_selector("#table td.name:has-text('other')")

    def test_keys(self, opened: Callable[..., Any]) -> None:
        """j and k move, Enter expands, / focuses the search, Escape clears."""
        page = opened(html.render(run(failed(), passed(), passed("sin"))))
        for key in ("j", "j", "k", "Enter"):
            page.keyboard.press(key)
        assert page.locator("tr.row.at td.name").inner_text() == "mul"
        assert page.locator("tr.detail").count() == 1
        page.keyboard.press("/")
        page.keyboard.type("sin")
        page.wait_for_selector("#count:has-text('1 of 3 cases')")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        assert rows(page) == 3

    def test_kernel_bars(self, opened: Callable[..., Any]) -> None:
        """The bar has marks at the baseline's count and at the bound."""
        case_run = run(passed(kernels=3, most={"kernels": 6}), passed("more", kernels=0))
        page = opened(html.render(case_run, run(passed(kernels=4))))
        page.select_option("#measure", "-kernels")
        assert page.locator("#table td.name").all_inner_texts() == ["more"]
        page.click("#clear")
        page.fill("#q", "add")
        page.wait_for_selector("#count:has-text('1 of 2 cases')")
        bar = page.locator(".kbar")
        assert bar.get_attribute("title") == "3 kernels, at most 6 as torch CPU's ops and transfers, baseline 4"
        widths = [part.bounding_box()["width"] for part in (bar, bar.locator("i"))]
        assert widths[1] / widths[0] == pytest.approx(0.5, abs=0.05)
        assert bar.locator("b.before").count() == bar.locator("b.most").count() == 1

    def test_trends_and_fuzzing_are_drawn(self, opened: Callable[..., Any]) -> None:
        """Trend lines have a size, the coverage map has its counts, and a finding has its script."""
        page = opened(html.render(run(passed()), None, FUZZ, TRENDS))
        boxes = [line.bounding_box() for line in page.locator(".spark polyline").all()]
        assert [box["width"] > 100 for box in boxes] == [True, True]
        assert boxes[0]["height"] > 10
        assert page.locator("#fuzz td", has_text="40").count() == 1
        page.locator("#fuzz .cells summary", has_text="writes").click()
        assert "3 cells reached" in page.locator("#fuzz .cells summary", has_text="writes").inner_text()
        unreached = page.locator("#fuzz .map >> nth=0").locator("tr", has_text="layers")
        assert unreached.inner_text().split() == ["layers", "0", "0"]
        assert page.locator("#fuzz .cells[open] td", has_text="37").bounding_box()["width"] > 10
        assert page.locator("#fuzz pre").first.inner_text() == "print('a finding')"

    def test_a_campaign_alone(self, opened: Callable[..., Any]) -> None:
        """On a campaign's page, the script can be copied, the theme changes, and the headline links to the findings."""
        page = opened(html.render(FUZZ))
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click(".verdict.bad a")
        page.locator("#fuzz .code button").first.click()
        page.wait_for_selector("#fuzz .code button:has-text('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == "print('a finding')"
        assert "tiny:clang" in page.locator(".elsewhere").inner_text()
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


class TestLooks:
    """Screen sizes and color schemes."""

    def test_dark(self, opened: Callable[..., Any]) -> None:
        """The page follows the reader's color scheme, and a button changes it."""
        page = opened(html.render(run(passed())), **screenshot.LOOKS["dark"])
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(colour)
        page.click("#theme")
        light = page.evaluate(colour)
        assert [sum(map(int, value[4:-1].split(","))) > 384 for value in (dark, light)] == [False, True]

    def test_phone(self, opened: Callable[..., Any]) -> None:
        """No element is wider than the screen, folded or expanded."""
        many = [passed(f"nn.functional.{'long' * 12}{n}", dtype=d) for n in range(3) for d in ("float32", "int64")]
        text = html.render(run(failed(text="9" * 400), *many), run(passed("gone")), FUZZ, TRENDS)
        page = opened(text, **screenshot.LOOKS["phone"])
        page.click("#table tr.row")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page = opened(html.render(FUZZ), **screenshot.LOOKS["phone"])
        page.click("#fuzz .change summary")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

    def test_print(self, opened: Callable[..., Any]) -> None:
        """The printed page has all rows and no controls."""
        page = opened(html.render(run(*(passed(f"op{n}") for n in range(400)))))
        page.emulate_media(media="print")
        assert not page.locator("#filters").is_visible()
        assert page.locator("#table td.name").first.bounding_box()["width"] > 100
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert rows(page) == 400

    def test_ten_thousand_rows(self, opened: Callable[..., Any]) -> None:
        """Only rows near the screen are elements, also after a search, and scrolling adds the other rows."""
        page = opened(html.render(run(*(passed(f"op{n}") for n in range(10_000)))))
        assert page.locator("#count").inner_text() == "10,000 cases"
        assert 100 <= rows(page) < 1_000
        for word, found in (("op9", "1,111"), ("op999", "11")):
            page.evaluate("word => { location.hash = 'q=' + word; dispatchEvent(new Event('hashchange')); }", word)
            assert page.locator("#count").inner_text() == f"{found} of 10,000 cases"
            assert rows(page) < 1_000
        page.click("#clear")
        before = rows(page)
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.locator("#table tr.row").nth(before).wait_for(state="attached")

    def test_a_jump_over_the_table_arrives(self, opened: Callable[..., Any]) -> None:
        """A link to a section below thousands of rows shows that section, and the table does not push it away."""
        page = opened(html.render(run(*(passed(f"op{n}") for n in range(3_000))), None, FUZZ, TRENDS))
        page.click("nav >> text=Trends")
        page.wait_for_timeout(800)
        assert 0 <= page.locator("#trends h2").bounding_box()["y"] < 800


class TestHostile:
    """Hostile text from outside has no effect."""

    def test_nothing_runs(self, opened: Callable[..., Any]) -> None:
        """An op, an exception, a script and a finding full of markup and escapes appear as text."""
        bad = failed(HOSTILE, HOSTILE, HOSTILE, family=HOSTILE, reason=HOSTILE, **FELL)
        case_run = run(bad, passed(), command=HOSTILE, notes=[HOSTILE])
        wrong = fuzz_finding(HOSTILE, elsewhere={HOSTILE: HOSTILE}, script=HOSTILE)
        fuzzed = campaign(wrong, target=HOSTILE, drawn=ProgramStats(avoided={HOSTILE: 1}, cells={(HOSTILE,) * 3: 1}))
        assert opened(html.render(fuzzed)).evaluate("window.pwned === undefined")
        text = html.render(case_run, run(passed(HOSTILE)), fuzzed)
        page = opened(text, "#case=" + quote(escape_control_characters(bad.id), safe=""))
        assert page.locator("tr.detail").count() == 1
        assert page.evaluate("window.pwned === undefined")
        assert page.locator("img").count() == 0
        assert "window.pwned=1" in page.locator("tr.detail").inner_text()
        assert "\x1b" not in page.content()

    def test_a_megabyte_of_text(self, opened: Callable[..., Any]) -> None:
        """Long text is truncated, and the page stays small: in its text, and in the elements that a browser makes."""
        text = html.render(run(failed(text="<b>" * 350_000, script="x" * 1_000_000)))
        assert len(text) < 500_000
        page = opened(text)
        page.click("#table tr.row")
        assert page.locator("tr.detail b").count() == 0
        assert page.evaluate("document.getElementsByTagName('*').length") < 1_000
