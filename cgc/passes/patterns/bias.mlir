// A vector added along the last dimension is a bias, and its gradient the sum over the others.

pdl.pattern @bias_add : benefit(1) {
  %x = pdl.operand
  %bias = pdl.operand
  %repeated_op = pdl.operation "cirh.BroadcastInDim"(%bias : !pdl.value)
  %repeated = pdl.result 0 of %repeated_op
  pdl.apply_native_constraint "repeats_vector"(%repeated_op : !pdl.operation)
  %sum = pdl.operation "cirh.Add"(%x, %repeated : !pdl.value, !pdl.value)
  pdl.rewrite %sum {
    %result = pdl.operation "cirh.BiasAdd"(%x, %bias : !pdl.value, !pdl.value)
    pdl.replace %sum with %result
  }
}

pdl.pattern @bias_add_grad : benefit(1) {
  %add = pdl.attribute = "ADD"
  %grad = pdl.operand
  %sum = pdl.operation "cirh.Reduce"(%grad : !pdl.value) {"reduce_kind" = %add}
  pdl.apply_native_constraint "reduces_leading"(%sum : !pdl.operation)
  pdl.rewrite %sum {
    %result = pdl.operation "cirh.BiasAddGrad"(%grad : !pdl.value)
    pdl.replace %sum with %result
  }
}
