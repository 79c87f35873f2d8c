// The host's half of PointwiseExt.cuh: from a TensorIterator to a kernel's arguments, and launches.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/cuda/PointwiseExt.h>

#include <ATen/native/TensorIterator.h>
#include <c10/core/DynamicCast.h>
#include <c10/core/Scalar.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

namespace at::native::pointwise_ext {

ScalarType common_type(const TensorIteratorBase& iter) {
  return iter.common_dtype();
}

template <typename T>
T value_of(const c10::Scalar& scalar) {
  return scalar.to<T>();
}

template bool value_of(const c10::Scalar&);
template int64_t value_of(const c10::Scalar&);
template float value_of(const c10::Scalar&);
template double value_of(const c10::Scalar&);
template c10::complex<float> value_of(const c10::Scalar&);
template c10::complex<double> value_of(const c10::Scalar&);

namespace {

template <int kTensors>
Offsets<kTensors> offsets_of(const TensorIteratorBase& iter) {
  Offsets<kTensors> offsets;
  offsets.dims = iter.ndim();
  TORCH_CHECK(offsets.dims <= kMostDims, "tensor has too many (>", kMostDims, ") dims");
  for (int dim = 0; dim < offsets.dims; ++dim) {
    offsets.sizes[dim] = at::cuda::detail::IntDivider<uint32_t>(iter.shape()[dim]);
    for (int i = 0; i < kTensors; ++i) {
      offsets.strides[dim][i] = iter.strides(i)[dim];
    }
  }
  return offsets;
}

template <typename... Arguments>
void launch(const void* kernel, int64_t count, int64_t per_block, Arguments*... arguments) {
  auto elements = static_cast<uint32_t>(count);
  void* pointers[] = {&elements, arguments...};
  C10_CUDA_CHECK(cudaLaunchKernel(
      kernel,
      static_cast<unsigned>((count + per_block - 1) / per_block),
      kThreads,
      pointers,
      0,
      c10::cuda::getCurrentCUDAStream()));
}

template <typename opmath_t, int kInputs>
void run_piece(TensorIteratorBase& iter, const Kernels& kernels, void* op) {
  constexpr int kTensors = 1 + kInputs;
  TORCH_INTERNAL_ASSERT(iter.ntensors() == kTensors);
  Operands<opmath_t, kInputs> operands{};
  operands.common_type = iter.common_dtype();
  operands.output = static_cast<char*>(iter.data_ptr(0));
  operands.output_type = iter.dtype(0);
  bool contiguous = iter.ndim() <= 1;
  bool converts = false;
  for (int i = 0; i < kTensors; ++i) {
    const ScalarType type = iter.dtype(i);
    const void* const data = iter.data_ptr(i);
    if (i > 0 && iter.is_cpu_scalar(i)) {
      operands.scalars[i - 1] = c10::fetch_and_cast<opmath_t>(type, data);
      continue;
    }
    if (i > 0) {
      operands.inputs[i - 1] = static_cast<const char*>(data);
      operands.input_types[i - 1] = type;
    }
    converts |= type != operands.common_type;
    contiguous &= reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 &&
        (iter.ndim() == 0 || iter.strides(i)[0] == static_cast<int64_t>(elementSize(type)));
  }
  const int64_t count = iter.numel();
  if (contiguous && !converts) {
    launch(kernels.contiguous, count, kernels.contiguous_per_block, &operands, op);
    return;
  }
  auto offsets = offsets_of<kTensors>(iter);
  if (converts) {
    launch(kernels.converting, count, kThreads * kConverting, &offsets, &operands, op);
  } else {
    launch(kernels.strided, count, kThreads * kStrided, &offsets, &operands, op);
  }
}

} // namespace

template <typename opmath_t, int kInputs>
void run_kernels(TensorIteratorBase& iter, const Kernels& kernels, const void* op) {
  // A launch copies its arguments, and takes them by pointers to what could be written.
  void* const copied = const_cast<void*>(op);
  if (iter.numel() == 0) {
    return;
  }
  if (iter.can_use_32bit_indexing()) {
    run_piece<opmath_t, kInputs>(iter, kernels, copied);
    return;
  }
  for (auto& piece : iter.with_32bit_indexing()) {
    run_piece<opmath_t, kInputs>(piece, kernels, copied);
  }
}

template void run_kernels<float, 1>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<double, 1>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<bool, 2>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<int64_t, 2>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<float, 2>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<double, 2>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<c10::complex<float>, 2>(TensorIteratorBase&, const Kernels&, const void*);
template void run_kernels<c10::complex<double>, 2>(
    TensorIteratorBase&,
    const Kernels&,
    const void*);

} // namespace at::native::pointwise_ext
