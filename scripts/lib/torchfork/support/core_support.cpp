// Stands in for what generated C++ calls and libtorch_cpu.so keeps to itself.
//
// libtorch is built with hidden visibility, so a few helpers that its own generated files call are
// declared in the wheel's headers and exported by no library. They are small, and their contracts
// are their declarations; these are definitions of our own, hidden in the grafted library. Where a
// release exports one again, its own libraries go on using that.

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/IListRef.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/VariableType.h>

#include <string_view>
#include <utility>
#include <vector>

namespace torch::autograd {

// What zeros_like(x) in a formula becomes, so that x need not be saved.
at::Tensor TypeAndSize::zeros() {
  return at::zeros_symint(sym_sizes, options);
}

} // namespace torch::autograd

namespace torch::autograd::generated::details {

c10::SymIntArrayRef strides_or_error(const at::Tensor& input, std::string_view const& input_name);

// What a formula's sym_strides() becomes; of tensors that have no strides, no helper reads them.
c10::SymIntArrayRef strides_or_error(const at::Tensor& input, std::string_view const&) {
  return input.layout() == c10::kStrided ? input.sym_strides() : c10::SymIntArrayRef();
}

} // namespace torch::autograd::generated::details

namespace torch::autograd::VariableType {

namespace {

void check_defined(const at::Tensor& t, const char* name, int pos) {
  TORCH_CHECK(
      t.defined(),
      "Expected a Tensor for argument #",
      pos,
      " '",
      name,
      "', but got None (an undefined Tensor in C++)");
}

} // namespace

at::Tensor& unpack(at::Tensor& t, const char* name, int pos) {
  check_defined(t, name, pos);
  return t;
}

const at::Tensor& unpack(const at::Tensor& t, const char* name, int pos) {
  check_defined(t, name, pos);
  return t;
}

at::Tensor unpack_opt(const at::Tensor& t, const char* name, int pos) {
  return t.defined() ? unpack(t, name, pos) : at::Tensor();
}

std::vector<at::Tensor> unpack(const at::ITensorListRef& tl, const char* name, int pos) {
  std::vector<at::Tensor> unpacked;
  unpacked.reserve(tl.size());
  for (const auto& t : tl) {
    check_defined(t, name, pos);
    unpacked.push_back(t);
  }
  return unpacked;
}

} // namespace torch::autograd::VariableType

namespace at::functionalization::impl {

namespace {

// A view's description is held by value up to 2.8 or so, by shared_ptr after; the tooling reads
// which from FunctionalTensorWrapper.h and says so by TORCHFORK_SHARED_VIEW_META.
#if TORCHFORK_SHARED_VIEW_META
using ViewMetaArgument = const std::shared_ptr<ViewMeta>&;
using ViewMetaReference = const std::shared_ptr<ViewMeta>&;
std::shared_ptr<ViewMeta> at_output(ViewMetaArgument meta, int64_t index) {
  return index == 0 ? meta : meta->to_out_index(index);
}
#else
using ViewMetaArgument = ViewMeta;
using ViewMetaReference = const ViewMeta&;
// What the hidden ViewMeta::to_out_idx does: the same view, told as another of its results.
ViewMeta at_output(ViewMeta meta, int64_t index) {
  return ViewMeta(
      std::move(meta.forward_fn),
      std::move(meta.reverse_fn),
      meta.has_symbolic_inputs,
      meta.is_multi_output,
      meta.is_as_strided,
      index);
}
#endif

} // namespace

Tensor create_functional_tensor_with_view_meta(
    const Tensor& view_to_wrap,
    const Tensor& base,
    ViewMetaArgument meta,
    int64_t out_idx) {
  TORCH_INTERNAL_ASSERT(!isFunctionalTensor(view_to_wrap));
  TORCH_INTERNAL_ASSERT(isFunctionalTensor(base));
  return at::detail::make_tensor<FunctionalTensorWrapper>(
      view_to_wrap, unsafeGetFunctionalWrapper(base), at_output(meta, out_idx));
}

std::vector<Tensor> create_functional_tensor_with_view_meta(
    ITensorListRef view_to_wrap,
    const Tensor& base,
    ViewMetaReference meta) {
  std::vector<Tensor> wrapped;
  wrapped.reserve(view_to_wrap.size());
  int64_t index = 0;
  for (const auto& view : view_to_wrap) {
    wrapped.push_back(create_functional_tensor_with_view_meta(view, base, meta, index++));
  }
  return wrapped;
}

void mutate_view_meta(const Tensor& self, ViewMetaReference meta) {
  TORCH_INTERNAL_ASSERT(isFunctionalTensor(self));
  unsafeGetFunctionalWrapper(self)->mutate_view_meta(meta);
}

void set_sizes_strides_offset(const Tensor& out, const Tensor& meta_out) {
  out.unsafeGetTensorImpl()->set_sizes_and_strides(
      meta_out.sym_sizes(), meta_out.sym_strides(), meta_out.sym_storage_offset());
}

void set_sizes_strides_offset(
    const std::vector<Tensor>& outs,
    const std::vector<Tensor>& meta_outs) {
  TORCH_INTERNAL_ASSERT(outs.size() == meta_outs.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    set_sizes_strides_offset(outs[i], meta_outs[i]);
  }
}

} // namespace at::functionalization::impl
