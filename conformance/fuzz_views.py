"""Generator of programs with view and in-place steps: `programs`, a Hypothesis strategy, and `Drawing`, numbered
programs.
"""

from conformance.sources.fuzzing.drawing import DTYPES, STEPS, Drawing, DrawingError, Tally, programs

__all__ = ["DTYPES", "STEPS", "Drawing", "DrawingError", "Tally", "programs"]
