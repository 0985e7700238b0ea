"""Dead code elimination."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import region_dce


@dataclass(frozen=True)
class DcePass(ModulePass):
    """Removes ops whose results are not used; arguments and results of functions stay."""

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module in place."""
        region_dce(op.body)
