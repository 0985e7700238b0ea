"""Names that the writer and the reader of a checkpoint share."""

from __future__ import annotations

import torch

VERSION = 0.5
SPEC, SUCCESS, VERSION_KEY = "__spec__", "__SUCCESS__", "__version__"
BYTES = "__BYTES__"
"""Attribute of a data set with the pickle of an object."""

METADATA = ".__metadata__"
"""What follows a leaf's key in the name of the attribute that describes it."""

TENSOR, ARRAY, SCALAR, STRING, NONE, OBJECT, LINKED = (
    "TorchTensorSerializer",
    "NumpyArraySerializer",
    "ScalarSerializer",
    "StringSerializer",
    "NoneSerializer",
    "ObjectSerializer",
    "LinkedObject",
)

WIRE_TYPES = {
    torch.bool: 1,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.uint8: 6,
    torch.float16: 10,
    torch.float32: 11,
    torch.float64: 12,
    torch.bfloat16: 15,
}
"""Number of an element type in the format; other types have none, and other readers may refuse them."""
