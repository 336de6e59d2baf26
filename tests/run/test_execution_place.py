"""Execution places of workers: the options, and one sentence for each invalid one."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import conformance
from conformance.record.errors import UsageError
from conformance.run import execution_place, options, ray_env
from conformance.run.execution_place import LOCAL, ExecutionPlace, place_of


def args_of(*words: str) -> argparse.Namespace:
    return options.parser("test", "", options.PLACE, {}).parse_args(words)


class TestPlaceOf:
    def test_here_unless_asked(self) -> None:
        """The default is the local pool, without Ray."""
        assert place_of(args_of()) == LOCAL
        assert LOCAL.local

    def test_ray_that_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sentence names the package to install."""
        monkeypatch.setattr(execution_place, "find_spec", lambda name: None)
        with pytest.raises(UsageError, match=r"--pool ray needs Ray: pip install 'ray\[client\]>=2.50'"):
            place_of(args_of("--pool", "ray"))

    def test_resources(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Resources have names and amounts; without a cluster they are an error."""
        monkeypatch.setattr(execution_place, "find_spec", lambda name: object())
        words = ("--per-worker", "CPU=1,GPU=0.5,odd=2")
        place = place_of(args_of("--pool", "ray://head:10001", *words))
        assert place == ExecutionPlace("ray://head:10001", (("CPU", 1.0), ("GPU", 0.5), ("odd", 2.0)))
        with pytest.raises(UsageError, match="--per-worker asks for resources of a Ray cluster"):
            place_of(args_of(*words))

    @pytest.mark.parametrize("text", ["CPU", "CPU=", "=1", "CPU=-1", "CPU=inf", "CPU=nan"])
    def test_no_resources(self, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        """The error shows the correct form."""
        with pytest.raises(SystemExit):
            args_of("--per-worker", text)
        assert "NAME=N" in capsys.readouterr().err

    def test_what_is_not_imported(self) -> None:
        """Commands whose workers alone need torch do not import it, since that takes seconds, and Ray is imported only
        on request. Regression test: `opinfo` read the probe's table from the module of its trials."""
        commands = ("sources.opinfo.runner", "sources.accuracy.__main__", "sources.sizes.__main__", "report.__main__",
                    "declare.expectations")  # fmt: skip
        lines = [f"import conformance.{name}" for name in commands]
        code = "; ".join([*lines, "import sys", "print({'torch', 'ray'} & {*sys.modules})"])
        said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert said.stdout == "set()\n"
        files = Path(conformance.__file__).parent.rglob("*.py")
        assert {file.name for file in files if "    import ray\n" in file.read_text()} == {"ray_pool.py"}
        assert not [file for file in files if re.search("^(import|from) ray", file.read_text(), re.MULTILINE)]


class TestCarried:
    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder of temporary files during the test."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        return Path(tempfile.gettempdir())

    def test_what_lies_here_is_sent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The profile, its module, which is not installed, and the files of tasks are sent under their own names."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "own_device_for_place.py").write_text("")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "a.json").write_text("{}")
        profile = '[target]\nname = "own"\nimport = "own_device_for_place"\n[environment]\nOWN = "1"\n'
        (tmp_path / "conformance.toml").write_text(profile)
        environment = ray_env.runtime_env("conformance.toml", [Path("sub/a.json")])
        staged = Path(environment["working_dir"])
        names = {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}
        assert names == {"conformance.toml", "own_device_for_place.py", "sub/a.json"}
        assert environment["env_vars"] == {"OWN": "1"}
        assert Path(environment["py_modules"][0]).name == "conformance"

    def test_what_is_installed_is_not(self) -> None:
        """Installed modules are not sent; the nodes must have them."""
        assert ray_env.modules_of("class:torch.nn.Linear") == ["torch"]
        staged = Path(ray_env.runtime_env("device:mine,import=json")["working_dir"])
        assert list(staged.iterdir()) == []

    def test_a_file_elsewhere(self, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A path that does not exist on another machine is rejected, and nothing stays behind."""
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(UsageError, match="lies outside the current folder"):
            ray_env.runtime_env("cpu", [tmp_path / "a.json"])
        assert not list(temporary.iterdir())
