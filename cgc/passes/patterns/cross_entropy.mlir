// Cross entropy of log probabilities and one-hot labels: the loss is -sum(one_hot(labels) * log_softmax(logits)).
// Labels out of range make rows of zeros, hence a loss and a gradient of 0.

// With its gradient grad - exp(log_softmax) * sum(grad), where grad is one_hot(labels) * a number for each row, or
// the negative of that
// choices: (plus|minus)
pdl.pattern @one_hot_with_gradient : benefit(1) {
  %add = pdl.attribute = "ADD"
  %one = pdl.attribute = 1.0 : f32
  %zero = pdl.attribute = 0.0 : f32
  %unit = pdl.attribute = unit
  %logits = pdl.operand
  %labels = pdl.operand
  %on = pdl.operand
  %off = pdl.operand
  %row_grads = pdl.operand
  pdl.apply_native_constraint "is_float32"(%logits : !pdl.value)
  %axis = pdl.apply_native_constraint "last_axis"(%logits : !pdl.value) : !pdl.attribute
  pdl.apply_native_constraint "is_number"(%on, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%off, %zero : !pdl.value, !pdl.attribute)
  %log_op = pdl.operation "cirh.LogSoftmax"(%logits : !pdl.value) {"axis" = %axis}
  %log = pdl.result 0 of %log_op
  %one_hot_op = pdl.operation "cirh.OneHot"(%labels, %on, %off : !pdl.value, !pdl.value, !pdl.value) {"axis" = %axis}
  %one_hot = pdl.result 0 of %one_hot_op
  // the loss
  %picked_op = pdl.operation "cirh.Mul"(%log, %one_hot : !pdl.value, !pdl.value)
  %picked = pdl.result 0 of %picked_op
  %sum_op = pdl.operation "cirh.Reduce"(%picked : !pdl.value) {"reduce_kind" = %add}
  pdl.apply_native_constraint "drops_last"(%sum_op : !pdl.operation)
  // the gradient
  pdl.apply_native_constraint "is_same_along_rows"(%row_grads : !pdl.value)
  %grad_op = pdl.operation "cirh.Mul"(%row_grads, %one_hot : !pdl.value, !pdl.value)
  %grad = pdl.result 0 of %grad_op
  %total_op = pdl.operation "cirh.Reduce"(%grad : !pdl.value) {"reduce_kind" = %add}
  %total = pdl.result 0 of %total_op
  pdl.apply_native_constraint "reduces_last"(%total_op : !pdl.operation)
  %totals_op = pdl.operation "cirh.BroadcastInDim"(%total : !pdl.value)
  %totals = pdl.result 0 of %totals_op
  pdl.apply_native_constraint "repeats_rows"(%totals_op : !pdl.operation)
  %softmax_op = pdl.operation "cirh.Exp"(%log : !pdl.value)
  %softmax = pdl.result 0 of %softmax_op
  %spread_op = pdl.operation "cirh.Mul"(%totals, %softmax : !pdl.value, !pdl.value)
  %spread = pdl.result 0 of %spread_op
  %gradient = pdl.operation "cirh.Sub"(%grad, %spread : !pdl.value, !pdl.value)  // if plus
  %gradient = pdl.operation "cirh.Sub"(%spread, %grad : !pdl.value, !pdl.value)  // if minus
  pdl.rewrite %gradient {
    %entropy = pdl.operation "cirh.SparseSoftmaxCrossEntropyWithLogits"(%logits, %labels : !pdl.value, !pdl.value) {"axis" = %axis, "ignore_out_of_range" = %unit}
    %loss = pdl.result 0 of %entropy
    %backprop = pdl.result 1 of %entropy
    %negative_loss_op = pdl.operation "cirh.Neg"(%loss : !pdl.value)
    %negative_loss = pdl.result 0 of %negative_loss_op
    %product_op = pdl.operation "cirh.Mul"(%row_grads, %backprop : !pdl.value, !pdl.value)
    %product = pdl.result 0 of %product_op
    %negative_op = pdl.operation "cirh.Neg"(%product : !pdl.value)  // if plus
    %negative = pdl.result 0 of %negative_op  // if plus
    pdl.replace %sum_op with (%negative_loss : !pdl.value)
    pdl.replace %gradient with (%negative : !pdl.value)  // if plus
    pdl.replace %gradient with (%product : !pdl.value)  // if minus
  }
}

// The loss alone
pdl.pattern @one_hot : benefit(1) {
  %add = pdl.attribute = "ADD"
  %one = pdl.attribute = 1.0 : f32
  %zero = pdl.attribute = 0.0 : f32
  %logits = pdl.operand
  %labels = pdl.operand
  %on = pdl.operand
  %off = pdl.operand
  pdl.apply_native_constraint "is_float32"(%logits : !pdl.value)
  %axis = pdl.apply_native_constraint "last_axis"(%logits : !pdl.value) : !pdl.attribute
  pdl.apply_native_constraint "is_number"(%on, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%off, %zero : !pdl.value, !pdl.attribute)
  %log_op = pdl.operation "cirh.LogSoftmax"(%logits : !pdl.value) {"axis" = %axis}
  %log = pdl.result 0 of %log_op
  pdl.apply_native_constraint "used_once"(%log : !pdl.value)
  %one_hot_op = pdl.operation "cirh.OneHot"(%labels, %on, %off : !pdl.value, !pdl.value, !pdl.value) {"axis" = %axis}
  %one_hot = pdl.result 0 of %one_hot_op
  %picked_op = pdl.operation "cirh.Mul"(%log, %one_hot : !pdl.value, !pdl.value)
  %picked = pdl.result 0 of %picked_op
  %sum = pdl.operation "cirh.Reduce"(%picked : !pdl.value) {"reduce_kind" = %add}
  pdl.apply_native_constraint "drops_last"(%sum : !pdl.operation)
  pdl.rewrite %sum {
    %unit = pdl.attribute = unit
    %entropy = pdl.operation "cirh.SparseSoftmaxCrossEntropyWithLogits"(%logits, %labels : !pdl.value, !pdl.value) {"axis" = %axis, "ignore_out_of_range" = %unit}
    %loss = pdl.result 0 of %entropy
    %result = pdl.operation "cirh.Neg"(%loss : !pdl.value)
    pdl.replace %sum with %result
  }
}

// The loss alone with probabilities for labels
pdl.pattern @probabilities : benefit(1) {
  %add = pdl.attribute = "ADD"
  %logits = pdl.operand
  %labels = pdl.operand
  pdl.apply_native_constraint "is_float32"(%logits : !pdl.value)
  %axis = pdl.apply_native_constraint "last_axis"(%logits : !pdl.value) : !pdl.attribute
  %log_op = pdl.operation "cirh.LogSoftmax"(%logits : !pdl.value) {"axis" = %axis}
  %log = pdl.result 0 of %log_op
  pdl.apply_native_constraint "used_once"(%log : !pdl.value)
  %picked_op = pdl.operation "cirh.Mul"(%log, %labels : !pdl.value, !pdl.value)
  %picked = pdl.result 0 of %picked_op
  %sum = pdl.operation "cirh.Reduce"(%picked : !pdl.value) {"reduce_kind" = %add}
  pdl.apply_native_constraint "drops_last"(%sum : !pdl.operation)
  pdl.rewrite %sum {
    %entropy = pdl.operation "cirh.SoftmaxCrossEntropyWithLogits"(%logits, %labels : !pdl.value, !pdl.value)
    %loss = pdl.result 0 of %entropy
    %result = pdl.operation "cirh.Neg"(%loss : !pdl.value)
    pdl.replace %sum with %result
  }
}
