// Roots that a value is divided by, and their gradients, in terms of `Rsqrt`, as the norms are written.

// 1 / sqrt(y + number) -> rsqrt(y + number); other readers of the root take the reciprocal of it. The root of a
// sum of squares alone stays: it is a global norm (see global_norm.mlir).
pdl.pattern @reciprocal_of_root : benefit(1) {
  %number = pdl.attribute = 1.0 : f32
  %one = pdl.operand
  pdl.apply_native_constraint "is_number"(%one, %number : !pdl.value, !pdl.attribute)
  %y = pdl.operand
  %number_value = pdl.operand
  pdl.apply_native_constraint "is_float32"(%y : !pdl.value)
  pdl.apply_native_constraint "is_positive"(%number_value : !pdl.value)
  %sum_op = pdl.operation "cirh.Add"(%y, %number_value : !pdl.value, !pdl.value)
  %sum = pdl.result 0 of %sum_op
  %root_op = pdl.operation "cirh.Sqrt"(%sum : !pdl.value)
  %root = pdl.result 0 of %root_op
  %quotient = pdl.operation "cirh.Div"(%one, %root : !pdl.value, !pdl.value)
  pdl.rewrite %quotient {
    %rsqrt_op = pdl.operation "cirh.Rsqrt"(%sum : !pdl.value)
    %rsqrt = pdl.result 0 of %rsqrt_op
    %new_root_op = pdl.operation "cirh.Reciprocal"(%rsqrt : !pdl.value)
    %new_root = pdl.result 0 of %new_root_op
    pdl.replace %quotient with (%rsqrt : !pdl.value)
    pdl.replace %root_op with (%new_root : !pdl.value)
  }
}

// a / (1 / rsqrt(x)) -> a * rsqrt(x)
pdl.pattern @quotient_by_root : benefit(1) {
  %a = pdl.operand
  %x = pdl.operand
  %rsqrt_op = pdl.operation "cirh.Rsqrt"(%x : !pdl.value)
  %rsqrt = pdl.result 0 of %rsqrt_op
  %root_op = pdl.operation "cirh.Reciprocal"(%rsqrt : !pdl.value)
  %root = pdl.result 0 of %root_op
  %quotient = pdl.operation "cirh.Div"(%a, %root : !pdl.value, !pdl.value)
  pdl.rewrite %quotient {
    %result = pdl.operation "cirh.Mul"(%a, %rsqrt : !pdl.value, !pdl.value)
    pdl.replace %quotient with %result
  }
}

// a * r**2 * number * r -> a * number * r**3, the gradient of r = rsqrt(x) where it was written as 1 / sqrt(x)
pdl.pattern @gradient_of_root : benefit(1) {
  %a = pdl.operand
  %x = pdl.operand
  %number = pdl.operand
  pdl.apply_native_constraint "is_constant"(%number : !pdl.value)
  %rsqrt_op = pdl.operation "cirh.Rsqrt"(%x : !pdl.value)
  %rsqrt = pdl.result 0 of %rsqrt_op
  %square_op = pdl.operation "cirh.Mul"(%rsqrt, %rsqrt : !pdl.value, !pdl.value)
  %square = pdl.result 0 of %square_op
  %product_op = pdl.operation "cirh.Mul"(%a, %square : !pdl.value, !pdl.value)
  %product = pdl.result 0 of %product_op
  %multiple_op = pdl.operation "cirh.Mul"(%product, %number : !pdl.value, !pdl.value)
  %multiple = pdl.result 0 of %multiple_op
  %gradient = pdl.operation "cirh.Mul"(%multiple, %rsqrt : !pdl.value, !pdl.value)
  pdl.rewrite %gradient {
    %scaled_op = pdl.operation "cirh.Mul"(%a, %number : !pdl.value, !pdl.value)
    %scaled = pdl.result 0 of %scaled_op
    %cube_op = pdl.operation "cirh.Mul"(%square, %rsqrt : !pdl.value, !pdl.value)
    %cube = pdl.result 0 of %cube_op
    %result = pdl.operation "cirh.Mul"(%scaled, %cube : !pdl.value, !pdl.value)
    pdl.replace %gradient with %result
  }
}

// (y + number) ** -0.5 -> rsqrt(y + number); with the number above 0, the sum is not -0.0, where the two differ
pdl.pattern @power_to_root : benefit(1) {
  %exponent_number = pdl.attribute = -0.5 : f32
  %exponent = pdl.operand
  pdl.apply_native_constraint "is_number"(%exponent, %exponent_number : !pdl.value, !pdl.attribute)
  %y = pdl.operand
  %number = pdl.operand
  pdl.apply_native_constraint "is_float32"(%y : !pdl.value)
  pdl.apply_native_constraint "is_positive"(%number : !pdl.value)
  %sum_op = pdl.operation "cirh.Add"(%y, %number : !pdl.value, !pdl.value)
  %sum = pdl.result 0 of %sum_op
  %power = pdl.operation "cirh.Pow"(%sum, %exponent : !pdl.value, !pdl.value)
  pdl.rewrite %power {
    %rsqrt = pdl.operation "cirh.Rsqrt"(%sum : !pdl.value)
    pdl.replace %power with %rsqrt
  }
}

// (y + number) ** -1.5 -> rsqrt(y + number)**3: its gradient
pdl.pattern @power_to_cube_of_root : benefit(1) {
  %exponent_number = pdl.attribute = -1.5 : f32
  %exponent = pdl.operand
  pdl.apply_native_constraint "is_number"(%exponent, %exponent_number : !pdl.value, !pdl.attribute)
  %y = pdl.operand
  %number = pdl.operand
  pdl.apply_native_constraint "is_float32"(%y : !pdl.value)
  pdl.apply_native_constraint "is_positive"(%number : !pdl.value)
  %sum_op = pdl.operation "cirh.Add"(%y, %number : !pdl.value, !pdl.value)
  %sum = pdl.result 0 of %sum_op
  %power = pdl.operation "cirh.Pow"(%sum, %exponent : !pdl.value, !pdl.value)
  pdl.rewrite %power {
    %rsqrt_op = pdl.operation "cirh.Rsqrt"(%sum : !pdl.value)
    %rsqrt = pdl.result 0 of %rsqrt_op
    %square_op = pdl.operation "cirh.Mul"(%rsqrt, %rsqrt : !pdl.value, !pdl.value)
    %square = pdl.result 0 of %square_op
    %cube = pdl.operation "cirh.Mul"(%square, %rsqrt : !pdl.value, !pdl.value)
    pdl.replace %power with %cube
  }
}
