"""CIRH: the framework-neutral graph dialect that a whole training step is imported into.

`ops` has the operations and their constructors, `types` the element types, `dialect` the xDSL dialect, `text`
the text form, `interface` what goes into and out of a step.
"""
