// All gradients of depthwise_conv2d_ext in one pass over the tensors, in plane order by patches
// (Patches.cuh), at stride 1 where the output is of the input's size.
//
// A block brings the same channels of one image after the other into shared memory, input and
// grad_output. A thread multiplies its patch of grad_output with the input around it into one sum a
// tap, which it keeps over the images; then it takes its patch of grad_input from grad_output, which
// goes where the input was. The threads of a plane add their sums up in order, the block writes one
// partial, and add_partials() adds the blocks' in a fixed order. The input and grad_output are read
// once for all gradients, which saves two of five passes over tensors.
//
// The bias is summed in float within a patch and in double beyond. Zeros around the image that meet
// what is not finite leave NaN in a tap: a block that ends with one takes its sums again tap by tap,
// of positions inside the image only.
#include <ATen/native/cuda/depthwise_conv2d_ext/Patches.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

template <typename Traits>
struct BackwardBlock {
  // grad_input in the same pass pays where both fit into the registers of many threads.
  static constexpr bool kFused = Traits::kTaps <= 9;
  static constexpr bool kTall =
      Traits::kTaps > 25 || (Traits::kTaps > 9 && sizeof(typename Traits::scalar_t) == 2);
  static constexpr int kMostThreads = 128;
  static constexpr int kBlocks = kFused ? 6 : Traits::kTaps > 25 ? 3 : 4;
  static constexpr int kWanted = kTall ? 64 : 128; // patches
  static constexpr int kRows = kTall ? 2 * kPatchTile : kPatchTile;
};

// What a block does beyond its planes.
struct Images {
  int32_t count;
  int32_t per_chunk;
  int32_t groups; // of channels
};

// Adds the products of a patch of grad_output with the input around it to the sums of the taps, and
// returns the sum of the patch.
template <typename Traits>
__device__ __forceinline__ float accumulate_patch(
    float (&sums)[Traits::kTaps],
    const Target<const typename Traits::scalar_t>& dy,
    const Source<typename Traits::scalar_t>& x) {
  constexpr int kTile = Traits::kTile;
  constexpr int kHeight = Traits::kHeight;
  static_assert(Traits::kStride == 1);
  const uint32_t existing = (1u << dy.columns) - 1;
  float grads[kHeight][kTile] = {}; // the last rows of dy, where a convolution has its sums
  float whole = 0.0f;
  const int rows = Traits::rows(dy.rows);
  const int steps = rows + kHeight - 1;
#pragma unroll 1
  for (int first = 0; first < steps; first += Traits::kRound) {
#pragma unroll
    for (int u = 0; u < Traits::kRound; ++u) {
      const int step = Traits::kRows > 0 ? u : first + u;
      const bool has = step < dy.rows;
      const uint32_t here = has ? existing : 0;
      const auto* const from = dy.to + (has ? step : 0) * dy.width;
      float row = 0.0f;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const float grad = masked(static_cast<float>(from[t]), mask_of(here, t));
        grads[Traits::slot(u, 0)][t] = grad;
        row += grad;
      }
      whole += row;
      if (!x.has_row(step) || step >= steps) {
        continue;
      }
      float values[Traits::kColumns];
      load_columns<Traits>(values, x.from + step * x.width, x.inside);
#pragma unroll
      for (int kh = 0; kh < kHeight; ++kh) {
        if (Traits::kAsksWanted && (step < kh || step - kh >= rows)) {
          continue;
        }
#pragma unroll
        for (int kw = 0; kw < Traits::kWidth; ++kw) {
          float& sum = sums[kh * Traits::kWidth + kw];
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            sum = fmaf(values[t + kw], grads[Traits::slot(u, kh)][t], sum);
          }
        }
      }
    }
  }
  return whole;
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(BackwardBlock<Traits>::kMostThreads, BackwardBlock<Traits>::kBlocks)
__global__ void patches_backward_kernel(
    typename Traits::scalar_t* __restrict__ dx, // or null
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ dy,
    const typename Traits::scalar_t* __restrict__ x,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ Params call,
    const __grid_constant__ Patches p,
    const Images images) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTaps = Traits::kTaps;
  extern __shared__ float4 shared[];
  scalar_t* const x_shared = reinterpret_cast<scalar_t*>(shared) + kMargin;
  scalar_t* const dy_shared = x_shared + p.src_elements;
  float* const staged = reinterpret_cast<float*>(dy_shared + p.src_elements);

  const int band = blockIdx.x % p.bands;
  const int group = blockIdx.x / p.bands % images.groups;
  const int chunk = blockIdx.x / p.bands / images.groups;
  const int channel = group * p.planes_per_block;
  const int planes = min(p.planes_per_block, p.channels - channel);
  const int first_row = band * p.rows_per_band;
  const int rows = min(p.rows_per_band, p.dst_height - first_row);
  const bool all_rows = p.bands == 1;
  const int src_top = first_row - p.padding_height;
  const int src_begin = all_rows ? 0 : max(src_top, 0);
  const int src_end =
      all_rows ? p.src_height : min(src_top + rows - 1 + Traits::kHeight, p.src_height);
  const int width = p.src_width;
  const int src_plane = (src_end - src_begin) * width;

  const Patch patch = patch_of(p, planes);
  Source<scalar_t> source;
  source.top = src_top + patch.row;
  source.left = patch.column - p.padding_width;
  source.end = src_end;
  source.width = width;
  source.inside = columns_inside<Traits>(source.left, width);
  const int patch_rows = patch.exists ? max(0, min(p.rows_per_patch, rows - patch.row)) : 0;
  const int patch_columns = min(Traits::kTile, width - patch.column);
  // From the first element read: the patch's own first, and the first that its taps meet.
  const int own =
      patch.plane * src_plane + (first_row + patch.row - src_begin) * width + patch.column;
  const int corner = patch.plane * src_plane + (source.top - src_begin) * width + source.left;

  bool careful = false;
  const bool fused = BackwardBlock<Traits>::kFused && dx;
  if (fused) {
    // Of the flipped taps; no bias.
    careful = !stage_patch_taps<Traits>(staged, weight, nullptr, channel, planes, p);
  }
  float sums[kTaps] = {};
  double bias = 0;
  const int first_image = chunk * images.per_chunk;
  const int last_image = min(first_image + images.per_chunk, images.count);
