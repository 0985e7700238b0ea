// The gradient of layer normalization, as differentiation of its forms makes it (see layer_norm.mlir). With the
// gradient of y, `grad`, x gets three terms of a sum, among terms of other paths:
//   direct:      grad * scale * rstd
//   by variance: 2 / N * (x - mean) * variance_grad, where variance_grad is [..., 1]
//   centering:    less the mean of a row of these
// The first becomes the result of the op, the others leave the sum.
//
// Where the norm is subtracted from something, as in x - norm(x), the gradient of y is -grad. Negations have then
// gone into constants and sums (see signs.mlir), and by variance has another sign than direct:
//   negated: 1/2 in the place of -1/2
//   turned:  in folded, grad_centered is the difference taken the other way round, and so is the gradient of scale;
//            the other forms have no such difference and are negated
// choices: (folded|scaled|rooted|divided|times|over) [negated|turned]
pdl.pattern @layer_norm_grad : benefit(1) {
  %add = pdl.attribute = "ADD"
  %factor = pdl.attribute = -0.5 : f32  // if !negated|turned
  %factor = pdl.attribute = -0.5 : f32  // if folded, turned
  %factor = pdl.attribute = 0.5 : f32  // if negated
  %factor = pdl.attribute = 0.5 : f32  // if !folded, turned
  %half = pdl.operand
  pdl.apply_native_constraint "is_number"(%half, %factor : !pdl.value, !pdl.attribute)
  %grad = pdl.operand
  %x = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  //
  %norm = pdl.operation "cirh.LayerNorm"(%x, %scale, %offset : !pdl.value, !pdl.value, !pdl.value)
  %mean = pdl.result 1 of %norm
  %rstd = pdl.result 2 of %norm
  %mean_rows_op = pdl.operation "cirh.BroadcastInDim"(%mean : !pdl.value)
  %mean_rows = pdl.result 0 of %mean_rows_op
  pdl.apply_native_constraint "repeats_rows"(%mean_rows_op : !pdl.operation)
  %centered_op = pdl.operation "cirh.Sub"(%x, %mean_rows : !pdl.value, !pdl.value)
  %centered = pdl.result 0 of %centered_op
  %scales_op = pdl.operation "cirh.BroadcastInDim"(%scale : !pdl.value)
  %scales = pdl.result 0 of %scales_op
  pdl.apply_native_constraint "repeats_vector"(%scales_op : !pdl.operation)
  %deviation_op = pdl.operation "cirh.Reciprocal"(%rstd : !pdl.value)  // if divided|over
  %deviation = pdl.result 0 of %deviation_op  // if divided|over
  %root_rows_op = pdl.operation "cirh.BroadcastInDim"(%deviation : !pdl.value)  // if divided|over
  %root_rows_op = pdl.operation "cirh.BroadcastInDim"(%rstd : !pdl.value)  // if !divided, !over
  %root_rows = pdl.result 0 of %root_rows_op
  pdl.apply_native_constraint "repeats_rows"(%root_rows_op : !pdl.operation)
  //
  // from grad to the gradient of rstd, or of the standard deviation
  %grad_x_op = pdl.operation "cirh.Mul"(%grad, %x : !pdl.value, !pdl.value)  // if folded
  %grad_x = pdl.result 0 of %grad_x_op  // if folded
  %grad_mean_op = pdl.operation "cirh.Mul"(%mean_rows, %grad : !pdl.value, !pdl.value)  // if folded
  %grad_mean = pdl.result 0 of %grad_mean_op  // if folded
  %grad_centered_op = pdl.operation "cirh.Sub"(%grad_x, %grad_mean : !pdl.value, !pdl.value)  // if folded, !turned
  %grad_centered_op = pdl.operation "cirh.Sub"(%grad_mean, %grad_x : !pdl.value, !pdl.value)  // if folded, turned
  %grad_centered_op = pdl.operation "cirh.Mul"(%grad, %centered : !pdl.value, !pdl.value)  // if scaled
  %grad_centered = pdl.result 0 of %grad_centered_op  // if folded|scaled
  %grad_scales_op = pdl.operation "cirh.Mul"(%grad, %scales : !pdl.value, !pdl.value)  // if rooted|divided
  %grad_scales = pdl.result 0 of %grad_scales_op  // if rooted|divided
  %normalized_op = pdl.operation "cirh.Mul"(%centered, %root_rows : !pdl.value, !pdl.value)  // if rooted
  %normalized_op = pdl.operation "cirh.Div"(%centered, %root_rows : !pdl.value, !pdl.value)  // if divided
  %normalized = pdl.result 0 of %normalized_op  // if rooted|divided
  %stretched_op = pdl.operation "cirh.Mul"(%centered, %scales : !pdl.value, !pdl.value)  // if times|over
  %stretched = pdl.result 0 of %stretched_op  // if times|over
  %result_op = pdl.operation "cirh.Div"(%stretched, %root_rows : !pdl.value, !pdl.value)  // if over
  %result = pdl.result 0 of %result_op  // if over
  %quotient_op = pdl.operation "cirh.Div"(%normalized, %root_rows : !pdl.value, !pdl.value)  // if divided
  %quotient_op = pdl.operation "cirh.Div"(%result, %root_rows : !pdl.value, !pdl.value)  // if over
  %quotient = pdl.result 0 of %quotient_op  // if divided|over
  %parts_op = pdl.operation "cirh.Mul"(%grad_centered, %scales : !pdl.value, !pdl.value)  // if folded|scaled
  %parts_op = pdl.operation "cirh.Mul"(%grad_scales, %centered : !pdl.value, !pdl.value)  // if rooted
  %parts_op = pdl.operation "cirh.Mul"(%grad_scales, %quotient : !pdl.value, !pdl.value)  // if divided
  %parts_op = pdl.operation "cirh.Mul"(%grad, %stretched : !pdl.value, !pdl.value)  // if times
  %parts_op = pdl.operation "cirh.Mul"(%grad, %quotient : !pdl.value, !pdl.value)  // if over
  %parts = pdl.result 0 of %parts_op
  %root_grad_op = pdl.operation "cirh.Reduce"(%parts : !pdl.value) {"reduce_kind" = %add}
  %root_grad = pdl.result 0 of %root_grad_op
  pdl.apply_native_constraint "reduces_last"(%root_grad_op : !pdl.operation)
  //
  // from there to the gradient of the variance: times -rstd**3 / 2, or divided by twice the deviation
  %halved_op = pdl.operation "cirh.Mul"(%root_grad, %half : !pdl.value, !pdl.value)
  %halved = pdl.result 0 of %halved_op
  %square_op = pdl.operation "cirh.Mul"(%rstd, %rstd : !pdl.value, !pdl.value)  // if !divided, !over
  %square = pdl.result 0 of %square_op  // if !divided, !over
  %cube_op = pdl.operation "cirh.Mul"(%square, %rstd : !pdl.value, !pdl.value)  // if !divided, !over
  %cube = pdl.result 0 of %cube_op  // if !divided, !over
  %variance_grad_op = pdl.operation "cirh.Mul"(%halved, %cube : !pdl.value, !pdl.value)  // if !divided, !over
  %variance_grad_op = pdl.operation "cirh.Div"(%halved, %deviation : !pdl.value, !pdl.value)  // if divided|over
  %variance_grad = pdl.result 0 of %variance_grad_op
  //
  // the terms
  %inverse_op = pdl.operation "cirh.Mul"(%root_rows, %scales : !pdl.value, !pdl.value)  // if folded|scaled
  %inverse = pdl.result 0 of %inverse_op  // if folded|scaled
  %direct_op = pdl.operation "cirh.Mul"(%grad, %inverse : !pdl.value, !pdl.value)  // if folded|scaled
  %direct_op = pdl.operation "cirh.Mul"(%grad_scales, %root_rows : !pdl.value, !pdl.value)  // if rooted
  %direct_op = pdl.operation "cirh.Div"(%grad_scales, %root_rows : !pdl.value, !pdl.value)  // if divided
  %grad_roots_op = pdl.operation "cirh.Mul"(%grad, %root_rows : !pdl.value, !pdl.value)  // if times
  %grad_roots_op = pdl.operation "cirh.Div"(%grad, %root_rows : !pdl.value, !pdl.value)  // if over
  %grad_roots = pdl.result 0 of %grad_roots_op  // if times|over
  %direct_op = pdl.operation "cirh.Mul"(%grad_roots, %scales : !pdl.value, !pdl.value)  // if times|over
  %direct = pdl.result 0 of %direct_op
  %by_variance_op = pdl.apply_native_constraint "variance_term"(%variance_grad, %centered : !pdl.value, !pdl.value) : !pdl.operation
  %centering_op = pdl.apply_native_constraint "centering_term"(%direct_op, %by_variance_op : !pdl.operation, !pdl.operation) : !pdl.operation  // if !negated|turned
  %centering_op = pdl.apply_native_constraint "opposed_centering_term"(%direct_op, %by_variance_op : !pdl.operation, !pdl.operation) : !pdl.operation  // if negated|turned
  //
  // the gradients of scale and offset
  %scale_parts_op = pdl.operation "cirh.Mul"(%root_rows, %grad_centered : !pdl.value, !pdl.value)  // if folded|scaled
  %scale_parts_op = pdl.operation "cirh.Mul"(%normalized, %grad : !pdl.value, !pdl.value)  // if rooted|divided
  %scale_parts_op = pdl.operation "cirh.Mul"(%grad_roots, %centered : !pdl.value, !pdl.value)  // if times|over
  %scale_parts = pdl.result 0 of %scale_parts_op
  %scale_grad_op = pdl.operation "cirh.BiasAddGrad"(%scale_parts : !pdl.value)
  %offset_grad_op = pdl.operation "cirh.BiasAddGrad"(%grad : !pdl.value)
  pdl.rewrite %variance_grad_op {
    %gradient = pdl.operation "cirh.LayerNormGrad"(%grad, %x, %scale, %mean, %rstd : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value)
    %x_backprop = pdl.result 0 of %gradient
    %scale_backprop = pdl.result 1 of %gradient
    %offset_backprop = pdl.result 2 of %gradient
    %negative_op = pdl.operation "cirh.Neg"(%scale_backprop : !pdl.value)  // if folded, turned
    %negative = pdl.result 0 of %negative_op  // if folded, turned
    %nothing = pdl.apply_native_rewrite "neutral_term"(%by_variance_op : !pdl.operation) : !pdl.value
    %nothing_less = pdl.apply_native_rewrite "neutral_term"(%centering_op : !pdl.operation) : !pdl.value
    pdl.replace %by_variance_op with (%nothing : !pdl.value)
    pdl.replace %centering_op with (%nothing_less : !pdl.value)
    pdl.replace %direct_op with (%x_backprop : !pdl.value)
    pdl.replace %scale_grad_op with (%negative : !pdl.value)  // if folded, turned
    pdl.replace %scale_grad_op with (%scale_backprop : !pdl.value)  // if !folded
    pdl.replace %scale_grad_op with (%scale_backprop : !pdl.value)  // if folded, !turned
    pdl.replace %offset_grad_op with (%offset_backprop : !pdl.value)
  }
}
