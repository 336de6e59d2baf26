"""The cause of a finding: its property, its severity, and the two names of a finding."""

from __future__ import annotations

import pytest

from conformance.record.finding import FLAKY, PROPERTIES, Finding, from_title, gist, property_of, severity_of
from conformance.record.names import ORACLES
from conformance.record.result import severity
from tests.report.runs import fuzz_finding

LATER = ("value / add_ / gaps", "error / no error: size mismatch")


class TestProperty:
    """Tests of `property_of` and `severity_of`."""

    @pytest.mark.parametrize(
        ("seen", "wrong"),
        [
            (("alias", "a", "b"), "aliasing"),
            (("storage", "[1]", "[2]"), "aliasing"),
            (("value", "1", "2"), "value"),
            (("grad", "1", "2"), "value"),
            (("grad", "True", "False", "requires_grad"), "metadata"),
            (("stride", "1", "2"), "metadata"),
            (("error", "no error", "RuntimeError", "boom"), "error"),
            (("error", "no error", "E", "not implemented is never a pass: aten::roll"), "not implemented"),
            (("error", "RuntimeError", "no error", "size mismatch"), "missing error"),
            (("error", "RuntimeError", "ValueError", "size mismatch"), "wording"),
            (("crash", "an answer", "the end of its process"), "crash"),
        ],
    )
    def test_of_a_difference(self, seen: tuple[str, ...], wrong: str) -> None:
        """The oracle `error` covers four properties."""
        assert property_of(*seen) == wrong

    @pytest.mark.parametrize("quoted", ["'to'", '"to"', "‘to’"])
    def test_the_gist_of_an_error_has_no_quoted_names(self, quoted: str) -> None:
        assert gist(f"C++ compile error: no member {quoted} in line 3") == "C compile error no member in line"

    def test_a_quoted_name_behind_a_bracket_is_removed(self) -> None:
        """Scripts print the text of an error in brackets. Regression test: the bracket hid the quotation mark, and no
        script of an error whose text begins with a quoted name showed its headline."""
        text = "\"max_pool1d_impl\" not implemented for 'Int'"
        assert gist(f"({text})") == gist(text) == "not implemented for"

    def test_every_oracle_has_one(self) -> None:
        """The severity table has a property for each oracle of a result."""
        assert {property_of(oracle, "1", "2") for oracle in ORACLES} <= {*PROPERTIES}

    def test_order(self) -> None:
        """The order is: crash, memory and aliasing, wrong values, metadata, errors, missing errors, wording; then the
        count."""
        names = ["crash", "aliasing", "value", "metadata", "not implemented", "missing error", "wording", "kernels"]
        ranks = [severity_of(name) for name in names]
        assert ranks == sorted({*ranks})
        assert severity_of("error") == severity_of("not implemented")
        results = [fuzz_finding(name, property=name, op="add", count=1) for name in names]
        often = fuzz_finding("other / often", property="value", op="mul", count=9)
        listed = [
            result.finding.title() for result in sorted([*reversed(results), often], key=severity) if result.finding
        ]
        assert listed[:4] == ["crash / add", "aliasing / add", "value / mul", "value / add"]


class TestTitles:
    """Tests of `Finding.title`, `seen_as` and `from_title`."""

    def test_the_cause_where_it_is_known(self) -> None:
        """The title is the cause, or the signature if the file is older than causes."""
        assert Finding(LATER[0], property="aliasing", op="as_strided").title() == "aliasing / as_strided"
        assert Finding(LATER[0], FLAKY, property="crash", op="unfold").title() == "flaky / crash / unfold"
        assert Finding(LATER[0]).title() == LATER[0]

    def test_all_signatures(self) -> None:
        """Each signature has its own parts."""
        finding = Finding("value / copy_ / gaps", property="aliasing", op="t", signatures=LATER)
        assert [(seen.parts.op, seen.parts.error, seen.op) for seen in finding.seen_as()][1:] == [
            ("add_", "", "t"),
            ("", "no error: size mismatch", "t"),
        ]

    def test_read_again(self) -> None:
        """A cause consists of a property and an op."""
        named = from_title("missing error / view")
        assert (named.property, named.op) == ("missing error", "view")
        assert from_title(LATER[0]) == Finding(LATER[0])
        assert from_title("storage / add_").property == ""
