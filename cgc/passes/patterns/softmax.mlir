// Softmax along the last dimension, written out, and its gradient.

// exp(x - max(x)) / sum(exp(x - max(x)))
pdl.pattern @softmax : benefit(1) {
  %add = pdl.attribute = "ADD"
  %max = pdl.attribute = "MAX"
  %x = pdl.operand
  pdl.apply_native_constraint "is_float32"(%x : !pdl.value)
  %axis = pdl.apply_native_constraint "last_axis"(%x : !pdl.value) : !pdl.attribute
  %largest_op = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %max}
  %largest = pdl.result 0 of %largest_op
  pdl.apply_native_constraint "reduces_last"(%largest_op : !pdl.operation)
  %largest_rows_op = pdl.operation "cirh.BroadcastInDim"(%largest : !pdl.value)
  %largest_rows = pdl.result 0 of %largest_rows_op
  pdl.apply_native_constraint "repeats_rows"(%largest_rows_op : !pdl.operation)
  %shifted_op = pdl.operation "cirh.Sub"(%x, %largest_rows : !pdl.value, !pdl.value)
  %shifted = pdl.result 0 of %shifted_op
  %powers_op = pdl.operation "cirh.Exp"(%shifted : !pdl.value)
  %powers = pdl.result 0 of %powers_op
  %total_op = pdl.operation "cirh.Reduce"(%powers : !pdl.value) {"reduce_kind" = %add}
  %total = pdl.result 0 of %total_op
  pdl.apply_native_constraint "reduces_last"(%total_op : !pdl.operation)
  %total_rows_op = pdl.operation "cirh.BroadcastInDim"(%total : !pdl.value)
  %total_rows = pdl.result 0 of %total_rows_op
  pdl.apply_native_constraint "repeats_rows"(%total_rows_op : !pdl.operation)
  %softmax = pdl.operation "cirh.Div"(%powers, %total_rows : !pdl.value, !pdl.value)
  pdl.rewrite %softmax {
    %result = pdl.operation "cirh.Softmax"(%x : !pdl.value) {"axis" = %axis}
    pdl.replace %softmax with %result
  }
}

// (grad - sum(grad * p)) * p
pdl.pattern @softmax_grad : benefit(1) {
  %add = pdl.attribute = "ADD"
  %probabilities = pdl.operand
  %grad = pdl.operand
  pdl.apply_native_constraint "is_probability"(%probabilities : !pdl.value)
  %axis = pdl.apply_native_constraint "last_axis"(%probabilities : !pdl.value) : !pdl.attribute
  %products_op = pdl.operation "cirh.Mul"(%grad, %probabilities : !pdl.value, !pdl.value)
  %products = pdl.result 0 of %products_op
  %total_op = pdl.operation "cirh.Reduce"(%products : !pdl.value) {"reduce_kind" = %add}
  %total = pdl.result 0 of %total_op
  pdl.apply_native_constraint "reduces_last"(%total_op : !pdl.operation)
  %rows_op = pdl.operation "cirh.BroadcastInDim"(%total : !pdl.value)
  %rows = pdl.result 0 of %rows_op
  pdl.apply_native_constraint "repeats_rows"(%rows_op : !pdl.operation)
  %difference_op = pdl.operation "cirh.Sub"(%grad, %rows : !pdl.value, !pdl.value)
  %difference = pdl.result 0 of %difference_op
  %gradient = pdl.operation "cirh.Mul"(%difference, %probabilities : !pdl.value, !pdl.value)
  pdl.rewrite %gradient {
    %result = pdl.operation "cirh.SoftmaxGrad"(%probabilities, %grad : !pdl.value, !pdl.value) {"axis" = %axis}
    pdl.replace %gradient with %result
  }
}
