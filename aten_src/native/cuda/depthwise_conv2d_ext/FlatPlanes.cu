// depthwise_conv2d_ext on planes of 7 x 7 and 14 x 14, of the same size in and out, of many images, with
// windows of 3 x 3, 5 x 5 and 7 x 7, in plane order.
//
// A tile is 32 planes of 7 x 7, or 16 of 14 x 14, of neighbouring channels of an image: one run of memory
// of 3 to 12 KB. A warp takes tiles by itself: bulk copies bring them into its own buffers as they lie in
// memory, one or more ahead, its results leave the same way, and no warp waits for another. Each of its
// lanes has seven rows of a plane. As planes lie 49 or 98 words apart, or half of that, lanes read their
// rows without conflicts of banks (7 x 7 in 16 bit: two lanes a bank). So nothing is spent on addresses,
// and few warps keep memory busy: four or eight a multiprocessor with two tiles of each tensor or more are
// as fast as sixteen with one, or faster, as they do not all wait and then all compute.
//
// Of a plane of 14 rows two lanes have one half each and march from the middle outwards, so that which
// rows exist is the same for both and known when the kernel is compiled. Nothing outside the image is
// multiplied, so that nothing spoils what is not finite. A row of src meets a row of dst in the results and,
// where the weight's gradient is wanted, one of the input in the products, one sum a tap.
//
// A lane adds up the weight's gradient over the images of a task, which are a part of all, and writes its
// sums to a partial, and add_partials() adds those of the parts in order.
//
// Microseconds of an H200, with images as lanes or on tensor cores and by this, 128 images but where k7:
// forward of 384@14 k3 fp32 23 and 21, 960@7 k3 fp32 18 and 15, fp16 12 and 11, 1152@7 k5 fp32 22 and 20; the
// weight's gradient of 384@14 k3 fp32 35 and 24, fp16 19 and 16, 960@7 k3 23 and 18, 14 and 13, 1152@7 k5
// fp32 30 and 23; all gradients 52 and 34, 28 and 23, 31 and 22, 24 and 18, 44 and 32 (fp16 33 and 31);
// 64 images of 384@14 k7 fp32 36 and 22, 57 and 35.
#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

// Calls launch with the side of a plane and that of a window, as constants, where there are kernels for
// small planes of them; false where there are none.
template <typename Launch>
bool with_small_plane(const Params& p, const Launch& launch) {
  const auto with_side = [&](auto side) {
    switch (p.kernel_width) {
      case 3:
        return launch(side, std::integral_constant<int, 3>());
      case 5:
        return launch(side, std::integral_constant<int, 5>());
      case 7:
        return launch(side, std::integral_constant<int, 7>());
      default:
        return false;
    }
  };
  switch (p.input_width) {
    case 7:
      return with_side(std::integral_constant<int, 7>());
    case 14:
      return with_side(std::integral_constant<int, 14>());
    default:
      return false;
  }
}

// Adds to a row of a whole plane what a row of src gives it by a row of taps, tap(kw), if `own` summed by
// itself first.
template <int kWindow, int kSide, typename Tap>
__device__ __forceinline__ void add_plane_row(
    float (&sums)[kSide],
    const float (&src)[kSide],
    bool own,
    const Tap& tap) {
  constexpr int kReach = (kWindow - 1) / 2;
  float row[kSide] = {};
#pragma unroll
  for (int kw = 0; kw < kWindow; ++kw) {
#pragma unroll
    for (int t = 0; t < kSide; ++t) {
      const int s = t + kw - kReach;
      if (s >= 0 && s < kSide) {
        float& sum = own ? row[t] : sums[t];
        sum = fmaf(src[s], tap(kw), sum);
      }
    }
  }
  if (own) {
#pragma unroll
    for (int t = 0; t < kSide; ++t) {
      sums[t] += row[t];
    }
  }
}

struct FlatPlanes {
  int32_t batch;
  int32_t channels;
  int32_t groups; // of the planes of a tile
  int32_t images; // of a task
  int32_t tasks; // groups x parts of the images, groups innermost
  bool flip;
};

