"""The status page of a CS system in Chromium, while a model trains on the system."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.devtools import CHROMIUM, BrowserPage
from tests.systems import RunningSystem, running_system

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium; on Debian: apt-get update && apt-get install -y chromium"
)
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 150


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """A system on which FC-MNIST trains."""
    folder = tmp_path_factory.mktemp("training")
    with running_system(folder, ["--http-port=0"]) as system:
        program = [ROOT / "models/fc_mnist/tf/run.py", "--mode=train", f"--cs_ip={system.address}"]
        flags = ["--steps=1000000", f"--model_dir={folder / 'model_dir'}"]
        with (folder / "program.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    ROOT / "bin/csrun_cpu",
                    "python",
                    *program,
                    *flags,
                ],
                cwd=folder,
                stdout=log,
                stderr=log,
                env=os.environ,
                start_new_session=True,
            )
            try:
                wait_for_steps(system, process, folder / "program.log")
                yield system
            finally:
                process.terminate()
                process.wait(30)


def status(system: RunningSystem) -> dict[str, Any]:
    with urllib.request.urlopen(f"{system.status_page}status.json", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def wait_for_steps(system: RunningSystem, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until some steps are done and the curves have points."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (run := status(system)["run"]) or run["step"] < 50 or time.time() - run["since"] < 5:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


CONNECTION = "document.getElementById('connection').textContent"
STEP = "document.querySelector('#state dd').textContent"


def step(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_page_shows_a_training_run_and_stays_live(training: RunningSystem, tmp_path: Path) -> None:
    with BrowserPage(tmp_path / "profile", training.status_page) as page:
        # The script runs under the policy of the page, and gets events.
        page.wait_for(CONNECTION, "live".__eq__)
        first = step(page.evaluate(STEP))
        page.wait_for(STEP, lambda text: step(text) > first)
        html = page.evaluate("document.documentElement.outerHTML")
        assert page.messages == []
        assert page.evaluate("document.title").startswith("Running")
    assert first >= 50
    assert re.search(r'aria-label="Loss[^"]*: from [\d.e-]+ at step \d+ to', html)
    assert html.count("<polyline") == 2
    assert "keeps up" in html or "limits the run" in html
    assert re.search(r'<code class="key">cs_[0-9a-f]{64}</code>', html)
    # Kernels of the model, and those that bound its rate, are on the floorplan.
    assert html.count("<rect") > 5
    assert 'class="load-4 bounds"' in html
    assert re.search(r'<ol class="bound"[^>]*>\s*<li><code>[^<]+</code>', html)
    assert "reserved by" in html


def test_the_policy_of_the_page_refuses_other_scripts(training: RunningSystem, tmp_path: Path) -> None:
    inject = """
      const script = document.createElement("script");
      script.textContent = "document.title = 'owned'";
      document.body.append(script);
      document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='document.title = `owned`'>");
      document.body.setAttribute("style", "color: red");
    """
    with BrowserPage(tmp_path / "profile", training.status_page) as page:
        page.evaluate(inject)
        page.wait_for(CONNECTION, "live".__eq__)
        assert "owned" not in page.evaluate("document.title")
        assert any("Content Security Policy" in message for message in page.messages)


def test_the_keyboard_reaches_every_link_and_the_focus_stays(training: RunningSystem, tmp_path: Path) -> None:
    with BrowserPage(tmp_path / "profile", training.status_page) as page:
        page.wait_for(CONNECTION, "live".__eq__)
        focused = "document.activeElement.textContent"
        reached = []
        for _ in range(3):
            page.press("Tab", 9)
            reached.append(page.evaluate(focused))
        assert reached == ["Skip to the figures", "status.json", "metrics for Prometheus"]
        first = step(page.evaluate(STEP))
        page.wait_for(STEP, lambda text: step(text) > first)
        assert page.evaluate(focused) == "metrics for Prometheus"


def test_the_run_has_an_owner_a_loss_and_a_program(training: RunningSystem) -> None:
    found = status(training)
    run = found["run"]
    assert re.fullmatch(r"[^@]+@[^@]+", run["owner"])
    assert run["loss"] is not None
    assert run["execution"] == "pipelined"
    assert run["samples"] >= 256 * 50
    assert run["bound_by"]
    assert found["wafer_s"] > 0


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_nothing_is_wider_than_the_screen(
    training: RunningSystem, tmp_path: Path, width: int, dark: bool
) -> None:
    wide = """
      [...document.querySelectorAll("body *")].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.right > 0 && box.right > innerWidth + 1;
      }).map((element) => element.outerHTML.slice(0, 80))
    """
    with BrowserPage(tmp_path / "profile", training.status_page, width, dark=dark) as page:
        page.wait_for("document.querySelectorAll('polyline').length", lambda count: count == 2)
        assert page.evaluate("innerWidth") == width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(wide) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(14, 19, 24)") == dark


def test_a_page_connects_again_to_a_system_that_was_started_again(tmp_path: Path) -> None:
    with running_system(tmp_path, ["--http-port=0"]) as first:
        port = first.status_page.rsplit(":", 1)[1].strip("/")
        page = BrowserPage(tmp_path / "profile", first.status_page)
        page.wait_for(CONNECTION, "live".__eq__)
    with page:
        page.wait_for(CONNECTION, lambda text: "trying again" in text)
        with running_system(tmp_path, [f"--http-port={port}"]):
            page.wait_for(CONNECTION, "live".__eq__)
