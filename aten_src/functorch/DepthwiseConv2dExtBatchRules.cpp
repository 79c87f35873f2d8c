// vmap of depthwise_conv2d_ext and its backward.
//
// Neither the images nor the channels of a depthwise convolution know of one another, so a batch is
// more images or more channels of one larger convolution: more images where the weight is shared,
// more channels where each element of the batch has a weight of its own.
#include <ATen/functorch/BatchRulesExtHelper.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#else
#include <ATen/ops/depthwise_conv2d_ext.h>
#include <ATen/ops/depthwise_conv2d_ext_backward.h>
#include <ATen/ops/empty.h>
#endif

#include <array>
#include <tuple>

namespace at::functorch {

namespace {

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
}

} // namespace at::functorch
