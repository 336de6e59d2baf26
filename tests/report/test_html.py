"""The page: its content, and escaping of text from outside."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser

from conformance.record.measurements import Measurements
from conformance.record.merge import merge
from conformance.record.names import REPROS
from conformance.record.program_stats import ProgramStats
from conformance.record.repro import Repro
from conformance.record.result import Failure, Outcome, Result, Run
from conformance.record.sentences import LAYOUTS
from conformance.record.shortfall import Shortfall
from conformance.report import html
from conformance.standalone.script import MARKER
from tests.report.runs import HOSTILE, campaign, failed, fuzz_finding, result, run


class Page(HTMLParser):
    """The page's elements and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.scripts: list[str] = []
        self.verdicts: list[str] = []
        self.title = self.text = ""
        self.feed(text)
        self.title, self.text = self.title.strip(), " ".join(self.text.split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "onerror")]
        if tag == "script":
            self.scripts.append("")
        elif tag == "p" and (name := dict(attributes).get("class") or "").startswith("verdict"):
            self.verdicts.append(name)

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data
        elif self.lasttag == "title":
            self.title += data
        elif self.lasttag != "style":
            self.text += f" {data}"


class TestHtml:
    """The page."""

    def test_hostile_text_is_inert(self, hostile: Run) -> None:
        """Op names, exceptions, reasons and environments add no element, and no control character remains."""
        bad = fuzz_finding(HOSTILE, elsewhere={HOSTILE: HOSTILE}, script=HOSTILE, first_wrong_step=HOSTILE)
        bad = bad.replace(reason=HOSTILE, failures=(*bad.failures, *hostile.results[0].failures))
        drawn = ProgramStats(
            avoided={HOSTILE: 1}, unsupported={HOSTILE: 1}, cells={(HOSTILE,) * 3: 1},
            families=(HOSTILE, f"{HOSTILE} not reached"),
        )  # fmt: skip
        known = bad.replace(outcome=Outcome.XFAIL)
        fuzz_run = campaign(bad, known, target=HOSTILE, command=HOSTILE, environment={HOSTILE: HOSTILE}, drawn=drawn,
                            expectations=HOSTILE)  # fmt: skip
        for text, scripts in ((html.render(hostile, hostile, fuzz_run), 2), (html.render(fuzz_run, fuzz_run), 1)):
            page = Page(text)
            assert page.tags.count("script") == scripts
            assert "img" not in page.tags
            assert page.sources == []
            assert not set(text) & {"\x1b", "\x00", "\u202e"}

    def test_self_contained(self) -> None:
        """The page fetches nothing: it has no source and no stylesheet link, and its policy forbids requests."""
        text = html.render(run(result()))
        assert not {"link", "img", "iframe"} & set(Page(text).tags)
        assert "default-src 'none'" in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")

    def test_data_is_what_was_found(self) -> None:
        """The rows for the browser are the results, worst first."""
        data = json.loads(Page(html.render(run(result("good"), failed("bad")))).scripts[0])
        names = [data["names"][row[0]] for row in data["rows"]]
        assert names == ["bad", "good"]
        assert list(data["details"]) == ["0"]

    def test_a_regression_is_the_verdict(self) -> None:
        """Regression test: the page of a run that fails since the baseline said that all cases are right."""
        before, after = (run(result(outcome=Outcome.XFAIL, samples=4, failed=count)) for count in (1, 2))
        page = html.render(after, baseline=before)
        assert "1 regression since the baseline." in page and "do what torch CPU does, or fail" not in page
        assert "since the baseline." not in html.render(before, baseline=before)

    def test_changes_come_first(self) -> None:
        """With a baseline, the section of changes precedes the map and the cases."""
        text = html.render(run(failed()), run(result()))
        assert text.index('id="changes"') < text.index('id="map"') < text.index('id="cases"')

    def test_compiled_samples(self) -> None:
        """A compiling target has three counts of samples; other targets have none."""
        text = html.render(run(result("a", compiled=2, partly_compiled=1, not_compiled=4), result("b")))
        data = json.loads(Page(text).scripts[0])
        counts = [[count for count, *_ in row[-1]] for row in data["rows"]]
        assert counts == [[2, 1, 4], [None, None, None]]
        assert "4 of 7 samples: not compiled and so not compared" in Page(text).text
        assert "not compiled" not in Page(html.render(run(result()))).text

    def test_calls_on_the_cpu_by_design(self) -> None:
        """Host operators are listed next to fallbacks and do not count as fallbacks."""
        case_run = run(result("a", fallback=0, host=3, parts={"host": {"item": 3}}), result("b", fallback=0, host=0))
        page = Page(html.render(case_run))
        assert "2 of 2 passed without CPU fallbacks" in page.text
        assert json.loads(page.scripts[0])["details"]["0"]["parts"] == {"host": [["item", 3]]}

    def test_heat_map_counts(self) -> None:
        """A cell counts its cases, and the varying part names the column."""
        heat = html.heat_map([result("a"), failed("b"), result("c", dtype="int64")])
        assert heat["columns"] == ["float32", "int64"]
        cell = heat["rows"][0]["cells"][0]
        assert (cell["passed"], cell["total"], cell["step"]) == (1, 2, "2")

    def test_a_case_without_a_dtype_has_a_column_with_a_name(self) -> None:
        """Regression test: tests of PyTorch without a dtype stood below an empty heading."""
        assert html.heat_map([result("a"), result("b", dtype="")])["columns"] == ["float32", "no dtype"]

    def test_what_was_not_judged_is_neither_good_nor_bad(self) -> None:
        """It fails a strict run only. Regression test: it had the green mark of a passed half."""
        short = [Shortfall("programs", 165, 200)]
        assert Page(html.render(run(result(), not_judged=short))).verdicts == ["verdict good", "verdict open"]
        strict = Page(html.render(run(result(), not_judged=short, strict=True)))
        assert strict.verdicts == ["verdict good", "verdict bad"]

    def test_checks_of_one_operator(self) -> None:
        """The page of `conformance operator` names the operator at its top, and has no map: its checks have no family.
        Regression test: the page was that of "cpu", with a map of one row."""
        checks = [Result("mylib.scale", "float32", check, "operator", Outcome.PASS, samples=3) for check in ("a", "b")]
        page = html.render(run(*checks))
        assert "<h1>mylib.scale on tiny</h1>" in page
        assert 'id="map"' not in page and "#map" not in page and 'id="cases"' in page
        assert 'id="map"' in html.render(run(result("a")))

    def test_another_reference_is_named(self) -> None:
        """A page about another reference than torch CPU names it, and merged runs keep it."""
        judged = dataclasses.replace(run(failed("neg", "value"), result("abs")), reference="the reference")
        page = Page(html.render(merge([judged, dataclasses.replace(judged, results=[])])))
        assert "1 of 2 cases does not do what the reference does" in page.text
        assert "differs from the reference" in page.text and "torch CPU" not in page.text
        assert json.loads(page.scripts[0])["reference"] == "the reference"

    def test_known_bugs_in_one_sentence(self) -> None:
        """The headline says how many known bugs show, in good English for none and for one."""
        bug = Repro("a title", "value", "torch CPU")
        shown, not_shown = (
            dataclasses.replace(one, op=f"bug{at}", variant="value", layout=REPROS, repro=bug)
            for at, one in enumerate((failed("a", "repro"), result("b")))
        )
        assert "None of the 1 known bugs that were tried shows, or only as declared." in html.render(run(not_shown))
        page = html.render(run(shown, not_shown))
        assert "1 of the 2 known bugs that were tried shows, and is not declared." in page and "not shown" in page

    def test_details_have_a_budget(self) -> None:
        """Many long failures do not make the page too large for a browser."""
        long = [dataclasses.replace(failed(f"op{i}"), failures=(Failure("value", "w", "e", "a", script="x" * 50_000),)) for i in range(400)]  # fmt: skip  # noqa: E501
        assert len(html.render(run(*long))) < 5_000_000


