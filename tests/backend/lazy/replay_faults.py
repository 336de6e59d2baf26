"""Faults to plant into the queue of calls, the key of steps, their replay and the donation of buffers.

Defines `FAULTS` and `planted`. A fault replaces one piece of a function's source: it drops or corrupts one part.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from conformance.backend.dispatch import deferral, queued_copies
from conformance.backend.lazy import buffer_donation, calls, evaluate, steps, storage


class Fault(NamedTuple):
    """A replacement in the source of a function."""

    difference: str  # programs with this difference find it
    function: Callable[..., Any]
    old: str  # occurs once
    new: str


_DESCRIBED, _STATE, _BESIDE = steps._described, steps._state, steps._beside
_DESCRIBE = deferral._describe_tensor

FAULTS = {
    # The key of a step.
    "no kinds": Fault("graph of a call", _DESCRIBED, "key.append(kind)", "pass"),
    "no operands": Fault(
        "operand",
        _DESCRIBED,
        "key.extend([place(storage) for storage in call.read])",
        "[place(storage) for storage in call.read]",
    ),
    "no numbers": Fault("number", _DESCRIBED, "key.extend(kind.numbers(call, data))", "kind.numbers(call, data)"),
    "no storages to compute": Fault(
        "read",
        _DESCRIBED,
        "key.append(tuple([place(storage) for storage in wanted]))",
        "[place(storage) for storage in wanted]",
    ),
    "no holders": Fault(
        "holder", _DESCRIBED, "key.append(tuple([storage.owner() is not None for storage in storages]))", "pass"
    ),
    "no dirty storages": Fault(
        "dirty", _DESCRIBED, "key.append(tuple([storage.serial in DIRTY for storage in storages]))", "pass"
    ),
    "no sizes of storages": Fault(
        "size of the storage", _DESCRIBED, "key.append((storage.nbytes, storage.device))", "key.append(storage.device)"
    ),
    "no initial contents": Fault(
        "number or buffer", _DESCRIBED, "key.append(_state(storage, buffers, lazy))", "_state(storage, buffers, lazy)"
    ),
    "pending writes are ignored": Fault("which pending write", _STATE, "raise NotReplayable", "pass"),
    "no donors of numbers": Fault("donor of a number", _STATE, "str(number), into", "str(number)"),
    "no donors of lazy values": Fault(
        "donor of a lazy value",
        _STATE,
        "if flat is None and view else None, into",
        "if flat is None and view else None",
    ),
    "no dtypes of numbers": Fault("dtype of a number", _STATE, "storage.dtype, str(number)", "str(number)"),
    "no numbers that fill": Fault("which number", _STATE, "str(number), ", ""),
    "no sign of zero": Fault("sign of a zero that fills", _STATE, "str(number), ", "number, "),
    "no dtypes of buffers": Fault("dtype of the buffer", _STATE, "return value.dtype, ", "return "),
    "no buffers": Fault(
        "shared computed buffer",
        _STATE,
        "return value.dtype, buffers.setdefault(value, len(buffers))",
        "return value.dtype, buffers.setdefault(value, len(buffers)) * 0",
    ),
    "no geometry of lazy values": Fault(
        "memory order of a lazy value",
        _STATE,
        'return "lazy", view[:3] if flat is None and view else None, into',
        'return "lazy", into',
    ),
    "no graphs": Fault("graph of a lazy value", steps._add_graphs, "key.append(graph.key)", "pass"),
    "no buffers of graphs": Fault(
        "buffer of a lazy value",
        steps._add_graphs,
        "key.extend([buffers.setdefault(b, len(buffers)) for b in graph.buffers])",
        "[buffers.setdefault(b, len(buffers)) for b in graph.buffers]",
    ),
    "other dirty storages are ignored": Fault("another dirty storage", _DESCRIBED, "raise NotReplayable", "pass"),
    "no other holders of buffers": Fault("copy", steps._add_holders, "key.append(tuple(sorted(shared)))", "pass"),
    # The lazy values beside a step.
    "no other readers": Fault("reader", _BESIDE, "if matters(content.reads):", "if False:"),
    "no readers of stored values": Fault("stored value beside", steps._stored, "return sorted(", "return [] and ("),
    "no graphs beside": Fault("stored value beside", _BESIDE, "_add_graphs(lazy, buffers, key)", "pass"),
    "values beside read no stored value": Fault(
        "stored value beside",
        steps.replay,
        "zip(storages, known.values, known.reads, strict=True)",
        "zip(step.storages, known.values, known.reads)",
    ),
    "no buffers of other readers": Fault("buffer of a reader", _BESIDE, "_add_graphs(lazy, buffers, key)", "pass"),
    # The recording and the replay.
    "a dead storage is computed": Fault("operand", steps.recorded, "s if s.owner() is not None else None", "s"),
    "operands in another order": Fault(
        "operand", steps._step, "sources = [table[b] for b in buffers]", "sources = [table[b] for b in buffers][::-1]"
    ),
    "restored values read other buffers": Fault(
        "holder",
        steps._step,
        "reads[-1] = [table[b] for b in restored[1]]",
        "reads[-1] = [table[b] for b in restored[1][::-1]]",
    ),
    "data of zeros": Fault(
        "changing number", steps.replay, "from_host(one.reshape(-1), ", "from_host(one.reshape(-1) * 0, "
    ),
    "restored values are lost": Fault("holder", steps.replay, "calls.take(left, gone)", "calls.take((), gone)"),
    "the queue is kept": Fault("operand", steps.replay, "calls.take(left, gone)", "pass"),
    # The queue.
    "reads are not marked": Fault("rows", calls.defer, "storage.queued = READ", "pass"),
    "writes are marked as reads": Fault(
        "graph of a call", calls.defer, "storage.queued = WRITTEN", "storage.queued = READ"
    ),
    "calls with readers are dropped": Fault("operand", calls.needed, "id(storage) in read or ", ""),
    "calls with holders are dropped": Fault("operand", calls.needed, " or storage.owner() is not None", ""),
    "calls in reverse": Fault("operand", calls.needed, "kept.reverse()", "pass"),
    "an index without its operands": Fault(
        "rows", calls._sliced, "wanted.update([id(storage) for storage in (*call.read, *call.written)])", "pass"
    ),
    "an index before earlier readers": Fault(
        "rows", calls._disturbs, "and place[id(call)] < last[id(storage)]", "and False"
    ),
    "a write does not wait": Fault("rows", storage.lazy_storage, "if lazy.queued:", "if lazy.queued == calls.WRITTEN:"),
    "copies without geometry": Fault(
        "strides",
        queued_copies.queued,
        "(self.dtype, size, stride, offset),",
        "(self.dtype, size, stride[::-1], offset),",
    ),
    # The description of a call.
    "calls without dtypes": Fault("dtype", _DESCRIBE, "key.append(x.dtype)", "pass"),
    "calls without shapes": Fault("rows of an operand", _DESCRIBE, "key.append(x.shape)", "pass"),
    "calls without shared storages": Fault(
        "overlap", _DESCRIBE, "key.append(storages.index(lazy) if lazy in storages else -1)", "pass"
    ),
    "calls without strides": Fault("strides", _DESCRIBE, "key.append(x.stride())", "pass"),
    "calls without offsets": Fault("offset", _DESCRIBE, "key.append(x.storage_offset())", "pass"),
    "calls without settings": Fault("default dtype", deferral.Deferred.call, "[*global_settings()]", "[]"),
    "numbers without value": Fault(
        "number",
        deferral.Prepared.numbers,
        "key.append(number if number and number == number else str(number))",
        "pass",
    ),
    "numbers without sign": Fault(
        "sign of zero", deferral.Prepared.numbers, "number if number and number == number else str(number)", "number"
    ),
    # The donation of buffers.
    "a donor that others read": Fault(
        "reader", buffer_donation.donate, "read = {i for i in stores if donors[i] in inside}", "read = set()"
    ),
    "a donor that is read at another place": Fault(
        "target", buffer_donation._rewritten, "or _at_its_place(donors[i][1], rewritten, readers)", "or True"
    ),
    "a donor that others hold": Fault("copy", evaluate._donors, "donors.pop(held, None)", "pass"),
}


def is_plantable(fault: Fault) -> bool:
    """Whether the function has the code that the fault replaces, once."""
    return inspect.getsource(fault.function).count(fault.old) == 1


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Within the block, the function has the fault. Its code object is replaced, so all references to it have it."""
    function = fault.function
    source = inspect.getsource(function).replace(fault.old, fault.new)
    if source[0] == " ":  # a method
        source = f"if True:\n{source}"
    scope = dict(function.__globals__)
    exec(compile(source, "<fault>", "exec", __future__.annotations.compiler_flag, dont_inherit=True), scope)  # noqa: S102
    code, function.__code__ = function.__code__, scope[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = code
