"""Programs that a function lists, in place of drawn ones: a campaign judges, shrinks and reports them alike.

Defines `ListedPrograms` and `listed_programs`. A number is a program, so any worker can make it again.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from conformance.program.model import Program
from conformance.program.steps.op import Json
from conformance.record.errors import UserError
from conformance.record.shortfall import PROGRAMS
from conformance.run.campaign.drawing_counts import Tally


@dataclass(frozen=True)
class ListedPrograms:
    """The programs that the function `of`, MODULE:FUNCTION, returns or yields for the `arguments`. See
    `NumberedPrograms` for `stem`, `noun` and `module`. `options` are those of the command that list the same
    programs."""

    of: str
    arguments: tuple[Any, ...] = ()
    stem: str = "fuzz"
    noun: str = PROGRAMS
    module: str = "conformance.fuzz"
    options: tuple[str, ...] = ()
    endless: ClassVar[bool] = False
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def program(self, seed: int, number: int, spec: str, tally: Tally) -> Program:
        """See `NumberedPrograms.program`. Raises UserError."""
        return listed_programs(self)[number]

    def identity(self) -> dict[str, Json]:
        """See `NumberedPrograms.identity`."""
        return {"listed": self.of, "arguments": self.arguments}

    def words(self, spec: str) -> list[str]:
        """See `NumberedPrograms.words`."""
        return [*self.options]

    def environment(self) -> dict[str, str]:
        """See `NumberedPrograms.environment`."""
        return {}


SAVED_ONLY = ListedPrograms("")
"""No programs, for a plan that runs those of its corpus only."""


def find_function(of: str) -> Callable[..., Iterable[Program]]:
    """Return the function MODULE:FUNCTION, also of a module in the current folder. Raises UserError."""
    module, _, name = of.partition(":")
    sys.path.append("")
    try:
        function = getattr(importlib.import_module(module), name) if module and name else None
    except Exception as error:
        raise UserError(f"{of} cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        sys.path.remove("")
    if not callable(function):
        raise UserError(f"{of} names no function: write MODULE:FUNCTION, such as my_programs:programs")
    return function


def number_of(listed: ListedPrograms, most: int | None) -> int:
    """Return the number of programs that run: all, or at most `most`. Raises UserError."""
    count = len(listed_programs(listed))
    return count if most is None else min(most, count)


@functools.lru_cache(maxsize=2)
def listed_programs(listed: ListedPrograms) -> Sequence[Program]:
    """Return the programs by number; a function that returns a sequence may make each when it is asked for. Raises
    UserError if there is no such function, if it fails, or if it lists anything else than programs."""
    function = find_function(listed.of)
    try:
        programs = function(*listed.arguments)
        sequence = programs if isinstance(programs, Sequence) else tuple(programs)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{listed.of} lists no programs: it raises {type(error).__name__}: {error}") from error
    if not sequence or not isinstance(sequence[0], Program):
        listed_instead = f"{type(sequence[0]).__name__} objects" if sequence else "nothing"
        raise UserError(f"{listed.of} lists {listed_instead}, and not conformance.program.model.Program objects")
    return sequence
