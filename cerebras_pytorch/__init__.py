"""`cstorch` under the name that programs of releases 1.9 and 2 import."""

from cerebras_pytorch import experimental as experimental
from cstorch import *  # noqa: F403
from cstorch import __all__ as __all__
from cstorch import __getattr__ as __getattr__
from cstorch.aliases import public_modules

public_modules(__name__)
