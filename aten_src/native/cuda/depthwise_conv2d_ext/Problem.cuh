// What a call is, as the kernels see it. Nothing of ATen beyond its 16-bit types is included here or by a
// kernel: parsing Tensor.h takes longer than compiling most of them, once for each architecture.
#pragma once

#include <ATen/native/DepthwiseConv2dExtParams.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cuda_runtime_api.h>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

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
  Operand(void* data, Type type, std::array<int64_t, 4> sizes)
      : data_(data), type_(type), sizes_(sizes), defined_(true) {}

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
  bool defined_ = false;
};

// Uninitialised memory of the current device, which its stream may use, until the kernel's entry returns.
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

// The entries of the kernels, by type. Each returns false, having done nothing, where it has no kernel for the call.
template <typename scalar_t>
bool march_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool patches_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool boxes_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool plane_gemm_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool bands_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool sequence_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool generic_forward(const ForwardPass& pass, const Params& params);
template <typename scalar_t>
bool march_grad_weight(const BackwardPass& pass, const Params& params);
template <typename scalar_t>
bool boxes_backward(const BackwardPass& pass, const Params& params);
template <typename scalar_t>
bool plane_gemm_backward(const BackwardPass& pass, const Params& params);
template <typename scalar_t>
bool sequence_backward(const BackwardPass& pass, const Params& params);
template <typename scalar_t>
bool tiles_grad_weight(const BackwardPass& pass, const Params& params);
template <typename scalar_t>
bool generic_grad_weight(const BackwardPass& pass, const Params& params);

constexpr int64_t kLargeWindow = 9; // rows of taps from which arithmetic counts more than memory

inline int64_t divide_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// Whether 32 bits hold every offset and coordinate, with room for a tile that reaches past the end.
inline bool fits_32_bits(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  constexpr int64_t kSideLimit = 1 << 24;
  return p.batch * p.channels * p.input_height * p.input_width < kLimit &&
      p.batch * p.output_channels() * p.output_height * p.output_width < kLimit &&
      p.input_height < kSideLimit && p.input_width < kSideLimit && p.padding_height < kSideLimit &&
      p.padding_width < kSideLimit && p.output_height < kSideLimit && p.output_width < kSideLimit &&
      p.kernel_height * p.dilation_height < kSideLimit &&
      p.kernel_width * p.dilation_width < kSideLimit;
}

template <int kHeight_, int kWidth_, int kStride_>
struct Window {
  static constexpr int kHeight = kHeight_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kStride = kStride_;
};

// The windows that have kernels of their own. Dilation is free at stride 1 only.
template <typename Launch>
bool with_window(const Params& p, const Launch& launch) {
  const auto is = [&](int64_t side, int64_t stride) {
    return p.kernel_height == side && p.kernel_width == side && p.stride_height == stride &&
        p.stride_width == stride;
  };
  if (p.stride_height != 1 && (p.dilation_height != 1 || p.dilation_width != 1)) {
    return false;
  }
  return (is(3, 1) && launch(Window<3, 3, 1>())) || (is(3, 2) && launch(Window<3, 3, 2>())) ||
      (is(5, 1) && launch(Window<5, 5, 1>())) || (is(5, 2) && launch(Window<5, 5, 2>())) ||
      (is(7, 1) && launch(Window<7, 7, 1>())) || (is(7, 2) && launch(Window<7, 7, 2>()));
}

// Each of `matrices` in src, of rows x columns, to dst, of columns x rows.
void transpose(
    const Operand& dst,
    const Operand& src,
    int64_t rows,
    int64_t columns,
    int64_t matrices);

// What the kernels ask the current device for, and how they are launched on it. Three environment
// variables, read once, are for tests and for people who look for the reason of a time:
//
//   DEPTHWISE_CONV2D_EXT_LOG=1       prints the table's row and each kernel with its template
//                                    arguments (types and tile), grid, block and shared memory
//   DEPTHWISE_CONV2D_EXT_KERNELS     rows that may be taken, "march,boxes", or may not, "-march";
//                                    generic may always be
//   DEPTHWISE_CONV2D_EXT_DEVICE      a smaller device than there is, as in
//                                    "capability=8,multiprocessors=68,shared=101376"
struct Device {
  int index;
  int64_t capability; // the major number
  int64_t multiprocessors;
  int64_t shared; // bytes that a block may have
  int64_t multiprocessor_shared;
};

// The current one.
const Device& device();

inline int64_t multiprocessors() {
  return device().multiprocessors;
}

// Whether a block may have so much shared memory.
inline bool has_shared(int64_t bytes) {
  return bytes <= device().shared;
}

// Whether what runs of a kernel on the current device was compiled for devices of this capability or later: a build
// for older ones alone may run there too.
bool is_compiled_for(const void* kernel, int64_t capability);

// As many blocks as can be resident at once.
int64_t resident_blocks(const void* kernel, int threads, size_t shared);

// A kernel on the current stream; `early`: it waits by wait_for_kernel_before() for the one before it, where the
// device lets it begin while that one ends.
void launch_function(
    const void* kernel,
    const dim3& grid,
    const dim3& block,
    size_t shared,
    void** arguments,
    bool early);

template <typename... Parameters>
void launch_kernel(
    void (*kernel)(Parameters...),
    const dim3& grid,
    const dim3& block,
    size_t shared,
    std::common_type_t<Parameters>... arguments) {
  void* pointers[] = {&arguments...};
  launch_function(reinterpret_cast<const void*>(kernel), grid, block, shared, pointers, false);
}

template <typename... Parameters>
void launch_early(
    void (*kernel)(Parameters...),
    const dim3& grid,
    const dim3& block,
    std::common_type_t<Parameters>... arguments) {
  void* pointers[] = {&arguments...};
  launch_function(reinterpret_cast<const void*>(kernel), grid, block, 0, pointers, true);
}

// For the kernel before, and all that it stored.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
