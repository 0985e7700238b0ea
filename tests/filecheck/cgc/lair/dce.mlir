// RUN: cgc-opt %s --passes lower-to-lair,lair-dce --verify-each | filecheck %s
// RUN: cgc-opt %s --passes lower-to-lair,lair-fuse,lair-dce --verify-each | filecheck %s --check-prefix FUSED

builtin.module {
  // CHECK-LABEL: func.func @unused
  // CHECK-NEXT: tensor.empty
  // CHECK-NEXT: linalg.generic
  // CHECK: math.exp
  // CHECK-NOT: func.call
  // CHECK: func.return
  func.func @unused(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = cirh.Sin %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %1 = cirh.Tanh %0 : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2, %3 = cirh.TopK %x {k = 2 : i64} : (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    %4 = cirh.Exp %x : (tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %4 : tensor<4x6xf32>
  }

  // An unused result of several goes with what it alone needs; arguments stay.
  // CHECK-LABEL: func.func @unused_result
  // CHECK-SAME: %{{.*}}: tensor<6xf32>, %{{.*}}: tensor<6xf32>, %{{.*}}: tensor<f32>, %{{.*}}: tensor<6xf32>)
  // CHECK: linalg.generic {{.*}} ins(%{{[^,]*}}, %{{[^,]*}} : tensor<6xf32>, tensor<6xf32>)
  // CHECK-NOT: arith.subf
  // CHECK: func.return
  func.func @unused_result(%p: tensor<6xf32>, %a: tensor<6xf32>, %lr: tensor<f32>, %g: tensor<6xf32>) -> tensor<6xf32> {
    %0, %1 = cirh.Adagrad %p, %a, %lr, %g : (tensor<6xf32>, tensor<6xf32>, tensor<f32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
    func.return %1 : tensor<6xf32>
  }

  // The broadcast is dead once its readers read what it repeats.
  // FUSED-LABEL: func.func @folded
  // FUSED: linalg.generic {{.*}} ins(%{{[^,]*}}, %{{[^,]*}} : tensor<4x6xf32>, tensor<6xf32>)
  // FUSED: linalg.generic {{.*}} ins(%{{[^,]*}}, %{{[^,]*}} : tensor<4x6xf32>, tensor<6xf32>)
  // FUSED-NOT: linalg.generic
  // FUSED: func.return
  func.func @folded(%x: tensor<4x6xf32>, %b: tensor<6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
    %0 = cirh.BroadcastInDim %b {broadcast_dimensions = array<i64: 1>} : (tensor<6xf32>) -> tensor<4x6xf32>
    %1 = cirh.Mul %x, %0 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = cirh.Add %x, %0 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    func.return %1, %2 : tensor<4x6xf32>, tensor<4x6xf32>
  }

  // A private function that nobody calls is a declaration without use.
  // CHECK-NOT: func.func private
}
