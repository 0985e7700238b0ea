"""The page as a reader, a screen reader and an attacker meet it, without a browser."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from cgc.cirh.text import parse_module
from cgc.kernels import Edge, Kernel, KernelGraph, match_kernels
from cgc.performance.model import INPUT
from cgc.placement import place
from cgc.report import CompileReport, Limit, Reason, build_json, build_report, render_html
from cs_toolkit.fabric import load_fabric
from tests.programs.steps import MLP_TRAIN

CS2 = load_fabric("cs2")
HOSTILE = "\"'><script>alert(1)</script>{{ 7 * 7 }}<img src=x onerror=alert(2)>&amp;"
FIGURES = (
    "samples_per_s",
    "compute_samples_per_s",
    "transmission_samples_per_s",
    "active_pes",
    "active_pes_percent",
    "compute_utilization_percent",
)


class Page(HTMLParser):
    """Start tags in order, and the text of the page without scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._raw = False
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.text += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.tags if t == tag and attributes.items() <= a.items()]


@pytest.fixture(scope="module")
def report() -> CompileReport:
    graph = match_kernels(parse_module(MLP_TRAIN.read_text(encoding="utf-8")))
    return build_report(graph, place(graph, CS2), CS2)


@pytest.fixture(scope="module")
def html(report: CompileReport) -> str:
    return render_html(report)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def changed(report: CompileReport, **changes: Any) -> CompileReport:
    """Return a report with other values in its pipelined part."""
    return dataclasses.replace(report, pipelined=dataclasses.replace(report.pipelined, **changes))


def loop() -> dict[str, int]:
    size = {"rows": 1, "row_elements": 64, "starts": 2, "reductions": 2, "work_millicycles": 64_000}
    rest = {"step_millicycles": 0, "streamed_elements": 64, "element_bytes": 4, "resident_bytes": 0}
    return {**size, **rest, "stash_bytes": 0, "batch": 32}


def named_report(name: str, source: str) -> CompileReport:
    graph = KernelGraph((Kernel(name, "elementwise", loop(), ("cirh.Exp",), (0,), source),), (), 32, 4)
    return build_report(graph, place(graph, CS2), CS2)


def hostile_report() -> CompileReport:
    names = (HOSTILE, "javascript:alert(3)")
    kernels = tuple(
        Kernel(name, "elementwise", loop(), (f"cirh.{HOSTILE}",), (index,), f"{HOSTILE}:{index}", bool(index))
        for index, name in enumerate(names)
    )
    graph = KernelGraph(kernels, (Edge(*names, 64), Edge(*reversed(names), 64)), 32, 4)
    return build_report(graph, place(graph, CS2), CS2)


def test_all_overall_figures_are_complete(report: CompileReport, page: Page) -> None:
    for value in build_json(report)["overall"].values():
        assert str(value) in page.text


def test_every_kernel_has_a_row_with_all_its_figures(report: CompileReport, html: str) -> None:
    rows = re.findall(r'<tr id="row-\d+".*?</tr>', html, re.DOTALL)
    assert len(rows) == len(report.pipelined.kernels)
    for row, kernel in zip(rows, build_json(report)["kernels"], strict=True):
        text = Page(row).text
        rectangle = kernel["rectangle"]
        size = f"{rectangle['width']} \N{MULTIPLICATION SIGN} {rectangle['height']}"
        assert f"{size} @ {rectangle['x']}, {rectangle['y']}" in text
        assert f"{kernel['memory_per_pe_bytes']:,} B" in text
        assert kernel["name"] in text
        assert ("generated" if kernel["generated"] else "matched") in text
        assert (kernel["source"] or "none") in text
        unrounded = set(re.findall(r'<data value="([^"]+)"', row))
        assert unrounded >= {str(kernel[figure]) for figure in FIGURES}


