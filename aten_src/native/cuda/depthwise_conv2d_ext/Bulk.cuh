// Barriers in shared memory, as the kernels of depthwise_conv2d_ext use them whose warps have
// different roles, or whose rows come in by bulk copies, whose bytes they count. The barriers are of
// sm_80 and later, the copies of sm_90; nothing before. And what a warp copies into buffers of its
// own and out of them, before sm_90 by other copies.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Vectors.cuh>
#include <cstdint>

namespace at::native::depthwise_conv2d_ext_cuda {

// Runs begin and end at multiples of these: a bulk copy moves no less.
constexpr int kBulkBytes = 16;
// Runs that begin anywhere lie in shared memory as far from a multiple of these as in their tensor: a bulk
// copy whose two places differ by 16 bytes modulo 32 takes a third longer, by less than a line a little. As
// far from 16 bytes only and from a line: 3072@1x202 in float 158 us and 154, the weight's gradient 170 and
// 162, all 262 and 252; 33@65x513 in channels-last, the weight's 289 and 270, all in half 350 and 313.
constexpr int kLineBytes = 128;

// Whether the tensor begins where a run may, or is none.
inline bool begins_a_run(const Operand& tensor) {
  return !tensor.defined() || is_aligned(tensor.const_data_ptr(), kBulkBytes);
}

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

// After a thread's stores to shared memory, or its reads of what copies will write: for bulk copies that begin
// after the barrier that follows.
__device__ __forceinline__ void fence_for_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A run out of shared memory, of a multiple of 16 bytes to a multiple of them, by one thread.
__device__ __forceinline__ void store_run(void* to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;\n" ::"l"(to),
      "r"(shared_address(from)),
      "r"(bytes)
      : "memory");
#endif
}

// Until the buffers of what the thread sent may be written again.
__device__ __forceinline__ void wait_until_sent() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Until all that the thread sent is in device memory; before the block ends.
__device__ __forceinline__ void wait_until_stored() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
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

// Runs of a warp on their way into kStages buffers and out of one: bulk copies where there are any, else
// copies of 16 bytes a lane. All lanes call everything.
template <int kStages>
struct WarpRuns {
  static constexpr int kBarrierBytes = kStages * static_cast<int>(sizeof(uint64_t));

  const uint32_t barriers;

  __device__ __forceinline__ explicit WarpRuns(void* shared) : barriers(shared_address(shared)) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < kStages; ++i) {
        init_barrier(barrier(i), 1);
      }
      fence_barriers();
    }
    __syncwarp();
#endif
  }

  __device__ __forceinline__ uint32_t barrier(int stage) const {
    return barriers + stage * static_cast<int>(sizeof(uint64_t));
  }

  // Says how many bytes the runs into a stage have; before them.
  __device__ __forceinline__ void expect(int stage, int bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      arrive_and_expect(barrier(stage), bytes);
    }
#endif
  }

  __device__ __forceinline__ void load(int stage, void* to, const void* from, int bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      load_run(to, barrier(stage), from, bytes);
    }
#else
    for (int i = threadIdx.x * kBulkBytes; i < bytes; i += kWarpSize * kBulkBytes) {
      copy_async<kBulkBytes>(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, true);
    }
#endif
  }

  // After the runs into a stage, or none.
  __device__ __forceinline__ void commit() const {
#if __CUDA_ARCH__ < 900
    commit_copies();
#endif
  }

  // Until the runs into a stage are there; `parity` changes with each use of the stage.
  __device__ __forceinline__ void wait(int stage, uint32_t parity) const {
#if __CUDA_ARCH__ >= 900
    wait_for(barrier(stage), parity);
#else
    wait_for_groups<kStages - 1>();
    __syncwarp();
#endif
  }

  // Sends what the lanes wrote; afterwards all of them have also read what they wanted of a stage.
  __device__ __forceinline__ void store(void* to, const void* from, int bytes) const {
#if __CUDA_ARCH__ >= 900
    fence_for_copies();
    __syncwarp();
    if (threadIdx.x == 0) {
      store_run(to, from, bytes);
    }
#else
    __syncwarp();
    for (int i = threadIdx.x * kBulkBytes; i < bytes; i += kWarpSize * kBulkBytes) {
      *reinterpret_cast<uint4*>(static_cast<char*>(to) + i) =
          *reinterpret_cast<const uint4*>(static_cast<const char*>(from) + i);
    }
#endif
  }

  // Until the buffer of what was sent may be written again.
  __device__ __forceinline__ void wait_sent() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      wait_until_sent();
    }
#endif
    __syncwarp();
  }

  // Until all that was sent is in device memory; before the block ends.
  __device__ __forceinline__ void finish() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      wait_until_stored();
    }
#endif
  }
};
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
