// CUDA entries of depthwise_conv2d_ext: from tensors to operands, and from a call to a row of Table.cuh; the current
// device, and launches on it. Of the host alone, and so compiled once and not for each architecture.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Type.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Table.cuh>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#endif

namespace at::native {

namespace depthwise_conv2d_ext_cuda {

namespace {

// The number after "name=" in DEPTHWISE_CONV2D_EXT_DEVICE, at most what the device has.
int64_t at_most(int64_t real, const std::string& name) {
  static const char* const given = std::getenv("DEPTHWISE_CONV2D_EXT_DEVICE");
  const std::string text = given == nullptr ? "" : std::string(",") + given;
  const size_t place = text.find("," + name + "=");
  if (place == std::string::npos) {
    return real;
  }
  const int64_t number = std::atoll(text.c_str() + place + name.size() + 2);
  TORCH_CHECK(
      number > 0,
      "DEPTHWISE_CONV2D_EXT_DEVICE: expected ",
      name,
      " to be a positive number, but got '",
      given,
      "'");
  return std::min(real, number);
}

Device describe(int index) {
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, index));
    return int64_t{value};
  };
  return {
      index,
      at_most(attribute(cudaDevAttrComputeCapabilityMajor), "capability"),
      at_most(attribute(cudaDevAttrMultiProcessorCount), "multiprocessors"),
      at_most(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), "shared"),
      at_most(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor), "shared")};
}

} // namespace

const Device& device() {
  static const std::vector<Device> devices = [] {
    std::vector<Device> all;
    for (int i = 0; i < c10::cuda::device_count(); ++i) {
      all.push_back(describe(i));
    }
    return all;
  }();
  return devices[c10::cuda::current_device()];
}

namespace {

// Lets a kernel take more shared memory than every device gives without being asked.
void allow_shared(const void* kernel, size_t bytes) {
  constexpr size_t kUnasked = 40 * 1024; // of 48, the rest for what the kernel declares
  if (bytes > kUnasked) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  }
}

// Whether calls and launches are printed.
bool is_logged() {
  static const char* const asked = std::getenv("DEPTHWISE_CONV2D_EXT_LOG");
  return asked != nullptr && std::string(asked) != "0";
}

void log_launch(const void* kernel, const dim3& grid, const dim3& block, size_t shared) {
  if (!is_logged()) {
    return;
  }
  const char* name = "a kernel";
#if CUDART_VERSION >= 12030
  C10_CUDA_CHECK(cudaFuncGetName(&name, kernel));
#endif
  std::fprintf(
      stderr,
      "depthwise_conv2d_ext:   %s grid %u,%u,%u block %u,%u,%u shared %zu\n",
      c10::demangle(name).c_str(),
      grid.x,
      grid.y,
      grid.z,
      block.x,
      block.y,
      block.z,
      shared);
}

} // namespace

bool is_compiled_for(const void* kernel, int64_t capability) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int64_t> versions; // each is asked for once
  const std::lock_guard<std::mutex> lock(mutex);
  int64_t& version = versions[{kernel, device().index}];
  if (version == 0) {
    cudaFuncAttributes attributes{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    version = attributes.ptxVersion;
  }
  return version >= 10 * capability && device().capability >= capability;
}

int64_t resident_blocks(const void* kernel, int threads, size_t shared) {
  int of_multiprocessor = 0;
  allow_shared(kernel, shared);
  C10_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_multiprocessor, kernel, threads, shared));
  return of_multiprocessor * multiprocessors();
}

void launch_function(
    const void* kernel,
    const dim3& grid,
    const dim3& block,
    size_t shared,
    void** arguments,
    bool early) {
  allow_shared(kernel, shared);
  log_launch(kernel, grid, block, shared);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = c10::cuda::getCurrentCUDAStream();
  cudaLaunchAttribute attribute{};
#if CUDART_VERSION >= 12030 // from here on in graphs too
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = early && device().capability >= 9 ? 1 : 0;
#endif
  C10_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel, arguments));
}

namespace {

// A call as the table's columns have it.
struct Features {
  Passes pass;
  Orders order;
  Types type;
  Steps steps;
  Outputs outputs;
  int64_t taps;
  int64_t work;

