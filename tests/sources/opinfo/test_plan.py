"""The plan: cases selected by name, and errors for names that do not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.record import errors, names
from conformance.run.cases import longest_first
from conformance.sources.opinfo import plan


def case(name: str) -> plan.Case:
    return plan.Case(name, "", "unary", "float32", "forward", "as_sampled")


def select(*catalog: plan.Entry, shard: tuple[int, int] = (1, 1), **chosen: Any) -> list[plan.Case]:
    return plan.select(catalog, [plan.Selection(**chosen)], shard)


class TestPlan:
    """Planning by names only."""

    CATALOG = (
        plan.Entry(
            "add",
            "",
            "binary",
            frozenset({"float32", "int64"}),
            frozenset({"float32"}),
            frozenset({"forward", "backward"}),
        ),
        plan.Entry("linalg.pinv", "hermitian", "linalg", frozenset({"float32"}), frozenset(), frozenset({"forward"})),
    )

    def test_oracles_are_the_oracle_modules(self) -> None:
        """The planner's list of oracles, which avoids an import of torch, equals that of the oracles."""
        from conformance.record.names import ORACLES

        assert names.ORACLES == ORACLES

    def test_dtypes_are_torch_dtypes(self) -> None:
        """Each supported dtype name is a dtype of torch."""
        import torch

        assert all(isinstance(getattr(torch, name), torch.dtype) for name in names.DTYPES)

    def test_only_what_exists_is_planned(self) -> None:
        """An op is planned for the dtypes and variants that its OpInfo supports."""
        cases = select(*self.CATALOG, dtypes=("float32", "int64"), variants=("forward", "backward"))
        assert [c.id for c in cases] == [
            "add::float32::forward::as_sampled",
            "add::int64::forward::as_sampled",
            "add::float32::backward::as_sampled",
            "linalg.pinv.hermitian::float32::forward::as_sampled",
        ]

    @pytest.mark.parametrize("name", plan.SUITES)
    def test_suites_name_what_exists(self, name: str) -> None:
        """Each dtype, variant and layout of a suite can be selected."""
        for selection in plan.SUITES[name]:
            for part, known in (("dtypes", names.DTYPES), ("variants", names.VARIANTS), ("layouts", names.LAYOUTS)):
                assert set(getattr(selection, part)) <= set(known)

    def test_the_main_suite(self) -> None:
        """The main suite has forward in three dtypes, and in place and backward in one. A case that two selections
        contain is planned once."""
        cases = plan.select(self.CATALOG, [*plan.SUITES["main"], plan.Selection(samples=3)])
        assert [(c.id.partition("::as")[0], c.samples) for c in cases] == [
            ("add::float32::forward", 20),
            ("linalg.pinv.hermitian::float32::forward", 20),
            ("add::int64::forward", 6),
            ("add::float32::backward", 4),
        ]

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ("--suite mian", "unknown suite 'mian'; choose from main, sweep, quick"),
            ("--suite main --dtype bool", "--suite main chooses dtypes itself"),
        ],
    )
    def test_bad_suite(self, words: str, text: str) -> None:
        """An unknown suite, or a suite with an option that contradicts it, is a usage error."""
        from conformance.sources.opinfo.runner import parser

        with pytest.raises(errors.UsageError, match=text):
            plan.selections_of(parser().parse_args(words.split()))

    def selections(self, words: str, held: tuple[str, ...] | None = None) -> list[tuple[tuple[str, ...], int | None]]:
        from conformance.sources.opinfo.runner import parser

        return [(each.dtypes, each.samples) for each in plan.selections_of(parser().parse_args(words.split()), held)]

    def test_the_usual_dtypes(self) -> None:
        """The default has float32 and the target's other usual dtypes with fewer samples. Regression test: a run of
        float32 only missed a fault of float16."""
        more = ("float16", "int64", "bool")
        assert self.selections("") == [(("float32",), 20), (more, 6)]
        assert self.selections("", ("float32", "bfloat16", "int64")) == [(("float32",), 20), (("bfloat16", "int64"), 6)]
        assert self.selections("", ("float32",)) == [(("float32",), 20)]
        assert self.selections("--samples 2") == [(("float32",), 2), (more, 2)]
        assert self.selections("--dtype int8") == [(("int8",), 20)]
        assert self.selections("--variant backward --op add") == [(("float32",), 20), (more, 6)]

    def test_error_inputs_are_planned_once(self) -> None:
        """Error inputs choose their dtypes themselves. Regression test: each further selection planned them again."""
        entry = plan.Entry(
            "add", "", "binary", frozenset({"float32", "int64"}), frozenset(), frozenset({"error_inputs"})
        )
        selections = [replace(selection, variants=("error_inputs",)) for selection in plan.usual()]
        assert [case.dtype for case in plan.select([entry], selections)] == ["float32"]

    def test_fewer_ops_of_a_suite(self) -> None:
        """--op and --samples restrict every selection of a suite."""
        from conformance.sources.opinfo.runner import parser

        chosen = plan.selections_of(parser().parse_args("--suite main --op add --samples all".split()))
        assert {(each.ops, each.samples) for each in chosen} == {(("add",), None)}

    def test_the_longest_case_begins_first(self) -> None:
        """The times of an earlier run decide the order; a case without a time counts as average."""
        cases = [case(name) for name in ("sin", "cos", "tan", "exp")]
        seconds = {case("sin").id: 1.0, case("cos").id: 9.0, case("tan").id: 2.0}
        assert [c.op for c in longest_first(cases, seconds)] == ["cos", "exp", "tan", "sin"]

    def test_shards_are_a_partition(self) -> None:
        """Together the shards are the whole plan, and no case is in two of them."""
        whole = select(*self.CATALOG, dtypes=("float32", "int64"))
        shards = [select(*self.CATALOG, dtypes=("float32", "int64"), shard=(i, 2)) for i in (1, 2)]
        assert sorted(c.id for shard in shards for c in shard) == sorted(c.id for c in whole)

    @pytest.mark.parametrize("glob", ["ad", "linalg.pin"])
    def test_a_typo_names_what_is_near(self, glob: str) -> None:
        """An unknown op is rejected with the nearest names."""
        with pytest.raises(errors.UsageError, match=r"no op .* matches .*did you mean"):
            select(*self.CATALOG, ops=(glob,))

    def test_nothing_planned_is_an_error(self) -> None:
        """A selection without cases is a usage error, never an empty pass."""
        with pytest.raises(errors.UsageError, match="no op among those chosen supports"):
            select(*self.CATALOG, ops=("linalg*",), dtypes=("int64",))
