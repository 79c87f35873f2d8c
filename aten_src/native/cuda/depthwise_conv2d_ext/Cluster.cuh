// A cluster of blocks that share what their sums are added up in, which saves a second kernel for it.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kMostOfCluster = 8; // blocks, on every device that has clusters

// Whether the kernel runs in clusters on the current device.
template <auto kKernel>
bool has_clusters() {
#if CUDART_VERSION >= 12000
  return compiled_for_sm_90<kKernel>();
#else
  return false;
#endif
}

// A kernel on a grid of clusters that are as wide as the grid is.
template <typename... Parameters, typename... Arguments>
void launch_clusters(
    void (*kernel)(Parameters...),
    dim3 grid,
    dim3 block,
    size_t shared,
    Arguments... arguments) {
#if CUDART_VERSION >= 12000
  if (grid.x > 1) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {grid.x, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = c10::cuda::getCurrentCUDAStream();
    config.attrs = &attribute;
    config.numAttrs = 1;
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
    return;
  }
#endif
  kernel<<<grid, block, shared, c10::cuda::getCurrentCUDAStream()>>>(arguments...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

#ifdef __CUDACC__
// What the blocks of a cluster send to the first of them, as bytes that a barrier of the first one's counts:
// nobody waits for what else is on its way, as barriers of the whole cluster do for results on their way to
// memory (N=1 144@56 in channels-last, all gradients in half: 5.0 us, 4.7 so).

// By all threads of all blocks, of which the first will get so many bytes.
__device__ __forceinline__ void begin_sending(uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    init_barrier(shared_address(barrier), 1);
    arrive_and_expect(shared_address(barrier), bytes);
    fence_barriers();
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// By all threads, before they send: until all blocks have begun.
__device__ __forceinline__ void wait_for_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// To what `to` is in the first block.
template <typename T>
__device__ __forceinline__ void send_to_first(T* to, std::decay_t<T> value, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  uint32_t address = shared_address(to);
  uint32_t counter = shared_address(barrier);
  asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(address));
  asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(counter));
  if constexpr (sizeof(T) == sizeof(float)) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
        "r"(__float_as_uint(value)),
        "r"(counter)
        : "memory");
  } else {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(address),
        "l"(__double_as_longlong(value)),
        "r"(counter)
        : "memory");
  }
#endif
}

// In the first block: until all of it is there.
__device__ __forceinline__ void wait_for_parts(uint64_t* barrier) {
  wait_for(shared_address(barrier), 0);
}
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