template <typename scalar_t_, int kSide_, int kWindow_, bool kData_, bool kWeight_>
struct FlatPlanesTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSide = kSide_;
  static constexpr int kWindow = kWindow_;
  static constexpr bool kData = kData_; // whether dst is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  static constexpr int kReach = kWindow / 2;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window<kWindow, kWindow, 1>>;
  static constexpr int kRows = 7; // of a lane
  static constexpr int kParts = kSide / kRows; // of a plane
  static constexpr int kPlanes = kWarpSize / kParts; // of a tile
  static constexpr int kPlaneBytes = kPixels * static_cast<int>(sizeof(scalar_t));
  static constexpr int kTileBytes = kPlanes * kPlaneBytes;
  static constexpr int kPair = kSide % 2 == 0 ? 2 : 1; // elements that travel together
  // Rows of the march: those before the lane's own that exist, its own, and no more.
  static constexpr int kFirst = kParts == 1 ? kReach : 0;
  static constexpr int kEnd = kReach + kRows;
  // Unrolled, half a plane with 5 x 5 and 7 x 7 is code of 5,000 and 14,000 instructions, which take
  // longer to fetch than to execute: all gradients of 384@14 k7 fp32 100 us.
  static constexpr bool kRolled = kParts > 1 && kWindow > 3;
  // Rows of src in registers where it is unrolled: those of a window and the next, or all.
  static constexpr int kHeld = kParts == 1 ? kRows : kWindow + 1;
  // Results take the place of the input or, where no row of src is read again, of src.
  static constexpr bool kApart = kWeight || kRolled;
  static constexpr int kStageBytes = (kApart ? 2 : 1) * kTileBytes;
  static constexpr int kWarps =
      4; // of a block: as many to each of a multiprocessor's four schedulers
  static constexpr int kThreads = kWarps * kWarpSize;
  // Blocks a multiprocessor and stages: two and four, as far as they fit, and never less than two stages.
  static constexpr int kRoom = 200 * 1024 / (kWarps * kStageBytes);
  static constexpr int kBlocks = kRoom >= 4 ? 2 : 1;
  static constexpr int kStages = kRoom / kBlocks < 4 ? kRoom / kBlocks : 4;
  static constexpr int kHead = 128; // bytes of shared memory in front of the buffers
  static constexpr int kShared = kHead + kWarps * kStages * kStageBytes;
  // The sums of the two halves of a plane.
  using Fold = WarpFold<kTaps, kParts / 2>;
  static_assert(kSide % kRows == 0 && kTileBytes % kBulkBytes == 0 && kStages >= 2);
  static_assert(kWarps * kStages * static_cast<int>(sizeof(uint64_t)) <= kHead);
  static_assert(!kRolled || kFirst == 0, "rows before the first would be read");
};

// The part of a plane that is a lane's.
template <typename Traits>
struct FlatPart {
  int plane; // of the tile
  bool upwards;
  int first; // the element that the march's own rows begin with, in the tile
  int next; // elements to the next row

  __device__ __forceinline__ explicit FlatPart(int lane) {
    constexpr int kSide = Traits::kSide;
    plane = lane / Traits::kParts;
    // The first of two parts marches upwards.
    upwards = lane % Traits::kParts + 1 < Traits::kParts;
    next = upwards ? -kSide : kSide;
    first = plane * Traits::kPixels;
    if constexpr (Traits::kParts > 1) {
      first += upwards ? (Traits::kRows - 1) * kSide : Traits::kRows * kSide;
      // As numbers that the compiler knows nothing of: it would make a march of its own for each half.
      asm volatile("" : "+r"(first), "+r"(next));
    }
  }
};

template <typename Traits>
__device__ __forceinline__ void read_flat_row(
    float (&row)[Traits::kSide],
    const typename Traits::scalar_t* from) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kPair = Traits::kPair;
