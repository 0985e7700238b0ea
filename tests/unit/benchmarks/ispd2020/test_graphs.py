"""The generated graphs have the structure and the bounds that were published for the contest's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.contest_graphs import contest_graphs
from benchmarks.ispd2020.bounds import bounds
from benchmarks.ispd2020.curves import graph_curves
from benchmarks.ispd2020.format import parse_graph
from benchmarks.ispd2020.model import ContestGraph

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "ispd2020"

# Letter: kernels, edges without those of input and output, weights of wires and adapters, bound of the time.
TABLE = {
    "A": (16, 15, 1, 0, 33_152),
    "B": (32, 31, 1, 0, 62_181),
    "C": (100, 131, 1, 0, 60_270),
    "D": (52, 67, 1, 0, 32_256),
    "H": (52, 67, 10, 100, 32_256),
    "I": (25, 24, 4, 0, 46_592),
    "J": (79, 103, 4, 0, 45_752),
    "K": (16, 15, 4, 0, 252),
    "L": (52, 67, 4, 0, 252),
    "M": (23, 26, 4, 0, 2_156_544),
    "N": (26, 25, 4, 0, 1_020),
    "S": (23, 26, 400, 400, 2_156_544),
    "T": (26, 25, 40, 400, 1_020),
}


@pytest.fixture(scope="module")
def graphs() -> dict[str, ContestGraph]:
    return {letter: parse_graph(text, letter) for letter, text in contest_graphs().items()}


def test_all_twenty_graphs_exist(graphs: dict[str, ContestGraph]) -> None:
    assert "".join(sorted(graphs)) == "ABCDEFGHIJKLMNOPQRST"


@pytest.mark.parametrize("letter", sorted(TABLE))
def test_published_figures(graphs: dict[str, ContestGraph], letter: str) -> None:
    kernels, edges, wires, adapters, time_bound = TABLE[letter]
    graph = graphs[letter]
    assert (len(graph.kernels), len(graph.edges)) == (kernels, edges)
    assert (graph.wdeltat, graph.wlength, graph.wadapter) == (1, wires, adapters)
    curves = graph_curves(graph.kernels, graph.width, graph.height, graph.memlimit)
    assert bounds(graph, curves).area_time == pytest.approx(time_bound, rel=2e-4)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published graphs are not next to this checkout")
@pytest.mark.parametrize("letter", "ACDIKLN")
def test_same_kernels_and_edges_as_published(graphs: dict[str, ContestGraph], letter: str) -> None:
    published = parse_graph((PUBLISHED / f"{letter}.kgraph").read_text(encoding="utf-8"), letter)

    def content(graph: ContestGraph) -> tuple[Counter[object], Counter[object]]:
        kernels = [(kernel.kind, kernel.formal) for kernel in graph.kernels]
        edges = [(kernels[edge.source], kernels[edge.target]) for edge in graph.edges]
        return Counter(kernels), Counter(edges)

    assert content(graphs[letter]) == content(published)
