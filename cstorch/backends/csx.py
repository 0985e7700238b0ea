"""Settings of the original's appliance, under the path that programs import them from."""

from cstorch.appliance import Settings, cluster, debug, performance, precision, storage

__all__ = ["Settings", "cluster", "debug", "performance", "precision", "storage"]
