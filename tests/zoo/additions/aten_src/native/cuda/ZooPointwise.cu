// The CUDA halves of the pointwise kinds.
//
// ATen's own gpu_kernel (native/cuda/Loops.cuh) includes cusparse.h, which a toolkit of compiler
// and runtime alone does not have; so the inputs are brought to one type and shape first, and a
// plain kernel runs over them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/ZooPointwise.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorIterator.h>
#include <c10/core/Scalar.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace at::native {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 65535;

template <typename scalar_t, typename function_t, typename... inputs_t>
__global__ void pointwise_kernel(
    function_t function,
    int64_t total,
    scalar_t* out,
    const inputs_t*... in) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = first; at < total; at += step) {
    out[at] = function(in[at]...);
  }
}

// An input with the common type, in the result's shape and in C order.
Tensor prepared(const TensorIteratorBase& iter, int input) {
  const auto& out = iter.output();
  return iter.input(input).to(out.device(), iter.common_dtype()).expand(out.sizes()).contiguous();
}

template <typename scalar_t, typename function_t, typename... tensors_t>
void launch(TensorIteratorBase& iter, function_t function, const tensors_t&... inputs) {
  const auto& out = iter.output();
  const auto total = out.numel();
  if (total == 0) {
    return;
  }
  auto result = out.new_empty(out.sizes(), out.options().dtype(iter.common_dtype()));
  const auto blocks = std::min<int64_t>((total + kThreads - 1) / kThreads, kMaxBlocks);
  pointwise_kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      function,
      total,
      result.template mutable_data_ptr<scalar_t>(),
      inputs.template const_data_ptr<scalar_t>()...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  out.copy_(result);
}

template <typename scalar_t>
struct Softclip {
  using opmath_t = at::opmath_type<scalar_t>;
  opmath_t limit;
  __device__ scalar_t operator()(scalar_t x) const {
    return limit * ::tanh(static_cast<opmath_t>(x) / limit);
  }
};

template <typename scalar_t>
struct Blend {
  scalar_t alpha;
  __device__ scalar_t operator()(scalar_t a, scalar_t b) const {
    return alpha * a * b;
  }
};

template <typename scalar_t>
struct MulAdd {
  __device__ scalar_t operator()(scalar_t a, scalar_t b, scalar_t c) const {
    return a * b + c;
  }
};

void softclip_kernel_cuda(TensorIteratorBase& iter, const Scalar& limit) {
  const auto x = prepared(iter, 0);
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "zoo_softclip_cuda", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    launch<scalar_t>(iter, Softclip<scalar_t>{limit.to<opmath_t>()}, x);
  });
}

void blend_kernel_cuda(TensorIteratorBase& iter, const Scalar& alpha) {
  const auto a = prepared(iter, 0);
  const auto b = prepared(iter, 1);
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "zoo_blend_cuda", [&] {
        launch<scalar_t>(iter, Blend<scalar_t>{alpha.to<scalar_t>()}, a, b);
      });
}

void muladd_kernel_cuda(TensorIteratorBase& iter) {
  const auto a = prepared(iter, 0);
  const auto b = prepared(iter, 1);
  const auto c = prepared(iter, 2);
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "zoo_muladd_cuda", [&] {
        launch<scalar_t>(iter, MulAdd<scalar_t>{}, a, b, c);
      });
}

} // namespace

REGISTER_DISPATCH(zoo_softclip_stub, &softclip_kernel_cuda)
REGISTER_DISPATCH(zoo_blend_stub, &blend_kernel_cuda)
REGISTER_DISPATCH(zoo_muladd_stub, &muladd_kernel_cuda)

} // namespace at::native
