"""Each reproducer of docs/upstream/ shows its bug in the installed tinygrad, unpatched, and the list is current."""

from __future__ import annotations

import ast
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from scripts import upstream
from scripts.pages import ROOT

BUGS = upstream.read_all(ROOT / upstream.FOLDER)

pytestmark = pytest.mark.tiny


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """Name a C compiler for tinygrad's kernels in CC."""
    from conformance.backend.runtime.toolchain import ensure_compiler

    ensure_compiler()


class TestReproducers:
    @pytest.mark.timeout(180)
    @pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
    def test_shows_the_bug(self, bug: upstream.Bug) -> None:
        """The reproducer ends and prints as its file states. If tinygrad is mended, this test fails."""
        code, output = upstream.run(bug)
        assert (code, output.strip()) == (bug.exit, bug.prints.strip())

    @pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
    def test_needs_only_tinygrad(self, bug: upstream.Bug) -> None:
        """A reproducer has at most ten lines and imports tinygrad, NumPy and the standard library only."""
        assert len(bug.code.strip().splitlines()) <= 10
        nodes = [*ast.walk(ast.parse(bug.code))]
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert {name.partition(".")[0] for name in names} <= {"tinygrad", "numpy", *sys.stdlib_module_names}

    def test_a_mended_bug_shows_no_bug(self) -> None:
        """The right output is not taken for the bug, nor is another exit code."""
        for bug in BUGS:
            assert not bug.shows(0, bug.expected)
            assert not bug.shows(1, bug.prints)


class TestPatches:
    def test_each_patch_is_filed_or_has_a_reason(self) -> None:
        """Each patch of the device belongs to an issue, or to a reason for none. Each entry names a patch."""
        import conformance.backend  # noqa: F401 - applies the patches
        from conformance.backend.runtime import private_memory
        from conformance.backend.tinygrad_patches import PATCHES

        private_memory.install()  # otherwise a patch of the first use of the device
        without = tomllib.loads((ROOT / upstream.NOT_FILED).read_text())["patches"]
        entries = [entry for bug in BUGS for entry in bug.patches] + [
            site for group in without for site in group["sites"]
        ]
        assert all(group["reason"].endswith(".") for group in without)
        matched = {e: [p for p in PATCHES if upstream.covers(e, p.site, p.fault, p.test)] for e in entries}
        assert [entry for entry, patches in matched.items() if not patches] == []
        covered = {id(patch) for patches in matched.values() for patch in patches}
        assert [f"{patch.site}|{patch.fault}" for patch in PATCHES if id(patch) not in covered] == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with the issues alone."""
    shutil.copytree(ROOT / upstream.FOLDER, tmp_path / upstream.FOLDER)
    return tmp_path


class TestList:
    def test_is_current(self) -> None:
        """docs/upstream/index.csv lists the files; if not, run python -m scripts.upstream."""
        assert upstream.main(["--check"]) == 0

    def test_a_stale_list_fails_the_check(self, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The check fails until the script has written the list."""
        path = copy / upstream.FOLDER / f"{BUGS[0].name}.toml"
        path.write_text(path.read_text().replace(BUGS[0].title, "another title"))
        assert upstream.main(["--check"], copy) == 1
        assert "run python -m scripts.upstream" in capsys.readouterr().err
        assert upstream.main([], copy) == 0
        assert upstream.main(["--check"], copy) == 0

    def test_prints_an_issue(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The text of an issue has the title, the reproducer, both outputs, and the later commit."""
        bug = BUGS[0]
        assert upstream.main([bug.name]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{bug.title}\n") and bug.code.strip() in text
        assert bug.prints.strip() in text and bug.expected.strip() in text and bug.newest["commit"][:12] in text

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ('severity = "wrong value"', 'severity = "bad"', "has the severity 'bad'; choose one of wrong value, "),
            ("title = ", "titel = ", "cat-sum.toml is no issue: "),
            ("rank = 1", "rank = 2", "must be 1, 2, ..."),
        ],
    )
    def test_a_file_that_is_no_issue(self, old: str, new: str, says: str, copy: Path, capsys) -> None:
        """A typo is one sentence with the name of the file and exit code 2."""
        file = copy / upstream.FOLDER / "cat-sum.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        assert upstream.main([], copy) == 2
        assert says in capsys.readouterr().err

    def test_bad_requests(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An unknown issue and a folder that is no checkout are one sentence and exit code 2."""
        assert upstream.main(["nothing"]) == 2
        assert "no issue is named 'nothing'" in capsys.readouterr().err
        assert upstream.main(["--newest", str(tmp_path)]) == 2
        assert "is no checkout of tinygrad" in capsys.readouterr().err
