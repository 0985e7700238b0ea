"""Tasks and steps of the session API, where programs of release 1.9 import them."""

from cstorch.aliases import alias

alias(__name__, "cstorch.v1.session.core.cb_model")
