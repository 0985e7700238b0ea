"""The report for people: `compile_report.txt`, and the kernel list of a validation."""

from __future__ import annotations

from collections.abc import Iterable

from cgc.kernels.graph import Kernel, KernelGraph
from cgc.manifest import Provenance
from cgc.performance.model import Figures
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.model import (
    CompileReport,
    KernelReport,
    LayerReport,
    StreamedReport,
    describe_compilation,
    render_compiled,
)
from cgc.report.replicas import render_replicas
from cgc.report.suggestions import Reason, suggest_changes
from cgc.report.tables import table
from cgc.report.what_if import describe_kernel_change, describe_step_change

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
    compiled = render_compiled(describe_compilation(report.precision, report.batch_size, report.fabric, made))
    parts = [_head(report.performance.overall), compiled, _kernel_table(report), _family_table(report)]
    parts += _loops([row.kernel for row in report.kernels])
    if report.replicas is not None:
        parts.append(render_replicas(report.replicas, report.fabric))
    parts += [render_verdict(report), _suggestions(report), *report.notices, _notes(report)]
    return "\n\n".join(parts) + "\n"


def render_verdict(report: CompileReport) -> str:
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


def _suggestions(report: CompileReport) -> str:
    lines = ["To go faster:", *(f"  {sentence}" for sentence in report.suggestions)]
    if report.changes and report.bottleneck is not None:
        name, cycles = report.bottleneck.kernel.name, report.performance.overall.deltat_cycles
        lines.append(f"  {name}, {cycles:,} cycles now, with one change at its fastest layout:")
        width = max(len(change.change) for change in report.changes)
        lines += [
            f"    {change.change:<{width}}  {describe_kernel_change(change)}" for change in report.changes
        ]
    return "\n".join(lines)


def render_kernel_list(graph: KernelGraph) -> str:
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
        for one in sum_families(report.kernels)
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


_LAYER_COLUMNS = (
    "Layer",
    "Compute ms",
    "Weights MB",
    "Exposed transfer ms",
    "Activations MB",
    "Copies",
    "Active PEs",
)


def render_streamed_text(report: StreamedReport, made: Provenance | None = None) -> str:
    """The text of `compile_report.txt`.

    A head, where a step's time goes, tables by layer and by family, the verdict, and what the figures mean.

    Args:
        report: all figures.
        made: where the step comes from.
    """
    words = "\n".join([render_streamed_verdict(report), *_streamed_suggestions(report), *report.notices])
    compiled = render_compiled(describe_compilation(report.precision, report.batch_size, report.fabric, made))
    parts = [
        _streamed_head(report),
        compiled,
        _time(report),
        _layers(report),
        _families(report),
        words,
        _streamed_notes(report),
    ]
    return "\n\n".join(parts) + "\n"


def render_streamed_verdict(report: StreamedReport) -> str:
    """What bounds the rate, with figures, and what would lift that."""
    performance = report.performance
    share = 100 * performance.parts[performance.bound_by] / performance.step_s
    step = f"{1e3 * performance.step_s:.3g} ms"
    start = f"Verdict: {performance.bound_by} bounds the rate: {share:.0f}% of a step of {step}"
    match performance.bound_by:
        case "compute":
            return f"{start}; layer {report.slowest.placed.name} computes the longest."
        case "latency":
            return (
                f"{start} is the start of {len(report.layers):,} layers, whatever the batch"
                f"{_larger_batch(report)}."
            )
        case "weight bandwidth":
            layer, link = report.most_exposed.placed.name, report.fabric.io_bytes_per_s / 1e9
            return (
                f"{start} are transfers at {link:.0f} GB/s that compute does not hide, most of them in layer "
                f"{layer}{_larger_batch(report)}."
            )
        case "activation memory" if performance.fits_at_once:
            return (
                f"{start} goes to passes beyond the first: the program asks for "
                f"{performance.micro_batches:,} micro-batches, of {_mb(performance.activation_bytes)} MB of "
                f"activations each, and the wafer has room for {_mb(performance.activation_room_bytes)} MB."
            )
        case "activation memory":
            return (
                f"{start} goes to passes beyond the first: activations of a batch take "
                f"{_mb(performance.activation_bytes)} MB, the wafer has room for "
                f"{_mb(performance.activation_room_bytes)} MB, so a batch goes through in "
                f"{performance.micro_batches:,}"
                f"{'; 16-bit activations take less' if report.precision == 'float32' else ''}."
            )
        case "update":
            return f"{start} is the update of the weights at MemoryX{_larger_batch(report)}."