#pragma unroll
  for (int t = 0; t < Traits::kSide; t += kPair) {
    Packed<scalar_t, kPair> pair;
    if constexpr (Packed<scalar_t, kPair>::kBytes == 2) {
      pair.words[0] = *reinterpret_cast<const unsigned short*>(from + t);
    } else {
      pair = *reinterpret_cast<const Packed<scalar_t, kPair>*>(from + t);
    }
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      row[t + i] = unpack(pair, i);
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void write_flat_row(
    typename Traits::scalar_t* to,
    const float (&row)[Traits::kSide]) {
  constexpr int kPair = Traits::kPair;
#pragma unroll
  for (int t = 0; t < Traits::kSide; t += kPair) {
    float pair[kPair];
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      pair[i] = row[t + i];
    }
    store_vector<typename Traits::scalar_t, kPair>(to + t, pair);
  }
}

// A lane's taps in the order of its march.
template <typename Traits>
__device__ __forceinline__ void load_flat_taps(
    float (&taps)[Traits::kTaps],
    const typename Traits::scalar_t* weight,
    bool upwards,
    bool flip) {
  constexpr int kWindow = Traits::kWindow;
  const bool turned = upwards != flip;
  int first = (turned ? (kWindow - 1) * kWindow : 0) + (flip ? kWindow - 1 : 0);
  int next = turned ? -kWindow : kWindow;
  if constexpr (Traits::kParts > 1) {
    asm volatile("" : "+r"(first), "+r"(next)); // as above
  }
  const int right = flip ? -1 : 1;
#pragma unroll
  for (int kh = 0; kh < kWindow; ++kh) {
#pragma unroll
    for (int kw = 0; kw < kWindow; ++kw) {
      taps[kh * kWindow + kw] = static_cast<float>(weight[first + kh * next + kw * right]);
    }
  }
}

// What a lane adds up of the weight's gradient, taps in the order of its march.
template <typename Traits>
struct FlatSums {
  float taps[Traits::kTaps] = {};
  double bias = 0;
};

// A float bias has no products whose rounding would hide that of its sum.
template <typename Traits>
__device__ __forceinline__ void add_flat_bias(FlatSums<Traits>& sums, float& bias, float row) {
  if constexpr (sizeof(typename Traits::scalar_t) == 4) {
    sums.bias += row;
  } else {
    bias += row;
  }
}

// What a row of src and one of the input give the row `m` of taps.
template <typename Traits>
__device__ __forceinline__ void add_flat_products(
    FlatSums<Traits>& sums,
    const float (&values)[Traits::kSide],
    const float (&row)[Traits::kSide],
    int m) {
#pragma unroll
  for (int kw = 0; kw < Traits::kWindow; ++kw) {
    // Of a row by itself first: chains of a row, then of rows.
    float products = 0.0f;
#pragma unroll
    for (int s = 0; s < Traits::kSide; ++s) {
      const int t = s + Traits::kReach - kw;
      if (t >= 0 && t < Traits::kSide) {
        products = fmaf(values[s], row[t], products);
      }
    }
    sums.taps[m * Traits::kWindow + kw] += products;
  }
}

// What a row of src gives a row of dst by the row `m` of taps.
template <typename Traits>
__device__ __forceinline__ void add_flat_row(
    float (&result)[Traits::kSide],
    const float (&row)[Traits::kSide],
    const float (&taps)[Traits::kTaps],
    int m) {
  add_plane_row<Traits::kWindow>(
      result, row, m >= Traits::kOwnRow, [&](int kw) { return taps[m * Traits::kWindow + kw]; });
}

