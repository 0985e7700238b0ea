// Each of these would change a result, or is not what it looks like. Nothing may be rewritten.
// RUN: cgc-opt %s --passes canonicalize,dce --verify-each | filecheck %s

builtin.module {
  // f32 -> f16 rounds; i32 -> f32 rounds above 2**24
  // CHECK-LABEL: @casts_that_round
  // CHECK-NEXT: cirh.Cast %x {{.*}} -> tensor<4xf16>
  // CHECK-NEXT: cirh.Cast %{{.*}} -> tensor<4xf32>
  // CHECK-NEXT: cirh.Cast %i {{.*}} -> tensor<4xf32>
  // CHECK-NEXT: cirh.Cast %{{.*}} -> tensor<4xi32>
  func.func @casts_that_round(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>) {
    %a = cirh.Cast %x {Truncate = false} : (tensor<4xf32>) -> tensor<4xf16>
    %b = cirh.Cast %a {Truncate = false} : (tensor<4xf16>) -> tensor<4xf32>
    %c = cirh.Cast %i {Truncate = false} : (tensor<4xi32>) -> tensor<4xf32>
    %d = cirh.Cast %c {Truncate = false} : (tensor<4xf32>) -> tensor<4xi32>
    func.return %b, %d : tensor<4xf32>, tensor<4xi32>
  }

  // f16 has more fraction bits than bf16, bf16 a larger range than f16
  // CHECK-LABEL: @casts_between_half_types
  // CHECK-NEXT: cirh.Cast
  // CHECK-NEXT: cirh.Cast
  func.func @casts_between_half_types(%x: tensor<4xf16>) -> tensor<4xf16> {
    %a = cirh.Cast %x {Truncate = false} : (tensor<4xf16>) -> tensor<4xbf16>
    %b = cirh.Cast %a {Truncate = false} : (tensor<4xbf16>) -> tensor<4xf16>
    func.return %b : tensor<4xf16>
  }

  // A batch dimension is moved: no flag of the product can express that.
  // CHECK-LABEL: @matmul_of_batch_transpose
  // CHECK-NEXT: cirh.Transpose
  // CHECK-NEXT: cirh.MatMul
  func.func @matmul_of_batch_transpose(%x: tensor<4x2x5xf32>, %y: tensor<2x5x6xf32>) -> tensor<2x4x6xf32> {
    %t = cirh.Transpose %x {permutation = array<i64: 1, 0, 2>} : (tensor<4x2x5xf32>) -> tensor<2x4x5xf32>
    %r = cirh.MatMul %t, %y {transpose_a = false, transpose_b = false} : (tensor<2x4x5xf32>, tensor<2x5x6xf32>) -> tensor<2x4x6xf32>
    func.return %r : tensor<2x4x6xf32>
  }

  // The reshape joins dimensions.
  // CHECK-LABEL: @broadcast_of_joining_reshape
  // CHECK-NEXT: cirh.Reshape
  // CHECK-NEXT: cirh.BroadcastInDim
  func.func @broadcast_of_joining_reshape(%x: tensor<2x3xf32>) -> tensor<4x6xf32> {
    %a = cirh.Reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
    %b = cirh.BroadcastInDim %a {broadcast_dimensions = array<i64: 1>} : (tensor<6xf32>) -> tensor<4x6xf32>
    func.return %b : tensor<4x6xf32>
  }

  // A transpose between two reshapes keeps them apart.
  // CHECK-LABEL: @reshape_transpose_reshape
  // CHECK-NEXT: cirh.Reshape
  // CHECK-NEXT: cirh.Transpose
  // CHECK-NEXT: cirh.Reshape
  func.func @reshape_transpose_reshape(%x: tensor<6xf32>) -> tensor<6xf32> {
    %a = cirh.Reshape %x : (tensor<6xf32>) -> tensor<2x3xf32>
    %b = cirh.Transpose %a {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %c = cirh.Reshape %b : (tensor<3x2xf32>) -> tensor<6xf32>
    func.return %c : tensor<6xf32>
  }

  // Equal types, but a permutation that moves elements.
  // CHECK-LABEL: @square_transpose
  // CHECK-NEXT: cirh.Transpose
  func.func @square_transpose(%x: tensor<3x3xf32>) -> tensor<3x3xf32> {
    %a = cirh.Transpose %x {permutation = array<i64: 1, 0>} : (tensor<3x3xf32>) -> tensor<3x3xf32>
    func.return %a : tensor<3x3xf32>
  }

  // Sums in another order round differently.
  // CHECK-LABEL: @reduce_of_reduce
  // CHECK-NEXT: cirh.Reduce
  // CHECK-NEXT: cirh.Reduce
  func.func @reduce_of_reduce(%x: tensor<3x3xf32>) -> tensor<f32> {
    %a = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<3x3xf32>) -> tensor<3xf32>
    %b = cirh.Reduce %a {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<3xf32>) -> tensor<f32>
    func.return %b : tensor<f32>
  }
}
