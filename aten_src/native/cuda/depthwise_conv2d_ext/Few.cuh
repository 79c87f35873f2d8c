// What the kernels of all gradients of few elements share (FewBackward.cu in plane order,
// FewPixelsBackward.cu in channels-last): each thread has patches of src, and the blocks of
// a cluster add up what is a channel's.
#pragma once

#include <ATen/cuda/detail/IntegerDivider.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Cluster.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

using Divider = at::cuda::detail::IntDivider<uint32_t>;

struct FewPass : UnitStridePass { // of multiplier 1, src and dst of one size
  int32_t tasks; // patches: of a channel in plane order, of all images' pixels in channels-last
  Divider tiles; // side by side
  Divider strips; // of tiles, one below the other
  // In plane order:
  int32_t warps; // of patches
  int32_t lanes; // of a warp that have any
  int32_t blocks; // of a channel
  int32_t block_warps; // of a block and of a channel
};

// By patches of so many columns and rows.
inline FewPass few_pass(const Params& params, int64_t columns, int64_t rows) {
  FewPass p{};
  set_unit_stride_pass(p, params);
  p.flip = true; // of grad_input
  const int64_t tiles = divide_up(params.input_width, columns);
  const int64_t strips = divide_up(params.input_height, rows);
  p.tasks = params.batch * tiles * strips;
  p.tiles = Divider(tiles);
  p.strips = Divider(strips);
  return p;
}

// Whether the window is one that they have: 3 x 3, and keeps the size of planes.
inline bool few_take(const Params& p, const TensorBase& input) {
  return keeps_size(p) && p.multiplier == 1 && p.dilation_height == 1 && p.dilation_width == 1 &&
      p.kernel_height == 3 && p.kernel_width == 3 && input.numel() > 0 && march_fits_32_bits(p);
}

// False where there are more groups of channels than a grid has.
template <typename scalar_t, typename Kernel>
bool launch_few(
    Kernel* kernel,
    int64_t blocks, // of a cluster
    int64_t groups,
    dim3 block,
    int64_t shared,
    const BackwardPass& pass,
    const FewPass& p) {
  constexpr int64_t kMostOfGrid = 65535;
  if (groups > kMostOfGrid) {
    return false;
  }
  launch_clusters(
      kernel,
      dim3(blocks, groups),
      block,
      shared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      mutable_pointer_or_null<scalar_t>(pass.grad_weight),
      mutable_pointer_or_null<scalar_t>(pass.grad_bias),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      p);
  return true;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