// A march over the lane's rows: of dst, which is src's place or the input's, where kData, and of the
// weight's gradient where kWeight.
template <typename Traits>
__device__ __forceinline__ void march_flat(
    FlatSums<Traits>& sums,
    const float (&taps)[Traits::kTaps],
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* input,
    float begin,
    const FlatPart<Traits>& part) {
  constexpr int kSide = Traits::kSide;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kReach = Traits::kReach;
  constexpr bool kData = Traits::kData;
  constexpr bool kWeight = Traits::kWeight;
  constexpr int kHeld = Traits::kHeld;
  float rows[kHeld][kSide];
  const auto read_src = [&](int i) {
    if (i >= Traits::kFirst && i < Traits::kEnd) {
      read_flat_row<Traits>(rows[i % kHeld], src + part.first + (i - kReach) * part.next);
    }
  };
  float values[2][kSide]; // this row of the input, and the next
#pragma unroll
  for (int i = 0; i < (Traits::kParts == 1 ? Traits::kEnd : kWindow); ++i) {
    read_src(i);
  }
  if constexpr (kWeight) {
    read_flat_row<Traits>(values[0], input + part.first);
  }
  if constexpr (kData && !kWeight && Traits::kParts > 1) {
    __syncwarp(); // the other half of the plane has read its first rows, where results go
  }
  float bias = 0.0f;
#pragma unroll
  for (int o = 0; o < Traits::kRows; ++o) {
    if constexpr (Traits::kParts > 1) {
      read_src(o + kWindow);
    }
    if (kWeight && o + 1 < Traits::kRows) {
      read_flat_row<Traits>(values[(o + 1) % 2], input + part.first + (o + 1) * part.next);
    }
    if constexpr (kWeight) {
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kSide; ++t) {
        sum += rows[(o + kReach) % kHeld][t];
      }
      add_flat_bias<Traits>(sums, bias, sum);
    }
    float result[kSide];
#pragma unroll
    for (int t = 0; t < kSide; ++t) {
      result[t] = begin;
    }
#pragma unroll
    for (int m = 0; m < kWindow; ++m) {
      if (o + m < Traits::kFirst || o + m >= Traits::kEnd) {
        continue;
      }
      const float (&row)[kSide] = rows[(o + m) % kHeld];
      if constexpr (kWeight) {
        add_flat_products<Traits>(sums, values[o % 2], row, m);
      }
      if constexpr (kData) {
        add_flat_row<Traits>(result, row, taps, m);
      }
    }
    if constexpr (kData) {
      write_flat_row<Traits>(dst + part.first + o * part.next, result);
    }
  }
  if constexpr (kWeight) {
    sums.bias += bias;
  }
}

// The same with a row of src read again for each row of taps, so that the code is short.
template <typename Traits>
__device__ __forceinline__ void march_flat_rolled(
    FlatSums<Traits>& sums,
    const float (&taps)[Traits::kTaps],
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* input,
    float begin,
    const FlatPart<Traits>& part) {
  constexpr int kSide = Traits::kSide;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kReach = Traits::kReach;
  constexpr bool kData = Traits::kData;
  constexpr bool kWeight = Traits::kWeight;
  float bias = 0.0f;
  src += part.first - kReach * part.next;
  input += part.first;
  dst += part.first;
#pragma unroll 1
  for (int o = 0; o < Traits::kRows; ++o) {
    float values[kSide];
    if constexpr (kWeight) {
      read_flat_row<Traits>(values, input);
    }
    float result[kSide];
#pragma unroll
    for (int t = 0; t < kSide; ++t) {
      result[t] = begin;
    }
    float rows[2][kSide];
    read_flat_row<Traits>(rows[0], src);
#pragma unroll
    for (int m = 0; m < kWindow; ++m) {
      if (m + 1 < kWindow) {
        // The last row that exists instead of those that do not.
        const int ahead = m < kReach ? m + 1 : min(m + 1, Traits::kEnd - 1 - o);
        read_flat_row<Traits>(rows[(m + 1) % 2], src + ahead * part.next);
      }
      if (o + m >= Traits::kFirst && o + m < Traits::kEnd) {
        const float (&row)[kSide] = rows[m % 2];
        if (kWeight && m == kReach) {
          float sum = 0.0f;
#pragma unroll
          for (int t = 0; t < kSide; ++t) {
            sum += row[t];
          }
          add_flat_bias<Traits>(sums, bias, sum);
        }
        if constexpr (kWeight) {
          add_flat_products<Traits>(sums, values, row, m);
        }
        if constexpr (kData) {
          add_flat_row<Traits>(result, row, taps, m);
        }
      }
    }
    if constexpr (kData) {
      write_flat_row<Traits>(dst, result);
    }
    src += part.next;
    input += part.next;
    dst += part.next;
  }
  if constexpr (kWeight) {
    sums.bias += bias;
  }
}

