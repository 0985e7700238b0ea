"""The meaning of every CIRH op in JAX: one table (`jax_table`), run by `interpret` and `evaluate`.

The numbers are TensorFlow's: where a formula leaves a choice (rounding, epsilon inside or outside a root,
inputs of a gradient), TensorFlow's kernels decide. Only this package, `cgc.lair.from_jaxpr` and `cs_system`
call JAX.
"""
