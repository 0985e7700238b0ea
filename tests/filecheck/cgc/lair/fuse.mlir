// RUN: cgc-opt %s --passes lower-to-lair,lair-fuse --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: func.func @chain
  // CHECK-COUNT-1: linalg.generic
  // CHECK-NEXT: ^bb0(%[[X:.*]]: f32, {{.*}}: f32):
  // CHECK-NEXT: %[[S:.*]] = math.sin %[[X]] : f32
  // CHECK-NEXT: %[[E:.*]] = math.exp %[[S]] : f32
  // CHECK-NEXT: %[[T:.*]] = math.tanh %[[E]] : f32
  // CHECK-NEXT: linalg.yield %[[T]] : f32
  // CHECK-NOT: linalg.generic
  // CHECK: func.return
  func.func @chain(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = cirh.Sin %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %1 = cirh.Exp %0 : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = cirh.Tanh %1 : (tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %2 : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func @into_reduction
  // CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
  // CHECK-NEXT: ^bb0(%[[X:.*]]: f32, %[[SUM:.*]]: f32):
  // CHECK-NEXT: %[[E:.*]] = math.exp %[[X]] : f32
  // CHECK-NEXT: arith.addf %[[SUM]], %[[E]] : f32
  // CHECK-NOT: linalg.generic
  // CHECK: func.return
  func.func @into_reduction(%x: tensor<4x6xf32>) -> tensor<4xf32> {
    %0 = cirh.Exp %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %1 = cirh.Reduce %0 {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<4x6xf32>) -> tensor<4xf32>
    func.return %1 : tensor<4xf32>
  }

  // A broadcast, a transpose and a slice become indexing maps of every reader.
  // CHECK-LABEL: func.func @moves
  // CHECK-SAME: (%[[X:.*]]: tensor<6x4xf32>, %[[B:.*]]: tensor<8xf32>)
  // CHECK: linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> ((d1 + 2))>, affine_map<(d0, d1) -> (d0, d1)>], {{.*}} ins(%[[X]], %[[B]] : tensor<6x4xf32>, tensor<8xf32>)
  // CHECK-NOT: linalg.generic
  // CHECK: func.return
  func.func @moves(%x: tensor<6x4xf32>, %b: tensor<8xf32>) -> tensor<4x6xf32> {
    %0 = cirh.Transpose %x {permutation = array<i64: 1, 0>} : (tensor<6x4xf32>) -> tensor<4x6xf32>
    %1 = cirh.Slice %b {start_indices = array<i64: 2>, limit_indices = array<i64: 8>, strides = array<i64: 1>} : (tensor<8xf32>) -> tensor<6xf32>
    %2 = cirh.BroadcastInDim %1 {broadcast_dimensions = array<i64: 1>} : (tensor<6xf32>) -> tensor<4x6xf32>
    %3 = cirh.Mul %0, %2 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %3 : tensor<4x6xf32>
  }

  // A constant of one value is a number in the body.
  // CHECK-LABEL: func.func @constant
  // CHECK: linalg.generic {{.*}} ins(%{{[^,]*}} : tensor<6xf32>)
  // CHECK: %[[C:.*]] = arith.constant 2.000000e+00 : f32
  // CHECK: arith.mulf %{{.*}}, %[[C]] : f32
  func.func @constant(%x: tensor<6xf32>) -> tensor<6xf32> {
    %0 = cirh.Const dense<2.0> : tensor<6xf32>
    %1 = cirh.Mul %x, %0 : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
    func.return %1 : tensor<6xf32>
  }

  // Positions are counted in the loops of the reader.
  // CHECK-LABEL: func.func @index
  // CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: %[[I:.*]] = linalg.index 1 : index
  // CHECK-NEXT: arith.index_cast %[[I]] : index to i32
  // CHECK-NOT: linalg.index
  // CHECK: func.return
  func.func @index(%x: tensor<6x1xi32>) -> tensor<1x6xi32> {
    %0 = cirh.Arange {start = 1 : i64, step = 2 : i64} : () -> tensor<6xi32>
    %1 = cirh.Reshape %0 : (tensor<6xi32>) -> tensor<1x6xi32>
    %2 = cirh.Reshape %x : (tensor<6x1xi32>) -> tensor<1x6xi32>
    %3 = cirh.Add %1, %2 : (tensor<1x6xi32>, tensor<1x6xi32>) -> tensor<1x6xi32>
    func.return %3 : tensor<1x6xi32>
  }
}
