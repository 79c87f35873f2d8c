// What a call is, as the kernels see it. Nothing of ATen beyond its 16-bit types is included here or by a
// kernel: parsing Tensor.h takes longer than compiling most of them, once for each architecture.
#pragma once

#include <ATen/native/DepthwiseConv2dExt.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <array>
#include <cstdint>
#include <memory>

namespace at::native::depthwise_conv2d_ext_cuda {

using Params = DepthwiseConv2dExtParams;

enum class Type : uint8_t { kFloat, kDouble, kHalf, kBFloat16 };

inline int64_t bytes_of(Type type) {
  return type == Type::kDouble ? 8 : type == Type::kFloat ? 4 : 2;
}

// A dense tensor in device memory, or none.
class Operand {
 public:
  Operand() = default;
  Operand(
      void* data,
      Type type,
      std::array<int64_t, 4> sizes,
      std::shared_ptr<void> owner = nullptr)
      : data_(data), type_(type), sizes_(sizes), owner_(std::move(owner)), defined_(true) {}

  bool defined() const {
    return defined_;
  }
  Type type() const {
    return type_;
  }
  int64_t size(int dimension) const {
    return sizes_[dimension];
  }
  const std::array<int64_t, 4>& sizes() const {
    return sizes_;
  }
  int64_t numel() const {
    return sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3];
  }
  int64_t element_size() const {
    return bytes_of(type_);
  }
  template <typename T = void>
  const T* const_data_ptr() const {
    return static_cast<const T*>(data_);
  }
  template <typename T = void>
  T* mutable_data_ptr() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  Type type_ = Type::kFloat;
  std::array<int64_t, 4> sizes_{};
  std::shared_ptr<void> owner_; // of memory that is freed with the operand
  bool defined_ = false;
};

// Uninitialised memory of the current device, which its stream may use.
Operand empty(const std::array<int64_t, 4>& sizes, Type type);

// A forward or, if `grad_input`, the pass of grad_input that is like one: dst is computed from src.
struct ForwardPass {
  const Operand& dst;
  const Operand& src;
  const Operand& weight;
  const Operand& bias; // may be undefined
  bool grad_input = false;
};

// The gradients that are wanted are defined.
struct BackwardPass {
  const Operand& grad_input;
  const Operand& grad_weight;
  const Operand& grad_bias;
  const Operand& grad_output;
  const Operand& input;
  const Operand& weight;

  bool asks_weight() const {
    return grad_weight.defined() || grad_bias.defined();
  }
};

// The entries of the kernels. Each returns false, having done nothing, where it has no kernel for the call.
using ForwardEntry = bool(const ForwardPass& pass, const Params& params);
using BackwardEntry = bool(const BackwardPass& pass, const Params& params);
ForwardEntry march_forward;
ForwardEntry large_forward;
ForwardEntry patches_forward;
ForwardEntry boxes_forward;
ForwardEntry bands_forward;
ForwardEntry sequence_forward;
ForwardEntry generic_forward;
BackwardEntry march_grad_weight;
BackwardEntry large_grad_weight;
BackwardEntry patches_backward;
BackwardEntry boxes_backward;
BackwardEntry bands_grad_weight;
BackwardEntry sequence_backward;
BackwardEntry generic_grad_weight;

// grad_input at stride 2, which march_forward asks.
ForwardEntry march_strided_grad_input;

constexpr int64_t kLargeWindow = 9; // rows of taps from which arithmetic counts more than memory

} // namespace at::native::depthwise_conv2d_ext_cuda
