// vmap of the additions, in one file because most of its compilation is that of headers.
#include <ATen/functorch/BatchRulesExtHelper.h>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/LltmCell.h>
#include <ATen/native/TypeProperties.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#else
#include <ATen/ops/axpy_ext_ops.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/depthwise_conv2d_ext.h>
#include <ATen/ops/depthwise_conv2d_ext_backward.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gdh_native.h>
#include <ATen/ops/lltm_cell.h>
#include <ATen/ops/lltm_cell_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid_ext_backward_ops.h>
#include <ATen/ops/sigmoid_ext_ops.h>
#include <ATen/ops/zeros.h>
#endif

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace at::functorch {

namespace {

// --- depthwise_conv2d_ext -------------------------------------------------------------------------
//
// Neither the images nor the channels of a depthwise convolution know of one another, so a batch is
// more images or more channels of one larger convolution: more images where the weight is shared,
// more channels where each element of the batch has a weight of its own.

void check_ranks(
    const char* op,
    const Tensor& input,
    BatchDim input_bdim,
    const Tensor& weight,
    BatchDim weight_bdim) {
  const auto rank = logical_rank(input, input_bdim);
  check_logical(
      rank == 3 || rank == 4, op, "input", "be [N, C, H, W] or [C, H, W]", input, input_bdim);
  check_logical(
      logical_rank(weight, weight_bdim) == 4,
      op,
      "weight",
      "be [C * multiplier, 1, kH, kW]",
      weight,
      weight_bdim);
}

// The batch among the images, and back. [C, H, W] becomes [B, C, H, W], a batch in front of or
// behind [N] is merged with it, where memory has it next to N without a copy.
struct Images {
  int64_t rank; // logical
  int64_t dim; // of the batch, before and after
  c10::SymInt batch;
  c10::SymInt images;

  Images(const Tensor& lead, int64_t lead_bdim)
      : rank(lead.dim() - 1),
        dim(rank == 4 && lead_bdim == 1 ? 1 : 0),
        batch(lead.sym_size(lead_bdim)),
        images(rank == 4 ? lead.sym_size(lead_bdim == 0 ? 1 : 0) : c10::SymInt(1)) {}

  Tensor fold(const Tensor& tensor, int64_t bdim) const {
    const auto placed = tensor.movedim(bdim, dim);
    return rank == 4 ? placed.flatten(0, 1) : placed;
  }

  BatchedResult unfold(const Tensor& tensor) const {
    if (rank == 3) {
      return {tensor, 0};
    }
    return {
        dim == 0 ? tensor.unflatten_symint(0, {batch, images})
                 : tensor.unflatten_symint(0, {images, batch}),
        dim};
  }
};

// The batch among the channels, and back: [B, N, C, H, W] and [N, B·C, H, W].
struct Channels {
  int64_t dim; // of the channels, and of the batch when unfolded
  c10::SymInt batch;

  Channels(int64_t rank, c10::SymInt batch_size) : dim(rank - 3), batch(std::move(batch_size)) {}

  Tensor fold(const Tensor& tensor, BatchDim bdim) const {
    return with_batch(tensor, bdim, batch).movedim(0, dim).flatten(dim, dim + 1);
  }

  Tensor fold_parameter(const Tensor& tensor, BatchDim bdim) const {
    return with_batch(tensor, bdim, batch).flatten(0, 1);
  }

  BatchedResult unfold(const Tensor& tensor, const c10::SymInt& channels) const {
    return tensor.defined() ? BatchedResult(tensor.unflatten_symint(dim, {batch, channels}), dim)
                            : BatchedResult();
  }

  BatchedResult unfold_parameter(const Tensor& tensor, const c10::SymInt& channels) const {
    return tensor.defined() ? BatchedResult(tensor.unflatten_symint(0, {batch, channels}), 0)
                            : BatchedResult();
  }
};

// One input, a batch of weights: each channel of the input has B times as many outputs. The input is
// neither copied nor read more than once.
BatchedResult shared_input(
    const Tensor& input,
    const Tensor& weight,
    BatchDim weight_bdim,
    const std::optional<Tensor>& bias,
    BatchDim bias_bdim,
    const c10::SymInt& batch,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation) {
  const auto channel_dim = input.dim() - 3;
  const auto channels = input.sym_size(channel_dim);
  const auto outputs = logical_sizes(weight, weight_bdim)[0];
  TORCH_CHECK(
      channels > 0,
      "depthwise_conv2d_ext(): expected input to have at least one channel, but got input of size ",
      input.sym_sizes());
  TORCH_CHECK(
      outputs % channels == 0,
      "depthwise_conv2d_ext(): expected weight.size(0) to be a positive multiple of the input's ",
      channels,
      " channels, but got weight.size(0) of ",
      outputs);
  const auto multiplier = outputs / channels;
  // [B, C·m, …] as [C·B·m, …]
  const auto among_outputs = [&](const Tensor& tensor, BatchDim bdim) {
    return with_batch(tensor, bdim, batch)
        .unflatten_symint(1, {channels, multiplier})
        .movedim(0, 1)
        .flatten(0, 2);
  };
  const auto output = at::depthwise_conv2d_ext_symint(
      input,
      among_outputs(weight, weight_bdim),
      bias.has_value() ? std::optional<Tensor>(among_outputs(*bias, bias_bdim)) : std::nullopt,
      stride,
      padding,
      dilation);
  return {
      output.unflatten_symint(channel_dim, {channels, batch, multiplier})
          .movedim(channel_dim + 1, 0)
          .flatten(channel_dim + 1, channel_dim + 2),
      0};
}

BatchedResult depthwise_conv2d_ext_batch_rule(
    const Tensor& input,
    BatchDim input_bdim,
    const Tensor& weight,
    BatchDim weight_bdim,
    const std::optional<Tensor>& bias_opt,
    BatchDim bias_bdim,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation) {
  constexpr const char* op = "depthwise_conv2d_ext";
  check_ranks(op, input, input_bdim, weight, weight_bdim);
  const auto bias =
      bias_opt.has_value() && bias_opt->defined() ? bias_opt : std::optional<Tensor>();
  if (bias.has_value()) {
    const auto sizes = logical_sizes(*bias, bias_bdim);
    const auto outputs = logical_sizes(weight, weight_bdim)[0];
    TORCH_CHECK(
        sizes.size() == 1 && sizes[0] == outputs,
        op,
        "(): expected bias to be [",
        outputs,
        "], one value for each output channel, but got bias of size ",
        c10::SymIntArrayRef(sizes));
  }
  const auto batch = batch_size_of(
      {{&input, input_bdim}, {&weight, weight_bdim}, {bias ? &*bias : nullptr, bias_bdim}});

  // An empty batch of weights would make a convolution without channels, which the operator
  // refuses; one without images it takes.
  if (is_zero(batch) || (!weight_bdim.has_value() && !bias_bdim.has_value())) {
    const auto lead = input_bdim.has_value() ? input : with_batch(input, input_bdim, batch);
    const Images images(lead, input_bdim.value_or(0));
    return images.unfold(
        at::depthwise_conv2d_ext_symint(
            images.fold(lead, input_bdim.value_or(0)),
            logical_stand_in(weight, weight_bdim),
            bias.has_value() ? std::optional<Tensor>(logical_stand_in(*bias, bias_bdim))
                             : std::nullopt,
            stride,
            padding,
            dilation));
  }
  if (!input_bdim.has_value()) {
    return shared_input(
        input, weight, weight_bdim, bias, bias_bdim, batch, stride, padding, dilation);
  }
  const Channels channels(logical_rank(input, input_bdim), batch);
  return channels.unfold(
      at::depthwise_conv2d_ext_symint(
          channels.fold(input, input_bdim),
          channels.fold_parameter(weight, weight_bdim),
          bias.has_value() ? std::optional<Tensor>(channels.fold_parameter(*bias, bias_bdim))
                           : std::nullopt,
          stride,
          padding,
          dilation),
      logical_sizes(weight, weight_bdim)[0]);
}

using DepthwiseConv2dGrads = std::tuple<Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim>;

DepthwiseConv2dGrads joined(
    BatchedResult grad_input,
    BatchedResult grad_weight,
    BatchedResult grad_bias) {
  return std::tuple_cat(std::move(grad_input), std::move(grad_weight), std::move(grad_bias));
}

// A tensor of the given size for an operator that will not read its values; in the memory format of
// `like`, which the operator's result takes on.
Tensor stand_in(const Tensor& like, c10::SymIntArrayRef sizes) {
  const auto format = like.dim() == 4 && sizes.size() == 4 ? like.suggest_memory_format()
                                                           : MemoryFormat::Contiguous;
  return at::empty_symint(sizes, like.options(), format);
}

// Gradients for the input alone, with one weight for the whole batch.
DepthwiseConv2dGrads grad_input_of_images(
    const Tensor& grad_output,
    int64_t grad_output_bdim,
    const Tensor& input,
    const Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation) {
  const Images images(grad_output, grad_output_bdim);
  SymDimVector sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  if (images.rank == 4) {
    sizes[0] = sizes[0] * images.batch;
  } else {
    sizes.insert(sizes.begin(), images.batch);
  }
  const auto gradients = at::depthwise_conv2d_ext_backward_symint(
      images.fold(grad_output, grad_output_bdim),
      stand_in(input, sizes),
      weight,
      stride,
      padding,
      dilation,
      {true, false, false});
  return joined(images.unfold(std::get<0>(gradients)), {}, {});
}

DepthwiseConv2dGrads depthwise_conv2d_ext_backward_batch_rule(
    const Tensor& grad_output,
    BatchDim grad_output_bdim,
    const Tensor& given_input,
    BatchDim given_input_bdim,
    const Tensor& given_weight,
    BatchDim given_weight_bdim,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    std::array<bool, 3> output_mask) {
  constexpr const char* op = "depthwise_conv2d_ext_backward";
  check_ranks(op, given_input, given_input_bdim, given_weight, given_weight_bdim);
  const auto rank = logical_rank(given_input, given_input_bdim);
  check_logical(
      logical_rank(grad_output, grad_output_bdim) == rank,
      op,
      "grad_output",
      "be of the output's size",
      grad_output,
      grad_output_bdim);
  const auto [need_input, need_weight, need_bias] = output_mask;
  const auto batch = batch_size_of(
      {{&grad_output, grad_output_bdim},
       {&given_input, given_input_bdim},
       {&given_weight, given_weight_bdim}});
  const auto input_sizes = logical_sizes(given_input, given_input_bdim);
  const auto weight_sizes = logical_sizes(given_weight, given_weight_bdim);

  // An input or weight whose gradient's formula does not hold it lends its size alone.
  const auto input = need_weight ? given_input : logical_stand_in(given_input, given_input_bdim);
  const auto input_bdim = need_weight ? given_input_bdim : std::nullopt;
  const auto weight = need_input ? given_weight : logical_stand_in(given_weight, given_weight_bdim);
  const auto weight_bdim = need_input ? given_weight_bdim : std::nullopt;

  if (!grad_output_bdim.has_value() && !input_bdim.has_value() && !weight_bdim.has_value()) {
    auto [grad_input, grad_weight, grad_bias] = at::depthwise_conv2d_ext_backward_symint(
        grad_output, input, weight, stride, padding, dilation, output_mask);
    return {grad_input, std::nullopt, grad_weight, std::nullopt, grad_bias, std::nullopt};
  }
  if (is_zero(batch)) {
    const auto empty =
        [&](bool wanted, const Tensor& like, c10::SymIntArrayRef sizes) -> BatchedResult {
      SymDimVector batched(sizes.begin(), sizes.end());
      batched.insert(batched.begin(), batch);
      return wanted ? BatchedResult(like.new_empty_symint(batched), 0) : BatchedResult();
    };
    return joined(
        empty(need_input, input, input_sizes),
        empty(need_weight, weight, weight_sizes),
        empty(need_bias, weight, c10::SymIntArrayRef(weight_sizes).slice(0, 1)));
  }
  if (!weight_bdim.has_value() && !need_weight && !need_bias) {
    return grad_input_of_images(
        grad_output, *grad_output_bdim, input, weight, stride, padding, dilation);
  }

  const Channels channels(rank, batch);
  auto folded_sizes = input_sizes;
  folded_sizes[channels.dim] = folded_sizes[channels.dim] * batch;
  const auto gradients = at::depthwise_conv2d_ext_backward_symint(
      channels.fold(grad_output, grad_output_bdim),
      need_weight ? channels.fold(input, input_bdim) : stand_in(input, folded_sizes),
      channels.fold_parameter(weight, weight_bdim),
      stride,
      padding,
      dilation,
      output_mask);
  return joined(
      channels.unfold(std::get<0>(gradients), input_sizes[channels.dim]),
      channels.unfold_parameter(std::get<1>(gradients), weight_sizes[0]),
      channels.unfold_parameter(std::get<2>(gradients), weight_sizes[0]));
}

// --- gdh, sigmoid_ext, axpy_ext -------------------------------------------------------------------
//
// gdh and gdh_copy are compositions of operators that have batch rules. A composite operator is not
// taken apart for vmap on its own: upstream lists each of its own (OP_DECOMPOSE in
// BatchRulesDecompositions.cpp), and without an entry vmap refuses a view operator and runs gdh_copy
// in a loop.
// sigmoid_ext, sigmoid_ext_backward and axpy_ext: the operator itself on the physical tensors, once
// they broadcast and promote as the logical ones do.

Tensor gdh_copy_decomposition(const Tensor& input) {
  return input.clone(at::MemoryFormat::Contiguous).view(-1);
}

struct Operand {
  Tensor tensor; // batch dimension first
  BatchDim dim;
  int64_t rank; // logical

  Operand(const Tensor& given, BatchDim given_dim)
      : tensor(batch_dim_first(given, given_dim)),
        dim(given_dim),
        rank(logical_rank(given, given_dim)) {}

  // Logically 0-d, which counts for less in type promotion, and physically not.
  bool is_number() const {
    return dim.has_value() && rank == 0;
  }

  // With dimensions of size one behind the batch, as broadcasting puts them in front.
  Tensor padded(int64_t to_rank) const {
    if (!dim.has_value() || rank >= to_rank) {
      return tensor;
    }
    SymDimVector sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
    sizes.insert(sizes.begin() + 1, to_rank - rank, c10::SymInt(1));
    return tensor.view_symint(sizes);
  }
};

// The common dtype of the logical operands.
ScalarType logical_dtype(const Operand& number, const Operand& other) {
  native::ResultTypeState state;
  state.zeroResult = number.tensor.scalar_type();
  const auto& tensor = other.tensor;
  if (tensor.dim() == 0 && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    state.zeroResult = promoteTypes(state.zeroResult, tensor.scalar_type());
  } else {
    state = native::update_result_type_state(tensor, state);
  }
  return native::result_type(state);
}

// Both operands as they broadcast and promote without the batch. A single number with the dtype
// that it leads to leads to the same one with any number of dimensions.
std::pair<Tensor, Tensor> aligned(Operand left, Operand right) {
  if (left.is_number() != right.is_number()) {
    auto& number = left.is_number() ? left : right;
    const auto& other = left.is_number() ? right : left;
    number.tensor = number.tensor.to(logical_dtype(number, other));
  }
  const auto rank = std::max(left.rank, right.rank);
  return {left.padded(rank), right.padded(rank)};
}

// The same for `self op= other`, where self's dtype stays: other gets the common dtype, and with it
// a dimension, so that the arithmetic is done in that dtype.
std::pair<Tensor, Tensor> aligned_in_place(const Operand& self, Operand other) {
  if (self.is_number() != other.is_number()) {
    const auto dtype = self.is_number() ? logical_dtype(self, other) : logical_dtype(other, self);
    other.tensor = other.tensor.to(dtype);
    if (other.tensor.dim() == 0) {
      other.tensor = other.tensor.unsqueeze(0);
    }
  }
  const auto rank = std::max(self.rank, other.rank);
  return {self.padded(rank), other.padded(rank)};
}

std::tuple<Tensor, BatchDim> sigmoid_ext_batch_rule(const Tensor& self, BatchDim self_bdim) {
  return {at::_ops::sigmoid_ext::call(self), self_bdim};
}

void sigmoid_ext_in_place_batch_rule(Tensor& self, BatchDim /*self_bdim*/) {
  at::_ops::sigmoid_ext_::call(self);
}

std::tuple<Tensor, BatchDim> sigmoid_ext_backward_batch_rule(
    const Tensor& grad_output,
    BatchDim grad_output_bdim,
    const Tensor& output,
    BatchDim output_bdim) {
  const auto [left, right] = aligned({grad_output, grad_output_bdim}, {output, output_bdim});
  return {at::_ops::sigmoid_ext_backward::call(left, right), 0};
}

std::tuple<Tensor, BatchDim> axpy_ext_batch_rule(
    const Tensor& self,
    BatchDim self_bdim,
    const Tensor& other,
    BatchDim other_bdim,
    const Scalar& alpha) {
  const auto [left, right] = aligned({self, self_bdim}, {other, other_bdim});
  return {at::_ops::axpy_ext::call(left, right, alpha), 0};
}

void axpy_ext_in_place_batch_rule(
    Tensor& self,
    BatchDim self_bdim,
    const Tensor& other,
    BatchDim other_bdim,
    const Scalar& alpha) {
  TORCH_CHECK(
      self_bdim.has_value(),
      "axpy_ext_(): other differs between the elements of vmap's batch, but self, which is written "
      "to, is shared by all of them; use axpy_ext");
  auto [left, right] = aligned_in_place({self, self_bdim}, {other, other_bdim});
  at::_ops::axpy_ext_::call(left, right, alpha);
}

// --- lltm_cell ------------------------------------------------------------------------------------
//
// Rows of a cell know of one another only through the gradients of weight and bias. Where weight and
// bias are shared, a batch is more rows of one cell. Otherwise the matrix products are batched ones,
// and the pointwise half between them (LltmCell.h) is written with upstream's operators, in the
// kernels' type of arithmetic.

using LltmCellResults = std::tuple<Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim>;
using LltmCellGrads = std::
    tuple<Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim>;

// The batch among the rows, and back: [B, N, …] and [B·N, …].
struct BatchedRows {
  c10::SymInt batch;
  c10::SymInt rows;

  Tensor fold(const Tensor& tensor, BatchDim dim) const {
    return with_batch(tensor, dim, batch).flatten(0, 1);
  }

  std::optional<Tensor> fold(const std::optional<Tensor>& tensor, BatchDim dim) const {
    return tensor.has_value() && tensor->defined() ? std::optional<Tensor>(fold(*tensor, dim))
                                                   : std::nullopt;
  }

  BatchedResult unfold(const Tensor& tensor) const {
    return tensor.defined() ? BatchedResult(tensor.unflatten_symint(0, {batch, rows}), 0)
                            : BatchedResult();
  }
};

// What the operator checks, of logical sizes: batched operators would broadcast what does not fit.
void check_size(
    const char* op,
    const char* name,
    const Tensor& tensor,
    BatchDim dim,
    std::initializer_list<c10::SymInt> expected) {
  const auto sizes = logical_sizes(tensor, dim);
  TORCH_CHECK(
      c10::SymIntArrayRef(sizes).equals(c10::SymIntArrayRef(expected.begin(), expected.size())),
      op,
      "(): expected ",
      name,
      " to be of size ",
      c10::SymIntArrayRef(expected.begin(), expected.size()),
      ", but got ",
      name,
      " of size ",
      c10::SymIntArrayRef(sizes));
}

void check_matrix(const char* op, const char* name, const Tensor& tensor, BatchDim dim) {
  check_logical(logical_rank(tensor, dim) == 2, op, name, "have 2 dimensions", tensor, dim);
}

// The activations of gates [B, N, 3·S], in the type of arithmetic.
struct BatchedActivations {
  Tensor i, o, c; // sigmoid, sigmoid, elu
  Tensor candidate; // before elu

  explicit BatchedActivations(const Tensor& gates) {
    const auto wide = gates.to(at::toOpMathType(gates.scalar_type()));
    const auto state = wide.sym_size(-1) / 3;
    i = wide.slice_symint(-1, 0, state).sigmoid();
    o = wide.slice_symint(-1, state, state * 2).sigmoid();
    candidate = wide.slice_symint(-1, state * 2, state * 3);
    c = at::elu(candidate);
  }
};

LltmCellResults lltm_cell_batch_rule(
    const Tensor& input,
    BatchDim input_bdim,
    const Tensor& weight,
    BatchDim weight_bdim,
    const Tensor& bias,
    BatchDim bias_bdim,
    const Tensor& old_h,
    BatchDim old_h_bdim,
    const Tensor& old_cell,
    BatchDim old_cell_bdim) {
  constexpr const char* op = "lltm_cell";
  check_matrix(op, "input", input, input_bdim);
  check_matrix(op, "old_h", old_h, old_h_bdim);
  const auto batch = batch_size_of(
      {{&input, input_bdim},
       {&weight, weight_bdim},
       {&bias, bias_bdim},
       {&old_h, old_h_bdim},
       {&old_cell, old_cell_bdim}});
  const auto input_sizes = logical_sizes(input, input_bdim);
  const BatchedRows rows{batch, input_sizes[0]};

  if (!weight_bdim.has_value() && !bias_bdim.has_value()) {
    const auto [new_h, new_cell, gates] = at::lltm_cell(
        rows.fold(input, input_bdim),
        weight,
        bias,
        rows.fold(old_h, old_h_bdim),
        rows.fold(old_cell, old_cell_bdim));
    return std::tuple_cat(rows.unfold(new_h), rows.unfold(new_cell), rows.unfold(gates));
  }

  const auto state = logical_sizes(old_h, old_h_bdim)[1];
  check_size(op, "old_h", old_h, old_h_bdim, {rows.rows, state});
  check_size(op, "old_cell", old_cell, old_cell_bdim, {rows.rows, state});
  check_size(op, "weight", weight, weight_bdim, {state * 3, input_sizes[1] + state});
  check_size(op, "bias", bias, bias_bdim, {state * 3});
  native::check_lltm_dtype(op, input);
  native::check_lltm_operand_dtype(op, "weight", weight, input);
  native::check_lltm_operand_dtype(op, "bias", bias, input);
  native::check_lltm_operand_dtype(op, "old_h", old_h, input);
  native::check_lltm_operand_dtype(op, "old_cell", old_cell, input);

  const auto joined =
      at::cat({with_batch(old_h, old_h_bdim, batch), with_batch(input, input_bdim, batch)}, 2);
  const auto gates = at::baddbmm(
      with_batch(bias, bias_bdim, batch).unsqueeze(1),
      joined,
      with_batch(weight, weight_bdim, batch).mT());
  const auto dtype = gates.scalar_type();
  const BatchedActivations a(gates);
  const auto new_cell =
      with_batch(old_cell, old_cell_bdim, batch).to(a.i.scalar_type()) + a.c * a.i;
  const auto new_h = new_cell.tanh() * a.o;
  return {new_h.to(dtype), 0, new_cell.to(dtype), 0, gates, 0};
}

LltmCellGrads lltm_cell_backward_batch_rule(
    const std::optional<Tensor>& grad_new_h,
    BatchDim grad_new_h_bdim,
    const std::optional<Tensor>& grad_new_cell,
    BatchDim grad_new_cell_bdim,
    const std::optional<Tensor>& grad_gates,
    BatchDim grad_gates_bdim,
    const Tensor& input,
    BatchDim input_bdim,
    const Tensor& given_weight,
    BatchDim given_weight_bdim,
    const Tensor& old_h,
    BatchDim old_h_bdim,
    const Tensor& new_cell,
    BatchDim new_cell_bdim,
    const Tensor& gates,
    BatchDim gates_bdim,
    std::array<bool, 5> output_mask) {
  constexpr const char* op = "lltm_cell_backward";
  const auto [need_input, need_weight, need_bias, need_old_h, need_old_cell] = output_mask;
  check_matrix(op, "input", input, input_bdim);
  check_matrix(op, "old_h", old_h, old_h_bdim);
  const auto batch = batch_size_of(
      {{grad_new_h ? &*grad_new_h : nullptr, grad_new_h_bdim},
       {grad_new_cell ? &*grad_new_cell : nullptr, grad_new_cell_bdim},
       {grad_gates ? &*grad_gates : nullptr, grad_gates_bdim},
       {&input, input_bdim},
       {&given_weight, given_weight_bdim},
       {&old_h, old_h_bdim},
       {&new_cell, new_cell_bdim},
       {&gates, gates_bdim}});
  const auto input_sizes = logical_sizes(input, input_bdim);
  const BatchedRows rows{batch, input_sizes[0]};

  // The weight is part of two gradients; without them it lends its size alone.
  const bool reads_weight = need_input || need_old_h;
  const auto weight =
      reads_weight ? given_weight : logical_stand_in(given_weight, given_weight_bdim);
  const auto weight_bdim = reads_weight ? given_weight_bdim : std::nullopt;
  if (!weight_bdim.has_value() && !need_weight && !need_bias) {
    const auto gradients = at::lltm_cell_backward(
        rows.fold(grad_new_h, grad_new_h_bdim),
        rows.fold(grad_new_cell, grad_new_cell_bdim),
        rows.fold(grad_gates, grad_gates_bdim),
        rows.fold(input, input_bdim),
        weight,
        rows.fold(old_h, old_h_bdim),
        rows.fold(new_cell, new_cell_bdim),
        rows.fold(gates, gates_bdim),
        output_mask);
    return std::tuple_cat(
        rows.unfold(std::get<0>(gradients)),
        BatchedResult(),
        BatchedResult(),
        rows.unfold(std::get<3>(gradients)),
        rows.unfold(std::get<4>(gradients)));
  }

  const auto state = logical_sizes(old_h, old_h_bdim)[1];
  const auto check = [&](const char* name,
                         const std::optional<Tensor>& tensor,
                         BatchDim dim,
                         std::initializer_list<c10::SymInt> sizes) {
    if (tensor.has_value() && tensor->defined()) {
      check_size(op, name, *tensor, dim, sizes);
      native::check_lltm_operand_dtype(op, name, *tensor, input);
    }
  };
  native::check_lltm_dtype(op, input);
  check("weight", weight, weight_bdim, {state * 3, input_sizes[1] + state});
  check("old_h", old_h, old_h_bdim, {rows.rows, state});
  check("new_cell", new_cell, new_cell_bdim, {rows.rows, state});
  check("gates", gates, gates_bdim, {rows.rows, state * 3});
  check("grad_new_h", grad_new_h, grad_new_h_bdim, {rows.rows, state});
  check("grad_new_cell", grad_new_cell, grad_new_cell_bdim, {rows.rows, state});
  check("grad_gates", grad_gates, grad_gates_bdim, {rows.rows, state * 3});

  const auto dtype = input.scalar_type();
  const BatchedActivations a(with_batch(gates, gates_bdim, batch));
  const auto wide = a.i.scalar_type();
  // An undefined gradient stands for zero.
  const auto gradient = [&](const std::optional<Tensor>& tensor, BatchDim dim) {
    return tensor.has_value() && tensor->defined() ? with_batch(*tensor, dim, batch).to(wide)
                                                   : at::zeros({}, a.i.options());
  };
  const auto grad_h = gradient(grad_new_h, grad_new_h_bdim);
  const auto t = with_batch(new_cell, new_cell_bdim, batch).to(wide).tanh();
  const auto of_cell = gradient(grad_new_cell, grad_new_cell_bdim) + grad_h * a.o * (1 - t * t);
  // exp only where elu is not the identity: it would overflow on the other side.
  const auto slope = a.candidate.clamp_max(0).exp();
  const auto of_gates =
      at::cat(
          {of_cell * a.c * a.i * (1 - a.i), grad_h * t * a.o * (1 - a.o), of_cell * a.i * slope},
          2) +
      gradient(grad_gates, grad_gates_bdim);

  const auto factor = of_gates.to(dtype); // as the operator rounds it for the products
  const auto weights = batch_dim_first(weight, weight_bdim);
  const auto width = input_sizes[1] + state;
  const auto wanted = [](bool needed, const auto& make) {
    return needed ? BatchedResult(make(), 0) : BatchedResult();
  };
  return std::tuple_cat(
      wanted(
          need_input, [&] { return at::matmul(factor, weights.slice_symint(-1, state, width)); }),
      wanted(
          need_weight,
          [&] {
            const auto joined = at::cat(
                {with_batch(old_h, old_h_bdim, batch), with_batch(input, input_bdim, batch)}, 2);
            return at::matmul(factor.mT(), joined);
          }),
      wanted(need_bias, [&] { return of_gates.sum(1).to(dtype); }),
      wanted(need_old_h, [&] { return at::matmul(factor, weights.slice_symint(-1, 0, state)); }),
      wanted(need_old_cell, [&] { return of_cell.to(dtype); }));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl(
      "depthwise_conv2d_ext",
      batched_kernel<at::_ops::depthwise_conv2d_ext, depthwise_conv2d_ext_batch_rule>());
  m.impl(
      "depthwise_conv2d_ext_backward",
      batched_kernel<
          at::_ops::depthwise_conv2d_ext_backward,
          depthwise_conv2d_ext_backward_batch_rule>());
  // Under the runtime key: torch 2.6 does not look at the alias key that upstream uses
  // (FuncTorchBatchedDecomposition) for an operator that is declared after libtorch is loaded.
  m.impl("gdh", TORCH_FN(at::native::gdh));
  m.impl("gdh_copy", TORCH_FN(gdh_copy_decomposition));
  m.impl("sigmoid_ext", batched_kernel<at::_ops::sigmoid_ext, sigmoid_ext_batch_rule>());
  m.impl("sigmoid_ext_", batched_kernel<at::_ops::sigmoid_ext_, sigmoid_ext_in_place_batch_rule>());
  m.impl(
      "sigmoid_ext_backward",
      batched_kernel<at::_ops::sigmoid_ext_backward, sigmoid_ext_backward_batch_rule>());
  m.impl("axpy_ext", batched_kernel<at::_ops::axpy_ext, axpy_ext_batch_rule>());
  m.impl("axpy_ext_", batched_kernel<at::_ops::axpy_ext_, axpy_ext_in_place_batch_rule>());
  m.impl("lltm_cell", batched_kernel<at::_ops::lltm_cell, lltm_cell_batch_rule>());
  m.impl(
      "lltm_cell_backward",
      batched_kernel<at::_ops::lltm_cell_backward, lltm_cell_backward_batch_rule>());
}

} // namespace at::functorch