// Writes the sums of a channel, those of the halves of its plane added up, to a partial.
template <typename Traits>
__device__ __forceinline__ void write_flat_sums(
    float* to,
    FlatSums<Traits>& sums,
    const FlatPart<Traits>& part,
    bool exists,
    int channels) {
  constexpr int kWindow = Traits::kWindow;
  using Fold = typename Traits::Fold;
  const int lane = threadIdx.x;
  if constexpr (Traits::kParts > 1) {
#pragma unroll
    for (int kh = 0; kh < kWindow / 2; ++kh) {
#pragma unroll
      for (int kw = 0; kw < kWindow; ++kw) {
        float& low = sums.taps[kh * kWindow + kw];
        float& high = sums.taps[(kWindow - 1 - kh) * kWindow + kw];
        const float first = low;
        low = part.upwards ? high : low;
        high = part.upwards ? first : high;
      }
    }
    sums.bias += __shfl_xor_sync(0xffffffffu, sums.bias, 1);
  }
  Fold::fold(sums.taps, lane);
  if (!exists) {
    return;
  }
#pragma unroll
  for (int i = 0; i < Fold::kKept; ++i) {
    const int k = Fold::index_of(i, lane);
    if (k >= 0) {
      // What lies below an element of the input belongs to an earlier row of taps.
      to[((kWindow - 1 - k / kWindow) * kWindow + k % kWindow) * channels] = sums.taps[i];
    }
  }
  if (lane % Traits::kParts == 0) {
    write_bias(to + Traits::kTaps * channels, channels, sums.bias);
  }
}

// The tiles of a warp one after the other: images of a task, then its next task.
struct FlatCursor {
  int task;
  int image = 0;
  int end = 0;

  __device__ __forceinline__ FlatCursor(const FlatPlanes& p, int first) : task(first) {
    find_images(p);
  }

  __device__ __forceinline__ void find_images(const FlatPlanes& p) {
    image = task / p.groups * p.images;
    end = min(image + p.images, p.batch);
  }

  __device__ __forceinline__ void advance(const FlatPlanes& p, int step) {
    if (++image == end) {
      task += step;
      find_images(p);
    }
  }
};

