"""Programs that a function lists, in place of drawn ones: a campaign judges, shrinks and reports them alike.

Defines `Listed` and `listed_programs`. A number is a program, so any worker can make it again.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.program.model import Program
from conformance.record.errors import UserError
from conformance.record.shortfall import PROGRAMS


@dataclass(frozen=True)
class Listed:
    """The programs that the function `of`, MODULE:FUNCTION, returns or yields for the `arguments`.

    Files of the campaign have the name `stem`, and `noun` names its programs. `words` are the options of the command
    `module` that list the same programs."""

    of: str
    arguments: tuple[Any, ...] = ()
    stem: str = "fuzz"
    noun: str = PROGRAMS
    module: str = "conformance.fuzz"
    words: tuple[str, ...] = ()


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


def number_of(listed: Listed, most: int | None) -> int:
    """Return the number of programs that run: all, or at most `most`. Raises UserError."""
    count = len(listed_programs(listed))
    return count if most is None else min(most, count)


@functools.lru_cache(maxsize=2)
def listed_programs(listed: Listed) -> Sequence[Program]:
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
