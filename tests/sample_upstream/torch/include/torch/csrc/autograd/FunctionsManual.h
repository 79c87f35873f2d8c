#pragma once

namespace torch::autograd::generated::details {

int sample();

} // namespace torch::autograd::generated::details
