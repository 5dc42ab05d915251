// Runs the self-test of the CUDA kernels on fibers: it must pass with the real kernels, and must name a kernel whose
// results are spoiled.
#include <gtest/gtest.h>

#include <set>

#include "base/device_lost.h"
#include "engine/self_test/gpu_check.h"
#include "tests/kernels/fibers/model/fiber_library.h"

namespace specdec::self_test {
namespace {

using fibers::fiber_library;
using kernels::CudaLibrary;

// A clock that advances by one millisecond at each reading.
class Ticking final : public Clock {
 public:
  double seconds() const override { return ticks_++ * 1e-3; }
  int64_t unix_seconds() const override { return 0; }

 private:
  mutable int ticks_ = 0;
};

SelfTestResult test(const CudaLibrary& library, const std::string& only = {}) {
  const auto memory = make_test_memory(-1);
  std::vector<KernelCase> cases = kernel_cases(Extent::kFew);
  std::erase_if(cases, [&](const KernelCase& one) { return !only.empty() && one.kernel != only; });
  return test_kernels({library, 0, *memory}, cases);
}

// Flips a bit in the middle of the mantissa of one element.
void spoil(kernels::CudaDtype dtype, void* array, int64_t element) {
  if (dtype == kernels::CudaDtype::kFloat)
    static_cast<uint32_t*>(array)[element] ^= 0x00400000u;
  else
    static_cast<uint16_t*>(array)[element] ^= 0x0040u;
}

// Flips a bit in the middle of the mantissa of the largest of some 16-bit numbers, which changes its value most.
void spoil_largest(void* array, int64_t first, int64_t count) {
  auto* const numbers = static_cast<uint16_t*>(array) + first;
  int64_t most = 0;
  for (int64_t i = 1; i < count; ++i)
    if ((numbers[i] & 0x7FFF) > (numbers[most] & 0x7FFF)) most = i;
  numbers[most] ^= 0x0040u;
}

// Spoils a result of a product and returns `code`.
int32_t spoil(int32_t code, const kernels::RowsProduct& product) {
  spoil_largest(product.out, (product.rows - 1) * product.stride, product.n);
  return code;
}

// A library in which the kernel named `kernel` spoils one of its results.
struct Spoiled {
  const char* kernel;
  CudaLibrary library;
};
std::vector<Spoiled> spoiled_libraries() {
  std::vector<Spoiled> out;
  const auto add = [&](const char* kernel) -> CudaLibrary& {
    return out.emplace_back(Spoiled{kernel, fiber_library()}).library;
  };
  add("rms_norm").rms_norm = [](CudaDtype dtype, int32_t device, const void* x, const void* weight, float eps,
                                int64_t rows, int64_t n, void* to) {
    const int32_t code = fiber_library().rms_norm(dtype, device, x, weight, eps, rows, n, to);
    spoil(dtype, to, rows * n - 1);
    return code;
  };
  add("silu_mul").silu_mul = [](CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n,
                                void* to) {
    const int32_t code = fiber_library().silu_mul(dtype, device, gate, up, n, to);
    spoil(dtype, to, n - 1);
    return code;
  };
  add("rope").rope = [](CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin,
                        int64_t rows, int64_t heads, int64_t d, void* to) {
    const int32_t code = fiber_library().rope(dtype, device, x, cos, sin, rows, heads, d, to);
    spoil(dtype, to, d - 1);
    return code;
  };
  add("gather_rows").gather_rows = [](CudaDtype dtype, int32_t device, const void* table, const int32_t* ids,
                                      int64_t rows, int64_t n, void* to) {
    const int32_t code = fiber_library().gather_rows(dtype, device, table, ids, rows, n, to);
    spoil(dtype, to, n);
    return code;
  };
  add("rows_product").rows_product = [](CudaDtype dtype, int32_t device, const kernels::RowsProduct* product) {
    return spoil(fiber_library().rows_product(dtype, device, product), *product);
  };
  add("wide_product").wide_product = [](CudaDtype dtype, int32_t device, const kernels::RowsProduct* product,
                                        void* workspace) {
    return spoil(fiber_library().wide_product(dtype, device, product, workspace), *product);
  };
  add("dequantise").dequantise = [](CudaDtype dtype, int32_t device, const kernels::DequantisedMatrix* matrix) {
    const int32_t code = fiber_library().dequantise(dtype, device, matrix);
    spoil(dtype, matrix->out, matrix->n * matrix->k - 1);
    return code;
  };
  add("prepare_heads").prepare_heads = [](CudaDtype dtype, int32_t device, const kernels::PagedPass* pass,
                                          const kernels::PagedHeads* heads) {
    const int32_t code = fiber_library().prepare_heads(dtype, device, pass, heads);
    auto* block = reinterpret_cast<void*>(pass->blocks[pass->rows[0].table]);
    spoil_largest(block, (heads->layer * 2 * pass->kv_heads * kernels::kPagedSlots + pass->rows[0].slot) * pass->d,
                  pass->d);
    return code;
  };
  add("paged_attention").paged_attention = [](CudaDtype dtype, int32_t device, const kernels::PagedPass* pass,
                                              const kernels::PagedLayer* layer) {
    const int32_t code = fiber_library().paged_attention(dtype, device, pass, layer);
    spoil_largest(layer->out, 0, pass->d);
    return code;
  };
  add("sample").sample = [](int32_t device, const kernels::SamplePass* pass) {
    const int32_t code = fiber_library().sample(device, pass);
    pass->logits[pass->vocab] += 1e-5f;
    return code;
  };
  add("draft").draft = [](int32_t device, const kernels::DraftPass* pass) {
    const int32_t code = fiber_library().draft(device, pass);
    ++pass->nodes[pass->rows[0].first_child].token;
    return code;
  };
  add("move_slots").move_slots = [](int32_t device, const kernels::SlotMoves* moves) {
    const int32_t code = fiber_library().move_slots(device, moves);
    reinterpret_cast<uint16_t*>(moves->to_block[0])[moves->to[0] * moves->d] ^= 1;
    return code;
  };
  add("verify").verify = [](int32_t device, const kernels::VerifyPass* pass) {
    const int32_t code = fiber_library().verify(device, pass);
    pass->outcomes[pass->num_tasks - 1].next ^= 1;
    return code;
  };
  return out;
}

std::string texts_of(const std::vector<GpuFault>& faults) {
  std::string out;
  for (const GpuFault& fault : faults) out += fault.text() + "\n";
  return out;
}

TEST(SelfTest, PassesWithTheKernelsAsTheyAre) {
  const auto memory = make_test_memory(-1);
  const GpuCheck check = check_gpu({fiber_library(), 0, *memory}, Extent::kUsual, Ticking());
  EXPECT_EQ(texts_of(check.faults), "");
  EXPECT_EQ(check.cases, static_cast<int64_t>(kernel_cases(Extent::kUsual).size()));
  RecordProperty("cases", std::to_string(check.cases));
  EXPECT_EQ(check.name, "fibers");
  EXPECT_NEAR(check.seconds, 1e-3, 1e-9);
  EXPECT_NEAR(check.copy_bytes_per_second, 2 * 4 * (16 << 20) / 1e-3, 1e6);  // four copies of 16 MiB in 1 ms
}

TEST(SelfTest, TestsEveryKernelOfTheLibrary) {
  for (const Extent extent : {Extent::kFew, Extent::kUsual, Extent::kMany}) {
    std::set<std::string> tested;
    for (const KernelCase& one : kernel_cases(extent)) tested.insert(one.kernel);
    std::set<std::string> all;
    for (const Spoiled& one : spoiled_libraries()) all.insert(one.kernel);
    EXPECT_EQ(tested, all);
  }
}

TEST(SelfTest, NamesTheKernelWhoseResultsAreSpoiled) {
  for (const Spoiled& spoiled : spoiled_libraries()) {
    const SelfTestResult result = test(spoiled.library, spoiled.kernel);
    EXPECT_EQ(static_cast<int64_t>(result.faults.size()), result.cases) << spoiled.kernel << "\n"
                                                                        << texts_of(result.faults);
    for (const GpuFault& fault : result.faults) {
      EXPECT_EQ(fault.kernel, spoiled.kernel);
      EXPECT_NE(fault.what.find("expected"), std::string::npos) << fault.text();
    }
  }
}

TEST(SelfTest, NamesTheWorstElementAndBothValues) {
  CudaLibrary library = fiber_library();
  library.silu_mul = [](CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n, void* out) {
    const int32_t code = fiber_library().silu_mul(dtype, device, gate, up, n, out);
    if (dtype != CudaDtype::kFloat) return code;
    static_cast<float*>(out)[3] += 0.5f;
    static_cast<float*>(out)[200] = 1000;
    return code;
  };
  const SelfTestResult result = test(library, "silu_mul");
  ASSERT_EQ(result.faults.size(), 1u) << texts_of(result.faults);
  const std::string text = result.faults[0].text();
  EXPECT_TRUE(text.starts_with("silu_mul, fp32 257: element 200 of 257 is 1000, expected ")) << text;
}

TEST(SelfTest, NoticesWhatIsWrittenOutsideOfAnArray) {
  CudaLibrary library = fiber_library();
  library.rope = [](CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin, int64_t rows,
                    int64_t heads, int64_t d, void* out) {
    const int32_t code = fiber_library().rope(dtype, device, x, cos, sin, rows, heads, d, out);
    static_cast<uint8_t*>(out)[rows * heads * d * (dtype == CudaDtype::kFloat ? 4 : 2)] = 0;
    return code;
  };
  const SelfTestResult result = test(library);
  EXPECT_EQ(result.faults.size(), 3u) << texts_of(result.faults);
  for (const GpuFault& fault : result.faults) EXPECT_NE(fault.text().find("rope, "), std::string::npos) << fault.text();
  EXPECT_NE(texts_of(result.faults).find("it wrote outside of an array"), std::string::npos);
}

TEST(SelfTest, AKernelThatCannotBeLaunchedIsAFault) {
  CudaLibrary library = fiber_library();
  library.verify = [](int32_t, const kernels::VerifyPass*) { return 1; };
  const SelfTestResult result = test(library, "verify");
  EXPECT_EQ(static_cast<int64_t>(result.faults.size()), result.cases);
  EXPECT_NE(texts_of(result.faults).find("it could not be launched: refused"), std::string::npos);
}

TEST(SelfTest, ALostDeviceEndsItWithTheKernelsName) {
  constexpr int32_t kIllegalAddress = 700;
  CudaLibrary library = fiber_library();
  library.sample = [](int32_t, const kernels::SamplePass*) { return kIllegalAddress; };
  try {
    test(library, "sample");
    FAIL() << "it goes on";
  } catch (const DeviceLost& lost) {
    EXPECT_TRUE(lost.what().starts_with("sample, 4 x 333")) << lost.what();
  }
}

}  // namespace
}  // namespace specdec::self_test
