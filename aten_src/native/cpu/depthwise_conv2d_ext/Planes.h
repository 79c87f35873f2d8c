// Forward and grad_input of depthwise_conv2d_ext over planes, [N, C, H, W].
//
// A task is one input plane with the output planes made from it. Its source rows are packed into
// scratch: converted to the arithmetic type, zeros on all sides, and for a strided forward the
// columns of each residue by themselves. After that every pass with any stride and dilation is the
// same loop without borders or steps (Tiles.h), and the packed rows are in the
// first- or second-level cache while each is read once for every column tap. Large planes are
// packed in bands of rows. Results larger than the caches are put together strip by strip and stored past
// them as one run of memory, whose cache lines rows are no whole numbers of.
//
// Zeros around a plane meet finite taps only: a filter with an infinity or a NaN goes through
// exact_plane, which visits nothing but positions inside the image.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Pixels.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Problem.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Tiles.h>
#include <c10/util/SmallVector.h>

namespace at::native {
namespace {

// Bytes of packed rows that a band should not exceed, half of a second-level cache.
constexpr int64_t kBandBytes = 256 << 10;

// Result rows that are computed from one packing of rows of `row_bytes`: a multiple of `unit`, and at
// least as many as make the sources that two bands share less than half of a band's.
inline int64_t band_results(const Dimension& height, int64_t row_bytes, int64_t unit) {
  const int64_t shared = height.source_reach(1);
  const int64_t sources = std::max(kBandBytes / row_bytes - shared, shared);
  const int64_t results =
      height.direction == Direction::kForward ? sources / height.stride : sources * height.stride;
  return std::min(round_up(std::max<int64_t>(results, 1), unit), round_up(height.results, unit));
}

// The columns of one pass. Neighbouring lanes of a vector are neighbouring results of one phase:
// all results of a forward, whose sources are `classes` packed sub-rows; for grad_input every
// stride-th result, from sources as they are.
struct Columns {
  int64_t results;
  int64_t result_step; // between results of a phase, and the number of phases
  int64_t sources;
  int64_t classes;
  int64_t lead; // zeros before a sub-row
  int64_t class_pitch;
  // By phase: a kernel row's taps, the column of its sub-row that each meets at the first result,
  // and the same as an offset in a packed row.
  c10::SmallVector<int64_t, 32> taps;
  c10::SmallVector<int64_t, 32> positions;
  c10::SmallVector<CrossTap, 32> cross;
  c10::SmallVector<int64_t, 4> phase_begin; // into these

  int64_t phases() const {
    return static_cast<int64_t>(phase_begin.size()) - 1;
  }
  int64_t results_of(int64_t phase) const {
    return ceil_div(results - phase, result_step);
  }
  int64_t pitch() const {
    return classes * class_pitch;
  }

