"""Import a recorded step of ATen operations as one CIRH module. Knows no PyTorch: a step is plain data."""

from cgc.importers.aten.graph import Check, Constant, Graph, Node, Tensor, check_output
from cgc.importers.aten.handlers.table import COMPLEX_HANDLERS, HANDLERS
from cgc.importers.aten.step import import_step, recording_error

# Names of the operations that can be imported, such as "aten.addmm.default".
SUPPORTED = frozenset(HANDLERS) | frozenset(COMPLEX_HANDLERS)
# Names of the operations that can read complex tensors.
SUPPORTED_COMPLEX = frozenset(COMPLEX_HANDLERS)

__all__ = [
    "SUPPORTED",
    "SUPPORTED_COMPLEX",
    "Check",
    "Constant",
    "Graph",
    "Node",
    "Tensor",
    "check_output",
    "import_step",
    "recording_error",
]
