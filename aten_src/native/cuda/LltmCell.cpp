// The host's half of lltm_cell's CUDA kernels: from tensors to parameters, and launches.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/LltmCell.h>

#include <ATen/Dispatch.h>
#include <ATen/ceil_div.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/native/cuda/LltmCell.h>
#include <c10/cuda/CUDAException.h>
#include <algorithm>

namespace at::native {
namespace lltm_cuda {
namespace {

constexpr int64_t kMaxGridY = 65535;

template <typename scalar_t>
Rows<scalar_t> rows(const TensorBase& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {tensor.const_data_ptr<scalar_t>(), tensor.stride(0), tensor.stride(1)};
}

template <typename Params>
void launch(const void* kernel, dim3 grid, dim3 block, Params params) {
  void* arguments[] = {&params};
  C10_CUDA_CHECK(
      cudaLaunchKernel(kernel, grid, block, arguments, 0, at::cuda::getCurrentCUDAStream()));
}

template <typename scalar_t>
bool can_vectorize(const ForwardParams<scalar_t>& p) {
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (kForwardVector * sizeof(scalar_t)) == 0;
  };
  return p.state % kForwardVector == 0 && p.old_cell.stride == 1 &&
      p.old_cell.row_stride % kForwardVector == 0 && aligned(p.old_cell.data) && aligned(p.gates) &&
      aligned(p.new_h) && aligned(p.new_cell);
}

void forward(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& old_cell) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_cuda", [&] {
    const ForwardParams<scalar_t> params{
        new_h.mutable_data_ptr<scalar_t>(),
        new_cell.mutable_data_ptr<scalar_t>(),
        gates.const_data_ptr<scalar_t>(),
        rows<scalar_t>(old_cell),
        new_h.size(0),
        new_h.size(1)};
    const bool vectors = can_vectorize(params);
    const int64_t threads = params.batch * (params.state / (vectors ? kForwardVector : 1));
    // Enough blocks to fill the device several times over; the kernel's loop does the rest.
    const auto* device = at::cuda::getCurrentDeviceProperties();
    const int64_t most = int64_t(device->multiProcessorCount) *
        (device->maxThreadsPerMultiProcessor / kForwardThreads) * 4;
    launch(
        vectors ? kernels<scalar_t>().forward_vectors : kernels<scalar_t>().forward,
        std::min(at::ceil_div<int64_t>(threads, kForwardThreads), most),
        kForwardThreads,
        params);
  });
}

void small(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const TensorBase& old_h,
    const TensorBase& old_cell) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_cuda", [&] {
    const SmallParams<scalar_t> params{
        new_h.mutable_data_ptr<scalar_t>(),
        new_cell.mutable_data_ptr<scalar_t>(),
        gates.mutable_data_ptr<scalar_t>(),
        rows<scalar_t>(input),
        rows<scalar_t>(weight),
        bias.const_data_ptr<scalar_t>(),
        bias.stride(0),
        rows<scalar_t>(old_h),
        rows<scalar_t>(old_cell),
        input.size(0),
        input.size(1),
        old_h.size(1)};
    launch(
        kernels<scalar_t>().small,
        dim3(
            at::ceil_div<int64_t>(params.batch, kSmallRows),
            at::ceil_div<int64_t>(params.state, kSmallUnits)),
        kSmallThreads,
        params);
  });
}

void backward(
    const TensorBase& grad_of_gates,
    const TensorBase& grad_old_cell,
    const TensorBase& bias_partials,
    const TensorBase& grad_new_h,
    const TensorBase& grad_new_cell,
    const TensorBase& grad_gates,
    const TensorBase& new_cell,
    const TensorBase& gates) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_backward_cuda", [&] {
        const auto batch = new_cell.size(0);
        const auto state = new_cell.size(1);
        const int64_t row_blocks = at::ceil_div<int64_t>(batch, kLltmRowsPerPartial);
        const BackwardParams<scalar_t> params{
            grad_of_gates.mutable_data_ptr<scalar_t>(),
            grad_old_cell.mutable_data_ptr<scalar_t>(),
            bias_partials.defined() ? bias_partials.mutable_data_ptr<Sum<scalar_t>>() : nullptr,
            rows<scalar_t>(grad_new_h),
            rows<scalar_t>(grad_new_cell),
            rows<scalar_t>(grad_gates),
            new_cell.const_data_ptr<scalar_t>(),
            gates.const_data_ptr<scalar_t>(),
            batch,
            state,
            kLltmRowsPerPartial,
            row_blocks};
        launch(
            kernels<scalar_t>().backward,
            dim3(at::ceil_div<int64_t>(state, kColumns), std::min(row_blocks, kMaxGridY)),
            dim3(kColumns, kRowLanes),
            params);
      });
}

void bias_gradient(const TensorBase& grad_bias, const TensorBase& bias_partials) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, grad_bias.scalar_type(), "lltm_cell_backward_cuda", [&] {
        const BiasParams<scalar_t> params{
            grad_bias.mutable_data_ptr<scalar_t>(),
            bias_partials.const_data_ptr<Sum<scalar_t>>(),
            bias_partials.size(0),
            grad_bias.size(0)};
        launch(
            kernels<scalar_t>().bias,
            at::ceil_div<int64_t>(params.columns, kBiasThreads),
            kBiasThreads,
            params);
      });
}

} // namespace
} // namespace lltm_cuda

REGISTER_CUDA_DISPATCH(lltm_cell_stub, &lltm_cuda::forward)
REGISTER_CUDA_DISPATCH(lltm_cell_small_stub, &lltm_cuda::small)
REGISTER_CUDA_DISPATCH(lltm_cell_backward_stub, &lltm_cuda::backward)
REGISTER_CUDA_DISPATCH(lltm_cell_bias_stub, &lltm_cuda::bias_gradient)

} // namespace at::native
