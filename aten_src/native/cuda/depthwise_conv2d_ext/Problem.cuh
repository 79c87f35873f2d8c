// What a call is, as the kernels see it. Nothing of ATen beyond its 16-bit types is included here or by a
// kernel: parsing Tensor.h takes longer than compiling most of them, once for each architecture.
#pragma once

#include <ATen/native/DepthwiseConv2dExt.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAMacros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

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
ForwardEntry patches_forward;
ForwardEntry boxes_forward;
ForwardEntry plane_gemm_forward;
ForwardEntry bands_forward;
ForwardEntry sequence_forward;
ForwardEntry generic_forward;
BackwardEntry march_grad_weight;
BackwardEntry boxes_backward;
BackwardEntry plane_gemm_backward;
BackwardEntry sequence_backward;
BackwardEntry tiles_grad_weight;
BackwardEntry generic_grad_weight;

constexpr int64_t kLargeWindow = 9; // rows of taps from which arithmetic counts more than memory

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

// Of the current device.
cudaStream_t current_stream();

inline int64_t multiprocessors() {
  return device().multiprocessors;
}

// Whether a block may have so much shared memory.
inline bool has_shared(int64_t bytes) {
  return bytes <= device().shared;
}

// Whether the kernel that runs on the current device was compiled for sm_90 or later, which has bulk
// copies and boxes: a build for older devices alone may run on newer ones too. Each device
// is asked once.
template <auto kKernel>
bool compiled_for_sm_90() {
  enum : uint8_t { kUnknown, kNo, kYes };
  static std::array<std::atomic<uint8_t>, C10_COMPILE_TIME_MAX_GPUS> of_devices{};
  std::atomic<uint8_t>& known = of_devices[device().index];
  if (known.load(std::memory_order_relaxed) == kUnknown) {
    cudaFuncAttributes attributes{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kKernel)));
    const bool compiled = attributes.ptxVersion >= 90 && device().capability >= 9;
    known.store(compiled ? kYes : kNo, std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed) == kYes;
}

// Lets a kernel take more shared memory than every device gives without being asked.
template <typename Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  constexpr size_t kUnasked = 40 * 1024; // of 48, the rest for what the kernel declares
  if (bytes > kUnasked) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel),
        cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(bytes)));
  }
}

// As many blocks as can be resident at once.
template <typename Kernel>
int64_t resident_blocks(Kernel* kernel, int threads, size_t shared) {
  int of_multiprocessor = 0;
  allow_shared(kernel, shared);
  C10_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_multiprocessor, kernel, threads, shared));
  return of_multiprocessor * multiprocessors();
}

// Whether calls and launches are printed.
bool is_logged();

// Prints a launch if that is asked for.
void log_launch(const void* kernel, const dim3& grid, const dim3& block, size_t shared);

// A kernel with an attribute of its launch, or none, on the current stream.
template <typename... Parameters>
void launch_with(
    const cudaLaunchAttribute* attribute,
    void (*kernel)(Parameters...),
    const dim3& grid,
    const dim3& block,
    size_t shared,
    std::common_type_t<Parameters>... arguments) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  allow_shared(kernel, shared);
  log_launch(function, grid, block, shared);
  void* pointers[] = {&arguments...};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = current_stream();
  config.attrs = const_cast<cudaLaunchAttribute*>(attribute);
  config.numAttrs = attribute == nullptr ? 0 : 1;
  C10_CUDA_CHECK(cudaLaunchKernelExC(&config, function, pointers));
}

template <typename... Parameters>
void launch_kernel(
    void (*kernel)(Parameters...),
    const dim3& grid,
    const dim3& block,
    size_t shared,
    std::common_type_t<Parameters>... arguments) {
  launch_with(nullptr, kernel, grid, block, shared, arguments...);
}

// Launches a kernel that waits by wait_for_kernel_before() for the one before it, where the device lets it
// begin while that one ends.
template <typename... Parameters>
void launch_early(
    void (*kernel)(Parameters...),
    const dim3& grid,
    const dim3& block,
    std::common_type_t<Parameters>... arguments) {
#if CUDART_VERSION >= 12030 // from here on in graphs too
  if (device().capability >= 9) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    launch_with(&early, kernel, grid, block, 0, arguments...);
    return;
  }
#endif
  launch_kernel(kernel, grid, block, 0, arguments...);
}

// For the kernel before, and all that it stored.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
