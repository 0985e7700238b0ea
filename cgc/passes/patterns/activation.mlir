// GELU written out.
//   early: (x / 2) * s, late: (s / 2) * x, last: (x * s) / 2
// and inside of s = 1 + erf(u) either times: u = x * sqrt(1/2), or over: u = x / sqrt(2).

// choices: (early|late|last) (times|over)
pdl.pattern @gelu : benefit(1) {
  %none = pdl.attribute = "NONE"
  %half = pdl.attribute = 0.5 : f32
  %one = pdl.attribute = 1.0 : f32
  %unit = pdl.attribute = 0.70710678 : f32  // if times
  %unit = pdl.attribute = 1.41421356 : f32  // if over
  %x = pdl.operand
  %half_value = pdl.operand
  %one_value = pdl.operand
  %unit_value = pdl.operand
  pdl.apply_native_constraint "is_number"(%half_value, %half : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%one_value, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%unit_value, %unit : !pdl.value, !pdl.attribute)
  %u_op = pdl.operation "cirh.Mul"(%x, %unit_value : !pdl.value, !pdl.value)  // if times
  %u_op = pdl.operation "cirh.Div"(%x, %unit_value : !pdl.value, !pdl.value)  // if over
  %u = pdl.result 0 of %u_op
  %erf_op = pdl.operation "cirh.Erf"(%u : !pdl.value)
  %erf = pdl.result 0 of %erf_op
  %s_op = pdl.operation "cirh.Add"(%erf, %one_value : !pdl.value, !pdl.value)
  %s = pdl.result 0 of %s_op
  %part_op = pdl.operation "cirh.Mul"(%x, %half_value : !pdl.value, !pdl.value)  // if early
  %part_op = pdl.operation "cirh.Mul"(%s, %half_value : !pdl.value, !pdl.value)  // if late
  %part_op = pdl.operation "cirh.Mul"(%x, %s : !pdl.value, !pdl.value)  // if last
  %part = pdl.result 0 of %part_op
  %gelu = pdl.operation "cirh.Mul"(%part, %s : !pdl.value, !pdl.value)  // if early
  %gelu = pdl.operation "cirh.Mul"(%part, %x : !pdl.value, !pdl.value)  // if late
  %gelu = pdl.operation "cirh.Mul"(%part, %half_value : !pdl.value, !pdl.value)  // if last
  pdl.rewrite %gelu {
    %result = pdl.operation "cirh.Gelu"(%x : !pdl.value) {"approximation" = %none}
    pdl.replace %gelu with %result
  }
}

