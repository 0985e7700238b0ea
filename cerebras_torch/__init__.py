"""The session API by its public name: `import cerebras_torch as cbtorch`."""

from cstorch.aliases import session_modules

session_modules(__name__)
