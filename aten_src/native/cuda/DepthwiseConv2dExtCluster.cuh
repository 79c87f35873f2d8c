// A cluster of blocks that share what their sums are added up in, which saves a second kernel for it.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/DepthwiseConv2dExt.cuh>
#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kMostOfCluster = 8; // blocks, on every device that has clusters

// Whether the kernel runs in clusters on this device: a build for older ones alone may run on newer ones too.
template <typename Kernel>
bool has_clusters(Kernel* kernel) {
#if CUDART_VERSION >= 12000
  cudaFuncAttributes attributes{};
  C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 && attributes.ptxVersion >= 90;
#else
  return false;
#endif
}

// A kernel on a grid of clusters that are as wide as the grid is.
template <typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments... arguments) {
#if CUDART_VERSION >= 12000
  if (grid.x > 1) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {grid.x, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = c10::cuda::getCurrentCUDAStream();
    config.attrs = &attribute;
    config.numAttrs = 1;
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
    return;
  }
#endif
  kernel<<<grid, block, 0, c10::cuda::getCurrentCUDAStream()>>>(arguments...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

#ifdef __CUDACC__
// Each thread arrives once, and waits once or ends, before any arrives again.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// To what `to` is in the first block of the cluster, all of whose blocks have begun.
template <typename T>
__device__ __forceinline__ void store_in_first(T* to, std::decay_t<T> value) {
#if __CUDA_ARCH__ >= 900
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(address));
  if constexpr (sizeof(T) == sizeof(float)) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
  } else {
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(address), "d"(value) : "memory");
  }
#endif
}
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
