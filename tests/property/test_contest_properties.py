"""Solutions of random contest graphs are legal and score the same in an independent check."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.ispd2020.format import ContestError, format_solution, parse_graph, parse_solution
from benchmarks.ispd2020.score import score
from benchmarks.ispd2020.solve import solve


@st.composite
def graphs(draw: st.DrawFn) -> str:
    count = draw(st.integers(1, 8))
    width, height = draw(st.integers(20, 70)), draw(st.integers(20, 70))
    weights = [draw(st.sampled_from([0, 1, 4, 100])) for _ in range(3)]
    lines = [
        f"(*\ntest=random\nwidth={width}\nheight={height}\nwdeltat={weights[0]}\nwlength={weights[1]}",
        f"wadapter={weights[2]}\nmemlimit={draw(st.sampled_from([150, 1000, 24576]))}\n*)",
    ]
    for number in range(count):
        size = [draw(st.integers(1, 20)) for _ in range(2)]
        kind = draw(st.sampled_from(["conv", "conv", "dblock", "cblock"]))
        if kind == "conv":
            c, k = draw(st.integers(1, 40)), draw(st.integers(1, 40))
            r, s, t = (draw(st.integers(1, 3)) for _ in range(3))
            text = f"W={size[0]} H={size[1]} R={r} S={s} C={c} K={k} T={t} U={t}"
        else:
            text = f"f={4 * draw(st.integers(1, 8))} h={size[0]} w={size[1]}"
        lines.append(f"{kind}[{number}] {text} name='n{number}'")
    indices = st.integers(0, count - 1)
    for source, target in draw(st.lists(st.tuples(indices, indices), max_size=12)):
        lines.append(f"any[{source}]:y -> any[{target}]:x, shape:[1][1][1]")
    return "\n".join(lines)


def conv(sizes: list[int], splits: list[int]) -> tuple[int, int, float, float]:
    """Height, width, time and memory as the contest's text gives them."""
    (h, w, c, k, r, s, t), (h_, w_, c_, k_) = sizes, splits
    time = math.ceil(h / h_) * math.ceil(w / w_) * math.ceil(c / c_) * math.ceil(k / k_) * r * s / t / t
    memory = c / c_ * k / k_ * r * s + (w + s - 1) / w_ * (h + r - 1) / h_ * k / k_
    return h_ * w_ * (c_ + 1), 3 * k_, time, memory


def parts(kind: str, numbers: list[int]) -> list[tuple[int, int, float, float]]:
    if kind == "conv":
        h, w, c, k, r, s, t, _, *splits = numbers
        return [conv([h, w, c, k, r, s, t], splits)]
    h, w, f, h_, w_, *rest = numbers
    q, half = f // 4, f // 2
    if kind == "dblock":
        sizes = [[h, w, f, q, 1, 1, 1], [h, w, q, q, 3, 3, 1], [h, w, q, f, 1, 1, 1]]
    else:
        small = [math.ceil(h / 2), math.ceil(w / 2)]
        sizes = [
            [h, w, half, q, 1, 1, 1],
            [h, w, q, q, 3, 3, 2],
            [*small, q, f, 1, 1, 1],
            [h, w, half, f, 1, 1, 2],
        ]
    count = len(sizes)
    return [conv(size, [h_, w_, rest[i], rest[count + i]]) for i, size in enumerate(sizes)]


def brute_force(graph: str, paint: str) -> tuple[float, float]:
    """Time and wires of a legal solution, only from the texts, tile by tile."""
    header = {key: float(value) for key, value in re.findall(r"(\w+)=([\d.]+)$", graph, re.MULTILINE)}
    taken: set[tuple[int, int]] = set()
    centers, slowest = {}, 0.0
    for name, kind, arguments in re.findall(r"(\w+) = (\w+block|conv)\((.*?)\)", paint):
        shapes = parts(kind, [int(number) for number in arguments.split()])
        place = re.search(rf"{name} : place\((\d+) (\d+) (\w+)\)", paint)
        assert place is not None
        x, y = int(place[1]), int(place[2])
        across, up = sum(shape[1] for shape in shapes), max(shape[0] for shape in shapes)
        if place[3] == "R90":
            across, up = up, across
        tiles = {(i, j) for i in range(x, x + across) for j in range(y, y + up)}
        assert not tiles & taken
        assert x + across <= header["width"]
        assert y + up <= header["height"]
        assert max(shape[3] for shape in shapes) <= header["memlimit"]
        taken |= tiles
        centers[name] = (x + across / 2, y + up / 2)
        slowest = max(slowest, *(shape[2] for shape in shapes))
    assert sorted(centers) == sorted(re.findall(r"name='(\w+)'", graph))
    wires = 0.0
    for source, target in re.findall(r"any\[(\d+)\]:y -> any\[(\d+)\]", graph):
        one, other = centers[f"n{source}"], centers[f"n{target}"]
        wires += abs(one[0] - other[0]) + abs(one[1] - other[1])
    return slowest, wires


@settings(max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_solutions_are_legal_and_scored_alike_by_brute_force(text: str) -> None:
    graph = parse_graph(text)
    try:
        result = solve(graph, 0.5, moves_per_round=200)
    except ContestError:
        # A kernel, or all of them together, may be too large for so small a fabric.
        return
    paint = format_solution(graph, result.solution)
    time, wires = brute_force(text, paint)
    assert (result.score.time, result.score.wires) == pytest.approx((time, wires))
    total = graph.wdeltat * time + graph.wlength * wires + graph.wadapter * result.score.adapters
    assert math.isclose(result.score.objective, total)
    assert result.score.objective >= result.known_bounds.objective * (1 - 1e-9)
    assert score(graph, parse_solution(paint, graph)) == result.score
