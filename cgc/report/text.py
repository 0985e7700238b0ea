"""The report for people: `compile_report.txt`, and the kernel list of a validation."""

from __future__ import annotations

from collections.abc import Iterable

from cgc.kernels.graph import Kernel, KernelGraph
from cgc.performance.model import Figures
from cgc.provenance import Provenance
from cgc.report.compiled import compiled_text, what_was_compiled
from cgc.report.families import family_sums
from cgc.report.levers import lever_text
from cgc.report.limit import Reason
from cgc.report.model import CompileReport, KernelReport
from cgc.report.replicas import replicas_text
from cgc.report.tables import table

_TITLE = "Estimated Overall Performance"
_RULE = "-" * 31
_LABEL_WIDTH = 47
_COLUMNS = (
    "Kernel Name",
    "Samples/s",
    "Compute Samples/s",
    "Transmission Samples/s",
    "Active PEs",
    "Compute Utilization",
)


def render_text(report: CompileReport, made: Provenance | None = None) -> str:
    """The text of `compile_report.txt`.

    Seven head lines in the layout of published reports (whole percent), what was compiled, a table with one
    row per kernel (unrounded percent) and one by family, the loops of generated kernels, copies of the model,
    the verdict, what would make it faster, and what the figures mean.

    Args:
        report: all figures.
        made: where the step comes from.
    """
    compiled = compiled_text(what_was_compiled(report.precision, report.batch_size, report.fabric, made))
    parts = [_head(report.performance.overall), compiled, _kernel_table(report), _family_table(report)]
    parts += _loops([row.kernel for row in report.kernels])
    if report.replicas is not None:
        parts.append(replicas_text(report.replicas, report.fabric))
    parts += [verdict(report), _remedies(report), *report.notices, _notes(report)]
    return "\n\n".join(parts) + "\n"


def verdict(report: CompileReport) -> str:
    """One line: which kernel bounds the speed, and whether compute, transmission or area limits it."""
    cycles = report.performance.overall.deltat_cycles
    slowest = report.bottleneck
    if slowest is None:
        links = f"{report.fabric.io_links} Ethernet links"
        return (
            "Verdict: the host input bounds the speed: "
            f"{links} need {cycles:,} cycles per sample{_of_each_copy(report)} (transmission)."
        )
    kernel = slowest.kernel
    where = f" at {kernel.source}" if kernel.source else ""
    if report.limit.reason is Reason.ACTIVATIONS:
        return (
            f"Verdict: memory for activations bounds the speed: a sample is let in every {cycles:,} cycles, "
            f"the kernels would take one every {report.placement.target_cycles:,}; kernel {kernel.name}"
            f"{where} holds the most."
        )
    others = f" ({report.as_slow} more just as slow)" if report.as_slow else ""
    line = (
        f"Verdict: kernel {kernel.name}{where}{others} bounds the speed: {report.limit.kind} limits it to "
        f"{cycles:,} cycles per sample"
    )
    if report.limit.reason is Reason.WAFER_FULL:
        share = report.performance.overall.active_pes_percent
        line += f"; the kernels take {share:.1f}% of the fabric, larger ones do not fit together"
    return f"{line}."


def _of_each_copy(report: CompileReport) -> str:
    count = 1 if report.replicas is None else report.replicas.copies.count
    return f" of each of the {count:,} copies" if count > 1 else ""


def _remedies(report: CompileReport) -> str:
    lines = ["To go faster:", *(f"  {sentence}" for sentence in report.remedies)]
    if report.levers and report.bottleneck is not None:
        name, cycles = report.bottleneck.kernel.name, report.performance.overall.deltat_cycles
        lines.append(f"  {name}, {cycles:,} cycles now, with one change at its fastest layout:")
        width = max(len(lever.change) for lever in report.levers)
        lines += [f"    {lever.change:<{width}}  {lever_text(lever)}" for lever in report.levers]
    return "\n".join(lines)


