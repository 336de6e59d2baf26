"""Find a C compiler for tinygrad's CPU device, and set ``CC`` to it before that device opens.

Defines `ensure_compiler`, the `Compiler` it returns and the `ToolchainError` it raises, and `ensure_kernel_cache`.

The ``ziglang`` wheel contains an unmodified clang (``zig clang``), which accepts tinygrad's command line, cross target
included. tinygrad's ``CC`` is a single word without a sub-command, so a two-line launcher script calls ``zig clang``.
With it, any machine with pip can compile kernels.

A compiler is usable if it compiles `PROBE`; its name and version do not matter.

This module must not depend on torch, tinygrad's objects or other parts of the device, because it runs before them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Compiler", "ToolchainError", "ensure_compiler", "ensure_kernel_cache"]

# tinygrad devices that may work without a C compiler: they start one only to read a constant tensor, which has no
# device (tinygrad then opens its CPU device). CPU starts one with any renderer, for four helper programs. AMD and QCOM
# submit their work through small CPU programs.
COMPILER_OPTIONAL = frozenset({"CUDA", "METAL", "NV", "CL", "WEBGPU", "PYTHON", "NULL"})

# Features of tinygrad's kernels beyond plain C: clang's vector types, half and, missing before clang 15, bfloat16.
PROBE = """
typedef float float4 __attribute__((aligned(16), ext_vector_type(4)));
void probe(float4 *restrict a, __fp16 *restrict b, __bf16 *restrict c, _Bool *restrict d) {
  a[0] = a[1] * (float4){1.0f, 2.0f, 3.0f, 4.0f};
  a[2].x = __builtin_sqrtf((float)c[0]) + (float)b[0];
  d[0] = a[2].x < __builtin_inff();
}
"""
PROBE_SECONDS = 60

ARCHITECTURES = {
    "amd64": ("x86_64", ["-march=native"]),
    "x86_64": ("x86_64", ["-march=native"]),
    "aarch64": ("arm64", ["-ffixed-x18", "-mcpu=native"]),
    "arm64": ("arm64", ["-ffixed-x18", "-mcpu=native"]),
    "riscv64": ("riscv64", ["-march=rv64g"]),
}


class ToolchainError(RuntimeError):
    """No usable C compiler; the message is one sentence with the package to install."""


@dataclass(frozen=True)
class Compiler:
    """A compiler that has compiled the probe: `kind` is CC, clang or zig; `path` is the executable named in ``CC``."""

    kind: str
    path: str
    version: str


def ensure_compiler() -> Compiler | None:
    """Set ``CC`` to the first usable of: the user's ``CC``, clang on the PATH, the ``ziglang`` wheel.

    Also ensures that compiled kernels can be stored, see `ensure_kernel_cache`. Warns if the user's ``CC`` is set and
    unusable. If no compiler is usable, raises ToolchainError, or returns None if ``DEV`` selects a device which may
    work without one.
    """
    ensure_kernel_cache()
    wanted = os.environ.get("CC", "")
    compiler = next(_usable(wanted), None)
    if compiler is None:
        if _selected_device(os.environ.get("DEV", "")) in COMPILER_OPTIONAL:
            return None
        raise ToolchainError(
            "tinygrad's CPU device needs a C compiler and none was found that can compile __bf16: run "
            "`pip install ziglang`, which brings one, or install clang 15 or newer, or name one in CC, or "
            "choose another device in DEV."
        )
    if wanted and compiler.kind != "CC" and wanted != compiler.path:
        warnings.warn(f"CC={wanted} cannot compile tinygrad's kernels; using {compiler.path} instead", stacklevel=2)
    os.environ["CC"] = compiler.path
    if helpers := sys.modules.get("tinygrad.helpers"):
        helpers.getenv.cache_clear()  # tinygrad caches the values that it reads from the environment
    return compiler


def ensure_kernel_cache() -> Path:
    """tinygrad's file for compiled kernels: its default, or ``CACHEDB`` set to a temporary file if that is not
    writable.

    Without a writable home directory, every kernel would fail. Must run before tinygrad opens a device.
    """
    usual = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    path = Path(os.environ.get("CACHEDB") or Path(os.environ.get("XDG_CACHE_HOME") or usual, "tinygrad", "cache.db"))
    if not _writable(path):
        path = _temporary_folder() / "tinygrad.db"
        os.environ["CACHEDB"] = str(path)
        if helpers := sys.modules.get("tinygrad.helpers"):
            vars(helpers)["CACHEDB"] = str(path)  # tinygrad read it from the environment at import
    return path


def _writable(path: Path) -> bool:
    """Whether this file can be created or changed; creates its folder."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
    return False


