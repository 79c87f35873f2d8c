// Which kernel takes a call: the first row whose conditions the call meets and whose kernel accepts it. A
// kernel refuses what it cannot do (alignment, shared memory, planes that do not fit); what it should not
// do, because a later row is faster, is said here. Included by Select.cpp alone.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Problem.cuh>
#include <array>
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

// A kernel's entries, in the order of Type.
template <typename Pass>
using Entries = std::array<bool (*)(const Pass& pass, const Params& params), 4>;

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
  Entries<ForwardPass> forward;
  Entries<BackwardPass> backward;
};

// Large windows in channels-last order, between copies.
bool by_planes_forward(const ForwardPass& pass, const Params& params);
bool by_planes_backward(const BackwardPass& pass, const Params& params);

#define BY_TYPE(entry) {entry<float>, nullptr, entry<c10::Half>, entry<c10::BFloat16>}
#define BY_16_BITS(entry) {nullptr, nullptr, entry<c10::Half>, entry<c10::BFloat16>}
#define BY_ANY_TYPE(entry) {entry<float>, entry<double>, entry<c10::Half>, entry<c10::BFloat16>}
#define ANY_TYPE(entry) {entry, entry, entry, entry}

// clang-format off
constexpr Row kTable[] = {
    // kernel, passes, orders, types, steps, outputs, taps, work, capability, entries
    // Channels-last. Whole vectors of channels; windows of one dimension; others between copies.
    {"boxes", kData, kPixels, kFloat32, kStride1, kOne, {9, 9}, {4, kNoLimit}, 9, BY_TYPE(boxes_forward), {}},
    {"boxes", kData, kPixels, kSixteen, kStride1, kOne, {9, 9}, {8, kNoLimit}, 9, BY_TYPE(boxes_forward), {}},
    {"boxes", kData, kPixels, kFloats, kStride1, kOne, {25, 49}, kAny, 9, BY_TYPE(boxes_forward), {}},
    {"boxes", kAllGradients, kPixels, kFloats, kStride1, kOne, {9, 49}, kAny, 9, {}, BY_TYPE(boxes_backward)},
    {"boxes", kGradWeight, kPixels, kFloats, kStride1, kOne, {9, 9}, {8, kNoLimit}, 9, {}, BY_TYPE(boxes_backward)},
    {"boxes", kGradWeight, kPixels, kFloats, kStride1, kOne, {25, 49}, {2, kNoLimit}, 9, {}, BY_TYPE(boxes_backward)},
    {"sequence", kData, kPixels, kFloats, kStride1, kOne, {2, 64}, kAny, 7, BY_TYPE(sequence_forward), {}},
    {"sequence", kWeights, kPixels, kFloats, kStride1, kOne, {2, 64}, kAny, 7, {}, BY_TYPE(sequence_backward)},
    {"by_planes", kData, kPixels, kSixteen, kStride1, kAnyOutputs, {49, 64}, {8, kNoLimit}, 8, ANY_TYPE(by_planes_forward), {}},
    {"by_planes", kData, kPixels, kAll, kStride1 | kTwo, kAnyOutputs, {65, kNoLimit}, kAny, 7, ANY_TYPE(by_planes_forward), {}},
    {"by_planes", kGradWeight, kPixels, kFloats, kStride1 | kTwo, kSeveral, {9, 9}, kAny, 7, {}, ANY_TYPE(by_planes_backward)},
    {"by_planes", kGradWeight, kPixels, kFloats, kStride1 | kTwo, kSeveral, {25, 25}, kAny, 7, {}, ANY_TYPE(by_planes_backward)},
    {"by_planes", kWeights, kPixels, kAll, kStride1 | kTwo, kAnyOutputs, {150, kNoLimit}, kAny, 7, {}, ANY_TYPE(by_planes_backward)},
    // NCHW. Windows of one dimension; tensor cores, small planes first; planes in shared memory.
    {"sequence", kData, kPlanes, kFloats, kStride1, kOne, {2, 64}, kAny, 7, BY_TYPE(sequence_forward), {}},
    {"sequence", kWeights, kPlanes, kFloats, kStride1, kOne, {2, 64}, kAny, 7, {}, BY_TYPE(sequence_backward)},
    {"plane_gemm", kForward, kPlanes, kSixteen, kAnySteps, kOne, {10, kNoLimit}, kAny, 8, BY_TYPE(plane_gemm_forward), {}},
    {"plane_gemm", kGradInput, kPlanes, kSixteen, kAnySteps, kOne, {4, kNoLimit}, kAny, 8, BY_TYPE(plane_gemm_forward), {}},
    {"plane_gemm", kData, kPlanes, kFloat32, kAnySteps, kOne, {50, kNoLimit}, kAny, 8, BY_TYPE(plane_gemm_forward), {}},
    {"plane_gemm", kData, kPlanes, kFloat32, kStride1, kOne, {26, 48}, kAny, 8, BY_TYPE(plane_gemm_forward), {}},
    {"plane_gemm", kWeights, kPlanes, kSixteen, kAnySteps, kOne, {4, kNoLimit}, kAny, 8, {}, BY_TYPE(plane_gemm_backward)},
    {"plane_gemm", kWeights, kPlanes, kFloat32, kAnySteps, kOne, {50, kNoLimit}, kAny, 8, {}, BY_TYPE(plane_gemm_backward)},
    {"plane_gemm", kWeights, kPlanes, kFloat32, kStride1, kOne, {16, 49}, kAny, 8, {}, BY_TYPE(plane_gemm_backward)},
    {"plane_gemm", kGradWeight, kPlanes, kFloat32, kAnySteps, kOne, {26, 49}, kAny, 8, {}, BY_TYPE(plane_gemm_backward)},
    {"bands", kData, kPlanes, kSixteen, kAnySteps, kAnyOutputs, kAny, kAny, 8, BY_16_BITS(bands_forward), {}},
    {"patches", kData, kPlanes, kFloats, kUnit | kTwo, kOne, {9, 49}, kAny, 7, BY_TYPE(patches_forward), {}},
    // Whatever is left of windows of fixed sizes, and all others.
    {"march", kData, kPixels, kFloats, kStride1 | kTwo, kOne, {9, 49}, kAny, 7, BY_TYPE(march_forward), {}},
    {"tiles", kGradWeight, kPlanes, kFloats, kDilated, kAnyOutputs, {49, 49}, kAny, 7, {}, BY_TYPE(tiles_grad_weight)},
    {"march", kGradWeight, kBoth, kFloats, kStride1 | kTwo, kAnyOutputs, {9, 49}, kAny, 7, {}, BY_TYPE(march_grad_weight)},
    {"tiles", kGradWeight, kBoth, kFloats, kAnySteps, kAnyOutputs, {5, kNoLimit}, kAny, 7, {}, BY_TYPE(tiles_grad_weight)},
    {"generic", kData, kBoth, kAll, kAnySteps, kAnyOutputs, kAny, kAny, 0, BY_ANY_TYPE(generic_forward), {}},
    {"generic", kGradWeight, kBoth, kAll, kAnySteps, kAnyOutputs, kAny, kAny, 0, {}, BY_ANY_TYPE(generic_grad_weight)},
};
// clang-format on

} // namespace at::native::depthwise_conv2d_ext_cuda
