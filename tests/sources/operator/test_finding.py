"""The script of a lie: small, plain torch, exit code 1; with a correct operator in its place it ends with 0."""

from __future__ import annotations

import builtins
import functools
import symtable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.program.capture import Unwritable
from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.examine import BUDGET, SECONDS, CheckRequest, examination, verdicts
from conformance.sources.operator.finding import call_of, minimized, program_of, smaller_lengths
from conformance.sources.operator.script import headline, script
from conformance.sources.operator.verdict import Difference
from conformance.standalone.moving import tensors
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import own_part
from tests.patience import stretched
from tests.planted.kernels import LIES

QUICK = ("values", "layouts", "mutation", "reads", "unwritten", "aliasing", "dtype")


@functools.cache
def smallest(name: str):
    """The examination of a lie, and its difference in a smaller call."""
    limits = {"seconds": stretched(SECONDS), "budget": stretched(BUDGET)}
    request = CheckRequest(**{**limits, **LIES[name], "checks": [name]}, near="tests.planted.kernels")
    trial = examination(request)
    (verdict,) = [verdict for verdict in verdicts(trial, request) if verdict.check == name]
    assert verdict.finding is not None, verdict
    return trial, minimized(trial, verdict.finding)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in LIES]
)
def test_the_script_shows_the_lie(name, standalone):
    """It ends with exit code 1, or as the operator ends its process, and names the check."""
    trial, difference = smallest(name)
    text = script(trial, difference)
    ended = standalone(text)
    assert ended.returncode == (-11 if name == "crash" else 1), ended.stderr
    assert name == "crash" or any(line.startswith(f"{name} of ") for line in ended.stdout.splitlines())
    assert headline(difference).startswith(f"{name}: ") and "conformance" not in text.partition("def inputs")[0].lower()
    own = own_part(text)
    assert len(own.splitlines()) <= 25, own
    assert unknown_names(text) <= {"view_source"}  # of a device without `as_strided`


def unknown_names(text: str) -> set[str]:
    """The names that a script uses and nothing defines. A branch that no test takes may hold one."""
    table = symtable.symtable(text, "script", "exec")
    left, used = [table], set[str]()
    while left:
        scope = left.pop()
        used |= {one.get_name() for one in scope.get_symbols() if one.is_global() and one.is_referenced()}
        left += scope.get_children()
    bound = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    return used - bound - {*dir(builtins)} - {"__name__"}


