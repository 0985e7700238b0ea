// RUN: not cgc-opt %s | filecheck %s

builtin.module {
  func.func @graph(%x: tensor<8x784xf32>, %w: tensor<10x783xf32>) -> tensor<8x10xf32> {
    // CHECK: cgc-opt: error: {{.*}}invalid_op.mlir:7:22: cirh.MatMul: the contracted dimension of a has size 784, expected 783 as in b
    // CHECK-NEXT: %y = cirh.MatMul %x, %w
    %y = cirh.MatMul %x, %w {transpose_a = false, transpose_b = true} : (tensor<8x784xf32>, tensor<10x783xf32>) -> tensor<8x10xf32>
    func.return %y : tensor<8x10xf32>
  }
}
