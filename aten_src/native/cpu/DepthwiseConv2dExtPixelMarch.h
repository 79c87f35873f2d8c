// Windows of 3 x 3 over pixels, of depthwise_conv2d_ext's forward and grad_input
// (DepthwiseConv2dExtTiles.h), one or two rows of results at once.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtTileWork.h>
#include <algorithm>
#include <array>
#include <utility>

namespace at::native {
namespace {

// A march along one or two rows of results, column by column of the three or four rows of pixels that they
// meet: each pixel, once loaded, is multiplied into all results that have a tap for it. A result is three
// columns' sums, those of the first two one chain of additions that begins with the bias, that of the last
// another. So each row has but two sums between columns. With two rows of two vectors they, the weights of
// two taps across and what a column needs for itself are AVX-512's registers; the other weights are operands
// in memory. None of the sums may be: their stores would wait in the core's buffer behind those of results,
// which wait for memory. fp32, one thread, 384@14 N=16 517 us with ten such stores a column, 369 without.
//
// The rows of pixels from kFirstRow to kLastRow are inside the image. All indices are constants from the
// start: those of loops are too late for GCC 12, which then keeps sums in memory.
//
// fp32, fp16 and bf16, one thread, a row at a time by a march that kept all weights in registers, and so:
// AVX-512, 384@14 21.0, 20.2 and 23.8 us, 17.3, 17.8 and 19.7, N=16 397, 290 and 328, 381, 252 and 256,
// 32@112 N=16 1,935, 1,257 and 1,488, 1,917, 1,121 and 1,201. AVX2, where tiles of 4 were faster than a
// march of that kind, fp32 384@14 44 and 25, N=16 638 and 459, 144@56 226 and 166.
template <typename scalar_t, int kVectors, int kRows, int kFirstRow, int kLastRow>
class PixelMarch {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int kLanes = Vec::size();
  static constexpr int kSide = 3;
  static constexpr int kSums = kRows * kVectors;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  static constexpr int kHeld = kSide * (kSide - 1) * kVectors;
  // In each column: [taps down, and what sums begin with][vectors][lanes].
  using Read = std::array<acc_t, (kSide + 1) * kVectors * kLanes>;

 public:
  static C10_NOINLINE void run(const Tiles<scalar_t>& t, TilePlace at, Range results) {
    alignas(kCacheLine) Read read;
    const acc_t* const scales = t.weights + at.weights + t.groups[0].weight;
    DEPTHWISE_UNROLL for (int v = 0; v < kVectors; ++v) {
      DEPTHWISE_UNROLL for (int c = 0; c < kSide; ++c) {
        Vec::loadu(scales + t.cross[c].weight + 2 * t.groups[0].weight_step + v * t.block_step)
            .store(&read[(c * kVectors + v) * kLanes]);
      }
      Vec::loadu(t.start + start_of<acc_t>(at) + v * kLanes)
          .store(&read[(kSide * kVectors + v) * kLanes]);
    }
    PixelMarch(t, at, results, read.data(), Numbers<kHeld>(), Numbers<kSums>()).march();
  }

 private:
  template <int... h, int... s>
  C10_ALWAYS_INLINE PixelMarch(
      const Tiles<scalar_t>& t,
      TilePlace at,
      Range results,
      const acc_t* read,
      std::integer_sequence<int, h...> /*held*/,
      std::integer_sequence<int, s...> /*sums*/)
      : ahead_(at.ahead),
        stream_(t.stream),
        read_(read),
        columns_(results.size() + kSide - 1),
        line_(t.first_line + t.groups[0].line + results.begin * t.line_step),
        lines_end_(t.lines_end),
        line_step_(t.line_step),
        pixel_(t.source + t.groups[0].source + t.cross[1].source + at.lane + line_),
        row_before_(t.cross[0].source - t.cross[1].source),
        row_step_(t.cross[2].source - t.cross[1].source),
        target_(t.target + results.begin * t.target_step + at.lane),
        target_step_(t.target_step),
        second_row_(t.second_row),
        held_{held_in_register(
            Vec::loadu(
                t.weights + at.weights + t.groups[0].weight +
                t.cross[h / kVectors / (kSide - 1)].weight +
                h / kVectors % (kSide - 1) * t.groups[0].weight_step +
                h % kVectors * t.block_step))...},
        older_{start(s % kVectors)...},
        newer_{start(s % kVectors)...},
        last_{start(s % kVectors)...},
        begun_{start(s % kVectors)...} {}

  C10_ALWAYS_INLINE void march() {
    // The columns inside the image, found without divisions.
    int64_t begin = 0;
    while (begin < columns_ && line_ + begin * line_step_ < 0) {
      ++begin;
    }
    int64_t end = columns_;
    while (end > begin && line_ + (end - 1) * line_step_ >= lines_end_) {
      --end;
    }
    pass(begin);
    pixel_ += begin * line_step_;
    while (column_ < std::min<int64_t>(end, kSide - 1)) {
      add<false>(Numbers<kVectors>());
    }
    while (column_ < end) {
      add<true>(Numbers<kVectors>());
    }
    pass(columns_);
  }

