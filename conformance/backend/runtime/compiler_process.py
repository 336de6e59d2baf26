"""One clang process for many kernels: starting clang takes twice the processor time of compiling a small kernel.

Defines `check_output`, which replaces tinygrad's call of clang, and `end`. Importing this module installs it.
``ONE_COMPILER=0`` turns it off.

The inner command of clang (`clang -cc1`) compiles any number of inputs in order, and opens an input when its turn
comes. Here each input is a pipe, so clang waits for the next source, and writes the objects to one output. Every input
has its own translation unit, so an object is the same as that of a separate process, except for the input's name in its
symbol table. The pipes close with this process, and clang ends at the next input then.

If clang prints anything or ends early, tinygrad's own call compiles the source again, and reports the error.

This module must not depend on kernels or on the device.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shlex
import struct
import subprocess
import threading
import types

from tinygrad.helpers import getenv

from ..tinygrad_patches.patch import Patch

INPUTS = 32  # sources of one process, and descriptors
_HEADER = 64  # bytes of an ELF header


class Failed(Exception):
    """The process did not return an object for a source."""


class CompilerProcess:
    """A running `clang -cc1` with `INPUTS` inputs, all of them pipes."""

    def __init__(self, command: list[str]) -> None:
        self._inputs: list[int] = []
        reads: list[int] = []
        try:
            for _ in range(INPUTS):
                read, write = os.pipe()
                reads.append(read)
                self._inputs.insert(0, write)
            self._process = subprocess.Popen(
                [*command, "-w", "-o", "-", "-x", "c", *(f"/dev/fd/{read}" for read in reads)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=reads,
                bufsize=0,
            )
        except OSError:
            self._close_inputs()
            raise
        finally:
            for read in reads:
                os.close(read)

    @property
    def is_exhausted(self) -> bool:
        """Whether all inputs are used."""
        return not self._inputs

    def compile(self, source: bytes) -> bytes:
        """The ELF object of a C source. Raises Failed if clang ends or prints a message."""
        write = self._inputs.pop()
        try:
            with open(write, "wb", buffering=0) as pipe:
                rest = memoryview(source)
                while rest:
                    rest = rest[pipe.write(rest) :]
        except BrokenPipeError:
            raise Failed from None
        binary = self._read(b"", _HEADER)
        if binary[:6] != b"\x7fELF\x02\x01":
            raise Failed
        # LLVM writes the table of sections at the end of the object.
        (table,), (size, count) = struct.unpack_from("<Q", binary, 40), struct.unpack_from("<HH", binary, 58)
        return self._read(binary, table + size * count)

    def _read(self, binary: bytes, size: int) -> bytes:
        """The object's first `size` bytes, of which some are read already."""
        out, errors = self._process.stdout, self._process.stderr
        assert out is not None and errors is not None
        with selectors.DefaultSelector() as selector:
            for stream in (out, errors):
                selector.register(stream, selectors.EVENT_READ)
            while len(binary) < size:
                ready = [key.fileobj for key, _ in selector.select()]
                if errors in ready:
                    if os.read(errors.fileno(), 1):
                        raise Failed
                    selector.unregister(errors)  # clang ends after its last input, whose object may not be read yet
                if out in ready:
                    more = os.read(out.fileno(), size - len(binary))
                    if not more:
                        raise Failed
                    binary += more
        return binary

    def _close_inputs(self) -> None:
        while self._inputs:
            os.close(self._inputs.pop())

    def end(self) -> None:
        """End the process, and wait until its processor time is counted."""
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Close the pipes without ending the process, which belongs to another one after a fork."""
        self._close_inputs()
        self._process.returncode = self._process.returncode or 0
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


_lock = threading.Lock()
_running: dict[str, CompilerProcess] = {}  # by command: kernels with integers that may wrap have a flag of their own
_commands: dict[str, list[str] | None] = {}


def inner_command(command: list[str]) -> list[str] | None:
    """The `clang -cc1` command, without input and output, that clang would run for a command.

    None for a compiler with another command line.
    """
    key = shlex.join(command)
    if key not in _commands:
        _commands[key] = _planned_command([*command, "-###"])
    return _commands[key]


def _planned_command(command: list[str]) -> list[str] | None:
    try:
        said = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr
        words = shlex.split(said.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    if words[1:2] != ["-cc1"] or words[-5:] != ["-o", "-", "-x", "c", "-"]:
        return None
    return [word for word in words[:-5] if word != "-disable-free"]  # otherwise its memory grows with each input


def check_output(command: list[str], input: bytes) -> bytes:
    """`subprocess.check_output` for tinygrad's call of clang, which compiles the C source `input` to an ELF object.

    Raises OSError and subprocess.CalledProcessError.
    """
    if getenv("ONE_COMPILER", 1):
        inner = inner_command(command)
        if inner is not None:
            with contextlib.suppress(Failed, OSError):
                return _compiled(inner, input)
    return subprocess.check_output(command, input=input)


def _compiled(command: list[str], source: bytes) -> bytes:
    key = shlex.join(command)
    with _lock:
        if key in _running and _running[key].is_exhausted:
            _running.pop(key).end()
        if key not in _running:
            _running[key] = CompilerProcess(command)
        try:
            return _running[key].compile(source)
        except BaseException:  # an interrupt leaves half an object in the pipe
            _running.pop(key).end()
            raise


def end() -> None:
    """End the running processes; the next kernel starts another."""
    with _lock:
        while _running:
            _running.popitem()[1].end()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    while _running:
        _running.popitem()[1].forget()


Patch(
    "tinygrad.runtime.support.compiler_cpu:subprocess",
    "Each kernel starts a compiler, which takes two thirds of the time of compiling a small kernel.",
    "tests/backend/runtime/test_compiler_process.py::test_one_process_compiles_many_sources",
).apply(types.SimpleNamespace(check_output=check_output))
atexit.register(end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
