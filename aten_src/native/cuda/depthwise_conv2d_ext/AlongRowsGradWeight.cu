// grad_weight and grad_bias of depthwise_conv2d_ext in channels-last for float32, 5 x 5 and 7 x 7 at stride 1,
// where arithmetic counts more than memory.
//
// A lane is a channel, a warp has 32 of them and a tile of seven columns of the input, and takes one row of
// grad_output after the other. The elements of that row which meet the tile stay in registers,
//   sum[kh][kw] += input[h + kh - padding][s] * grad_output[h][s + padding - kw],
// while the tiles of the rows of the input that belong to it pass by: every element that is loaded from there
// meets a whole row of taps, one after the other, and all sums stay in registers for all of the warp's rows.
// So 7 x 7 taps cost 62 loads for 343 multiply-adds, where a tile of the input kept in registers and rows of
// grad_output that pass by (BoxesBackward.cu) cost 98.
//
// Rows come as boxes (Boxes.cuh) with zeros for what lies outside the image, asked for by a
// warp that does nothing else. A stage of the ring is a band: as many rows of grad_output as the warps of a
// block have tiles for, and as many of the input, the last that meet them. What bands before brought of the
// input stays as long as it is needed: its rows follow each other in a ring of their own. Bands of all images
// are counted through, and a block has an even share of them; where it begins, and where an image does,
// bands without grad_output bring the rows above. Planes that are one band come whole, several side by side.
//
// Warps are added up in order; a block writes one partial, and add_partials() adds the blocks' in a fixed order.
// A float bias is compensated in a lane and added in double beyond, as in GradWeight.cu. Zeros
// outside the image are multiplied with the other tensor, which is right only while that is finite: a sum
// that ends as NaN is taken again tap by tap, of positions inside the image only.
//
// Microseconds of an H200 by boxes and by this: 96@56 k7 86, 63, 192@28 51, 36.5, 384@14 34, 25, 768@7 27.7, 17.5,
// 96@112 463, 207, 64@56 dilated by 3 74, 52, 1152@7 k5 34.6, 25.2. Four fifths of what can be issued is issued:
// 452 instructions a row and warp, of which 343 are multiply-adds.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// Planes are those of a phase of the dilation, whose positions are that far apart.
struct WeightBands : UnitStridePass {
  int32_t rows; // of a plane
  int32_t row_phases;
  int32_t column_phases;
  int32_t tiles; // of a row
  int32_t band; // rows of grad_output, each with as many warps as there are tiles
  int32_t images; // side by side
  int32_t bands_of_plane;
  int32_t bands; // of all planes
  int32_t lead; // bands without grad_output that begin a run of bands
  int32_t above; // rows of the input in the ring before those that a band brings
  int32_t stages; // of grad_output; the input has `lead` more
  int32_t grads_bytes; // of a stage
  int32_t input_bytes;
  int32_t row_bytes; // of the input
  int32_t parts; // warps that compute
};

template <int kSide_, bool kNarrow_>
struct WeightBandsTraits {
  static constexpr int kSide = kSide_;
  // Planes of one tile and one band, of which nothing outside is loaded or multiplied.
  static constexpr bool kNarrow = kNarrow_;
  static constexpr int kTaps = kSide * kSide;
  static constexpr int kAlike = kTaps; // sums that are added as taps are
  static constexpr int kReach = (kSide - 1) / 2;
  static constexpr int kTile = 7;
  static constexpr int kOverhang = kNarrow ? 0 : kSide - 1;
  static constexpr int kColumns = kTile + kOverhang; // of grad_output
  static constexpr int kOutside = kNarrow ? 0 : kReach; // rows and columns on each side that come
  static constexpr int kFirst =
      kNarrow ? kReach : 0; // the first of them, of those that meet a tile
  static constexpr int kMostParts = 16;
  // Sums go to totals after this many bands, some 42 products a tap; 0: short shares bound the chains.
  static constexpr int kTurns = kSide < 7 ? 6 : 0;
  // And the warp that asks for rows. 17 warps leave a lane 96 registers.
  static constexpr int kMostThreads = (kMostParts + 1) * kWarpSize;
};

constexpr int kPixelBytes = kWarpSize * static_cast<int>(sizeof(float));
constexpr int kMostBandStages = 8;

// In front of the rings.
struct BandBarriers {
  uint64_t full[kMostBandStages];
  uint64_t empty[kMostBandStages];
};
static_assert(sizeof(BandBarriers) <= kBoxBytes);

