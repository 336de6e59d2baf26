"""Reports: the result model and its forms for people (HTML, job summary) and machines (JSON, JUnit), and comparison.

Data flows in one direction: a `Run` comes in, text goes out. The modules here import no torch and run no op.
"""

from __future__ import annotations

from conformance.record.errors import ReportError
from conformance.record.result import Failure, Outcome, Result, Run, load, save

__all__ = ["Failure", "Outcome", "ReportError", "Result", "Run", "load", "save"]
