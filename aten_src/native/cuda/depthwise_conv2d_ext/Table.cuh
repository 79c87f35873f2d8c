// Which kernel takes a call: the first row whose conditions the call meets and whose kernel accepts it. A
// kernel refuses what it cannot do (alignment, shared memory, planes that do not fit); what it should not
// do, because a later row is faster, is said here. Included by Select.cu alone.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Problem.cuh>
#include <cstdint>
#include <limits>

namespace at::native::depthwise_conv2d_ext_cuda {

// Sets as bits.
enum Passes : uint8_t {
  kForward = 1,
  kGradInput = 2, // alone
  kGradWeight = 4, // and grad_bias, without grad_input
  kAllGradients = 8,
  kData = kForward | kGradInput,
  kWeights = kGradWeight | kAllGradients,
  kGradients = kGradInput | kWeights,
};
enum Orders : uint8_t { kPlanes = 1, kPixels = 2, kBoth = 3 }; // NCHW, channels-last
enum Types : uint8_t { kFloat32 = 1, kSixteen = 2, kFloats = 3, kFloat64 = 4, kAll = 7 };
// Stride 1 without and with dilation, stride 2 without, others.
enum Steps : uint8_t {
  kUnit = 1,
  kDilated = 2,
  kTwo = 4,
  kOtherSteps = 8,
  kStride1 = 3,
  kAnySteps = 15
};
enum Outputs : uint8_t { kOne = 1, kSeveral = 2, kAnyOutputs = 3 }; // of an input channel

struct Range {
  int64_t least;
  int64_t most;
};
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr Range kAny{0, kNoLimit};

struct Row {
  const char* kernel;
  uint8_t passes;
  Orders orders;
  Types types;
  uint8_t steps;
  Outputs outputs;
  Range taps; // of the window
  // What is computed, in units of 1,024 elements a multiprocessor: results of a forward, elements of
  // grad_input or, for the weight's gradient, of grad_output.
  Range work;
  int capability; // of the device, the least
  // One of the two: for the forward and grad_input alone, or for gradients.
  ForwardEntry* forward;
  BackwardEntry* backward;
};

// Large windows and several outputs in channels-last order between copies, and as channels of their own.
ForwardEntry by_planes_forward;
BackwardEntry by_planes_backward;
ForwardEntry apart_grad_input;
// All gradients in two passes.
BackwardEntry pixel_batch_backward;

// clang-format off
constexpr Row kTable[] = {
    // kernel, passes, orders, types, steps, outputs, taps, work, capability, entries
    // Stride 2. Planes of 14 x 14, rows of whole vectors, channels-last.
    {"lanes_strided", kForward, kPlanes, kFloats, kTwo, kOne, {9, 25}, {3, kNoLimit}, 8, lanes_strided_forward, nullptr},
    {"lanes_strided", kGradients, kPlanes, kFloats, kTwo, kOne, {9, 25}, {3, kNoLimit}, 8, nullptr, lanes_strided_backward},
    {"strips_strided", kForward, kPlanes, kFloats, kTwo, kOne, {9, 9}, {1, kNoLimit}, 7, strips_strided_forward, nullptr},
    {"strips_strided", kForward, kPlanes, kFloats, kTwo, kOne, {25, 25}, kAny, 7, strips_strided_forward, nullptr},
    {"strips_strided", kGradients, kPlanes, kFloats, kTwo, kOne, {9, 25}, kAny, 7, nullptr, strips_strided_backward},
    {"boxes_strided", kForward, kPixels, kFloats, kTwo, kOne, {9, 25}, kAny, 9, boxes_strided_forward, nullptr},
    {"boxes_strided", kGradInput, kPixels, kFloats, kTwo, kOne, {9, 25}, kAny, 9, nullptr, boxes_strided_backward},
    {"boxes_strided", kGradWeight, kPixels, kFloats, kTwo, kOne, {9, 25}, {20, kNoLimit}, 9, nullptr, boxes_strided_backward},
    {"boxes_strided", kAllGradients, kPixels, kFloats, kTwo, kOne, {9, 25}, {1, kNoLimit}, 9, nullptr, boxes_strided_backward},
    // Channels-last, stride 1. Few elements; tensor cores; boxes of whole vectors of channels; others; windows of
    // one dimension.
    {"few_pixels", kData, kPixels, kFloat32, kStride1, kOne, {3, 3}, {0, 4}, 7, few_pixels_forward, nullptr},
    {"few_pixels", kData, kPixels, kSixteen, kStride1, kOne, {3, 3}, {0, 8}, 7, few_pixels_forward, nullptr},
    {"few_pixels", kData, kPixels, kFloats, kStride1, kOne, {9, 49}, {0, 18}, 7, few_pixels_forward, nullptr},
    {"few_pixels", kWeights, kPixels, kFloat32, kUnit, kOne, {9, 9}, {0, 7}, 7, nullptr, few_pixels_backward},
    {"few_pixels", kWeights, kPixels, kSixteen, kUnit, kOne, {9, 9}, {0, 5}, 7, nullptr, few_pixels_backward},
    {"pixel_batch", kData, kPixels, kSixteen, kStride1, kOne, {25, 49}, {4, kNoLimit}, 9, pixel_batch_forward, nullptr},
    {"pixel_batch", kGradWeight, kPixels, kSixteen, kStride1, kOne, {25, 49}, {2, kNoLimit}, 9, nullptr, pixel_batch_grad_weight},
    {"pixel_batch", kAllGradients, kPixels, kSixteen, kStride1, kOne, {25, 25}, {64, kNoLimit}, 9, nullptr, pixel_batch_backward},
    {"pixel_batch", kAllGradients, kPixels, kSixteen, kStride1, kOne, {49, 49}, {8, kNoLimit}, 9, nullptr, pixel_batch_backward},
    {"boxes", kData, kPixels, kFloat32, kStride1, kAnyOutputs, {3, 9}, {4, kNoLimit}, 9, boxes_forward, nullptr},
    {"boxes", kData, kPixels, kSixteen, kStride1, kAnyOutputs, {3, 9}, {8, kNoLimit}, 9, boxes_forward, nullptr},
    {"boxes", kData, kPixels, kFloats, kStride1, kAnyOutputs, {25, 49}, kAny, 9, boxes_forward, nullptr},
    {"boxes", kAllGradients, kPixels, kFloats, kStride1, kOne, {3, 49}, kAny, 9, nullptr, boxes_backward},
    {"boxes", kGradWeight, kPixels, kFloats, kStride1, kOne, {3, 9}, {8, kNoLimit}, 9, nullptr, boxes_backward},
    {"boxes", kGradWeight, kPixels, kFloats, kStride1, kOne, {25, 49}, {2, kNoLimit}, 9, nullptr, boxes_backward},
    {"boxes", kWeights, kPixels, kFloats, kStride1, kSeveral, {9, 9}, {8, kNoLimit}, 9, nullptr, boxes_backward},
    {"pixel_rows", kData, kPixels, kFloats, kStride1, kAnyOutputs, {3, 49}, kAny, 9, pixel_rows_forward, nullptr},
    {"pixel_rows", kWeights, kPixels, kFloat32, kStride1, kOne, {9, 49}, {8, kNoLimit}, 9, nullptr, pixel_rows_backward},
    {"pixel_rows", kWeights, kPixels, kSixteen, kStride1, kOne, {9, 49}, kAny, 9, nullptr, pixel_rows_backward},
    {"pixel_rows", kGradWeight, kPixels, kFloats, kStride1, kSeveral, {9, 49}, kAny, 9, nullptr, pixel_rows_backward},
    {"sequence", kData, kPixels, kFloats, kStride1, kOne, {2, 64}, kAny, 7, sequence_forward, nullptr},
    {"sequence", kWeights, kPixels, kFloats, kStride1, kOne, {2, 64}, kAny, 7, nullptr, sequence_backward},
    {"apart", kGradInput, kPixels, kFloat32, kAnySteps, kSeveral, kAny, {1, kNoLimit}, 7, apart_grad_input, nullptr},
    {"by_planes", kData, kPixels, kAll, kAnySteps, kAnyOutputs, kAny, kAny, 7, by_planes_forward, nullptr},
    {"by_planes", kWeights, kPixels, kAll, kAnySteps, kAnyOutputs, kAny, kAny, 7, nullptr, by_planes_backward},
    // NCHW, stride 1. Rows of no whole vectors; windows of one dimension; rows of whole vectors; small planes of
    // many images; tensor cores; large windows; planes in shared memory.
    {"columns", kForward, kPlanes, kFloats, kStride1, kOne, {3, 9}, {4, kNoLimit}, 9, columns_forward, nullptr},
    {"columns", kGradients, kPlanes, kFloats, kStride1, kOne, {3, 9}, {4, kNoLimit}, 9, nullptr, columns_backward},
    {"sequence", kData, kPlanes, kFloats, kStride1, kOne, {2, 64}, kAny, 7, sequence_forward, nullptr},
    {"sequence", kWeights, kPlanes, kFloats, kStride1, kOne, {2, 64}, kAny, 7, nullptr, sequence_backward},
    {"strips", kData, kPlanes, kFloats, kUnit, kOne, {9, 25}, {24, kNoLimit}, 7, strips_forward, nullptr},
    {"strips", kData, kPlanes, kFloats, kUnit, kSeveral, {9, 9}, {4, kNoLimit}, 7, strips_forward, nullptr},
    {"strips", kData, kPlanes, kFloat32, kUnit, kOne, {49, 49}, {16, kNoLimit}, 7, strips_forward, nullptr},
    {"strips", kData, kPlanes, kFloat32, kDilated, kOne, {49, 49}, kAny, 7, strips_forward, nullptr},
    {"strips", kWeights, kPlanes, kFloats, kUnit, kOne, {9, 49}, kAny, 7, nullptr, strips_backward},
    {"strips", kWeights, kPlanes, kFloats, kUnit, kSeveral, {9, 9}, {16, kNoLimit}, 7, nullptr, strips_backward},
    {"flat_planes", kData, kPlanes, kFloats, kUnit, kOne, {9, 9}, {3, kNoLimit}, 7, flat_planes_forward, nullptr},
    {"flat_planes", kData, kPlanes, kFloat32, kUnit, kOne, {25, 49}, kAny, 7, flat_planes_forward, nullptr},
    {"flat_planes", kWeights, kPlanes, kFloats, kUnit, kOne, {9, 9}, {3, kNoLimit}, 7, nullptr, flat_planes_backward},
    {"flat_planes", kWeights, kPlanes, kFloat32, kUnit, kOne, {25, 49}, kAny, 7, nullptr, flat_planes_backward},
    {"batch_march", kForward, kPlanes, kSixteen, kStride1, kAnyOutputs, kAny, kAny, 8, batch_march_forward, nullptr},
    {"batch_march", kGradInput, kPlanes, kSixteen, kStride1, kOne, kAny, kAny, 8, batch_march_forward, nullptr},
    {"batch_march", kWeights, kPlanes, kSixteen, kStride1, kAnyOutputs, kAny, kAny, 8, nullptr, batch_march_backward},
    {"batch", kData, kPlanes, kSixteen, kUnit, kOne, kAny, kAny, 8, batch_forward, nullptr},
    {"flat_planes", kData, kPlanes, kSixteen, kUnit, kOne, {25, 25}, kAny, 7, flat_planes_forward, nullptr},
    {"batch", kWeights, kPlanes, kSixteen, kUnit, kOne, kAny, kAny, 8, nullptr, batch_backward},
    {"bands", kData, kPlanes, kSixteen, kAnySteps, kAnyOutputs, kAny, kAny, 8, bands_forward, nullptr},
    {"bands", kGradWeight, kPlanes, kSixteen, kAnySteps, kAnyOutputs, kAny, kAny, 8, nullptr, bands_grad_weight},
    {"lanes", kData, kPlanes, kFloat32, kUnit, kOne, {81, kNoLimit}, kAny, 8, lanes_forward, nullptr},
    {"lanes", kGradWeight, kPlanes, kFloat32, kUnit, kOne, {49, kNoLimit}, kAny, 8, nullptr, lanes_grad_weight},
    {"patches", kData, kPlanes, kFloats, kUnit | kTwo, kAnyOutputs, {9, 49}, kAny, 7, patches_forward, nullptr},
    {"patches", kWeights, kPlanes, kFloats, kUnit, kAnyOutputs, {9, 49}, {8, kNoLimit}, 7, nullptr, patches_backward},
    // Whatever is left of windows of fixed sizes, of large windows, and all others.
    {"march", kData, kBoth, kFloats, kStride1 | kTwo, kAnyOutputs, {3, 49}, kAny, 7, march_forward, nullptr},
    {"march", kGradWeight, kBoth, kFloats, kStride1 | kTwo, kAnyOutputs, {3, 49}, kAny, 7, nullptr, march_grad_weight},
    {"large", kData, kPlanes, kFloats, kUnit, kAnyOutputs, {30, kNoLimit}, {4, kNoLimit}, 7, large_forward, nullptr},
    {"large", kData, kPlanes, kFloats, kUnit, kAnyOutputs, {64, kNoLimit}, kAny, 7, large_forward, nullptr},
    {"large", kGradWeight, kPlanes, kFloats, kUnit, kAnyOutputs, {22, kNoLimit}, {4, kNoLimit}, 7, nullptr, large_grad_weight},
    {"large", kGradWeight, kPlanes, kFloats, kUnit, kAnyOutputs, {64, kNoLimit}, kAny, 7, nullptr, large_grad_weight},
    {"apart", kGradInput, kPlanes, kFloat32, kAnySteps, kSeveral, {3, kNoLimit}, {1, kNoLimit}, 7, apart_grad_input, nullptr},
    {"generic", kData, kBoth, kAll, kAnySteps, kAnyOutputs, kAny, kAny, 0, generic_forward, nullptr},
    {"generic", kGradWeight, kBoth, kAll, kAnySteps, kAnyOutputs, kAny, kAny, 0, nullptr, generic_grad_weight},
};
// clang-format on

} // namespace at::native::depthwise_conv2d_ext_cuda
