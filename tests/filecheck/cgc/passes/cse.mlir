// RUN: cgc-opt %s --passes cse --verify-each | filecheck %s

builtin.module {
  // Debug attributes do not keep ops apart; those of the first stay.
  // CHECK-LABEL: @duplicates
  // CHECK-NEXT: %[[C:.*]] = cirh.Const dense<1.000000e+00> : tensor<4xf32>
  // CHECK-NEXT: %[[A:.*]] = cirh.Add %x, %[[C]] {cs.layer = ["one"], cs.name = "first"}
  // CHECK-NEXT: %[[B:.*]] = cirh.Mul %[[A]], %[[A]]
  // CHECK-NEXT: func.return %[[B]]
  func.func @duplicates(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<1.0> : tensor<4xf32>
    %d = cirh.Const {cs.layer = ["two", "inner"], cs.name = "again"} dense<1.0> : tensor<4xf32>
    %a = cirh.Add %x, %c {cs.layer = ["one"], cs.name = "first"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Add %d, %x {cs.layer = ["two"], cs.name = "second"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %y = cirh.Mul %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // A random op is a function of its seeds and the step.
  // CHECK-LABEL: @random
  // CHECK-NEXT: %[[U:.*]] = cirh.RandomUniform %s
  // CHECK-NEXT: func.return %[[U]], %[[U]]
  func.func @random(%s: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %a = cirh.RandomUniform %s {global_seed = 1 : i64, op_seed = 2 : i64} : (tensor<i32>) -> tensor<4xf32>
    %b = cirh.RandomUniform %s {global_seed = 1 : i64, op_seed = 2 : i64} : (tensor<i32>) -> tensor<4xf32>
    func.return %a, %b : tensor<4xf32>, tensor<4xf32>
  }

  // All results of an op with several.
  // CHECK-LABEL: @two_results
  // CHECK-NEXT: %[[L:.*]], %[[B:.*]] = cirh.SoftmaxCrossEntropyWithLogits
  // CHECK-NEXT: func.return %[[L]], %[[B]]
  func.func @two_results(%x: tensor<4x2xf32>, %y: tensor<4x2xf32>) -> (tensor<4xf32>, tensor<4x2xf32>) {
    %la, %ba = cirh.SoftmaxCrossEntropyWithLogits %x, %y : (tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<4xf32>, tensor<4x2xf32>)
    %lb, %bb = cirh.SoftmaxCrossEntropyWithLogits %x, %y : (tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<4xf32>, tensor<4x2xf32>)
    func.return %la, %bb : tensor<4xf32>, tensor<4x2xf32>
  }
}