#pragma unroll 1
  for (int image = first_image; image < last_image; ++image) {
    const int plane = image * p.channels + channel;
    const int at = (plane * p.src_height + src_begin) * width;
    const Run<const scalar_t> x_run(x + at, planes * src_plane);
    const Run<const scalar_t> dy_run(dy + at, planes * src_plane);
    x_run.load(x_shared);
    dy_run.load(dy_shared);
    wait_for_copies();
    careful = __syncthreads_or(careful);
    const scalar_t* const dy_first = dy_shared + dy_run.lead();
    if (patch_rows > 0) {
      const Target<const scalar_t> grads{dy_first + own, width, patch_rows, patch_columns};
      source.from = x_shared + x_run.lead() + corner;
      bias += accumulate_patch<Traits>(sums, grads, source);
    }
    __syncthreads();
    if (!fused) {
      continue;
    }
    const Run<scalar_t> to(dx + (plane * p.dst_height + first_row) * width, planes * rows * width);
    if (patch_rows > 0) {
      source.from = dy_first + corner;
      const Target<scalar_t> target{
          x_shared + to.lead() + patch.column + (patch.plane * p.rows_per_band + patch.row) * width,
          width,
          patch_rows,
          patch_columns};
      const float* const plane_taps = staged + patch.plane * Traits::kTapWords;
      if (careful) {
#pragma unroll 1
        for (int i = 0; i < patch_rows * patch_columns; ++i) {
          const int row = i / patch_columns;
          const int column = i % patch_columns;
          target.to[row * width + column] = static_cast<scalar_t>(mended(
              dy,
              weight,
              0.0f,
              call,
              true,
              image,
              channel + patch.plane,
              first_row + patch.row + row,
              patch.column + column));
        }
      } else {
        float taps[kTaps];
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          taps[tap] = plane_taps[tap];
        }
        convolve_patch<Traits>(target, source, taps, 0.0f);
      }
    }
    __syncthreads();
    to.store(x_shared);
    __syncthreads();
  }

  // Sums and biases of the threads, where the tensors were.
  const int in_plane = p.strips * p.tiles;
  double* const biases = reinterpret_cast<double*>(shared) + threadIdx.x;
  float* const mine =
      reinterpret_cast<float*>(reinterpret_cast<double*>(shared) + blockDim.x) + threadIdx.x;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    mine[tap * blockDim.x] = sums[tap];
  }
  *biases = bias;
  __syncthreads();
  const int threads = blockDim.x;
  const int place = threadIdx.x - patch.plane * in_plane;
  const BlockSums block{mine, biases, threads, place, in_plane, 1, true, patch.exists};
  float* const to = partial +
      static_cast<int64_t>(chunk * p.bands + band) * (kTaps + kBiasRows) * p.channels + channel +
      patch.plane;
  const Places places{first_row + patch.row, patch_rows, 1, patch.column, patch_columns, 1};
  write_block_sums<Traits>(block, to, p.channels, [&](int tap) {
    float sum = 0.0f;
    for (int image = first_image; image < last_image; ++image) {
      sum += mended_sum(dy, x, call, tap, image, channel + patch.plane, places);
    }
    return sum;
  });
}