  // The taps [begin, end) that meet the image at some of `count` results, but for those between.
  Range live_taps(int64_t phase, int64_t first, int64_t count) const {
    const int64_t length = ceil_div(sources, classes);
    const auto outside = [&](int64_t tap) {
      return positions[tap] + first >= length || positions[tap] + first + count <= 0;
    };
    Range live{phase_begin[phase], phase_begin[phase + 1]};
    while (live.begin < live.end && outside(live.begin)) {
      ++live.begin;
    }
    while (live.begin < live.end && outside(live.end - 1)) {
      --live.end;
    }
    return live;
  }
};

inline Columns columns_of(const Params& p, Direction direction, int64_t lanes) {
  const Dimension width = width_of(p, direction);
  const bool forward = direction == Direction::kForward;
  Columns c;
  c.results = width.results;
  c.sources = width.sources;
  c.result_step = forward ? 1 : width.stride;
  c.classes = forward ? width.stride : 1;
  c.phase_begin.push_back(0);
  c10::SmallVector<int64_t, 32> classes;
  int64_t lowest = 0;
  int64_t highest = 0;
  for (const auto phase : c10::irange(std::min(c.result_step, c.results))) {
    for (const auto tap : c10::irange(width.kernel)) {
      const int64_t position = forward ? tap * width.dilation - width.padding
                                       : phase + width.padding - tap * width.dilation;
      if (!forward && floor_mod(position, width.stride) != 0) {
        continue;
      }
      c.taps.push_back(tap);
      classes.push_back(forward ? floor_mod(position, width.stride) : 0);
      c.positions.push_back(floor_div(position, width.stride));
      lowest = std::min(lowest, c.positions.back());
      highest = std::max(highest, c.positions.back());
    }
    c.phase_begin.push_back(static_cast<int64_t>(c.taps.size()));
  }
  c.lead = round_up(-lowest, lanes);
  const int64_t read = highest + round_up(c.results_of(0), 2 * lanes);
  const int64_t written = round_up(ceil_div(c.sources, c.classes), 2 * lanes);
  c.class_pitch = c.lead + round_up(std::max(read, written), lanes);
  for (const auto phase : c10::irange(c.phases())) {
    for (const auto i : c10::irange(c.phase_begin[phase], c.phase_begin[phase + 1])) {
      const int64_t offset = c.positions[i] + c.lead + classes[i] * c.class_pitch;
      c.cross.push_back({offset, i - c.phase_begin[phase]});
    }
  }
  return c;
}

// Result rows that are worked on at once, some vectors of columns after the other. Of grad_input of k3 with a
// stride, whose columns are brought together afterwards, a tile (96@112 k3s2 N=1 314 us, 344 by two;
// 144@56 k5s2 182 and 166).
constexpr int64_t kStripRows = 2 * kPlaneTile.rows;
// Of a thread's packed rows. Strides of thousands have rows of mostly nothing: those planes are gone through
// position by position.
constexpr int64_t kMostPackedBytes = 64 << 20;

// What is known of all planes of a pass: bands, phases and their groups of taps. `lanes` and `acc_bytes` are those of
// the arithmetic type.
class PlanePlan {
 protected:
  // Neighbouring columns that the same taps meet.
  struct Run {
    Range columns;
    Range live; // of Columns::cross
  };

  // One phase of rows and one of columns.
  struct Phase {
    int64_t first_run;
    int64_t last_run;
    int64_t first_group;
    int64_t group_count;
    int64_t results; // rows
  };

  PlanePlan(const Pass& pass, int64_t lanes, int64_t acc_bytes, bool converts)
      : params_(pass.params),
        direction_(pass.direction),
        lanes_(lanes),
        acc_bytes_(acc_bytes),
        height_(height_of(pass.params, pass.direction)),
        columns_(columns_of(pass.params, pass.direction, lanes)),
        result_planes_(pass.direction == Direction::kForward ? pass.params.multiplier : 1),
        source_planes_(pass.direction == Direction::kForward ? 1 : pass.params.multiplier),
        band_(band_results(
            height_,
            source_planes_ * columns_.pitch() * acc_bytes,
            height_.result_step() * kPlaneTile.rows)),
        band_steps_(band_ / height_.result_step()),
        source_rows_(std::min(height_.sources, height_.source_reach(band_))),
        packable_(source_planes_ * source_rows_ * columns_.pitch() <= kMostPackedBytes / acc_bytes),
        lowest_(height_.first_source(0)),
        first_band_(reached_rows(lowest_)),
        strip_rows_(strip_rows()),
        direct_(!converts && columns_.result_step == 1 && columns_.results >= lanes),
        stream_(
            pass.result.nbytes() > kStreamBytes &&
            (result_planes_ == 1 || band_ >= height_.results)) {
    add_groups();
  }

  int64_t phase_pitch() const {
    return round_up(columns_.results_of(0), 2 * lanes_);
  }
  int64_t stage_pitch() const {
    return columns_.phases() * phase_pitch();
  }

  // Values of the results that all phases of a strip have.
  int64_t strip_size() const {
    return strip_rows_ * height_.result_step() * columns_.results;
  }

  // No more than there are, and whose stage is as large as a band's rows at most.
  int64_t strip_rows() const {
    const int64_t row_bytes = stage_pitch() * acc_bytes_;
    const bool many = (columns_.result_step == 1 || params_.kernel_height > 3) &&
        kStripRows * row_bytes <= kBandBytes;
    return std::min<int64_t>(many ? kStripRows : kPlaneTile.rows, height_.results_of(0));
  }

