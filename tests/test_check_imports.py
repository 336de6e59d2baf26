"""The import check finds every kind of fault that is planted in a small package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_imports.py"
SETTINGS = """
[tool.conformance.rooms]
device = ["device/lazy"]
"device/lazy" = []
oracle = ["device"]
[tool.conformance.forbidden]
"conformance.device.layout" = ["torch"]
[tool.conformance.private]
torch = ["conformance.device.other"]
[tool.conformance.private_attributes]
torch = ["_cdata", "_is_view"]
"""
SOUND = {
    "__init__.py": "",
    "device/__init__.py": "from conformance.device.layout import read",
    "device/layout.py": "import tinygrad\ndef read(): ...",
    "device/lazy/__init__.py": "",
    "device/lazy/storage.py": "def hold(): ...",
    "device/other/__init__.py": "from conformance.device.lazy import storage",
    "oracle/__init__.py": "from conformance.device import read\nfrom conformance import device",
}


@pytest.fixture
def check(tmp_path, capsys, monkeypatch):
    """Write a sound package with some files replaced, check it, and return the exit code and the output."""
    spec = importlib.util.spec_from_file_location("check_imports", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses looks its class's module up
    spec.loader.exec_module(module)

    def run(files: dict[str, str]) -> tuple[int, str]:
        (tmp_path / "pyproject.toml").write_text(SETTINGS)
        for name, text in {**SOUND, **files}.items():
            path = tmp_path / "conformance" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        code = module.main(tmp_path)
        return code, "".join(capsys.readouterr())

    return run


class TestCheckImports:
    def test_a_sound_package_passes(self, check):
        """A sound package has no fault, and the output counts its modules and imports."""
        assert check({}) == (0, "7 modules, 5 imports: no fault\n")

    @pytest.mark.parametrize(
        ("file", "text", "said"),
        [
            ("device/paths.py", 'CARRIED = ("oracle/__init__.py",)', "device must not import oracle"),
            ("device/paths.py", 'CARRIED = ("device/moved_away.py",)', "dead import"),
            ("device/layout.py", "def read(): ...\nfrom conformance.device import read as again", "import cycle"),
            ("oracle/__init__.py", "from conformance.device import write", "__init__.py:1: dead import"),
            (
                "oracle/__init__.py",
                "def f():\n  import conformance.gone",
                "__init__.py:2: dead import: conformance has no gone",
            ),
            ("device/layout.py", "def read():\n  from conformance import oracle", "device must not import oracle"),
            ("device/layout.py", "import torch.nn\ndef read(): ...", "conformance.device.layout must not import torch"),
            ("attic/old.py", "", "conformance.attic.old: a new room"),
            ("device/layout.py", "def read(): ...\nfrom ..oracle import device", "device must not import oracle"),
            (
                "device/lazy/storage.py",
                "def hold():\n  from ..layout import read",
                "device/lazy must not import device",
            ),
            ("oracle/__init__.py", "from conformance.device.lazy import storage", "oracle must not import device/lazy"),
            ("device/other/__init__.py", "from conformance import oracle", "device must not import oracle"),
            (
                "oracle/__init__.py",
                "import torch\ntorch._C.away()",
                "__init__.py:2: conformance.oracle uses the private torch._C",
            ),
            ("oracle/__init__.py", "from torch.testing import _internal", "uses the private torch.testing._internal"),
            ("oracle/__init__.py", "def f():\n  import torch._dynamo", "uses the private torch._dynamo"),
            ("oracle/__init__.py", "f = lambda t: not t._is_view()", "uses the private t._is_view"),
            ("oracle/__init__.py", "f = lambda self: self.t._is_view()", "uses the private self.t._is_view"),
            (
                "oracle/__init__.py",
                "def f(t):\n  return t.untyped_storage()._cdata",
                "__init__.py:2: conformance.oracle uses",
            ),
        ],
    )
    def test_a_planted_fault_is_found(self, check, file, text, said):
        """The check finds import cycles, dead imports and forbidden imports, also late and relative ones."""
        code, output = check({file: text})
        assert code == 1
        assert said in output

    def test_private_names_are_used_where_they_may_be(self, check):
        """One module may use private names. An operator's name and a name with two underscores are not private."""
        assert (
            check({"device/other/__init__.py": "import torch\ntorch._C.away()\nfrom torch._ops import OpOverload"})[0]
            == 0
        )
        assert check({"oracle/__init__.py": "import torch\ntorch.ops.aten._copy(torch.__version__)"})[0] == 0
        assert check({"device/other/__init__.py": "f = lambda t: t._is_view()"})[0] == 0
        own = "class One:\n  def f(self, aten):\n    return self._cdata, aten._is_view, self._own"
        assert check({"oracle/__init__.py": own})[0] == 0

    def test_a_late_import_makes_a_cycle(self, check):
        """An import inside a function counts towards a cycle. An import for type checkers does not."""
        late = {"device/lazy/flush.py": "from . import storage"}
        check_only = "import typing\nif typing.TYPE_CHECKING:\n  from . import flush\n"
        assert check({**late, "device/lazy/storage.py": f"{check_only}def hold(): ..."})[0] == 0
        code, output = check({**late, "device/lazy/storage.py": "def hold():\n  from . import flush"})
        assert (code, "import cycle" in output) == (1, True)

    def test_what_cannot_be_read_is_no_pass(self, check, tmp_path):
        """A syntax error is reported as one line with its place, and exit code 2."""
        code, output = check({"oracle/__init__.py": "x = ("})
        assert code == 2
        assert "__init__.py:1:" in output
        assert "Traceback" not in output
