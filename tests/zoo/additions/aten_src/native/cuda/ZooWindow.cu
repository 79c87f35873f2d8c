// The CUDA kernel of the structured operator that has no TensorIterator.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/empty.h>
#include <ATen/ops/zoo_window_sum_native.h>
#endif

namespace at::native {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 65535;

template <typename scalar_t>
__global__ void window_sum_kernel(
    const scalar_t* in,
    scalar_t* out,
    int64_t total,
    int64_t length,
    int64_t windows,
    int64_t size) {
  using opmath_t = at::opmath_type<scalar_t>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = first; at < total; at += step) {
    const scalar_t* window = in + (at / windows) * length + at % windows;
    opmath_t sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += static_cast<opmath_t>(window[i]);
    }
    out[at] = static_cast<scalar_t>(sum);
  }
}

} // namespace

TORCH_IMPL_FUNC(zoo_window_sum_out_cuda)
(const Tensor& self, int64_t size, int64_t dim, int64_t windows, const Tensor& out) {
  const auto input = self.movedim(dim, -1).contiguous();
  auto shape = input.sizes().vec();
  const auto length = shape.back();
  shape.back() = windows;
  auto sums = at::empty(shape, input.options());
  const auto total = sums.numel();
  if (total > 0) {
    const auto blocks = std::min<int64_t>((total + kThreads - 1) / kThreads, kMaxBlocks);
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
        kHalf, kBFloat16, input.scalar_type(), "zoo_window_sum_cuda", [&] {
          window_sum_kernel<scalar_t><<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
              input.const_data_ptr<scalar_t>(),
              sums.mutable_data_ptr<scalar_t>(),
              total,
              length,
              windows,
              size);
          C10_CUDA_KERNEL_LAUNCH_CHECK();
        });
  }
  out.copy_(sums.movedim(-1, dim));
}

} // namespace at::native