  C10_ALWAYS_INLINE Vec start(int v) const {
    return Vec::loadu(read_ + (kSide * kVectors + v) * kLanes);
  }

  // The columns up to `end` are outside.
  C10_ALWAYS_INLINE void pass(int64_t end) {
    for (; column_ < end; ++column_) {
      if (column_ >= kSide - 1) {
        store(older_);
      }
      move_on(Numbers<kSums>());
    }
  }
  template <int... s>
  C10_ALWAYS_INLINE void move_on(std::integer_sequence<int, s...> /*sums*/) {
    ((older_[s] = newer_[s]), ...);
    ((newer_[s] = start(s % kVectors)), ...);
  }

  // The next column, which is inside, and which results begin with or end too.
  template <bool kEnds, int... v>
  C10_ALWAYS_INLINE void add(std::integer_sequence<int, v...> /*vectors*/) {
    ahead_.ask_for_part();
    read_ = held_in_register(read_); // no more registers than there are
    (add_vector<kEnds, v>(Numbers<kLastRow - kFirstRow + 1>(), Numbers<kRows>()), ...);
    pixel_ += line_step_;
    if constexpr (kEnds) {
      store(last_);
    }
    ++column_;
  }

  template <bool kEnds, int v, int... row, int... r>
  C10_ALWAYS_INLINE void add_vector(
      std::integer_sequence<int, row...> /*rows of pixels*/,
      std::integer_sequence<int, r...> rows) {
    (add_pixel<kEnds, v, kFirstRow + row>(rows), ...);
    (finish<kEnds, r * kVectors + v>(), ...);
  }

  template <bool kEnds, int v, int kRow, int... r>
  C10_ALWAYS_INLINE void add_pixel(std::integer_sequence<int, r...> /*rows*/) {
    const Vec values =
        held_in_register(load<v>(pixel_ + (kRow == 0 ? row_before_ : (kRow - 1) * row_step_)));
    (multiply<kEnds, v, kRow, r>(values), ...);
  }

  template <int v>
  static C10_ALWAYS_INLINE Vec load(const scalar_t* pixel) {
    if constexpr (kVectors == 2) {
      return load_of_two(pixel, v, kLanes);
    } else {
      return load_lanes(pixel);
    }
  }

  template <bool kEnds, int v, int kRow, int r>
  C10_ALWAYS_INLINE void multiply(const Vec& values) {
    constexpr int c = kRow - r; // the tap down
    if constexpr (c >= 0 && c < kSide) {
      constexpr int i = r * kVectors + v;
      constexpr bool kBegins = kRow == std::max(r, kFirstRow);
      if constexpr (kEnds) {
        const Vec weight = Vec::loadu(read_ + (c * kVectors + v) * kLanes);
        last_[i] = kBegins ? values * weight : vec::fmadd(values, weight, last_[i]);
      }
      newer_[i] = vec::fmadd(values, held_[(c * (kSide - 1) + 1) * kVectors + v], newer_[i]);
      begun_[i] =
          vec::fmadd(values, held_[c * (kSide - 1) * kVectors + v], kBegins ? start(v) : begun_[i]);
    }
  }

  template <bool kEnds, int i>
  C10_ALWAYS_INLINE void finish() {
    if constexpr (kEnds) {
      last_[i] = older_[i] + last_[i];
    }
    older_[i] = newer_[i];
    newer_[i] = begun_[i];
  }

  C10_ALWAYS_INLINE void store(const Vec* sums) {
    if (stream_) {
      stream_vectors<kVectors>(sums, target_);
      if constexpr (kRows == 2) {
        stream_vectors<kVectors>(sums + kVectors, target_ + second_row_);
      }
    } else {
      store_vectors<kVectors>(sums, target_);
      if constexpr (kRows == 2) {
        store_vectors<kVectors>(sums + kVectors, target_ + second_row_);
      }
    }
    target_ += target_step_;
  }

  AheadParts ahead_;
  bool stream_;
  const acc_t* read_; // in each column
  int64_t columns_;
  int64_t line_; // of column 0
  int64_t lines_end_;
  int64_t line_step_;
  const scalar_t* pixel_; // of the next column, in row 1
  // From row 1 to row 0, and to the next; of a single row of results with strides the former may be any.
  int64_t row_before_;
  int64_t row_step_;
  scalar_t* target_; // of the next result
  int64_t target_step_;
  int64_t second_row_;
  int64_t column_ = 0;
  Vec held_[kHeld]; // [taps down][first taps across][vectors]
  Vec older_[kSums]; // [rows][vectors] of results that want one more column
  Vec newer_[kSums]; // two
  Vec last_[kSums];
  Vec begun_[kSums];
};

} // namespace
} // namespace at::native
