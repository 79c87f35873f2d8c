// Barriers in shared memory that count the bytes of bulk copies, and such copies: of sm_90 and later.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Vectors.cuh>
#include <cstdint>

namespace at::native::depthwise_conv2d_ext_cuda {

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A round of a barrier ends when all `arrivals` have come, and all the bytes that they expect.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

// After what the thread itself has written to shared memory, before copies that write there.
__device__ __forceinline__ void fence_shared() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// After the thread's init_barrier(), so that copies meet what they did.
__device__ __forceinline__ void fence_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  fence_shared();
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Arrives, and says how many bytes copies will bring; before them.
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// A run of memory, of a multiple of 16 bytes from a multiple of them on, by one thread.
__device__ __forceinline__ void load_run(void* to, uint32_t barrier, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from),
      "r"(bytes),
      "r"(barrier)
      : "memory");
#endif
}

// Until the round of this parity has ended: the first has parity 0, and a barrier that is new stands as
// if one of parity 1 had.
__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 800
#if __CUDA_ARCH__ >= 900
#define DEPTHWISE_CONV2D_EXT_WAIT "mbarrier.try_wait" // sleeps for a while
#else
#define DEPTHWISE_CONV2D_EXT_WAIT "mbarrier.test_wait"
#endif
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n" DEPTHWISE_CONV2D_EXT_WAIT
        ".parity.shared.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
#undef DEPTHWISE_CONV2D_EXT_WAIT
#endif
}
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