// A warp's place in a band: tiles innermost, then rows, then images.
struct WarpPlace {
  int32_t tile;
  int32_t row;
  int32_t image;

  __device__ __forceinline__ explicit WarpPlace(const WeightBands& p) {
    const int part = threadIdx.x / kWarpSize;
    row = part / p.tiles;
    tile = part - row * p.tiles;
    image = row / p.band;
    row -= image * p.band;
  }
};

// Where a plane begins.
struct PlanePlace {
  int32_t image;
  int32_t row;
  int32_t column;

  __device__ __forceinline__ PlanePlace(const WeightBands& p, int plane) {
    const int rest = plane / p.column_phases;
    column = plane - rest * p.column_phases;
    image = rest / p.row_phases;
    row = rest - image * p.row_phases;
    image *= p.images;
  }
};

// One tap (kTaps: the bias) of a thread's part of the bands [begin, end), inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_bands(
    const float* grad_output,
    const float* input,
    const WeightBands& p,
    int channel,
    int begin,
    int end,
    int tap) {
  const bool bias = tap == Traits::kTaps;
  const int down = bias ? 0 : (tap / Traits::kSide - Traits::kReach) * p.dilation_height;
  const int right = bias ? 0 : (tap % Traits::kSide - Traits::kReach) * p.dilation_width;
  const WarpPlace place(p);
  float sum = 0.0f;
#pragma unroll 1
  for (int band = begin; band < end; ++band) {
    const PlanePlace plane(p, band / p.bands_of_plane);
    const int image = plane.image + place.image;
    const int row = plane.row + (band % p.bands_of_plane * p.band + place.row) * p.dilation_height;
    const int h = row + down;
    if (image >= p.batch || row >= p.dst_height || h < 0 || h >= p.src_height) {
      continue;
    }
#pragma unroll 1
    for (int t = 0; t < Traits::kTile; ++t) {
      const int w = plane.column + (place.tile * Traits::kTile + t) * p.dilation_width;
      const int column = w - right;
      if (w < p.src_width && column >= 0 && column < p.dst_width) {
        const float grad = grad_output
            [((image * p.dst_height + row) * p.dst_width + column) * p.channels + channel];
        const int from = (image * p.src_height + h) * p.src_width + w;
        sum += bias ? grad : grad * input[from * p.channels + channel];
      }
    }
  }
  return sum;
}

// Asks for the bands [begin, end), by one thread.
template <typename Traits>
__device__ __forceinline__ void ask_bands(
    BandBarriers* barriers,
    uint32_t grads_ring,
    uint32_t input_ring,
    const CUtensorMap& grads_map,
    const CUtensorMap& input_map,
    const WeightBands& p,
    int begin,
    int end) {
  const int channel = blockIdx.x * kWarpSize;
  const int input_stages = p.stages + p.lead;
  int stage = 0;
  int input_stage = 0;
  uint32_t parity = 1;
  int plane = begin / p.bands_of_plane;
  int in_plane = begin - plane * p.bands_of_plane;
#pragma unroll 1
  for (int band = begin; band < end; ++plane, in_plane = 0) {
    const PlanePlace place(p, plane);
    const int bands = min(p.bands_of_plane - in_plane, end - band);
#pragma unroll 1
    for (int i = -p.lead; i < bands; ++i) {
      const uint32_t full = shared_address(&barriers->full[stage]);
      const int row = (in_plane + i) * p.band;
      wait_for(shared_address(&barriers->empty[stage]), parity);
      arrive_and_expect(full, i < 0 ? p.input_bytes : p.input_bytes + p.grads_bytes);
      load_box(
          input_ring + input_stage * p.input_bytes,
          full,
          input_map,
          channel,
          place.column,
          place.row + (row + p.above - Traits::kOutside) * p.dilation_height,
          place.image);
      if (i >= 0) {
        load_box(
            grads_ring + stage * p.grads_bytes,
            full,
            grads_map,
            channel,
            place.column - Traits::kOutside * p.dilation_width,
            place.row + row * p.dilation_height,
            place.image);
      }
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
      if (++input_stage == input_stages) {
        input_stage = 0;
      }
    }
    band += bands;
  }
}

