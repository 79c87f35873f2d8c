// A Meta kernel that goes on where TensorIterator stops: at symbolic shapes.
//
// torch.compile with dynamic shapes and torch.export run Meta kernels on tensors whose sizes are
// symbols. TensorIterator works on integers and refuses them; upstream gives each of its own
// pointwise operators a Python function for that. The kernel here needs none. It calls the
// operator's own Meta kernel, and only where TensorIterator refuses does it
//
//  1. broadcast the operands' symbolic sizes, which is what TensorIterator would do with them;
//  2. run the operator's own Meta kernel on stand-ins with a number for each symbol. That runs the
//     operator's checks, tells how many results there are and of which types, and shows whether
//     their shape is the broadcast one: where it is not, TensorIterator's refusal stands;
//  3. make the results with the symbolic sizes, and strides as TensorIterator lays them out.
//
// Included by one generated file (codegen/templates.py), which registers it for each added operator
// that has a Meta kernel, in place of that kernel. The dispatcher has the last registration win, and
// this one is in the library that is loaded after libtorch.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torchfork {

using Sizes = std::vector<c10::SymInt>;

inline bool has_symbols(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

inline bool same(c10::SymIntArrayRef left, c10::SymIntArrayRef right) {
  return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin());
}

// The dimensions that an operand and the result share, as TensorIterator's order wants them.
class Layout {
 public:
  explicit Layout(const std::vector<at::Tensor>& operands) : operands_(operands) {
    for (const auto& operand : operands) {
      const auto merged = at::infer_size_symdimvector(sizes_, operand.sym_sizes());
      sizes_.assign(merged.begin(), merged.end());
    }
  }

  const Sizes& sizes() const {
    return sizes_;
  }

  // Whether the operand is as long as the result along a dimension of the result, not broadcast.
  bool spans(const at::Tensor& operand, size_t dimension) const {
    const auto offset = static_cast<int64_t>(sizes_.size()) - operand.dim();
    const auto own = static_cast<int64_t>(dimension) - offset;
    return own >= 0 && operand.sym_size(own) == sizes_[dimension];
  }

  // TensorIterator's short cuts for operands of one shape come before its general rule; they differ
  // from it in the strides of dimensions of size 1.
  Sizes result_strides() const {
    const auto all = [&](const auto& holds) {
      return std::all_of(operands_.begin(), operands_.end(), holds);
    };
    if (all([&](const at::Tensor& t) { return same(t.sym_sizes(), sizes_); })) {
      if (all([](const at::Tensor& t) { return t.is_contiguous(); })) {
        return dense(memory_order({}));
      }
      if (sizes_.size() == 4 && all([](const at::Tensor& t) {
            return t.is_contiguous(at::MemoryFormat::ChannelsLast);
          })) {
        return dense({1, 3, 2, 0});
      }
      const auto first = operands_.front().sym_strides();
      if (all([&](const at::Tensor& t) {
            return t.is_non_overlapping_and_dense() && same(t.sym_strides(), first);
          })) {
        return first.vec();
      }
    }
    std::vector<Sizes> strides;
    for (const auto& operand : operands_) {
      strides.push_back(strides_along(operand));
    }
    return dense(memory_order(strides));
  }

 private:
  // The operand's strides along the dimensions of the result; 0 where it is broadcast.
  Sizes strides_along(const at::Tensor& operand) const {
    Sizes strides(sizes_.size(), c10::SymInt(0));
    const auto offset = sizes_.size() - static_cast<size_t>(operand.dim());
    for (auto d = offset; d < sizes_.size(); ++d) {
      if (spans(operand, d)) {
        strides[d] = operand.sym_stride(static_cast<int64_t>(d - offset));
      }
    }
    return strides;
  }

