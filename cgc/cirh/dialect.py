"""The CIRH dialect."""

from __future__ import annotations

from xdsl.ir import Dialect

from cgc.cirh.ops import ALL_OPS

CIRH = Dialect("cirh", list(ALL_OPS), [])
