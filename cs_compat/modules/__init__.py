"""The folder that the wrappers in `csrun/wrappers` put into the import path of programs.

`sitecustomize` runs when their interpreter starts. The other modules in this folder have no files: they are
those of `cs_compat.original_modules`.
"""
