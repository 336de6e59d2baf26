"""The description of inputs: what it may say, and one sentence for text that it may not."""

from __future__ import annotations

import pytest

from conformance.record.errors import UsageError
from conformance.sources.operator import calls
from conformance.sources.operator.inputs import Lengths, Number, Range, Tensor, Value, evaluated, parse


class TestParse:
    def test_every_form(self):
        """Tensors with several dtypes and expressions, ranges, numbers, values and alternatives."""
        parsed = parse(
            {
                "x": "float32/bfloat16[2*n + 1, m] | None",
                "index": "int64[k] in 0..n-1 unique",
                "dim": "int in -1..1",
                "mode": "'mean' | 'sum'",
                "plain": 3,
                "shape": "[n, 2*m]",
                "sizes": {"k": "0..n", "n": "8..64 step 8", "m": 5},
            }
        )
        assert parsed.arguments == {
            "x": (Tensor(("float32", "bfloat16"), ("2*n + 1", "m")), Value(None)),
            "index": (Tensor(("int64",), ("k",), Range("0", "n-1"), "unique"),),
            "dim": (Number("int", Range("-1", "1")),),
            "mode": (Value("mean"), Value("sum")),
            "plain": (Value(3),),
            "shape": (Lengths(("n", "2*m")),),
        }
        assert list(parsed.sizes.items()) == [
            ("n", Range("8", "64", 8)),
            ("k", Range("0", "n")),
            ("m", Range("5", "5")),
        ]

    def test_a_zero_dim_tensor(self):
        """Brackets without a size are a 0-dim tensor."""
        assert parse({"x": "float32[]"}).arguments["x"] == (Tensor(("float32",), ()),)

    @pytest.mark.parametrize(
        ("described", "said"),
        [
            ({}, "describe no argument"),
            ({"x": "float33[n]"}, "has the dtype 'float33'"),
            ({"x": "float32[n]"}, "uses the size 'n', which has no range"),
            ({"x": "int64[3]", "shape": "[n, 3]"}, "uses the size 'n', which has no range"),
            ({"x": "int64[3]", "shape": "[n.x]"}, "'n.x' is no size"),
            ({"x": "float32[width]", "sizes": {"widht": "1..2"}}, "did you mean widht"),
            ({"x": "float32[n]", "sizes": {"n": "5..2"}}, "holds no"),
            ({"x": "float32[n]", "sizes": {"n": "1..m", "m": "1..n"}}, "depend on each other"),
            ({"x": "float32[n]", "sizes": {"n": "9..m", "m": "1..4"}}, "holds no size"),
            ({"x": "float32[n]", "sizes": {"n": "1..9 step 0"}}, "the step '0'"),
            ({"x": "float32[n!]", "sizes": {"n": "1..9"}}, "is no size"),
            ({"x": "float32[f(n)]", "sizes": {"n": "1..9"}}, "is no size"),
            ({"x": "nonsense"}, "is described as 'nonsense'"),
            ({"x": "int in 3..1"}, "holds nothing"),
            ({"x": "int64[n] in 0..4 sortde", "sizes": {"n": "1"}}, "is no size"),
            ({"x": "int64[n] sorted", "sizes": {"n": "1"}}, "is sorted, which needs a range"),
            ({"x y": "int"}, "not an identifier"),
        ],
    )
    def test_a_contradiction_is_one_sentence(self, described, said):
        """The error names the argument or the size, and the fault."""
        with pytest.raises(UsageError, match=said) as error:
            parse(described)
        assert "\n" not in str(error.value)


def test_expressions():
    """Arithmetic of whole numbers."""
    assert evaluated("2 * n + m // 2 - -1", {"n": 3, "m": 5}) == 9


def test_sizes_that_begin_above_the_usual_ones():
    """Sampled sizes are small where the range allows it."""
    description = parse({"x": "float32[n]", "sizes": {"n": "16..64 step 16"}})
    sizes = {each["n"] for kind, each, *_ in calls._draws(description) if kind == calls.SAMPLED}
    assert sizes == {16}


def test_sizes_above_a_threshold():
    """The sizes of blocks reach the end of each range, also if there are too many to draw all of them.
    Regression test: none was above 1025, and of several ranges the smallest sizes were drawn."""
    sizes = {"k": "0..5000", "m": "1..9999", "n": "1..70"}
    description = parse({"x": "float32[k, m, n]", "sizes": sizes})
    drawn = [each for kind, each, *_ in calls._draws(description) if kind == calls.BLOCKS]
    assert len(drawn) <= calls.MOST[calls.BLOCKS]
    assert {5000, 9999, 70} == {max(each[name] for each in drawn) for name in sizes}
    assert min(each["m"] for each in drawn) == 1 and any(0 < each["m"] % 64 < 63 for each in drawn)


class TestLargeSizes:
    """The sizes of blocks at the ends of their ranges, and several at once."""

    @staticmethod
    def blocks(sizes: dict[str, str]) -> list[tuple[int, ...]]:
        description = parse({"x": f"float32[{', '.join(sizes)}]", "sizes": sizes})
        return [tuple(each.values()) for kind, each, *_ in calls._draws(description) if kind == calls.BLOCKS]

    def test_all_at_their_upper_ends(self):
        """Regression test: other sizes were at most 4, so a fault behind the first block in two dimensions passed."""
        assert (40, 300) in self.blocks({"n": "1..40", "m": "1..300"})

    def test_several_large_ones_at_once(self):
        drawn = self.blocks({"n": "1..500", "m": "1..500", "k": "1..500"})
        assert sum(sum(17 <= size <= 130 for size in sizes) >= 2 for sizes in drawn) >= 4

    def test_long_ranges(self):
        """Regression test: no size was above 8193."""
        assert {65535, 65537, 100_000} <= {n for (n,) in self.blocks({"n": "0..1000000"})}

    def test_inputs_stay_small(self):
        """A call whose inputs have more elements would take too long."""
        assert max(n * m for n, m in self.blocks({"n": "1..100000", "m": "1..100000"})) <= calls.LARGEST


@pytest.mark.parametrize(("count", "most", "kept"), [(3, 5, [0, 1, 2]), (9, 5, [0, 2, 4, 6, 8]), (0, 2, [])])
def test_an_even_choice(count, most, kept):
    assert calls.evenly(range(count), most) == kept
