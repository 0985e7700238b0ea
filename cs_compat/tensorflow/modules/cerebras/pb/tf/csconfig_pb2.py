"""Options of the CS system."""

from typing import Any

from cs_toolkit.messages import Message


class CSConfig(Message):
    """Options of a run.

    Args:
        use_cbfloat16: Compute activations and gradients in cbfloat16.
        **fields: Other options; kept for the program to read, without effect here.
    """

    def __init__(self, use_cbfloat16: bool = False, **fields: Any) -> None:
        super().__init__(use_cbfloat16=use_cbfloat16, **fields)
