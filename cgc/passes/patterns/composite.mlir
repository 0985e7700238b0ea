// A bias and an activation under one name, where nothing else reads the sum. Those that kernels take in behind
// their product; GELU is in a file of its own.

// choices: (relu|tanh|sigmoid|elu|softplus|hard_sigmoid)
pdl.pattern @composite : benefit(1) {
  %x = pdl.operand
  %bias = pdl.operand
  %sum_op = pdl.operation "cirh.BiasAdd"(%x, %bias : !pdl.value, !pdl.value)
  %sum = pdl.result 0 of %sum_op
  pdl.apply_native_constraint "used_once"(%sum : !pdl.value)
  %activated = pdl.operation "cirh.Relu"(%sum : !pdl.value)  // if relu
  %activated = pdl.operation "cirh.Tanh"(%sum : !pdl.value)  // if tanh
  %activated = pdl.operation "cirh.Sigmoid"(%sum : !pdl.value)  // if sigmoid
  %activated = pdl.operation "cirh.Elu"(%sum : !pdl.value)  // if elu
  %activated = pdl.operation "cirh.Softplus"(%sum : !pdl.value)  // if softplus
  %activated = pdl.operation "cirh.HardSigmoid"(%sum : !pdl.value)  // if hard_sigmoid
  pdl.rewrite %activated {
    %function = pdl.attribute = "BiasRelu"  // if relu
    %function = pdl.attribute = "BiasTanh"  // if tanh
    %function = pdl.attribute = "BiasSigmoid"  // if sigmoid
    %function = pdl.attribute = "BiasElu"  // if elu
    %function = pdl.attribute = "BiasSoftplus"  // if softplus
    %function = pdl.attribute = "BiasHardSigmoid"  // if hard_sigmoid
    %result = pdl.operation "cirh.Composite"(%x, %bias : !pdl.value, !pdl.value) {"function" = %function}
    pdl.replace %activated with %result
  }
}
