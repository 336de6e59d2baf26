"""A sentence for every difference, and an explanation for every step or layout name that is not torch's."""

from __future__ import annotations

import pytest
import torch

from conformance.program.steps.layouts import CLASSES
from conformance.program.steps.op_db import KINDS
from conformance.program.steps.table import OPS
from conformance.record.finding import FAIL
from conformance.record.names import ORACLES, RUN_ORACLES
from conformance.record.result import Failure, Outcome, Result
from conformance.record.sentences import FORMS, LAYOUTS, headline, legend, sentence
from conformance.standalone.observation import observe
from conformance.standalone.oracles import Mismatch, compare

ELEMENT = "1 of 6 elements differ (bits), first at (3,): expected 0.0, got 5.0"

CASES = [
    ("value", "c", "[0.0]", "[1.0]", "1 of 1 elements differ (bits), first at (0,): expected 0.0, got 1.0",
     "c[0] should be 0.0 and is 1.0"),
    ("value", "c", "[]", "[0]", "2 of 6 elements differ (tolerance), first at (1, 0): expected 0.0, got nan",
     "2 of 6 elements of c are wrong: c[1, 0] should be 0.0 and is nan"),
    ("value", "c", "7.0", "8.0", "1 of 1 elements differ (bits), first of a 0-dim tensor",
     "c should be 7.0 and is 8.0"),
    ("value", "c", "[]", "[0]", f"{ELEMENT}; only when each step is computed by itself",
     "1 of 6 elements of c is wrong: c[3] should be 0.0 and is 5.0; only when each step is computed by itself"),
    ("value", "step 1[0]", "'one'", "'two'", "", "step 1[0] should be 'one' and is 'two'"),
    ("value", "c", "[0.0]", "[-0.0]", "1 zeros have the other sign, first at [0]",
     "c: 1 zeros have the other sign, first at [0]"),
    ("dtype", "c", "torch.int64", "torch.int32", "", "c should have dtype torch.int64 and has torch.int32"),
    ("shape", "c", "(2, 3)", "(6,)", "", "c should have shape (2, 3) and has (6,)"),
    ("stride", "c", "(1, 2)", "(2, 1)", "", "c should have strides (1, 2) and has (2, 1)"),
    ("storage_offset", "c", "2", "0", "", "c should begin at element 2 of its memory and begins at element 0"),
    ("contiguity", "c", "strided", "contiguous", "", "c should be not contiguous and is contiguous"),
    ("contiguity", "c", "contiguous conj", "contiguous", "", "c should be contiguous, conj and is contiguous"),
    ("alias", "c", "a", "c", "", "c should share memory with a; on the target it does not"),
    ("alias", "c", "c", "a", "", "c should have memory of its own; on the target it shares memory with a"),
    ("alias", "c", "a", "b", "", "c should share memory with a; on the target it shares memory with b instead"),
    ("storage", "a", "[]", "[0]", ELEMENT,
     "1 of 6 elements of the memory that a lies in is wrong: element 3 should be 0.0 and is 5.0"),
    ("grad", "c", "True", "False", "requires_grad", "c should require grad; on the target it does not"),
    ("grad", "c", "False", "True", "requires_grad", "c should not require grad; on the target it does"),
    ("grad", "grad of a", "none", "[1.0]", "", "a should have no gradient; on the target it has one"),
    ("grad", "grad of a", "[1.0]", "none", "", "a should have a gradient; on the target it has none"),
    ("grad", "grad of a", "[]", "[0]", ELEMENT,
     "1 of 6 elements of the gradient of a is wrong: element 3 should be 0.0 and is 5.0"),
    # Regression test: "k should be torch.int32 (8,) and is torch.int32 (1,)" did not say of what.
    ("storage", "k", "torch.int32 (8,)", "torch.int32 (1,)", "",
     "the memory that k lies in should have shape (8,) and has shape (1,)"),
    ("grad", "grad of a", "torch.float32 (2, 3)", "torch.float64 (2, 3)", "",
     "the gradient of a should have dtype torch.float32 and has dtype torch.float64"),
    ("grad", "grad of a", "torch.float32 ()", "torch.float64 (1,)", "",
     "the gradient of a should have dtype torch.float32 and shape () and has dtype torch.float64 and shape (1,)"),
    ("version", "a", "1", "2", "in-place writes counted", "a._version should grow by 1 and grows by 2"),
    ("kernels", "the whole run", "at most 5", "7", "more kernels than aten ops on CPU",
     "the run should take at most 5 kernels and takes 7: more kernels than aten ops on CPU"),
    ("structure", "c", "Tensor", "nothing", "", "c should be a Tensor, and the target gives nothing"),
    ("structure", "c", "nothing", "Tensor", "", "the target gives c, a Tensor, and torch CPU gives nothing"),
    ("structure", "c", "tuple", "list", "", "c should be a tuple and is a list"),
    ("structure", "c", "int", "Tensor", "", "c should be an int and is a Tensor"),
    ("structure", "c", "Tensor on tiny", "Tensor on cpu", "", "c should be a Tensor on tiny and is a Tensor on cpu"),
    ("error", "step 3", "no error", "RuntimeError", "boom",
     "step 3 should raise no error; on the target it raises RuntimeError: boom"),
    ("error", "the whole run", "IndexError", "no error", "out of range",
     "the run should raise IndexError; on the target it raises no error"),
    ("error", "step 3", "IndexError", "RuntimeError", "out of range | boom",
     "step 3 should raise IndexError; on the target it raises RuntimeError: boom"),
    ("error", "step 3", "no error", "NotImplementedError", "not implemented is never a pass: no aten::roll",
     "step 3 is not implemented on the target: NotImplementedError: no aten::roll"),
    ("crash", "the target", "an answer", "killed its process with SIGSEGV", "while running sample 3",
     "the target killed its process with SIGSEGV (signal 11)"),
    ("timeout", "torch CPU, not the target", "an answer", "gave no answer within 5 s", "while running sample 3",
     "torch CPU, not the target gave no answer within 5 s"),
    ("memory", "add_", "an answer", "took more memory than it may", "",
     "the target took more memory than it may at add_"),
    ("memory", "the whole run", "no error", "RuntimeError", "cannot allocate",
     "the run runs out of memory: RuntimeError: cannot allocate"),
    ("memory", "the call", "at most 3 MiB", "9 MiB", "", "the memory of the call should be at most 3 MiB and is 9 MiB"),
    ("device", "result", "xla", "cpu", "", "result should be on the device 'xla' and is on 'cpu'"),
    ("message", "the error", "out of range", "boom", "OpInfo's pattern is 'of range'",
     "the error should say what torch CPU says, and says: boom"),
    ("harness", "the harness itself", "no error", "KeyError: 1", "",
     "conformance itself failed, not the target: KeyError: 1"),
    ("not compared", "the whole case", "a comparison", "none", "no sample",
     "the whole case could not be compared: no sample"),
    ("accuracy", "result", "at most 2 ulp", "5 ulp", "torch CPU 0.5 ulp",
     "the error of result should be at most 2 ulp and is 5 ulp (torch CPU 0.5 ulp)"),
    ("power", "the fault", "40 programs", "not found", "",
     "the fault should be found within 40 programs and is not"),
    ("repro", "pytorch#1", "[7.0]", "[8.0]", "a sum is lost",
     "pytorch#1 shows (a sum is lost): should give [7.0] and gives [8.0]"),
    ("test", "test_add", "to pass", "AssertionError: x", "", "test_add should pass, and fails: AssertionError: x"),
]  # fmt: skip


