"""How long parts of a CS system may be silent. Each says every second that it is there, whatever it does."""

LATE_S = 5.0
"""A part that is silent for so long is named."""

PATIENCE_S = 60.0
"""One that is silent for so long is ended. Less than the 100 s after which JAX ends a whole group."""