  // Rows inside the image that a band's results meet, of which `lowest` is the first.
  Range reached_rows(int64_t lowest) const {
    return {
        std::max<int64_t>(lowest, 0),
        std::min(lowest + height_.source_reach(band_), height_.sources)};
  }
  Range band_sources(int64_t first) const {
    return first == 0 ? first_band_ : reached_rows(height_.first_source(first));
  }

  // Finds the groups of all phases, the same for every plane, and the order of their weights.
  void add_groups() {
    const TapGroups rows(height_);
    c10::SmallVector<Range, 4> runs;
    for (const auto column_phase : c10::irange(columns_.phases())) {
      runs.push_back(add_runs(column_phase));
    }
    for (const auto phase : c10::irange(height_.phases())) {
      for (const auto column_phase : c10::irange(columns_.phases())) {
        const auto first = static_cast<int64_t>(groups_.size());
        for (const auto plane : c10::irange(source_planes_)) {
          add_tile_groups(
              rows.of_phase(phase),
              height_,
              height_.source_step() * columns_.pitch(),
              groups_,
              [&](const TapGroup& group) { return tile_group(plane, group, column_phase); });
        }
        const auto count = static_cast<int64_t>(groups_.size()) - first;
        const auto [first_run, last_run] = runs[column_phase];
        phases_.push_back({first_run, last_run, first, count, height_.results_of(phase)});
      }
    }
  }

  // In place, the last tile does not reach beyond the row, but over the one before.
  Range add_runs(int64_t phase) {
    const auto first = static_cast<int64_t>(runs_.size());
    const int64_t results = columns_.results_of(phase);
    const int64_t lanes = direct_ ? results : round_up(results, lanes_);
    for (int64_t lane = 0; lane < lanes;) {
      const int64_t width =
          lanes - lane > lanes_ ? std::min(lanes, 2 * lanes_) : lanes_; // as for_each_tile
      const int64_t begin = std::min(lane, lanes - width);
      const Range live = columns_.live_taps(phase, begin, width);
      const bool same = static_cast<int64_t>(runs_.size()) > first &&
          runs_.back().live.begin == live.begin && runs_.back().live.end == live.end;
      if (same) {
        runs_.back().columns.end = begin + width;
      } else {
        runs_.push_back({{begin, begin + width}, live});
      }
      lane += round_up(width, lanes_);
    }
    return {first, static_cast<int64_t>(runs_.size())};
  }

  // Its weights follow each other tap by tap.
  TileGroup tile_group(int64_t plane, const TapGroup& group, int64_t column_phase) {
    const int64_t begin = columns_.phase_begin[column_phase];
    const int64_t end = columns_.phase_begin[column_phase + 1];
    const auto weight = static_cast<int64_t>(filter_order_.size());
    for (const auto i : c10::irange(group.count)) {
      const int64_t row = plane * params_.kernel_height + group.first + i * group.step;
      for (const auto t : c10::irange(begin, end)) {
        filter_order_.push_back(row * params_.kernel_width + columns_.taps[t]);
      }
    }
    const int64_t source = (plane * source_rows_ + group.source) * columns_.pitch();
    return {source, {}, weight, end - begin, 0, 1};
  }

  Params params_;
  Direction direction_;
  int64_t lanes_;
  int64_t acc_bytes_;
  Dimension height_;
  Columns columns_;
  int64_t result_planes_; // of a task
  int64_t source_planes_;
  int64_t band_; // result rows
  int64_t band_steps_; // of a phase
  int64_t source_rows_; // packed rows of a band and plane
  bool packable_;
  int64_t lowest_; // source row that the first result meets
  Range first_band_; // source rows of
  int64_t strip_rows_; // of results
  // Whether whole vectors of rows of floats or doubles are stored where they belong.
  bool direct_;
  bool stream_; // results past the caches
  c10::SmallVector<Run, 4> runs_;
  c10::SmallVector<TileGroup, 4> groups_;
  c10::SmallVector<Phase, 4> phases_; // [phases of rows][phases of columns]
  c10::SmallVector<int64_t, 64> filter_order_; // packed weights as the filters' taps
};

template <typename scalar_t>
class PlanePass : PlanePlan {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  explicit PlanePass(const Pass& pass)
      : PlanePlan(pass, kLanes, sizeof(acc_t), !std::is_same_v<scalar_t, acc_t>),
        result_(pass.result.mutable_data_ptr<scalar_t>()),
        source_(pass.source.const_data_ptr<scalar_t>()),
        weight_(pass.weight.const_data_ptr<scalar_t>()),
        bias_(pass.bias.defined() ? pass.bias.const_data_ptr<scalar_t>() : nullptr),
        finite_(all_finite(weight_, pass.params.output_channels() * pass.params.kernel_size())) {}