RIGHT = {
    "mixed": "torch.mul",
    "structure": "kernels.halves",
    "shape": "kernels.row_sums",
    "aliasing": "torch.relu",
    "unwritten": "torch.relu",
    "mutation": "kernels.exp_plus_one",
    "version": "kernels.double_",
    "accuracy": "torch.exp",
    "gradcheck": "torch.square",
    "autocast": "kernels.gram",
    "refusals": "torch.gather",
    "strides": "torch.nn.functional.silu",
    "inductor": "torch.nn.functional.silu",
    "vmap": "torch.nn.functional.silu",
    "forward_mode": "torch.nn.functional.silu",
    "subsets": "kernels.outer",
    "distribution": "kernels.dropout",
    "declared": "kernels.double_",
    "overlap": "kernels.double_",
}
"""Correct operators in place of the lies; `right_silu` in place of the others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in LIES]
)
def test_a_correct_operator_passes_the_script(name, standalone):
    """The script of a lie, run on a correct operator, ends with exit code 0."""
    trial, difference = smallest(name)
    text = script(trial, difference)
    before, called, after = text.rpartition(f"    return {trial.operator.text}(")
    assert called and "def want" not in own_part(before)
    right = RIGHT.get(name, "kernels.right_silu")
    before = before.replace("import sys, torch", "import sys, torch\nfrom tests.planted import kernels")
    ended = standalone(f"{before}    return {right}({after}")
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert f"{name}: no difference here" in ended.stdout


def test_the_script_of_a_message(standalone):
    """It imports the check from the package in place of carrying it, so that it fits on a screen. It ends alike."""
    trial, difference = smallest("values")
    text = script(trial, difference, carry=False)
    assert len(text.splitlines()) <= 27, text
    ended = standalone(f"import sys; sys.path.append({str(Path(__file__).parents[3])!r})\n{text}")
    assert ended.returncode == 1 and "values of result: expected " in ended.stdout, ended.stderr


def errors(x):
    """Wrong operator with the name of a function that scripts carry."""
    return x * 2.01


def differing(x):
    """Reference with such a name."""
    return x * 2


def test_operators_with_names_of_carried_functions(standalone):
    """The script keeps both apart. The check's own functions get other names."""
    request = CheckRequest(errors, reference=differing, inputs={"x": "float32[3]"}, checks=["values"])
    trial = examination(request)
    (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
    text = script(trial, difference)
    assert "return errors(x)" in text and "return differing(x)" in text and "def differing_(" in text
    ended = standalone(text)
    assert ended.returncode == 1 and "values of result: expected " in ended.stdout, ended.stderr


def scaled(x, scaled):
    """An operator with an argument of its own name."""
    return x * scaled * 1.01


def test_an_argument_with_the_name_of_the_operator(standalone):
    """The argument gets another name in the script. Regression test: the script called the tensor."""
    inputs = {"x": "float32[3]", "scaled": "float32[3]"}
    request = CheckRequest(scaled, reference=torch.mul, inputs=inputs, checks=["values"])
    trial = examination(request)
    (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
    ended = standalone(script(trial, difference))
    assert ended.returncode == 1 and "values of result: expected " in ended.stdout, ended.stderr


def test_a_value_is_shrunk_to_one_element():
    """A lie about every element needs one."""
    _, difference = smallest("values")
    assert [tensor.numel() for tensor in tensors(difference.call.values)] == [1]


def test_a_layout_stays_one():
    """A smaller call of the kind `layouts` still has an input with strides or an offset."""
    _, difference = smallest("layouts")
    (x,) = tensors(difference.call.values)
    assert x.numel() <= 4 and not (x.is_contiguous() and not x.storage_offset())


def test_an_input_with_a_name_of_the_script(standalone):
    """The script has a function `inputs`, so an argument of that name gets another one there. `test_checks.py` has the
    same for gradients, which need a process of their own."""

    def double(inputs, given):
        return inputs * 2.01 + given * 0

    def reference(inputs, given):
        return inputs * 2 + given * 0

    request = CheckRequest(double, reference=reference, inputs={"inputs": "float32[3]", "given": "float32[3]"})
    trial = examination(request)
    (difference,) = (
        verdict.finding for verdict in verdicts(trial, replace(request, checks=["values"])) if verdict.finding
    )
    ended = standalone(script(trial, difference))
    assert ended.returncode == 1 and "values of " in ended.stdout, ended.stderr


def remembering(x):
    """Returns its first answer for a shape again."""
    return _ANSWERS.setdefault(x.shape, x * 2)


_ANSWERS: dict[torch.Size, torch.Tensor] = {}


def test_a_call_that_is_right_alone():
    """The sentence says that the result depends on earlier calls, since the script of one call ends with 0."""
    inputs = {"x": "float32[n]", "sizes": {"n": "1..9"}}
    request = CheckRequest(remembering, reference=lambda x: x * 2, inputs=inputs, checks=["values"])
    trial = examination(request)
    (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
    small = minimized(trial, difference)
    assert small.call is difference.call and not small.recurs
    assert "; this call alone is right: the result depends on earlier calls" in headline(small)
    assert "alone is right" not in headline(smallest("values")[1])


def test_the_sentence_of_other_checks_names_an_element():
    """Regression test: it had the first eight elements of both sides, which may be equal."""
    detail = "1 of 9 elements differ (tolerance), first at (8,): expected 1.0, got 2.0"
    call = DrawnCall("values", {"x": torch.zeros(9)}, 1)
    for text in (detail, f"the value; {detail}"):
        mismatch = Mismatch("compile", "gradient of x", f"{[0.0] * 8}", f"{[0.0] * 8}", text)
        want = "compile: 1 of 9 elements of gradient of x is wrong: gradient of x[8] should be 1.0 and is 2.0"
        assert headline(Difference("compile", mismatch, call)) == want
    long = Mismatch("reads", "result", f"{[0.25] * 50}", f"{[0.5] * 50}", "bytes in the gaps change the result")
    assert headline(Difference("reads", long, call)).endswith(" ... (bytes in the gaps change the result)")


class TestProgram:
    CALL = DrawnCall("values", {"x": torch.arange(6.0).view(2, 3), "shape": (3,), "y": None, "by": 0.5}, 2)

    def test_a_call_survives(self):
        """A call as a program and back has the same arguments."""
        args, kwargs = call_of(program_of(self.CALL), self.CALL).arguments()
        assert torch.equal(args[0], self.CALL.values["x"]) and args[1] == (3,) and kwargs == {"y": None, "by": 0.5}

    def test_lengths_shrink_in_tuples_too(self):
        """A length is cut in each tensor and tuple that has it."""
        smaller = [call_of(one, self.CALL).values for one in smaller_lengths(program_of(self.CALL))]
        assert ((2, 1), (1,)) in [(tuple(one["x"].shape), one["shape"]) for one in smaller]

    def test_two_lengths_shrink_together(self):
        """A length may be a multiple of another one, so both are halved."""
        call = DrawnCall("values", {"x": torch.zeros(64), "scales": torch.zeros(2), "shape": [2, 32]}, 3)
        smaller = [call_of(one, call).values for one in smaller_lengths(program_of(call))]
        assert (32, 1, [1, 32]) in [(len(one["x"]), len(one["scales"]), one["shape"]) for one in smaller]

    def test_an_argument_without_a_text(self):
        """Such a call is not shrunk, and its script says why."""
        with pytest.raises(Unwritable):
            program_of(DrawnCall("values", {"x": object()}, 1))