// The gradient has two terms of one sum, among terms of other paths: s / 2 * grad, which becomes the result of the
// op, and x * exp(-u * u) / sqrt(2 pi) * grad, which leaves the sum.
// choices: (early|late|last) (times|over) (add|subtract)
pdl.pattern @gelu_grad : benefit(1) {
  %none = pdl.attribute = "NONE"
  %half = pdl.attribute = 0.5 : f32
  %one = pdl.attribute = 1.0 : f32
  %slope = pdl.attribute = 1.1283791671 : f32  // if add
  %slope = pdl.attribute = -1.1283791671 : f32  // if subtract
  %unit = pdl.attribute = 0.70710678 : f32  // if times
  %unit = pdl.attribute = 1.41421356 : f32  // if over
  %x = pdl.operand
  %grad = pdl.operand
  %half_value = pdl.operand
  %one_value = pdl.operand
  %unit_value = pdl.operand
  %slope_value = pdl.operand
  pdl.apply_native_constraint "is_number"(%half_value, %half : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%one_value, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%unit_value, %unit : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%slope_value, %slope : !pdl.value, !pdl.attribute)
  %u_op = pdl.operation "cirh.Mul"(%x, %unit_value : !pdl.value, !pdl.value)  // if times
  %u_op = pdl.operation "cirh.Div"(%x, %unit_value : !pdl.value, !pdl.value)  // if over
  %u = pdl.result 0 of %u_op
  %erf_op = pdl.operation "cirh.Erf"(%u : !pdl.value)
  %erf = pdl.result 0 of %erf_op
  %s_op = pdl.operation "cirh.Add"(%erf, %one_value : !pdl.value, !pdl.value)
  %s = pdl.result 0 of %s_op
  // grad * s / 2
  %grad_s_op = pdl.operation "cirh.Mul"(%grad, %s : !pdl.value, !pdl.value)  // if early
  %grad_s = pdl.result 0 of %grad_s_op  // if early
  %half_s_op = pdl.operation "cirh.Mul"(%s, %half_value : !pdl.value, !pdl.value)  // if late
  %half_s = pdl.result 0 of %half_s_op  // if late
  %half_grad_op = pdl.operation "cirh.Mul"(%grad, %half_value : !pdl.value, !pdl.value)  // if last
  %half_grad = pdl.result 0 of %half_grad_op  // if last
  %first_op = pdl.operation "cirh.Mul"(%grad_s, %half_value : !pdl.value, !pdl.value)  // if early
  %first_op = pdl.operation "cirh.Mul"(%grad, %half_s : !pdl.value, !pdl.value)  // if late
  %first_op = pdl.operation "cirh.Mul"(%half_grad, %s : !pdl.value, !pdl.value)  // if last
  %first = pdl.result 0 of %first_op
  // grad * x / 2
  %half_x_op = pdl.operation "cirh.Mul"(%x, %half_value : !pdl.value, !pdl.value)  // if early
  %half_x = pdl.result 0 of %half_x_op  // if early
  %grad_x_op = pdl.operation "cirh.Mul"(%grad, %x : !pdl.value, !pdl.value)  // if late
  %grad_x = pdl.result 0 of %grad_x_op  // if late
  %product_op = pdl.operation "cirh.Mul"(%grad, %half_x : !pdl.value, !pdl.value)  // if early
  %product_op = pdl.operation "cirh.Mul"(%grad_x, %half_value : !pdl.value, !pdl.value)  // if late
  %product_op = pdl.operation "cirh.Mul"(%half_grad, %x : !pdl.value, !pdl.value)  // if last
  %product = pdl.result 0 of %product_op
  // the derivative of erf, 2 / sqrt(pi) * exp(-u * u)
  %square_op = pdl.operation "cirh.Mul"(%u, %u : !pdl.value, !pdl.value)
  %square = pdl.result 0 of %square_op
  %negative_op = pdl.operation "cirh.Neg"(%square : !pdl.value)
  %negative = pdl.result 0 of %negative_op
  %power_op = pdl.operation "cirh.Exp"(%negative : !pdl.value)
  %power = pdl.result 0 of %power_op
  %sloped_op = pdl.operation "cirh.Mul"(%product, %slope_value : !pdl.value, !pdl.value)
  %sloped = pdl.result 0 of %sloped_op
  %by_erf_op = pdl.operation "cirh.Mul"(%sloped, %power : !pdl.value, !pdl.value)
  %by_erf = pdl.result 0 of %by_erf_op
  %second_op = pdl.operation "cirh.Mul"(%by_erf, %unit_value : !pdl.value, !pdl.value)  // if times
  %second_op = pdl.operation "cirh.Div"(%by_erf, %unit_value : !pdl.value, !pdl.value)  // if over
  %second = pdl.result 0 of %second_op
  pdl.apply_native_constraint "are_added"(%first_op, %second_op : !pdl.operation, !pdl.operation)  // if add
  pdl.apply_native_constraint "are_subtracted"(%first_op, %second_op : !pdl.operation, !pdl.operation)  // if subtract
  pdl.rewrite %second_op {
    %result = pdl.operation "cirh.GeluGrad"(%grad, %x : !pdl.value, !pdl.value) {"approximation" = %none}
    %nothing = pdl.apply_native_rewrite "neutral_term"(%second_op : !pdl.operation) : !pdl.value
    pdl.replace %second_op with (%nothing : !pdl.value)
    pdl.replace %first_op with %result
  }
}