  // Whether dimension `inner` ought to lie outside `outer`, by the first operand that tells: 1 yes,
  // -1 no, 0 not known.
  int should_swap(const std::vector<Sizes>& strides, size_t inner, size_t outer) const {
    for (const auto& stride : strides) {
      if (stride[inner] == 0 || stride[outer] == 0) {
        continue;
      }
      if (stride[inner] != stride[outer]) {
        return stride[inner] > stride[outer] ? 1 : -1;
      }
      if (sizes_[inner] > sizes_[outer]) {
        return 1;
      }
    }
    return 0;
  }

  // The dimensions from the innermost to the outermost, as TensorIteratorBase::reorder_dimensions
  // orders them: an insertion sort in which some pairs do not compare.
  std::vector<size_t> memory_order(const std::vector<Sizes>& strides) const {
    std::vector<size_t> order(sizes_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = order.size() - 1 - i;
    }
    for (size_t i = 1; i < order.size(); ++i) {
      auto moving = i;
      for (auto below = i; below-- > 0;) {
        const auto comparison = should_swap(strides, order[below], order[moving]);
        if (comparison < 0) {
          break;
        }
        if (comparison > 0) {
          std::swap(order[below], order[moving]);
          moving = below;
        }
      }
    }
    return order;
  }

  // Strides of a dense tensor whose dimensions lie in the given order.
  Sizes dense(const std::vector<size_t>& order) const {
    Sizes strides(sizes_.size());
    c10::SymInt step(1);
    for (const auto dimension : order) {
      strides[dimension] = step;
      step = step * sizes_[dimension].max(c10::SymInt(1));
    }
    return strides;
  }

  const std::vector<at::Tensor>& operands_;
  Sizes sizes_;
};

// A number for each dimension of the result: its own where it has one, else one that no other
// dimension is likely to have, so that a result of another shape cannot pass for the broadcast one.
inline std::vector<int64_t> stand_in_sizes(const Sizes& sizes) {
  constexpr int64_t kUnlikely = 1009;
  std::vector<int64_t> numbers;
  for (const auto& size : sizes) {
    const auto known = size.maybe_as_int();
    numbers.push_back(known ? *known : kUnlikely + static_cast<int64_t>(numbers.size()));
  }
  return numbers;
}

