// Forward of depthwise_conv2d_ext in plane order by patches (Patches.cuh), and
// grad_input at stride 1, which is the forward on grad_output with flipped taps.
//
// The planes come into shared memory while the taps are fetched. The taps are staged where the
// results will be, and read into registers before those are written.
//
// Taps that are not finite would turn the zeros around the image into NaN: a block that has one
// takes its sums tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Patches.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

template <typename Traits>
struct ForwardBlock {
  static constexpr int kMostThreads = Traits::kTaps > 25 ? 128 : 256;
  static constexpr int kBlocks = Traits::kTaps > 25 ? 3 : Traits::kTaps > 9 ? 2 : 4;
  // A patch of stride 2 reads four times what it writes; one of a single row is for small problems.
  static constexpr int kWanted = Traits::kStride > 1 ? 64 : 128; // patches
  static constexpr int kRows = kPatchTile;
};

template <typename Traits>
C10_LAUNCH_BOUNDS_2(ForwardBlock<Traits>::kMostThreads, ForwardBlock<Traits>::kBlocks)
__global__ void patches_forward_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ Patches p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kStride = Traits::kStride;
  extern __shared__ float4 shared[];
  scalar_t* const src_shared = reinterpret_cast<scalar_t*>(shared) + kMargin;
  scalar_t* const dst_shared = src_shared + p.src_elements;
  float* const staged = reinterpret_cast<float*>(dst_shared);

  const int band = blockIdx.x % p.bands;
  const int plane = blockIdx.x / p.bands * p.planes_per_block;
  const int planes = min(p.planes_per_block, p.planes - plane);
  const int first_row = band * p.rows_per_band;
  const int rows = min(p.rows_per_band, p.dst_height - first_row);
  const bool all_rows = p.bands == 1;
  const int src_top = first_row * kStride - p.padding_height;
  const int src_begin = all_rows ? 0 : min(max(src_top, 0), p.src_height);
  const int src_end = all_rows
      ? p.src_height
      : max(src_begin, min(src_top + (rows - 1) * kStride + Traits::kHeight, p.src_height));
  const int src_plane = (src_end - src_begin) * p.src_width;

  const Run<const scalar_t> from(
      src + (plane * p.src_height + src_begin) * p.src_width, planes * src_plane);
  const Run<scalar_t> to(
      dst + (plane * p.dst_height + first_row) * p.dst_width, planes * rows * p.dst_width);
  from.load(src_shared);
  const bool finite = stage_patch_taps<Traits>(staged, weight, bias, plane, planes, p);
  wait_for_copies();
  const bool careful = __syncthreads_or(!finite);

  const Patch patch = patch_of(p, planes);
  Source<scalar_t> source;
  source.top = src_top + patch.row * kStride;
  source.left = patch.column * kStride - p.padding_width;
  source.end = src_end;
  source.width = p.src_width;
  source.inside = columns_inside<Traits>(source.left, p.src_width);
  source.from = src_shared + from.lead() + patch.plane * src_plane +
      (source.top - src_begin) * p.src_width + source.left;
  Target<scalar_t> target;
  target.to = dst_shared + to.lead() + patch.column +
      (patch.plane * p.rows_per_band + patch.row) * p.dst_width;
  target.width = p.dst_width;
  target.rows = patch.exists ? max(0, min(p.rows_per_patch, rows - patch.row)) : 0;
  target.columns = min(Traits::kTile, p.dst_width - patch.column);

  if (careful) {
    const int of = plane + patch.plane;
    const int channel = of % p.channels;
    const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
#pragma unroll 1
    for (int i = 0; i < target.rows * target.columns; ++i) {
      const int row = first_row + patch.row + i / target.columns;
      const int column = patch.column + i % target.columns;
      dst[(of * p.dst_height + row) * p.dst_width + column] = static_cast<scalar_t>(
          mended(src, weight, begin, call, p.flip, of / p.channels, channel, row, column));
    }
    return;
  }
  float taps[Traits::kTaps];
  float begin = 0.0f;
  if (target.rows > 0) {
#pragma unroll
    for (int tap = 0; tap < Traits::kTaps; ++tap) {
      taps[tap] = staged[patch.plane * Traits::kTapWords + tap];
    }
    begin = staged[patch.plane * Traits::kTapWords + Traits::kTaps];
  }
  __syncthreads();
  if (target.rows > 0) {
    convolve_patch<Traits>(target, source, taps, begin);
  }
  __syncthreads();
  to.store(dst_shared);
}

template <typename Traits>
bool launch(const ForwardPass& pass, const Params& call, Patches p) {
  using scalar_t = typename Traits::scalar_t;
  using Block = ForwardBlock<Traits>;
  if (!plan_patches<Traits, Block>(p, p.planes)) {
    return false;
  }
  const size_t shared = sizeof(scalar_t) * (kMargin + p.src_elements + p.dst_elements);
  if (shared > kMostPatchShared) {
    return false;
  }
  const unsigned int grid = divide_up(p.planes, p.planes_per_block) * p.bands;
  const unsigned int threads = divide_up(p.tasks(), kWarpSize) * kWarpSize;
  launch_kernel(
      patches_forward_kernel<Traits>,
      grid,
      threads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      call,
      p);
  return true;
}

template <typename scalar_t, typename Window>
bool launch_window(const ForwardPass& pass, const Params& call, const Patches& p) {
  // Larger planes of float at stride 2 leave too few blocks in a multiprocessor's shared memory.
  constexpr bool kSmallOnly =
      sizeof(scalar_t) == sizeof(float) && Window::kHeight > 3 && Window::kStride > 1;
  constexpr int32_t kSmall = 28;
  if (!patches_fit(p.dst_height, p.dst_width) || (kSmallOnly && p.dst_height >= kSmall)) {
    return false;
  }
  // Unrolled for all rows of a patch where a row is much to do: k = 5 and 7 take three quarters of
  // the time that they take with as many rows unrolled as there are taps; k = 3 takes the same.
  constexpr int kRows = Window::kHeight > 3 ? kPatchTile : 0;
  return launch<PatchTraits<scalar_t, Window, kRows>>(pass, call, p);
}

} // namespace

bool patches_forward(const ForwardPass& pass, const Params& p) {
  if (!patches_take(p) || pass.dst.numel() == 0 || pass.src.numel() == 0 ||
      (pass.grad_input && p.stride_height != 1)) {
    return false;
  }
  Patches patches = patches_of(p);
  if (pass.grad_input) {
    turn_around(patches, p);
  }
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(p, [&](auto window) {
      using Fixed = decltype(window);
      if constexpr (Fixed::kHeight < 7 || Fixed::kStride == 1) {
        return launch_window<decltype(scalar), Fixed>(pass, p, patches);
      } else {
        return false;
      }
    });
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
