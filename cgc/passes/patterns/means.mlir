// Sums that are divided by the number of their elements, as means.

pdl.pattern @mean_of_sum : benefit(1) {
  %add = pdl.attribute = "ADD"
  %mean = pdl.attribute = "MEAN"
  %type = pdl.type
  %dimensions = pdl.attribute
  %keep_dims = pdl.attribute
  %x = pdl.operand
  %count = pdl.operand
  pdl.apply_native_constraint "is_float32"(%x : !pdl.value)
  %sum_op = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %add, "dimensions" = %dimensions, "keep_dims" = %keep_dims} -> (%type : !pdl.type)
  %sum = pdl.result 0 of %sum_op
  pdl.apply_native_constraint "is_element_count"(%count, %x, %sum : !pdl.value, !pdl.value, !pdl.value)
  %quotient = pdl.operation "cirh.Div"(%sum, %count : !pdl.value, !pdl.value)
  pdl.rewrite %quotient {
    %result = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %mean, "dimensions" = %dimensions, "keep_dims" = %keep_dims} -> (%type : !pdl.type)
    pdl.replace %quotient with %result
  }
}