  Features(Passes of, const Params& p, Type scalar) : pass(of) {
    const bool dilated = p.dilation_height != 1 || p.dilation_width != 1;
    const auto strides = [&](int64_t stride) {
      return p.stride_height == stride && p.stride_width == stride;
    };
    order = p.channels_last ? kPixels : kPlanes;
    type = scalar == Type::kDouble ? kFloat64 : scalar == Type::kFloat ? kFloat32 : kSixteen;
    steps = strides(1) ? (dilated ? kDilated : kUnit) : strides(2) && !dilated ? kTwo : kOtherSteps;
    outputs = p.multiplier == 1 ? kOne : kSeveral;
    taps = p.kernel_size();
    const int64_t elements = pass == kGradInput
        ? p.channels * p.input_height * p.input_width
        : p.output_channels() * p.output_height * p.output_width;
    work = p.batch * elements / (1024 * multiprocessors());
  }
};

// Whether DEPTHWISE_CONV2D_EXT_KERNELS lets the kernel be taken.
bool is_allowed(const std::string& kernel) {
  static const char* const given = std::getenv("DEPTHWISE_CONV2D_EXT_KERNELS");
  if (given == nullptr || kernel == "generic") {
    return true;
  }
  const std::string list = std::string(",") + given + ",";
  const bool forbids = list[1] == '-';
  const bool named = list.find((forbids ? ",-" : ",") + kernel + ",") != std::string::npos;
  return named != forbids;
}

bool meets(const Row& row, const Features& call) {
  const auto holds = [](const Range& range, int64_t value) {
    return range.least <= value && value <= range.most;
  };
  return (row.passes & call.pass) && (row.orders & call.order) && (row.types & call.type) &&
      (row.steps & call.steps) && (row.outputs & call.outputs) && holds(row.taps, call.taps) &&
      holds(row.work, call.work) && device().capability >= row.capability && is_allowed(row.kernel);
}

// What empty() gave to the entries that have not returned yet.
thread_local std::vector<Tensor> allocated;

struct FreesAllocated {
  size_t before = allocated.size();
  ~FreesAllocated() {
    allocated.resize(before);
  }
};

// Whether a row took the call; run: whether its kernel did.
template <typename Run>
bool choose(const Features& call, const Run& run) {
  const FreesAllocated at_the_end;
  for (const Row& row : kTable) {
    if (meets(row, call) && run(row)) {
      if (is_logged()) {
        std::fprintf(
            stderr,
            "depthwise_conv2d_ext: %s, row %d\n",
            row.kernel,
            static_cast<int>(&row - kTable));
      }
      return true;
    }
  }
  return false;
}

const Operand kNone;

bool data(const ForwardPass& pass, const Params& p) {
  const Type type = pass.src.type();
  const Features call(pass.grad_input ? kGradInput : kForward, p, type);
  return choose(call, [&](auto& row) { return row.forward[static_cast<int>(type)](pass, p); });
}

bool gradients(const BackwardPass& pass, const Params& p) {
  const Type type = pass.input.type();
  const Features call(pass.grad_input.defined() ? kAllGradients : kGradWeight, p, type);
  return choose(call, [&](auto& row) { return row.backward[static_cast<int>(type)](pass, p); });
}

// One kernel for all that is wanted if there is one for that, else grad_input and the others apart.
void backward(const BackwardPass& pass, const Params& p) {
  if (pass.grad_input.defined() && pass.asks_weight() && gradients(pass, p)) {
    return;
  }
  if (pass.grad_input.defined()) {
    data({pass.grad_input, pass.grad_output, pass.weight, kNone, true}, p);
  }
  if (pass.asks_weight()) {
    gradients(
        {kNone, pass.grad_weight, pass.grad_bias, pass.grad_output, pass.input, pass.weight}, p);
  }
}

TensorOptions options_of(Type type) {
  return at::device(at::Device(kCUDA, device().index))
      .dtype(
          type == Type::kDouble      ? kDouble
              : type == Type::kHalf  ? kHalf
              : type == Type::kFloat ? kFloat
                                     : kBFloat16);
}

// Of a tensor that a kernel reads or, where it is a new result, writes. Asking for a mutable pointer would make a
// copy of an input that is copied on write.
Operand as_operand(const TensorBase& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const ScalarType type = tensor.scalar_type();
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), sizes.begin());
  return {
      const_cast<void*>(tensor.const_data_ptr()),
      type == kDouble      ? Type::kDouble
          : type == kHalf  ? Type::kHalf
          : type == kFloat ? Type::kFloat
                           : Type::kBFloat16,
      sizes};
}

Params planes_of(const Params& p) {
  Params planes = p;
  planes.channels_last = false;
  return planes;
}

// In plane order what is in channels-last order.
Operand planes_like(const Operand& like) {
  return empty(like.sizes(), like.type());
}

Operand in_planes(const Operand& pixels) {
  const Operand planes = planes_like(pixels);
  if (pixels.numel() > 0) {
    transpose(planes, pixels, pixels.size(2) * pixels.size(3), pixels.size(1), pixels.size(0));
  }
  return planes;
}

void copy_planes(const Operand& pixels, const Operand& planes) {
  if (pixels.numel() > 0) {
    transpose(pixels, planes, pixels.size(1), pixels.size(2) * pixels.size(3), pixels.size(0));
  }
}

} // namespace

