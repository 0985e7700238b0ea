// RUN: cgc-opt %s --passes lower-to-lair,lair-cse --verify-each | filecheck %s
// RUN: cgc-opt %s --passes lower-to-lair,lair-fuse,lair-cse --verify-each | filecheck %s --check-prefix FUSED

builtin.module {
  // CHECK-LABEL: func.func @equal_nests
  // CHECK: %[[S:.*]] = linalg.generic
  // CHECK: math.sin
  // CHECK-NOT: math.sin
  // CHECK: func.return %[[S]], %[[S]]
  func.func @equal_nests(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
    %0 = cirh.Sin %x : (tensor<6xf32>) -> tensor<6xf32>
    %1 = cirh.Sin %x : (tensor<6xf32>) -> tensor<6xf32>
    func.return %0, %1 : tensor<6xf32>, tensor<6xf32>
  }

  // After fusion the body has the sine twice.
  // FUSED-LABEL: func.func @equal_ops_of_a_body
  // FUSED: linalg.generic {{.*}} ins(%{{[^,]*}} : tensor<6xf32>)
  // FUSED-NEXT: ^bb0(%[[X:.*]]: f32, {{.*}}: f32):
  // FUSED-NEXT: %[[S:.*]] = math.sin %[[X]] : f32
  // FUSED-NEXT: %[[T:.*]] = math.tanh %[[S]] : f32
  // FUSED-NEXT: %[[E:.*]] = math.exp %[[S]] : f32
  // FUSED-NEXT: arith.addf %[[E]], %[[T]] : f32
  func.func @equal_ops_of_a_body(%x: tensor<6xf32>) -> tensor<6xf32> {
    %0 = cirh.Sin %x : (tensor<6xf32>) -> tensor<6xf32>
    %1 = cirh.Exp %0 : (tensor<6xf32>) -> tensor<6xf32>
    %2 = cirh.Sin %x : (tensor<6xf32>) -> tensor<6xf32>
    %3 = cirh.Tanh %2 : (tensor<6xf32>) -> tensor<6xf32>
    %4 = cirh.Add %1, %3 : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
    func.return %4 : tensor<6xf32>
  }

  // CHECK-LABEL: func.func @read_twice
  // CHECK: linalg.generic {{.*}} ins(%{{[^,]*}} : tensor<6xf32>)
  // CHECK-NEXT: ^bb0(%[[X:.*]]: f32, {{.*}}: f32):
  // CHECK-NEXT: arith.mulf %[[X]], %[[X]] : f32
  func.func @read_twice(%x: tensor<6xf32>) -> tensor<6xf32> {
    %0 = cirh.Mul %x, %x : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
    func.return %0 : tensor<6xf32>
  }
}
