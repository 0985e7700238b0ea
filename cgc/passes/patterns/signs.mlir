// Negations go into constants, or else behind products and sums, where the next addition takes them in.

// -(x * constant) -> x * -constant, unless what reads it takes the sign in
pdl.pattern @negation_of_multiple : benefit(1) {
  %x = pdl.operand
  %constant = pdl.operand
  pdl.apply_native_constraint "is_constant"(%constant : !pdl.value)
  %product_op = pdl.operation "cirh.Mul"(%x, %constant : !pdl.value, !pdl.value)
  %product = pdl.result 0 of %product_op
  pdl.apply_native_constraint "used_once"(%product : !pdl.value)
  %negation = pdl.operation "cirh.Neg"(%product : !pdl.value)
  pdl.apply_native_constraint "has_negation_rule"(%negation : !pdl.operation) {isNegated = true}
  pdl.rewrite %negation {
    %negative = pdl.apply_native_rewrite "negated_constant"(%constant : !pdl.value) : !pdl.value
    %result = pdl.operation "cirh.Mul"(%x, %negative : !pdl.value, !pdl.value)
    pdl.replace %negation with %result
  }
}

// -a * -b -> a * b, at once: with one negation after the other, squares of squares of them would double the
// number of negations each time
pdl.pattern @product_of_negations : benefit(2) {
  %a = pdl.operand
  %b = pdl.operand
  %first_negation = pdl.operation "cirh.Neg"(%a : !pdl.value)
  %first_negative = pdl.result 0 of %first_negation
  %second_negation = pdl.operation "cirh.Neg"(%b : !pdl.value)
  %second_negative = pdl.result 0 of %second_negation
  %both = pdl.operation "cirh.Mul"(%first_negative, %second_negative : !pdl.value, !pdl.value)
  pdl.rewrite %both {
    %result = pdl.operation "cirh.Mul"(%a, %b : !pdl.value, !pdl.value)
    pdl.replace %both with %result
  }
}

pdl.pattern @quotient_of_negations : benefit(2) {
  %a = pdl.operand
  %b = pdl.operand
  %first_negation = pdl.operation "cirh.Neg"(%a : !pdl.value)
  %first_negative = pdl.result 0 of %first_negation
  %second_negation = pdl.operation "cirh.Neg"(%b : !pdl.value)
  %second_negative = pdl.result 0 of %second_negation
  %both = pdl.operation "cirh.Div"(%first_negative, %second_negative : !pdl.value, !pdl.value)
  pdl.rewrite %both {
    %result = pdl.operation "cirh.Div"(%a, %b : !pdl.value, !pdl.value)
    pdl.replace %both with %result
  }
}

// -a * b -> -(a * b)
pdl.pattern @product_of_negation : benefit(1) {
  %a = pdl.operand
  %b = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%a : !pdl.value)
  %negative = pdl.result 0 of %negation
  %product = pdl.operation "cirh.Mul"(%negative, %b : !pdl.value, !pdl.value)
  pdl.rewrite %product {
    %positive_op = pdl.operation "cirh.Mul"(%a, %b : !pdl.value, !pdl.value)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %product with %result
  }
}

// -a / b -> -(a / b)
pdl.pattern @quotient_of_negation : benefit(1) {
  %a = pdl.operand
  %b = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%a : !pdl.value)
  %negative = pdl.result 0 of %negation
  %product = pdl.operation "cirh.Div"(%negative, %b : !pdl.value, !pdl.value)
  pdl.rewrite %product {
    %positive_op = pdl.operation "cirh.Div"(%a, %b : !pdl.value, !pdl.value)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %product with %result
  }
}

// a / -b -> -(a / b)
pdl.pattern @quotient_by_negation : benefit(1) {
  %a = pdl.operand
  %b = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%b : !pdl.value)
  %negative = pdl.result 0 of %negation
  %product = pdl.operation "cirh.Div"(%a, %negative : !pdl.value, !pdl.value)
  pdl.rewrite %product {
    %positive_op = pdl.operation "cirh.Div"(%a, %b : !pdl.value, !pdl.value)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %product with %result
  }
}

