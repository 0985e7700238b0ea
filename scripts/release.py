"""Build the wheel and the sdist of a release into dist/, and check both. Run by `make release`.

The wheel is built from the sdist, so that an sdist that lacks a file fails here. The packages that build are
those of the environment: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cs_toolkit import __version__  # noqa: E402


def find_problem(changelog: str, version: str) -> str | None:
    """Return why the changelog does not describe a version as the newest release; None if it does."""
    titles = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    dated = [title for title in titles if title != "Unreleased"]
    if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", dated[0] if dated else ""):
        found = f"'{dated[0]}'" if dated else "none"
        return f"CHANGELOG.md: newest release: got {found}, expected '{version} - YYYY-MM-DD'"
    if titles[0] == "Unreleased":
        return f"CHANGELOG.md: '## Unreleased' has changes that are newer than {version}"
    return None


def build(target: Path) -> list[Path]:
    """Build sdist and wheel into a folder, check them, and return their paths."""
    # The time of the commit makes the files of two builds of a commit equal.
    date = _output("git", "log", "-1", "--format=%ct") or "946684800"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": date}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={folder}", str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout[-4000:]}{done.stderr}release: error: the build failed, see above")
        built = sorted(Path(folder).iterdir())
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], check=True)
        target.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.move(file, target / file.name)) for file in built]


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files; default: dist")
    parser.add_argument("--snapshot", action="store_true", help="build a state that is not to be published")
    options = parser.parse_args(arguments)
    if not options.snapshot:
        changes = _output("git", "status", "--porcelain")
        problem = find_problem((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)
        if changes:
            problem = f"the checkout has changes that are not committed:\n{changes}"
        if problem:
            sys.exit(f"release: error: {problem}\nrelease: --snapshot builds it nevertheless")
    for path in build(options.out):
        print(path)


if __name__ == "__main__":
    main()
