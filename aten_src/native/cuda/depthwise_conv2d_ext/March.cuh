// What the march's kernels share (March.cu, MarchGradWeight.cu): their geometry, and how it is cut into work items.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <cstdint>

namespace at::native::depthwise_conv2d_ext_cuda {

// One pass seen as "write every dst element from a window of src", in 32 bits. `flip` reads the
// taps backwards: grad_input at stride 1 is the forward on grad_output with flipped taps.
struct March {
  int32_t batch;
  int32_t channels; // of dst
  int32_t multiplier; // dst channels of one src channel
  int32_t src_height;
  int32_t src_width;
  int32_t dst_height;
  int32_t dst_width;
  int32_t padding_height;
  int32_t padding_width;
  int32_t dilation_height;
  int32_t dilation_width;
  bool flip;
  bool aligned; // whole vectors may be loaded and stored
  // The work items: column tiles innermost, then chunks of rows, then images. With a
  // dilation d there are d phases in each dimension, whose positions are d apart and which see
  // one another's elements nowhere.
  int32_t rows_per_chunk;
  int32_t chunks_per_phase;
  int32_t row_chunks;
  int32_t tiles_per_phase;
  int32_t column_tiles;
  int32_t items;
  int32_t lanes; // channel vectors that a block covers (channels-last)
  // Blocks side by side along the channels (channels-last). They are neighbours in launch order too,
  // so that what they leave of a pixel's memory page is used while the page is open.
  int32_t groups;
};

// Where one work item begins: image, first and last row of its phase, first column.
struct Item {
  int32_t image;
  int32_t row_phase;
  int32_t first_row; // in steps of the dilation
  int32_t last_row; // exclusive
  int32_t column_phase;
  int32_t first_column; // in steps of the dilation
};

__device__ __forceinline__ Item item_of(const March& m, int32_t index, int tile_width) {
  Item item;
  const int32_t tile = index % m.column_tiles;
  index /= m.column_tiles;
  const int32_t chunk = index % m.row_chunks;
  item.image = index / m.row_chunks;
  item.column_phase = tile / m.tiles_per_phase;
  item.first_column = tile % m.tiles_per_phase * tile_width;
  item.row_phase = chunk / m.chunks_per_phase;
  item.first_row = chunk % m.chunks_per_phase * m.rows_per_chunk;
  const int32_t rows = (m.dst_height - item.row_phase + m.dilation_height - 1) / m.dilation_height;
  item.last_row = min(rows, item.first_row + m.rows_per_chunk);
  return item;
}

// The forward's geometry: src is the input, dst the output.
inline March march_of(const Params& p) {
  March m{};
  m.batch = p.batch;
  m.channels = p.output_channels();
  m.multiplier = p.multiplier;
  set_forward_sizes(m, p);
  m.dilation_height = p.dilation_height;
  m.dilation_width = p.dilation_width;
  return m;
}

// Fills in the work items. `row_floor` is the least number of rows worth a chunk: each chunk
// reads the kernel's overhang again. Chunks are as long as the device stays full.
inline void plan_items(
    March& m,
    int tile_width,
    int64_t lanes_per_item,
    int64_t wanted_threads,
    int row_floor) {
  const int64_t phase_rows = divide_up(m.dst_height, m.dilation_height);
  const int64_t phase_columns = divide_up(m.dst_width, m.dilation_width);
  m.tiles_per_phase = divide_up(phase_columns, tile_width);
  m.column_tiles = m.tiles_per_phase * std::min(m.dilation_width, m.dst_width);
  const int64_t phases = std::min(m.dilation_height, m.dst_height);
  const int64_t threads_per_chunk =
      std::max<int64_t>(1, int64_t{m.batch} * m.column_tiles * lanes_per_item * phases);
  const int64_t wanted = divide_up(wanted_threads, threads_per_chunk);
  int64_t chunks = std::max<int64_t>(1, std::min(wanted, phase_rows / row_floor));
  if (chunks * threads_per_chunk < few_threads()) {
    // The device has room: what counts is how soon the longest march ends.
    chunks = std::min(divide_up(few_threads(), threads_per_chunk), phase_rows);
  }
  m.rows_per_chunk = divide_up(phase_rows, chunks);
  m.chunks_per_phase = divide_up(phase_rows, m.rows_per_chunk);
  m.row_chunks = m.chunks_per_phase * phases;
  m.items = int64_t{m.batch} * m.row_chunks * m.column_tiles;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
