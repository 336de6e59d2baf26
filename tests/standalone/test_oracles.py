"""Each oracle reports its own kind of difference and no other."""

from __future__ import annotations

import pytest
import torch

from conformance.standalone.observation import Raised, observe
from conformance.standalone.oracles import compare, headline


def seen_by(want, got, **rules):
    return [mismatch.oracle for mismatch in compare(observe(want), observe(got), **rules)]


class TestMetadata:
    def test_equal_outcomes_have_no_mismatch(self):
        """Two equal trees of plain values and tensors agree."""
        tree = {"a": torch.ones(2, 3).t(), "b": [1, "x", None, torch.tensor(float("nan"))]}
        assert not compare(observe(tree), observe(tree), exact=True)

    @pytest.mark.parametrize(
        ("got", "oracles"),
        [
            (torch.zeros(2, 3, dtype=torch.float64), ["dtype"]),
            (torch.zeros(3, 2), ["shape", "stride"]),
            (torch.zeros(3, 2).t(), ["stride", "contiguity"]),
            (torch.zeros(7)[1:].view(2, 3), ["storage_offset"]),
            (torch.zeros(2, 3, requires_grad=True), ["grad"]),
            (torch.ones(2, 3), ["value"]),
            (None, ["structure"]),
            ([torch.zeros(2, 3)], ["structure", "structure"]),
        ],
    )
    def test_each_oracle_sees_its_own(self, got, oracles):
        """The oracle with the name of the difference reports it."""
        assert seen_by(torch.zeros(2, 3), got) == oracles

    def test_a_tensor_without_elements_has_no_order(self):
        """A tensor without elements has no memory order. Regression test: for meta tensors such strides were not
        judged, but `channels_last`, which follows from them, was."""
        one, two = torch.zeros(1, 0, 1, 2), torch.zeros(0).as_strided((1, 0, 1, 2), (0, 1, 0, 0))
        assert one.is_contiguous(memory_format=torch.channels_last) != two.is_contiguous(
            memory_format=torch.channels_last
        )
        assert seen_by(one, two, oracles=("shape", "significant_stride", "contiguity")) == []

    def test_strides_of_size_one_dims_count(self):
        """CPU's stride of a size-1 dimension is part of the result."""
        assert seen_by(torch.zeros(1, 3), torch.zeros(3).as_strided((1, 3), (7, 1))) == ["stride"]

    def test_strides_that_are_not_significant_can_be_left_out(self):
        """`significant_stride` ignores strides of dimensions of length 1 and of tensors without elements, and no
        others."""
        rules = {"oracles": ("shape", "significant_stride")}
        one = torch.zeros(9)
        assert seen_by(one.as_strided((1, 3), (3, 1)), one.as_strided((1, 3), (7, 1)), **rules) == []
        assert seen_by(one.as_strided((2, 0), (3, 1)), one.as_strided((2, 0), (7, 5)), **rules) == []
        assert seen_by(one.as_strided((1, 3), (3, 1)), one.as_strided((1, 3), (3, 2)), **rules) == ["stride"]

    def test_where_nothing_begins_follows_from_strides_that_mean_nothing(self):
        """The offset of an empty tensor follows from insignificant strides: `narrow(0, 1, 0)` of one row starts one row
        further. With elements, the offset counts."""
        rules = {"oracles": ("shape", "storage_offset", "significant_stride")}
        one = torch.zeros(9)
        a, b = (one.as_strided((1, 3), (stride, 1)) for stride in (3, 7))
        assert a.narrow(0, 1, 0).storage_offset() != b.narrow(0, 1, 0).storage_offset()
        assert seen_by(a.narrow(0, 1, 0), b.narrow(0, 1, 0), **rules) == []
        assert seen_by(a.narrow(0, 1, 0), b.narrow(0, 1, 0), oracles=("shape", "storage_offset")) == ["storage_offset"]
        assert seen_by(a.narrow(1, 0, 1), b.narrow(1, 1, 1), **rules) == ["storage_offset"]

    def test_alias_is_storage_identity(self):
        """A copy in place of a view, or a view in place of a copy, is reported even if all values agree."""
        a = torch.zeros(4)
        assert seen_by([a, a[:]], [a, a.clone()]) == ["alias"]
        assert seen_by([a, a.clone()], [a, a[:]]) == ["alias"]
        empty = torch.zeros(0)
        assert seen_by([empty, empty[:]], [empty, empty.clone()]) == ["alias"]

    def test_a_storage_is_named_by_what_both_sides_have(self):
        """A storage is identified by a tensor that exists on both sides. Regression test: one side raised and had no
        result (`histogramdd` on `meta`). An input that shares memory with the other side's result was an alias
        mismatch. Inputs that share a storage on one side only are still reported."""
        a, b = torch.zeros(4), torch.zeros(4)
        answered, raised = (
            observe({"result": a[:2]}, {"a": a, "b": b}),
            observe((), {"a": a, "b": b}, error=ValueError()),
        )
        for one, two in ((answered, raised), (raised, answered)):
            assert [mismatch.oracle for mismatch in compare(one, two)] == ["error"]
        shared = observe((), {"a": a, "b": a[:]}, error=ValueError())
        mismatches = [(mismatch.oracle, mismatch.where, mismatch.expected) for mismatch in compare(answered, shared)]
        assert mismatches == [("alias", "b", "b"), ("error", "the whole run", "no error")]
        written = observe((), {"a": a + 1, "b": b}, error=ValueError())
        assert [mismatch.oracle for mismatch in compare(answered, written)] == ["value", "storage", "error"]

    def test_only_the_chosen_oracles_speak(self):
        """`oracles` restricts the report."""
        assert seen_by(torch.zeros(2, 3), torch.ones(3, 2), oracles=("stride",)) == ["stride"]


