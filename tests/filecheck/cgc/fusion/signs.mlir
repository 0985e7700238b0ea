// Negations go behind reshapes of vectors, and canonicalization, which moves other ops before them, does not
// take them back: the two would go on forever.
// RUN: cgc-opt %s --passes fuse,canonicalize,dce --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @negated_vector
  // CHECK: cirh.Reshape
  // CHECK: cirh.Neg
  // CHECK: func.return
  func.func @negated_vector(%x: tensor<4xf32>) -> tensor<1x1x4xf32> {
    %negative = cirh.Neg %x : (tensor<4xf32>) -> tensor<4xf32>
    %y = cirh.Reshape %negative : (tensor<4xf32>) -> tensor<1x1x4xf32>
    func.return %y : tensor<1x1x4xf32>
  }
}
