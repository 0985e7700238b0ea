// What has 16 bits already, integers, and everything that no product surrounds stays as it is.
// RUN: cgc-opt %s --passes precision{mode=mixed_float16} --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @halves
  // CHECK-NEXT: cirh.MatMul %a, %b {{.*}} : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
  // CHECK-NEXT: cirh.MatMul %c, %c {{.*}} : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  // CHECK-NEXT: func.return
  func.func @halves(%a: tensor<4x4xf16>, %b: tensor<4x4xf16>, %c: tensor<4x4xbf16>) -> (tensor<4x4xf16>, tensor<4x4xbf16>) {
    %x = cirh.MatMul %a, %b {transpose_a = false, transpose_b = false} : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
    %y = cirh.MatMul %c, %c {transpose_a = false, transpose_b = false} : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    func.return %x, %y : tensor<4x4xf16>, tensor<4x4xbf16>
  }

  // CHECK-LABEL: @integers
  // CHECK-NEXT: cirh.MatMul %a, %a {{.*}} -> tensor<4x4xi32>
  // CHECK-NEXT: func.return
  func.func @integers(%a: tensor<4x4xi32>) -> tensor<4x4xi32> {
    %x = cirh.MatMul %a, %a {transpose_a = false, transpose_b = false} : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi32>
    func.return %x : tensor<4x4xi32>
  }

  // No product: nothing to compute in 16 bits.
  // CHECK-LABEL: @elementwise
  // CHECK-NEXT: cirh.Relu %a : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: cirh.Tanh
  // CHECK-NEXT: func.return
  func.func @elementwise(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %x = cirh.Relu %a : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %y = cirh.Tanh %x : (tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %y : tensor<4x4xf32>
  }

  // Between two products, but a sum, a logarithm and the moments of a norm: float32.
  // CHECK-LABEL: @wide_between_products
  // CHECK: %[[WIDE:.*]] = cirh.Cast {{.*}} -> tensor<4x4xf32>
  // CHECK-NEXT: cirh.Log %[[WIDE]] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: %[[SUM:.*]] = cirh.Reduce {{.*}} : (tensor<4x4xf32>) -> tensor<4x1xf32>
  // CHECK-NEXT: %[[MOVED:.*]] = cirh.Cast %[[SUM]] {{.*}} -> tensor<4x1xf16>
  // CHECK-NEXT: cirh.BroadcastInDim %[[MOVED]] {{.*}} -> tensor<4x4xf16>
  func.func @wide_between_products(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %x = cirh.MatMul %a, %a {transpose_a = false, transpose_b = false} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %l = cirh.Log %x : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = cirh.Reduce %l {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true} : (tensor<4x4xf32>) -> tensor<4x1xf32>
    %m = cirh.BroadcastInDim %s {broadcast_dimensions = array<i64: 0, 1>} : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %y = cirh.MatMul %m, %a {transpose_a = false, transpose_b = false} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %y : tensor<4x4xf32>
  }

  // The update of a parameter stays float32, even with a product behind it (an orthogonalizing optimizer).
  // CHECK-LABEL: @update
  // CHECK: %[[G:.*]] = cirh.MatMul %{{.*}}, %{{.*}} -> tensor<4x4xf16>
  // CHECK-NEXT: %[[GW:.*]] = cirh.Cast %[[G]] {{.*}} -> tensor<4x4xf32>
  // CHECK-NEXT: %[[NEW:.*]] = cirh.Add %m, %[[GW]] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: %[[NEWH:.*]] = cirh.Cast %[[NEW]]
  // CHECK-NEXT: %[[O:.*]] = cirh.MatMul %[[NEWH]], %[[NEWH]]
  // CHECK-NEXT: %[[OW:.*]] = cirh.Cast %[[O]]
  // CHECK-NEXT: cirh.Sub %w, %[[OW]] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.func @update(
    %w: tensor<4x4xf32> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64},
    %m: tensor<4x4xf32> {tf.resource_name = "state.optimizer.m", tf.aliasing_output = 1 : i64},
    %x: tensor<4x4xf32> {cs.input_name = "input_0"}
  ) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {cs.mode = "train"} {
    %g = cirh.MatMul %x, %x {transpose_a = true, transpose_b = false} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %new_m = cirh.Add %m, %g : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %o = cirh.MatMul %new_m, %new_m {transpose_a = false, transpose_b = true} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %new_w = cirh.Sub %w, %o : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %new_w, %new_m : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
