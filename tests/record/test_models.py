"""The outcome of recorded models in words, and the joining of shards."""

from __future__ import annotations

from conformance.record.models import ModelRow, merged, sentence

RUNS = ModelRow("one", 5, 5)
STOPPED = ModelRow("two", 5, 5, {"aten::mm": 2})
BOTH = ModelRow("three", 9, 9, {"aten::mm": 2}, {f"aten::{letter}": 1 for letter in "abcdef"})


class TestRow:
    def test_its_words(self):
        """A row names at most four operators of each kind."""
        assert RUNS.outcome == "runs"
        assert STOPPED.outcome == "stopped by aten::mm (2)"
        assert BOTH.outcome.endswith("wrong in aten::a (1), aten::b (1), aten::c (1), aten::d (1), 2 more")

    def test_nothing_compared_is_no_run(self):
        """A model of which no call was compared does not run."""
        assert not ModelRow("one", 5, 0).runs
        assert ModelRow("one", 5, 0).outcome == "not run"

    def test_a_part_is_no_run(self):
        """A model runs only if each of its calls was compared."""
        part = ModelRow("one", 5, 3)
        assert not part.runs
        assert part.outcome == "no difference in these calls"


def test_the_sentence():
    assert sentence([RUNS, STOPPED, BOTH]) == "1 of 3 models run, 2 stopped, 1 wrong"
    assert sentence([RUNS, ModelRow("two", 5, 0)]) == "1 of 2 models run, 0 stopped, 0 wrong, 1 not run"
    part = ModelRow("two", 5, 3)
    assert sentence([RUNS, part]) == "1 of 2 models run, 0 stopped, 0 wrong, 1 compared in part"


def test_shards_add_up():
    """Compared calls and the counts of operators add; the number of calls is that of the model."""
    one = ModelRow("m", 9, 4, {"aten::mm": 2}, {"aten::neg": 1})
    two = ModelRow("m", 9, 5, {"aten::mm": 1}, {"aten::abs": 3})
    assert merged([[one], [two]]) == (ModelRow("m", 9, 9, {"aten::mm": 3}, {"aten::abs": 3, "aten::neg": 1}),)
