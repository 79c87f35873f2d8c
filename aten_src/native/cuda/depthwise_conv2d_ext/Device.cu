// The current device and the log of launches, see Device.cuh.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Device.cuh>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace at::native::depthwise_conv2d_ext_cuda {

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

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream();
}

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

} // namespace at::native::depthwise_conv2d_ext_cuda
