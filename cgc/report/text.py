"""The report for people: `compile_report.txt`, and the kernel list of a validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cgc.kernels.graph import Kernel, KernelGraph
from cgc.manifest import Provenance
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.model import CompileReport, LayerReport, StreamedReport
from cgc.report.replicas import render_replicas
from cgc.report.suggestions import Reason, suggest_changes
from cgc.report.tables import table
from cgc.report.what_if import describe_kernel_change, describe_step_change
from cs_toolkit.fabric import Fabric

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
_LAYER_COLUMNS = (
    "Layer",
    "Compute ms",
    "Weights MB",
    "Exposed transfer ms",
    "Activations MB",
    "Copies",
    "Active PEs",
)


def render_text(report: CompileReport, made: Provenance | None = None) -> str:
    """Render the `compile_report.txt` of a pipelined step.

    Args:
        report: all figures.
        made: provenance of the compile, if known.
    """
    overall = report.performance.overall
    # Published reports have this head, with whole percentages.
    head = (
        ("Samples/s", f"{overall.samples_per_s:.1f}"),
        ("Compute Samples/s", f"{overall.compute_samples_per_s:.1f}"),
        ("Transmission Samples/s", f"{overall.transmission_samples_per_s:.1f}"),
        ("Active PEs", f"{overall.active_pes_percent:.0f}%"),
        ("Compute Utilization", f"{overall.compute_utilization_percent:.0f}%"),
    )
    sections = [_render_head(head), _render_compilation(report, made)]
    sections += [_render_kernels(report), _render_families(report)]
    sections += _render_loops([row.kernel for row in report.kernels])
    if report.replicas is not None:
        sections.append(render_replicas(report.replicas, report.fabric))
    title = ""
    if report.bottleneck is not None:
        name, cycles = report.bottleneck.kernel.name, overall.deltat_cycles
        title = f"{name}, {cycles:,} cycles now, with one change at its fastest layout:"
    # Without a bottleneck the host input is the limit, which no change of a kernel lifts.
    changes = report.changes if report.bottleneck is not None else ()
    effects = [(change.change, describe_kernel_change(change)) for change in changes]
    sections += [render_verdict(report), _render_suggestions(report.suggestions, title, effects)]
    notes = (
        f"{_describe_estimates(report.fabric)}\n"
        "Active PEs: share of the fabric that the kernels' rectangles cover.\n"
        "Compute Utilization: share of the time in which the active PEs run kernel code."
    )
    return "\n\n".join([*sections, *report.notices, notes]) + "\n"


def render_verdict(report: CompileReport) -> str:
    """Render a line with the kernel that bounds the speed and the kind of limit."""
    cycles = report.performance.overall.deltat_cycles
    slowest = report.bottleneck
    if slowest is None:
        count = 1 if report.replicas is None else report.replicas.copies.count
        of_each_copy = f" of each of the {count:,} copies" if count > 1 else ""
        return (
            f"Verdict: the host input bounds the speed: {report.fabric.io_links} Ethernet links need "
            f"{cycles:,} cycles per sample{of_each_copy} (transmission)."
        )
    kernel = slowest.kernel
    where = f" at {kernel.source}" if kernel.source else ""
    if report.limit.reason is Reason.ACTIVATIONS:
        return (
            f"Verdict: memory for activations bounds the speed: a sample is admitted every {cycles:,} "
            f"cycles, the kernels would take one every {report.placement.target_cycles:,}; kernel "
            f"{kernel.name}{where} holds the most."
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


def render_kernel_list(graph: KernelGraph) -> str:
    """Render the kernels that a validation found, one row each, with the user's source line."""
    rows = [
        (
            kernel.name,
            kernel.family,
            "generated" if kernel.generated else "matched",
            str(len(kernel.ops)),
            kernel.source or "--",
        )
        for kernel in graph.kernels
    ]
    ops = sum(len(kernel.ops) for kernel in graph.kernels)
    title = f"{len(graph.kernels)} kernels for {ops} ops, {graph.batch_size} samples per step"
    header = ("Kernel Name", "Family", "Origin", "Ops", "Source")
    return "\n\n".join([title, table(header, rows, left=(0, 1, 2, 4)), *_render_loops(graph.kernels)]) + "\n"