  void run() {
    const auto grain = grain_of(
        params_.multiplier * params_.output_height * params_.output_width * params_.kernel_size());
    in_parallel(params_.batch * params_.channels, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this);
      for (const auto task : c10::irange(begin, end)) {
        run_task(task, scratch);
      }
      scratch.run.finish();
    });
  }

 private:
  // One thread's memory: the packed rows, the filters, results to be stored.
  struct Scratch {
    explicit Scratch(const PlanePass& pass)
        : packed(
              pass.packable_ ? pass.source_planes_ * pass.source_rows_ * pass.columns_.pitch() : 0),
          filter(static_cast<int64_t>(pass.filter_order_.size())),
          stage(pass.strip_rows_ * pass.stage_pitch() + 2 * kLanes),
          row(pass.columns_.sources + 2 * kLanes),
          run(pass.stream_ ? pass.strip_size() : 0) {}

    AlignedBuffer<acc_t> packed;
    AlignedBuffer<acc_t> filter;
    AlignedBuffer<acc_t> stage; // [strip_rows_][phases][results of a phase]
    AlignedBuffer<acc_t> row;
    StreamedRun<scalar_t> run;
  };

  void run_task(int64_t task, Scratch& scratch) {
    const int64_t channel = task % params_.channels * params_.multiplier;
    const scalar_t* const filters = weight_ + channel * params_.kernel_size();
    const int64_t result_size = height_.results * columns_.results;
    const int64_t source_size = height_.sources * columns_.sources;
    scalar_t* const results = result_ + task * result_planes_ * result_size;
    const scalar_t* const sources = source_ + task * source_planes_ * source_size;
    if (!packable_ ||
        (!finite_ && !all_finite(filters, params_.multiplier * params_.kernel_size()))) {
      for (const auto r : c10::irange(result_planes_)) {
        exact_plane(
            results + r * result_size,
            sources,
            filters + r * params_.kernel_size(),
            bias_ ? bias_ + channel + r : nullptr,
            params_,
            direction_);
      }
      return;
    }
    const bool last = task + 1 == params_.batch * params_.channels;
    for (int64_t first = 0; first < height_.results; first += band_) {
      pack(sources, first, scratch);
      const Range next = packed_next(sources, first, last);
      for (const auto r : c10::irange(result_planes_)) {
        if (first == 0 || result_planes_ > 1) {
          pack_filter(filters + r * params_.kernel_size(), scratch);
        }
        const acc_t start = bias_ ? acc_t(bias_[channel + r]) : acc_t(0);
        run_band(results + r * result_size, start, first, r == 0 ? next : Range{0, 0}, scratch);
      }
    }
  }

  // The addresses of what is packed next, the next band or the next task's first one. They are asked for
  // while this band is worked on, as packing has nothing else to do meanwhile: fp32, one thread,
  // 144@56 k3 N=16 5,978 -> 4,563 us, 96@56 k7 N=16 8,465 -> 6,451, N=1 408 -> 400.
  Range packed_next(const scalar_t* sources, int64_t first, bool last) const {
    const bool banded = first + band_ < height_.results;
    if (last && !banded) {
      return {0, 0};
    }
    const int64_t task = source_planes_ * height_.sources * columns_.sources;
    const Range rows = band_sources(banded ? first + band_ : 0);
    const scalar_t* const begin = sources + (banded ? 0 : task) + rows.begin * columns_.sources;
    const int64_t count = band_ < height_.results ? rows.size() * columns_.sources : task;
    return {reinterpret_cast<int64_t>(begin), reinterpret_cast<int64_t>(begin + count)};
  }

