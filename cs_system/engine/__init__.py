"""Engines: they compute the steps. All calls of JAX in cs_system are made here."""
