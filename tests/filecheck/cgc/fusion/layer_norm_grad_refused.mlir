// What is no gradient of layer normalization: a term read elsewhere, a term that is not in the sum, a wrong constant, a wrong size.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @read_elsewhere
  // CHECK-NOT: cirh.LayerNormGrad
  // CHECK: func.return
  func.func @read_elsewhere(%grad: tensor<2x3x4xf32>, %residual: tensor<2x3x4xf32>, %x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>) {
    %y, %mean, %rstd = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x1xf32>, tensor<2x3x1xf32>)
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %direct = cirh.Mul %grad, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gx = cirh.Mul %grad, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gm = cirh.Mul %grad, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gc = cirh.Sub %gx, %gm : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %parts = cirh.Mul %gc, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %root_grad = cirh.Reduce %parts {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %half = cirh.Const dense<-5.000000e-01> : tensor<2x3x1xf32>
    %halved = cirh.Mul %root_grad, %half : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %square = cirh.Mul %rstd, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %cube = cirh.Mul %square, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %variance_grad = cirh.Mul %halved, %cube : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %spread = cirh.BroadcastInDim %variance_grad {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %size = cirh.Const dense<4.000000e+00> : tensor<2x3x4xf32>
    %two = cirh.Const dense<2.000000e+00> : tensor<2x3x4xf32>
    %divided = cirh.Div %spread, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %doubled = cirh.Mul %divided, %two : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %by_variance = cirh.Mul %doubled, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %total = cirh.Reduce %direct {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %totals = cirh.BroadcastInDim %total {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centering = cirh.Div %totals, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_parts = cirh.Mul %rstds, %gc : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_grad = cirh.Reduce %scale_parts {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %offset_grad = cirh.Reduce %grad {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %s1 = cirh.Add %residual, %direct : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s2 = cirh.Add %s1, %by_variance : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s3 = cirh.Sub %s2, %centering : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %s3, %scale_grad, %offset_grad, %by_variance : tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>
  }
  // CHECK: @mean_read_elsewhere
  // CHECK-NOT: cirh.LayerNormGrad
  // CHECK: func.return
  func.func @mean_read_elsewhere(%grad: tensor<2x3x4xf32>, %residual: tensor<2x3x4xf32>, %x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x1xf32>) {
    %y, %mean, %rstd = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x1xf32>, tensor<2x3x1xf32>)
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %direct = cirh.Mul %grad, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gx = cirh.Mul %grad, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gm = cirh.Mul %grad, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gc = cirh.Sub %gx, %gm : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %parts = cirh.Mul %gc, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %root_grad = cirh.Reduce %parts {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %half = cirh.Const dense<-5.000000e-01> : tensor<2x3x1xf32>
    %halved = cirh.Mul %root_grad, %half : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %square = cirh.Mul %rstd, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %cube = cirh.Mul %square, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %variance_grad = cirh.Mul %halved, %cube : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %spread = cirh.BroadcastInDim %variance_grad {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %size = cirh.Const dense<4.000000e+00> : tensor<2x3x4xf32>
    %two = cirh.Const dense<2.000000e+00> : tensor<2x3x4xf32>
    %divided = cirh.Div %spread, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %doubled = cirh.Mul %divided, %two : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %by_variance = cirh.Mul %doubled, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %total = cirh.Reduce %direct {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %totals = cirh.BroadcastInDim %total {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centering = cirh.Div %totals, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_parts = cirh.Mul %rstds, %gc : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_grad = cirh.Reduce %scale_parts {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %offset_grad = cirh.Reduce %grad {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %s1 = cirh.Add %residual, %direct : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s2 = cirh.Add %s1, %by_variance : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s3 = cirh.Sub %s2, %centering : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %s3, %scale_grad, %offset_grad, %total : tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x1xf32>
  }
  // CHECK: @other_sum
  // CHECK-NOT: cirh.LayerNormGrad
  // CHECK: func.return
  func.func @other_sum(%grad: tensor<2x3x4xf32>, %residual: tensor<2x3x4xf32>, %x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>) {
    %y, %mean, %rstd = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x1xf32>, tensor<2x3x1xf32>)
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %direct = cirh.Mul %grad, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gx = cirh.Mul %grad, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gm = cirh.Mul %grad, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gc = cirh.Sub %gx, %gm : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %parts = cirh.Mul %gc, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %root_grad = cirh.Reduce %parts {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %half = cirh.Const dense<-5.000000e-01> : tensor<2x3x1xf32>
    %halved = cirh.Mul %root_grad, %half : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %square = cirh.Mul %rstd, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %cube = cirh.Mul %square, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %variance_grad = cirh.Mul %halved, %cube : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %spread = cirh.BroadcastInDim %variance_grad {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %size = cirh.Const dense<4.000000e+00> : tensor<2x3x4xf32>
    %two = cirh.Const dense<2.000000e+00> : tensor<2x3x4xf32>
    %divided = cirh.Div %spread, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %doubled = cirh.Mul %divided, %two : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %by_variance = cirh.Mul %doubled, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %total = cirh.Reduce %direct {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %totals = cirh.BroadcastInDim %total {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centering = cirh.Div %totals, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_parts = cirh.Mul %rstds, %gc : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_grad = cirh.Reduce %scale_parts {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %offset_grad = cirh.Reduce %grad {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %s1 = cirh.Add %residual, %direct : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s2 = cirh.Add %s1, %grad : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s3 = cirh.Sub %s2, %centering : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %s3, %scale_grad, %offset_grad, %by_variance : tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>
  }
  // CHECK: @other_constant
  // CHECK-NOT: cirh.LayerNormGrad
  // CHECK: func.return
  func.func @other_constant(%grad: tensor<2x3x4xf32>, %residual: tensor<2x3x4xf32>, %x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %y, %mean, %rstd = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x1xf32>, tensor<2x3x1xf32>)
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %direct = cirh.Mul %grad, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gx = cirh.Mul %grad, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gm = cirh.Mul %grad, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gc = cirh.Sub %gx, %gm : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %parts = cirh.Mul %gc, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %root_grad = cirh.Reduce %parts {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %half = cirh.Const dense<-2.500000e-01> : tensor<2x3x1xf32>
    %halved = cirh.Mul %root_grad, %half : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %square = cirh.Mul %rstd, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %cube = cirh.Mul %square, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %variance_grad = cirh.Mul %halved, %cube : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %spread = cirh.BroadcastInDim %variance_grad {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %size = cirh.Const dense<4.000000e+00> : tensor<2x3x4xf32>
    %two = cirh.Const dense<2.000000e+00> : tensor<2x3x4xf32>
    %divided = cirh.Div %spread, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %doubled = cirh.Mul %divided, %two : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %by_variance = cirh.Mul %doubled, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %total = cirh.Reduce %direct {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %totals = cirh.BroadcastInDim %total {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centering = cirh.Div %totals, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_parts = cirh.Mul %rstds, %gc : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_grad = cirh.Reduce %scale_parts {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %offset_grad = cirh.Reduce %grad {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %s1 = cirh.Add %residual, %direct : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s2 = cirh.Add %s1, %by_variance : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s3 = cirh.Sub %s2, %centering : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %s3, %scale_grad, %offset_grad : tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: @other_size
  // CHECK-NOT: cirh.LayerNormGrad
  // CHECK: func.return
  func.func @other_size(%grad: tensor<2x3x4xf32>, %residual: tensor<2x3x4xf32>, %x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %y, %mean, %rstd = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x1xf32>, tensor<2x3x1xf32>)
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %direct = cirh.Mul %grad, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gx = cirh.Mul %grad, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gm = cirh.Mul %grad, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %gc = cirh.Sub %gx, %gm : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %parts = cirh.Mul %gc, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %root_grad = cirh.Reduce %parts {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %half = cirh.Const dense<-5.000000e-01> : tensor<2x3x1xf32>
    %halved = cirh.Mul %root_grad, %half : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %square = cirh.Mul %rstd, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %cube = cirh.Mul %square, %rstd : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %variance_grad = cirh.Mul %halved, %cube : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %spread = cirh.BroadcastInDim %variance_grad {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %size = cirh.Const dense<5.000000e+00> : tensor<2x3x4xf32>
    %two = cirh.Const dense<2.000000e+00> : tensor<2x3x4xf32>
    %divided = cirh.Div %spread, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %doubled = cirh.Mul %divided, %two : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %by_variance = cirh.Mul %doubled, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %total = cirh.Reduce %direct {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %totals = cirh.BroadcastInDim %total {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centering = cirh.Div %totals, %size : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_parts = cirh.Mul %rstds, %gc : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scale_grad = cirh.Reduce %scale_parts {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %offset_grad = cirh.Reduce %grad {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    %s1 = cirh.Add %residual, %direct : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s2 = cirh.Add %s1, %by_variance : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s3 = cirh.Sub %s2, %centering : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %s3, %scale_grad, %offset_grad : tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
