// Windows of one dimension along contiguous lines in bfloat16. See Sequence.cuh.
#include <ATen/native/cuda/depthwise_conv2d_ext/Sequence.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

template void run_planes<c10::BFloat16>(
    const SequencePass& pass,
    const Sequence& s,
    const Params& p);

} // namespace at::native::depthwise_conv2d_ext_cuda
