// Gradients of the weight and the bias of depthwise_conv2d_ext by blocks of packed lines, for windows of 5
// and more at a stride of 1.
//
// Lanes are channels: of a vector of them, some rows are copied next to each other, pixels of [N, H, W, C] as
// they are, planes of [N, C, H, W] transposed. A block is some columns of grad_output and the columns of
// the input that they meet. Of a row of it all products are known when compiled: 7 by 7 columns are 49
// multiply-adds for 14 loads, into 13 sums, one for each tap of a kernel row, which stay in registers over all
// rows. Blocks are narrow, so that all of their rows are in the first-level cache for all kernel rows.
#pragma once

#include <ATen/native/cpu/depthwise_conv2d_ext/GradWeight.h>

namespace at::native {
namespace {

// Columns of grad_output to a block of a short window, whose sums are those of a kernel row, and columns of
// grad_output and of the input to one of a wide window, which has 2 * columns - 1 sums. With 16 registers 7
// sums, 7 gradients and a value of the input are what there is room for.
constexpr int kShortBlock = 7;
#if defined(__x86_64__) && !defined(CPU_CAPABILITY_AVX512)
constexpr int kWideBlock = 4;
constexpr int kChainsWanted = 1;
#else
constexpr int kWideBlock = 7;
constexpr int kChainsWanted = 8; // a multiply-add takes 4 cycles, and two begin in each
#endif
constexpr int kWideWindow = 13;

// The columns of a block of lines that begins with column 0 of grad_output.
template <typename acc_t>
struct LineBlock {
  const acc_t* input; // of row first_input_row
  const acc_t* grad; // of the first of `rows`
  int64_t input_pitch; // values from line to line
  int64_t grad_pitch;
  Range rows; // of grad_output
  int64_t first_input_row;
  int64_t first_tap; // of the sums in registers; some may be no taps of the window
  acc_t* sums; // [taps][lanes]
};

// What is in registers: the sums of kTaps taps, twice where they would wait for each other.
// Column i of the input and column o of grad_output meet with tap i - o + kOrigin.
template <typename acc_t, int kColumns, int kTaps, int kOrigin>
struct BlockSums {
  using Vec = Vectorized<acc_t>;
  static constexpr int kLanes = Vec::size();
  static constexpr int kSets = std::max(1, std::min(2, (kChainsWanted + kTaps - 1) / kTaps));
  using Columns = std::make_integer_sequence<int, kColumns>;
  using Taps = std::make_integer_sequence<int, kTaps>;
  Vec sums[kSets * kTaps];
  Vec grads[kColumns];

  C10_ALWAYS_INLINE BlockSums()
      : BlockSums(std::make_integer_sequence<int, kSets * kTaps>(), Columns()) {}
  // Members that begin as something, as in ProductSums.
  template <int... n, int... o>
  C10_ALWAYS_INLINE BlockSums(
      std::integer_sequence<int, n...> /*sums*/,
      std::integer_sequence<int, o...> /*columns*/)
      : sums{(void(n), Vec(acc_t(0)))...}, grads{(void(o), Vec(acc_t(0)))...} {}

  template <int... o>
  C10_ALWAYS_INLINE void load_grads(
      const acc_t* grad,
      std::integer_sequence<int, o...> /*columns*/) {
    ((grads[o] = Vec::loadu(grad + o * kLanes)), ...);
  }

  template <int i, int o>
  C10_ALWAYS_INLINE void multiply(const Vec& value) {
    constexpr int kTap = i - o + kOrigin;
    if constexpr (kTap >= 0 && kTap < kTaps) {
      constexpr int kSum = o % kSets * kTaps + kTap;
      sums[kSum] = vec::fmadd(value, grads[o], sums[kSum]);
    }
  }

  template <int i, int... o>
  C10_ALWAYS_INLINE void add_column(
      const acc_t* input,
      std::integer_sequence<int, o...> /*columns*/) {
    const Vec value = held_in_register(Vec::loadu(input + i * kLanes));
    (multiply<i, o>(value), ...);
  }

  template <int kFirst, int... i>
  C10_ALWAYS_INLINE void add_row(
      const acc_t* input,
      const acc_t* grad,
      std::integer_sequence<int, i...> /*input columns*/) {
    load_grads(grad, Columns());
    (add_column<kFirst + i>(input, Columns()), ...);
  }

