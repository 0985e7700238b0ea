// Updates of Adam that a program writes out. Its moments are
//   moved:    m + (grad - m) * (1 - beta1), Keras 3
//   weighted: m * beta1 + grad * (1 - beta1), the optimizer of BERT
// and the same for v with grad * grad. Numbers are constants, or scalars that are repeated.

// param - m * rate / (sqrt(v) + epsilon); if corrected, rate is lr * sqrt(1 - beta2_power) / (1 - beta1_power)
// choices: (moved|weighted) [corrected]
pdl.pattern @adam : benefit(1) {
  %param = pdl.operand
  %m = pdl.operand
  %v = pdl.operand
  %grad = pdl.operand
  %part1 = pdl.operand
  %part2 = pdl.operand
  %epsilon_value = pdl.operand
  %rate_value = pdl.operand
  pdl.apply_native_constraint "is_constant"(%part1 : !pdl.value)
  pdl.apply_native_constraint "is_constant"(%part2 : !pdl.value)
  pdl.apply_native_constraint "is_scalar"(%epsilon_value : !pdl.value)
  pdl.apply_native_constraint "is_scalar"(%rate_value : !pdl.value)
  // the moments
  %square_op = pdl.operation "cirh.Mul"(%grad, %grad : !pdl.value, !pdl.value)
  %square = pdl.result 0 of %square_op
  %m_move_op = pdl.operation "cirh.Sub"(%grad, %m : !pdl.value, !pdl.value)  // if moved
  %m_move = pdl.result 0 of %m_move_op  // if moved
  %m_part_op = pdl.operation "cirh.Mul"(%m_move, %part1 : !pdl.value, !pdl.value)  // if moved
  %m_part = pdl.result 0 of %m_part_op  // if moved
  %new_m_op = pdl.operation "cirh.Add"(%m, %m_part : !pdl.value, !pdl.value)  // if moved
  %v_move_op = pdl.operation "cirh.Sub"(%square, %v : !pdl.value, !pdl.value)  // if moved
  %v_move = pdl.result 0 of %v_move_op  // if moved
  %v_part_op = pdl.operation "cirh.Mul"(%v_move, %part2 : !pdl.value, !pdl.value)  // if moved
  %v_part = pdl.result 0 of %v_part_op  // if moved
  %new_v_op = pdl.operation "cirh.Add"(%v, %v_part : !pdl.value, !pdl.value)  // if moved
  %beta1_value = pdl.operand  // if weighted
  %beta2_value = pdl.operand  // if weighted
  pdl.apply_native_constraint "is_complement"(%beta1_value, %part1 : !pdl.value, !pdl.value)  // if weighted
  pdl.apply_native_constraint "is_complement"(%beta2_value, %part2 : !pdl.value, !pdl.value)  // if weighted
  %m_rest_op = pdl.operation "cirh.Mul"(%m, %beta1_value : !pdl.value, !pdl.value)  // if weighted
  %m_rest = pdl.result 0 of %m_rest_op  // if weighted
  %m_part_op = pdl.operation "cirh.Mul"(%grad, %part1 : !pdl.value, !pdl.value)  // if weighted
  %m_part = pdl.result 0 of %m_part_op  // if weighted
  %new_m_op = pdl.operation "cirh.Add"(%m_rest, %m_part : !pdl.value, !pdl.value)  // if weighted
  %v_rest_op = pdl.operation "cirh.Mul"(%v, %beta2_value : !pdl.value, !pdl.value)  // if weighted
  %v_rest = pdl.result 0 of %v_rest_op  // if weighted
  %v_part_op = pdl.operation "cirh.Mul"(%square, %part2 : !pdl.value, !pdl.value)  // if weighted
  %v_part = pdl.result 0 of %v_part_op  // if weighted
  %new_v_op = pdl.operation "cirh.Add"(%v_rest, %v_part : !pdl.value, !pdl.value)  // if weighted
  %new_m = pdl.result 0 of %new_m_op
  %new_v = pdl.result 0 of %new_v_op
  %root_op = pdl.operation "cirh.Sqrt"(%new_v : !pdl.value)
  %root = pdl.result 0 of %root_op
  %divisor_op = pdl.operation "cirh.Add"(%root, %epsilon_value : !pdl.value, !pdl.value)
  %divisor = pdl.result 0 of %divisor_op
  // the step
  %beta1_power = pdl.operand  // if corrected
  %beta2_power = pdl.operand  // if corrected
  %lr = pdl.operand  // if corrected
  %unit = pdl.operand  // if corrected
  %one = pdl.attribute = 1.0 : f32  // if corrected
  pdl.apply_native_constraint "is_number"(%unit, %one : !pdl.value, !pdl.attribute)  // if corrected
  %rest2_op = pdl.operation "cirh.Sub"(%unit, %beta2_power : !pdl.value, !pdl.value)  // if corrected
  %rest2 = pdl.result 0 of %rest2_op  // if corrected
  %root2_op = pdl.operation "cirh.Sqrt"(%rest2 : !pdl.value)  // if corrected
  %root2 = pdl.result 0 of %root2_op  // if corrected
  %raised_op = pdl.operation "cirh.Mul"(%lr, %root2 : !pdl.value, !pdl.value)  // if corrected
  %raised = pdl.result 0 of %raised_op  // if corrected
  %rest1_op = pdl.operation "cirh.Sub"(%unit, %beta1_power : !pdl.value, !pdl.value)  // if corrected
  %rest1 = pdl.result 0 of %rest1_op  // if corrected
  %alpha_op = pdl.operation "cirh.Div"(%raised, %rest1 : !pdl.value, !pdl.value)  // if corrected
  %alpha = pdl.result 0 of %alpha_op  // if corrected
  %repeated_op = pdl.operation "cirh.BroadcastInDim"(%alpha : !pdl.value)  // if corrected
  %rate = pdl.result 0 of %repeated_op  // if corrected
  pdl.apply_native_constraint "repeats_scalar"(%repeated_op : !pdl.operation)  // if corrected
  %direction_op = pdl.operation "cirh.Mul"(%new_m, %rate : !pdl.value, !pdl.value)  // if corrected
  %direction_op = pdl.operation "cirh.Mul"(%new_m, %rate_value : !pdl.value, !pdl.value)  // if !corrected
  %direction = pdl.result 0 of %direction_op
  %step_op = pdl.operation "cirh.Div"(%direction, %divisor : !pdl.value, !pdl.value)
  %step = pdl.result 0 of %step_op
  %new_param_op = pdl.operation "cirh.Sub"(%param, %step : !pdl.value, !pdl.value)
  pdl.rewrite %new_param_op {
    %beta1 = pdl.apply_native_rewrite "one_minus"(%part1 : !pdl.value) : !pdl.value
    %beta2 = pdl.apply_native_rewrite "one_minus"(%part2 : !pdl.value) : !pdl.value
    %epsilon = pdl.apply_native_rewrite "scalar"(%epsilon_value : !pdl.value) : !pdl.value
    %lr = pdl.apply_native_rewrite "scalar"(%rate_value : !pdl.value) : !pdl.value  // if !corrected
    %beta1_power = pdl.apply_native_rewrite "zero"(%part1 : !pdl.value) : !pdl.value  // if !corrected
    %beta2_power = pdl.apply_native_rewrite "zero"(%part2 : !pdl.value) : !pdl.value  // if !corrected
    %no = pdl.attribute = false
    %update = pdl.operation "cirh.Adam"(%param, %m, %v, %beta1_power, %beta2_power, %lr, %beta1, %beta2, %epsilon, %grad : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"use_nesterov" = %no}
    %new_param = pdl.result 0 of %update
    %updated_m = pdl.result 1 of %update
    %updated_v = pdl.result 2 of %update
    pdl.replace %new_param_op with (%new_param : !pdl.value)
    pdl.replace %new_m_op with (%updated_m : !pdl.value)
    pdl.replace %new_v_op with (%updated_v : !pdl.value)
  }
}

