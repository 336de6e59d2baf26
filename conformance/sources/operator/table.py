"""The table of checks of an operator. A command line is parsed without torch, so this module must not import it.

Defines `CHECKS`, `FATAL`, `with_fatal` and `usual`. `checks` has the procedures that the rows name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A row of the table: the property that the operator must have, and the procedure that judges it. Checks that are
    not `usual` run only if they are named."""

    about: str
    procedure: str
    usual: bool = True


CHECKS: Mapping[str, Check] = {
    "values": Check("the results are those of the reference", "compare"),
    "layouts": Check("so are they for strided, offset and expanded inputs", "compare"),
    "empty": Check("and for tensors without elements", "compare"),
    "scalars": Check("and for 0-dim tensors", "compare"),
    "blocks": Check("and for sizes around vector widths and blocks, at their ends, and large together", "compare"),
    "dtypes": Check("and for samples of `like` in half precision, int64 and bool, unless it refuses them", "compare"),
    "magnitudes": Check(
        "and for values of five sizes from 1e-6 to 1e4, small rows, nearly equal values, and a zero", "compare"
    ),
    "specials": Check("and for infinities, nan, and zeros of both signs", "compare"),
    "mixed": Check("and for inputs of several dtypes, unless the operator refuses them", "compare"),
    "structure": Check("the number and kinds of the results", "compare"),
    "dtype": Check("the dtypes of the results", "compare"),
    "shape": Check("the shapes of the results", "compare"),
    "strides": Check("the strides of the results", "compare", usual=False),
    "aliasing": Check("results share memory only as the schema declares, else only as the reference's do", "compare"),
    "mutation": Check("only inputs that the schema declares, else that the reference writes, change", "compare"),
    "version": Check("each write to an input raises its version counter, which autograd relies on", "compare"),
    "globals": Check(
        "random generators, settings and functions of torch, and the reference stay as they are", "compare"
    ),
    "overlap": Check("a write to elements that share memory is refused, or that of the reference", "overlap"),
    "declared": Check("each write that the schema declares happens in some call", "declared"),
    "negative": Check("negative views of inputs, as from `x.conj().imag`, give the same", "compare"),
    "distribution": Check("results of a random operator have the reference's distribution", "distribution"),
    "accuracy": Check("errors in ulp are at most 4 times torch CPU's, for operators with such a rule", "accuracy"),
    "writes": Check("no byte outside of the operands changes", "guard"),
    "reads": Check("no byte outside of the operands is read", "guard"),
    "unwritten": Check("every element of a result is written", "fill"),
    "repetition": Check("the same call gives the same bits", "repeat"),
    "replay": Check("so does one on new values in the same memory, after many calls; a result stays", "replay"),
    "contexts": Check("results are the same without autograd, in inference mode, in another thread", "contexts"),
    "batch": Check("each entry of a batch gives the same bits alone", "batch", usual=False),
    "forbid": Check("no forbidden operator is called", "forbid", usual=False),
    "gradients": Check("gradients are those of the reference", "gradients"),
    "subsets": Check("so are they if only some inputs require a gradient", "subsets"),
    "second": Check("second derivatives are those of the reference, if both have them", "second"),
    "forward_mode": Check("derivatives of forward mode are those of the reference, if both have them", "forward_mode"),
    "backward": Check("a second pass, a write to the result, and autocast do not change gradients", "backward"),
    "cotangents": Check("gradients are the same for contiguous and strided `grad_output`", "cotangents"),
    "gradcheck": Check("gradients agree with finite differences, if the reference has none", "gradcheck"),
    "fake": Check("the fake kernel gives the metadata of the real results", "fake"),
    "symbolic": Check("the same with symbolic sizes, also at other sizes", "symbolic"),
    "compile": Check("torch.compile changes nothing", "compile"),
    "dynamic": Check("torch.compile with dynamic sizes changes nothing, also at other sizes", "dynamic"),
    "inductor": Check("torch.compile with Inductor changes nothing", "inductor", usual=False),
    "vmap": Check("vmap gives the results of a loop, for any of the inputs and dimensions", "vmap"),
    "autocast": Check("results under autocast follow the operator or the reference", "autocast"),
    "refusals": Check("calls that the reference refuses raise", "refusals", usual=False),
    "crash": Check("the process survives", "compare"),
    "hang": Check("the call ends", "compare"),
    "memory": Check("the call needs no more memory than there is", "compare"),
}

TIERS = tuple(f"specials_{name}" for name in ("zeros", "ties", "equal", "negative", "inf", "nan"))
"""Special values that calls contain; each can be excluded like a check. Numbers near the ends of a dtype are missing:
an intermediate result may overflow in one correct algorithm and not in another."""

FATAL = ("crash", "hang", "memory")
"""Checks that each procedure can fail. Their differences explain all others."""

NOT_SHOWN = "no call shows it"
"""Reason of a check for which no call was made: the inputs describe none."""

EXPLAIN = "no input shows it: describe one that does, or exclude the check with a reason"
"""The limit of such a check in a run that must be complete."""

SLOW_COMPILER = "compiling takes more than"
"""First words of the reason of a call that a compiler did not end in time, and of the calls behind it."""


def with_fatal(names: Collection[str]) -> list[str]:
    """Return checks in the order of the table, with those that their procedures can fail beside them and that have
    rows of their own: each comparison can also end the process."""
    compares = any(CHECKS[name].procedure == CHECKS[FATAL[0]].procedure for name in names)
    return [name for name in CHECKS if name in names or (compares and name in FATAL)]


def usual(batch: Mapping[str, int], forbid: Collection[str]) -> list[str]:
    """Return the checks that run if the user names none. `batch` has the batch dimensions by argument, and `forbid` the
    forbidden operators."""
    asked = {name for name, given in (("batch", batch), ("forbid", forbid)) if given}
    return [name for name, check in CHECKS.items() if check.usual or name in asked]
