"""Drawing programs of view and in-place steps: `programs`, a Hypothesis strategy, and `Drawing`, a numbered stream."""

from conformance.fuzzing.drawing import DTYPES, STEPS, Drawing, DrawingError, Tally, programs

__all__ = ["DTYPES", "STEPS", "Drawing", "DrawingError", "Tally", "programs"]
