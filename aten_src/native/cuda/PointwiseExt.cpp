// The host's half of PointwiseExt.cuh: from a TensorIterator to pieces, and launches.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/cuda/PointwiseExt.h>

#include <ATen/native/TensorIterator.h>
#include <c10/core/Scalar.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

namespace at::native::pointwise_ext {

namespace {

void visit_piece(TensorIteratorBase& iter, c10::function_ref<void(const Piece&)> visit) {
  TORCH_CHECK(iter.ndim() <= kMostDims, "tensor has too many (>", kMostDims, ") dims");
  TORCH_INTERNAL_ASSERT(iter.ntensors() <= kMostTensors);
  Piece piece{iter.numel(), iter.ndim(), iter.shape().data(), iter.common_dtype(), {}};
  for (int i = 0; i < iter.ntensors(); ++i) {
    piece.tensors[i] = {
        iter.data_ptr(i), iter.strides(i).data(), iter.dtype(i), i > 0 && iter.is_cpu_scalar(i)};
  }
  visit(piece);
}

} // namespace

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

void for_each_piece(TensorIteratorBase& iter, c10::function_ref<void(const Piece&)> visit) {
  if (iter.numel() == 0) {
    return;
  }
  if (iter.can_use_32bit_indexing()) {
    visit_piece(iter, visit);
    return;
  }
  for (auto& piece : iter.with_32bit_indexing()) {
    visit_piece(piece, visit);
  }
}

void launch(const void* kernel, int64_t blocks, int threads, void** arguments) {
  C10_CUDA_CHECK(cudaLaunchKernel(
      kernel,
      static_cast<unsigned int>(blocks),
      threads,
      arguments,
      0,
      c10::cuda::getCurrentCUDAStream()));
}

} // namespace at::native::pointwise_ext