// The sum of what the warps of a block have, as a tree; `mine` is that of this warp.
template <typename Traits, typename sum_t>
__device__ __forceinline__ sum_t add_warps(const sum_t* mine, int part, int parts) {
  constexpr int kParts = Traits::kMostParts;
  sum_t sums[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    sums[i] = i < parts ? mine[(i - part) * kWarpSize] : sum_t(0);
  }
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
#pragma unroll
    for (int i = 0; i < kParts; i += 2 * step) {
      sums[i] += sums[i + step];
    }
  }
  return sums[0];
}

// grid: groups of 32 channels x shares of the bands.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kMostThreads, 1)
__global__ void weight_bands_kernel(
    float* __restrict__ partial,
    const float* __restrict__ grad_output,
    const float* __restrict__ input,
    const __grid_constant__ CUtensorMap grads_map,
    const __grid_constant__ CUtensorMap input_map,
    const __grid_constant__ WeightBands p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kSide = Traits::kSide;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kColumns = Traits::kColumns;
  extern __shared__ __align__(kBoxBytes) char shared[];
  BandBarriers* const barriers = reinterpret_cast<BandBarriers*>(shared);
  char* const grads_ring = shared + kBoxBytes;
  char* const input_ring = grads_ring + p.stages * p.grads_bytes;
  const int part = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const bool computes = part < p.parts;
  // The first `more` blocks have one more.
  const int share = p.bands / gridDim.y;
  const int more = p.bands - share * gridDim.y;
  const int chunk = blockIdx.y;
  const int begin = chunk * share + min(chunk, more);
  const int end = begin + share + (chunk < more ? 1 : 0);
  if (threadIdx.x == p.parts * kWarpSize) {
    prefetch_map(grads_map);
    prefetch_map(input_map);
    for (int i = 0; i < p.stages; ++i) {
      init_barrier(shared_address(&barriers->full[i]), 1);
      init_barrier(shared_address(&barriers->empty[i]), p.parts);
    }
    fence_barriers();
  }
  __syncthreads();
  if (threadIdx.x == p.parts * kWarpSize) {
    ask_bands<Traits>(
        barriers,
        shared_address(grads_ring),
        shared_address(input_ring),
        grads_map,
        input_map,
        p,
        begin,
        end);
  }

  float sums[kTaps] = {};
  float bias = 0.0f;
  float excess = 0.0f;
  float totals[Traits::kTurns > 0 ? kTaps : 1] = {};
  int turns = 0;
  if (computes) {
    const WarpPlace place(p);
    const uint32_t input_size = (p.stages + p.lead) * p.input_bytes;
    // In a stage of grad_output.
    const char* const my_grads = grads_ring +
        ((place.image * p.band + place.row) * (p.tiles * kTile + Traits::kOverhang) +
         place.tile * kTile) *
            kPixelBytes +
        lane * sizeof(float);
    // Of the first row of the input.
    const char* const my_input =
        input_ring + place.tile * kTile * kPixelBytes + lane * sizeof(float);
    const int image_rows = p.band + (p.lead > 0 ? 0 : Traits::kOverhang);
    uint32_t first = (place.image * image_rows + place.row) * p.row_bytes;
    first += p.lead > 0 ? input_size - p.above * p.row_bytes : 0;
    first -= first >= input_size ? input_size : 0;
    // In a narrow plane the first row that meets may lie before the ring.
    first -= Traits::kNarrow ? Traits::kReach * p.row_bytes : 0;
    const char* grads = my_grads;
    int stage = 0;
    uint32_t parity = 0;
    int in_plane = begin % p.bands_of_plane;
#pragma unroll 1
    for (int band = begin; band < end; in_plane = 0) {
      const int bands = min(p.bands_of_plane - in_plane, end - band);
      band += bands;
#pragma unroll 1
      for (int i = -p.lead; i < bands; ++i) {
        wait_for(shared_address(&barriers->full[stage]), parity);
        if (i >= 0) {
          float row[kColumns];
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            row[c] = *reinterpret_cast<const float*>(grads + c * kPixelBytes);
          }
          uint32_t at = first;
#pragma unroll
          for (int kh = 0; kh < kSide; ++kh) {
            const int h = place.row + kh - Traits::kReach;
            if (!Traits::kNarrow || (h >= 0 && h < p.rows)) {
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
                const float value = *reinterpret_cast<const float*>(
                    my_input + static_cast<int>(at) + t * kPixelBytes);
#pragma unroll
                for (int kw = 0; kw < kSide; ++kw) {
                  const int c = t + kSide - 1 - kw - Traits::kFirst;
                  if (c >= 0 && c < kColumns) {
                    float& sum = sums[kh * kSide + kw];
                    sum = fmaf(value, row[c], sum);
                  }
                }
              }
            }
            at += p.row_bytes;
            at = Traits::kNarrow ? at : min(at, at - input_size); // less than nothing is much
          }
          // Those of the tile itself.
          const float* const own = row + Traits::kReach - Traits::kFirst;
          static_assert(kTile == 7);
          const float sum = ((own[0] + own[1]) + (own[2] + own[3])) + ((own[4] + own[5]) + own[6]);
          add_compensated(bias, excess, sum);
          if (Traits::kTurns > 0 && ++turns == Traits::kTurns) {
            turns = 0;
#pragma unroll
            for (int k = 0; k < kTaps; ++k) {
              totals[Traits::kTurns > 0 ? k : 0] += sums[k];
              sums[k] = 0.0f;
            }
          }
        }
        __syncwarp();
        if (lane == 0) {
          arrive(shared_address(&barriers->empty[stage]));
        }
        grads += p.grads_bytes;
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
          grads = my_grads;
        }
        if constexpr (Traits::kNarrow) {
          first = stage == 0 ? first - (p.stages - 1) * p.input_bytes : first + p.input_bytes;
        } else {
          first += p.input_bytes;
          first -= first >= input_size ? input_size : 0;
        }
      }
    }
  }

  // A block's sums, in the rings' place.
  __syncthreads();
  const int threads = p.parts * kWarpSize; // that compute
  float* const sums_of_block = reinterpret_cast<float*>(grads_ring) + threadIdx.x;
  double* const biases =
      reinterpret_cast<double*>(grads_ring + kTaps * threads * sizeof(float)) + threadIdx.x;
  if (computes) {
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      sums_of_block[k * threads] =
          Traits::kTurns > 0 ? totals[Traits::kTurns > 0 ? k : 0] + sums[k] : sums[k];
    }
    *biases = static_cast<double>(bias) - excess;
  }
  __syncthreads();
  const int channel = blockIdx.x * kWarpSize + lane;
  const BlockSums block{
      sums_of_block,
      biases,
      threads,
      part,
      p.parts,
      kWarpSize,
      computes,
      computes && channel < p.channels};
  // All parts are loaded at once: one after the other they take 2 us.
  const auto add_parts = [&](int k) {
    return k < kTaps
        ? static_cast<double>(add_warps<Traits>(sums_of_block + k * threads, part, p.parts))
        : add_warps<Traits>(biases, part, p.parts);
  };
  write_block_sums<Traits>(
      block,
      partial + static_cast<int64_t>(blockIdx.y) * (kTaps + kBiasRows) * p.channels + channel,
      p.channels,
      add_parts,
      [&](int k) { return careful_bands<Traits>(grad_output, input, p, channel, begin, end, k); });
