"""From a recorded step of ATen operations to one CIRH module. Knows no PyTorch: a step comes as data."""

from cgc.importers.aten.graph import Constant, Graph, Node, Tensor
from cgc.importers.aten.handlers import HANDLERS
from cgc.importers.aten.step import import_step, refused

SUPPORTED = frozenset(HANDLERS)
"""Names of the operations that can be imported, such as "aten.addmm.default"."""

__all__ = ["SUPPORTED", "Constant", "Graph", "Node", "Tensor", "import_step", "refused"]
