"""No storage outlives its tensors, whichever operator created or read it."""

from __future__ import annotations

import gc

import pytest
import torch

import conformance.backend
from conformance.backend.lazy import calls, storage


def live() -> int:
    """Return the number of storages on the device."""
    gc.collect()
    calls.settle()  # queued calls keep their operands
    return len({id(lazy) for lazy in storage.living()})


def test_a_kept_storage_is_seen() -> None:
    """The count increases while a tensor exists and decreases after its deletion."""
    before = live()
    kept = torch.ones(3, device="tiny") + 1
    assert live() == before + 1
    del kept
    assert live() == before


def test_a_dead_storage_leaves_no_address() -> None:
    """The table of addresses does not grow in a loop, also if storages are resized."""
    live()
    before = len(storage.BY_ADDRESS)
    for n in range(20):
        torch.ones(3, device="tiny").resize_(100 * n)
    live()
    assert len(storage.BY_ADDRESS) == before


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_storage_outlives_its_tensors() -> None:
    """Every op of op_db runs on its first float32 sample. No storage remains after the deletion of its arguments and
    results."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_map

    def moved(x: object) -> object:
        return x.detach().to("tiny") if isinstance(x, torch.Tensor) else x

    def run(op: object) -> None:
        sample = next(iter(op.sample_inputs("cpu", torch.float32)))  # type: ignore[attr-defined]
        first, args, kwargs = (tree_map(moved, x) for x in (sample.input, sample.args, sample.kwargs))
        try:
            op(first, *args, **kwargs)  # type: ignore[operator]
            conformance.backend.realize()
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            pass  # op_db's own run reports failures; this test checks only leftover storages

    left = {}
    ran = 0
    gc.collect()
    gc.freeze()  # otherwise 1,300 collections traverse all objects of torch
    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu") or op.name.startswith("jiterator"):  # CUDA only
            continue
        before = live()
        run(op)
        ran += 1
        if live() != before:
            left[op.formatted_name] = live() - before
    assert ran > 600
    assert left == {}


def test_values_that_two_results_share():
    """A remembered schedule keeps no memory of its intermediate values. Formerly the recording run kept it, and the
    next runs wrote into memory that another result read."""
    rows = [torch.arange(30.0).roll(7 * k).reshape(5, 6).sin() for k in range(5)]
    results = [(x, *torch.sort(x.to("tiny"))) for x in rows]
    read = [values.cpu() for _, values, _ in results]
    for (x, _, indices), values in zip(results, read, strict=True):
        expected = torch.sort(x)
        assert torch.equal(values, expected[0])
        assert torch.equal(indices.cpu(), expected[1])


def test_a_storage_that_outlives_its_module_says_nothing(monkeypatch) -> None:
    """At the end of the interpreter the names of a module may be None already. A message of 'NoneType' object has no
    attribute 'pop' followed the last line of a test run."""
    stored = torch.ones(3, device="tiny")
    assert stored.data_ptr()
    content = storage.storage_of(stored)
    assert content.addresses
    monkeypatch.setattr(storage, "BY_ADDRESS", None)
    content.__del__()