#endif
}

// How rows, columns and images fall to bands and warps; false where too few warps would have work.
template <typename Traits>
bool plan_bands(WeightBands& s) {
  constexpr int kMostParts = Traits::kMostParts;
  constexpr int kOverhang = Traits::kSide - 1;
  s.rows = divide_up(s.src_height, s.dilation_height);
  s.row_phases = std::min(s.dilation_height, s.src_height);
  s.column_phases = std::min(s.dilation_width, s.src_width);
  s.tiles = divide_up(divide_up(s.src_width, s.dilation_width), Traits::kTile);
  if (s.tiles > kMostParts) {
    return false;
  }
  const int most_rows = std::min(kMostParts / s.tiles, s.rows);
  s.bands_of_plane = divide_up(s.rows, most_rows);
  s.band = divide_up(s.rows, s.bands_of_plane);
  const bool whole = s.bands_of_plane == 1;
  if (Traits::kNarrow && !(whole && s.tiles == 1)) {
    return false;
  }
  s.images = whole ? std::min(s.batch, kMostParts / (s.tiles * s.band)) : 1;
  s.bands = divide_up(s.batch, s.images) * s.row_phases * s.column_phases * s.bands_of_plane;
  s.parts = s.images * s.band * s.tiles;
  s.lead = whole ? 0 : divide_up(kOverhang, s.band);
  s.above = whole ? 0 : kOverhang;
  const int width = s.tiles * Traits::kTile;
  s.row_bytes = width * kPixelBytes;
  s.input_bytes = s.images * (s.band + (whole ? Traits::kOverhang : 0)) * s.row_bytes;
  s.grads_bytes = s.images * s.band * (width + Traits::kOverhang) * kPixelBytes;
  return true;
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  constexpr int64_t kLeastStages = 2;
  // Chains of a sum are no longer than the tiles of so many rows: errors are .2 to .8 of upstream's.
  constexpr int64_t kMostBands = 176;
  WeightBands s{};
  set_unit_stride_pass(s, params);
  if (!plan_bands<Traits>(s)) {
    return false;
  }
  const int64_t room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kBoxBytes -
      s.lead * s.input_bytes;
  s.stages = std::min<int64_t>(kMostBandStages, room / (s.input_bytes + s.grads_bytes));
  if (s.stages < kLeastStages) {
    return false;
  }
  const int64_t threads = s.parts * kWarpSize; // that compute
  const int64_t rings = s.stages * (s.input_bytes + s.grads_bytes) + s.lead * s.input_bytes;
  const int64_t ends = threads * (Traits::kTaps * sizeof(float) + sizeof(double));
  const size_t shared = kBoxBytes + std::max(rings, ends);
  CUtensorMap grads_map;
  CUtensorMap input_map;
  constexpr auto kernel = weight_bands_kernel<Traits>;
  const int64_t width = s.tiles * Traits::kTile;
  const int64_t input_rows = s.input_bytes / (s.images * s.row_bytes);
  if (!has_shared(shared) || !compiled_for_sm_90<kernel>() ||
      !map_boxes(
          grads_map,
          pass.grad_output,
          kWarpSize,
          width + Traits::kOverhang,
          s.band,
          s.images,
          s.dilation_width,
          false,
          s.dilation_height) ||
      !map_boxes(
          input_map,
          pass.input,
          kWarpSize,
          width,
          input_rows,
          s.images,
          s.dilation_width,
          false,
          s.dilation_height)) {
    return false;
  }
  allow_shared(kernel, shared);
  const int64_t groups = divide_up(s.channels, kWarpSize);
  // Blocks of a group that are resident at once, as many whole turns of them as the chains want: 135 blocks on
  // 132 multiprocessors took 96@112 391 us.
  const int64_t at_once =
      std::max<int64_t>(1, device_attribute(cudaDevAttrMultiProcessorCount) / groups);
  const int64_t turns = divide_up(s.bands, at_once * kMostBands);
  const int64_t chunks = std::min<int64_t>(at_once * turns, s.bands);
  const TensorBase partial = empty_partial(pass.input, chunks, params);
  kernel<<<dim3(groups, chunks), threads + kWarpSize, shared, c10::cuda::getCurrentCUDAStream()>>>(
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<float>(),
      pass.input.const_data_ptr<float>(),
      grads_map,
      input_map,
      s);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, params);
  return true;
}

