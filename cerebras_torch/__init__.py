"""The session API by its public name: `import cerebras_torch as cbtorch`."""

from cs_toolkit.aliases import alias

alias(__name__, "cstorch.session")
