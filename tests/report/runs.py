"""Sample runs and results for the report tests."""

from __future__ import annotations

from typing import Any

from conformance.record import result as model
from conformance.record.measurements import CALLS, EXTENTS, KERNELS, SCHEDULED, Measurements
from conformance.record.program_stats import ProgramStats
from conformance.record.result import Failure, Finding, Outcome, Result, Run

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\x00\u202e]]>&amp;`|${{7*7}}\n::error::x"


MEASURES = {measure.name: measure for measure in (KERNELS, *CALLS, SCHEDULED, *EXTENTS)}


def result(op: str = "add", outcome: Outcome = Outcome.PASS, **changes: Any) -> Result:
    """A case; an argument with the name of a measure is its count, and `most` and `parts` those of the measurements."""
    case = Result(op, "float32", "forward", "as_sampled", outcome, family="binary", samples=3)
    counts = {name: changes.pop(name.replace(" ", "_")) for name in MEASURES if name.replace(" ", "_") in changes}
    measured = Measurements(counts, changes.pop("most", {}), changes.pop("parts", {}))
    return case.replace(measurements=measured, **changes)


def failed(op: str = "add", oracle: str = "value", **changes: Any) -> Result:
    return result(op, Outcome.FAIL, failed=1, failures=(Failure(oracle, "result", "1", "2"),), **changes)


def over(kernels: int) -> Result:
    """A case declared to run too many kernels, and otherwise right."""
    return failed(oracle="kernels").replace(outcome=Outcome.XFAIL, measurements=Measurements({"kernels": kernels}))


def run(*results: Result, **changes: Any) -> Run:
    """A run of these results, with the measures that they count."""
    offered = tuple(MEASURES[name] for name in MEASURES if any(name in one.measurements.counts for one in results))
    more = {"started": "2026-01-01T00:00:00+00:00", "measures": offered, **changes}
    return Run("tiny", list(results), {"torch": "2.13"}, **more)


def fuzz_finding(signature: str = "value / copy_ / gaps", kind: str = "FAIL", script: str = "", **more: Any) -> Result:
    """An undeclared finding, of one program unless `count` gives another number."""
    oracle, step, *rest = [*signature.split(" / "), "", ""][:4]
    finding = Finding(signature, kind, **{"number": 7, "steps": 2, **more})
    outcome = {"MEMORY": Outcome.CRASH, "INVALID": Outcome.FAIL}.get(kind) or Outcome(kind)
    failure = Failure(oracle, "a", "1", "2", script=script)
    return Result(step, "", "program", rest[0], outcome, family="writes", failures=(failure,), finding=finding)


def campaign(*findings: Result, drawn: ProgramStats | None = None, **changes: Any) -> Run:
    """A campaign on the target of `run`, with 300 programs of seed 0."""
    totals = drawn or ProgramStats((0,), 300)
    return Run(**{"target": "tiny", "results": list(findings), "drawn": totals, **changes})


def fuzz_json(*findings: Result, **changes: Any) -> dict[str, Any]:
    """A campaign's result file; the default finding occurs in 26 of 300 programs."""
    cells = {
        ("writes", "gaps", "bool"): 3,
        ("writes", "contiguous", "float32"): 37,
        ("writes", "contiguous", "bool"): 3,
    }
    drawn = ProgramStats((3,), 300, 900, avoided={"write through overlapping memory": 3}, cells=cells)
    usual = fuzz_finding(count=26, elsewhere={"tiny:clang": "agrees"}, script="print('a finding')")
    fuzz_run = campaign(*(findings or (usual,)), drawn=drawn, seconds=10.5, environment={"torch": "2.13"})
    return {**model.run_to_json(fuzz_run), **changes}
