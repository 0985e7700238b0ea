"""The rate of weight streaming in one formula: where the latency of a layer comes from.

With weight streaming the weights of one layer at a time come to the wafer, so that memory of the PEs does not
limit the size of a model. Published measurements on one CS-2 (arXiv 2409.00287, tables IV and V; 2.7 to 20
billion parameters, and BERT) fit

    seconds per step = layers * LAYER_S + FLOP per sample * samples / FLOP_PER_S

to about 25 %, which is how far releases and installations differ among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from cgc.kernels.families import FAMILIES
from cgc.kernels.graph import Kernel, KernelGraph

LAYER_S = 4.5e-3
"""Latency of a layer in a step; seen with small batches, of BERT and of FC-MNIST."""

FLOP_PER_S = 1.9e15
"""Sustained with large batches: a quarter of the peak of 7.5 PFLOP/s."""


@dataclass(frozen=True)
class StreamingEstimate:
    """The estimate.

    Attributes:
        samples_per_s: on one CS-2.
        flop_per_sample: of all matrix products, forward and backward.
        layers: kernels with weights that stream through one after the other.
    """

    samples_per_s: float
    flop_per_sample: float
    layers: int


def streaming_estimate(graph: KernelGraph) -> StreamingEstimate:
    """Estimates a graph; its batch is one micro-batch."""
    flop = sum(kernel_flop(kernel) for kernel in graph.kernels)
    layers = sum(FAMILIES[kernel.family].has_weights for kernel in graph.kernels)
    step_s = layers * LAYER_S / _KERNELS_PER_LAYER + flop * graph.batch_size / FLOP_PER_S
    return StreamingEstimate(graph.batch_size / max(step_s, 1e-12), flop, layers)


_KERNELS_PER_LAYER = 3
"""The layers of the published figures are blocks: an attention and two fully connected kernels."""


def kernel_flop(kernel: Kernel) -> float:
    """Floating point operations per sample of a kernel's products, gradients included."""
    multiplications = FAMILIES[kernel.family].multiplications(kernel.parameters)
    if not multiplications:
        return 0.0
    return 2.0 * kernel.parameters["passes"] * kernel.parameters["rows"] * multiplications