def suggest_kernel_changes(report: StreamedReport) -> tuple[str, ...]:
    """Where compute bounds the rate: a sentence on the kernel that sets the pace of the slowest layer."""
    slowest = report.kernel
    if slowest is None or report.performance.bound_by != "compute":
        return ()
    return (
        f"Kernel {slowest.kernel.name} sets the pace of layer {slowest.layer}, {slowest.cycles:,} cycles a "
        f"sample in each copy of it. {suggest_changes(slowest.kernel, slowest.changes)}",
    )


def _streamed_suggestions(report: StreamedReport) -> list[str]:
    sentences = [f"  {sentence}" for sentence in suggest_kernel_changes(report)]
    width = max((len(change.change) for change in report.changes), default=0)
    rates = [f"    {change.change:<{width}}  {describe_step_change(change)}" for change in report.changes]
    changed = ["  The step with one change:", *rates] if rates else []
    return ["To go faster:", *sentences, *changed] if sentences or changed else []


def _larger_batch(report: StreamedReport) -> str:
    """What a larger batch would do, where it helps."""
    larger = next((change for change in report.changes if change.helps), None)
    return "" if larger is None else f"; {larger.change} would be {larger.samples_per_s:,.1f} samples/s"


def _streamed_head(report: StreamedReport) -> str:
    performance, fabric = report.performance, report.fabric
    values = (
        ("Samples/s", f"{report.samples_per_s:.1f}"),
        ("Execution", "weight streaming"),
        ("Layers", f"{len(report.layers):,}"),
        ("Batch", f"{report.batch_size:,} in {performance.micro_batches:,} micro-batch(es)"),
        ("Recomputed layers", f"{len(report.recomputed):,}"),
        ("Active PEs", f"{100 * report.active_pes / fabric.processing_elements:.0f}%"),
    )
    lines = [f"{label + ':':<{_LABEL_WIDTH}}{value}" for label, value in values]
    return "\n".join(["Estimated Overall Performance", "-" * 31, *lines])


def _time(report: StreamedReport) -> str:
    performance = report.performance
    seconds: dict[str, float] = {**dict(performance.parts.items()), "step": performance.step_s}
    rows = [
        (part, f"{1e3 * spent:.3f}", f"{100 * spent / performance.step_s:.1f}%")
        for part, spent in seconds.items()
    ]
    return table(("Time of a step", "ms", "Share"), rows)


def _layers(report: StreamedReport) -> str:
    rows = [_layer_row(layer) for layer in report.layers]
    time, traffic = [layer.time for layer in report.layers], [layer.traffic for layer in report.layers]
    rows.append(
        (
            "all",
            f"{1e3 * sum(one.compute_s for one in time):.3f}",
            _mb(sum(one.weights for one in traffic)),
            f"{1e3 * sum(one.exposed_s for one in time):.3f}",
            _mb(report.performance.activation_bytes),
            "",
            str(report.active_pes),
        )
    )
    return table(_LAYER_COLUMNS, rows)


def _families(report: StreamedReport) -> str:
    """The sums of kernels by family, those that set the pace the longest first."""
    rows = [
        (
            one.family,
            f"{one.kernels:,}",
            f"{one.layers:,}",
            f"{1e3 * one.pace_s:.3f}",
            f"{one.pe_time_percent:.2f}%",
            f"{one.compute_utilization_percent:.2f}%",
        )
        for one in sum_layer_families(report.layers)
    ]
    return table(("Family", "Kernels", "Layers", "Sets the pace ms", "PE time", "Compute Utilization"), rows)


def _layer_row(layer: LayerReport) -> tuple[str, ...]:
    plan = layer.placed.plan
    return (
        layer.placed.name + (" (recomputed)" if layer.recomputed else ""),
        f"{1e3 * layer.time.compute_s:.3f}",
        _mb(layer.traffic.weights),
        f"{1e3 * layer.time.exposed_s:.3f}",
        _mb(layer.traffic.stash),
        str(plan.copies.count if plan.copies else 0),
        str(plan.active_pes),
    )


def _streamed_notes(report: StreamedReport) -> str:
    fabric = report.fabric
    return (
        f"All figures are estimates of time on the wafer ({fabric.name}, {fabric.processing_elements:,} PEs, "
        f"{fabric.clock_hz / 1e6:.0f} MHz), not of the simulator.\n"
        "Compute: forward and backward part of the layer, all samples of a step.\n"
        "Weights: what comes to the wafer for the forward part; much comes again for the backward part.\n"
        "Exposed transfer: weights and gradients that compute does not hide.\n"
        "Activations: what waits for the backward pass; all: the most at once.\n"
        "Copies: of the layer side by side on the wafer; each computes samples of its own.\n"
        "Sets the pace: compute of the layers whose slowest kernel is of this family.\n"
        "PE time: share of the kernels' PEs, each for as long as its layer computes."
    )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f}"
