// Products: transposes become flags, the weights of a batch become one matrix; broadcasts and reductions lose
// dimensions of size 1 that a reshape drops.
// RUN: cgc-opt %s --verify-each --passes canonicalize,dce | filecheck %s

builtin.module {
  // CHECK: @einsum_key
  // CHECK-NEXT: %[[K:.*]] = cirh.Transpose %k {permutation = array<i64: 0, 2, 1, 3>}
  // CHECK-NEXT: cirh.MatMul %q, %[[K]] {transpose_a = false, transpose_b = true}
  func.func @einsum_key(%q: tensor<2x3x5x4xf32>, %k: tensor<2x6x3x4xf32>) -> tensor<2x3x5x6xf32> {
    %t = cirh.Transpose %k {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x6x3x4xf32>) -> tensor<2x3x4x6xf32>
    %r = cirh.MatMul %q, %t {transpose_a = false, transpose_b = false} : (tensor<2x3x5x4xf32>, tensor<2x3x4x6xf32>) -> tensor<2x3x5x6xf32>
    func.return %r : tensor<2x3x5x6xf32>
  }
  // CHECK: @product_transposed
  // CHECK-NEXT: %[[P:.*]] = cirh.MatMul %b, %a {transpose_a = true, transpose_b = true}
  // CHECK-NEXT: func.return %[[P]]
  func.func @product_transposed(%a: tensor<2x3x4xf32>, %b: tensor<2x4x5xf32>) -> tensor<2x5x3xf32> {
    %p = cirh.MatMul %a, %b {transpose_a = false, transpose_b = false} : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    %r = cirh.Transpose %p {permutation = array<i64: 0, 2, 1>} : (tensor<2x3x5xf32>) -> tensor<2x5x3xf32>
    func.return %r : tensor<2x5x3xf32>
  }
  // CHECK: @one_matrix
  // CHECK-NEXT: %[[ROWS:.*]] = cirh.Reshape %x : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
  // CHECK-NEXT: %[[P:.*]] = cirh.MatMul %[[ROWS]], %w {transpose_a = false, transpose_b = false} : (tensor<6x4xf32>, tensor<4x5xf32>)
  // CHECK-NEXT: cirh.Reshape %[[P]] : (tensor<6x5xf32>) -> tensor<2x3x5xf32>
  func.func @one_matrix(%x: tensor<2x3x4xf32>, %w: tensor<4x5xf32>) -> tensor<2x3x5xf32> {
    %b = cirh.BroadcastInDim %w {broadcast_dimensions = array<i64: 1, 2>} : (tensor<4x5xf32>) -> tensor<2x4x5xf32>
    %r = cirh.MatMul %x, %b {transpose_a = false, transpose_b = false} : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    func.return %r : tensor<2x3x5xf32>
  }
  // A matrix that differs from sample to sample stays, and so does a product that is read elsewhere.
  // CHECK: @own_matrices
  // CHECK-NEXT: cirh.MatMul %x, %w
  func.func @own_matrices(%x: tensor<2x3x4xf32>, %w: tensor<2x4x5xf32>) -> tensor<2x3x5xf32> {
    %r = cirh.MatMul %x, %w {transpose_a = false, transpose_b = false} : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    func.return %r : tensor<2x3x5xf32>
  }
  // CHECK: @read_elsewhere
  // CHECK-NEXT: %[[P:.*]] = cirh.MatMul %a, %b
  // CHECK-NEXT: cirh.Transpose %[[P]]
  func.func @read_elsewhere(%a: tensor<3x4xf32>, %b: tensor<4x5xf32>) -> (tensor<5x3xf32>, tensor<3x5xf32>) {
    %p = cirh.MatMul %a, %b {transpose_a = false, transpose_b = false} : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
    %r = cirh.Transpose %p {permutation = array<i64: 1, 0>} : (tensor<3x5xf32>) -> tensor<5x3xf32>
    func.return %r, %p : tensor<5x3xf32>, tensor<3x5xf32>
  }
  // As tf.tile is imported.
  // CHECK: @tile
  // CHECK-NEXT: cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<4x6x1xf32>) -> tensor<4x6x5xf32>
  // CHECK-NEXT: func.return
  func.func @tile(%x: tensor<4x6x1xf32>) -> tensor<4x6x5xf32> {
    %a = cirh.Reshape %x : (tensor<4x6x1xf32>) -> tensor<1x4x1x6x1x1xf32>
    %b = cirh.BroadcastInDim %a {broadcast_dimensions = array<i64: 0, 1, 2, 3, 4, 5>} : (tensor<1x4x1x6x1x1xf32>) -> tensor<1x4x1x6x5x1xf32>
    %c = cirh.Reshape %b : (tensor<1x4x1x6x5x1xf32>) -> tensor<4x6x5xf32>
    func.return %c : tensor<4x6x5xf32>
  }
  // The same of a batch of one sample.
  // CHECK: @tile_of_one_sample
  // CHECK-NEXT: cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<1x3x1xf32>) -> tensor<1x3x4xf32>
  // CHECK-NEXT: func.return
  func.func @tile_of_one_sample(%x: tensor<1x3x1xf32>) -> tensor<1x3x4xf32> {
    %b = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0, 3, 4>} : (tensor<1x3x1xf32>) -> tensor<1x1x1x3x4x1xf32>
    %c = cirh.Reshape %b : (tensor<1x1x1x3x4x1xf32>) -> tensor<1x3x4xf32>
    func.return %c : tensor<1x3x4xf32>
  }
  // A dimension of size 1 that has no place between the others stays, and so does the reshape.
  // CHECK: @no_place
  // CHECK: cirh.BroadcastInDim
  // CHECK-NEXT: cirh.Reshape
  func.func @no_place(%x: tensor<3x1x4xf32>) -> tensor<3x4x2xf32> {
    %c = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<3x1x4xf32>) -> tensor<3x1x4x2xf32>
    %d = cirh.Reshape %c : (tensor<3x1x4x2xf32>) -> tensor<3x4x2xf32>
    func.return %d : tensor<3x4x2xf32>
  }
  // A bias gradient of one sample is one over all leading dimensions; what leaves more than the last is not.
  // CHECK: @gradient_of_one_sample
  // CHECK-NEXT: cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false}
  // CHECK-NEXT: cirh.Reduce %y {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true}
  // CHECK-NEXT: cirh.Reshape
  func.func @gradient_of_one_sample(%x: tensor<1x3x4xf32>, %y: tensor<2x3x4xf32>) -> (tensor<4xf32>, tensor<8xf32>) {
    %a = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true} : (tensor<1x3x4xf32>) -> tensor<1x1x4xf32>
    %b = cirh.Reshape %a : (tensor<1x1x4xf32>) -> tensor<4xf32>
    %c = cirh.Reduce %y {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    %d = cirh.Reshape %c : (tensor<2x1x4xf32>) -> tensor<8xf32>
    func.return %b, %d : tensor<4xf32>, tensor<8xf32>
  }
  // A tile that repeats a whole dimension is no broadcast of it.
  // CHECK: @tile_of_rows
  // CHECK: cirh.BroadcastInDim
  // CHECK-NEXT: cirh.Reshape
  func.func @tile_of_rows(%x: tensor<4x6xf32>) -> tensor<12x6xf32> {
    %a = cirh.Reshape %x : (tensor<4x6xf32>) -> tensor<1x4x1x6xf32>
    %b = cirh.BroadcastInDim %a {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x4x1x6xf32>) -> tensor<3x4x1x6xf32>
    %c = cirh.Reshape %b : (tensor<3x4x1x6xf32>) -> tensor<12x6xf32>
    func.return %c : tensor<12x6xf32>
  }
  // CHECK: @reduce
  // CHECK-NEXT: cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false}
  // CHECK-NEXT: cirh.Reduce %x {reduce_kind = "MAX", dimensions = array<i64: 1>, keep_dims = true}
  // CHECK-NEXT: func.return
  func.func @reduce(%x: tensor<4x6xf32>) -> (tensor<6xf32>, tensor<4x1xf32>) {
    %a = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = true} : (tensor<4x6xf32>) -> tensor<1x6xf32>
    %b = cirh.Reshape %a : (tensor<1x6xf32>) -> tensor<6xf32>
    %c = cirh.Reduce %x {reduce_kind = "MAX", dimensions = array<i64: 1>, keep_dims = false} : (tensor<4x6xf32>) -> tensor<4xf32>
    %d = cirh.Reshape %c : (tensor<4xf32>) -> tensor<4x1xf32>
    func.return %b, %d : tensor<6xf32>, tensor<4x1xf32>
  }
}