def test_the_floorplan_has_every_kernel_by_name_in_both_drawings(report: CompileReport, page: Page) -> None:
    drawings = page.all("svg", role="img")
    assert len(drawings) == 3, "a step that uses little of the wafer is enlarged; the pipeline is the third"
    ids = {attributes["id"] for _, attributes in page.tags if attributes.get("id")}
    for drawing in drawings:
        assert set((drawing["aria-labelledby"] or "").split()) <= ids
    assert len(page.all("rect", **{"class": "frame"})) == 1
    for index, row in enumerate(report.pipelined.kernels):
        assert len(page.all("g", **{"data-kernel": str(index)})) == 2
        assert page.text.count(f"{row.kernel.name}: {row.kernel.family}") == 2
    assert len(page.all("path", **{"marker-end": "url(#head-forward)"})) > 0


def test_streams_are_drawn_only_when_asked_for(page: Page) -> None:
    """Under the pointer, at the focus, after a tap, or all of a kind by its box."""
    boxes = {box["id"] for box in page.all("input", type="checkbox")}
    assert boxes >= {"show-forward", "show-backward"}
    assert not [box for box in page.all("input", type="checkbox") if "checked" in box]
    assert len(page.all("path", **{"marker-end": "url(#head-forward)"})) > 0


def test_figures_come_first_then_the_floorplan_then_the_ranked_changes(page: Page) -> None:
    parts = ["estimated for the wafer", "The whole wafer", "To go faster", "How to read the pipeline"]
    places = [page.text.index(part) for part in parts]
    assert places == sorted(places)
    assert len(page.all("details")) >= 4, "prose is folded"
    assert not [fold for fold in page.all("details") if "open" in fold]