// src: the input of a forward, else grad_output. dst only where kData, input and partial only where kWeight.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void flat_planes_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ FlatPlanes p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kStages = Traits::kStages;
  extern __shared__ float4 shared[];
  const int warp = threadIdx.y;
  char* const buffers =
      reinterpret_cast<char*>(shared) + Traits::kHead + warp * (kStages * Traits::kStageBytes);
  const WarpRuns<kStages> runs(
      reinterpret_cast<char*>(shared) + warp * WarpRuns<kStages>::kBarrierBytes);
  const FlatPart<Traits> part(threadIdx.x);
  const int step = gridDim.x * Traits::kWarps;

  // A tile in device memory, and its bytes.
  const auto place_of = [&](int group, int image) {
    return (image * p.channels + group * Traits::kPlanes) * Traits::kPixels;
  };
  const auto bytes_of = [&](int group) {
    return min(Traits::kPlanes, p.channels - group * Traits::kPlanes) * Traits::kPlaneBytes;
  };
  FlatCursor asked(p, blockIdx.x * Traits::kWarps + warp);
  const auto load = [&](int stage) {
    if (asked.task < p.tasks) {
      const int group = asked.task % p.groups;
      const int place = place_of(group, asked.image);
      const int bytes = bytes_of(group);
      char* const to = buffers + stage * Traits::kStageBytes;
      runs.expect(stage, Traits::kWeight ? 2 * bytes : bytes);
      runs.load(stage, to, src + place, bytes);
      if constexpr (Traits::kWeight) {
        runs.load(stage, to + Traits::kTileBytes, input + place, bytes);
      }
      asked.advance(p, step);
    }
    runs.commit();
  };
  FlatCursor at = asked;
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    load(i);
  }

  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  while (at.task < p.tasks) {
    const int task = at.task;
    const int group = task % p.groups;
    const int channel = group * Traits::kPlanes + part.plane;
    const bool exists = channel < p.channels;
    float taps[kTaps];
    float begin = 0.0f;
    if constexpr (Traits::kData) {
      const int of = exists ? channel : 0;
      load_flat_taps<Traits>(taps, weight + of * kTaps, part.upwards, p.flip);
      begin = bias ? static_cast<float>(bias[of]) : 0.0f;
    }
    FlatSums<Traits> sums;
#pragma unroll 1
    for (; at.task == task; at.advance(p, step)) {
      scalar_t* const sources = reinterpret_cast<scalar_t*>(buffers + stage * Traits::kStageBytes);
      scalar_t* const inputs = sources + Traits::kTileBytes / sizeof(scalar_t);
      scalar_t* const results = Traits::kApart ? inputs : sources;
      runs.wait(stage, parity);
      if constexpr (Traits::kRolled) {
        march_flat_rolled<Traits>(sums, taps, results, sources, inputs, begin, part);
      } else {
        march_flat<Traits>(sums, taps, results, sources, inputs, begin, part);
      }
      if constexpr (Traits::kData) {
        runs.store(dst + place_of(group, at.image), results, bytes_of(group));
        runs.wait_sent();
      } else {
        __syncwarp();
      }
      load(stage);
      stage += 1;
      if (stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if constexpr (Traits::kWeight) {
      float* const to = partial +
          static_cast<int64_t>(task / p.groups) * (kTaps + kBiasRows) * p.channels + channel;
      write_flat_sums<Traits>(to, sums, part, exists, p.channels);
    }
  }
  if constexpr (Traits::kData) {
    runs.finish();
  }
}

// A plan, and as many blocks as are resident.
struct FlatPlan {
  FlatPlanes planes;
  int64_t parts; // of the images, for each of which there is a partial
  unsigned int blocks;
};

// False where the planes of an image are no run of whole vectors. Tasks have as many images as end soonest:
// by the instructions of a tile and of a task, for each scheduler and for each warp, and what it takes to add
// up a partial.
template <typename Traits>
bool plan_flat_planes(FlatPlan& plan, const Params& p, bool flip) {
  constexpr int kPasses = (Traits::kData ? 1 : 0) + (Traits::kWeight ? 1 : 0);
  constexpr int64_t kTile = Traits::kRows * Traits::kSide * Traits::kTaps * kPasses + 500;
  constexpr int64_t kTask = 150 + 4 * Traits::kTaps;
  constexpr int64_t kPart = Traits::kWeight ? 64 : 0;
  constexpr int64_t kMostImages = 16; // for the sake of the sums' rounding error
  if (p.channels * Traits::kPlaneBytes % kBulkBytes != 0 || !has_shared(Traits::kShared)) {
    return false;
  }
  const int64_t blocks =
      resident_blocks(flat_planes_kernel<Traits>, Traits::kThreads, Traits::kShared);
  if (blocks == 0) {
    return false;
  }
  FlatPlanes& f = plan.planes;
  f = {};
  f.batch = p.batch;
  f.channels = p.channels;
  f.groups = divide_up(p.channels, Traits::kPlanes);
  f.flip = flip;
  const int64_t warps = blocks * Traits::kWarps;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t images = 1; images <= std::min(p.batch, kMostImages); ++images) {
    const int64_t parts = divide_up(p.batch, images);
    const int64_t of_scheduler = divide_up(parts * f.groups * Traits::kBlocks, warps);
    const int64_t rounds = divide_up(parts * f.groups, warps);
    const int64_t time =
        (of_scheduler + rounds * Traits::kBlocks) * (images * kTile + kTask) + parts * kPart;
    if (time < least) {
      least = time;
      f.images = images;
      plan.parts = parts;
    }
  }
  f.tasks = plan.parts * f.groups;
  plan.blocks = std::min(divide_up(f.tasks, Traits::kWarps), blocks);
  return true;
}

