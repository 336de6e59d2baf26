"""Made runs and cases that the tests of reports share."""

from __future__ import annotations

from typing import Any

from conformance.core.result import Failure, Outcome, Result, Run
from conformance.report.campaign import Campaign, Found

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\x00\u202e]]>&amp;`|${{7*7}}\n::error::x"


def result(op: str = "add", outcome: Outcome = Outcome.PASS, **changes: Any) -> Result:
    made = Result(op, "float32", "forward", "as_sampled", outcome, family="binary", samples=3)
    return made.replace(**changes)


def failed(op: str = "add", oracle: str = "value", **changes: Any) -> Result:
    return result(op, Outcome.FAIL, failed=1, failures=(Failure(oracle, "result", "1", "2"),), **changes)


def over(kernels: int) -> Result:
    """A case that is declared to run too many kernels, and is right otherwise."""
    return failed(oracle="kernels").replace(outcome=Outcome.XFAIL, kernels=kernels)


def run(*results: Result, **changes: Any) -> Run:
    return Run("tiny", list(results), {"torch": "2.13"}, started="2026-01-01T00:00:00+00:00", **changes)


def campaign(*findings: Found, **changes: Any) -> Campaign:
    """A campaign on the target of `run`, 300 programs of seed 0."""
    return Campaign(**{"target": "tiny", "seeds": (0,), "programs": 300, "findings": findings, **changes})


def fuzz_json(**changes: Any) -> dict[str, Any]:
    """What the fuzzer writes, with a finding in 26 programs."""
    finding = {"signature": "value / copy_ / gaps", "kind": "FAIL", "count": 26, "program": 7, "steps": 2,
               "mismatch": "value of a: expected 1, got 2", "elsewhere": {"tiny:clang": "agrees"},
               "script": "print('a finding')"}  # fmt: skip
    return {
        "schema": 1, "kind": "fuzz", "target": "tiny", "seed": 3, "programs": 300, "steps": 900, "seconds": 10.5,
        "failing_programs": 26, "unsupported": {}, "environment": {"torch": "2.13"},
        "avoided": {"write through overlapping memory": 3},
        "cells": {"writes": {"gaps": {"bool": 3}, "contiguous": {"float32": 37, "bool": 3}}},
        "findings": [finding], **changes,
    }  # fmt: skip