def render_streamed_text(report: StreamedReport, made: Provenance | None = None) -> str:
    """Render the `compile_report.txt` of a step that is executed by weight streaming.

    Args:
        report: all figures.
        made: provenance of the compile, if known.
    """
    performance, fabric = report.performance, report.fabric
    head = (
        ("Samples/s", f"{report.samples_per_s:.1f}"),
        ("Execution", "weight streaming"),
        ("Layers", f"{len(report.layers):,}"),
        ("Batch", f"{report.batch_size:,} in {performance.micro_batches:,} micro-batch(es)"),
        ("Recomputed layers", f"{len(report.recomputed):,}"),
        ("Active PEs", f"{100 * report.active_pes / fabric.processing_elements:.0f}%"),
    )
    effects = [(change.change, describe_step_change(change)) for change in report.changes]
    sentences = suggest_kernel_changes(report)
    conclusion = [render_streamed_verdict(report)]
    if sentences or effects:
        conclusion.append(_render_suggestions(sentences, "The step with one change:", effects))
    notes = (
        f"{_describe_estimates(fabric)}\n"
        "Compute: forward and backward part of the layer, all samples of a step.\n"
        "Weights: sent to the wafer for the forward part; many are sent again for the backward part.\n"
        "Exposed transfer: weights and gradients that compute does not hide.\n"
        "Activations: values kept for the backward pass; all: the most at a time.\n"
        "Copies: of the layer, side by side on the wafer; each computes its own samples.\n"
        "Sets the pace: compute of the layers whose slowest kernel is of this family.\n"
        "PE time: share of the kernels' PEs, each for as long as its layer computes."
    )
    sections = [
        _render_head(head),
        _render_compilation(report, made),
        _render_times(report),
        _render_layers(report),
        _render_layer_families(report),
        "\n".join([*conclusion, *report.notices]),
        notes,
    ]
    return "\n\n".join(sections) + "\n"


def render_streamed_verdict(report: StreamedReport) -> str:
    """Render a sentence with the part of the step that bounds the rate, its figures and its cause."""
    performance = report.performance
    share = 100 * performance.parts[performance.bound_by] / performance.step_s
    step = f"{1e3 * performance.step_s:.3g} ms"
    start = f"Verdict: {performance.bound_by} bounds the rate: {share:.0f}% of a step of {step}"
    helping = next((change for change in report.changes if change.helps), None)
    remark = f"; {helping.change} would be {helping.samples_per_s:,.1f} samples/s" if helping else ""
    match performance.bound_by:
        case "compute":
            return f"{start}; layer {report.slowest.placed.name} computes the longest."
        case "latency":
            return f"{start} is the start of {len(report.layers):,} layers, whatever the batch{remark}."
        case "weight bandwidth":
            layer, link = report.most_exposed.placed.name, report.fabric.io_bytes_per_s / 1e9
            return (
                f"{start} are transfers at {link:.0f} GB/s that compute does not hide, most of them in layer "
                f"{layer}{remark}."
            )
        case "activation memory" if performance.fits_at_once:
            return (
                f"{start} is spent on passes after the first: the program asks for "
                f"{performance.micro_batches:,} micro-batches, of {_mb(performance.activation_bytes)} MB of "
                f"activations each, and the wafer has room for {_mb(performance.activation_room_bytes)} MB."
            )
        case "activation memory":
            return (
                f"{start} is spent on passes after the first: activations of a batch take "
                f"{_mb(performance.activation_bytes)} MB, the wafer has room for "
                f"{_mb(performance.activation_room_bytes)} MB, so a batch is split into "
                f"{performance.micro_batches:,}"
                f"{'; 16-bit activations take less' if report.precision == 'float32' else ''}."
            )
        case "update":
            return f"{start} is the update of the weights at MemoryX{remark}."