  template <int t>
  C10_ALWAYS_INLINE void store_tap(acc_t* target, int64_t first_tap, int64_t taps) const {
    if (first_tap + t >= 0 && first_tap + t < taps) {
      Vec sum = sums[t];
      if constexpr (kSets == 2) {
        sum = sum + sums[kTaps + t];
      }
      acc_t* const place = target + (first_tap + t) * kLanes;
      (Vec::loadu(place) + sum).store(place);
    }
  }
  template <int... t>
  C10_ALWAYS_INLINE void store(
      acc_t* target,
      int64_t first_tap,
      int64_t taps,
      std::integer_sequence<int, t...> /*taps*/) const {
    (store_tap<t>(target, first_tap, taps), ...);
  }
};

// Of columns kFirst to kEnd of the input.
template <typename acc_t, int kColumns, int kTaps, int kOrigin, int kFirst, int kEnd>
void add_block(const LineBlock<acc_t>& block, const Params& p, LinesAhead& ahead) {
  for (const auto kh : c10::irange(p.kernel_height)) {
    const int64_t shift = kh - p.padding_height;
    const int64_t begin = std::max(block.rows.begin, -shift);
    const int64_t end = std::min(block.rows.end, p.input_height - shift);
    if (begin >= end) {
      continue;
    }
    const acc_t* grad = block.grad + (begin - block.rows.begin) * block.grad_pitch;
    const acc_t* input = block.input + (begin + shift - block.first_input_row) * block.input_pitch;
    BlockSums<acc_t, kColumns, kTaps, kOrigin> sums;
    auto share = ahead.take(2 * (end - begin));
    for (int64_t row = begin; row < end; ++row) {
      sums.template add_row<kFirst>(input, grad, std::make_integer_sequence<int, kEnd - kFirst>());
      input += block.input_pitch;
      grad += block.grad_pitch;
      share.ask();
      share.ask();
    }
    sums.store(
        block.sums + kh * p.kernel_width * Vectorized<acc_t>::size(),
        block.first_tap,
        p.kernel_width,
        std::make_integer_sequence<int, kTaps>());
  }
}

template <typename acc_t>
using BlockFunction = void (*)(const LineBlock<acc_t>&, const Params&, LinesAhead&);

// A short window with as much padding as it reaches to each side, or with zeros around lines.
template <typename acc_t, int kTaps>
BlockFunction<acc_t> short_block_function(bool first, bool last) {
  constexpr int kReach = kTaps / 2;
  constexpr int kEnd = kShortBlock + kReach;
  if (first) {
    return last ? &add_block<acc_t, kShortBlock, kTaps, kReach, 0, kShortBlock>
                : &add_block<acc_t, kShortBlock, kTaps, kReach, 0, kEnd>;
  }
  return last ? &add_block<acc_t, kShortBlock, kTaps, kReach, -kReach, kShortBlock>
              : &add_block<acc_t, kShortBlock, kTaps, kReach, -kReach, kEnd>;
}

// Pixels of windows of 5 and 7 are faster where they are but for planes of so many columns: 240@28 k5 81 us and
// 112 as lines, 192@28 k7 132 and 130, but 384@14 k7 87 and 59, 1152@7 k5 67 and 34.
constexpr int64_t kLinePixels5 = 7;
constexpr int64_t kLinePixels7 = 14;

// How lines are packed and cut into blocks.
struct LineForm {
  explicit LineForm(const Params& p)
      : wide(p.kernel_width >= kWideWindow), columns(wide ? kWideBlock : kShortBlock) {
    const int64_t width = round_up(p.output_width, columns);
    blocks = width / columns;
    exact = !wide && p.padding_width == p.kernel_width / 2 && p.input_width % columns == 0;
    if (wide) {
      input_blocks = ceil_div(p.input_width, columns);
    }
    lead = wide || exact ? 0 : p.padding_width;
    // A short window's last block reads what follows it, of the next line, or behind the last one.
    input_pitch = wide ? input_blocks * columns : p.input_width + lead;
    grad_pitch = width;
    tail = wide ? 0 : width + p.kernel_width;
    input_pitch = spread_out(input_pitch);
    grad_pitch = spread_out(grad_pitch);
  }
  // Lines that all begin in the same few places of the first-level cache would push each other out. Planes
  // are transposed at once where nothing is between lines.
  static int64_t spread_out(int64_t pitch) {
    constexpr int64_t kSamePlaces = 32;
    return pitch % kSamePlaces == 0 ? pitch + 1 : pitch;
  }
  bool wide;
  bool exact; // nothing but the image is met
  int64_t columns;
  int64_t blocks;
  int64_t input_blocks = 0;
  int64_t lead; // zeros before a line
  int64_t input_pitch; // pixels
  int64_t grad_pitch;
  int64_t tail; // zeros behind all lines
};

// Bytes of packed lines, and rows of grad_output at most: a sum's chain of additions is kShortBlock or
// kWideBlock times as long.
constexpr int64_t kLineBytes = 256 << 10;
constexpr int64_t kLineRows = 56;
// Terms that are added up before they are in double, in chains that are shorter by themselves.
constexpr int64_t kLineTerms = 4096;
// Wider rows than these are faster as planes with windows of 5 (NCHW, 64 channels, N=1, in turns: 28 x 28
// 49 -> 34 us, 40 x 40 80 -> 75, 48 x 48 89 -> 103, 64 x 64 159 -> 198), of 7 in 16-bit types (96@56 N=16 bf16
// 5.4 ms and 5.8), and where registers are few with wide ones (AVX2, 128@56 k31 9.8 ms and 10.6).
constexpr int64_t kLineRowBytes = 160;
// Short windows of so many taps are lines where rows are wide too.
constexpr int64_t kManyTaps = 64;
// Longer ones are as fast as planes, with less memory.
constexpr int64_t kLongestLine = 512;
template <typename scalar_t>
bool are_lines(const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  if (kVectorsAreArrays || p.multiplier != 1 || p.stride_height != 1 || p.stride_width != 1 ||
      p.dilation_height != 1 || p.dilation_width != 1 || p.kernel_height < 5) {
    return false;
  }
  const bool is_short = p.kernel_width == 5 || p.kernel_width == 7;
  if (!is_short && p.kernel_width < kWideWindow) {
    return false;
  }
  const LineForm form(p);
  if (form.blocks * form.columns * 4 > p.output_width * 5) { // most are zeros
    return false;
  }
  const bool narrow = p.output_width * static_cast<int64_t>(sizeof(acc_t)) <= kLineRowBytes;
  const bool large = form.wide ? narrow || !kFewRegisters : p.kernel_size() >= kManyTaps;
  if (p.channels_last) {
    return large || p.output_width <= (p.kernel_width == 5 ? kLinePixels5 : kLinePixels7);
  }
  const auto is_transposed = [](int64_t width, int64_t pitch) {
    return width >= kLanes || pitch == width;
  };
  const bool seven =
      p.kernel_width == 7 && std::is_same_v<scalar_t, acc_t> && p.output_width <= kLongestLine;
  return is_transposed(p.input_width, form.input_pitch) &&
      is_transposed(p.output_width, form.grad_pitch) && (large || seven || narrow);
}

template <typename scalar_t>
class LineGradWeight {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int64_t kLanes = Vec::size();

