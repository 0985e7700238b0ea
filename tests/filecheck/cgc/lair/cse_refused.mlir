// RUN: cgc-opt %s --passes lair-cse --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: func.func @maps_matter
  // CHECK-COUNT-2: linalg.generic
  func.func @maps_matter(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %e = tensor.empty() : tensor<4x4xf32>
    %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    } -> tensor<4x4xf32>
    %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
    ^bb0(%c: f32, %d: f32):
      linalg.yield %c : f32
    } -> tensor<4x4xf32>
    func.return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
  }

  // CHECK-LABEL: func.func @bodies_matter
  // CHECK: arith.subf %[[A:.*]], %[[B:.*]] : f32
  // CHECK: arith.subf %[[B2:.*]], %[[A2:.*]] : f32
  func.func @bodies_matter(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %e = tensor.empty() : tensor<4xf32>
    %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x, %y : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %r = arith.subf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x, %y : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%d: f32, %f: f32, %g: f32):
      %s = arith.subf %f, %d : f32
      linalg.yield %s : f32
    } -> tensor<4xf32>
    func.return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }

  // Sums with other initial values.
  // CHECK-LABEL: func.func @initial_values_matter
  // CHECK-COUNT-2: linalg.fill
  func.func @initial_values_matter() -> (tensor<4xf32>, tensor<4xf32>) {
    %e = tensor.empty() : tensor<4xf32>
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %0 = linalg.fill ins(%zero : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
    %1 = linalg.fill ins(%one : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
    func.return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}