Operand empty(const std::array<int64_t, 4>& sizes, Type type) {
  allocated.push_back(at::empty(sizes, options_of(type)));
  return {allocated.back().data_ptr(), type, sizes};
}

bool by_planes_forward(const ForwardPass& pass, const Params& p) {
  if (!fits_32_bits(p)) {
    return false;
  }
  const Operand dst = planes_like(pass.dst);
  data({dst, in_planes(pass.src), pass.weight, pass.bias, pass.grad_input}, planes_of(p));
  copy_planes(pass.dst, dst);
  return true;
}

// All gradients together, so that grad_output is copied once.
bool by_planes_backward(const BackwardPass& pass, const Params& p) {
  if (!fits_32_bits(p)) {
    return false;
  }
  const bool data_too = pass.grad_input.defined();
  const Operand written = data_too ? planes_like(pass.grad_input) : kNone;
  backward(
      {written,
       pass.grad_weight,
       pass.grad_bias,
       in_planes(pass.grad_output),
       in_planes(pass.input),
       pass.weight},
      planes_of(p));
  if (data_too) {
    copy_planes(pass.grad_input, written);
  }
  return true;
}

namespace {

// Leaves out the taps before the first and after the last that meet the image, of the columns or, if `down`, the
// rows; how many before. Neither the forward's padding nor that of grad_input becomes less than zero by it, but what
// is left behind the image need not be what is left before it.
int64_t crop(Params& p, bool down) {
  const int64_t size = down ? p.input_height : p.input_width;
  const int64_t outputs = down ? p.output_height : p.output_width;
  const int64_t stride = down ? p.stride_height : p.stride_width;
  const int64_t dilation = down ? p.dilation_height : p.dilation_width;
  int64_t& taps = down ? p.kernel_height : p.kernel_width;
  int64_t& padding = down ? p.padding_height : p.padding_width;
  const auto is_met = [&](int64_t tap) {
    const int64_t before = padding - tap * dilation; // from output 0 to the image
    const int64_t output = before > 0 ? divide_up(before, stride) : 0;
    return output < outputs && output * stride - before < size;
  };
  int64_t first = 0;
  for (; taps > 1 && padding >= dilation && !is_met(0); ++first) {
    --taps;
    padding -= dilation;
  }
  while (taps > 1 && (taps - 2) * dilation >= padding && !is_met(taps - 1)) {
    --taps;
  }
  return first;
}

// A call without taps that meet padding alone, where these are half the window or more, which is worth a copy of the
// others. Not in channels-last order where there is a kernel for windows of its very size.
struct Cropped {
  Params params;
  int64_t row; // of the call's window, where this one begins
  int64_t column;
  bool differs;

  explicit Cropped(const Params& p)
      : params(p), row(crop(params, true)), column(crop(params, false)) {
    const bool has_window = p.channels_last && with_window(p, [](auto) { return true; });
    differs = params.kernel_size() * 2 <= p.kernel_size() && !has_window;
    if (!differs) {
      params = p;
    }
  }

  // The taps that are left.
  Tensor window(const Tensor& of) const {
    return of.narrow(2, row, params.kernel_height).narrow(3, column, params.kernel_width);
  }

  Tensor weight(const TensorBase& given) const {
    const Tensor whole(given);
    return differs ? window(whole).contiguous() : whole;
  }
};

} // namespace

} // namespace depthwise_conv2d_ext_cuda

namespace {

namespace cuda_kernels = depthwise_conv2d_ext_cuda;
using cuda_kernels::as_operand;

void forward_cuda(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const DepthwiseConv2dExtParams& p) {
  const cuda_kernels::Cropped cropped(p);
  const Tensor taps = cropped.weight(weight);
  cuda_kernels::data(
      {as_operand(output), as_operand(input), as_operand(taps), as_operand(bias)}, cropped.params);
}

void backward_cuda(
    const TensorBase& grad_input,
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const TensorBase& weight,
    const DepthwiseConv2dExtParams& p) {
  const cuda_kernels::Cropped cropped(p);
  const Tensor taps = grad_input.defined() ? cropped.weight(weight) : Tensor();
  const bool in_part = cropped.differs && grad_weight.defined();
  const Tensor whole(grad_weight);
  const Tensor written =
      in_part ? at::empty_like(cropped.window(whole), MemoryFormat::Contiguous) : whole;
  cuda_kernels::backward(
      {as_operand(grad_input),
       as_operand(written),
       as_operand(grad_bias),
       as_operand(grad_output),
       as_operand(input),
       as_operand(taps)},
      cropped.params);
  if (in_part) {
    whole.zero_();
    cropped.window(whole).copy_(written);
  }
}

} // namespace

REGISTER_CUDA_DISPATCH(depthwise_conv2d_ext_stub, &forward_cuda)
REGISTER_CUDA_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_cuda)

} // namespace at::native
