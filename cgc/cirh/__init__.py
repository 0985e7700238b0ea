"""CIRH: the framework-neutral graph dialect that a whole training step is imported into.

Ops are named as in the compiler whose vocabulary this is (`cirh.MatMul`, `cirh.LayerNormGrad`, `cirh.pad`),
and so are their attributes (`transpose_a`, `comparison_direction`, `approximation`, `global_seed`,
`lhs_contracting_dimensions`). What is different in its text, for readers who know it:

* today's MLIR syntax: `func.func`, `array<i64: 0, 1>` for `dense<[0, 1]> : tensor<2xi64>`, all types of an op
  written out also where they are equal;
* channels come last: `data_format` is NHWC, kernels are `[h, w, in, out]`, `BiasAdd` has no `dim`, a pool has
  two sizes and strides and no dilation;
* what must be known to compile is an attribute where it was a constant operand: the permutation of
  `Transpose`, start and step of `Arange`, the sizes of `RandomUniform`, which draws from [0, 1) for the step
  that is its operand;
* `keep_dims` of `Reduce` is true or false for all dimensions; `Gather` has no `batch_dims`; `ScatterNd` adds
  to zeros, `Scatter` replaces or adds rows; `Clamp` takes x first;
* `LayerNorm` gives its mean and 1 / deviation as well, which `LayerNormGrad` takes; gradients come in the
  order x, scale, offset; `FusedBatchNorm` also gives what it normalized with;
* ops may say where they come from: `cs.name` is the framework's name of the node, `cs.source` the user's
  line, `cs.layer` the layers around the op from the outermost in, `["encoder", "0"]`;
* ops that it has no text of: `Attention` and its gradient, `SoftmaxGrad`, `AdamW`, gradients of pools
  (`MaxPoolGrad`, where it says `gradient`), `Unique`, other optimizers than its Adam.

`ops` has the operations and their constructors, `types` the element types, `dialect` the xDSL dialect, `text`
the text form, `interface` what goes into and out of a step.
"""
