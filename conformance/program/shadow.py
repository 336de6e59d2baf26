"""The shadow: a run of a program on torch CPU, used as the reference and as the guide for drawing programs.

The shadow decides whether a step has a defined meaning. It checks the step's memory accesses, then runs the step. A
write has no defined meaning if its cells overlap each other, or overlap its operands, unless torch rejects it. A
rounding error must not reach an integer, a comparison or the bits of another dtype. So the shadow keeps a *level* for
each storage: bits only moved, whole numbers computed exactly, or rounded. Drawing, shrinking and replaying share this
check.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.engine.aten_ops import AtenOps
from conformance.engine.executor import StepFailed
from conformance.program.execute import Broken, RunningProgram
from conformance.program.model import LOOP, Program, ProgramError, fresh_names
from conformance.program.steps import layouts
from conformance.program.steps.functions import CONVERSIONS, EQUAL_OUTS
from conformance.program.steps.op import AUGMENT, COMPUTE, LOSSY, MOVE, SETITEM, VIEW, Op, Step, StepError, is_local
from conformance.program.steps.states import promises, within
from conformance.program.steps.table import OPS
from conformance.program.unsupported import traits_of
from conformance.record.errors import UserError
from conformance.standalone.moving import map_tensors, rebuild, storage_key, whole_storage
from conformance.standalone.observation import Observation

MOVED, EXACT, ROUNDED = 0, 1, 2
"""Levels of a storage: bits only moved, whole numbers computed exactly, values possibly rounded."""

LEVEL = {COMPUTE: EXACT, LOSSY: ROUNDED}


REFUSALS = ("can't be cast", "Expected out tensor to have", "single memory location", "refer to", "but found dtype")
"""Substrings of torch's error messages for an out= tensor of a wrong dtype or memory. All devices share these."""


class Undefined(StepError):
    """A step without a defined meaning. The message is the reason, used as the key of a counter."""


