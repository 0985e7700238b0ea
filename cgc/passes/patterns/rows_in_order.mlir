// Rows of a table at consecutive constant places, as a range of positions picks them, are a slice of it.

pdl.pattern @lookup : benefit(1) {
  %first_axis = pdl.attribute = 0 : i64
  %table = pdl.operand
  %places = pdl.operand
  %lookup = pdl.operation "cirh.Gather"(%table, %places : !pdl.value, !pdl.value) {"axis" = %first_axis}
  pdl.apply_native_constraint "are_consecutive"(%places, %table : !pdl.value, !pdl.value)
  pdl.rewrite %lookup {
    %rows = pdl.apply_native_rewrite "lookup_as_slice"(%table, %lookup : !pdl.value, !pdl.operation) : !pdl.value
    pdl.replace %lookup with (%rows : !pdl.value)
  }
}

// The gradient by the table: zeros but for these rows
pdl.pattern @lookup_grad : benefit(1) {
  %places = pdl.operand
  %grad = pdl.operand
  %scatter = pdl.operation "cirh.ScatterNd"(%places, %grad : !pdl.value, !pdl.value)
  %table_grad = pdl.result 0 of %scatter
  pdl.apply_native_constraint "are_consecutive"(%places, %table_grad : !pdl.value, !pdl.value)
  pdl.rewrite %scatter {
    %rows = pdl.apply_native_rewrite "scatter_as_padding"(%scatter : !pdl.operation) : !pdl.value
    pdl.replace %scatter with (%rows : !pdl.value)
  }
}
