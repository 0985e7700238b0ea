// Batch normalization of one sample whose channels are the rows of x, without scale and offset: what the layer
// normalization of Keras 2 is made of. x [..., N] becomes [1, rows, N, 1], then channels last, and back again.

pdl.pattern @row_norm : benefit(1) {
  %yes = pdl.attribute = true
  %one = pdl.attribute = 1.0 : f32
  %zero = pdl.attribute = 0.0 : f32
  %epsilon = pdl.attribute
  %x = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  %mean = pdl.operand
  %variance = pdl.operand
  pdl.apply_native_constraint "is_number"(%scale, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%offset, %zero : !pdl.value, !pdl.attribute)
  %rows_op = pdl.operation "cirh.Reshape"(%x : !pdl.value)
  %rows = pdl.result 0 of %rows_op
  %channels_op = pdl.operation "cirh.Transpose"(%rows : !pdl.value)
  %channels = pdl.result 0 of %channels_op
  pdl.apply_native_constraint "makes_rows_channels"(%channels_op : !pdl.operation)
  %norm = pdl.operation "cirh.FusedBatchNorm"(%channels, %scale, %offset, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon, "is_training" = %yes}
  %normal = pdl.result 0 of %norm
  %type = pdl.type
  %back_op = pdl.operation "cirh.Transpose"(%normal : !pdl.value) -> (%type : !pdl.type)
  pdl.apply_native_constraint "makes_channels_rows"(%back_op : !pdl.operation)
  pdl.rewrite %norm {
    %scales = pdl.apply_native_rewrite "as_row_vector"(%scale, %x : !pdl.value, !pdl.value) : !pdl.value
    %offsets = pdl.apply_native_rewrite "as_row_vector"(%offset, %x : !pdl.value, !pdl.value) : !pdl.value
    %layer_norm = pdl.operation "cirh.LayerNorm"(%x, %scales, %offsets : !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon}
    %y = pdl.result 0 of %layer_norm
    %y_rows = pdl.operation "cirh.Reshape"(%y : !pdl.value) -> (%type : !pdl.type)
    pdl.replace %back_op with %y_rows
  }
}

// Its gradient. The mean and the variance come from the batch normalization, and with it from the layer norm.
pdl.pattern @row_norm_grad : benefit(1) {
  %yes = pdl.attribute = true
  %epsilon = pdl.attribute
  %grad = pdl.operand
  %x = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  %scales = pdl.operand
  %offsets = pdl.operand
  %mean = pdl.operand
  %variance = pdl.operand
  %rows_op = pdl.operation "cirh.Reshape"(%x : !pdl.value)
  %rows = pdl.result 0 of %rows_op
  %channels_op = pdl.operation "cirh.Transpose"(%rows : !pdl.value)
  %channels = pdl.result 0 of %channels_op
  %norm = pdl.operation "cirh.FusedBatchNorm"(%channels, %scale, %offset, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon, "is_training" = %yes}
  %saved_mean = pdl.result 3 of %norm
  %saved_variance = pdl.result 4 of %norm
  %layer_norm = pdl.operation "cirh.LayerNorm"(%x, %scales, %offsets : !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon}
  %row_mean = pdl.result 1 of %layer_norm
  %rstd = pdl.result 2 of %layer_norm
  %grad_rows_op = pdl.operation "cirh.Reshape"(%grad : !pdl.value)
  %grad_rows = pdl.result 0 of %grad_rows_op
  %grad_channels_op = pdl.operation "cirh.Transpose"(%grad_rows : !pdl.value)
  %grad_channels = pdl.result 0 of %grad_channels_op
  pdl.apply_native_constraint "makes_rows_channels"(%grad_channels_op : !pdl.operation)
  %gradient = pdl.operation "cirh.FusedBatchNormGrad"(%grad_channels, %channels, %scale, %saved_mean, %saved_variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon, "is_training" = %yes}
  %by_channels = pdl.result 0 of %gradient
  %type = pdl.type
  %back_op = pdl.operation "cirh.Transpose"(%by_channels : !pdl.value) -> (%type : !pdl.type)
  pdl.apply_native_constraint "makes_channels_rows"(%back_op : !pdl.operation)
  pdl.rewrite %gradient {
    %layer_norm_grad = pdl.operation "cirh.LayerNormGrad"(%grad, %x, %scales, %row_mean, %rstd : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value)
    %x_grad = pdl.result 0 of %layer_norm_grad
    %x_grad_rows = pdl.operation "cirh.Reshape"(%x_grad : !pdl.value) -> (%type : !pdl.type)
    pdl.replace %back_op with %x_grad_rows
  }
}
