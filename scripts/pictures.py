"""The pictures of the README, from real runs: `.venv/bin/python scripts/pictures.py` writes docs/images.

BERT-base is compiled, and the input of FC-MNIST is analyzed.
Headless Chromium takes a picture of each report.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
SIZE_LIMIT_BYTES = 200_000
COLORS = 256
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@dataclass(frozen=True)
class Picture:
    """The upper `height` pixels of a page in a window of `width` pixels, without the elements of `hidden`."""

    name: str
    width: int
    height: int
    hidden: str = ""


FLOORPLAN = Picture("floorplan", 1200, 880, "header")
INPUT_REPORT = Picture("input-report", 1200, 1030)


def main() -> int:
    """Makes both pictures; 1 when one is too large for the repository."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "models", folder / "models")  # so that the reports have short paths
        sizes = [
            take(FLOORPLAN, compile_report(folder), folder),
            take(INPUT_REPORT, input_report(folder), folder),
        ]
    return int(max(sizes) > SIZE_LIMIT_BYTES)


def compile_report(folder: Path) -> Path:
    """The page that compiling BERT-base leaves."""
    params = "models/bert/tf/configs/params_bert_base.yaml"
    program = ["python", "models/bert/tf/run.py", "--mode=compile_only", "-p", params, "-o", "bert"]
    run([str(ROOT / "bin/csrun_cpu"), *program], folder)
    return next((folder / "bert").glob("cs_*/compile_report.html"))


def input_report(folder: Path) -> Path:
    """The page of an analysis of FC-MNIST's input."""
    program = ["python", "models/fc_mnist/tf/run.py", "--mode=compile_only", "-o", "fc_mnist"]
    run([str(ROOT / "bin/cs_input_analyzer"), "--html=input.html", *program], folder)
    return folder / "input.html"


def run(command: list[str], folder: Path) -> None:
    """Runs a command in `folder`, and shows nothing of it unless it fails."""
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}pictures: exit code {done.returncode}")


def take(picture: Picture, page: Path, folder: Path) -> int:
    """Writes the picture of a page below docs/images; its size in bytes."""
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        sys.exit("pictures: no Chromium; on Debian: apt-get install -y chromium")
    shown, shot = folder / f"{picture.name}.html", folder / "shot.png"
    html = page.read_text(encoding="utf-8").replace(f"{folder}/", "")
    shown.write_text(without(html, picture.hidden), encoding="utf-8")
    window = f"--window-size={picture.width},{picture.height}"
    profile = f"--user-data-dir={folder / 'profile'}"
    run([browser, *FLAGS, profile, window, f"--screenshot={shot}", shown.as_uri()], folder)
    target = ROOT / "docs" / "images" / f"{picture.name}.png"
    with Image.open(shot) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes", flush=True)
    return target.stat().st_size


def without(html: str, hidden: str) -> str:
    """A report without some elements; its own policy would refuse the style that hides them."""
    if not hidden:
        return html
    return POLICY.sub("", html).replace("</head>", f"<style>{hidden} {{ display: none }}</style></head>")


if __name__ == "__main__":
    sys.exit(main())