def _selected_device(dev: str) -> str:
    """The device of tinygrad's ``DEV``, written ``[interface+]DEVICE[:renderer[:arch]][;...]``; empty for "any"."""
    return dev.split(";")[0].rpartition("+")[2].partition(":")[0].upper()


def _usable(wanted: str) -> Iterator[Compiler]:
    """Usable compilers, best first; each one is probed only when the caller requests it."""
    launchers = {str(launcher) for launcher in _launcher_paths()}  # inherited from a parent process which chose zig
    if wanted and wanted not in launchers:
        yield from _probed("CC", wanted)
    yield from _probed("clang", "clang")
    for launcher in _launcher_paths():
        # The source is generated: warnings about it do not help users, and would appear in their output.
        if _written(launcher, f'#!/bin/sh\nexec {shlex.quote(str(_zig()))} clang -w "$@"\n'):
            yield from _probed("zig", str(launcher), key=_zig())


def _zig() -> Path | None:
    """The executable in the installed ``ziglang`` wheel, found without importing it."""
    spec = importlib.util.find_spec("ziglang")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((Path(folder) / "zig" for folder in folders if (Path(folder) / "zig").exists()), None)


def _launcher_paths() -> list[Path]:
    """Possible paths of the launcher, one file for each zig so that virtual environments do not conflict."""
    zig = _zig()
    if zig is None or os.name != "posix":
        return []
    name = f"zig-clang-{hashlib.sha256(str(zig).encode()).hexdigest()[:12]}"
    return [folder / name for folder in _cache_folders()]


def _cache_folders() -> list[Path]:
    """Folders for this user's cache, best first: the usual one, then one in the temporary directory."""
    with contextlib.suppress(RuntimeError):  # no home directory
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return [home / "conformance", _temporary_folder()]
    return [_temporary_folder()]


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"conformance-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _written(path: Path, text: str) -> bool:
    """Make `path` an executable file with this text, in a folder of this user; False if that is not possible."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid") and path.parent.stat().st_uid != os.getuid():
            return False  # another user could change a file that this process executes
        if path.is_file() and path.read_text() == text:
            return True
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.chmod(beside, 0o700)
            os.replace(beside, path)
        except OSError:
            os.unlink(beside)
            raise
    except OSError:
        return False
    return True


def _probed(kind: str, name: str, key: Path | None = None) -> Iterator[Compiler]:
    """Yield the compiler if it compiles the probe; the result is stored on disk while the executable stays the same."""
    path = shutil.which(name)
    if path is None:
        return
    stat = os.stat(key or path)
    flags = _flags()
    identity = json.dumps([path, str(key), stat.st_size, stat.st_mtime_ns, PROBE, flags])
    answer = f"probe-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.txt"
    version = _remembered(answer) or _version_if_it_compiles(path, flags)
    if version is not None:
        any(_written(folder / answer, version) for folder in _cache_folders())
        yield Compiler(kind, path, version)


def _remembered(answer: str) -> str | None:
    """The result of an earlier probe, from the first cache folder that holds it."""
    for folder in _cache_folders():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (folder / answer).read_text()
    return None


def _flags() -> list[str]:
    """tinygrad 0.14's own command line (runtime/support/compiler_cpu.py), so that the probe has the same
    requirements.
    """
    machine = platform.machine().lower()
    target, arch = ARCHITECTURES.get(machine, (machine, []))
    fixed = ["-c", "-x", "c", "-O2", "-fPIC", "-ffreestanding", "-fno-math-errno", "-nostdlib", "-fno-ident"]
    return [*fixed, f"--target={target}-none-unknown-elf", *arch, "-", "-o", "-"]


def _version_if_it_compiles(path: str, flags: list[str]) -> str | None:
    """The first line of ``--version`` of a compiler that turns the probe into an ELF object, else None."""
    try:
        built = _run([path, *flags], PROBE)
        said = _run([path, "--version"])
    except (OSError, subprocess.SubprocessError):
        return None
    if built.returncode or not built.stdout.startswith(b"\x7fELF"):
        return None
    return (said.stdout.decode(errors="replace").strip().splitlines() or ["unknown"])[0]


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, check=False, input=text.encode(), capture_output=True, timeout=PROBE_SECONDS)
