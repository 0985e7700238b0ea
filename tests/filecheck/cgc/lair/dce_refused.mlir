// RUN: cgc-opt %s --passes lair-dce --verify-each | filecheck %s

builtin.module {
  // The loop over d1 has its extent from an input that the body does not read.
  // CHECK-LABEL: func.func @extent
  // CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<4x6xf32>)
  func.func @extent(%x: tensor<4x6xf32>) -> tensor<4xi32> {
    %e = tensor.empty() : tensor<4xi32>
    %z = arith.constant 0 : i32
    %0 = linalg.fill ins(%z : i32) outs(%e : tensor<4xi32>) -> tensor<4xi32>
    %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x6xf32>) outs(%0 : tensor<4xi32>) {
    ^bb0(%a: f32, %n: i32):
      %one = arith.constant 1 : i32
      %m = arith.addi %n, %one : i32
      linalg.yield %m : i32
    } -> tensor<4xi32>
    func.return %1 : tensor<4xi32>
  }

  // The running value of a scan is no dead result.
  // CHECK-LABEL: func.func @scan
  // CHECK: } -> (tensor<4xf32>, tensor<f32>)
  func.func @scan(%x: tensor<4xf32>) -> tensor<4xf32> {
    %e = tensor.empty() : tensor<4xf32>
    %s = tensor.empty() : tensor<f32>
    %z = arith.constant 0.0 : f32
    %0 = linalg.fill ins(%z : f32) outs(%s : tensor<f32>) -> tensor<f32>
    %1, %2 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]} ins(%x : tensor<4xf32>) outs(%e, %0 : tensor<4xf32>, tensor<f32>) {
    ^bb0(%a: f32, %old: f32, %sum: f32):
      %new = arith.addf %sum, %a : f32
      linalg.yield %new, %new : f32, f32
    } -> (tensor<4xf32>, tensor<f32>)
    func.return %1 : tensor<4xf32>
  }

  // A function that is called stays declared.
  // CHECK: func.func private @TopK_0
  func.func @called(%x: tensor<4x6xf32>) -> tensor<4x2xf32> {
    %0, %1 = func.call @TopK_0(%x) : (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    func.return %0 : tensor<4x2xf32>
  }
  func.func private @TopK_0(tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>) attributes {lair.op = "cirh.TopK", lair.attributes = {k = 2 : i64}, lair.types = (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>), lair.domain = array<i64: 4, 6, 3>, lair.work = "sort"}
}
