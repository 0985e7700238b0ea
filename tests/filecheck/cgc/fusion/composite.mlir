// A bias and an activation under one name, GELU on demand; not where the sum is read elsewhere.
// RUN: cgc-opt %s --verify-each --passes fuse{only=composite,composite_gelu},dce | filecheck %s
// RUN: cgc-opt %s --verify-each --passes fuse,dce | filecheck %s --check-prefix=ALWAYS

builtin.module {
  // CHECK: @composite
  // CHECK-NEXT: %{{.*}} = cirh.Composite %x, %b {function = "BiasRelu"} : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // CHECK-NEXT: %{{.*}} = cirh.Composite %x, %c {function = "BiasGeluTanh"} : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // ALWAYS: @composite
  // ALWAYS-NEXT: %{{.*}} = cirh.Composite %x, %b {function = "BiasRelu"}
  // ALWAYS-NEXT: cirh.BiasAdd %x, %c
  // ALWAYS-NEXT: cirh.Gelu
  // ALWAYS-NEXT: func.return
  // CHECK-NEXT: func.return
  func.func @composite(%x: tensor<2x3xf32>, %b: tensor<3xf32>, %c: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
    %s = cirh.BiasAdd %x, %b : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    %r = cirh.Relu %s : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %t = cirh.BiasAdd %x, %c : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    %g = cirh.Gelu %t {approximation = "TANH"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    func.return %r, %g : tensor<2x3xf32>, tensor<2x3xf32>
  }
  // CHECK: @read_elsewhere
  // CHECK-NOT: cirh.Composite
  // CHECK: func.return
  func.func @read_elsewhere(%x: tensor<2x3xf32>, %b: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
    %s = cirh.BiasAdd %x, %b : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    %r = cirh.Relu %s : (tensor<2x3xf32>) -> tensor<2x3xf32>
    func.return %r, %s : tensor<2x3xf32>, tensor<2x3xf32>
  }
}