// param - rate * (m / (sqrt(v) + epsilon) + weight_decay * param): the optimizer of BERT
// choices: (moved|weighted) [decay]
pdl.pattern @adam_of_bert : benefit(1) {
  %param = pdl.operand
  %m = pdl.operand
  %v = pdl.operand
  %grad = pdl.operand
  %part1 = pdl.operand
  %part2 = pdl.operand
  %epsilon_value = pdl.operand
  %rate_value = pdl.operand
  pdl.apply_native_constraint "is_constant"(%part1 : !pdl.value)
  pdl.apply_native_constraint "is_constant"(%part2 : !pdl.value)
  pdl.apply_native_constraint "is_scalar"(%epsilon_value : !pdl.value)
  pdl.apply_native_constraint "is_scalar"(%rate_value : !pdl.value)
  // the moments
  %square_op = pdl.operation "cirh.Mul"(%grad, %grad : !pdl.value, !pdl.value)
  %square = pdl.result 0 of %square_op
  %m_move_op = pdl.operation "cirh.Sub"(%grad, %m : !pdl.value, !pdl.value)  // if moved
  %m_move = pdl.result 0 of %m_move_op  // if moved
  %m_part_op = pdl.operation "cirh.Mul"(%m_move, %part1 : !pdl.value, !pdl.value)  // if moved
  %m_part = pdl.result 0 of %m_part_op  // if moved
  %new_m_op = pdl.operation "cirh.Add"(%m, %m_part : !pdl.value, !pdl.value)  // if moved
  %v_move_op = pdl.operation "cirh.Sub"(%square, %v : !pdl.value, !pdl.value)  // if moved
  %v_move = pdl.result 0 of %v_move_op  // if moved
  %v_part_op = pdl.operation "cirh.Mul"(%v_move, %part2 : !pdl.value, !pdl.value)  // if moved
  %v_part = pdl.result 0 of %v_part_op  // if moved
  %new_v_op = pdl.operation "cirh.Add"(%v, %v_part : !pdl.value, !pdl.value)  // if moved
  %beta1_value = pdl.operand  // if weighted
  %beta2_value = pdl.operand  // if weighted
  pdl.apply_native_constraint "is_complement"(%beta1_value, %part1 : !pdl.value, !pdl.value)  // if weighted
  pdl.apply_native_constraint "is_complement"(%beta2_value, %part2 : !pdl.value, !pdl.value)  // if weighted
  %m_rest_op = pdl.operation "cirh.Mul"(%m, %beta1_value : !pdl.value, !pdl.value)  // if weighted
  %m_rest = pdl.result 0 of %m_rest_op  // if weighted
  %m_part_op = pdl.operation "cirh.Mul"(%grad, %part1 : !pdl.value, !pdl.value)  // if weighted
  %m_part = pdl.result 0 of %m_part_op  // if weighted
  %new_m_op = pdl.operation "cirh.Add"(%m_rest, %m_part : !pdl.value, !pdl.value)  // if weighted
  %v_rest_op = pdl.operation "cirh.Mul"(%v, %beta2_value : !pdl.value, !pdl.value)  // if weighted
  %v_rest = pdl.result 0 of %v_rest_op  // if weighted
  %v_part_op = pdl.operation "cirh.Mul"(%square, %part2 : !pdl.value, !pdl.value)  // if weighted
  %v_part = pdl.result 0 of %v_part_op  // if weighted
  %new_v_op = pdl.operation "cirh.Add"(%v_rest, %v_part : !pdl.value, !pdl.value)  // if weighted
  %new_m = pdl.result 0 of %new_m_op
  %new_v = pdl.result 0 of %new_v_op
  %root_op = pdl.operation "cirh.Sqrt"(%new_v : !pdl.value)
  %root = pdl.result 0 of %root_op
  %divisor_op = pdl.operation "cirh.Add"(%root, %epsilon_value : !pdl.value, !pdl.value)
  %divisor = pdl.result 0 of %divisor_op
  // the step
  %quotient_op = pdl.operation "cirh.Div"(%new_m, %divisor : !pdl.value, !pdl.value)
  %quotient = pdl.result 0 of %quotient_op
  %decay_value = pdl.operand  // if decay
  pdl.apply_native_constraint "is_scalar"(%decay_value : !pdl.value)  // if decay
  %decay_op = pdl.operation "cirh.Mul"(%param, %decay_value : !pdl.value, !pdl.value)  // if decay
  %decay = pdl.result 0 of %decay_op  // if decay
  %sum_op = pdl.operation "cirh.Add"(%quotient, %decay : !pdl.value, !pdl.value)  // if decay
  %sum = pdl.result 0 of %sum_op  // if decay
  %step_op = pdl.operation "cirh.Mul"(%sum, %rate_value : !pdl.value, !pdl.value)  // if decay
  %step_op = pdl.operation "cirh.Mul"(%quotient, %rate_value : !pdl.value, !pdl.value)  // if !decay
  %step = pdl.result 0 of %step_op
  %new_param_op = pdl.operation "cirh.Sub"(%param, %step : !pdl.value, !pdl.value)
  pdl.rewrite %new_param_op {
    %beta1 = pdl.apply_native_rewrite "one_minus"(%part1 : !pdl.value) : !pdl.value
    %beta2 = pdl.apply_native_rewrite "one_minus"(%part2 : !pdl.value) : !pdl.value
    %epsilon = pdl.apply_native_rewrite "scalar"(%epsilon_value : !pdl.value) : !pdl.value
    %lr = pdl.apply_native_rewrite "scalar"(%rate_value : !pdl.value) : !pdl.value
    %none = pdl.apply_native_rewrite "zero"(%part1 : !pdl.value) : !pdl.value
    %weight_decay = pdl.apply_native_rewrite "scalar"(%decay_value : !pdl.value) : !pdl.value  // if decay
    %no = pdl.attribute = false
    %update = pdl.operation "cirh.AdamW"(%param, %m, %v, %none, %none, %lr, %beta1, %beta2, %epsilon, %grad, %weight_decay : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"use_nesterov" = %no}  // if decay
    %update = pdl.operation "cirh.Adam"(%param, %m, %v, %none, %none, %lr, %beta1, %beta2, %epsilon, %grad : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"use_nesterov" = %no}  // if !decay
    %new_param = pdl.result 0 of %update
    %updated_m = pdl.result 1 of %update
    %updated_v = pdl.result 2 of %update
    pdl.replace %new_param_op with (%new_param : !pdl.value)
    pdl.replace %new_m_op with (%updated_m : !pdl.value)
    pdl.replace %new_v_op with (%updated_v : !pdl.value)
  }
}