class TestValues:
    def test_tolerance_is_that_of_the_dtype(self):
        """The tolerances are those of torch.testing: 1.3e-6 relative for float32, 1e-7 for float64."""
        assert seen_by(torch.tensor(1.0), torch.tensor(1.0 + 1e-6)) == []
        one, two = (torch.tensor(number, dtype=torch.float64) for number in (1.0, 1.0 + 1e-6))
        assert seen_by(one, two) == ["value"]
        assert seen_by(torch.tensor(1.0), torch.tensor(1.1), tolerance={"float32": (0.2, 0.0)}) == []
        assert seen_by(torch.tensor(1.0), torch.tensor(1.1), tolerance={"float64": (0.2, 0.0)}) == ["value"]

    def test_integers_and_bools_are_exact(self):
        """A tolerance does not apply to integers."""
        assert seen_by(torch.tensor(10**9), torch.tensor(10**9 + 1), tolerance={"int64": (1.0, 10.0)}) == ["value"]
        assert seen_by(torch.tensor([True]), torch.tensor([False])) == ["value"]

    def test_exact_means_bits(self):
        """Pure data movement must keep the sign of zero; nan equals nan."""
        zeros = torch.tensor([0.0, float("nan")])
        assert seen_by(zeros, -zeros) == []
        assert seen_by(zeros, -zeros, exact=True) == ["value"]
        assert seen_by({"a": zeros}, {"a": -zeros}, exact={"a"}) == ["value"]
        assert seen_by(zeros, zeros.clone(), exact=True) == []

    @pytest.mark.parametrize(
        "dtype",
        [torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.complex32, torch.uint16, torch.bool, torch.int8],
    )
    def test_every_dtype_can_be_compared(self, dtype):
        """Narrow and complex dtypes can be compared, both equal and different."""
        one, two = torch.ones(3).to(dtype), torch.zeros(3).to(dtype)
        assert seen_by(one, one.clone(), exact=True) == []
        assert seen_by(one, two) == ["value"]

    def test_plain_numbers(self):
        """Python numbers are compared as values, their types as structure."""
        assert seen_by([1, 2.0], [1, 2.0]) == []
        assert seen_by([1, 2.0], [2, 3.0]) == ["value", "value"]
        assert seen_by([1], [True]) == ["structure"]
        for tensor in (torch.ones(3), torch.tensor(1)):  # regression test: the comparison of 1 with 3 elements raised
            assert seen_by([1], [tensor]) == seen_by([tensor], [1]) == ["structure"]

    def test_the_detail_names_the_first_difference(self):
        """The detail has the number of differing elements and the index of the first."""
        [mismatch] = compare(observe(torch.zeros(2, 2)), observe(torch.tensor([[0.0, 0.0], [5.0, 5.0]])))
        assert "2 of 4 elements differ" in mismatch.detail and "at (1, 0): expected 0.0, got 5.0" in mismatch.detail


