"""Output of a script: it prints every differing fact with both answers, and marks no others."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.record import names
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone import oracles
from conformance.standalone.observation import Raised, observe, versions_of
from conformance.standalone.script import carried, defined
from conformance.standalone.script_runtime import compare, picture


def shown(capsys, right, wrong, *, judged=ORACLES, exact=(), device="other") -> str:
    """Output of the comparison of `right` and `wrong` as programs of a float input `a` with six elements."""

    def inputs(on):
        return {"a": torch.arange(6.0).view(2, 3).requires_grad_(right in (graded, twice))}

    compare(inputs, right, device, oracles=judged, exact=exact, transform=lambda program: wrong)
    return capsys.readouterr().out


def graded(a):
    (a * 2).sum().backward()
    return {}


def twice(a):
    (a * 4).sum().backward()
    return {}


def written(a):
    a.add_(1)
    return {}


def written_twice(a):
    a.add_(1).add_(0)
    return {}


def leaving(a):
    """Leave a level of forward-mode AD entered, as a failed compilation does."""
    torch._C._enter_dual_level()
    return {}


def raising(a):
    raise ValueError("no")


FLAT = torch.arange(6.0)


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        (
            lambda a: {"b": FLAT.long()},
            lambda a: {"b": FLAT.int()},
            "dtype of b: expected torch.int64, got torch.int32",
        ),
        (lambda a: {"b": FLAT.view(2, 3)}, lambda a: {"b": FLAT}, "shape of b: expected (2, 3), got (6,)"),
        (
            lambda a: {"b": torch.ones(2, 2).t()},
            lambda a: {"b": torch.ones(2, 2)},
            "stride of b: expected (1, 2), got (2, 1)",
        ),
        (lambda a: {"b": FLAT[2:4]}, lambda a: {"b": FLAT[2:4].clone()}, "storage_offset of b: expected 2, got 0"),
        (
            lambda a: {"b": FLAT.cfloat().conj()},
            lambda a: {"b": FLAT.cfloat().conj().resolve_conj()},
            "contiguity of b: expected contiguous conj, got contiguous",
        ),
        (
            lambda a: {"b": a.view(-1)},
            lambda a: {"b": a.flatten().clone()},
            "alias of a: expected b, got a (the first tensor seen with the same storage)",
        ),
        (
            lambda a: {"b": FLAT},
            lambda a: {"b": FLAT.clone().requires_grad_()},
            "grad of b: expected False, got True (requires_grad)",
        ),
        (written, written_twice, "version of a: expected 1, got 2 (in-place writes counted)"),
        (graded, twice, "grad of grad of a: expected [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]], got [[4.0, 4.0, 4.0]"),
        (lambda a: {"b": FLAT[:2]}, lambda a: {"b": FLAT[1:3].clone()}, "value of b: expected [0.0, 1.0], got [1.0, 2"),
        (lambda a: {"step 1": True}, lambda a: {"step 1": False}, "value of step 1: expected True, got False"),
        (lambda a: {"step 1": 1.5}, lambda a: {"step 1": 1.6}, "value of step 1: expected 1.5, got 1.6"),
        (lambda a: {"b": 1}, lambda a: {}, "structure of b: expected int, got nothing"),
        (lambda a: {}, raising, "error of the whole run: expected no error, got ValueError (no)"),
        (lambda a: {}, leaving, "error of a later jvp: expected no error, got RuntimeError (Nested forward mode AD"),
    ],
)
def test_each_fact_is_shown(right, wrong, line, capsys):
    """Each difference is printed in the harness's words, with both answers. Regression test: the script ignored
    contiguity, the count of writes and conj bits, so it printed nothing for findings of these."""
    said = shown(capsys, right, wrong)
    assert line in said
    assert "no difference" not in said
    assert "no difference here: either it is mended" in shown(capsys, right, right)


@pytest.mark.parametrize(
    ("right", "wrong", "without"),
    [
        (lambda a: {"b": FLAT[2:4]}, lambda a: {"b": FLAT[2:4].clone()}, {"alias", "storage_offset"}),
        (written, written_twice, {"version"}),
        (lambda a: {"b": torch.ones(1, 2).t()}, lambda a: {"b": torch.ones(2, 1)}, {"stride"}),
    ],
)
def test_what_is_not_judged_is_not_shown(right, wrong, without, capsys):
    """Facts that the target does not promise are not shown. Strides of single elements are not significant."""
    judged = {*ORACLES} - without | ({SIGNIFICANT_STRIDE} if "stride" in without else set())
    assert "no difference" in shown(capsys, right, wrong, judged=judged)


def test_a_rounding_within_the_tolerance_is_no_difference(capsys):
    """The tolerance applies to floats of their dtype and to plain answers, unless the bits must agree. Regression test:
    any difference in the printed text was marked."""

    def right(a):
        return {"b": torch.ones(2), "step 1": 1.0}

    def rounded(a):
        return {"b": torch.ones(2) + 1e-6, "step 1": 1.0 + 1e-7}

    assert "no difference" in shown(capsys, right, rounded)
    assert "value of b: expected [1.0, 1.0], got [1.00000095" in shown(capsys, right, rounded, exact=["b"])
    zeros = [lambda a, zero=zero: {"b": torch.tensor([zero])} for zero in (0.0, -0.0)]
    assert "value of b" in shown(capsys, *zeros, exact=["b"])
    assert "no difference" in shown(capsys, *zeros)


def test_gaps_of_inputs_alone_are_compared(capsys):
    """Memory outside the views of a result is undefined, so only inputs are compared there."""

    def gaps(value):
        return lambda a: {"b": torch.full((4,), value)[::4].fill_(1)}

    assert "no difference" in shown(capsys, gaps(2.0), gaps(3.0), judged={*ORACLES})

    def outside(a):
        a.view(-1)[5] = 9
        a.set_(a.untyped_storage(), 0, (2,), (1,))
        return {}

    def inside(a):
        a.set_(a.untyped_storage(), 0, (2,), (1,))
        return {}

    assert "storage of a: expected [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]" in shown(capsys, outside, inside)


def test_a_target_on_the_cpu_is_not_called_cpu(capsys):
    """If the device is a CPU, its side is called `target`. Regression test: both sides had one name, and the second
    picture replaced the first."""
    said = shown(capsys, lambda a: {"b": torch.ones(2, 2).t()}, lambda a: {"b": torch.ones(2, 2)}, device="cpu")
    assert "    cell           0 1 2 3\n    cpu (2, 2)     0 2 1 3\n    target (2, 2)  0 1 2 3\n" in said


class TestPicture:
    def test_gaps_overlaps_and_what_shares_a_storage(self):
        """The picture has a row of cells and, below it, the element numbers of each tensor. A dot is an empty cell, and
        a plus joins several elements."""
        places = {"a": ((3,), (2,), 1), "b": ((2, 2), (0, 1), 2), "c": ((), (), 0), "d": ((0,), (1,), 3)}
        assert picture({name: (*place, 7, None) for name, place in places.items()}).splitlines() == [
            "    cell      0 1   2   3 4 5 6",
            "    a (3,)    . 0   .   1 . 2 .",
            "    b (2, 2)  . . 0+2 1+3 . . .",
            "    c ()      0 .   .   . . . .",
            "    d (0,)    . .   .   . . . .",
        ]

    def test_it_is_bounded(self):
        """The picture is limited to 48 cells and prints the number of omitted ones."""
        first, second, more = picture({"a": ((100,), (1,), 0, 100, None)}).splitlines()
        assert first.split()[-1] == second.split()[-1] == "47"
        assert more == "    and 52 cells more"


def _strides(results, a):
    results["b"] = torch.empty_strided((2, 3), (1, 2)).copy_(results["b"])


def _offset(results, a):
    results["b"] = torch.zeros(7)[1:].view(2, 3).copy_(results["b"])


def _outside(results, a):
    a.as_strided((1,), (1,), 6).fill_(9)


def _graded(results, a):
    a.grad = torch.full_like(a, 2.0)


def _half(results, a):
    results["s"] = results["s"][:3]


def _raise(results, a):
    raise ValueError("planted")


def _absent(results, a):
    raise NotImplementedError("planted")


PLANTS = {
    "value": lambda results, a: results["b"].add_(1),
    "nan": lambda results, a: results["b"].view(-1)[0].fill_(torch.nan),
    "rounding": lambda results, a: results["b"].mul_(1 + 1e-6),
    "minus zero": lambda results, a: results["z"].neg_(),
    "dtype": lambda results, a: results.update(b=results["b"].double()),
    "shape": lambda results, a: results.update(b=results["b"].view(3, 2)),
    "stride": _strides,
    "insignificant stride": lambda results, a: results.update(n=results["n"].as_strided((1, 3), (1, 1))),
    "offset": _offset,
    "contiguity": lambda results, a: results.update(c=results["c"].conj()),
    "alias": lambda results, a: results.update(v=results["v"].clone()),
    "outside the view": _outside,
    "requires_grad": lambda results, a: results["b"].requires_grad_(),
    "grad": _graded,
    "version": lambda results, a: a.detach().add_(0) and None,
    "plain": lambda results, a: results.update(p=(1, 2.5)),
    "plain type": lambda results, a: results.update(p=(True, 2.0)),
    "plain rounding": lambda results, a: results.update(p=(1, 2.0 + 1e-7)),
    "answer that is an error": lambda results, a: results.update(e=KeyError("x")),
    "answer that is no error": lambda results, a: results.update(e="no error"),
    "absent op as an answer": lambda results, a: results.update(e=NotImplementedError("x")),
    "missing name": lambda results, a: results.pop("p"),
    "tensor for a number": lambda results, a: results.update(p=(torch.ones(()), 2.0)),
    "shorter": _half,
    "error": _raise,
    "absent op": _absent,
}


class TestAgreement:
    """The script's comparison marks exactly the differences that `oracles.compare` finds."""

    @settings(max_examples=300)
    @given(
        here=st.sets(st.sampled_from(sorted(PLANTS)), max_size=1),
        there=st.sets(st.sampled_from(sorted(PLANTS)), max_size=3),
        unjudged_oracles=st.sets(st.sampled_from(names.ORACLES), max_size=3),
        loose=st.booleans(),
        exact=st.sets(st.sampled_from(["a", "b", "z"])),
        tolerance=st.sampled_from([{}, {"float32": (0.0, 0.0)}, {"float32": (0.5, 2.0)}, {"complex64": (0.5, 2.0)}]),
    )
    def test_what_differs(self, here, there, unjudged_oracles, loose, exact, tolerance):
        """Planted differences of each oracle, alone and combined, under all rules."""
        judged = {*names.ORACLES} - unjudged_oracles | ({SIGNIFICANT_STRIDE} if loose else set())

        def inputs(device):
            flat = torch.arange(8.0)
            a = torch.empty(0).set_(flat.untyped_storage(), 0, (2, 3), (3, 1))
            return {"a": a.requires_grad_()}

        def program_of(plants):
            def program(a):
                results = {
                    "b": torch.arange(6.0).view(2, 3),
                    "z": torch.zeros(2),
                    "n": torch.ones(1, 3),
                    "s": torch.ones(4),
                }
                results |= {"c": torch.ones(2).cfloat(), "v": a.detach().view(-1), "p": (1, 2.0), "e": ValueError("x")}
                for plant in sorted(plants):
                    with torch.no_grad():
                        PLANTS[plant](results, a)
                return results

            return program

        with contextlib.redirect_stdout(io.StringIO()):
            mismatches = compare(
                inputs,
                program_of(here),
                "other",
                oracles=judged,
                exact=exact,
                tolerance=tolerance,
                transform=lambda _: program_of(there),
            )
        seen = [self.observed(inputs, program_of(plants)) for plants in (here, there)]
        wanted = oracles.compare(*seen, oracles=judged, exact=exact, tolerance=tolerance)
        raised = [mismatch for mismatch in wanted if (mismatch.oracle, mismatch.where) == ("error", oracles.WHOLE)]
        assert mismatches == (raised or wanted)

    @staticmethod
    def observed(inputs, program):
        tensors = inputs("cpu")
        versions = versions_of(tensors)
        try:
            outcome = program(*tensors.values())
        except Exception as error:
            return observe(None, tensors, error=error, versions=versions)
        answers = {key: Raised.of(value) if isinstance(value, Exception) else value for key, value in outcome.items()}
        return observe(answers, tensors, versions=versions)


def test_names_of_a_script():
    """The names that a text defines at its top level exclude the variables of its functions. Regression test: a script
    with special values lacked a function of the harness, since another function has a variable of its name."""
    text = "import torch\nDEVICE, MODE = 'cpu', None\ndef run(x):\n    places = x\nclass A:\n    b = 1\n"
    assert defined(text) == {"DEVICE", "MODE", "run", "A"}


def test_paragraphs_of_a_carried_function():
    """A carried function has the empty lines of its source. Regression test: they were lost, so the code behind an
    inner function looked like a part of it."""
    text = carried(("exported",))
    assert "or None\n\n        program, file = (torch.export.export" in text
    assert "\n\n    return call\n\n" in text
    assert "\n\n\n" not in text and "class Traced(torch.nn.Module):\n\n    def __init__" in text
