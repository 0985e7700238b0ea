"""`cbtorch.core`: tasks and steps (`cb_model`), modes, names of layers."""

from cstorch.core.annotation import name_scope
from cstorch.v1.session.core import appliance, cb_model, modes

__all__ = ["appliance", "cb_model", "modes", "name_scope"]
