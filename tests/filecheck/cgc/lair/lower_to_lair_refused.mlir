// RUN: not cgc-opt %s --passes lower-to-lair,lower-to-lair | filecheck %s
// CHECK: tensor.empty is not an op of CIRH; only functions of cirh ops become loop nests

builtin.module {
  func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = cirh.Sin %x : (tensor<4xf32>) -> tensor<4xf32>
    func.return %0 : tensor<4xf32>
  }
}