def test_the_floorplan_has_three_heat_maps(report: CompileReport, html: str, page: Page) -> None:
    choices = page.all("input", type="radio", name="heat")
    assert [choice["id"] for choice in choices] == ["by-compute", "by-memory", "by-wires"]
    cycles = report.pipelined.performance.overall.deltat_cycles
    for index, row in enumerate(report.pipelined.kernels):
        (first, _) = page.all("g", **{"data-kernel": str(index)})
        memory = int(10 * row.memory_per_pe_bytes / CS2.memory_per_pe_bytes)
        wires = min(9, 10 * row.figures.transmission_cycles // cycles)
        assert {f"m{memory}", f"w{wires}"} <= set((first["class"] or "").split())
    assert ".floorplan:has(#by-wires:checked) .w9" in html, "without a script"


def test_the_memory_of_a_kernel_is_shown_by_use(report: CompileReport) -> None:
    """The uses add up to the memory of the layout; the bar is that of the mean PE."""
    for row in report.pipelined.kernels:
        mean = sum(row.memory_parts.values()) / row.rectangle.area
        assert 0.5 * row.memory_per_pe_bytes < mean <= row.memory_per_pe_bytes
    product = next(row for row in report.pipelined.kernels if row.kernel.family == "fully_connected")
    assert product.memory_parts["code"] == 6825 * product.rectangle.area
    resident = sum(product.memory_parts[use] for use in ("weights", "optimizer_state"))
    assert resident == product.kernel.parameters["resident_bytes"]
    assert product.memory_parts["stash"] == product.kernel.stash_bytes(1)
    html = render_html(report)
    assert "weights and gradients " in html
    assert '<rect class="stash"' in html


def test_long_names_break_after_separators_only() -> None:
    html = render_html(named_report("encoder.layer_12.dense__1", "src/models/very_long_file.py:12"))
    assert ">encoder.<wbr>layer_<wbr>12.<wbr>dense__<wbr>1</a>" in html
    assert "<code>very_long_file.py:12</code>" in html
    assert "Source lines are in <code>src/models/</code>" in html


def test_estimates_are_called_estimates(page: Page) -> None:
    assert "All figures are estimates for the wafer" in page.text
    assert "not the speed of the simulator" in page.text


@pytest.mark.parametrize(
    ("limit", "headline", "sentence"),
    [
        (
            Limit("compute", Reason.FASTEST_LAYOUT),
            "Kernel {name} bounds",
            "Compute is the limit: kernel {name} ",
        ),
        (Limit("compute", Reason.AREA_TOO_DEAR), "Kernel {name} bounds", "costs more area than the gain is"),
        (
            Limit("transmission", Reason.FASTEST_LAYOUT),
            "Kernel {name} bounds",
            "Transmission is the limit: the busiest link of kernel {name} ",
        ),
        (Limit("area", Reason.WAFER_FULL), "The area of the wafer bounds", "Area is the limit: all kernels "),
    ],
)
def test_the_verdict_names_kernel_limit_and_suggestion(
    report: CompileReport, limit: Limit, headline: str, sentence: str
) -> None:
    text = Page(render_html(changed(report, limit=limit))).text
    name = report.pipelined.performance.bottleneck
    assert headline.format(name=name) in text
    assert sentence.format(name=name) in text
    assert f"{report.pipelined.performance.overall.deltat_cycles:,} cycles" in text


def test_the_verdict_where_the_host_input_is_too_slow(report: CompileReport) -> None:
    slow = changed(
        report,
        performance=dataclasses.replace(report.pipelined.performance, bottleneck=INPUT),
        limit=Limit("transmission", Reason.HOST_INPUT),
    )
    text = Page(render_html(slow)).text
    assert "The host input bounds the speed" in text
    assert f"one sample of {report.pipelined.input_bytes_per_sample:,} bytes" in text
    assert text.count("bounds the speed") == 1, "no kernel is marked"


def test_every_column_and_figure_is_defined(page: Page) -> None:
    headers = page.all("th", scope="col")
    undefined = [header for header in headers[:21] if not header.get("title")]
    assert len(undefined) == 3, "only numbers and name explain themselves"
    for term in ("Compute utilization", "Active PEs", "Cycles per sample (delta_t)", "Memory per PE"):
        assert term in page.text.split("What the figures mean")[1]


def test_the_page_needs_nothing_from_outside(html: str, page: Page) -> None:
    assert page.all("link") == page.all("img") == page.all("iframe") == []
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|@import|url\((?!#)", html)
    (policy,) = [a["content"] or "" for a in page.all("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy


def test_names_and_sources_of_a_program_stay_text() -> None:
    html = render_html(hostile_report())
    page = Page(html)
    assert page.all("img") == []
    assert len(page.all("script")) == 1
    assert html.count("<script>") == 1
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not (attributes.get("href") or "").startswith("javascript")
    assert HOSTILE in page.text, "and can be read as they are"


def test_references_inside_the_page_lead_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        assert (attributes.get("href") or "").removeprefix("#") in {"", *ids}


def luminance(color: str) -> float:
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def themes(html: str) -> Iterator[dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    assert len(blocks) == 4, "light and dark, of all reports and of this one"
    for common, own in ((blocks[0], blocks[2]), (blocks[1], blocks[3])):
        yield dict(re.findall(r"--([a-z]+\d?): (#[0-9a-f]{6});", common + own))


def test_text_can_be_read_in_light_and_dark(html: str) -> None:
    """WCAG 2.1, level AA: 4.5 for text, 3 for graphics."""
    pairs = [(f"t{step}", f"u{step}") for step in range(10)]
    pairs += [(ink, paper) for ink in ("ink", "muted") for paper in ("surface", "page", "fabric")]
    pairs += [("accent", "surface"), ("accent", "badge"), ("link", "surface"), ("ink", "hover")]
    for theme in themes(html):
        for text, paper in pairs:
            assert contrast(theme[text], theme[paper]) >= 4.5, (text, paper)
        assert contrast(theme["flow"], theme["halo"]) >= 3
        for use in ("weights", "optimizer", "activations", "stash", "code"):
            assert contrast(theme[use], theme["fabric"]) >= 3, use


def test_the_same_report_gives_the_same_bytes(report: CompileReport, html: str) -> None:
    assert render_html(report) == html
