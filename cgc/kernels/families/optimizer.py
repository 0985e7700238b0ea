"""Updates of parameters that no other kernel holds."""

from __future__ import annotations

from cgc.kernels.family import Naming
from cgc.kernels.loop_cost import loop_family

FAMILY = loop_family(
    name="optimizer",
    doc="update of parameters whose users are in no other kernel",
    naming=Naming.PLAIN,
)
