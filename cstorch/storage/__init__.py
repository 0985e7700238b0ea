"""How checkpoints are stored."""

from cstorch.storage import constants, serializers

__all__ = ["constants", "serializers"]
