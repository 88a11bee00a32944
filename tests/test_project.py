import re
import subprocess
import sys
import tomllib

import pytest

from reprolib import project
from reprolib.errors import EvidenceError


def test_root_is_the_nearest_folder_above_with_claims(root, monkeypatch):
    monkeypatch.delenv("REPROLIB_ROOT", raising=False)
    monkeypatch.chdir(root / "book" / "_static")
    assert project.root() == root


def test_root_of_an_editable_installation_is_found_from_anywhere(root, monkeypatch, tmp_path):
    monkeypatch.delenv("REPROLIB_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert project.root() == root


def test_a_named_root_without_claims_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("REPROLIB_ROOT", str(tmp_path))
    with pytest.raises(EvidenceError, match="set REPROLIB_ROOT to a checkout"):
        project.root()


def test_import_is_light():
    code = (
        "import sys, reprolib; heavy = {'numpy', 'pandas', 'torch', 'scipy', 'pydantic'} & set(sys.modules); "
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_environment_installs_what_the_lock_pins(root):
    yaml = (root / "environment.yml").read_text()
    assert "-c constraints.txt" in yaml
    assert "-e .[dev,train]" in yaml
    assert "python=3.11" in yaml
    project_file = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project_file["optional-dependencies"]
    wanted = [*project_file["dependencies"], *extras["dev"], *extras["train"]]
    names = {re.split(r"[\[<>=]", w)[0].lower() for w in wanted}
    locked = set(re.findall(r"^([\w.-]+)==", (root / "constraints.txt").read_text(), re.MULTILINE))
    assert names - locked == set()


def test_the_package_is_thin(root):
    files = [f for f in (root / "src").rglob("*.py") if "egg-info" not in str(f)]
    lines = sum(len(f.read_text().splitlines()) for f in files)
    print(f"src: {len(files)} files, {lines} lines")
    assert len(files) <= 40
    assert lines <= 4_500


def test_no_tracked_file_is_large(root):
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    sizes = {name: (root / name).stat().st_size for name in done.stdout.split("\0") if (root / name).is_file()}
    assert max(sizes.values()) < 5_000_000, max(sizes, key=sizes.get)
