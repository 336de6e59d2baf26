"""A C compiler is found on any machine, and compiles correct kernels of every dtype."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from conformance.backend.runtime import toolchain
from conformance.backend.runtime.toolchain import ToolchainError, ensure_compiler, ensure_kernel_cache

ZIG = toolchain._zig()
assert ZIG is not None, "the ziglang wheel is a dependency"
WORKING = f'exec "{ZIG}" clang "$@"'
OLD_CLANG = f'cat | sed "s/__bf16/no_such_type/" | "{ZIG}" clang "$@" 2>/dev/null'


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with an empty cache and no compiler. The fixture returns the only folder on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CC", "DEV", "CACHEDB"):
        monkeypatch.setenv(name, "")  # so that monkeypatch undoes changes by the code under test
        monkeypatch.delenv(name)
    return folder


def script(path: Path, body: str) -> str:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
    path.chmod(0o755)
    return str(path)


def python(code: str) -> list[str]:
    """Return the command line of a fresh process that imports the toolchain, without the rest of the device, and runs
    `code`."""
    folder = str(Path(toolchain.__file__).parent)
    return [sys.executable, "-c", f"import sys; sys.path.append({folder!r})\nimport toolchain\n" + code]


def found_by(code: str, **environment: str) -> str:
    """Return the output of a fresh process that finds a compiler and runs `code`. Kernels run on the CPU, even if the
    machine has an OpenCL driver, which tinygrad would choose."""
    command = python("toolchain.ensure_compiler()\n" + code)
    environment = {**os.environ, "DEV": "CPU", **environment}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


class TestEnsureCompiler:
    def test_zig_serves_on_a_bare_machine(self, bare):
        """With an empty PATH, CC names a launcher of the ziglang wheel."""
        compiler = ensure_compiler()
        assert compiler.kind == "zig"
        assert compiler.version.startswith("clang version")
        assert os.environ["CC"] == compiler.path

    def test_zig_does_not_warn(self, bare):
        """A literal that clang warns about compiles silently. An error is still printed."""
        command = [ensure_compiler().path, *toolchain._flags()]
        said = toolchain._run(command, "unsigned long a = 9223372036854775808; int b = 1e99;")
        assert (said.returncode, said.stderr) == (0, b"")
        assert b"error" in toolchain._run(command, "int a = nothing;").stderr

    def test_clang_on_the_path_comes_before_zig(self, bare):
        """A clang that compiles the probe is used unchanged."""
        path = script(bare / "clang", WORKING)
        assert ensure_compiler() == toolchain.Compiler("clang", path, ensure_compiler().version)

    def test_clang_without_bfloat16_is_passed_over(self, bare):
        """A clang that does not support __bf16, like Debian 12's, is not used."""
        script(bare / "clang", OLD_CLANG)
        assert ensure_compiler().kind == "zig"

    def test_the_users_cc_comes_first(self, bare, tmp_path, monkeypatch):
        """A working CC takes priority over a working clang."""
        script(bare / "clang", WORKING)
        monkeypatch.setenv("CC", script(tmp_path / "my cc", WORKING))
        assert (ensure_compiler().kind, ensure_compiler().path) == ("CC", str(tmp_path / "my cc"))

    @pytest.mark.parametrize("body", ["exit 1", "echo not an object", OLD_CLANG])
    def test_a_cc_that_cannot_be_used_is_named_in_a_warning(self, bare, tmp_path, monkeypatch, body):
        """An unusable CC is replaced by another compiler, and a warning names it. CC=gcc is common, and tinygrad cannot
        use it."""
        monkeypatch.setenv("CC", script(tmp_path / "gcc", body))
        with pytest.warns(UserWarning, match=r"CC=.*gcc cannot compile tinygrad's kernels; using .*zig"):
            assert ensure_compiler().kind == "zig"

    def test_nothing_usable_is_one_sentence_with_what_to_install(self, bare, monkeypatch):
        """Without clang and without the wheel, the error says what to install, and CC stays unchanged."""
        monkeypatch.setattr(toolchain, "_zig", lambda: None)
        with pytest.raises(ToolchainError, match=r"`pip install ziglang`.*clang 15.*CC.*DEV") as caught:
            ensure_compiler()
        assert "\n" not in str(caught.value)
        assert "CC" not in os.environ

    @pytest.mark.parametrize(
        ("dev", "needed"), [("", True), ("CPU", True), ("cpu:x86", True), ("CUDA", False), ("usb+NV:CUDA;CPU", False)]
    )
    def test_a_device_that_may_do_without_raises_nothing(self, bare, monkeypatch, dev, needed):
        """Without a compiler, only a DEV that requires one is an error."""
        monkeypatch.setattr(toolchain, "_zig", lambda: None)
        monkeypatch.setenv("DEV", dev)
        if needed:
            with pytest.raises(ToolchainError):
                ensure_compiler()
        else:
            assert ensure_compiler() is None

    def test_a_probe_is_remembered_until_the_executable_changes(self, bare, monkeypatch):
        """A second call starts no process. A changed executable is probed again."""
        script(bare / "clang", WORKING)
        first = ensure_compiler()
        with monkeypatch.context() as patch:
            patch.setenv("CC", "")
            patch.setattr(toolchain, "_run", lambda *_: pytest.fail("started a process"))
            assert ensure_compiler() == first
        monkeypatch.setenv("CC", "")
        script(bare / "clang", OLD_CLANG)
        assert ensure_compiler().kind == "zig"

    def test_an_unwritable_home_falls_back_to_the_temporary_directory(self, bare, tmp_path, monkeypatch):
        """If the user's cache folder cannot be created, the launcher goes to a private temporary folder."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setattr(toolchain.tempfile, "gettempdir", lambda: str(tmp_path))
        assert Path(ensure_compiler().path).parent.parent == tmp_path

    def test_a_cache_folder_of_somebody_else_is_not_used(self, bare, monkeypatch):
        """A launcher that another user could change is never run."""
        stranger = os.getuid() + 1
        monkeypatch.setattr(toolchain.os, "getuid", lambda: stranger)
        with pytest.raises(ToolchainError):
            ensure_compiler()

    def test_a_child_process_inherits_the_choice_silently(self, bare, monkeypatch):
        """A CC set by a parent process is recognized as zig and not treated as the user's choice."""
        first = ensure_compiler()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ensure_compiler() == first

    def test_processes_that_start_at_once_agree(self, bare):
        """Several first runs at the same time find the same working compiler."""
        command = python("print(toolchain.ensure_compiler())")
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        assert len({run.communicate()[0] for run in runs}) == 1
        assert not any(run.returncode for run in runs)