  void pack(const scalar_t* sources, int64_t first, Scratch& scratch) const {
    const Range rows = band_sources(first);
    for (const auto plane : c10::irange(source_planes_)) {
      acc_t* packed = scratch.packed.data() + plane * source_rows_ * columns_.pitch();
      const scalar_t* source = sources + plane * height_.sources * columns_.sources;
      for (int64_t row = rows.begin; row < rows.end; ++row, packed += columns_.pitch()) {
        pack_row(
            source + row * columns_.sources,
            columns_.sources,
            columns_.classes,
            packed + columns_.lead,
            columns_.class_pitch,
            scratch.row.data());
      }
    }
  }

  void pack_filter(const scalar_t* filter, Scratch& scratch) const {
    acc_t* packed = scratch.filter.data();
    for (const int64_t tap : filter_order_) {
      *packed++ = acc_t(filter[tap]);
    }
  }

  // The band's results from `first` on, strip by strip.
  void run_band(scalar_t* result, acc_t start, int64_t first, Range next, Scratch& scratch) const {
    const int64_t step = height_.result_step();
    const int64_t begin = first == 0 ? 0 : first / step;
    const int64_t end = std::min(phases_[0].results, begin + band_steps_);
    const int64_t ahead_step =
        next.size() > 0 ? ceil_div(next.size(), ceil_div(end - begin, strip_rows_)) : 0;
    Tiles<acc_t> tiles{};
    tiles.shape = kPlaneTile;
    tiles.source = scratch.packed.data() - band_sources(first).begin * columns_.pitch();
    tiles.line_step = height_.source_step() * columns_.pitch();
    tiles.first_result = begin;
    tiles.weights = scratch.filter.data();
    tiles.start = &start;
    const auto phase_count = static_cast<int64_t>(phases_.size());
    for (int64_t q = begin; q < end; q += strip_rows_) {
      const int64_t last = std::min(q + strip_rows_, end);
      const int64_t count =
          std::min(last * step, height_.results) * columns_.results - q * step * columns_.results;
      scalar_t* rows = result + q * step * columns_.results;
      if (stream_) {
        scratch.run.go_to(rows);
        rows = scratch.run.place();
      }
      tiles.ahead = {next.begin, std::min(next.begin + ahead_step, next.end)};
      next.begin = tiles.ahead.end;
      for (int64_t phase = 0; phase * columns_.phases() < phase_count; ++phase) {
        const Phase* const phases = phases_.data() + phase * columns_.phases();
        tiles.results = std::min(last, phases->results) - q;
        if (tiles.results > 0) {
          run_strip(rows + phase * columns_.results, phases, tiles, scratch);
        }
      }
      if (stream_) {
        scratch.run.add(count);
      }
      tiles.first_result += strip_rows_;
    }
  }

  // Up to strip_rows_ rows of results.
  void run_strip(scalar_t* rows, const Phase* phases, Tiles<acc_t>& tiles, Scratch& scratch) const {
    const int64_t row_pitch = height_.result_step() * columns_.results;
    tiles.target = scratch.stage.data();
    tiles.target_step = stage_pitch();
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      tiles.target = direct_ ? rows : tiles.target;
      tiles.target_step = direct_ ? row_pitch : tiles.target_step;
    }
    for (const auto phase : c10::irange(columns_.phases())) {
      tiles.groups = groups_.data() + phases[phase].first_group;
      tiles.group_count = phases[phase].group_count;
      for (int64_t run = phases[phase].first_run; run < phases[phase].last_run; ++run) {
        tiles.cross = columns_.cross.data() + runs_[run].live.begin;
        tiles.cross_count = runs_[run].live.size();
        tiles.first_lane = runs_[run].columns.begin;
        tiles.last_lane = runs_[run].columns.end;
        run_tiles<acc_t, Weights::kOfPlane>(tiles);
        tiles.ahead = {0, 0};
      }
      tiles.target += phase_pitch();
    }
    for (int64_t r = 0; !direct_ && r < tiles.results; ++r) {
      unpack_row(
          scratch.stage.data() + r * stage_pitch(),
          phase_pitch(),
          columns_.result_step,
          rows + r * row_pitch,
          columns_.results);
    }
  }

  scalar_t* result_;
  const scalar_t* source_;
  const scalar_t* weight_;
  const scalar_t* bias_;
  bool finite_; // all filters
};

template <typename scalar_t>
void packed_plane_pass(const Pass& pass) {
  PlanePass<scalar_t>(pass).run();
}

} // namespace
} // namespace at::native
