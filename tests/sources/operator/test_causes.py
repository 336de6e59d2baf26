"""One fault is one cause, with the checks that show it; two faults are two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import conformance
from conformance.sources.operator.verdict import Verdicts

MATRIX = {"x": "float32[n, m]", "sizes": {"n": "1..40", "m": "1..40"}}
CHECKS = ["values", "layouts", "blocks", "magnitudes", "specials", "reads", "replay", "repetition"]


@pytest.fixture(autouse=True)
def without_shrinking(monkeypatch):
    """No test reads the small call, and looking for it takes longer than all the rest."""
    monkeypatch.setattr("conformance.sources.operator.api.LONGEST", 0.0)


def told(operator: Any, reference: Any = torch.nn.functional.silu, **more: Any) -> tuple[str, Verdicts]:
    """The message about a wrong operator, and its verdicts."""
    with pytest.raises(AssertionError) as error:
        conformance.check(operator, reference=reference, inputs=MATRIX, **{"checks": CHECKS, **more})
    return str(error.value), error.value.verdicts


def causes(verdicts: Verdicts) -> dict[str, list[str]]:
    """The checks that show each cause."""
    found: dict[str, list[str]] = {}
    for row in json.loads(verdicts.as_json())["checks"]:
        if row["difference"]:
            found.setdefault(row["cause"], []).append(row["check"])
    return found


def test_wrong_values_are_one_cause():
    """They are wrong in each layout and size. Regression test: each check had a heading."""
    text, verdicts = told(lambda x: x * torch.sigmoid(1.01 * x))
    assert causes(verdicts) == {"values": ["values", "layouts", "blocks", "magnitudes", "specials", "replay"]}
    assert "# The same fault shows in 5 other checks: layouts, blocks, magnitudes, specials, replay" in text
    assert "# Also" not in text and "WRONG, as values" in str(verdicts)


def test_wrong_layouts_are_not_wrong_values():
    """Bytes between the elements change the result, which is the same fault."""

    def dense(x):
        flat = x.as_strided((x.numel(),), (1,), x.storage_offset())
        return (flat * torch.sigmoid(flat)).view(x.shape)

    assert causes(told(dense)[1]) == {"layouts": ["layouts", "reads"]}


def test_large_numbers_and_infinities_are_one_cause():
    """An overflow shows in both."""
    assert causes(told(lambda x: x * x.exp() / (1 + x.exp()))[1]) == {"magnitudes": ["magnitudes", "specials"]}


def test_an_overflow_beside_wrong_sizes_is_a_cause_of_its_own():
    """Regression test: values of any magnitude counted as explained by those of wrong sizes."""
    wrong = lambda x: x * x.exp() / (1 + x.exp()) * (1 + 0.01 * (x.shape[1] > 32))  # noqa: E731
    found = causes(told(wrong, checks=["blocks", "magnitudes", "specials"])[1])
    assert found == {"blocks": ["blocks"], "magnitudes": ["magnitudes", "specials"]}


def test_two_faults_are_two_causes():
    """One of nan, and one of sizes."""
    text, verdicts = told(lambda x: torch.nn.functional.silu(x.nan_to_num(nan=0.0)) * (1 + (x.shape[1] > 32)))
    assert causes(verdicts) == {"blocks": ["blocks"], "specials": ["specials"]}
    assert "# Also specials: " in text


@pytest.mark.slow
def test_a_wrong_gradient_is_one_cause():
    """Second derivatives follow from it. In a process of its own, as gradients need it."""
    code = (
        "import torch\n"
        "from tests.sources.operator.test_causes import causes, told\n"
        "class Wrong(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: (ctx.save_for_backward(x), x * x)[1])\n"
        "    backward = staticmethod(lambda ctx, grad: 2.5 * grad * ctx.saved_tensors[0])\n"
        "checks = ['values', 'gradients', 'second', 'backward', 'cotangents']\n"
        "print(causes(told(lambda x: Wrong.apply(x), torch.square, checks=checks)[1]))\n"
    )
    line, root = [sys.executable, "-c", code], Path(__file__).parents[3]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "{'gradients': ['gradients', 'second']}", done.stderr
