"""Schedulers: `base` is their protocol, `registry` finds them by name, each built-in one is a folder."""
