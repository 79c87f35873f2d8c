// The faults of kernels; compiled once for each CPU capability. What a compiler could see through is
// volatile, or else it would compute the fault away or refuse it.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/SanitizerFault.h>

#include <ATen/Parallel.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

namespace at::native {
namespace {

using vec::Vectorized;

volatile int64_t kept; // what nobody keeps is not computed
volatile int64_t one = 1;
volatile int64_t zero = 0;

void keep(float value) {
  kept = value != 0;
}

template <typename scalar_t>
void keep(const Vectorized<scalar_t>& values) {
  scalar_t lanes[Vectorized<scalar_t>::size()];
  values.store(lanes);
  keep(static_cast<float>(lanes[0]));
}

void read_behind(float* data, int64_t n) {
  keep(Vectorized<float>::loadu(data + n - Vectorized<float>::size() + 1));
}

void write_behind(float* data, int64_t n) {
  Vectorized<float>(1).store(data + n - Vectorized<float>::size() + 1);
}

void read_lanes_behind(float* data, int64_t n) {
  keep(Vectorized<float>::loadu(data + n - 2, 2 + one));
}

void write_lanes_behind(float* data, int64_t n) {
  Vectorized<float>(1).store(data + n - 2, 2 + one);
}

void read_halves_behind(float* data, int64_t n) {
  const auto* halves = reinterpret_cast<const c10::Half*>(data) + 2 * n;
  keep(Vectorized<c10::Half>::loadu(halves - 2, 2 + one));
}

void write_doubles_behind(float* data, int64_t n) {
  auto* doubles = reinterpret_cast<double*>(data) + n / 2;
  Vectorized<double>(1).store(doubles - 1, 1 + one);
}

void read_before(float* data, int64_t /*n*/) {
  keep(data[-one]);
}

void read_behind_in_a_thread(float* data, int64_t n) {
  at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
    if (begin > 0) {
      keep(data[n + end - begin]);
    }
  });
}

void copy_behind(float* data, int64_t n) {
  std::unique_ptr<float[]> to(new float[n + 1]);
  std::memcpy(to.get(), data, (n + one) * sizeof(float));
  keep(to[n]);
}

void scratch_behind(float* /*data*/, int64_t n) {
  constexpr std::align_val_t kLine{64};
  auto* scratch = static_cast<float*>(::operator new(n * sizeof(float), kLine));
  scratch[n - 1 + one] = 1;
  ::operator delete(scratch, kLine);
}

void use_freed_scratch(float* /*data*/, int64_t n) {
  auto* scratch = new float[n];
  float* volatile dangling = scratch;
  delete[] scratch;
  keep(dangling[1]);
}

void free_twice(float* /*data*/, int64_t n) {
  void* volatile memory = std::malloc(n);
  std::free(memory);
  std::free(memory);
}

void read_behind_a_local(float* data, int64_t /*n*/) {
  float lanes[8];
  std::memcpy(lanes, data, sizeof(lanes));
  const float* volatile first = lanes;
  keep(first[7 + one]);
}

void use_a_local_of_another_scope(float* data, int64_t /*n*/) {
  const float* volatile outlived = nullptr;
  {
    float lanes[8];
    std::memcpy(lanes, data, sizeof(lanes));
    outlived = lanes;
  }
  keep(outlived[one]);
}

void index_outside(float* data, int64_t /*n*/) {
  float lanes[8];
  std::memcpy(lanes, data, sizeof(lanes));
  const auto index = 7 + one;
  keep(lanes[index]);
}

void overflow_a_product(float* /*data*/, int64_t n) {
  kept = n * (std::numeric_limits<int64_t>::max() - zero);
}

void shift_too_far(float* /*data*/, int64_t n) {
  kept = n << (63 + one);
}

void divide_by_zero(float* /*data*/, int64_t n) {
  kept = n / zero;
}

void convert_too_much(float* data, int64_t /*n*/) {
  kept = static_cast<int32_t>(data[0] + 3e9f);
}

void convert_nan(float* data, int64_t /*n*/) {
  kept = static_cast<int64_t>(data[0] + std::numeric_limits<float>::quiet_NaN());
}

void load_misaligned(float* data, int64_t /*n*/) {
  keep(*reinterpret_cast<float*>(reinterpret_cast<char*>(data) + one));
}

void refer_to_null(float* /*data*/, int64_t /*n*/) {
  float* volatile nothing = nullptr;
  float& value = *nothing;
  kept = reinterpret_cast<intptr_t>(&value);
}

void overflow_a_pointer(float* data, int64_t /*n*/) {
  const int64_t far = std::numeric_limits<int64_t>::max() / 4 - zero;
  float* volatile half_way = data + far;
  kept = reinterpret_cast<intptr_t>(half_way + far);
}

void load_no_bool(float* data, int64_t /*n*/) {
  std::memset(data, 2, sizeof(float));
  kept = *reinterpret_cast<volatile bool*>(data);
}

void nothing(float* data, int64_t n) {
  keep(data[n - 1]);
}

struct Fault {
  const char* name;
  void (*commit)(float* data, int64_t n);
};

constexpr Fault kFaults[] = {
    {"read behind", read_behind},
    {"write behind", write_behind},
    {"read lanes behind", read_lanes_behind},
    {"write lanes behind", write_lanes_behind},
    {"read halves behind", read_halves_behind},
    {"write doubles behind", write_doubles_behind},
    {"read before", read_before},
    {"thread behind", read_behind_in_a_thread},
    {"copy behind", copy_behind},
    {"scratch behind", scratch_behind},
    {"freed scratch", use_freed_scratch},
    {"freed twice", free_twice},
    {"local behind", read_behind_a_local},
    {"local of another scope", use_a_local_of_another_scope},
    {"index", index_outside},
    {"product", overflow_a_product},
    {"shift", shift_too_far},
    {"division", divide_by_zero},
    {"conversion", convert_too_much},
    {"conversion of NaN", convert_nan},
    {"misaligned", load_misaligned},
    {"null", refer_to_null},
    {"pointer", overflow_a_pointer},
    {"no bool", load_no_bool},
    {"nothing", nothing},
};

bool sanitizer_fault_kernel(const TensorBase& self, const std::string& fault) {
  for (const auto& known : kFaults) {
    if (fault == known.name) {
      known.commit(self.mutable_data_ptr<float>(), self.numel());
      return true;
    }
  }
  return false;
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(sanitizer_fault_stub, &sanitizer_fault_kernel)

} // namespace at::native
