"""Names in findings: an argument is no result, whatever its name, and each tensor of a list has its own name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.finding import minimized
from conformance.sources.operator.script import headline, script
from conformance.sources.operator.verdict import Difference

INPUTS = {"x": "float32[n]", "result": "float32[n]", "sizes": {"n": "1..9"}}
LISTS = {"tensors": ["float32[n]", "float32[n]"], "sizes": {"n": "1..9"}}
LONGER = {"x": "float32[n]", "result_size": "float32[n]", "sizes": {"n": "1..9"}}


def exp_into(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Reference that writes its argument `result`, and returns another tensor."""
    result.copy_(x.exp())
    return x.sum()


def wrong_sum(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    result.copy_(x.exp())
    return x.sum() + 1


def wrong_exp(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    result.copy_(x.exp() + 1)
    return x.sum()


def product(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return x * result


def product_that_writes(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    product = x * result
    result.fill_(3)
    return product


def product_that_aliases(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return x * result if len(x) % 2 else result.mul_(1).data


def doubled(x: torch.Tensor, result_size: torch.Tensor) -> torch.Tensor:
    return x[: len(result_size)] * 2


def doubled_that_writes(x: torch.Tensor, result_size: torch.Tensor) -> torch.Tensor:
    result_size.fill_(3)
    return x[: len(result_size)] * 2


def cat_that_writes(tensors: Any) -> torch.Tensor:
    result = torch.cat(tensors)
    tensors[1].fill_(3)
    return result


LIBRARY = torch.library.Library("names", "DEF")
LIBRARY.define("exp_into(Tensor x, Tensor(a!) result) -> Tensor")
LIBRARY.impl("exp_into", exp_into, "CPU")


def findings(request: CheckRequest) -> tuple[Any, dict[str, Difference]]:
    """The examination of a request, and its differences by check."""
    trial = examination(request)
    return trial, {one.check: one.finding for one in verdicts(trial, request) if one.finding is not None}


@pytest.mark.parametrize(("operator", "reference", "inputs", "check", "where"), [
    (wrong_sum, exp_into, INPUTS, "values", "result"),
    (wrong_exp, exp_into, INPUTS, "values", "argument result"),
    (product_that_writes, product, INPUTS, "mutation", "argument result"),
    (product_that_aliases, product, INPUTS, "aliasing", "result"),
    (doubled_that_writes, doubled, LONGER, "mutation", "result_size"),
])  # fmt: skip
def test_an_argument_is_no_result(operator, reference, inputs, check, where, standalone):
    """Findings distinguish the results from an argument named `result` or `result_size`, and so do the scripts.
    Regression test: such an argument counted as a result, and one named `result` replaced it."""
    request = CheckRequest(operator, reference=reference, inputs=inputs, checks=["values", "mutation", "aliasing"])
    trial, by_check = findings(request)
    small = minimized(trial, by_check[check])
    assert small.mismatch.where == where
    ended = standalone(script(trial, small))
    assert ended.returncode == 1 and f"{check} of {where}: expected" in ended.stdout, ended.stderr


@pytest.mark.parametrize(("operator", "reference", "inputs"), [
    (exp_into, exp_into, INPUTS), (torch.ops.names.exp_into, exp_into, INPUTS), (product, product, INPUTS),
    (doubled, doubled, LONGER),
])  # fmt: skip
def test_a_correct_operator_with_such_an_argument(operator, reference, inputs):
    checks = ["values", "layouts", "mutation", "aliasing", "reads", "writes", "unwritten", "vmap", "autocast"]
    assert findings(CheckRequest(operator, reference=reference, inputs=inputs, checks=checks))[1] == {}


def test_a_tensor_of_a_list(standalone):
    """The script names the second tensor of a list, and keeps it apart from the first one. Regression test: it named
    a variable that it did not have, or one variable stood for both."""
    trial, by_check = findings(CheckRequest(cat_that_writes, reference=torch.cat, inputs=LISTS, checks=["mutation"]))
    small = minimized(trial, by_check["mutation"])
    assert small.mismatch.where == "tensors[1]"
    ended = standalone(script(trial, small))
    assert ended.returncode == 1 and "mutation of tensors[1]: expected" in ended.stdout, ended.stderr
    assert headline(small).startswith("mutation: tensors[1]")