def suggest_kernel_changes(report: StreamedReport) -> tuple[str, ...]:
    """Write a sentence on the slowest layer's slowest kernel; nothing unless compute bounds the rate."""
    slowest = report.kernel
    if slowest is None or report.performance.bound_by != "compute":
        return ()
    return (
        f"Kernel {slowest.kernel.name} sets the pace of layer {slowest.layer}, {slowest.cycles:,} cycles a "
        f"sample in each copy of it. {suggest_changes(slowest.kernel, slowest.changes)}",
    )


def _render_head(values: Sequence[tuple[str, str]]) -> str:
    return "\n".join([_TITLE, _RULE, *(_render_label(label, value) for label, value in values)])


def _render_label(label: str, value: str) -> str:
    return f"{label + ':':<{_LABEL_WIDTH}}{value}"


def _render_compilation(report: CompileReport | StreamedReport, made: Provenance | None) -> str:
    """Render the known facts about the program, and the settings of its compile."""
    known, fabric = dict((made or Provenance()).lines()), report.fabric
    size = f"{fabric.name}, {fabric.width:,} x {fabric.height:,} PEs at {fabric.clock_hz / 1e6:,.0f} MHz"
    program = {label: known.pop(label) for label in ("Model", "Program", "Command") if label in known}
    lines = {
        **program,
        "Precision": str(report.precision),
        "Batch": f"{report.batch_size:,} samples a step",
        "Fabric": size,
        **known,
    }
    return "\n".join(_render_label(label, text) for label, text in lines.items())


def _render_suggestions(sentences: Iterable[str], title: str, effects: Sequence[tuple[str, str]]) -> str:
    """Render sentences, then under `title` each change with its effect."""
    lines = ["To go faster:", *(f"  {sentence}" for sentence in sentences)]
    if effects:
        width = max(len(change) for change, _ in effects)
        lines += [f"  {title}", *(f"    {change:<{width}}  {effect}" for change, effect in effects)]
    return "\n".join(lines)


def _describe_estimates(fabric: Fabric) -> str:
    return (
        f"All figures are estimates of time on the wafer ({fabric.name}, {fabric.processing_elements:,} PEs, "
        f"{fabric.clock_hz / 1e6:.0f} MHz), not of the simulator."
    )


def _render_loops(kernels: Iterable[Kernel]) -> list[str]:
    """Render the generated kernels with a line for each loop nest; an empty list if none is generated."""
    lines = []
    for kernel in kernels:
        if kernel.loops is not None:
            lines += [
                f"  {kernel.name} ({kernel.family})",
                *(f"    {nest}" for nest in kernel.loops.describe()),
            ]
    if not lines:
        return []
    return ["\n".join(["Generated kernels, from loop nests; all others are kernels of the library:", *lines])]


def _render_kernels(report: CompileReport) -> str:
    """Render a row for each kernel and one for all."""
    overall = report.performance.overall
    named = [(row.kernel.name, row.figures, "") for row in report.kernels]
    rows = [
        (
            name,
            f"{figures.samples_per_s:.1f}",
            f"{figures.compute_samples_per_s:.1f}",
            f"{figures.transmission_samples_per_s:.1f}",
            f"{figures.active_pes}{share}",
            f"{figures.compute_utilization_percent:.2f}%",
        )
        for name, figures, share in [*named, ("overall", overall, f" ({overall.active_pes_percent:.2f}%)")]
    ]
    return table(_COLUMNS, rows)


def _render_families(report: CompileReport) -> str:
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


def _render_times(report: StreamedReport) -> str:
    """Render the parts of a step's time and their sum."""
    step_s = report.performance.step_s
    rows = [
        (part, f"{1e3 * seconds:.3f}", f"{100 * seconds / step_s:.1f}%")
        for part, seconds in [*report.performance.parts.items(), ("step", step_s)]
    ]
    return table(("Time of a step", "ms", "Share"), rows)


def _render_layers(report: StreamedReport) -> str:
    """Render a row for each layer and one for all."""
    rows = [_render_layer(layer) for layer in report.layers]
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


def _render_layer(layer: LayerReport) -> tuple[str, ...]:
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


def _render_layer_families(report: StreamedReport) -> str:
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


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f}"
