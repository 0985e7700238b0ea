"""Options of the compiler's stack."""

from cs_toolkit.messages import Message


class FullConfig(Message):
    """Options for every stage of the original compiler; kept for the program to read, without effect here."""
