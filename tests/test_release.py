"""What is released: files beside the code agree with pyproject.toml; wheel and sdist are built, installed and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import conformance

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOTES = ROOT / "docs" / "releases" / f"{conformance.__version__}.md"


class TestFiles:
    def test_the_version_has_its_notes(self) -> None:
        assert NOTES.exists() and NOTES.read_text().startswith(f"# Release notes of {conformance.__version__}\n")

    def test_the_line_to_install_is_right_before_and_after_the_release(self) -> None:
        """It installs the checkout. A name on PyPI would be wrong today, and the notes name it for later only."""
        for page in (ROOT / "README.md", NOTES):
            first = re.findall(r"```sh\n(.*?)\n", page.read_text())[0]
            assert first == "pip install ."

    def test_the_conda_recipe_needs_the_same_packages(self) -> None:
        recipe = yaml.safe_load((ROOT / "docs/recipes/conda/recipe.yaml").read_text())
        run = [line.replace(" ", "").replace("pytorch", "torch") for line in recipe["requirements"]["run"]]
        assert run == [f"python{PROJECT['project']['requires-python']}", *PROJECT["project"]["dependencies"]]
        assert recipe["context"]["version"] == conformance.__version__
        scripts = [f"{name} = {call}" for name, call in PROJECT["project"]["scripts"].items()]
        assert recipe["build"]["python"]["entry_points"] == scripts
        assert recipe["package"]["name"] == PROJECT["project"]["name"]

    def test_the_classifiers_are_versions_that_were_tried(self) -> None:
        """docs/contributing.md says what ran under each."""
        named = {each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"] if ":: Python :: 3." in each}
        page = (ROOT / "docs/contributing.md").read_text().partition("## Versions of Python")[2].partition("\n## ")[0]
        tried = {version for version, ran in re.findall(r"^\| (3\.\d+) \| (.*?) \|", page, re.MULTILINE) if ran != "no"}
        assert named == tried and "3.11" in named

    def test_the_template_names_the_version(self) -> None:
        text = (ROOT / "docs/recipes/ci/.github/workflows/conformance.yml").read_text()
        assert f"@v{conformance.__version__} " in text


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout, built by a new environment."""
    folder = tmp_path_factory.mktemp("built")
    builder = make_environment(folder / "builder")
    pip = [str(builder), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, PROJECT["build-system"]["requires"][0]], check=True)
    subprocess.run([str(builder), "-m", "hatchling", "build", "-d", str(folder / "dist")], check=True, cwd=ROOT)
    return folder / "dist"


def make_environment(folder: Path) -> Path:
    """Make a virtual environment and return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if not name.endswith("/RECORD")}


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestBuilt:
    def test_a_wheel_and_an_sdist_of_the_version(self, dist: Path) -> None:
        stem = f"torch_conformance-{conformance.__version__}"
        assert {path.name for path in dist.iterdir()} == {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"}

    def test_the_sdist_gives_the_same_wheel(self, dist: Path, tmp_path: Path) -> None:
        """Nothing that the package needs is missing from the sdist."""
        [sdist], [wheel] = dist.glob("*.tar.gz"), dist.glob("*.whl")
        words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(sdist)]
        subprocess.run(words, check=True)
        [again] = tmp_path.glob("*.whl")
        assert names_in_wheel(again) == names_in_wheel(wheel)
        with tarfile.open(sdist) as file:
            names = {name.partition("/")[2] for name in file.getnames()}
        wanted = {"SECURITY.md", "CODE_OF_CONDUCT.md", "action.yml", "docs/recipes/conda/recipe.yaml", "LICENSE"}
        assert wanted <= names

    @pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
    def test_it_runs_where_it_is_installed(self, dist: Path, tmp_path: Path, kind: str) -> None:
        """In an environment that has the dependencies, and in a folder without the checkout, the command compares."""
        python = make_environment(tmp_path / "user")
        [built] = dist.glob(kind)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(built)], check=True)
        purelib = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                 check=True, capture_output=True, text=True).stdout.strip()  # fmt: skip
        (Path(purelib) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        folder, command = tmp_path / "empty", python.parent / "conformance"
        folder.mkdir()
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        where = [str(python), "-c", "import conformance; print(conformance.__version__, conformance.__file__)"]
        said = subprocess.run(where, check=True, capture_output=True, text=True, cwd=folder, env=environment).stdout
        assert said.startswith(f"{conformance.__version__} {purelib}")
        for words in (["opinfo", "--target", "cpu", "--op", "add", "--dtype", "float32"],
                      ["modules", "--target", "cpu", "--op", "nn.Linear"]):  # fmt: skip
            done = subprocess.run([str(command), *words], check=False, capture_output=True, text=True, cwd=folder,
                                  env=environment)  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
        words = ["repros", "--target", "cpu", "--op", "zeta-large", "--check-scripts", "0"]
        done = subprocess.run([str(command), *words], check=False, capture_output=True, text=True, cwd=folder,
                              env=environment)  # fmt: skip
        assert done.returncode == 1 and "1 shown" in done.stdout  # the findings are in the package