 public:
  explicit LineGradWeight(const GradWeightCall<scalar_t>& call)
      : call_(call), form_(call.p), vectors_(call.p.channels_last ? kPairVectors<scalar_t> : 1) {
    const Params& p = call.p;
    const int64_t line = (form_.input_pitch + form_.grad_pitch) * kLanes * sizeof(acc_t);
    const int64_t wanted = std::max(kLineBytes / line - p.kernel_height / 2, p.kernel_height);
    const int64_t bands = ceil_div(p.output_height, std::min(wanted, kLineRows));
    band_ = ceil_div(p.output_height, bands);
    input_band_ = std::min(p.input_height, band_ + p.kernel_height - 1);
  }

  // A task is some vectors of channels of some bands of rows.
  void run() {
    const Params& p = call_.p;
    const int64_t image_bands = ceil_div(p.output_height, band_);
    const int64_t bands = p.batch * image_bands;
    const int64_t part = vectors_ * kLanes;
    const int64_t parts = ceil_div(p.channels, part);
    const int64_t most = p.batch * p.output_height * p.output_width / (kLineTerms / 2) + 1;
    const int64_t chunks = std::min(chunk_count(bands, parts), most);
    PartialSums<kLanes> partial(chunks > 1 ? chunks : 0, p);
    const int64_t vector_sums = partial.rows * kLanes;
    const auto grain =
        grain_of(ceil_div(bands, chunks) * band_ * p.output_width * p.kernel_size() * part);
    const auto place_of = [&](int64_t task, int64_t band) -> Place {
      const int64_t row = band % image_bands * band_;
      return {
          band / image_bands,
          {row, std::min(row + band_, p.output_height)},
          {task % parts * part, std::min(task % parts * part + part, p.channels)}};
    };
    in_parallel(parts * chunks, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this);
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t last = bands * (chunk + 1) / chunks;
        int64_t terms = 0;
        bool in_double = false;
        const auto for_each_vector = [&](const Range& filters, const auto& visit) {
          for (int64_t c = filters.begin; c < filters.end; c += kLanes) {
            const int64_t v = (c - filters.begin) / kLanes;
            visit(
                scratch.sums.data() + v * vector_sums,
                chunks > 1 ? partial.at(chunk, 0, c) : scratch.totals.data() + v * vector_sums,
                Range{c, std::min(c + kLanes, filters.end)});
          }
        };
        for (int64_t b = bands * chunk / chunks; b < last; ++b) {
          const Place place = place_of(task, b);
          if (b + 1 < last || task + 1 < end) {
            ask_for_rows(
                b + 1 < last ? place_of(task, b + 1)
                             : place_of(task + 1, bands * ((task + 1) / parts) / chunks),
                scratch.ahead);
          } else {
            scratch.ahead.begin({}, {});
          }
          for_each_vector(place.filters, [&](acc_t* sums, double* /*totals*/, Range filters) {
            add_rows({place.image, place.rows, filters}, sums, scratch);
          });
          terms += place.rows.size() * p.output_width;
          if (terms >= kLineTerms && b + 1 < last) {
            for_each_vector(place.filters, [&](acc_t* sums, double* totals, Range /*filters*/) {
              move_sums(sums, totals, vector_sums);
            });
            in_double = true;
            terms = 0;
          }
        }
        for_each_vector(place_of(task, 0).filters, [&](acc_t* sums, double* totals, Range filters) {
          if (chunks == 1 && !in_double) {
            write_filters<kLanes>(call_, sums, filters);
            std::fill_n(sums, vector_sums, acc_t(0));
            return;
          }
          move_sums(sums, totals, vector_sums);
          if (chunks == 1) {
            write_filters<kLanes>(call_, totals, filters);
            std::fill_n(totals, vector_sums, 0);
          }
        });
      }
    });
    finish(call_, partial);
  }

 private:
  struct Scratch {
    explicit Scratch(const LineGradWeight& pass)
        : input((pass.input_band_ * pass.form_.input_pitch + pass.form_.tail) * kLanes),
          grad(pass.band_ * pass.form_.grad_pitch * kLanes),
          sums(pass.vectors_ * (pass.call_.p.kernel_size() + 1) * kLanes),
          totals(pass.vectors_ * (pass.call_.p.kernel_size() + 1) * kLanes),
          planes(pass.plane_values()) {}
    AlignedBuffer<acc_t> input;
    AlignedBuffer<acc_t> grad;
    AlignedBuffer<acc_t> sums; // [taps, bias][lanes]
    AlignedBuffer<double> totals;
    AlignedBuffer<acc_t> planes; // where 16-bit values are converted
    LinesAhead ahead;
  };

  // Rows of grad_output of some filters.
  struct Place {
    int64_t image;
    Range rows;
    Range filters;
  };

  void ask_for_rows(const Place& place, LinesAhead& ahead) const {
    ahead.begin(
        part_of(call_, call_.input, place.image, input_rows(call_.p, place.rows), place.filters),
        part_of(call_, call_.grad, place.image, place.rows, place.filters));
  }

  int64_t plane_values() const {
    if (call_.p.channels_last || std::is_same_v<scalar_t, acc_t>) {
      return 0;
    }
    const int64_t input = input_band_ * call_.p.input_width;
    return kLanes * (std::max(input, band_ * call_.p.output_width) + 2 * kLanes);
  }

  // Copies rows of a tensor, pixels of one vector of channels next to each other.
  void read_rows(
      const scalar_t* tensor,
      int64_t height,
      int64_t width,
      int64_t image,
      Range filters,
      Range rows,
      int64_t pitch,
      acc_t* lines,
      const Scratch& scratch) const {
    const int64_t channels = call_.p.channels;
    const int64_t lanes = filters.size();
    if (call_.p.channels_last) {
      for (const auto row : c10::irange(rows.begin, rows.end)) {
        const scalar_t* const pixels =
            tensor + (image * height + row) * width * channels + filters.begin;
        acc_t* const line = lines + (row - rows.begin) * pitch * kLanes;
        if (lanes == kLanes) {
          for (int64_t i = 0; i < width; ++i) {
            load_lanes(pixels + i * channels).store(line + i * kLanes);
          }
        } else {
          for (int64_t i = 0; i < width; ++i) {
            load_lanes(pixels + i * channels, lanes).store(line + i * kLanes);
          }
        }
      }
      return;
    }
    const scalar_t* const first =
        tensor + ((image * channels + filters.begin) * height + rows.begin) * width;
    const int64_t count = rows.size() * width;
    const acc_t* values = scratch.planes.data();
    int64_t plane_pitch = round_up(count, kLanes) + kLanes;
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      values = first;
      plane_pitch = height * width;
    } else {
      for (const auto lane : c10::irange(lanes)) {
        convert_row(
            first + lane * height * width, count, scratch.planes.data() + lane * plane_pitch);
      }
    }
    if (pitch == width) {
      transpose(values, lanes, count, plane_pitch, lines, kLanes);
      return;
    }
    for (const auto row : c10::irange(rows.size())) {
      transpose(
          values + row * width, lanes, width, plane_pitch, lines + row * pitch * kLanes, kLanes);
    }
  }

  void add_rows(const Place& place, acc_t* sums, Scratch& scratch) const {
    const Params& p = call_.p;
    const Range rows = place.rows;
    read_rows(
        call_.grad,
        p.output_height,
        p.output_width,
        place.image,
        place.filters,
        rows,
        form_.grad_pitch,
        scratch.grad.data(),
        scratch);
    if (call_.grad_bias) {
      add_values(
          scratch.grad.data(),
          kLanes,
          rows.size() * form_.grad_pitch,
          sums + p.kernel_size() * kLanes);
    }
    const Range met = input_rows(p, rows);
    if (!call_.grad_weight || met.begin >= met.end) {
      return;
    }
    read_rows(
        call_.input,
        p.input_height,
        p.input_width,
        place.image,
        place.filters,
        met,
        form_.input_pitch,
        scratch.input.data() + form_.lead * kLanes,
        scratch);
    LineBlock<acc_t> block{
        nullptr,
        nullptr,
        form_.input_pitch * kLanes,
        form_.grad_pitch * kLanes,
        rows,
        met.begin,
        0,
        sums};
    for (const auto b : c10::irange(form_.blocks)) {
      block.grad = scratch.grad.data() + b * form_.columns * kLanes;
      if (!form_.wide) {
        const int64_t column = b * form_.columns + (form_.exact ? 0 : p.kernel_width / 2);
        block.input = scratch.input.data() + column * kLanes;
        const bool first = form_.exact && b == 0;
        const bool last = form_.exact && b + 1 == form_.blocks;
        (p.kernel_width == 5
             ? short_block_function<acc_t, 5>(first, last)
             : short_block_function<acc_t, 7>(first, last))(block, p, scratch.ahead);
        continue;
      }
      for (const auto i : c10::irange(form_.input_blocks)) {
        block.input = scratch.input.data() + i * form_.columns * kLanes;
        block.first_tap = (i - b) * form_.columns + p.padding_width - (form_.columns - 1);
        if (block.first_tap > -(2 * form_.columns - 1) && block.first_tap < p.kernel_width) {
          add_block<acc_t, kWideBlock, 2 * kWideBlock - 1, kWideBlock - 1, 0, kWideBlock>(
              block, p, scratch.ahead);
        }
      }
    }
  }

  GradWeightCall<scalar_t> call_;
  LineForm form_;
  int64_t vectors_; // of a task
  int64_t band_; // rows of grad_output
  int64_t input_band_; // rows of the input that they meet at most
};

template <typename scalar_t>
void grad_weight_of_lines([[maybe_unused]] const GradWeightCall<scalar_t>& call) {
  if constexpr (!kVectorsAreArrays) {
    LineGradWeight<scalar_t>(call).run();
  }
}

} // namespace
} // namespace at::native
