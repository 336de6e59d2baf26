"""A user's script, run as a main program in this process.

Defines `run_script`, and `is_of_user`, which tells the user's files from torch and from this package.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_SPECS = [find_spec(name) for name in ("torch", "conformance")]  # without importing torch
_PACKAGES = tuple(str(Path(spec.origin).parent) for spec in _SPECS if spec is not None and spec.origin)
_PYTHON, _INSTALLED = sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]


@functools.cache
def is_of_user(file: str) -> bool:
    """Whether a file is neither torch nor this package nor Python's own library."""
    inside = file.startswith((*_PACKAGES, "<")) or (file.startswith(_PYTHON) and not file.startswith(_INSTALLED))
    return not inside


def run_script(script: Path, arguments: Sequence[str], inside: AbstractContextManager[object] | None = None) -> str:
    """Run a script as `python SCRIPT ARGUMENTS` does, in the context `inside`. Return why it failed, in one sentence,
    or the empty string. A fork that the script leaves behind ends as it does without this function. Raises
    KeyboardInterrupt."""
    before, process = (sys.modules["__main__"], sys.argv, [*sys.path]), os.getpid()
    main = ModuleType("__main__")
    main.__file__ = os.path.abspath(script)
    sys.modules["__main__"], sys.argv = main, [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        with _restored_streams(), inside or nullcontext():
            code = compile(script.read_bytes(), main.__file__, "exec", dont_inherit=True)
            exec(code, main.__dict__)  # noqa: S102 - the user asks for it
            if os.getpid() != process:
                sys.exit()
        return ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if os.getpid() != process:
            raise
        return _ending(script, error)
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def _ending(script: Path, error: BaseException) -> str:
    """Return how a script ended itself, in one sentence, or the empty string if it ended well."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return ""
        ending = f": {_short(error.code)}" if isinstance(error.code, str) else f" with exit code {error.code}"
        return f"{script} ends itself{ending}"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_of_user(frame.filename)]
    at = f", line {lines[-1].lineno} of {Path(lines[-1].filename).name}" if lines else ""
    return f"{script} fails by itself: {type(error).__name__}: {_short(error)}{at}"


def _short(text: object) -> str:
    return " ".join(str(text).split())[:200]


@contextlib.contextmanager
def _restored_streams() -> Iterator[None]:
    """Context around a script that may replace or close the standard streams. They are the former ones afterwards, and
    are opened again if the script closed them."""
    before = sys.stdout, sys.stderr
    descriptors = [os.dup(number) for number in (1, 2)]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.stdout.flush()
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout, sys.stderr = (
            open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115 - of the process
            if stream.closed
            else stream
            for number, stream in enumerate(before, 1)
        )