// The same for what only moves elements
pdl.pattern @broadcast_of_negation : benefit(1) {
  %type = pdl.type
  %broadcast_dimensions = pdl.attribute
  %x = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%x : !pdl.value)
  %negative = pdl.result 0 of %negation
  %moved = pdl.operation "cirh.BroadcastInDim"(%negative : !pdl.value) {"broadcast_dimensions" = %broadcast_dimensions} -> (%type : !pdl.type)
  pdl.rewrite %moved {
    %positive_op = pdl.operation "cirh.BroadcastInDim"(%x : !pdl.value) {"broadcast_dimensions" = %broadcast_dimensions} -> (%type : !pdl.type)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %moved with %result
  }
}

pdl.pattern @reshape_of_negation : benefit(1) {
  %type = pdl.type
  %x = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%x : !pdl.value)
  %negative = pdl.result 0 of %negation
  %moved = pdl.operation "cirh.Reshape"(%negative : !pdl.value) -> (%type : !pdl.type)
  pdl.rewrite %moved {
    %positive_op = pdl.operation "cirh.Reshape"(%x : !pdl.value) -> (%type : !pdl.type)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %moved with %result
  }
}

// Transposes that bring the channels of images first go behind negations themselves.
pdl.pattern @transpose_of_negation : benefit(1) {
  %type = pdl.type
  %permutation = pdl.attribute
  %x = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%x : !pdl.value)
  %negative = pdl.result 0 of %negation
  %moved = pdl.operation "cirh.Transpose"(%negative : !pdl.value) {"permutation" = %permutation} -> (%type : !pdl.type)
  pdl.apply_native_constraint "brings_channels_first"(%moved : !pdl.operation) {isNegated = true}
  pdl.rewrite %moved {
    %positive_op = pdl.operation "cirh.Transpose"(%x : !pdl.value) {"permutation" = %permutation} -> (%type : !pdl.type)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %moved with %result
  }
}

// sum(-x) -> -sum(x)
pdl.pattern @sum_of_negation : benefit(1) {
  %type = pdl.type
  %reduce_kind = pdl.attribute = "ADD"
  %dimensions = pdl.attribute
  %keep_dims = pdl.attribute
  %x = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%x : !pdl.value)
  %negative = pdl.result 0 of %negation
  %moved = pdl.operation "cirh.Reduce"(%negative : !pdl.value) {"reduce_kind" = %reduce_kind, "dimensions" = %dimensions, "keep_dims" = %keep_dims} -> (%type : !pdl.type)
  pdl.rewrite %moved {
    %positive_op = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %reduce_kind, "dimensions" = %dimensions, "keep_dims" = %keep_dims} -> (%type : !pdl.type)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %moved with %result
  }
}

// erf(-x) -> -erf(x)
pdl.pattern @erf_of_negation : benefit(1) {
  %type = pdl.type
  %x = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%x : !pdl.value)
  %negative = pdl.result 0 of %negation
  %moved = pdl.operation "cirh.Erf"(%negative : !pdl.value) -> (%type : !pdl.type)
  pdl.rewrite %moved {
    %positive_op = pdl.operation "cirh.Erf"(%x : !pdl.value) -> (%type : !pdl.type)
    %positive = pdl.result 0 of %positive_op
    %result = pdl.operation "cirh.Neg"(%positive : !pdl.value)
    pdl.replace %moved with %result
  }
}

// -a - b -> -(a + b)
pdl.pattern @difference_of_negation : benefit(1) {
  %a = pdl.operand
  %b = pdl.operand
  %negation = pdl.operation "cirh.Neg"(%a : !pdl.value)
  %negative = pdl.result 0 of %negation
  %difference = pdl.operation "cirh.Sub"(%negative, %b : !pdl.value, !pdl.value)
  pdl.rewrite %difference {
    %addition = pdl.operation "cirh.Add"(%a, %b : !pdl.value, !pdl.value)
    %sum = pdl.result 0 of %addition
    %result = pdl.operation "cirh.Neg"(%sum : !pdl.value)
    pdl.replace %difference with %result
  }
}
