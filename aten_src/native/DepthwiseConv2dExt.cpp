// depthwise_conv2d_ext: checks, allocation and dispatch. The kernels are in
// cpu/DepthwiseConv2dExtKernel.cpp and cuda/depthwise_conv2d_ext/Select.cpp.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/DepthwiseConv2dExt.h>

#include <array>
#include <limits>
#include <new>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#else
#include <ATen/ops/depthwise_conv2d_ext_backward_native.h>
#include <ATen/ops/depthwise_conv2d_ext_native.h>
#include <ATen/ops/empty_ops.h>
#endif

namespace at::native {

DEFINE_DISPATCH(depthwise_conv2d_ext_stub);
DEFINE_DISPATCH(depthwise_conv2d_ext_backward_stub);

namespace {

// Checks and allocation are written once for int64_t (CPU, CUDA) and once more by the compiler for
// c10::SymInt (Meta), so that a traced shape cannot differ from a computed one.

ArrayRef<int64_t> sizes_as(const Tensor& tensor, int64_t /*tag*/) {
  return tensor.sizes();
}
SymIntArrayRef sizes_as(const Tensor& tensor, const SymInt& /*tag*/) {
  return tensor.sym_sizes();
}

// A symbolic condition becomes a guard, or a run-time assertion where no value is known yet.
bool holds(bool condition) {
  return condition;
}
bool holds(const SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

std::optional<int64_t> known_value(int64_t value) {
  return value;
}
std::optional<int64_t> known_value(const SymInt& value) {
  return value.maybe_as_int();
}

// at::empty, whose header takes half of this file's time to compile.
Tensor empty_as(SymIntArrayRef sizes, const TensorOptions& options, MemoryFormat format) {
  return at::_ops::empty_memory_format::call(
      sizes,
      c10::optTypeMetaToScalarType(options.dtype_opt()),
      options.layout_opt(),
      options.device_opt(),
      options.pinned_memory_opt(),
      format);
}
Tensor empty_as(IntArrayRef sizes, const TensorOptions& options, MemoryFormat format) {
  return empty_as(c10::fromIntArrayRefSlow(sizes), options, format);
}

constexpr std::array<const char*, 2> kDimensionNames = {"height", "width"};

// One convolution's sizes after the check; everything 4-d, an unbatched input as a batch of one.
template <typename Int>
struct Shapes {
  bool batched;
  std::array<Int, 4> input; // N, C, H, W
  std::array<Int, 4> weight; // C·m, 1, kH, kW
  std::array<Int, 4> output; // N, C·m, OH, OW
  std::array<Int, 2> stride;
  std::array<Int, 2> padding;
  std::array<Int, 2> dilation;
};

// One number means both dimensions, as for conv2d.
template <typename Int>
std::array<Int, 2> expand_pair(const char* op, const char* name, ArrayRef<Int> values) {
  TORCH_CHECK(
      values.size() == 1 || values.size() == 2,
      op,
      "(): expected ",
      name,
      " to be one integer or two (height, width), but got ",
      values);
  return {values[0], values[values.size() - 1]};
}

// Keeps all later arithmetic on positions within 64 bits. A symbolic value is checked when the
// kernel runs.
template <typename Int>
void check_limit(const char* op, const char* name, size_t dimension, const Int& value) {
  const auto known = known_value(value);
  TORCH_CHECK(
      !known.has_value() || *known <= std::numeric_limits<int32_t>::max(),
      op,
      "(): expected ",
      name,
      " ",
      kDimensionNames[dimension],
      " below 2^31, but got ",
      value);
}

template <typename Int>
void check_window(const char* op, const Shapes<Int>& shapes) {
  for (const size_t d : {0, 1}) {
    check_limit(op, "input", d, shapes.input[2 + d]);
    check_limit(op, "weight", d, shapes.weight[2 + d]);
    check_limit(op, "stride", d, shapes.stride[d]);
    check_limit(op, "padding", d, shapes.padding[d]);
    check_limit(op, "dilation", d, shapes.dilation[d]);
    TORCH_CHECK(
        holds(sym_gt(shapes.stride[d], Int(0))),
        op,
        "(): expected stride to be positive, but got ",
        ArrayRef<Int>(shapes.stride));
    TORCH_CHECK(
        holds(sym_ge(shapes.padding[d], Int(0))),
        op,
        "(): expected padding not to be negative, but got ",
        ArrayRef<Int>(shapes.padding));
    TORCH_CHECK(
        holds(sym_gt(shapes.dilation[d], Int(0))),
        op,
        "(): expected dilation to be positive, but got ",
        ArrayRef<Int>(shapes.dilation));
    TORCH_CHECK(
        holds(sym_gt(shapes.weight[2 + d], Int(0))),
        op,
        "(): expected weight to have a kernel of at least one element, but got weight of size ",
        ArrayRef<Int>(shapes.weight));
  }
}

// The one shape check: ranks, channels, window and output size.
template <typename Int>
Shapes<Int> check_shapes(
    const char* op,
    const Tensor& input,
    const Tensor& weight,
    ArrayRef<Int> stride,
    ArrayRef<Int> padding,
    ArrayRef<Int> dilation) {
  TORCH_CHECK(
      input.dim() == 3 || input.dim() == 4,
      op,
      "(): expected input to be [N, C, H, W] or [C, H, W], but got input of size ",
      sizes_as(input, Int()));
  TORCH_CHECK(
      weight.dim() == 4,
      op,
      "(): expected weight to be [C * multiplier, 1, kH, kW], but got weight of size ",
      sizes_as(weight, Int()));

  const ArrayRef<Int> input_sizes = sizes_as(input, Int());
  const ArrayRef<Int> weight_sizes = sizes_as(weight, Int());
  Shapes<Int> shapes;
  shapes.batched = input.dim() == 4;
  const size_t first = shapes.batched ? 1 : 0;
  shapes.input = {
      shapes.batched ? input_sizes[0] : Int(1),
      input_sizes[first],
      input_sizes[first + 1],
      input_sizes[first + 2]};
  shapes.weight = {weight_sizes[0], weight_sizes[1], weight_sizes[2], weight_sizes[3]};
  shapes.stride = expand_pair(op, "stride", stride);
  shapes.padding = expand_pair(op, "padding", padding);
  shapes.dilation = expand_pair(op, "dilation", dilation);

  const Int& channels = shapes.input[1];
  TORCH_CHECK(
      holds(sym_gt(channels, Int(0))),
      op,
      "(): expected input to have at least one channel, but got input of size ",
      input_sizes);
  TORCH_CHECK(
      holds(sym_eq(shapes.weight[1], Int(1))),
      op,
      "(): expected weight to be [C * multiplier, 1, kH, kW], but got weight of size ",
      weight_sizes);
  TORCH_CHECK(
      holds(sym_gt(shapes.weight[0], Int(0))) && holds(sym_eq(shapes.weight[0] % channels, Int(0))),
      op,
      "(): expected weight.size(0) to be a positive multiple of the input's ",
      channels,
      " channels, but got weight of size ",
      weight_sizes);
  check_window(op, shapes);

  shapes.output = {shapes.input[0], shapes.weight[0], Int(0), Int(0)};
  for (const size_t d : {0, 1}) {
    const Int padded = shapes.input[2 + d] + shapes.padding[d] * 2;
    const Int extent = shapes.dilation[d] * (shapes.weight[2 + d] - 1) + 1;
    TORCH_CHECK(
        holds(sym_ge(padded, extent)),
        op,
        "(): expected the kernel to fit into the padded input, but the kernel's ",
        kDimensionNames[d],
        " with dilation is ",
        extent,
        " and the padded input's is ",
        padded,
        " (weight of size ",
        weight_sizes,
        ", input of size ",
        input_sizes,
        ")");
    shapes.output[2 + d] = (padded - extent) / shapes.stride[d] + 1;
  }
  return shapes;
}

// One floating dtype and one device for all.
void check_operands(
    const char* op,
    const Tensor& input,
    std::initializer_list<std::pair<const char*, const Tensor*>> others) {
  const auto dtype = input.scalar_type();
  TORCH_CHECK(
      dtype == kFloat || dtype == kDouble || dtype == kHalf || dtype == kBFloat16,
      op,
      "(): expected input to be float, double, half or bfloat16, but got ",
      dtype);
  for (const auto& [name, tensor] : others) {
    if (!tensor->defined()) {
      continue;
    }
    TORCH_CHECK(
        tensor->scalar_type() == dtype,
        op,
        "(): expected ",
        name,
        " to have the input's dtype ",
        dtype,
        ", but got ",
        tensor->scalar_type());
    // The generated code compares devices for CUDA alone: a meta tensor among CPU tensors would
    // come through, without any memory to read.
    TORCH_CHECK(
        tensor->device() == input.device(),
        op,
        "(): expected ",
        name,
        " to be on the input's device ",
        input.device(),
        ", but got ",
        tensor->device());
  }
}

template <typename Int>
void check_bias(const char* op, const Tensor& bias, const Shapes<Int>& shapes) {
  if (!bias.defined()) {
    return;
  }
  TORCH_CHECK(
      bias.dim() == 1 && holds(sym_eq(sizes_as(bias, Int())[0], shapes.weight[0])),
      op,
      "(): expected bias to be [",
      shapes.weight[0],
      "], one value for each output channel, but got bias of size ",
      sizes_as(bias, Int()));
}

template <typename Int>
void check_grad_output(const char* op, const Tensor& grad_output, const Shapes<Int>& shapes) {
  const auto expected = ArrayRef<Int>(shapes.output).slice(shapes.batched ? 0 : 1);
  const ArrayRef<Int> actual = sizes_as(grad_output, Int());
  bool same = expected.size() == actual.size();
  for (size_t d = 0; same && d < expected.size(); ++d) {
    same = holds(sym_eq(actual[d], expected[d]));
  }
  TORCH_CHECK(
      same,
      op,
      "(): expected grad_output to have the output's size ",
      expected,
      ", but got ",
      actual);
}

Tensor as_batch(const Tensor& tensor, bool batched) {
  return batched ? tensor : tensor.unsqueeze(0);
}

Tensor as_given(const Tensor& tensor, bool batched) {
  return batched ? tensor : tensor.squeeze(0);
}

DepthwiseConv2dExtParams make_params(const Shapes<int64_t>& shapes, MemoryFormat format) {
  DepthwiseConv2dExtParams params;
  params.batch = shapes.input[0];
  params.channels = shapes.input[1];
  params.multiplier = shapes.weight[0] / shapes.input[1];
  params.input_height = shapes.input[2];
  params.input_width = shapes.input[3];
  params.output_height = shapes.output[2];
  params.output_width = shapes.output[3];
  params.kernel_height = shapes.weight[2];
  params.kernel_width = shapes.weight[3];
  params.stride_height = shapes.stride[0];
  params.stride_width = shapes.stride[1];
  params.padding_height = shapes.padding[0];
  params.padding_width = shapes.padding[1];
  params.dilation_height = shapes.dilation[0];
  params.dilation_width = shapes.dilation[1];
  params.channels_last = format == MemoryFormat::ChannelsLast;
  return params;
}

// The memory order to compute in. CPU kernels compute plane by plane where neighbouring output channels
// read the same input channel, and where channels would fill but a few lanes of vectors (fp32, one
// thread, 3@224 k3 512 us became 227, k7s2 501 and 189; but 8@112 k3 108 and 147); CUDA's decide for themselves.
MemoryFormat compute_format(
    const Tensor& input,
    MemoryFormat format,
    const Shapes<int64_t>& shapes) {
  const bool alike = shapes.weight[0] == shapes.input[1];
  constexpr int64_t kFewChannels = 4;
  const bool by_pixels = alike && shapes.input[1] > kFewChannels;
  return by_pixels || input.is_cuda() ? format : MemoryFormat::Contiguous;
}

// What a kernel writes: `result` itself, or a stand-in in the memory order to compute in.
Tensor kernel_result(const Tensor& result, MemoryFormat format) {
  return result.is_contiguous(format) ? result : empty_as(result.sizes(), result.options(), format);
}

void copy_back(const Tensor& result, const Tensor& written) {
  if (!written.is_same(result)) {
    result.copy_(written);
  }
}

// The results of the backward, allocated as every backend returns them: grad_input in the input's
// suggested memory format, grad_weight in the weight's. Those not asked for stay undefined.
template <typename Int>
std::array<Tensor, 3> empty_gradients(
    const Tensor& input,
    const Tensor& weight,
    const Shapes<Int>& shapes,
    MemoryFormat format,
    const std::array<bool, 3>& output_mask) {
  std::array<Tensor, 3> gradients;
  if (output_mask[0]) {
    gradients[0] = empty_as(ArrayRef<Int>(shapes.input), input.options(), format);
  }
  if (output_mask[1]) {
    gradients[1] =
        empty_as(ArrayRef<Int>(shapes.weight), weight.options(), weight.suggest_memory_format());
  }
  if (output_mask[2]) {
    gradients[2] = empty_as(
        ArrayRef<Int>(shapes.weight).slice(0, 1), weight.options(), MemoryFormat::Contiguous);
  }
  return gradients;
}

Tensor tensor_or_undefined(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? *tensor : Tensor();
}

// A kernel's scratch grows with the sizes. Where it is not available the error has them;
// std::bad_alloc names nothing.
template <typename Kernel>
void run_kernel(const char* op, const Shapes<int64_t>& shapes, const Kernel& kernel) {
  try {
    kernel();
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(
        false,
        op,
        "(): out of memory for what the kernel computes in, with input of size ",
        ArrayRef<int64_t>(shapes.input),
        ", weight of size ",
        ArrayRef<int64_t>(shapes.weight),
        " and padding ",
        ArrayRef<int64_t>(shapes.padding));
  }
}

constexpr const char* kDepthwiseConv2d = "depthwise_conv2d_ext";
constexpr const char* kDepthwiseConv2dBackward = "depthwise_conv2d_ext_backward";

} // namespace

Tensor depthwise_conv2d_ext(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias_opt,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation) {
  const Tensor bias = tensor_or_undefined(bias_opt);
  const auto shapes =
      check_shapes<int64_t>(kDepthwiseConv2d, input, weight, stride, padding, dilation);
  check_bias(kDepthwiseConv2d, bias, shapes);
  check_operands(kDepthwiseConv2d, input, {{"weight", &weight}, {"bias", &bias}});

  const Tensor batch = as_batch(input, shapes.batched);
  const auto format = batch.suggest_memory_format();
  const Tensor output = empty_as(shapes.output, input.options(), format);
  const auto compute = compute_format(input, format, shapes);
  const Tensor written = kernel_result(output, compute);
  run_kernel(kDepthwiseConv2d, shapes, [&] {
    depthwise_conv2d_ext_stub(
        input.device().type(),
        written,
        batch.contiguous(compute),
        weight.contiguous(),
        bias.defined() ? bias.contiguous() : bias,
        make_params(shapes, compute));
  });
  copy_back(output, written);
  return as_given(output, shapes.batched);
}

Tensor depthwise_conv2d_ext_meta_symint(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias_opt,
    SymIntArrayRef stride,
    SymIntArrayRef padding,
    SymIntArrayRef dilation) {
  const Tensor bias = tensor_or_undefined(bias_opt);
  const auto shapes =
      check_shapes<SymInt>(kDepthwiseConv2d, input, weight, stride, padding, dilation);
  check_bias(kDepthwiseConv2d, bias, shapes);
  check_operands(kDepthwiseConv2d, input, {{"weight", &weight}, {"bias", &bias}});

  const auto format = as_batch(input, shapes.batched).suggest_memory_format();
  return as_given(empty_as(SymIntArrayRef(shapes.output), input.options(), format), shapes.batched);
}

std::tuple<Tensor, Tensor, Tensor> depthwise_conv2d_ext_backward(
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& weight,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    std::array<bool, 3> output_mask) {
  const auto shapes =
      check_shapes<int64_t>(kDepthwiseConv2dBackward, input, weight, stride, padding, dilation);
  check_grad_output(kDepthwiseConv2dBackward, grad_output, shapes);
  check_operands(
      kDepthwiseConv2dBackward, input, {{"grad_output", &grad_output}, {"weight", &weight}});
  if (!output_mask[0] && !output_mask[1] && !output_mask[2]) {
    return {};
  }

  const Tensor batch = as_batch(input, shapes.batched);
  const auto format = batch.suggest_memory_format();
  auto gradients = empty_gradients(input, weight, shapes, format, output_mask);
  Tensor& grad_input = gradients[0];
  const auto compute = compute_format(input, format, shapes);
  const Tensor written = grad_input.defined() ? kernel_result(grad_input, compute) : grad_input;
  run_kernel(kDepthwiseConv2dBackward, shapes, [&] {
    depthwise_conv2d_ext_backward_stub(
        input.device().type(),
        written,
        gradients[1],
        gradients[2],
        as_batch(grad_output, shapes.batched).contiguous(compute),
        batch.contiguous(compute),
        weight.contiguous(),
        make_params(shapes, compute));
  });
  if (grad_input.defined()) {
    copy_back(grad_input, written);
    grad_input = as_given(grad_input, shapes.batched);
  }
  return {grad_input, gradients[1], gradients[2]};
}

std::tuple<Tensor, Tensor, Tensor> depthwise_conv2d_ext_backward_meta_symint(
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& weight,
    SymIntArrayRef stride,
    SymIntArrayRef padding,
    SymIntArrayRef dilation,
    std::array<bool, 3> output_mask) {
  const auto shapes =
      check_shapes<SymInt>(kDepthwiseConv2dBackward, input, weight, stride, padding, dilation);
  check_grad_output(kDepthwiseConv2dBackward, grad_output, shapes);
  check_operands(
      kDepthwiseConv2dBackward, input, {{"grad_output", &grad_output}, {"weight", &weight}});

  const auto format = as_batch(input, shapes.batched).suggest_memory_format();
  auto [grad_input, grad_weight, grad_bias] =
      empty_gradients(input, weight, shapes, format, output_mask);
  if (grad_input.defined()) {
    grad_input = as_given(grad_input, shapes.batched);
  }
  return {grad_input, grad_weight, grad_bias};
}

} // namespace at::native