class TestFuzzing:
    """A fuzz campaign on the page, with a run and alone."""

    def test_the_headline_tells_findings(self) -> None:
        """The headline includes the campaign's findings. Regression test: with a faultless run, the page was green and
        reported that all is well."""
        page = Page(html.render(run(result()), None, campaign(fuzz_finding("a", count=26))))
        assert page.verdicts == ["verdict bad", "verdict good"]
        assert page.text.index("26 of 300 drawn programs fail: 1 distinct cause.") < page.text.index("All 1 cases")
        assert "26 of 300 drawn programs fail" in page.title
        assert "1 passed" in page.title

    def test_the_headline_when_all_is_well(self) -> None:
        """Both verdicts are good."""
        page = Page(html.render(run(result()), None, campaign()))
        assert page.verdicts == ["verdict good", "verdict good"]
        assert "No finding in 300 drawn programs." in page.text
        assert page.title == "tiny: 1 passed, 0 failed, 0 skipped"

    def test_a_failed_run_is_first(self) -> None:
        """The worse half comes first."""
        assert Page(html.render(run(failed()), None, campaign())).verdicts == ["verdict bad", "verdict good"]

    def test_a_campaign_alone(self) -> None:
        """A campaign has its own page, with its headline and the command to run it again."""
        page = Page(html.render(campaign(fuzz_finding("a"), command="python -m conformance.fuzz --seed 9")))
        assert page.verdicts == ["verdict bad"]
        assert page.title == "tiny: 1 of 300 drawn programs fail: 1 distinct cause."
        assert "--seed 9" in page.text
        probed = campaign(fuzz_finding("a"))
        probed.target = "device:mine,import=my_backend,without=data+set_"
        assert Page(html.render(probed)).title.startswith("device:mine,import=my_backend: 1 of 300")
        assert Page(html.render(campaign())).verdicts == ["verdict good"]

    def test_findings_tell_their_weight_and_whose_they_are(self) -> None:
        """A finding shows its number of programs, the difference, and the outcome on sibling targets."""
        wrong = fuzz_finding("value / copy_", count=25, elsewhere={"tiny:clang": "agrees"}, script="print()")
        text = Page(html.render(campaign(wrong, fuzz_finding("crash / add_", "CRASH")))).text
        assert "FAIL a should be 1 and is 2 value / copy_, 25 programs" in text
        assert "value of a: expected 1, got 2" in text
        assert "tiny:clang agrees" in text
        assert "From program 7, 2 steps." in text
        assert "CRASH the target 2 at a crash / add_, 1 program" in text
        assert text.index("crash / add_") < text.index("value / copy_")

    def test_a_finding_opens_with_its_program(self) -> None:
        """A finding starts with the sentence and the program in plain torch; the whole script, with the comparison,
        comes last."""
        script = f"print('a program')\n\n{MARKER}\nprint('a comparison')"
        page = html.render(campaign(fuzz_finding("value / relu.edge / window", script=script)))
        text = Page(page).text
        assert page.count('<details class="change regression" open>') == 1
        parts = ("a should be 1 and is 2", "print('a program')", "relu.edge: relu, values at", "layout 'window':",
                 "the whole script", "print('a comparison')")  # fmt: skip
        places = [text.index(part) for part in parts]
        assert places == sorted(places)

    def test_known_findings(self) -> None:
        """Known findings are listed with their reason and file, and the headline is green."""
        known = fuzz_finding().replace(outcome=Outcome.XFAIL, reason="a reason")
        page = Page(html.render(campaign(known, expectations="tiny.toml")))
        assert page.verdicts == ["verdict good"]
        assert "No new finding in 300 drawn programs; 1 known finding in 1 program, declared in tiny.toml." in page.text
        assert "FAIL a should be 1 and is 2 value / copy_ / gaps, 1 program, known a reason" in page.text

    def test_changes_of_findings(self) -> None:
        """With an earlier campaign as baseline, the page lists new and fixed findings."""
        text = Page(html.render(campaign(fuzz_finding("new")), campaign(fuzz_finding("old")))).text
        assert "1 new failures" in text
        assert "1 fixed" in text
        assert "program::old" in text

    def test_what_was_not_run_has_its_reasons(self) -> None:
        """Rejected steps and unsupported programs are listed with their reasons, most frequent first."""
        avoided = {"one": 1, "write through overlapping memory": 30}
        fuzz_run = campaign(drawn=ProgramStats((0,), 300, avoided=avoided, unsupported={"autograd": 4}))
        text = Page(html.render(fuzz_run)).text
        assert "write through overlapping memory 30 one 1" in text
        assert "Programs not run, since the target leaves out 1 reason autograd 4" in text

    def test_coverage_shows_what_was_not_reached(self) -> None:
        """Every family, layout class and dtype has its row or column. Regression test: only those reached had one."""
        view = html.campaign_view(COVERED)
        assert f'<th scope="col" title="{LAYOUTS["gaps"]}"><span>gaps</span>' in html.render(COVERED)
        assert view["layouts"] == ("contiguous", "gaps", "empty")
        assert view["missed"] == [("family", ["views"]), ("layout class", ["empty"]), ("dtype", ["int8"])]
        text = Page(html.render(COVERED)).text
        assert "steps contiguous gaps empty views 0 0 0 writes 40 3 0" in text
        assert "writes 3 cells reached layout float32 bool int8 contiguous 37 3 0 gaps 0 3 0 empty 0 0 0" in text
        assert "No step of layout class empty." in text
        assert "do not name them" not in text

    def test_coverage_without_axes(self) -> None:
        """If the results do not list the families, layouts and dtypes, the page says that the table may lack rows."""
        fuzz_run = campaign(drawn=dataclasses.replace(DRAWN, families=(), layouts=(), dtypes=()))
        assert html.campaign_view(fuzz_run)["layouts"] == ("contiguous", "gaps")
        assert "do not name them" in Page(html.render(fuzz_run)).text

    def test_coverage_states_no_share(self) -> None:
        """Coverage has no total, because some cells cannot exist. Regression test: the page read "6 of 110"."""
        text = Page(html.render(COVERED)).text
        assert "writes 3 cells reached" in text
        assert " of 18" not in text
        assert " of 9" not in text

    def test_hazards_have_a_table(self) -> None:
        """Hazards count by write and relation; a pair that was not reached shows 0."""
        counts = {"copy_|gap|clone|reads": 2, "copy_|gap|nothing|reads": 1}
        drawn = dataclasses.replace(DRAWN, hazards=counts, writes=("copy_", "foreach"), relations=("same", "gap"))
        text = Page(html.render(campaign(drawn=drawn))).text
        assert "2 cells were reached. hazards same gap copy_ 0 3 foreach 0 0" in text
        assert "Hazards" not in Page(html.render(COVERED)).text

    def test_kernels_are_told_where_they_are_counted(self) -> None:
        """A target that does not count kernels has no kernel fact, rather than 0."""
        assert "kernels" not in html.campaign_view(campaign())["facts"]
        drawn = ProgramStats(measured=Measurements({"kernels": 3}, {"kernels": 5}))
        assert html.campaign_view(campaign(drawn=drawn))["facts"]["kernels"] == "3"


DRAWN = ProgramStats(
    cells={("writes", "contiguous", "float32"): 37, ("writes", "contiguous", "bool"): 3, ("writes", "gaps", "bool"): 3},
    families=("views", "writes"),
    layouts=("contiguous", "gaps", "empty"),
    dtypes=("float32", "bool", "int8"),
)
COVERED = campaign(drawn=DRAWN)
