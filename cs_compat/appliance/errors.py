"""Errors of the original's appliance, which programs raise and catch by name."""

from cs_toolkit.errors import ToolkitError


class ApplianceClientException(ToolkitError):  # noqa: N818 - the original name
    """Base class of all errors of the appliance."""


class ApplianceCompilationError(ApplianceClientException):
    """A step could not be compiled."""


class ApplianceDeadlockError(ApplianceClientException):
    """A run made no progress."""


class ApplianceNanError(ApplianceClientException):
    """A program found a loss that is not a number; programs raise it themselves."""


class ApplianceUnknownError(ApplianceClientException):
    """A run failed for an unknown reason."""


class ApplianceVersionError(ApplianceClientException):
    """Client and appliance have different versions."""


class ClusterJobCancelledByCsctl(ApplianceClientException):
    """A job was cancelled by its user."""


class ClusterJobInitError(ApplianceClientException):
    """A job could not be started."""
