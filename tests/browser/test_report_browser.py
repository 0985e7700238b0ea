"""The compile report in Chromium: its script under its policy, sorting, filtering, hostile names."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from html import unescape
from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.execution.compilation import Stages
from cgc.execution.weight_streaming import estimate_streamed
from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.placement import place
from cgc.report import build_report, render_html
from cs_toolkit.execution_options import Streaming
from cs_toolkit.fabric import load_fabric

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium; on Debian: apt-get update && apt-get install -y chromium"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
TIMEOUT_S = 60
HOSTILE = "\"'><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def page(*names: str) -> str:
    """A report; kernels do the more work the later they come, and are of different families.

    A kernel whose name begins with "large" needs hundreds of PEs, the others a few.
    """
    kernels = []
    for index, name in enumerate(names):
        loop = {
            "rows": 1,
            "row_elements": 4_000_000 if name.startswith("large") else 64,
            "starts": 2,
            "reductions": 2,
            "work_millicycles": 64_000 * (index + 1),
            "step_millicycles": 0,
            "streamed_elements": 64,
            "element_bytes": 4,
            "resident_bytes": 0,
            "stash_bytes": 0,
            "batch": 32,
        }
        family = ("reduction", "elementwise")[index % 2]
        kernels.append(Kernel(name, family, loop, ("cirh.Exp",), (index,), f"model.py:{10 + index}"))
    edges = tuple(Edge(src, dst, 64) for src, dst in itertools.pairwise(names))
    graph = KernelGraph(tuple(kernels), edges, batch_size=32, input_bytes_per_sample=64)
    fabric = load_fabric("cs2")
    return render_html(build_report(graph, place(graph, fabric), fabric))


@pytest.fixture(scope="module")
def streamed_page() -> str:
    """The report of FC-MNIST with streamed weights."""
    step = Path(__file__).parents[1] / "golden" / "cgc" / "fc_mnist_train.mlir"
    module = parse_module(step.read_text(encoding="utf-8"))
    _, report = estimate_streamed(module, load_fabric("cs2"), Stages(3, None), Streaming())
    return render_html(report)


def chromium(tmp_path: Path, html: str, *arguments: str) -> str:
    """Print a page that is opened as a file in Chromium, and return the text of the output."""
    assert CHROMIUM is not None
    file, profile = tmp_path / "compile_report.html", tmp_path / f"profile-{time.monotonic_ns()}"
    file.write_text(html, encoding="utf-8")
    profile.mkdir()
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def after(tmp_path: Path, html: str, script: str, width: int = 1400) -> str:
    """The page after a script of the test, which the policy of the page itself would refuse."""
    return chromium(tmp_path, driven_by(script, html), f"--window-size={width},900", "--dump-dom")


def driven_by(script: str, html: str) -> str:
    """A page without its policy, and with a script of the test."""
    return POLICY.sub("", html).replace("</body>", f"<script>{script}</script></body>")


def after_each(tmp_path: Path, html: str, *scripts: str) -> list[str]:
    """The page after each of some scripts, in a frame for each: a start of Chromium takes a second."""
    for number, script in enumerate(scripts):
        (tmp_path / f"frame-{number}.html").write_text(driven_by(script, html), encoding="utf-8")
    frames = [
        f"<iframe src='frame-{n}.html' width='1400' height='900'></iframe>" for n in range(len(scripts))
    ]
    gather = """
      onload = () => {
        const pages = [...document.querySelectorAll('iframe')].map((frame) => frame.contentDocument);
        document.body.textContent = JSON.stringify(pages.map((page) => page.documentElement.outerHTML));
      };
    """
    outer = f"<body>{''.join(frames)}<script>{gather}</script></body>"
    dom = chromium(tmp_path, outer, "--allow-file-access-from-files", "--dump-dom")
    (text,) = re.findall("<body>(.*)</body>", dom, re.DOTALL)
    found: list[str] = json.loads(unescape(text))
    return found


def rows(dom: str) -> list[str]:
    """Names in the rows of the kernel table that are shown, in the order on the screen."""
    row = r'<tr id="row-\d+"(?![^>]* hidden)[^>]*>.*?<a href[^>]*>([^<]*)</a>'
    return re.findall(row, dom, re.DOTALL)


def click(header: str) -> str:
    buttons = "[...document.querySelectorAll('#kernels thead button')]"
    return f"{buttons}.find((button) => button.textContent === '{header}').click();"


def type_filter(text: str) -> str:
    field = "document.getElementById('filter')"
    return f"{field}.value = '{text}'; {field}.dispatchEvent(new Event('input'));"


def point_at(selector: str) -> str:
    event = "new PointerEvent('pointerover', { bubbles: true })"
    return f"document.querySelector('{selector}').dispatchEvent({event});"


def test_the_script_runs_under_the_policy_of_the_page(tmp_path: Path) -> None:
    dom = chromium(tmp_path, page("a", "b"), "--dump-dom")
    assert '<button type="button">Kernel</button>' in dom
    assert "Point at a kernel" in dom
    assert re.search(r'<p class="filter">', dom), "the filter is hidden until the script runs"


def test_the_policy_refuses_other_scripts(tmp_path: Path) -> None:
    injected = page("a", "b").replace("</body>", "<script>document.title = 'owned'</script></body>")
    assert "<title>owned</title>" not in chromium(tmp_path, injected, "--dump-dom")


def test_hostile_names_do_nothing(tmp_path: Path) -> None:
    html = POLICY.sub("", page(HOSTILE, "b"))
    assert POLICY.search(html) is None, "it is the escaping that is tested, not the policy"
    dom = chromium(tmp_path, html, "--dump-dom")
    assert "<title>owned</title>" not in dom
    assert "<img" not in dom
    pointed = after(tmp_path, page(HOSTILE, "b"), point_at("#row-0"))
    assert "<title>owned</title>" not in pointed
    assert "<img" not in pointed


def test_a_click_on_a_header_sorts_and_another_one_turns_the_order(tmp_path: Path) -> None:
    html = page("b10", "a", "b9")
    whole, once, twice = after_each(tmp_path, html, "", click("Kernel"), 2 * click("#"))
    assert rows(whole) == ["b10", "a", "b9"]
    assert rows(once) == ["a", "b9", "b10"]
    assert 'aria-sort="ascending"' in once
    assert rows(twice) == ["b9", "a", "b10"]
    assert 'aria-sort="descending"' in twice


def test_the_filter_takes_words_of_every_column(tmp_path: Path) -> None:
    html = page("fc1", "fc2", "norm")
    texts = ("FC", "model.py:12", "reduction fc", "xyz")
    name, place, two_words, nothing = after_each(tmp_path, html, *map(type_filter, texts))
    assert rows(name) == ["fc1", "fc2"]
    assert "2 of 3" in name
    assert rows(place) == ["norm"]
    assert rows(two_words) == ["fc1"]
    assert rows(nothing) == []
    assert '<tr class="nothing">' in nothing
    assert re.search(r'<g class="[^"]*faded', nothing)


def test_row_and_rectangle_light_up_together(tmp_path: Path) -> None:
    scripts = (point_at("#row-1"), point_at("#kernel-1"))
    for dom in after_each(tmp_path, page("first", "second", "third"), *scripts):
        assert re.search(r'<tr id="row-1"[^>]*class="[^"]*hot', dom)
        hot = re.findall(r'<g class="kernel[^"]*hot[^"]*" data-kernel="(\d+)"', dom)
        assert hot == ["1", "1"], "in both drawings, and no other kernel"
        details = re.search(r'<p class="details"[^>]*>(.*?)</p>', dom, re.DOTALL)
        assert details is not None
        assert details.group(1).startswith("second: elementwise, matched")


def labels(dom: str, group: int) -> list[str]:
    """Names on the enlarged floorplan: those that came with the page (0), or those of the script (1)."""
    groups = re.findall(r'<g class="labels"[^>]*>(.*?)</g>', dom, re.DOTALL)
    return re.findall(r"<text[^>]*>([^<]*)", groups[group])


@pytest.mark.usefixtures("full_placement")
def test_a_kernel_too_small_to_be_seen_is_enlarged_with_its_name_by_a_click_on_its_row(
    tmp_path: Path,
) -> None:
    html = page(*(f"part{index}" for index in range(50)), *(f"large{index}" for index in range(20)))
    click_row = "document.querySelector('#row-30 td').click();"
    go_back = "document.querySelector('[data-zoom=whole]').click();"
    dom = after(tmp_path, html, "")
    assert 'class="plan main"' in dom
    assert labels(dom, 1) == [], "at its full size the page shows the names that it came with"
    assert not any("part30" in text for text in labels(dom, 0))
    dom = after(tmp_path, html, click_row)
    assert 'class="plan main closer"' in dom
    assert any("part30" in text for text in labels(dom, 1))
    dom = after(tmp_path, html, click_row + go_back)
    assert 'class="plan main"' in dom
    assert labels(dom, 1) == []


def test_in_a_small_window_names_keep_their_size_and_those_without_room_go(tmp_path: Path) -> None:
    dom = after(tmp_path, page("fc1", "large"), "", width=800)
    assert "--pixel: 1." in dom
    assert any("large" in text for text in labels(dom, 1))


def test_all_figures_can_be_shown_unrounded(tmp_path: Path) -> None:
    """The page is scrollable on a screen; the test reads the style of the browser."""
    show = "document.getElementById('more').click();"
    read = (
        "const cell = document.querySelector('#row-0 td.more');"
        "const figure = getComputedStyle(cell.querySelector('data'), '::after').content;"
        "document.title = `${getComputedStyle(cell).display} ${figure}`;"
    )
    before, shown = after_each(tmp_path, page("a", "b"), read, show + read)
    assert "<title>none none</title>" in before
    (title,) = re.findall(r"<title>(table-cell .*?)</title>", shown)
    assert re.search(r"0\.00\d{8,}", title)
    assert "%" in title


@pytest.mark.parametrize("width", [500, 900, 1280])
def test_nothing_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    """On a desktop screen this includes the table of kernels."""
    read = """
      const parts = [document.documentElement];
      if (innerWidth >= 1280) parts.push(...document.querySelectorAll('.scroll'));
      document.title = Math.max(...parts.map((part) => part.scrollWidth - part.clientWidth));
    """
    names = ("encoder.layer_0.attention.output", "b") if width >= 1280 else ("a" * 40, "b")
    assert "<title>0</title>" in after(tmp_path, page(*names), read, width)


@pytest.mark.parametrize("scheme", ["0", "1"])
def test_it_draws_in_dark_and_light(tmp_path: Path, scheme: str) -> None:
    picture = tmp_path / "page.png"
    chromium(
        tmp_path,
        page("fc1", "fc2"),
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1400,1600",
        f"--screenshot={picture}",
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


@pytest.mark.parametrize("execution", ["pipelined", "weight_streaming"])
def test_nothing_is_cut_off_on_a_phone(execution: str, streamed_page: str, tmp_path: Path) -> None:
    """No part of the page is wider than the screen or its container."""
    long_name = "a_kernel_with_quite_a_long_name.of.a.layer.in.a.block"
    html = page("large1", long_name, "b") if execution == "pipelined" else streamed_page
    script = """
      const wide = [...document.body.querySelectorAll('*')].filter((part) => {
        const box = part.getBoundingClientRect();
        const full = part.scrollWidth > part.clientWidth + 1;
        const scrolls = full && getComputedStyle(part).overflowX !== 'visible';
        return box.width && !part.closest('svg, [hidden]') && (box.right > 390.5 || scrolls);
      });
      document.title = 'wide: ' + wide.map((part) => part.tagName + '.' + part.className).join(' ');
      if (document.documentElement.scrollWidth > 390) document.title += ' page';
    """
    # Chromium has no window as narrow as a phone: the page is in a frame of that width.
    inner = POLICY.sub("", html).replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "inner.html").write_text(inner, encoding="utf-8")
    report = "document.title = frames[0].document.title"
    outer = f"<body><iframe src='inner.html' width='390' height='3000' onload=\"{report}\"></iframe></body>"
    dom = chromium(tmp_path, outer, "--allow-file-access-from-files", "--dump-dom")
    assert "<title>wide:</title>" in dom, re.search("<title>.*</title>", dom)


def test_a_layer_that_is_chosen_replaces_the_first_one(streamed_page: str, tmp_path: Path) -> None:
    """The page of a step with streamed weights has no script: a link shows the floorplan of a layer."""
    read = (
        "const shown = [...document.querySelectorAll('.layer')];"
        "const names = shown.filter((layer) => getComputedStyle(layer).display === 'block');"
        "document.title = `shown: ${names.map((layer) => layer.id).join(' ')}`;"
    )
    choose = "location.hash = [...document.querySelectorAll('.choice a')].at(-1).hash;"
    before = after(tmp_path, streamed_page, read)
    chosen = after(tmp_path, streamed_page, choose + read)
    kinds = re.findall(r'<article class="layer" id="(kind-\d+)"', before)
    assert len(kinds) > 1
    assert f"<title>shown: {kinds[0]}</title>" in before
    assert f"<title>shown: {kinds[-1]}</title>" in chosen
