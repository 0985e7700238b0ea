// The passes together: a folded scale of one disappears, the transpose goes into the product, doubles are merged.
// RUN: cgc-opt %s --passes default --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @graph
  // CHECK-NEXT: %[[L:.*]] = cirh.MatMul %x, %w {transpose_a = false, transpose_b = true, cs.layer = ["dense"], cs.name = "dense/MatMul"}
  // CHECK-NEXT: %[[R:.*]] = cirh.Relu %[[L]]
  // CHECK-NEXT: %[[S:.*]] = cirh.Add %[[R]], %[[R]]
  // CHECK-NEXT: func.return %[[S]]
  func.func @graph(%x: tensor<8x784xf32> {cs.input_name = "input_0"}, %w: tensor<10x784xf32> {tf.resource_name = "state.model.w"}) -> (tensor<8x10xf32> {cs.output_name = "output_y"}) {
    %half = cirh.Const dense<0.5> : tensor<f32>
    %two = cirh.Const dense<2.0> : tensor<f32>
    %one = cirh.Mul %half, %two : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %ones = cirh.BroadcastInDim %one {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<8x10xf32>
    %t = cirh.Transpose %w {permutation = array<i64: 1, 0>} : (tensor<10x784xf32>) -> tensor<784x10xf32>
    %l = cirh.MatMul %x, %t {transpose_a = false, transpose_b = false, cs.layer = ["dense"], cs.name = "dense/MatMul"} : (tensor<8x784xf32>, tensor<784x10xf32>) -> tensor<8x10xf32>
    %m = cirh.Mul %l, %ones : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<8x10xf32>
    %a = cirh.Relu %m : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %b = cirh.Relu %l : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %s = cirh.Add %a, %b : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<8x10xf32>
    func.return %s : tensor<8x10xf32>
  }
}