#endif

} // namespace

bool along_rows_grad_weight(const BackwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  constexpr int64_t kLeastChannels = 16; // of a warp's 32 lanes
  constexpr int64_t kLeastElements = 256 * 1024;
  constexpr int64_t kMostDilation = 8; // steps of a box
  // 5 x 5 on wider planes is faster by boxes: 144@56 120 us there, 124 here.
  constexpr int64_t kMostColumnsOf5 = 28;
  const int64_t side = p.kernel_width;
  if (!p.channels_last || p.multiplier != 1 || pass.input.scalar_type() != kFloat ||
      !keeps_size(p) || p.kernel_height != side ||
      p.padding_height != side / 2 * p.dilation_height ||
      p.padding_width != side / 2 * p.dilation_width || p.dilation_height > kMostDilation ||
      p.dilation_width > kMostDilation || p.channels < kLeastChannels ||
      pass.input.numel() < kLeastElements || !march_fits_32_bits(p) || !boxes_take(pass.input) ||
      !boxes_take(pass.grad_output) || !device_has_boxes()) {
    return false;
  }
  const auto with_side = [&](auto fixed) {
    constexpr int kSide = decltype(fixed)::value;
    const int64_t columns = divide_up(p.input_width, p.dilation_width);
    const int64_t rows = divide_up(p.input_height, p.dilation_height);
    using Narrow = WeightBandsTraits<kSide, true>;
    return columns <= Narrow::kTile && rows <= Narrow::kMostParts
        ? launch<Narrow>(pass, p)
        : launch<WeightBandsTraits<kSide, false>>(pass, p);
  };
  return side == 7                                    ? with_side(std::integral_constant<int, 7>())
      : side == 5 && p.input_width <= kMostColumnsOf5 ? with_side(std::integral_constant<int, 5>())
                                                      : false;
#else
  return false;
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
