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

void sigmoid_ext_kernel_cuda(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "sigmoid_ext_cuda", [&] {
    using opmath_t = opmath_type<scalar_t>;
    gpu_kernel(iter, [] GPU_LAMBDA(scalar_t x) -> scalar_t {
      const auto value = static_cast<opmath_t>(x);
      const auto e = std::exp(-std::abs(value));
      return (value >= opmath_t(0) ? opmath_t(1) : e) / (opmath_t(1) + e);
    });
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