class TestSentence:
    @pytest.mark.parametrize(("oracle", "where", "expected", "actual", "detail", "said"), CASES)
    def test_each_difference(self, oracle: str, where: str, expected: str, actual: str, detail: str, said: str) -> None:
        """A mismatch and its failure have the same sentence."""
        parts = (oracle, where, expected, actual, detail)
        assert sentence(Mismatch(*parts)) == said
        assert sentence(Failure(*parts)) == said

    def test_each_oracle(self) -> None:
        """Every oracle has its own form of sentence."""
        assert {*ORACLES, *RUN_ORACLES} <= {case[0] for case in CASES}

    def test_what_the_oracles_find(self) -> None:
        """The sentences parse the details that the oracles produce."""
        want, got = (observe({"c": torch.tensor(numbers)}) for numbers in ([1.0, 2.0], [1.0, 3.0]))
        text = "1 of 2 elements of c is wrong: c[1] should be 2.0 and is 3.0"
        assert [sentence(mismatch) for mismatch in compare(want, got)] == [text]
        want, got = (observe({"c": torch.tensor(number)}) for number in (1j, 2j))
        assert [sentence(mismatch) for mismatch in compare(want, got)] == ["c should be 1j and is 2j"]

    def test_without_its_answers(self) -> None:
        """A baseline keeps only the oracle and the place."""
        assert sentence(Failure("value", "result")) == "the value of result is wrong"

    def test_of_a_result(self) -> None:
        """The headline of a result without failures is its reason."""
        failed = Result(
            "add", "float32", "forward", "as_sampled", Outcome.FAIL, failures=(Failure("alias", "c", "a", "c"),)
        )
        assert headline(failed) == "c should share memory with a; on the target it does not"
        assert headline(failed.replace(failures=(), reason=FAIL)) == "FAIL: FAIL"


class TestLegend:
    def test_names_in_titles_and_signatures(self) -> None:
        """The legend explains each name once."""
        text = legend("value / relu.edge", "flaky / value / relu.edge / window")
        assert text == f"relu.edge: relu, {FORMS['edge']}; layout 'window': {LAYOUTS['window']}"
        assert legend("aliasing / op_db.many:split") == f"op_db.many:split: split {FORMS['many']}"
        assert legend("value / op_db:add") == "op_db:add: add called as op_db does"

    def test_what_torch_calls_so(self) -> None:
        """Operators of torch and error texts need no explanation."""
        assert legend("value / nn.functional.relu", "error / RuntimeError: no window", "aliasing / as_strided_") == ""

    def test_every_name_is_explained(self) -> None:
        """Every step name that differs from its operator, every way to call an op_db entry, and every layout has an
        explanation."""
        names = [name for name, op in OPS.items() if "." in name and op.call and op.call != name]
        names += [f"{kind}:add" for kind in KINDS]
        assert names and [name for name in names if not legend(name)] == []
        assert [name for name in CLASSES if not legend(f"value / add_ / {name}")] == ["contiguous"]
