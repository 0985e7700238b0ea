// RUN: cgc-opt %s --passes lower-to-lair --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: func.func @broadcast
  // CHECK-SAME: (%[[X:.*]]: tensor<4x6xf32>, %[[B:.*]]: tensor<6xf32>)
  // CHECK: %[[WIDE:.*]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[B]] : tensor<6xf32>)
  // CHECK: linalg.generic {{.*}} ins(%[[X]], %[[WIDE]] : tensor<4x6xf32>, tensor<4x6xf32>)
  // CHECK-NEXT: ^bb0(%[[L:.*]]: f32, %[[R:.*]]: f32, {{.*}}: f32):
  // CHECK-NEXT: arith.mulf %[[L]], %[[R]] : f32
  func.func @broadcast(%x: tensor<4x6xf32>, %b: tensor<6xf32>) -> tensor<4x6xf32> {
    %0 = cirh.BroadcastInDim %b {broadcast_dimensions = array<i64: 1>} : (tensor<6xf32>) -> tensor<4x6xf32>
    %1 = cirh.Mul %x, %0 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %1 : tensor<4x6xf32>
  }

  // The running value is a second result, without the scanned loop.
  // CHECK-LABEL: func.func @scan
  // CHECK: linalg.fill
  // CHECK: linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
  // CHECK-NEXT: ^bb0(%[[E:.*]]: f32, {{.*}}: f32, %[[SUM:.*]]: f32):
  // CHECK-NEXT: %[[NEW:.*]] = arith.addf %[[SUM]], %[[E]] : f32
  // CHECK-NEXT: linalg.yield %[[NEW]], %[[NEW]] : f32, f32
  // CHECK-NEXT: } -> (tensor<4x6xf32>, tensor<4xf32>)
  func.func @scan(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = cirh.CumSum %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %0 : tensor<4x6xf32>
  }

  // The border is filled; the inside is written to its place.
  // CHECK-LABEL: func.func @pad
  // CHECK: %[[BORDER:.*]] = linalg.generic {indexing_maps = [affine_map<(d0) -> ()>, affine_map<(d0) -> (d0)>]
  // CHECK: linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ((d0 + 2))>]{{.*}} outs(%[[BORDER]] : tensor<9xf32>)
  func.func @pad(%x: tensor<6xf32>, %v: tensor<f32>) -> tensor<9xf32> {
    %0 = cirh.pad %x, %v {low = array<i64: 2>, high = array<i64: 1>} : (tensor<6xf32>, tensor<f32>) -> tensor<9xf32>
    func.return %0 : tensor<9xf32>
  }

  // A piece at the front reaches a part of the dimension: `mod` says that the loop does not tell its size.
  // CHECK-LABEL: func.func @concat
  // CHECK: affine_map<(d0) -> ((d0 mod 6))>
  // CHECK: affine_map<(d0) -> ((d0 + 4))>
  func.func @concat(%x: tensor<4xf32>, %y: tensor<2xf32>) -> tensor<6xf32> {
    %0 = cirh.Concat %x, %y {axis = 0 : i64} : (tensor<4xf32>, tensor<2xf32>) -> tensor<6xf32>
    func.return %0 : tensor<6xf32>
  }

  // CHECK-LABEL: func.func @reshape
  // CHECK: affine_map<(d0, d1, d2) -> (d0, ((d1 * 3) + d2))>
  func.func @reshape(%x: tensor<4x6xf32>) -> tensor<4x2x3xf32> {
    %0 = cirh.Reshape %x : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
    func.return %0 : tensor<4x2x3xf32>
  }

  // CHECK-LABEL: func.func @gather
  // CHECK: %[[J:.*]] = linalg.index 1 : index
  // CHECK: %[[I:.*]] = arith.index_cast {{.*}} : i32 to index
  // CHECK: tensor.extract %{{.*}}[%[[I]], %[[J]]] : tensor<9x6xf32>
  func.func @gather(%x: tensor<9x6xf32>, %i: tensor<4xi32>) -> tensor<4x6xf32> {
    %0 = cirh.Gather %x, %i {axis = 0 : i64} : (tensor<9x6xf32>, tensor<4xi32>) -> tensor<4x6xf32>
    func.return %0 : tensor<4x6xf32>
  }

  // Unsigned integers have no type of their own; 64-bit integers are 32-bit ones.
  // CHECK-LABEL: func.func @integers
  // CHECK-SAME: (%{{.*}}: tensor<4xi32>, %{{.*}}: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi1>)
  // CHECK: arith.maxui
  // CHECK: arith.cmpi slt
  func.func @integers(%u: tensor<4xui32>, %l: tensor<4xi64>) -> (tensor<4xui32>, tensor<4xi1>) {
    %0 = cirh.Max %u, %u : (tensor<4xui32>, tensor<4xui32>) -> tensor<4xui32>
    %1 = cirh.Compare %l, %l {comparison_direction = "LT"} : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi1>
    func.return %0, %1 : tensor<4xui32>, tensor<4xi1>
  }

  // Sums of 16-bit floats run in 32 bits.
  // CHECK-LABEL: func.func @half_sum
  // CHECK: arith.extf {{.*}} : f16 to f32
  // CHECK: arith.addf {{.*}} : f32
  // CHECK: arith.truncf {{.*}} : f32 to f16
  func.func @half_sum(%x: tensor<4x6xf16>) -> tensor<4xf16> {
    %0 = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<4x6xf16>) -> tensor<4xf16>
    func.return %0 : tensor<4xf16>
  }

  // What linalg cannot express is a call that says what it is and which loops it runs.
  // CHECK-LABEL: func.func @top_k
  // CHECK: func.call @TopK_0
  // CHECK: func.func private @TopK_0(tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>) attributes {lair.op = "cirh.TopK", lair.attributes = {k = 2 : i64}, {{.*}}, lair.domain = array<i64: 4, 6, 3>, lair.work = "sort"}
  func.func @top_k(%x: tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>) {
    %0, %1 = cirh.TopK %x {k = 2 : i64} : (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    func.return %0, %1 : tensor<4x2xf32>, tensor<4x2xi32>
  }
}
