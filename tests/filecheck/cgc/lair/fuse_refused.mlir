// RUN: cgc-opt %s --passes lower-to-lair,lair-fuse --verify-each | filecheck %s

builtin.module {
  // A value that is returned as well is computed once.
  // CHECK-LABEL: func.func @used_outside
  // CHECK: %[[S:.*]] = linalg.generic
  // CHECK: math.sin
  // CHECK: linalg.generic {{.*}} ins(%[[S]] :
  // CHECK: math.exp
  func.func @used_outside(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
    %0 = cirh.Sin %x : (tensor<6xf32>) -> tensor<6xf32>
    %1 = cirh.Exp %0 : (tensor<6xf32>) -> tensor<6xf32>
    func.return %0, %1 : tensor<6xf32>, tensor<6xf32>
  }

  // CHECK-LABEL: func.func @two_readers
  // CHECK-COUNT-3: linalg.generic
  func.func @two_readers(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
    %0 = cirh.Sin %x : (tensor<6xf32>) -> tensor<6xf32>
    %1 = cirh.Exp %0 : (tensor<6xf32>) -> tensor<6xf32>
    %2 = cirh.Tanh %0 : (tensor<6xf32>) -> tensor<6xf32>
    func.return %1, %2 : tensor<6xf32>, tensor<6xf32>
  }

  // A sum would run again for every element that needs it.
  // CHECK-LABEL: func.func @reduction
  // CHECK: %[[SUM:.*]] = linalg.generic {{.*}}"reduction"
  // CHECK: linalg.generic {{.*}} ins(%{{.*}}, %[[SUM]] :
  // CHECK: arith.divf
  func.func @reduction(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<4x6xf32>) -> tensor<4xf32>
    %1 = cirh.BroadcastInDim %0 {broadcast_dimensions = array<i64: 0>} : (tensor<4xf32>) -> tensor<4x6xf32>
    %2 = cirh.Div %x, %1 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %2 : tensor<4x6xf32>
  }

  // Six roots are enough, the reader has 24 iterations; the broadcast between them goes into its maps.
  // CHECK-LABEL: func.func @fewer_points
  // CHECK: %[[R:.*]] = linalg.generic
  // CHECK: math.rsqrt
  // CHECK: linalg.generic {indexing_maps = [{{.*}}, affine_map<(d0, d1) -> (d1)>, {{.*}} ins(%{{.*}}, %[[R]] : tensor<4x6xf32>, tensor<6xf32>)
  // CHECK: arith.mulf
  // CHECK-NOT: linalg.generic
  // CHECK: func.return
  func.func @fewer_points(%x: tensor<4x6xf32>, %v: tensor<6xf32>) -> tensor<4x6xf32> {
    %0 = cirh.Rsqrt %v : (tensor<6xf32>) -> tensor<6xf32>
    %1 = cirh.BroadcastInDim %0 {broadcast_dimensions = array<i64: 1>} : (tensor<6xf32>) -> tensor<4x6xf32>
    %2 = cirh.Mul %x, %1 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %2 : tensor<4x6xf32>
  }

  // Two elements of one value: the sine would be taken twice.
  // CHECK-LABEL: func.func @read_in_two_ways
  // CHECK: math.sin
  // CHECK: linalg.generic
  // CHECK-NOT: math.sin
  // CHECK: func.return
  func.func @read_in_two_ways(%x: tensor<6x6xf32>) -> tensor<6x6xf32> {
    %0 = cirh.Sin %x : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %1 = cirh.Transpose %0 {permutation = array<i64: 1, 0>} : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %2 = cirh.Add %0, %1 : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>
    func.return %2 : tensor<6x6xf32>
  }

  // A loop that no operand shows by itself has no extent: the sum needs the reshaped tensor.
  // CHECK-LABEL: func.func @loop_without_extent
  // CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]
  // CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
  func.func @loop_without_extent(%x: tensor<24xf32>) -> tensor<4xf32> {
    %0 = cirh.Reshape %x : (tensor<24xf32>) -> tensor<4x6xf32>
    %1 = cirh.Reduce %0 {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<4x6xf32>) -> tensor<4xf32>
    func.return %1 : tensor<4xf32>
  }

  // A padded tensor is written by two nests.
  // CHECK-LABEL: func.func @partly_written
  // CHECK-COUNT-2: linalg.generic
  // CHECK: linalg.generic
  // CHECK: math.exp
  func.func @partly_written(%x: tensor<6xf32>, %v: tensor<f32>) -> tensor<9xf32> {
    %0 = cirh.pad %x, %v {low = array<i64: 2>, high = array<i64: 1>} : (tensor<6xf32>, tensor<f32>) -> tensor<9xf32>
    %1 = cirh.Exp %0 : (tensor<9xf32>) -> tensor<9xf32>
    func.return %1 : tensor<9xf32>
  }
}