// Returns the number of partials, 0 where it does nothing.
template <typename Traits>
int64_t launch(Operand& partial, const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  using Block = BackwardBlock<Traits>;
  if (pass.grad_input.defined() && !Block::kFused) {
    return 0;
  }
  const int64_t wanted_blocks = multiprocessors() * 4 * 3;
  // Sums of many images in one thread round more.
  constexpr int64_t kMostImages = 8;
  Patches p = patches_of(params);
  p.flip = true;
  if (!plan_patches<Traits, Block>(p, p.channels)) {
    return 0;
  }
  Images images{};
  images.count = params.batch;
  images.groups = divide_up(p.channels, p.planes_per_block);
  const int64_t an_image = static_cast<int64_t>(images.groups) * p.bands;
  const int64_t most = std::min<int64_t>(kMostImages, params.batch);
  const int64_t wanted = std::clamp<int64_t>(params.batch * an_image / wanted_blocks, 1, most);
  const int64_t image_chunks = divide_up(params.batch, wanted);
  images.per_chunk = divide_up(params.batch, image_chunks);
  const unsigned int threads = divide_up(p.tasks(), kWarpSize) * kWarpSize;
  const size_t sums = threads * (sizeof(double) + Traits::kTaps * sizeof(float));
  const size_t tensors = sizeof(scalar_t) * (kMargin + 2 * p.src_elements);
  const size_t taps = sizeof(float) * p.planes_per_block * Traits::kTapWords;
  const size_t shared = std::max(sums, tensors + (pass.grad_input.defined() ? taps : 0));
  if (shared > kMostPatchShared) {
    return 0;
  }
  const int64_t chunks = divide_up(params.batch, images.per_chunk) * p.bands;
  partial = empty_partial(chunks, params);
  const unsigned int grid = divide_up(params.batch, images.per_chunk) * an_image;
  launch_kernel(
      patches_backward_kernel<Traits>,
      grid,
      threads,
      shared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      params,
      p,
      images);
  return chunks;
}

} // namespace

bool patches_backward(const BackwardPass& pass, const Params& p) {
  if (!patches_take(p) || p.stride_height != 1 || p.stride_width != 1 ||
      p.output_height != p.input_height || p.output_width != p.input_width ||
      pass.input.numel() == 0 || !patches_fit(p.input_height, p.input_width)) {
    return false;
  }
  // A plane in bands reads its overhang again: for the weight alone that is worth less than the march,
  // but where rows are of no whole vectors.
  constexpr int64_t kLargePlane = 56 * 56;
  const bool large = p.input_height * p.input_width > kLargePlane;
  if (!pass.grad_input.defined() && large && p.input_width % 4 == 0) {
    return false;
  }
  Operand partial;
  int64_t chunks = 0;
  with_scalar_type(pass.input.type(), [&](auto scalar) {
    return with_window(p, [&](auto fixed) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(fixed);
      if constexpr (Fixed::kStride == 1) {
        chunks = launch<PatchTraits<scalar_t, Fixed>>(partial, pass, p);
      }
      return chunks > 0;
    });
  });
  if (chunks == 0) {
    return false;
  }
  add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, p);
  return true;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
