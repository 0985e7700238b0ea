"""Front ends of the compiler: one subpackage per framework, each gives a CIRH module of a whole step.

Nothing is imported here, so that `import cgc.importers` loads no framework.
"""