class TestInfiniteParts:
    def test_the_other_part_may_be_rounded(self):
        """If one part of a complex number is infinite, the other part has the usual tolerance. Regression test: a
        difference in its last digit was a mismatch."""
        want, near, far = (torch.tensor([complex(re, -float("inf"))]) for re in (4.873692, 4.873691, 4.9))
        assert not compare(observe({"x": want}), observe({"x": near}))
        assert [m.oracle for m in compare(observe({"x": want}), observe({"x": far}))][:1] == ["value"]


class TestStorage:
    def test_a_write_outside_the_view_is_seen(self):
        """The comparison includes bytes of an input's storage outside all views."""
        good, bad = torch.zeros(6), torch.zeros(6)
        bad[5] = 1
        mismatches = compare(observe((), {"a": good[1:3]}), observe((), {"a": bad[1:3]}))
        assert [mismatch.oracle for mismatch in mismatches] == ["storage"]

    def test_a_storage_of_another_size_is_seen(self):
        """The comparison includes the size of an input's storage."""
        mismatches = compare(observe((), torch.zeros(6)[:2]), observe((), torch.zeros(7)[:2]))
        assert [mismatch.oracle for mismatch in mismatches] == ["storage"]


class TestErrors:
    def test_error_types_must_agree(self):
        """Errors of the same type agree; another type, or no error, is a mismatch."""
        value, index = observe(error=ValueError("x")), observe(error=IndexError("y"))
        assert not compare(value, observe(error=ValueError("other text")))
        assert [m.oracle for m in compare(value, index)] == ["error"]
        assert [m.oracle for m in compare(value, observe(1))] == ["error"]
        assert [m.oracle for m in compare(observe(1), value)] == ["error"]

    def test_an_error_of_a_cpp_compiler_names_the_first_diagnostic(self):
        """All errors of generated C++ have one first line, so three bugs of Inductor were one pattern."""
        said = "C++ compile error\n\nx.cpp: In function ‘f’:\nx.cpp:21:42: error: no ‘to’\n   21 |"
        [mismatch] = compare(observe(1), observe(error=RuntimeError(said)), oracles={"error"})
        assert mismatch.detail == "C++ compile error: no ‘to’"
        assert headline("x.cpp:3: note: error: none\nx.cpp:4:1: error: late") == "x.cpp:3: note: error: none: late"
        assert headline(" one\ntwo: error: three") == "one"

    def test_what_was_not_come_to_is_no_missing_error(self):
        """If a device fails in step 1, a missing error in step 2 is not reported. Regression test: it was, in half of
        the findings on a device with few operators."""
        answered = observe({"step 2": Raised.of(IndexError("x"))}, {})
        failed = observe((), {}, error=NotImplementedError("no kernel"))
        assert [(mismatch.where, mismatch.actual) for mismatch in compare(answered, failed)] == [
            ("the whole run", "NotImplementedError")
        ]
        silent = observe({"step 2": "no error"}, {}, error=NotImplementedError("no kernel"))
        assert [mismatch.where for mismatch in compare(answered, silent)] == [
            "the whole run"
        ]  # its results are not observed
        assert [mismatch.where for mismatch in compare(answered, observe({"step 2": "no error"}, {}))] == ["step 2"]

    def test_not_implemented_is_never_a_pass(self):
        """An unsupported op fails even if the CPU raises a RuntimeError, or the same error."""
        missing = observe(error=NotImplementedError("no kernel"))
        for expected in (observe(error=RuntimeError("shape")), missing, observe(1)):
            assert "never a pass" in compare(expected, missing)[0].detail

    def test_a_dtype_without_a_kernel_may_be_refused_by_both(self):
        """Both sides may refuse a dtype. A target that refuses it alone, or lacks the operator, fails."""
        refused = observe(error=NotImplementedError("\"exp_cpu\" not implemented for 'Bool'"))
        assert not compare(refused, observe(error=NotImplementedError("\"exp_vml\" not implemented for 'Bool'")))
        assert compare(observe(1), refused)
        assert compare(refused, observe(error=NotImplementedError("no kernel")))


class TestGrads:
    def test_gradients_are_compared(self):
        """The gradient of a leaf input must exist and be right."""

        def run(factor):
            leaf = torch.ones(2, requires_grad=True)
            if factor:
                (leaf * factor).sum().backward()
            return observe((), {"a": leaf})

        assert not compare(run(2), run(2))
        assert [m.oracle for m in compare(run(2), run(3))] == ["grad"]
        assert [m.oracle for m in compare(run(2), run(0))] == ["grad"]
