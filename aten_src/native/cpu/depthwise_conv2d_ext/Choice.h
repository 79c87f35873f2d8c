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

// Forward or grad_input.
template <typename scalar_t>
void run_pass(const Pass& pass) {
  if (pass.result.numel() > 0) {
    run_first(kPasses<scalar_t>, pass, pass.params);
  }
}

// grad_weight and grad_bias, of which one may be undefined.
template <typename scalar_t>
void run_grad_weight(const GradWeightPass& pass) {
  const GradWeightCall<scalar_t> call{
      pass.params,
      pass.grad_weight.defined() ? pass.grad_weight.mutable_data_ptr<scalar_t>() : nullptr,
      pass.grad_bias.defined() ? pass.grad_bias.mutable_data_ptr<scalar_t>() : nullptr,
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>()};
  run_first(kGradWeightPasses<scalar_t>, call, pass.params);
}

} // namespace
} // namespace at::native
