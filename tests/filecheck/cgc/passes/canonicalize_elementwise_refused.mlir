// Each of these would change a result for some input. Nothing may be rewritten.
// RUN: cgc-opt %s --passes canonicalize,dce --verify-each | filecheck %s

builtin.module {
  // -0.0 + 0.0 is 0.0
  // CHECK-LABEL: @add_zero
  // CHECK: cirh.Add
  func.func @add_zero(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<0.0> : tensor<4xf32>
    %y = cirh.Add %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // -0.0 - -0.0 is 0.0
  // CHECK-LABEL: @sub_negative_zero
  // CHECK: cirh.Sub
  func.func @sub_negative_zero(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<-0.0> : tensor<4xf32>
    %y = cirh.Sub %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // A constant of 0.0 and -0.0 is not a splat.
  // CHECK-LABEL: @mixed_zeros
  // CHECK: cirh.Add
  func.func @mixed_zeros(%x: tensor<2xf32>) -> tensor<2xf32> {
    %c = cirh.Const dense<[-0.0, 0.0]> : tensor<2xf32>
    %y = cirh.Add %x, %c : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    func.return %y : tensor<2xf32>
  }

  // NaN and infinity
  // CHECK-LABEL: @mul_zero
  // CHECK: cirh.Mul
  func.func @mul_zero(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<0.0> : tensor<4xf32>
    %y = cirh.Mul %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @sub_self
  // CHECK: cirh.Sub
  func.func @sub_self(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = cirh.Sub %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // not (NaN < x) is true, NaN >= x is false
  // CHECK-LABEL: @not_of_float_ordering
  // CHECK: cirh.Compare {{.*}} {comparison_direction = "LT"}
  // CHECK-NEXT: cirh.Not
  func.func @not_of_float_ordering(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xi1> {
    %a = cirh.Compare %x, %y {comparison_direction = "LT"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %b = cirh.Not %a : (tensor<4xi1>) -> tensor<4xi1>
    func.return %b : tensor<4xi1>
  }

  // x // 1.0 rounds down
  // CHECK-LABEL: @floor_div_float
  // CHECK: cirh.FloorDiv
  func.func @floor_div_float(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<1.0> : tensor<4xf32>
    %y = cirh.FloorDiv %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // 1 / x is not x
  // CHECK-LABEL: @one_by_x
  // CHECK: cirh.Div
  func.func @one_by_x(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<1.0> : tensor<4xf32>
    %y = cirh.Div %c, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // sigmoid is not idempotent
  // CHECK-LABEL: @sigmoid_of_sigmoid
  // CHECK: cirh.Sigmoid
  // CHECK-NEXT: cirh.Sigmoid
  func.func @sigmoid_of_sigmoid(%x: tensor<4xf32>) -> tensor<4xf32> {
    %a = cirh.Sigmoid %x : (tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Sigmoid %a : (tensor<4xf32>) -> tensor<4xf32>
    func.return %b : tensor<4xf32>
  }

  // Sums keep their order: floats are not associative.
  // CHECK-LABEL: @constants_stay_apart
  // CHECK: cirh.Add
  // CHECK-NEXT: cirh.Add
  func.func @constants_stay_apart(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<0.1> : tensor<4xf32>
    %a = cirh.Add %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Add %a, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %b : tensor<4xf32>
  }
}
