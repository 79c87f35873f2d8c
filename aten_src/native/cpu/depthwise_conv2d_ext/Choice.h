// How a call of depthwise_conv2d_ext becomes a loop on CPUs, and which loop takes which call.
//
// Each output channel is a convolution of its own plane, so a tap (kh, kw) adds a shifted, scaled copy of
// the input to the output. Forward and grad_input are the same kind of sum (Problem.h): with any stride and
// dilation both fall apart into phases of results and groups of taps, and within one of each the sum is
// dense. A pass brings its memory order into the form of the register tiles (Tiles.h), which compute these
// dense sums; the weight's gradient has products of its own (GradWeight.h).
//
//   call        kPasses or kGradWeightPasses: the first that takes it
//   pass        cuts the tensors into tasks for threads; packs, transposes or converts what is not in form
//   phase       results that the same groups of taps meet
//   tile        some results by one or two vectors; the sums stay in registers
//
// 16-bit values are converted to float before any arithmetic and rounded once at the end. Every sum is
// computed by one thread in an order that does not depend on the number of threads. Padding cannot turn an
// infinity of the other operand into a NaN of the result.
#pragma once

#include <ATen/native/cpu/depthwise_conv2d_ext/GradWeightLines.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/GradWeightProducts.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Pixels.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Planes.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/TallTiles.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/TransposedPlanes.h>

namespace at::native {
namespace {

template <typename Call>
struct Choice {
  bool (*takes)(const Params&);
  void (*run)(const Call&);
};

inline bool is_channels_last(const Params& p) {
  return p.channels_last;
}
inline bool is_any(const Params& /*p*/) {
  return true;
}

template <typename scalar_t>
constexpr Choice<Pass> kPasses[] = {
    {&is_channels_last, &pixel_pass<scalar_t>},
#if defined(CPU_CAPABILITY_AVX512)
    {&are_seven_planes, &seven_plane_pass<scalar_t>},
    {&are_planes_of_tall_tiles, &tall_tile_pass<scalar_t>},
#endif
    {&are_small_planes, &small_plane_pass<scalar_t>},
    {&is_any, &packed_plane_pass<scalar_t>},
};
template <typename scalar_t>
constexpr Choice<GradWeightCall<scalar_t>> kGradWeightPasses[] = {
    {&are_lines<scalar_t>, &grad_weight_of_lines<scalar_t>},
    {&is_channels_last, &grad_weight_of_pixels<scalar_t>},
    {&are_small_planes, &grad_weight_of_small_planes<scalar_t>},
    {&is_any, &grad_weight_of_planes<scalar_t>},
};

// Double is worth the general loops alone, which are as far ahead of conv2d.
template <>
constexpr Choice<Pass> kPasses<double>[] = {
    {&is_channels_last, &pixel_pass<double>},
    {&is_any, &packed_plane_pass<double>},
};
template <>
constexpr Choice<GradWeightCall<double>> kGradWeightPasses<double>[] = {
    {&is_channels_last, &grad_weight_of_pixels<double>},
    {&is_any, &grad_weight_of_planes<double>},
};

template <typename Call, size_t kCount>
void run_first(const Choice<Call> (&choices)[kCount], const Call& call, const Params& p) {
  for (const auto& choice : choices) {
    if (choice.takes(p)) {
      choice.run(call);
      return;
    }
  }
}

// Calls run(a value of the type), of the types that there are loops for.
template <typename Run>
void with_type(ScalarType dtype, const Run& run) {
  if (dtype == kDouble) {
    run(double());
  } else if (dtype == kFloat) {
    run(float());
  } else if constexpr (!kVectorsAreArrays) {
    dtype == kHalf ? run(c10::Half()) : run(c10::BFloat16());
  }
}

} // namespace

inline namespace CPU_CAPABILITY {

// grad_weight and grad_bias, of which one may be undefined. In DepthwiseConv2dExtGradWeightKernel.cpp, which is
// compiled beside forward and grad_input.
void run_grad_weight(const GradWeightPass& pass);

} // namespace CPU_CAPABILITY
} // namespace at::native
