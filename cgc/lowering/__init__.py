"""The meaning of every CIRH op as JAX: one table (`jax_table`) and its interpreter (`interpret`).

The numbers are TensorFlow's: where a formula leaves a choice (rounding, epsilon inside or outside a root,
inputs of a gradient), TensorFlow's kernels decide. Only this package, `cgc.executable` and the engine of
`cs_system` call jax.
"""