def kernel_list_text(graph: KernelGraph) -> str:
    """The kernels that a validation found, one row each, with the user's line."""
    rows = [_kernel_row(kernel) for kernel in graph.kernels]
    ops = sum(len(kernel.ops) for kernel in graph.kernels)
    title = f"{len(graph.kernels)} kernels for {ops} ops, {graph.batch_size} samples per step"
    header = ("Kernel Name", "Family", "Origin", "Ops", "Source")
    parts = [title, table(header, rows, left=(0, 1, 2, 4)), *_loops(graph.kernels)]
    return "\n\n".join(parts) + "\n"


def _loops(kernels: Iterable[Kernel]) -> list[str]:
    """The generated kernels with a line for each loop nest; nothing if there are none."""
    generated = [kernel for kernel in kernels if kernel.loops is not None]
    if not generated:
        return []
    lines = ["Generated kernels, from loop nests; all others are kernels of the library:"]
    for kernel in generated:
        nests = kernel.loops.describe() if kernel.loops else ()
        lines += [f"  {kernel.name} ({kernel.family})", *(f"    {nest}" for nest in nests)]
    return ["\n".join(lines)]


def _kernel_row(kernel: Kernel) -> tuple[str, ...]:
    origin = "generated" if kernel.generated else "matched"
    return kernel.name, kernel.family, origin, str(len(kernel.ops)), kernel.source or "--"


def _head(overall: Figures) -> str:
    values = (
        ("Samples/s", f"{overall.samples_per_s:.1f}"),
        ("Compute Samples/s", f"{overall.compute_samples_per_s:.1f}"),
        ("Transmission Samples/s", f"{overall.transmission_samples_per_s:.1f}"),
        ("Active PEs", f"{overall.active_pes_percent:.0f}%"),
        ("Compute Utilization", f"{overall.compute_utilization_percent:.0f}%"),
    )
    lines = [f"{label + ':':<{_LABEL_WIDTH}}{value}" for label, value in values]
    return "\n".join([_TITLE, _RULE, *lines])


def _family_table(report: CompileReport) -> str:
    """The sums of kernels by family, those with the most PEs first."""
    rows = [
        (
            one.family,
            f"{one.kernels}",
            f"{one.active_pes} ({one.active_pes_percent:.2f}%)",
            f"{one.samples_per_s:.1f}",
            f"{one.compute_utilization_percent:.2f}%",
        )
        for one in family_sums(report.kernels)
    ]
    return table(("Family", "Kernels", "Active PEs", "Slowest Samples/s", "Compute Utilization"), rows)


def _kernel_table(report: CompileReport) -> str:
    overall = report.performance.overall
    rows = [_row(kernel) for kernel in report.kernels]
    rows.append(
        (
            "overall",
            f"{overall.samples_per_s:.1f}",
            f"{overall.compute_samples_per_s:.1f}",
            f"{overall.transmission_samples_per_s:.1f}",
            f"{overall.active_pes} ({overall.active_pes_percent:.2f}%)",
            f"{overall.compute_utilization_percent:.2f}%",
        )
    )
    return table(_COLUMNS, rows)


def _row(row: KernelReport) -> tuple[str, ...]:
    figures = row.figures
    return (
        row.kernel.name,
        f"{figures.samples_per_s:.1f}",
        f"{figures.compute_samples_per_s:.1f}",
        f"{figures.transmission_samples_per_s:.1f}",
        str(figures.active_pes),
        f"{figures.compute_utilization_percent:.2f}%",
    )


def _notes(report: CompileReport) -> str:
    fabric = report.fabric
    mhz = fabric.clock_hz / 1e6
    return (
        f"All figures are estimates of time on the wafer ({fabric.name}, {fabric.processing_elements:,} PEs, "
        f"{mhz:.0f} MHz), not of the simulator.\n"
        "Active PEs: share of the fabric that the kernels' rectangles cover.\n"
        "Compute Utilization: share of the time in which the active PEs run kernel code."
    )
