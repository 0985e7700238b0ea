from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from cs_system.monitoring.numbers import figure, si
from cs_system.monitoring.page import SECTIONS, Page, draw, make_plots
from cs_system.monitoring.recorder import CurvePoint
from cs_system.status import Event, QueuedJob
from cs_toolkit.floorplan import Floorplan, PlacedKernel
from tests.unit.cs_system.monitoring.snapshots import IDLE, INFO, NOW, PLAN, RUN, SNAPSHOT

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
VOID = {"meta", "link", "img"}


class Tags(HTMLParser):
    """Collects tags with their attributes, and checks that they are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_the_page_has_all_sections_and_balanced_tags():
    tags = Tags(Page().document(SNAPSHOT)).tags
    assert tuple(attrs["id"] for tag, attrs in tags if tag == "section") == SECTIONS
    assert all("style" not in attrs and not any(name.startswith("on") for name in attrs) for _, attrs in tags)


def test_an_idle_system_says_so_in_every_section():
    html = Page().document(IDLE)
    Tags(html)
    for text in ("no job holds the system", "No input is open", "No program is loaded", "No job waits"):
        assert text in html


def test_a_run_shows_its_figures():
    sections = Page().sections(SNAPSHOT)
    for text in (
        "job-7",
        "ada@login1",
        "1 min 30 s",
        "1,200",
        "2140",
        "548 k",
        "0.25",
        "input-bound",
        "1 kB/s",
    ):
        assert text in sections["state"], text
    for text in ("keeps up", "lost", "node2", "16 batches", "2 reconnects: the connection was reset", "90%"):
        assert text in sections["workers"], text
    assert "weight streaming, on 2 wafers" in sections["wafer"]
    assert "1.25 M samples/s" in sections["wafer"]
    assert "bob@login2" in sections["queue"]
    # The newest event comes first.
    assert sections["events"].index("worker 1 is lost") < sections["events"].index("reserved")


def test_names_of_strangers_are_text():
    kernel = PlacedKernel(HOSTILE, 0, 0, 5, 5, 1.0)
    worker = replace(RUN.workers[1], host=HOSTILE, last_error=HOSTILE, phase=HOSTILE)
    run = replace(
        RUN, job=HOSTILE, owner=HOSTILE, artifact=HOSTILE, execution=HOSTILE, late=HOSTILE, slow=HOSTILE
    )
    info = replace(
        INFO,
        state=HOSTILE,
        run=replace(run, workers=(worker,)),
        queue=(QueuedJob(HOSTILE, HOSTILE, NOW),),
        events=(Event(NOW, HOSTILE, HOSTILE, HOSTILE),),
    )
    plan = replace(PLAN, kernels=(kernel,), bound_by=(HOSTILE,), reason=HOSTILE, part=HOSTILE)
    html = Page().document(replace(SNAPSHOT, info=info, floorplan=plan))
    tags = Tags(html).tags
    assert [attrs for tag, attrs in tags if tag == "script"] == [{"src": "status.js", "defer": None}]
    assert not [attrs for tag, attrs in tags if tag == "img" or any(name.startswith("on") for name in attrs)]


def test_a_snapshot_is_rendered_once_for_all_browsers():
    page = Page()
    first = page.sections(SNAPSHOT)
    assert page.sections(SNAPSHOT) is first
    assert page.sections(replace(SNAPSHOT, time=NOW + 1)) is not first


def test_long_lists_of_workers_are_cut():
    workers = tuple(replace(RUN.workers[0], worker=index) for index in range(300))
    html = Page().sections(replace(SNAPSHOT, info=replace(INFO, run=replace(RUN, workers=workers))))[
        "workers"
    ]
    assert html.count("<tr>") == 257
    assert "and 44 more" in html


def test_a_floorplan_is_cut_to_the_part_in_use():
    drawing = draw(PLAN)
    # Kernels at 10, 10 to 109, 64, and a copy of them 200 columns to the right.
    assert drawing.view == "4 4 312 67"
    assert drawing.copies == ((210, 10, 100, 55),)
    assert [(kernel.name, load, bounds) for kernel, load, bounds in drawing.kernels] == [
        ("fc1", 4, True),
        ("relu", 1, False),
    ]
    assert drawing.used.startswith("columns 10 to 309 and rows 10 to 64 of 740 by 416")


def test_of_many_copies_one_is_drawn():
    plan = replace(PLAN, copies=tuple((120 * number, 0) for number in range(1, 40)))
    drawing = draw(plan)
    assert drawing.copies == ()
    assert drawing.used.endswith("processing elements, one of 40 copies")
    assert drawing.has_loads


def test_a_floorplan_without_kernels_shows_the_fabric():
    assert draw(Floorplan("", 8, 4, (), (), (), "", 0.0)).view == "-1 -1 10 6"


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_scale():
    loss, rate = make_plots([CurvePoint(float(n), n, 5.0, 10.0 ** (-n)) for n in range(5)])
    assert loss.title == "Loss (logarithmic)"
    heights = [float(point.split(",")[1]) for point in loss.points[0].split()]
    assert heights == [0.0, 37.5, 75.0, 112.5, 150.0]
    assert (loss.low, loss.high) == ("0.0001", "1")
    assert rate.title == "Steps per second"
    assert rate.low == "0"


def test_losses_that_are_no_numbers_leave_a_gap():
    values = [1.0, 0.9, float("nan"), float("inf"), 0.8, 0.7]
    loss, _ = make_plots([CurvePoint(float(n), n, 5.0, value) for n, value in enumerate(values)])
    assert [len(points.split()) for points in loss.points] == [2, 2]
    assert loss.last == "0.7"


def test_there_are_no_curves_before_two_points_and_no_loss_without_one():
    assert make_plots(()) == ()
    points = [CurvePoint(float(n), n, 5.0, None) for n in range(3)]
    assert [plot.title for plot in make_plots(points)] == ["Steps per second"]


def test_numbers_are_short():
    assert [si(value) for value in (0, 0.5, 312, 999.7, 1250, 2.5e6, 7e15)] == [
        "0", "0.5", "312", "1 k", "1.25 k", "2.5 M", "7000 T",
    ]  # fmt: skip
    assert [figure(value) for value in (0.00012345, 12.3456, 123456.7, 1.42e10, float("nan"))] == [
        "0.0001234", "12.35", "123,457", "1.42e+10", "nan",
    ]  # fmt: skip
