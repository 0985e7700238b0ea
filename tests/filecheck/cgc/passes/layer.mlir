// The layer of an op: what is rewritten, fused, folded or cast belongs to the layer of what was there.
// RUN: cgc-opt %s --verify-each --passes default | filecheck %s
// RUN: cgc-opt %s --verify-each --passes default,precision{mode=cbfloat16} | filecheck %s --check-prefix HALF

builtin.module {
  // Bias and Relu become one op, of the layer of the Relu, which is the root of the pattern.
  // CHECK: @graph
  // CHECK-NEXT: %[[Y:.*]] = cirh.MatMul %x, %w {{.*}}, cs.layer = ["enc", "0", "linear"]}
  // CHECK-NEXT: %[[A:.*]] = cirh.Composite %[[Y]], %b {function = "BiasRelu", cs.layer = ["enc", "0", "act"]}
  // CHECK-NEXT: %[[SIX:.*]] = cirh.Const {cs.layer = ["enc", "0"]} dense<6.000000e+00> : tensor<8x4xf32>
  // CHECK-NEXT: %[[S:.*]] = cirh.Mul %[[A]], %[[SIX]] {cs.layer = ["enc", "0"]}
  // CHECK-NEXT: %[[Z:.*]] = cirh.MatMul %[[S]], %v {{.*}}, cs.layer = ["enc", "1"]}
  // CHECK-NEXT: %[[T:.*]] = cirh.Tanh %[[Z]] {cs.layer = []}
  // CHECK-NEXT: func.return %[[T]]

  // A cast is of the layer that it casts for.
  // HALF: @graph
  // HALF-NEXT: cirh.Cast %x {Truncate = false, cs.layer = ["enc", "0", "linear"]}
  // HALF-NEXT: cirh.Cast %w {Truncate = false, cs.layer = ["enc", "0", "linear"]}
  // HALF-NEXT: cirh.Cast %b {Truncate = false, cs.layer = ["enc", "0", "act"]}
  // HALF-NEXT: cirh.Cast %v {Truncate = false, cs.layer = ["enc", "1"]}
  // HALF: cirh.Cast %z {Truncate = false, cs.layer = ["enc", "1"]}
  func.func @graph(
    %x: tensor<8x6xf32> {cs.input_name = "input_0"},
    %w: tensor<6x4xf32> {tf.resource_name = "state.model.w"},
    %b: tensor<4xf32> {tf.resource_name = "state.model.b"},
    %v: tensor<4x2xf32> {tf.resource_name = "state.model.v"}
  ) -> (tensor<8x2xf32> {cs.output_name = "output_y"}) attributes {cs.mode = "infer"} {
    %y = cirh.MatMul %x, %w {transpose_a = false, transpose_b = false, cs.layer = ["enc", "0", "linear"]} : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
    %bs = cirh.BroadcastInDim %b {broadcast_dimensions = array<i64: 1>, cs.layer = ["enc", "0", "linear"]} : (tensor<4xf32>) -> tensor<8x4xf32>
    %biased = cirh.Add %y, %bs {cs.layer = ["enc", "0", "linear"]} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %act = cirh.Relu %biased {cs.layer = ["enc", "0", "act"]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %two = cirh.Const {cs.layer = ["enc", "0", "act"]} dense<2.0> : tensor<8x4xf32>
    %three = cirh.Const {cs.layer = ["enc", "1"]} dense<3.0> : tensor<8x4xf32>
    %six = cirh.Mul %two, %three {cs.layer = ["enc", "0"]} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %s = cirh.Mul %act, %six {cs.layer = ["enc", "0"]} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %z = cirh.MatMul %s, %v {transpose_a = false, transpose_b = false, cs.layer = ["enc", "1"]} : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
    %t = cirh.Tanh %z {cs.layer = []} : (tensor<8x2xf32>) -> tensor<8x2xf32>
    func.return %t : tensor<8x2xf32>
  }
}
