// A bias and a GELU under one name, where nothing else reads the sum: in programs without a gradient.

// choices: (exact|tanh)
pdl.pattern @composite_gelu : benefit(1) {
  %x = pdl.operand
  %bias = pdl.operand
  %sum_op = pdl.operation "cirh.BiasAdd"(%x, %bias : !pdl.value, !pdl.value)
  %sum = pdl.result 0 of %sum_op
  pdl.apply_native_constraint "used_once"(%sum : !pdl.value)
  %approximation = pdl.attribute = "NONE"  // if exact
  %approximation = pdl.attribute = "TANH"  // if tanh
  %activated = pdl.operation "cirh.Gelu"(%sum : !pdl.value) {"approximation" = %approximation}
  pdl.rewrite %activated {
    %function = pdl.attribute = "BiasGelu"  // if exact
    %function = pdl.attribute = "BiasGeluTanh"  // if tanh
    %result = pdl.operation "cirh.Composite"(%x, %bias : !pdl.value, !pdl.value) {"function" = %function}
    pdl.replace %activated with %result
  }
}
