// Negations go behind what only moves elements, but not behind what canonicalization takes behind them:
// reshapes of vectors stay, and transposes of images stay behind. Else the two would go on forever.
// RUN: cgc-opt %s --passes fuse,canonicalize,dce --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @negated_vector
  // CHECK: cirh.Reshape
  // CHECK: cirh.Neg
  // CHECK: func.return
  func.func @negated_vector(%x: tensor<4xf32>) -> tensor<1x1x4xf32> {
    %negative = cirh.Neg %x : (tensor<4xf32>) -> tensor<4xf32>
    %y = cirh.Reshape %negative : (tensor<4xf32>) -> tensor<1x1x4xf32>
    func.return %y : tensor<1x1x4xf32>
  }

  // CHECK-LABEL: @negated_image
  // CHECK: cirh.Neg
  // CHECK: cirh.Transpose
  // CHECK: func.return
  func.func @negated_image(%x: tensor<2x4x4x3xf32>) -> tensor<2x3x4x4xf32> {
    %first = cirh.Transpose %x {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x4x4x3xf32>) -> tensor<2x3x4x4xf32>
    %y = cirh.Neg %first : (tensor<2x3x4x4xf32>) -> tensor<2x3x4x4xf32>
    func.return %y : tensor<2x3x4x4xf32>
  }

  // CHECK-LABEL: @negated_heads
  // CHECK: cirh.Transpose
  // CHECK: cirh.Neg
  // CHECK: func.return
  func.func @negated_heads(%x: tensor<2x4x4x3xf32>) -> tensor<2x4x4x3xf32> {
    %negative = cirh.Neg %x : (tensor<2x4x4x3xf32>) -> tensor<2x4x4x3xf32>
    %y = cirh.Transpose %negative {permutation = array<i64: 0, 2, 1, 3>} : (tensor<2x4x4x3xf32>) -> tensor<2x4x4x3xf32>
    func.return %y : tensor<2x4x4x3xf32>
  }
}