// The kernels that are faster than others anywhere: in float32 patches take the forward of 7 x 7 on planes of
// 7 x 7, in 16 bit tensor cores what is left out here (64 images of 384@14 k3 forward 14 us there, 14.5 here).
template <typename Traits>
constexpr bool flat_planes_exist() {
  if (sizeof(typename Traits::scalar_t) == 4) {
    return Traits::kWindow <= 5 || Traits::kParts > 1 || Traits::kWeight;
  }
  return Traits::kWeight ? Traits::kWindow == 3 : Traits::kParts == 1 && Traits::kWindow <= 5;
}

// Calls launch with the traits of the planes and the window; false where there are none.
template <bool kData, bool kWeight, typename Launch>
bool with_flat_planes(const Params& p, Type type, const Launch& launch) {
  return with_scalar_type(type, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    return with_small_plane(p, [&](auto side, auto window) {
      constexpr int kSide = decltype(side)::value;
      using Traits = FlatPlanesTraits<scalar_t, kSide, decltype(window)::value, kData, kWeight>;
      if constexpr (flat_planes_exist<Traits>()) {
        return launch(Traits());
      } else {
        return false;
      }
    });
  });
}

// Whether the planes and windows are as these kernels have them.
inline bool flat_planes_take(const Params& p, std::initializer_list<const Operand*> tensors) {
  return keeps_size_of_planes(p) && p.multiplier == 1 && p.dilation_height == 1 &&
      p.dilation_width == 1 && p.input_height == p.input_width &&
      p.kernel_height == p.kernel_width && p.padding_height == p.kernel_height / 2 &&
      p.padding_width == p.padding_height && march_fits_32_bits(p) && p.batch > 0 &&
      std::all_of(tensors.begin(), tensors.end(), [](const Operand* tensor) {
           return begins_a_run(*tensor);
         });
}

namespace {

bool flat_planes_pass(const ForwardPass& pass, const Params& p, bool flip) {
  if (!flat_planes_take(p, {&pass.dst, &pass.src})) {
    return false;
  }
  return with_flat_planes<true, false>(p, pass.src.type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    FlatPlan plan;
    if (!plan_flat_planes<Traits>(plan, p, flip)) {
      return false;
    }
    launch_kernel(
        flat_planes_kernel<Traits>,
        plan.blocks,
        dim3(kWarpSize, Traits::kWarps),
        Traits::kShared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        nullptr,
        pass.src.const_data_ptr<scalar_t>(),
        nullptr,
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        plan.planes);
    return true;
  });
}

} // namespace

bool flat_planes_forward(const ForwardPass& pass, const Params& p) {
  return flat_planes_pass(pass, p, pass.grad_input);
}

namespace {

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& p) {
  using scalar_t = typename Traits::scalar_t;
  FlatPlan plan;
  if (!plan_flat_planes<Traits>(plan, p, true)) {
    return false;
  }
  const Operand partial = empty_partial(plan.parts, p);
  launch_kernel(
      flat_planes_kernel<Traits>,
      plan.blocks,
      dim3(kWarpSize, Traits::kWarps),
      Traits::kShared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      nullptr,
      plan.planes);
  add_partials(pass.grad_weight, pass.grad_bias, partial, plan.parts, p);
  return true;
}

} // namespace

bool flat_planes_backward(const BackwardPass& pass, const Params& p) {
  const Operand& result = pass.grad_input.defined() ? pass.grad_input : pass.input;
  if (!flat_planes_take(p, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto with_traits = [&](auto traits) {
    return launch<decltype(traits)>(pass, p);
  };
  if (pass.grad_input.defined()) {
    return with_flat_planes<true, true>(p, pass.input.type(), with_traits);
  }
  return with_flat_planes<false, true>(p, pass.input.type(), with_traits);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