// The approximate formula, with s = 1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))
// choices: (early|late|last)
pdl.pattern @gelu_tanh : benefit(1) {
  %tanh_formula = pdl.attribute = "TANH"
  %half = pdl.attribute = 0.5 : f32
  %one = pdl.attribute = 1.0 : f32
  %three = pdl.attribute = 3.0 : f32
  %cubic = pdl.attribute = 0.044715 : f32
  %unit = pdl.attribute = 0.7978845608 : f32
  %x = pdl.operand
  %half_value = pdl.operand
  %one_value = pdl.operand
  %three_value = pdl.operand
  %cubic_value = pdl.operand
  %unit_value = pdl.operand
  pdl.apply_native_constraint "is_number"(%half_value, %half : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%one_value, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%three_value, %three : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%cubic_value, %cubic : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%unit_value, %unit : !pdl.value, !pdl.attribute)
  %cube_op = pdl.operation "cirh.Pow"(%x, %three_value : !pdl.value, !pdl.value)
  %cube = pdl.result 0 of %cube_op
  %bend_op = pdl.operation "cirh.Mul"(%cube, %cubic_value : !pdl.value, !pdl.value)
  %bend = pdl.result 0 of %bend_op
  %bent_op = pdl.operation "cirh.Add"(%x, %bend : !pdl.value, !pdl.value)
  %bent = pdl.result 0 of %bent_op
  %u_op = pdl.operation "cirh.Mul"(%bent, %unit_value : !pdl.value, !pdl.value)
  %u = pdl.result 0 of %u_op
  %tanh_op = pdl.operation "cirh.Tanh"(%u : !pdl.value)
  %tanh = pdl.result 0 of %tanh_op
  %s_op = pdl.operation "cirh.Add"(%tanh, %one_value : !pdl.value, !pdl.value)
  %s = pdl.result 0 of %s_op
  %part_op = pdl.operation "cirh.Mul"(%x, %half_value : !pdl.value, !pdl.value)  // if early
  %part_op = pdl.operation "cirh.Mul"(%s, %half_value : !pdl.value, !pdl.value)  // if late
  %part_op = pdl.operation "cirh.Mul"(%x, %s : !pdl.value, !pdl.value)  // if last
  %part = pdl.result 0 of %part_op
  %gelu = pdl.operation "cirh.Mul"(%part, %s : !pdl.value, !pdl.value)  // if early
  %gelu = pdl.operation "cirh.Mul"(%part, %x : !pdl.value, !pdl.value)  // if late
  %gelu = pdl.operation "cirh.Mul"(%part, %half_value : !pdl.value, !pdl.value)  // if last
  pdl.rewrite %gelu {
    %result = pdl.operation "cirh.Gelu"(%x : !pdl.value) {"approximation" = %tanh_formula}
    pdl.replace %gelu with %result
  }
}

