"""A wheel of `make release` works in an environment that has nothing else, away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from packages import make_packages

from cs_toolkit import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.guides
@pytest.mark.timeout(600)
def test_a_released_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    scripts = tmp_path / "environment" / "bin"
    variables = {"HOME": str(home), "PATH": f"{scripts}:{os.environ['PATH']}", "LANG": "C.UTF-8"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=home, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    built = run(sys.executable, ROOT / "scripts" / "release.py", "--snapshot", "--out", tmp_path / "dist")
    sdist, wheel = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix)
    assert [str(sdist), str(wheel)] == sorted(built.splitlines()[-2:], key=lambda path: Path(path).suffix)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    # Distributors build from the sdist, and run the tests.
    assert {"CHANGELOG.md", "constraints.txt", "docs/administrators/install.md", "tests/conftest.py"} <= names

    make_packages(tmp_path / "packages")
    venv.create(tmp_path / "environment", with_pip=False)
    install = ("install", "--quiet", "--no-index", f"--find-links={tmp_path / 'packages'}", f"{wheel}[tf]")
    run(sys.executable, "-m", "pip", f"--python={scripts / 'python'}", *install)
    assert "csrun_wse" in run("csrun", "--help")
    for command in ("csrun", "csrun_cpu", "csrun_wse", "cs_system"):
        assert __version__ in run(command, "--version")
    run("csrun", "init", "fc_mnist")
    run("csrun_cpu", "python", "models/fc_mnist/tf/run.py", "--mode=compile_only", "--model_dir=model")
    [provenance] = (home / "model").glob("cs_*/provenance.json")
    assert json.loads(provenance.read_text())["versions"]["toolkit"] == __version__
    for name in ("performance.json", "fabric.json", "run_summary.json"):
        assert json.loads((home / "model" / name).read_text())["toolkit_version"] == __version__