// A Meta tensor with the operand's type and, as far as it spans the result, the stand-in sizes.
inline at::Tensor stand_in(
    const at::Tensor& operand,
    const Layout& layout,
    const std::vector<int64_t>& numbers) {
  std::vector<int64_t> sizes;
  const auto offset = numbers.size() - static_cast<size_t>(operand.dim());
  for (auto d = offset; d < numbers.size(); ++d) {
    sizes.push_back(layout.spans(operand, d) ? numbers[d] : 1);
  }
  at::Tensor made(at::detail::empty_meta(sizes, operand.scalar_type()));
  if (operand.unsafeGetTensorImpl()->is_wrapped_number()) { // weighs less in type promotion
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return made;
}

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// One call with symbolic shapes, from TensorIterator's refusal to the results.
class SymbolicCall {
 public:
  SymbolicCall(const c10::FunctionSchema& schema, std::vector<c10::IValue> arguments)
      : schema_(schema),
        arguments_(std::move(arguments)),
        operands_(operands()),
        layout_(operands_) {}

  // The results that `kernel` would give, or none where its operands are not simply broadcast.
  template <class Kernel>
  std::optional<torch::jit::Stack> results(const Kernel& kernel) {
    const auto numbers = stand_in_sizes(layout_.sizes());
    check_in_place();
    auto stack = stand_in_arguments(numbers);
    kernel(stack);
    torch::jit::Stack results;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (!stack[i].isTensor() || stack[i].toTensor().sizes() != at::IntArrayRef(numbers)) {
        return std::nullopt;
      }
      results.emplace_back(result(i, stack[i].toTensor()));
    }
    return results;
  }

 private:
  // An out= argument is written and not read; what an in-place operator writes, it reads too.
  bool is_output(size_t argument) const {
    return schema_.arguments()[argument].is_out();
  }

  std::vector<at::Tensor> operands() const {
    std::vector<at::Tensor> found;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].isTensor() && arguments_[i].toTensor().defined() && !is_output(i)) {
        found.push_back(arguments_[i].toTensor());
      }
    }
    return found;
  }

  // Before the stand-ins' sizes could get into a message.
  void check_in_place() const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (is_written(schema_.arguments()[i]) && !is_output(i) && arguments_[i].isTensor()) {
        const auto& self = arguments_[i].toTensor();
        TORCH_CHECK(
            same(self.sym_sizes(), layout_.sizes()),
            schema_.name(),
            ": output with shape ",
            self.sym_sizes(),
            " doesn't match the broadcast shape ",
            c10::SymIntArrayRef(layout_.sizes()));
      }
    }
  }

  torch::jit::Stack stand_in_arguments(const std::vector<int64_t>& numbers) const {
    torch::jit::Stack stack;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].isTensor() || !arguments_[i].toTensor().defined()) {
        stack.push_back(arguments_[i]);
      } else if (is_output(i)) {
        const auto dtype = arguments_[i].toTensor().scalar_type();
        stack.emplace_back(at::Tensor(at::detail::empty_meta(numbers, dtype)));
      } else {
        stack.emplace_back(stand_in(arguments_[i].toTensor(), layout_, numbers));
      }
    }
    return stack;
  }

  // The argument that the i-th result is, or a new tensor of the stand-in's type.
  at::Tensor result(size_t i, const at::Tensor& from) {
    if (const auto* alias = schema_.returns()[i].alias_info()) {
      for (size_t a = 0; a < arguments_.size(); ++a) {
        const auto& argument = schema_.arguments()[a];
        if (is_written(argument) && *argument.alias_info() == *alias) {
          const auto& written = arguments_[a].toTensor();
          if (!same(written.sym_sizes(), layout_.sizes())) {
            written.resize__symint(layout_.sizes());
          }
          return written;
        }
      }
    }
    return at::empty_strided_symint(
        layout_.sizes(),
        layout_.result_strides(),
        operands_.front().options().dtype(from.scalar_type()));
  }

  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> operands_;
  Layout layout_;
};

// Whether an error is about symbols: TensorIterator's own, or that of a tensor asked for a number,
// which TensorIterator does first where it is given an output.
inline bool is_refusal(const std::string& message) {
  return message.find("TensorIterator does not support symbolic shapes") != std::string::npos ||
      message.find("on tensor with symbolic sizes/strides") != std::string::npos;
}

class SymbolicMeta : public c10::OperatorKernel {
 public:
  explicit SymbolicMeta(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto first = stack->end() - static_cast<ptrdiff_t>(schema.arguments().size());
    const std::vector<c10::IValue> arguments(first, stack->end());
    const auto below = static_cast<size_t>(first - stack->begin());
    const bool symbolic = std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& v) {
      return v.isTensor() && has_symbols(v.toTensor());
    });
    if (!symbolic) {
      kernel_.callBoxed(op, keys, stack);
      return;
    }
    std::exception_ptr refusal;
    try {
      kernel_.callBoxed(op, keys, stack);
      return;
    } catch (const c10::Error& error) {
      if (!is_refusal(error.what_without_backtrace())) {
        throw;
      }
      refusal = std::current_exception();
    }
    const auto call = [&](torch::jit::Stack& own) {
      kernel_.callBoxed(op, keys, &own);
    };
    const auto results = SymbolicCall(schema, arguments).results(call);
    if (!results) {
      std::rethrow_exception(refusal);
    }
    stack->resize(below);
    stack->insert(stack->end(), results->begin(), results->end());
  }

 private:
  c10::KernelFunction kernel_;
};

// Registers, for an operator of the library, its kernel with what is above around it.
template <class Function, Function* kernel>
void symbolic_meta(torch::Library& library, const char* name) {
  auto unboxed = c10::KernelFunction::makeFromUnboxedFunction(
      c10::CompileTimeFunctionPointer<Function, kernel>());
  library.impl(
      name,
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SymbolicMeta>(std::move(unboxed))));
}

} // namespace torchfork
