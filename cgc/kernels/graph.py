"""Kernels and the edges between them: plain data without IR, for placement and the performance model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cgc.errors import KernelGraphError
from cgc.kernels.generated import GeneratedKernel

_HALF_BYTES = 2  # of an element of 16 bits
_CONVERT_MILLICYCLES = 500  # of an element, between 16 and 32 bits (`simple` of `cgc.kernels.coefficients`)
_PRODUCTS = frozenset({"fully_connected", "convolution", "matmul", "attention"})


@dataclass(frozen=True)
class Kernel:
    """One stage of the layer pipeline: the ops that run on one rectangle of the fabric.

    Attributes:
        name: dotted, unique in its graph.
        family: key of `cgc.kernels.families.FAMILIES`; selects the cost function.
        parameters: arguments of the cost function.
        ops: mnemonics of its ops in program order, e.g. "cirh.MatMul".
        op_indices: positions of these ops in the body of `@graph`.
        source: the user's line as "file:line", where known.
        generated: no rule of the kernel library matched.
        loops: loop nests of a generated kernel, which replace the cost function.
        samples_in_flight: samples between the kernel's forward and backward pass at full throughput.
        gradient_bytes: sums over the samples of a step that the kernel holds when its state is updated:
            gradients of its weights, and moments of the samples.
        optimizer_share: share of its resident data that only the weight update reads, 0 to 1.
    """

    name: str
    family: str
    parameters: Mapping[str, int]
    ops: tuple[str, ...] = ()
    op_indices: tuple[int, ...] = ()
    source: str | None = None
    generated: bool = False
    loops: GeneratedKernel | None = None
    samples_in_flight: float = 1.0
    gradient_bytes: int = 0
    optimizer_share: float = 0.0

    def samples(self, fill: float) -> float:
        """Return the number of samples that wait for their backward pass.

        Args:
            fill: samples in flight between kernels, as a share of `samples_in_flight`.
        """
        return 1 + (self.samples_in_flight - 1) * fill

    def stash_bytes(self, fill: float) -> int:
        """Return the bytes of activations of all samples that wait for their backward pass."""
        return math.ceil(self.samples(fill) * self.parameters.get("stash_bytes", 0))

    def without_stash(self) -> Kernel:
        """Return the kernel without stashed activations, for a layer that runs by itself.

        All samples of the step pass forward before the first one passes backward.
        """
        return replace(self, parameters={**self.parameters, "stash_bytes": 0}, samples_in_flight=1.0)

    def of_replica(self, replicas: int) -> Kernel:
        """Return the kernel for one of several copies of the model, which share the samples of a step."""
        loops = None if self.loops is None else replace(self.loops, replicas=replicas)
        batch = self.parameters.get("batch", replicas) // replicas
        return replace(self, parameters={**self.parameters, "batch": batch}, loops=loops)

    def with_batch(self, times: int) -> Kernel:
        """Return the kernel for a step of `times` as many samples."""
        loops = None if self.loops is None else replace(self.loops, batch=times * self.loops.batch)
        if "batch" not in self.parameters:
            return replace(self, loops=loops)
        parameters = {**self.parameters, "batch": times * self.parameters["batch"]}
        return replace(self, parameters=parameters, loops=loops)

    def in_16_bits(self) -> Kernel:
        """Return about the same kernel with activations and their gradients in 16 bits.

        The rewritten step has other kernels for some conversions, and masks in the stash keep their size.
        """
        sizes = self.parameters
        if sizes.get("element_bytes") != 2 * _HALF_BYTES:
            return self
        # Products accumulate the gradients of their weights in 16 bits, and convert these for the update.
        saved = self.gradient_bytes // 2 if self.family in _PRODUCTS else 0
        changed = {
            "element_bytes": _HALF_BYTES,
            "stash_bytes": -(-sizes.get("stash_bytes", 0) // 2),
            "resident_bytes": max(0, sizes.get("resident_bytes", 0) - saved),
            "step_millicycles": sizes.get("step_millicycles", 0)
            + _CONVERT_MILLICYCLES * saved // _HALF_BYTES,
        }
        parameters = {**sizes, **{name: size for name, size in changed.items() if name in sizes}}
        return replace(self, parameters=parameters, gradient_bytes=self.gradient_bytes - saved)


@dataclass(frozen=True)
class Edge:
    """Elements that stream from one kernel to another for every sample.

    A value of the step, such as weights, counts with 1 / batch size of its elements, rounded up.
    """

    src: str
    dst: str
    elements_per_sample: int


@dataclass(frozen=True)
class KernelGraph:
    """All kernels of a step in data-flow order, and the streams between them.

    Attributes:
        kernels: ordered by their first op.
        edges: at most one for an ordered pair of kernels; forward and backward streams are two edges.
        batch_size: samples of one step.
        input_bytes_per_sample: bytes that the hosts send for one sample.
    """

    kernels: tuple[Kernel, ...]
    edges: tuple[Edge, ...] = ()
    batch_size: int = 1
    input_bytes_per_sample: int = 0
    by_name: Mapping[str, Kernel] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {kernel.name: kernel for kernel in self.kernels}
        if len(by_name) != len(self.kernels):
            names = [kernel.name for kernel in self.kernels]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise KernelGraphError(
                f"kernel names {', '.join(twice)} occur twice; give every kernel its own name"
            )
        for edge in self.edges:
            for end in (edge.src, edge.dst):
                if end not in by_name:
                    raise KernelGraphError(f"edge {edge.src} -> {edge.dst}: there is no kernel {end!r}")
        object.__setattr__(self, "by_name", by_name)

    def of_replica(self, replicas: int) -> KernelGraph:
        """Return the graph of one of several copies of the model, which share the samples of a step equally.

        Args:
            replicas: number of copies; a divisor of `batch_size`.
        """
        # Edges do not change: values of the step count with their share of the whole batch.
        kernels = tuple(kernel.of_replica(replicas) for kernel in self.kernels)
        return replace(self, kernels=kernels, batch_size=self.batch_size // replicas)

    def with_batch(self, times: int) -> KernelGraph:
        """Return the graph of a step of `times` as many samples."""
        kernels = tuple(kernel.with_batch(times) for kernel in self.kernels)
        return replace(self, kernels=kernels, batch_size=times * self.batch_size)

    def in_16_bits(self) -> KernelGraph:
        """Return about the same graph with activations and their gradients in 16 bits."""
        return replace(self, kernels=tuple(kernel.in_16_bits() for kernel in self.kernels))
