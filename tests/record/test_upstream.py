"""The rule by which a finding is a reported bug: what agrees, and findings that look alike and are not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.record.finding import PROPERTIES
from conformance.record.patterns import COMPILER_LAYERS
from conformance.record.upstream import RELATIONS, UNKNOWN, Bug, Evidence, bugs, known_as

SHIFT = Bug(1, "a shift", "Inductor", "value", ["clone/contiguous", "copy_"], relation="shifted")
BY_PASS = Bug(2, "a pass", "Inductor", "value", ["mul", "full"], parts=["pass constant_fold_uniform_value"])
BY_SETTING = Bug(3, "a setting", "Inductor", "value", ["to"], parts=["without vectorization"])
WRONG_VIEW = Bug(6, "a view", "AOTAutograd", "value", ["select", "add"], relation="inputs", parts=["without replay"])


def shift(**changes: object) -> Evidence:
    facts = {"operators": ["clone", "copy", "slice"], "relations": ["same", "shifted"]} | changes
    return Evidence("value", "Inductor", **facts)  # type: ignore[arg-type]


class TestMatches:
    def test_same_operators_in_the_same_relation(self) -> None:
        assert SHIFT.matches(shift()) == "clone/contiguous copy_, shifted"

    @pytest.mark.parametrize(
        "alike",
        [
            Evidence("value", "AOTAutograd", "", ["clone", "copy"], ["shifted"]),
            Evidence("aliasing", "Inductor", "", ["clone", "copy"], ["shifted"]),
            shift(relations=["same"]),
            shift(operators=["copy", "slice"]),
        ],
        ids=["another layer", "another property", "another relation", "one operator only"],
    )
    def test_look_alikes(self, alike: Evidence) -> None:
        assert SHIFT.matches(alike) == ""

    def test_alternative_layers(self) -> None:
        """A bug below the compiler shows in the layer that each target runs."""
        bug = Bug(8, "", "AOTAutograd/decompositions", "value", ["pinv"])
        layers = ("AOTAutograd", "decompositions", "Inductor", "AOTAutograd/decompositions")
        assert [bool(bug.matches(Evidence("value", layer, "", ["pinv"]))) for layer in layers] == [1, 1, 0, 0]

    def test_symptom(self) -> None:
        """The first difference counts beside the cause: the copy of a view shows as a wrong value."""
        facts = {"operators": ["clone", "copy"], "relations": ["shifted"]}
        assert SHIFT.matches(Evidence("aliasing", "Inductor", **facts, symptom="value"))  # type: ignore[arg-type]

    def test_dtypes(self) -> None:
        bug = Bug(4, "", "Inductor", "value", ["add"], dtypes=["int32"])
        assert bug.matches(Evidence("value", "Inductor", "", ["add"], [], ["int32", "bool"]))
        assert not bug.matches(Evidence("value", "Inductor", "", ["add"], [], ["int64"]))

    def test_alternative_dtypes(self) -> None:
        """Each of the dtypes must be there, in one of its alternatives."""
        bug = Bug(5, "", "AOTAutograd", "missing error", ["mul"], dtypes=["int32/int64", "float16/float32"])
        assert bug.matches(Evidence("missing error", "AOTAutograd", "", ["mul"], [], ["int64", "float16"]))
        assert not bug.matches(Evidence("missing error", "AOTAutograd", "", ["mul"], [], ["int64", "int32"]))

    def test_a_pass_beside_a_lowering(self) -> None:
        """A bug that disappears without a lowering is not one that disappears without a pass, though all operators
        agree. Regression test: a wrong `copy_` of a fused division was a reported floor division."""
        bug = Bug(7, "", "Inductor", "value", ["div"], parts=["lowering aten.div.Tensor_mode"])
        assert bug.matches(Evidence("value", "Inductor", "lowering aten.div.Tensor_mode", ["div"]))
        assert not bug.matches(Evidence("value", "Inductor", "pass group_batch_fusion_passes", ["div", "copy_"]))

    def test_part(self) -> None:
        """The same pass needs one of the operators only; another pass is another bug, though all operators agree."""
        part = "pass constant_fold_uniform_value"
        assert BY_PASS.matches(Evidence("value", "Inductor", part, ["mul"])) == f"right without the {part}"
        assert BY_PASS.matches(Evidence("value", "Inductor", part, ["exp"])) == ""
        assert BY_PASS.matches(Evidence("value", "Inductor", "pass remove_noop_ops", ["mul"])) == ""

    def test_setting(self) -> None:
        """A setting concerns many operators, so it does not decide alone; another setting is another bug."""
        assert BY_SETTING.matches(Evidence("value", "Inductor", "without vectorization", ["to"])) == "to"
        assert BY_SETTING.matches(Evidence("value", "Inductor", "without vectorization", ["exp"])) == ""
        assert BY_SETTING.matches(Evidence("value", "Inductor", "without fusion", ["to"])) == ""

    def test_setting_with_the_relation(self) -> None:
        """The property may differ if the setting, the relation and all operators agree, and only then."""
        facts = {"part": "without replay", "operators": ["add", "select"], "relations": ["inputs"]}
        assert WRONG_VIEW.matches(Evidence("error", "AOTAutograd", **facts))  # type: ignore[arg-type]
        for change in ({"part": ""}, {"part": "without views"}, {"operators": ["add"]}, {"relations": ["same"]}):
            assert not WRONG_VIEW.matches(Evidence("error", "AOTAutograd", **facts | change))  # type: ignore[arg-type]
        assert not BY_SETTING.matches(Evidence("error", "Inductor", "without vectorization", ["to"]))
        assert not replace(SHIFT, repro="...").matches(shift(part="without fusion"))  # it does not mend the repro

    def test_a_program_that_is_not_minimized(self) -> None:
        """Its minimized form may be the bug if it has the operators: all of them, or one if a pass decides."""
        assert WRONG_VIEW.may_be("error", ["add", "select", "neg"])  # a setting decides, so the property may differ
        assert not WRONG_VIEW.may_be("value", ["add", "neg"])
        assert SHIFT.may_be("value", ["contiguous", "copy_", "neg"]) and not SHIFT.may_be("value", ["contiguous"])
        assert not SHIFT.may_be("metadata", ["contiguous", "copy_"])
        assert BY_PASS.may_be("value", ["full"]) and not BY_PASS.may_be("value", ["neg"])


class TestIndex:
    def test_words(self) -> None:
        """Every entry uses the vocabulary of findings."""
        layers = {*COMPILER_LAYERS, "torch CPU", "meta and fake tensors", "functionalize"}
        for bug in bugs():
            assert {*bug.layer.split("/")} <= layers, bug.name
            assert bug.property in PROPERTIES, bug.name
            assert {*bug.relation.split("/")} <= {"", *RELATIONS}, bug.name
            assert bug.operators, bug.name
            assert bug.targets or not bug.repro, bug.name
            assert len(bug.repro.strip().splitlines()) <= 25, bug.name

    def test_reports_of_one_pass(self) -> None:
        """Of the reports that one pass explains, a finding is the one whose operators and relation it has. Regression
        test: a write to a rearranged tensor counted as #188084 too, a sum of gradients in an expanded zero."""
        facts = {"operators": ["index_put", "mul", "add", "flip"], "relations": ["same"]}
        finding = Evidence("value", "Inductor", "pass reinplace_inplaceable_ops", **facts)  # type: ignore[arg-type]
        assert known_as(finding) == "known: pytorch#198270"

    def test_findings_of_the_page(self) -> None:
        """The index has every issue that docs/findings names."""
        folder = Path(__file__).parents[2] / "docs" / "findings"
        issues = [line for path in folder.glob("*.toml") for line in path.read_text().splitlines()
                  if line.startswith("issues = ")]  # fmt: skip
        named = {int(number) for line in issues for number in re.findall(r"pytorch#(\d+)", line)}
        assert named and not named - {bug.number for bug in bugs()}

    def test_unknown(self) -> None:
        assert known_as(Evidence("value", "Inductor", "", ["no such operator"])) == UNKNOWN == "not in the index"
        assert known_as(Evidence("crash", "torch CPU", "", ["div"], [], ["int32"])) == "known: pytorch#138425"