// Adam of a parameter that has decayed first: of param - lr * weight_decay * param
//   twice:  param * weight_decay * lr, Keras 3
//   once:   param * (lr * weight_decay)
//   folded: param * number, where lr is a number too
// choices: (twice|once|folded)
pdl.pattern @adam_w : benefit(1) {
  %param = pdl.operand
  %m = pdl.operand
  %v = pdl.operand
  %beta1_power = pdl.operand
  %beta2_power = pdl.operand
  %lr = pdl.operand
  %beta1 = pdl.operand
  %beta2 = pdl.operand
  %epsilon = pdl.operand
  %grad = pdl.operand
  %nesterov = pdl.attribute
  %decay_value = pdl.operand
  pdl.apply_native_constraint "is_scalar"(%decay_value : !pdl.value)
  pdl.apply_native_constraint "is_constant"(%decay_value : !pdl.value)  // if folded
  pdl.apply_native_constraint "is_nonzero"(%lr : !pdl.value)  // if folded
  %rate_op = pdl.operation "cirh.Mul"(%lr, %decay_value : !pdl.value, !pdl.value)  // if once
  %rate = pdl.result 0 of %rate_op  // if once
  %rates_op = pdl.operation "cirh.BroadcastInDim"(%lr : !pdl.value)  // if twice
  %rates_op = pdl.operation "cirh.BroadcastInDim"(%rate : !pdl.value)  // if once
  %rates = pdl.result 0 of %rates_op  // if !folded
  pdl.apply_native_constraint "repeats_scalar"(%rates_op : !pdl.operation)  // if !folded
  %part_op = pdl.operation "cirh.Mul"(%param, %decay_value : !pdl.value, !pdl.value)  // if twice
  %part = pdl.result 0 of %part_op  // if twice
  %decay_op = pdl.operation "cirh.Mul"(%part, %rates : !pdl.value, !pdl.value)  // if twice
  %decay_op = pdl.operation "cirh.Mul"(%param, %rates : !pdl.value, !pdl.value)  // if once
  %decay_op = pdl.operation "cirh.Mul"(%param, %decay_value : !pdl.value, !pdl.value)  // if folded
  %decay = pdl.result 0 of %decay_op
  %decayed_op = pdl.operation "cirh.Sub"(%param, %decay : !pdl.value, !pdl.value)
  %decayed = pdl.result 0 of %decayed_op
  pdl.apply_native_constraint "used_once"(%decayed : !pdl.value)
  %adam = pdl.operation "cirh.Adam"(%decayed, %m, %v, %beta1_power, %beta2_power, %lr, %beta1, %beta2, %epsilon, %grad : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"use_nesterov" = %nesterov}
  pdl.apply_native_constraint "has_epsilon_hat"(%adam : !pdl.operation)
  pdl.rewrite %adam {
    %weight_decay = pdl.apply_native_rewrite "scalar"(%decay_value : !pdl.value) : !pdl.value  // if !folded
    %weight_decay = pdl.apply_native_rewrite "ratio"(%decay_value, %lr : !pdl.value, !pdl.value) : !pdl.value  // if folded
    %update = pdl.operation "cirh.AdamW"(%param, %m, %v, %beta1_power, %beta2_power, %lr, %beta1, %beta2, %epsilon, %grad, %weight_decay : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"use_nesterov" = %nesterov}
    pdl.replace %adam with %update
  }
}
