// The global norm of several gradients, for clipping.

pdl.pattern @global_norm : benefit(1) {
  %sum = pdl.operand
  pdl.apply_native_constraint "is_sum_of_squares"(%sum : !pdl.value)
  %root = pdl.operation "cirh.Sqrt"(%sum : !pdl.value)
  pdl.rewrite %root {
    %norm = pdl.apply_native_rewrite "global_norm"(%sum : !pdl.value) : !pdl.value
    pdl.replace %root with (%norm : !pdl.value)
  }
}
