// The gradient of a matrix that a batch has been multiplied with: the sum of the products of all samples is one
// product over all rows.

pdl.pattern @sum_of_products : benefit(1) {
  %yes = pdl.attribute = true
  %no = pdl.attribute = false
  %add = pdl.attribute = "ADD"
  %a = pdl.operand
  %b = pdl.operand
  %product_op = pdl.operation "cirh.MatMul"(%a, %b : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}
  %product = pdl.result 0 of %product_op
  pdl.apply_native_constraint "used_once"(%product : !pdl.value)
  %sum = pdl.operation "cirh.Reduce"(%product : !pdl.value) {"reduce_kind" = %add}
  pdl.apply_native_constraint "reduces_batch"(%sum : !pdl.operation)
  pdl.rewrite %sum {
    %rows_a = pdl.apply_native_rewrite "all_rows"(%a : !pdl.value) : !pdl.value
    %rows_b = pdl.apply_native_rewrite "all_rows"(%b : !pdl.value) : !pdl.value
    %result = pdl.operation "cirh.MatMul"(%rows_a, %rows_b : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}
    pdl.replace %sum with %result
  }
}
