"""Reports of the contest tools, as text and as JSON."""

from __future__ import annotations

from cgc.contest.bounds import Bounds
from cgc.contest.model import ContestGraph
from cgc.contest.score import ADAPTER_NOTE, Score
from cgc.contest.solve import Result

Report = dict[str, object]


def score_json(graph: ContestGraph, score: Score) -> Report:
    """A score with all its terms."""
    report: Report = {
        "test": graph.test,
        "legal": score.legal,
        "faults": list(score.faults),
        "objective": score.objective,
        "time_cycles": score.time,
        "slowest_kernel": score.slowest,
        "wire_length_tiles": score.wires,
        "adapter_cost": score.adapters,
        "weights": {"wdeltat": graph.wdeltat, "wlength": graph.wlength, "wadapter": graph.wadapter},
        "kernels": len(graph.kernels),
        "used_tiles": score.used_tiles,
        "used_share": score.used_tiles / (graph.width * graph.height),
        "largest_memory_words": score.largest_memory,
        "memory_limit_words": graph.memlimit,
    }
    if graph.wadapter:
        report["adapter_note"] = ADAPTER_NOTE
    return report


def score_text(graph: ContestGraph, score: Score) -> str:
    """A score in lines of text."""
    lines = [f"{graph.test or 'graph'}: {'legal' if score.legal else 'ILLEGAL'}"]
    lines += [f"  fault: {fault}" for fault in score.faults]
    used = score.used_tiles / (graph.width * graph.height)
    lines += [
        f"  objective      {score.objective:,.1f}",
        f"  time           {score.time:,.2f} cycles (kernel {score.slowest}), weight {graph.wdeltat:g}",
        f"  wires          {score.wires:,.1f} tiles, weight {graph.wlength:g}",
    ]
    if graph.wadapter:
        lines += [
            f"  adapters       {score.adapters}, weight {graph.wadapter:g}",
            f"  note: {ADAPTER_NOTE}",
        ]
    return "\n".join(
        [
            *lines,
            f"  tiles          {score.used_tiles:,} ({used:.1%})",
            f"  memory         {score.largest_memory:,.1f} of {graph.memlimit:g} words",
        ]
    )


def solve_json(graph: ContestGraph, result: Result) -> Report:
    """The score of the solver's solution, and how far it is from the bounds; these are None if not known."""
    bounds = result.bounds
    return {
        **score_json(graph, result.score),
        "area_bound_cycles": bounds and bounds.area_time,
        "kernel_bound_cycles": bounds and bounds.kernel_time,
        "objective_over_time_bound": bounds and _ratio(graph, result.score, bounds),
        "objective_bound": bounds and bounds.objective,
        "objective_over_bound": bounds and _over(result.score.objective, bounds.objective),
        "seconds": result.seconds,
        "finished": result.finished,
    }


def solve_text(graph: ContestGraph, result: Result) -> str:
    """The same in lines of text."""
    end = "search ended" if result.finished else "stopped before the end of the search"
    return "\n".join(
        [
            score_text(graph, result.score),
            *_bound_lines(graph, result.score, result.bounds),
            f"  seconds        {result.seconds:.1f}, {end}",
        ]
    )


def _bound_lines(graph: ContestGraph, score: Score, bounds: Bounds | None) -> list[str]:
    if bounds is None:
        return ["  bounds         not known, as time was up before"]
    return [
        f"  time bound     {bounds.time:,.1f} cycles by area, memory and splits; objective is "
        f"{_times(_ratio(graph, score, bounds))} of it",
        f"  full bound     {bounds.objective:,.1f} for time and wires; objective is "
        f"{_times(_over(score.objective, bounds.objective))} of it",
    ]


def _ratio(graph: ContestGraph, score: Score, bounds: Bounds) -> float | None:
    return _over(score.objective, graph.wdeltat * bounds.time)


def _over(objective: float, bound: float) -> float | None:
    return objective / bound if bound > 0 else None


def _times(ratio: float | None) -> str:
    return "no multiple" if ratio is None else f"{ratio:.4f} times"