// Its gradient has three terms of one sum: s / 2 * grad, and the derivative of tanh times that of both parts of
// its argument. The first becomes the result of the op, the others leave the sum.
// choices: (early|late|last)
pdl.pattern @gelu_tanh_grad : benefit(1) {
  %tanh_formula = pdl.attribute = "TANH"
  %half = pdl.attribute = 0.5 : f32
  %one = pdl.attribute = 1.0 : f32
  %three = pdl.attribute = 3.0 : f32
  %cubic = pdl.attribute = 0.044715 : f32
  %unit = pdl.attribute = 0.7978845608 : f32
  %x = pdl.operand
  %grad = pdl.operand
  %half_value = pdl.operand
  %one_value = pdl.operand
  %three_value = pdl.operand
  %cubic_value = pdl.operand
  %unit_value = pdl.operand
  pdl.apply_native_constraint "is_number"(%half_value, %half : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%one_value, %one : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%three_value, %three : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%cubic_value, %cubic : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "is_number"(%unit_value, %unit : !pdl.value, !pdl.attribute)
  %cube_op = pdl.operation "cirh.Pow"(%x, %three_value : !pdl.value, !pdl.value)
  %cube = pdl.result 0 of %cube_op
  %bend_op = pdl.operation "cirh.Mul"(%cube, %cubic_value : !pdl.value, !pdl.value)
  %bend = pdl.result 0 of %bend_op
  %bent_op = pdl.operation "cirh.Add"(%x, %bend : !pdl.value, !pdl.value)
  %bent = pdl.result 0 of %bent_op
  %u_op = pdl.operation "cirh.Mul"(%bent, %unit_value : !pdl.value, !pdl.value)
  %u = pdl.result 0 of %u_op
  %tanh_op = pdl.operation "cirh.Tanh"(%u : !pdl.value)
  %tanh = pdl.result 0 of %tanh_op
  %s_op = pdl.operation "cirh.Add"(%tanh, %one_value : !pdl.value, !pdl.value)
  %s = pdl.result 0 of %s_op
  // grad * s / 2
  %grad_s_op = pdl.operation "cirh.Mul"(%grad, %s : !pdl.value, !pdl.value)  // if early
  %grad_s = pdl.result 0 of %grad_s_op  // if early
  %half_s_op = pdl.operation "cirh.Mul"(%s, %half_value : !pdl.value, !pdl.value)  // if late
  %half_s = pdl.result 0 of %half_s_op  // if late
  %half_grad_op = pdl.operation "cirh.Mul"(%grad, %half_value : !pdl.value, !pdl.value)  // if last
  %half_grad = pdl.result 0 of %half_grad_op  // if last
  %first_op = pdl.operation "cirh.Mul"(%grad_s, %half_value : !pdl.value, !pdl.value)  // if early
  %first_op = pdl.operation "cirh.Mul"(%grad, %half_s : !pdl.value, !pdl.value)  // if late
  %first_op = pdl.operation "cirh.Mul"(%half_grad, %s : !pdl.value, !pdl.value)  // if last
  %first = pdl.result 0 of %first_op
  // grad * x / 2
  %half_x_op = pdl.operation "cirh.Mul"(%x, %half_value : !pdl.value, !pdl.value)  // if early
  %half_x = pdl.result 0 of %half_x_op  // if early
  %grad_x_op = pdl.operation "cirh.Mul"(%grad, %x : !pdl.value, !pdl.value)  // if late
  %grad_x = pdl.result 0 of %grad_x_op  // if late
  %product_op = pdl.operation "cirh.Mul"(%grad, %half_x : !pdl.value, !pdl.value)  // if early
  %product_op = pdl.operation "cirh.Mul"(%grad_x, %half_value : !pdl.value, !pdl.value)  // if late
  %product_op = pdl.operation "cirh.Mul"(%half_grad, %x : !pdl.value, !pdl.value)  // if last
  %product = pdl.result 0 of %product_op
  // back through tanh, the unit, and both parts of the argument
  %by_tanh_op = pdl.operation "cirh.TanhGrad"(%tanh, %product : !pdl.value, !pdl.value)
  %by_tanh = pdl.result 0 of %by_tanh_op
  %second_op = pdl.operation "cirh.Mul"(%by_tanh, %unit_value : !pdl.value, !pdl.value)
  %second = pdl.result 0 of %second_op
  %bend_grad_op = pdl.operation "cirh.Mul"(%second, %cubic_value : !pdl.value, !pdl.value)
  %bend_grad = pdl.result 0 of %bend_grad_op
  %tripled_op = pdl.operation "cirh.Mul"(%bend_grad, %three_value : !pdl.value, !pdl.value)
  %tripled = pdl.result 0 of %tripled_op
  %square_op = pdl.operation "cirh.Mul"(%x, %x : !pdl.value, !pdl.value)
  %square = pdl.result 0 of %square_op
  %third_op = pdl.operation "cirh.Mul"(%tripled, %square : !pdl.value, !pdl.value)
  %third = pdl.result 0 of %third_op
  pdl.apply_native_constraint "are_added"(%first_op, %third_op : !pdl.operation, !pdl.operation)
  pdl.apply_native_constraint "are_added"(%first_op, %second_op, %bend_grad_op : !pdl.operation, !pdl.operation, !pdl.operation)
  pdl.rewrite %third_op {
    %result = pdl.operation "cirh.GeluGrad"(%grad, %x : !pdl.value, !pdl.value) {"approximation" = %tanh_formula}
    %nothing2 = pdl.apply_native_rewrite "neutral_term"(%second_op : !pdl.operation) : !pdl.value
    %nothing3 = pdl.apply_native_rewrite "neutral_term"(%third_op : !pdl.operation) : !pdl.value
    pdl.replace %third_op with (%nothing3 : !pdl.value)
    pdl.replace %second_op with (%nothing2 : !pdl.value)
    pdl.replace %first_op with %result
  }
}