class Shadow(RunningProgram):
    """A program running on torch CPU, with the state that the drawing rules need for the next step.

    `levels` are levels by storage. `steps` are the recorded steps. `avoided` counts rejected steps by reason.
    `has_pieces` is True once a call has returned several views. `offer` rejects steps with a trait of `without`."""

    def __init__(self, program: Program, without: Collection[str] = ()) -> None:
        super().__init__(program)
        self.without = frozenset(without)
        self.levels: dict[int, int] = {}
        self.ends: dict[int, int] = {}  # number of defined bytes, for storages that are larger than the call's result
        self.kept: list[Any] = [tensor.untyped_storage() for tensor in self.env.values()]
        self.has_pieces = False
        self.avoided: Counter[str] = Counter()
        self.steps: list[Step] = []
        self.names = fresh_names(self.env)

    overlaps = staticmethod(layouts.overlaps_itself)

    def level(self, tensor: torch.Tensor) -> int:
        """Return the level of the tensor's storage: MOVED, EXACT or ROUNDED."""
        return self.levels.get(storage_key(tensor), MOVED)

    def fresh(self, count: int) -> tuple[str, ...]:
        """Return unused names."""
        return tuple(next(self.names) for _ in range(count))

    def exact_names(self) -> frozenset[str]:
        """Return the names of tensors whose bits must agree: nothing was computed in their storages."""
        return frozenset(name for name, tensor in self.env.items() if self.level(tensor) == MOVED)

    def answer(self) -> Reference:
        """Return the answer of torch CPU so far."""
        seen = [tensor for name, tensor in self.env.items() if not is_local(name)]
        fetched = [*seen, *(tensor.grad for tensor in seen if tensor.is_leaf and tensor.grad is not None)]
        moves = len(self.program.storages) + len({storage_key(tensor) for tensor in fetched})
        return Reference(self.observe(), self.exact_names(), moves)

    def offer(self, step: Step, aimed: bool = False, unimplemented: bool = False) -> Step | None:
        """Run a drawn step and return it as recorded, with its results' names and error; None if it has no meaning.

        `aimed` means that any error of torch CPU is a valid answer; with `unimplemented`, also that it has no kernel
        for a dtype. A rejected step is counted in `avoided` by reason and leaves the shadow unchanged. Raises Broken if
        torch fails after the step. Then the shadow is unusable, and `steps` holds the steps before."""
        try:
            if not step.out and OPS[step.op].makes:
                step = replace(step, out=self.fresh(OPS[step.op].makes))
            declared = self.judge(step)
            if declared.raises is not None and not (aimed or OPS[step.op].may_raise):
                raise Undefined("error not asked for: " + step.op)
            before = self.cells() if declared.raises is not None else None
            self.step(declared)
            if before is not None and self.cells() != before:
                raise Undefined("a refused call that had written: " + step.op)
        except Undefined as reason:
            self.avoided[str(reason)] += 1
            self.rollback()
            return None
        except Broken:
            self.avoided["torch cannot say whether a view requires grad"] += 1
            raise
        except StepFailed as failed:
            raised, after, op, why = failed.__cause__, self.cells(), OPS.get(step.op), ""
            self.rollback()
            missing = isinstance(raised, NotImplementedError) and not unimplemented
            if op is None or not (aimed or op.may_raise) or missing or raised is None:
                why = "error not asked for"
            elif op.settled and not aimed and not any(text in str(raised) for text in REFUSALS):
                why = "an error that other devices need not share"
            elif "INTERNAL ASSERT" in str(raised):  # a bug of torch that other devices need not have
                why = "torch fails an internal assertion"
            elif "allocate memory" in str(raised):  # another machine has more of it
                why = "torch runs out of memory"
            elif self.cells() != after:
                why = "a refused call that had written"
            if why:
                self.avoided[f"{why}: {step.op}"] += 1
                return None
            declared = replace(step, raises=type(raised).__name__, out=())
            # Run it again: a backward that raises midway frees tensors saved by other graphs, which `cells` misses.
            self.step(declared)
        if unwanted := traits_of(declared) & self.without:
            self.avoided[f"{min(unwanted)}: {step.op}"] += 1
            self.rollback()
            return None
        self.steps.append(declared)
        return declared

    def undo(self, count: int) -> None:
        """Restore the state after the first `count` recorded steps."""
        del self.steps[count:]
        self.rollback()

    def rollback(self) -> None:
        """Restore the state after the recorded steps, if a step ran before it was rejected.

        The step may have written, and a later backward checks the version counters."""
        if self.done == len(self.steps):
            return
        again = Shadow(self.program)
        for step in self.steps:
            again.step(step)
        own = {name: getattr(self, name) for name in ("avoided", "steps", "names", "without")}
        vars(self).update({**vars(again), **own})

    def cells(self) -> dict[str, Any]:
        """Return each tensor's geometry and the bytes of its storage."""
        return {
            name: (t.size(), t.stride(), t.storage_offset(), whole_storage(t).view(torch.uint8).tolist())
            for name, t in self.env.items()
        }

    def judge(self, step: Step) -> Step:
        """Return the step, with `raises` set if torch rejects its overlap.

        Raises Undefined if the step has no defined meaning."""
        for inner in step.inside() or (step,):
            promise(inner)
        if step.op == LOOP:
            self.dry_run(step)
            return step
        op = OPS[step.op]
        args, kwargs = self.arguments(step)
        if op.fatal is not None and op.fatal(args, kwargs):
            raise Undefined("torch CPU answers by chance, or would end the process")
        hazard = self.hazard(op, args, kwargs)
        if hazard is None:
            return step
        args, kwargs = copied((args, kwargs))
        try:
            within(step.under, self.device, lambda: op.run(args, kwargs))
        except UserError:
            raise
        except Exception as error:  # functions of torch in Python refuse by any type, such as AssertionError
            if not isinstance(error, RuntimeError) or "memory" not in str(error):
                raise Undefined(hazard) from error
            return replace(step, raises=type(error).__name__, out=())
        raise Undefined(hazard)

    def dry_run(self, loop: Step) -> None:
        """Run a loop on copies and check each call. Raises Undefined if a call has no defined meaning."""
        copy = Shadow(replace(self.program, storages=(), inputs=(), steps=()))
        copy.env = copied(self.env)
        copy.levels = {storage_key(copy.env[name]): self.level(tensor) for name, tensor in self.env.items()}
        ends = {storage_key(copy.env[name]): self.ends.get(storage_key(t)) for name, t in self.env.items()}
        copy.ends = {key: end for key, end in ends.items() if end is not None}
        for turn in range(loop.times):
            for inner in loop.inside():
                hazard = copy.hazard(OPS[inner.op], *copy.arguments(inner, turn))
                if hazard:
                    raise Undefined(hazard)
                try:
                    copy.perform(inner, turn)
                except UserError:
                    raise
                except Exception as error:
                    raise Undefined(f"error not asked for: {inner.op} in a loop") from error

    def hazard(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> str | None:
        """Return the reason why the call's result is undefined, or None."""
        if op.settled and any(self.level(read) == ROUNDED for read in _tensors([args, kwargs])):
            return "decided by rounded values"
        if op.effect != VIEW and not op.name.startswith(CONVERSIONS):
            wanted = next((value for value in [*args, *kwargs.values()] if isinstance(value, torch.dtype)), torch.bool)
            floats = [read for read in _tensors([args, kwargs]) if read.dtype.is_floating_point]
            exact = wanted.is_floating_point or wanted.is_complex or wanted is torch.bool
            if not exact and not all(self.converts(read, wanted) for read in floats):
                return "float to integer"
        for written in destinations(op, args, kwargs):
            constant = op.constant or (op.name == "setitem" and not isinstance(args[2], torch.Tensor))
            if not constant and layouts.overlaps_itself(written):
                return "write through overlapping memory"
            reads = _tensors([args, kwargs])
            own = next((at for at, read in enumerate(reads) if read is written), None)
            for at, read in enumerate(reads):
                itself = at == own or (op.form in (SETITEM, AUGMENT) and at == 0)
                harmless = itself or (op.pointwise and layouts.geometry(read) == layouts.geometry(written))
                if not harmless and layouts.overlap(read, written):
                    return "write over what is read"
            for read in reads:
                to_integer = not (written.dtype.is_floating_point or written.dtype.is_complex)
                if read.dtype.is_floating_point and to_integer and not self.converts(read, written.dtype):
                    return "float to integer"
        return None

    def converts(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        """Return whether converting these floats to this integer dtype is defined and no rounding error enters."""
        if self.level(tensor) == ROUNDED or not tensor.isfinite().all():
            return False
        if dtype is torch.bool or not tensor.numel():
            return True
        info, values = torch.iinfo(dtype), tensor.detach().double()
        return bool((values >= info.min).all() and (values <= min(info.max, 2**52)).all())

    def perform(self, step: Step, i: int = 0) -> None:
        """Run the step and update the levels. Raises Undefined if the result turns out to be undefined."""
        if step.op == LOOP:
            super().perform(step, i)
            return
        op = OPS[step.op]
        args, kwargs = self.arguments(step, i)
        before = [(tensor, storage_key(tensor)) for tensor in _tensors([args, kwargs])]
        held = {key: whole_storage(tensor).clone() for tensor, key in before} if op.settled else {}
        written = destinations(op, args, kwargs)
        level = max((self.levels.get(key, MOVED) for _, key in before), default=MOVED)
        level = max(level, LEVEL.get(op.effect, MOVED))
        if op.effect == MOVE and any(read.dtype != to.dtype for to in written for read, _ in before):
            level = max(level, EXACT)
        sizes = [(to, to.size(), to.untyped_storage().nbytes()) for to in written if op.writes == "out"]
        super().perform(step, i)
        results = [self.env[name] for name in step.out if name in self.env]
        # First, since the checks below read memory, which these tensors do not have: torch accepts some of them.
        if any(tensor.is_meta for tensor in (*results, *_tensors([args, kwargs]))):
            raise Undefined("a tensor without values that torch accepts")
        resized = [to for to, size, _ in sizes if size.numel() and to.size() != size]
        if resized and not op.settled:
            raise Undefined("out= of another size, which torch is about to refuse")
        if op.settled:
            written += self._written_too(before, held, written, resized)
            if any(to.storage_offset() * to.element_size() > count for to, _, count in sizes):
                raise Undefined("a storage that grows beside the result")
        self.kept += [tensor.untyped_storage() for tensor in results]
        old = {key for _, key in before}
        pieces = len(results) > 1 and any(storage_key(tensor) in old for tensor in results)
        self.has_pieces |= (op.effect == VIEW and op.results != 1) or (op.settled and pieces)
        coarsest = max((precision(read) for read, key in before if self.level(read) == ROUNDED), default=0.0)
        if op.effect == LOSSY and op.writes == "out":  # computed in the dtype of the operands, not of `out`
            operands = [read for read, _ in before if not any(read is to for to in written)]
            coarsest = max(coarsest, min(filter(None, map(precision, operands)), default=precision(torch.empty(()))))
        for tensor in [*written, *(tensor for tensor in results if storage_key(tensor) not in old)]:
            key = storage_key(tensor)
            self._raise_level(op, tensor, key, level, coarsest)
            if key not in old and op.effect != VIEW and tensor.untyped_storage().nbytes() > layouts.end(tensor):
                self.ends[key] = max(self.ends.get(key, 0), layouts.end(tensor))
        if self.ends and any(layouts.end(t) > self.ends.get(storage_key(t), sys.maxsize) for t in self.env.values()):
            raise Undefined("memory beside a result, of which torch promises nothing")

    def _written_too(
        self,
        before: list[tuple[torch.Tensor, int]],
        held: dict[int, torch.Tensor],
        written: list[torch.Tensor],
        resized: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Return the operands that a call wrote beside its destinations. Running averages are written, but neither the
        schema nor the version counter shows it."""
        changed = [tensor for tensor, key in before if not torch.equal(_bits(whole_storage(tensor)), _bits(held[key]))]
        unnamed = [tensor for tensor in changed if not any(storage_key(tensor) == storage_key(to) for to in written)]
        keys = [key for _, key in before]
        if any(keys.count(storage_key(to)) > 1 or layouts.overlaps_itself(to) for to in [*unnamed, *resized]):
            raise Undefined("write over what is read")
        return unnamed

    def _raise_level(self, op: Op, tensor: torch.Tensor, key: int, level: int, coarsest: float) -> None:
        """Raise the level of the storage of a tensor that a call wrote or returned. `coarsest` is the lowest precision
        of the rounded operands."""
        reached = level if level != EXACT or exactly_whole(tensor) else ROUNDED
        if op.settled and not precision(tensor):
            reached = EXACT
        if 0 < precision(tensor) < coarsest:
            raise Undefined("rounded values in a dtype that rounds less")
        self.levels[key] = max(self.levels.get(key, MOVED), reached)
        if self.levels[key] == ROUNDED and any(
            other.dtype != tensor.dtype and storage_key(other) == key for other in self.env.values()
        ):
            raise Undefined("rounded values, or nan, seen as bits of another dtype")


POSITION_OF_DIM = {"topk": 2, "kthvalue": 2, "sort": 1, "argsort": 1, "median": 1, "nanmedian": 1, "mode": 1}
"""Where the dimension stands among the arguments of a function that returns positions of elements."""


def find_open_order(program: Program) -> int:
    """Return the number of the first step whose answer depends on an order that torch leaves open, of equal elements or
    of reads and writes; 0 if there is none:

    torch.topk(torch.zeros(4), 2)  # any two of the four positions are right
    torch.take_along_dim(a[:, ::2], index, 0, out=a[:, ::2])  # may write an element before it reads it
    """
    shadow = Shadow(program)
    for number, step in enumerate(program.steps, 1):
        if step.op in OPS and step.raises is None:
            op = OPS[step.op]
            # Torch refuses an out= that the call reads elsewhere, but sees none with gaps in this operator.
            reads_written = op.family == EQUAL_OUTS and op.call == "take_along_dim"
            if reads_written or _chooses_among_equals(op, *shadow.arguments(step)):
                return number
        shadow.step(step)
    return 0


def _chooses_among_equals(op: Op, args: list[Any], kwargs: dict[str, Any]) -> bool:
    name = (op.call or op.name).removeprefix("Tensor.").rstrip("_")
    if name not in POSITION_OF_DIM or kwargs.get("stable") or not isinstance(args[0], torch.Tensor):
        return False
    at, whole = POSITION_OF_DIM[name], name in ("median", "nanmedian")  # without a dimension they return a value alone
    dim = kwargs.get("dim", args[at] if len(args) > at else None if whole else -1)
    if not isinstance(dim, int) or not args[0].dim():
        return False
    return bool((args[0].detach().sort(dim).values.diff(dim=dim) == 0).any())


def promise(step: Step) -> None:
    """Check that torch defines the step's result under its states. Raises Undefined if not."""
    needed = OPS[step.op].needs
    if needed and needed not in step.under:
        raise Undefined(f"without the state that it needs: {step.op}")
    if not all(promises(name, step.op) for name in step.under):
        raise Undefined("a state that promises nothing of the step")


def destinations(op: Op, args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that the call writes; for `a[basic index] = ...` the view that the index selects."""
    if op.writes is None:
        return []
    if op.writes == "out":
        return _tensors(kwargs.get("out"))
    written = args[int(op.writes)]
    if op.form in (SETITEM, AUGMENT) and isinstance(written, torch.Tensor):
        try:
            view = written.detach()[args[1]]
        except (IndexError, TypeError, ValueError, RuntimeError):
            return [written]
        return [view] if storage_key(view) == storage_key(written) else [written]
    return _tensors(written)


def precision(tensor: torch.Tensor) -> float:
    """Return the distance from 1 to the next number of the dtype; 0 for integers and bool."""
    dtype = tensor.dtype
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _bits(storage: torch.Tensor) -> torch.Tensor:
    return storage.view(torch.uint8)


def exactly_whole(tensor: torch.Tensor) -> bool:
    """Return whether all values are whole numbers or halves, in the range where the dtype is exact."""
    if not precision(tensor):
        return True
    parts = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    # A dtype represents every whole number up to 2 / eps.
    return bool(((2 * parts == (2 * parts).round()) & (parts.abs() < 1 / precision(tensor))).all())


def copied(tree: Any) -> Any:
    return rebuild(map_tensors(tree, torch.Tensor.detach), lambda flats: [flat.clone() for flat in flats])


def _tensors(tree: Any) -> list[torch.Tensor]:
    result: list[torch.Tensor] = []
    map_tensors(tree, result.append)
    return result


@dataclass(frozen=True)
class Reference:
    """Answer of torch CPU for a program: the observation, the names that must agree bit by bit, and the number of
    storages that a device receives or gives back."""

    observation: Observation
    exact: frozenset[str]
    moves: int = 0


def reference(program: Program) -> Reference:
    """Return the answer of torch CPU.

    Raises ProgramError if a step has no defined meaning, or raises another error than it declares. Such a program
    cannot test a target."""
    shadow = Shadow(program)
    try:
        for number, step in enumerate(program.steps, 1):
            judged = shadow.judge(step)
            if judged.raises not in (step.raises, None):
                raise ProgramError(f"step {number} ({step.op}) raises {judged.raises} on CPU, which it does not say")
            shadow.step(step)
            answer = shadow.answers.get(f"step {number}")
            kind = getattr(answer, "kind", None)
            if step.raises is not None and kind != step.raises:
                raise ProgramError(
                    f"step {number} ({step.op}) declares {step.raises}, but on CPU there is {kind or 'no error'}"
                )
    except StepFailed as failed:
        raise ProgramError(
            f"{failed} raises {type(failed.__cause__).__name__} on CPU, which it does not declare: "
            f"{str(failed.__cause__).partition(chr(10))[0]}"
        ) from failed
    except Undefined as reason:
        raise ProgramError(f"step {number} has no defined meaning: {reason}") from reason
    except (StepError, RuntimeError, OverflowError) as error:  # a constant outside its dtype raises the last two
        raise ProgramError(f"step {number}: {error}") from error
    return shadow.answer()


def references_after_each_step(program: Program) -> Iterator[Reference]:
    """Yield the answer of torch CPU after each step of a program with a defined meaning."""
    shadow = Shadow(program)
    for step in program.steps:
        shadow.step(step)
        yield shadow.answer()


def aten_ops_of(program: Program) -> int | None:
    """Return how many aten ops that compute or move data torch CPU runs for the program; None if the run fails.

    The count uses a separate run without observations. Under a dispatch mode some composites take other paths, and
    views made in inference mode do not require grad."""
    ops = AtenOps()
    if program.given:
        running = RunningProgram(program)
        with ops:
            running.run(program.steps)
        return ops.total + len(running.drawn)  # which a device receives
    return ops.total if _Counted(program, ops).run(program.steps) else None


class _Counted(RunningProgram):
    """A running program that counts the aten ops of its calls and of entering states."""

    def __init__(self, program: Program, ops: AtenOps) -> None:
        super().__init__(program)
        self.ops = ops

    def within(self, step: Step, call: Callable[[], Any]) -> Any:
        """Return the result of the call under the step's states, with its aten ops counted."""

        def counted() -> Any:
            with self.ops:
                return call()

        if "thread" in step.under:  # a mode is local to its thread
            return super().within(step, counted)
        with self.ops:
            return super().within(step, call)
