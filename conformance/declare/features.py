"""Features that the harness itself needs and a device may lack: `FEATURES`, by name.

A missing feature costs oracles and steps that can be named, so a run states the parts that it did not judge.
`standalone/input_layout.py` lays out tensors with the remaining features. This module imports no torch, since the
process that collects results also reads the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """The oracles and steps that a device without a feature loses."""

    oracles: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    """torch's operators that are this feature. Steps of the harness (`empty_filled`) and torch's composites
    (`fill_diagonal_`) call some of them internally, and fail if the feature fails: `program/cause.py`."""


_STORAGE_STEPS = frozenset({"same_base", "shares_memory", "set_view_", "resize_filled_", "empty_filled"})

_STRIDE_STEPS = frozenset({"is_contiguous", "contiguous", "contiguous.channels_last", "reshape", "reshape_as",
                           "flatten", "ravel"})  # fmt: skip
"""Steps that return a view or a copy depending on the strides; a later write shows which."""

FEATURES = {
    "storages": Feature(frozenset({"alias", "storage"}), _STORAGE_STEPS),
    "data_ptr": Feature(steps=frozenset({"same_base", "shares_memory"})),
    "set_": Feature(steps=frozenset({"set_view_"}), operators=frozenset({"aten::set_"})),
    "as_strided": Feature(operators=frozenset({"aten::as_strided"})),
    "view_dtype": Feature(operators=frozenset({"aten::view.dtype"})),
    "data": Feature(),  # .data shares memory with its tensor
    "views": Feature(),  # a write through an ordinary view is seen in its base
    "unfold": Feature(),  # a write through unfold() is seen in its base
    "strides_kept": Feature(),  # .to() keeps the strides of a dense tensor
    "strides": Feature(frozenset({"stride", "storage_offset", "contiguity"}), _STRIDE_STEPS),
    "random": Feature(),  # manual_seed() gives torch CPU's random numbers; else their values are not judged
    "version": Feature(frozenset({"version"})),
}
"""Features by the name that a target's `lacks` and the option `without=` use."""
