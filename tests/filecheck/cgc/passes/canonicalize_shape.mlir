// RUN: cgc-opt %s --passes canonicalize,dce --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @reshapes
  // CHECK-NEXT: %[[R:.*]] = cirh.Reshape %x : (tensor<2x6xf32>) -> tensor<3x4xf32>
  // CHECK-NEXT: func.return %[[R]], %x
  func.func @reshapes(%x: tensor<2x6xf32>) -> (tensor<3x4xf32>, tensor<2x6xf32>) {
    %a = cirh.Reshape %x : (tensor<2x6xf32>) -> tensor<12xf32>
    %b = cirh.Reshape %a : (tensor<12xf32>) -> tensor<3x4xf32>
    %c = cirh.Reshape %b : (tensor<3x4xf32>) -> tensor<2x6xf32>
    func.return %b, %c : tensor<3x4xf32>, tensor<2x6xf32>
  }

  // CHECK-LABEL: @transposes
  // CHECK-NEXT: %[[R:.*]] = cirh.Transpose %x {permutation = array<i64: 2, 1, 0>}
  // CHECK-NEXT: func.return %[[R]], %x
  func.func @transposes(%x: tensor<2x3x4xf32>) -> (tensor<4x3x2xf32>, tensor<2x3x4xf32>) {
    %a = cirh.Transpose %x {permutation = array<i64: 1, 2, 0>} : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
    %b = cirh.Transpose %a {permutation = array<i64: 1, 0, 2>} : (tensor<3x4x2xf32>) -> tensor<4x3x2xf32>
    %c = cirh.Transpose %b {permutation = array<i64: 2, 1, 0>} : (tensor<4x3x2xf32>) -> tensor<2x3x4xf32>
    func.return %b, %c : tensor<4x3x2xf32>, tensor<2x3x4xf32>
  }

  // CHECK-LABEL: @broadcasts
  // CHECK-NEXT: %[[A:.*]] = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 2>} : (tensor<3xf32>) -> tensor<4x2x3xf32>
  // CHECK-NEXT: %[[B:.*]] = cirh.Reshape %x : (tensor<3xf32>) -> tensor<1x3xf32>
  // CHECK-NEXT: func.return %[[A]], %[[B]], %x
  func.func @broadcasts(%x: tensor<3xf32>) -> (tensor<4x2x3xf32>, tensor<1x3xf32>, tensor<3xf32>) {
    %a = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3xf32>
    %b = cirh.BroadcastInDim %a {broadcast_dimensions = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<4x2x3xf32>
    %c = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<1x3xf32>
    %d = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0>} : (tensor<3xf32>) -> tensor<3xf32>
    func.return %b, %c, %d : tensor<4x2x3xf32>, tensor<1x3xf32>, tensor<3xf32>
  }

  // CHECK-LABEL: @broadcast_of_reshape
  // CHECK-NEXT: %[[A:.*]] = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 0>} : (tensor<8xf32>) -> tensor<8x10xf32>
  // CHECK-NEXT: %[[B:.*]] = cirh.BroadcastInDim %s {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<8x10xf32>
  // CHECK-NEXT: func.return %[[A]], %[[B]]
  func.func @broadcast_of_reshape(%x: tensor<8xf32>, %s: tensor<f32>) -> (tensor<8x10xf32>, tensor<8x10xf32>) {
    %a = cirh.Reshape %x : (tensor<8xf32>) -> tensor<8x1xf32>
    %b = cirh.BroadcastInDim %a {broadcast_dimensions = array<i64: 0, 1>} : (tensor<8x1xf32>) -> tensor<8x10xf32>
    %c = cirh.Reshape %s : (tensor<f32>) -> tensor<1x1xf32>
    %d = cirh.BroadcastInDim %c {broadcast_dimensions = array<i64: 0, 1>} : (tensor<1x1xf32>) -> tensor<8x10xf32>
    func.return %b, %d : tensor<8x10xf32>, tensor<8x10xf32>
  }

  // CHECK-LABEL: @slices
  // CHECK-NEXT: %[[R:.*]] = cirh.Slice %x {start_indices = array<i64: 5>, limit_indices = array<i64: 12>, strides = array<i64: 6>} : (tensor<20xf32>) -> tensor<2xf32>
  // CHECK-NEXT: func.return %[[R]], %x
  func.func @slices(%x: tensor<20xf32>) -> (tensor<2xf32>, tensor<20xf32>) {
    %a = cirh.Slice %x {start_indices = array<i64: 2>, limit_indices = array<i64: 18>, strides = array<i64: 3>} : (tensor<20xf32>) -> tensor<6xf32>
    %b = cirh.Slice %a {start_indices = array<i64: 1>, limit_indices = array<i64: 5>, strides = array<i64: 2>} : (tensor<6xf32>) -> tensor<2xf32>
    %c = cirh.Slice %x {start_indices = array<i64: 0>, limit_indices = array<i64: 20>, strides = array<i64: 1>} : (tensor<20xf32>) -> tensor<20xf32>
    func.return %b, %c : tensor<2xf32>, tensor<20xf32>
  }

  // CHECK-LABEL: @nothing_to_do
  // CHECK-NEXT: func.return %x, %x, %x
  func.func @nothing_to_do(%x: tensor<4xf32>, %s: tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %a = cirh.pad %x, %s {low = array<i64: 0>, high = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    %b = cirh.Concat %x {axis = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %c = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64>, keep_dims = false} : (tensor<4xf32>) -> tensor<4xf32>
    func.return %a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }

  // CHECK-LABEL: @matmul_of_transpose
  // CHECK-NEXT: %[[A:.*]] = cirh.MatMul %x, %w {transpose_a = false, transpose_b = true} : (tensor<8x4xf32>, tensor<3x4xf32>) -> tensor<8x3xf32>
  // CHECK-NEXT: %[[B:.*]] = cirh.MatMul %x, %w {transpose_a = false, transpose_b = true} : (tensor<8x4xf32>, tensor<3x4xf32>) -> tensor<8x3xf32>
  // CHECK-NEXT: %[[C:.*]] = cirh.MatMul %q, %q {transpose_a = true, transpose_b = false} : (tensor<2x5x6xf32>, tensor<2x5x6xf32>) -> tensor<2x6x6xf32>
  // CHECK-NEXT: func.return %[[A]], %[[B]], %[[C]]
  func.func @matmul_of_transpose(%x: tensor<8x4xf32>, %w: tensor<3x4xf32>, %q: tensor<2x5x6xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>, tensor<2x6x6xf32>) {
    %wt = cirh.Transpose %w {permutation = array<i64: 1, 0>} : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %xt = cirh.Transpose %x {permutation = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %qt = cirh.Transpose %q {permutation = array<i64: 0, 2, 1>} : (tensor<2x5x6xf32>) -> tensor<2x6x5xf32>
    %a = cirh.MatMul %x, %wt {transpose_a = false, transpose_b = false} : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
    %b = cirh.MatMul %xt, %w {transpose_a = true, transpose_b = true} : (tensor<4x8xf32>, tensor<3x4xf32>) -> tensor<8x3xf32>
    %c = cirh.MatMul %qt, %q {transpose_a = false, transpose_b = false} : (tensor<2x6x5xf32>, tensor<2x5x6xf32>) -> tensor<2x6x6xf32>
    func.return %a, %b, %c : tensor<8x3xf32>, tensor<8x3xf32>, tensor<2x6x6xf32>
  }

  // CHECK-LABEL: @casts
  // CHECK-NEXT: %[[R:.*]] = cirh.Cast %h {Truncate = false} : (tensor<4xf16>) -> tensor<4xi32>
  // CHECK-NEXT: func.return %h, %h, %[[R]]
  func.func @casts(%h: tensor<4xf16>) -> (tensor<4xf16>, tensor<4xf16>, tensor<4xi32>) {
    %same = cirh.Cast %h {Truncate = false} : (tensor<4xf16>) -> tensor<4xf16>
    %wide = cirh.Cast %h {Truncate = false} : (tensor<4xf16>) -> tensor<4xf32>
    %back = cirh.Cast %wide {Truncate = false} : (tensor<4xf32>) -> tensor<4xf16>
    %int = cirh.Cast %wide {Truncate = false} : (tensor<4xf32>) -> tensor<4xi32>
    func.return %same, %back, %int : tensor<4xf16>, tensor<4xf16>, tensor<4xi32>
  }
}
