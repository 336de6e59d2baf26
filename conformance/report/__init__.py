"""Reports: the result model and its forms for people (HTML, job summary) and machines (JSON, JUnit), and comparison.

Data flows in one direction: a `Run` comes in, text goes out. Nothing here imports torch or runs an op.
"""

from __future__ import annotations

from conformance.core.errors import ReportError
from conformance.core.result import Failure, Outcome, Result, Run, load, save

__all__ = ["Failure", "Outcome", "ReportError", "Result", "Run", "load", "save"]
