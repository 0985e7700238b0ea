// What programs with channels first do between convolutions is done with channels last.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,dce | filecheck %s

builtin.module {
  // CHECK: @gated
  // CHECK-NOT: cirh.Transpose
  // CHECK: func.return
  func.func @gated(%x: tensor<2x3x5x4xf32>, %y: tensor<2x3x5x4xf32>, %gate: tensor<2x4xf32>) -> (tensor<2x3x5x4xf32>) {
    %first = cirh.Transpose %x {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x3x5x4xf32>) -> tensor<2x4x3x5xf32>
    %shortcut = cirh.Transpose %y {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x3x5x4xf32>) -> tensor<2x4x3x5xf32>
    %sigmoid = cirh.Sigmoid %first : (tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
    %gates = cirh.BroadcastInDim %gate {broadcast_dimensions = array<i64: 0, 1>} : (tensor<2x4xf32>) -> tensor<2x4x3x5xf32>
    %product = cirh.Mul %sigmoid, %gates : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
    %sum = cirh.Add %product, %shortcut : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
    %two = cirh.Const dense<2.000000e+00> : tensor<2x4x3x5xf32>
    %scaled = cirh.Mul %sum, %two : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
    %last = cirh.Transpose %scaled {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x4x3x5xf32>) -> tensor<2x3x5x4xf32>
    func.return %last : tensor<2x3x5x4xf32>
  }
  // CHECK: @joined
  // CHECK-NEXT: %[[JOINT:.*]] = cirh.Concat %x, %y {axis = 3 : i64}
  // CHECK-NEXT: %[[PART:.*]] = cirh.Slice %[[JOINT]] {start_indices = array<i64: 0, 1, 0, 2>, limit_indices = array<i64: 2, 3, 5, 8>, strides = array<i64: 1, 1, 2, 3>}
  // CHECK-NEXT: func.return %[[PART]]
  func.func @joined(%x: tensor<2x3x5x4xf32>, %y: tensor<2x3x5x4xf32>) -> (tensor<2x2x3x2xf32>) {
    %one = cirh.Transpose %x {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x3x5x4xf32>) -> tensor<2x4x3x5xf32>
    %other = cirh.Transpose %y {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x3x5x4xf32>) -> tensor<2x4x3x5xf32>
    %joint = cirh.Concat %one, %other {axis = 1 : i64} : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x8x3x5xf32>
    %part = cirh.Slice %joint {start_indices = array<i64: 0, 2, 1, 0>, limit_indices = array<i64: 2, 8, 3, 5>, strides = array<i64: 1, 3, 1, 2>} : (tensor<2x8x3x5xf32>) -> tensor<2x2x2x3xf32>
    %last = cirh.Transpose %part {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x2x2x3xf32>) -> tensor<2x2x3x2xf32>
    func.return %last : tensor<2x2x3x2xf32>
  }
  // CHECK: @gradient_of_mean
  // CHECK: cirh.Div {{.*}} : (tensor<2x4x1x1xf32>, tensor<2x4x1x1xf32>)
  // CHECK: cirh.BroadcastInDim
  // CHECK-NEXT: func.return
  func.func @gradient_of_mean(%x: tensor<2x4x1x1xf32>) -> (tensor<2x4x3x5xf32>) {
    %all = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<2x4x1x1xf32>) -> tensor<2x4x3x5xf32>
    %count = cirh.Const dense<1.500000e+01> : tensor<2x4x3x5xf32>
    %mean = cirh.Div %all, %count : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
    func.return %mean : tensor<2x4x3x5xf32>
  }
  // An operand that has its channels first by itself, and a bias of the last dimension.
  // CHECK: @mixed
  // CHECK: cirh.Add %{{.*}} : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>)
  // CHECK: cirh.BiasAdd %{{.*}} : (tensor<2x4x3x5xf32>, tensor<5xf32>)
  func.func @mixed(%x: tensor<2x3x5x4xf32>, %y: tensor<2x4x3x5xf32>, %bias: tensor<5xf32>) -> (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) {
    %first = cirh.Transpose %x {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x3x5x4xf32>) -> tensor<2x4x3x5xf32>
    %sum = cirh.Add %first, %y : (tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>) -> tensor<2x4x3x5xf32>
    %biased = cirh.BiasAdd %first, %bias : (tensor<2x4x3x5xf32>, tensor<5xf32>) -> tensor<2x4x3x5xf32>
    func.return %sum, %biased : tensor<2x4x3x5xf32>, tensor<2x4x3x5xf32>
  }
}