class TestEnsureKernelCache:
    def test_a_usable_place_is_left_as_it_is(self, bare, tmp_path):
        """tinygrad's own path is used if it is writable."""
        assert ensure_kernel_cache() == tmp_path / "cache" / "tinygrad" / "cache.db"
        assert "CACHEDB" not in os.environ

    def test_an_unwritable_place_is_replaced(self, bare, tmp_path, monkeypatch):
        """If the home is read-only, CACHEDB is set to a temporary file. Otherwise no kernel could run."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setattr(toolchain.tempfile, "gettempdir", lambda: str(tmp_path))
        assert ensure_kernel_cache().parent.parent == tmp_path
        assert os.environ["CACHEDB"] == str(ensure_kernel_cache())


class TestKernels:
    def test_a_read_only_home_is_no_obstacle(self, bare, tmp_path):
        """Kernels compile and run even if no cache folder can be created."""
        (tmp_path / "file").touch()
        code = "from tinygrad import Tensor; print((Tensor([1, 2, 3]) * 2).tolist())"
        environment = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
        assert found_by(code, **environment) == "[2, 4, 6]\n"

    def test_every_dtype_compiles_and_runs_right(self, bare):
        """Arithmetic, a reduction and casts through half and bfloat16 give exact small integers in every dtype."""
        code = """
import json
from tinygrad import Tensor, dtypes
answers = {}
for name in NAMES:
    dtype = getattr(dtypes, name)
    a, b = Tensor([1, 2, 3, 5, 0, 7], dtype=dtype), Tensor([3] * 6, dtype=dtype)
    cast = a.cast(dtypes.float16).cast(dtypes.bfloat16).cast(dtypes.float64).cast(dtype)
    parts = Tensor.cat((a * b + a).cast(dtypes.int32), a.sum(keepdim=True).cast(dtypes.int32), cast.cast(dtypes.int32))
    answers[name] = parts.tolist()
print(json.dumps(answers))
"""
        names = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
        names += ["float16", "bfloat16", "float32", "float64"]
        answers = json.loads(found_by(code.replace("NAMES", repr(names)), CACHELEVEL="0"))
        assert answers == {name: [4, 8, 12, 20, 0, 28, 18, 1, 2, 3, 5, 0, 7] for name in names}

    @pytest.mark.slow
    def test_processes_share_a_cold_disk_cache(self, bare, tmp_path):
        """Four processes that fill one new kernel cache at the same time neither fail nor wait forever."""
        code = """
from tinygrad import Tensor
for n in range(7, 37):
    assert (Tensor.arange(n).float().contiguous().realize() * n + 1).sum().item() == n * n * (n - 1) / 2 + n
"""
        environment = {**os.environ, "CACHEDB": str(tmp_path / "kernels.db")}
        command = python("toolchain.ensure_compiler()\n" + code)
        runs = [subprocess.Popen(command, env=environment) for _ in range(4)]
        assert [run.wait() for run in runs] == [0, 0, 0, 0]
