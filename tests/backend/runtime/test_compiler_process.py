"""One compiler process: it compiles what separate processes compile, and failures leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from tinygrad import Device
from tinygrad.helpers import getenv
from tinygrad.runtime.support.elf import elf_loader

import conformance.backend as backend
from conformance.backend.runtime import compiler_process
from conformance.backend.runtime.compiler_process import INPUTS, CompilerProcess
from tests.patience import wait_until

KERNEL = """
#pragma clang fp contract(off)
void k{number}(float* restrict a, long* restrict b) {{
  for (int i = 0; i < {number} + 3; i++) {{ a[i] = (a[i] * {number}.25f + 1.0f) / ((float)b[i] - 0.5f); }}
}}
"""


@pytest.fixture
def compile_(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """tinygrad's compiler, with no process at the start and at the end."""
    backend.ensure_compiler()
    compiler = Device["CPU"].renderer.compiler
    compiler_process.end()
    yield compiler.compile
    compiler_process.end()
    getenv.cache_clear()


def running() -> subprocess.Popen[bytes]:
    """The only running compiler."""
    (process,) = compiler_process._running.values()
    return process._process


def image(library: bytes) -> bytes:
    """The bytes that are loaded from an object."""
    return bytes(elf_loader(library)[0])


def test_one_process_compiles_many_sources(compile_, monkeypatch):
    """One process compiles many sources to the same code as a process for each, and a new one follows it."""
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: started.append(command) or start(command, **more))
    objects = [compile_(KERNEL.format(number=number)) for number in range(INPUTS + 2)]
    assert sum(command[1] == "-cc1" for command in started) == 2
    others = [command for command in started if command[1] != "-cc1"]
    assert all("-###" in command for command in others)  # they ask for the inner command
    monkeypatch.setenv("ONE_COMPILER", "0")
    getenv.cache_clear()
    for number in (0, 1, INPUTS - 1, INPUTS):
        assert image(compile_(KERNEL.format(number=number))) == image(objects[number])
    assert len(set(map(image, objects))) == len(objects)


def test_the_last_input_of_a_process(compile_, monkeypatch):
    """clang ends after its last input, often before the object is read. Regression test: the end counted as a failure,
    and the kernel was compiled again by another process."""
    read = CompilerProcess._read

    def late(process, binary, size):
        if process.is_exhausted:
            process._process.wait(10)
        return read(process, binary, size)

    monkeypatch.setattr(CompilerProcess, "_read", late)
    monkeypatch.setattr(subprocess, "check_output", None)  # what compiles without the process
    images = [image(compile_(KERNEL.format(number=number))) for number in range(INPUTS + 1)]
    assert len(set(images)) == INPUTS + 1


def test_each_command_has_a_process(compile_):
    """Kernels with and without a flag take turns without a new process for each."""
    compile_(KERNEL.format(number=1))
    before = running()
    wraps = "// integers wrap\n" + KERNEL
    assert image(compile_(wraps.format(number=1))) == image(compile_(KERNEL.format(number=1)))
    assert len(compiler_process._running) == 2
    assert before in [process._process for process in compiler_process._running.values()]


def test_long_sources(compile_):
    """A source and an object that are longer than a pipe holds are compiled, and so is the next one."""
    many = "int table[40000] = {" + "1, " * 40_000 + "};"
    assert len(many) > 1 << 16 < len(compile_(many))
    assert image(compile_("void g(float* a) { a[0] = 2.0f; }"))


def test_an_error_is_the_compilers(compile_, capfd):
    """A wrong source raises tinygrad's error with clang's message, and the next source is compiled."""
    compile_(KERNEL.format(number=1))
    with pytest.raises(subprocess.CalledProcessError):
        compile_("void k(float* a) { a[0] = unknown; }")
    assert "undeclared identifier" in capfd.readouterr().err
    assert compile_(KERNEL.format(number=2))[:4] == b"\x7fELF"


def test_a_killed_process_is_replaced(compile_):
    """If the process dies, the source that it should compile is compiled nevertheless."""
    compile_(KERNEL.format(number=1))
    process = running()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert compile_(KERNEL.format(number=2))[:4] == b"\x7fELF"


def test_a_fork_has_its_own_process(compile_):
    """A child compiles with a process of its own, and leaves the parent's process alone."""
    compile_(KERNEL.format(number=1))
    child = os.fork()
    if not child:
        os._exit(0 if not compiler_process._running and compile_(KERNEL.format(number=2)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    before = running()
    assert compile_(KERNEL.format(number=3))[:4] == b"\x7fELF"
    assert running() is before


def test_it_ends_with_its_owner(compile_):
    """The compiler ends when the process that started it is killed."""
    read, write = os.pipe()
    owner = os.fork()
    if not owner:
        compile_(KERNEL.format(number=4))
        os.write(write, b"%d" % running().pid)
        time.sleep(60)
        os._exit(1)
    compiler = int(os.read(read, 20))
    assert _is_clang(compiler)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    os.close(read)
    os.close(write)
    wait_until(lambda: not _is_clang(compiler), "the compiler has ended")


def _is_clang(pid: int) -> bool:
    """Whether this process exists, is no zombie, and compiles."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"-cc1" in file.read()
    except OSError:
        return False
