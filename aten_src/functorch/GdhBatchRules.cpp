// vmap of gdh and gdh_copy, as compositions of operators that have batch rules.
//
// A composite operator is not taken apart for vmap on its own: upstream lists each of its own
// (OP_DECOMPOSE in BatchRulesDecompositions.cpp), and without an entry vmap refuses a view operator
// and runs gdh_copy in a loop.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/gdh_native.h>
#endif

namespace at::functorch {

namespace {

Tensor gdh_copy_decomposition(const Tensor& input) {
  return input.clone(at::MemoryFormat::Contiguous).view(-1);
}

} // namespace

// Under the runtime key: torch 2.6 does not look at the alias key that upstream uses
// (FuncTorchBatchedDecomposition) for an operator that is declared after libtorch is loaded.
TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("gdh", TORCH_FN(at::native::gdh));
  m.impl("gdh_copy", TORCH_FN(gdh_copy_decomposition));
}

} // namespace at::functorch
