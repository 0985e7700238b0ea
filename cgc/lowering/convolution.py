"""Lowering of convolutions, of images (`images`) and of volumes (`volumes`)."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.lowering import images, volumes
from cgc.lowering.table import Table

LOWERINGS: Table = {ops.ConvolutionOp: volumes.on_volumes(images.convolution, volumes.convolution)}
