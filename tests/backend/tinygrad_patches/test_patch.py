"""Every patch names its fault and its test, and a missing site is one sentence at import."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import conformance.backend  # noqa: F401 - applies the patches
from conformance.backend.tinygrad_patches import PATCHES, Patch, PatchError
from conformance.backend.tinygrad_patches.patch import RulePatch, arguments
from tests.run_script import Standalone

ROOT = Path(__file__).parents[3]


def functions(path: Path) -> set[str]:
    """Return the names of the test functions in a file. A method of a class is named "Class.test"."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        names |= {prefix + each.name for each in inner if isinstance(each, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.site)
def test_every_patch_is_complete(patch: Patch) -> None:
    """A patch names an existing test, its versions, the fault without it, and the issue if any."""
    file, _, name = patch.test.partition("::")
    assert name in functions(ROOT / file)
    assert SpecifierSet(patch.versions).contains(version("tinygrad"))
    assert patch.fault.endswith(".") and patch.upstream


@pytest.mark.parametrize("site", ["tinygrad.gone:x", "tinygrad.uop.ops:UOp.gone", "tinygrad.uop.ops:python_alu[LOAD]"])
def test_a_site_that_is_gone_is_one_sentence(site: str) -> None:
    """The error names the version, the missing site, and the version to install. The patch is not recorded."""
    before = len(PATCHES)
    with pytest.raises(PatchError, match=r"^tiny: tinygrad \S+ has no .* written for tinygrad .*; install ") as caught:
        Patch(site, "A fault.", "test_patch.py::test_a_site_that_is_gone_is_one_sentence")
    assert site in str(caught.value) and "\n" not in str(caught.value) and len(PATCHES) == before


def test_a_rule_that_is_gone_is_one_sentence() -> None:
    """A rule pattern that matches no rule, or more than one, is an error."""
    for names in (("nothing", "like", "this"), ("x",)):
        with pytest.raises(
            PatchError, match=r"has no single rule of a test in tinygrad\.uop\.symbolic:symbolic, which"
        ):
            RulePatch("tinygrad.uop.symbolic:symbolic", "of a test", "A fault.", "none", arguments(*names))


def test_the_device_refuses_a_tinygrad_without_a_site(standalone: Standalone) -> None:
    """Importing the device ends in that sentence before the device is registered."""
    planted = "import tinygrad.codegen.late.coalesce as c; del c.uop_given_valid; import conformance.backend"
    run = standalone(planted)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        "conformance.backend.tinygrad_patches.patch.PatchError: tiny: tinygrad"
    )
    assert "has no tinygrad.codegen.late.coalesce:uop_given_valid, which a patch" in run.stderr
