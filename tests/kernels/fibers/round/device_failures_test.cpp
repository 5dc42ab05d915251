// Tests answers while kernels fail to launch: a library of fibers returns error codes of CUDA.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/device_lost.h"
#include "engine/decode/device/device_round.h"
#include "engine/decode/generate.h"
#include "engine/decode/runners/model_runner.h"
#include "tests/kernels/fibers/model/toy_decoders.h"

namespace specdec::decode {
namespace {

constexpr int32_t kMemoryAllocation = 2, kIllegalAddress = 700;  // cudaErrorMemoryAllocation, cudaErrorIllegalAddress

// After `products_left` more products, failing_library() returns `failure` for each product. Both are global, because
// the library's functions have no state.
int64_t products_left = 0;
int32_t failure = 0;

const kernels::CudaLibrary& failing_library() {
  static const kernels::CudaLibrary library = [] {
    kernels::CudaLibrary made = fibers::fiber_library();
    made.rows_product = [](kernels::CudaDtype dtype, int32_t device, const kernels::RowsProduct* product) {
      return products_left-- > 0 ? fibers::fiber_library().rows_product(dtype, device, product) : failure;
    };
    return made;
  }();
  return library;
}

const Request kRequest = {{5, 9, 2, 7}, 3, {.max_tokens = 12, .sampling = {.temperature = 0}}};

struct Pair {
  std::shared_ptr<model::Decoder> target = on_fibers(model::toy_decoder(model::toy_config("llama", 1)), at::kBFloat16),
                                  draft = on_fibers(model::toy_decoder(model::toy_config("llama", 1)), at::kBFloat16);

  // Generates an answer in rounds on the device. If `drafts` is false, the draft is not used.
  GenerateResult answer(bool drafts) const {
    const auto target_runner = with_rounds(make_model_runner(target)), draft_runner = make_model_runner(draft);
    Stepper stepper(*target_runner, draft_runner.get());
    Drafting drafting;
    if (drafts) drafting.model.emplace().fixed_k = 3;
    return generate(stepper, kRequest, drafting, SystemClock());
  }
};

TEST(DeviceFailures, OutOfMemoryInTheDraftDecodesPlainly) {
  Pair pair;
  const std::vector<int32_t> plain = pair.answer(false).tokens;
  ASSERT_EQ(pair.answer(true).tokens, plain);
  pair.draft->library = &failing_library();
  failure = kMemoryAllocation;
  for (const int64_t products : {0, 7, 30}) {
    products_left = products;
    const GenerateResult result = pair.answer(true);
    EXPECT_EQ(result.tokens, plain) << "after " << products << " products";
    EXPECT_LT(products_left, 0) << "the draft must have failed";
    EXPECT_GT(result.counts.plain_steps, 0);
  }
}

constexpr int32_t kCaptureUnsupported = 900, kCaptureInvalidated = 901;  // cudaErrorStreamCapture…
int64_t refused = 0;

// If a device refuses to begin or to end a capture, passes run without graphs.
TEST(DeviceFailures, PassesRunWithoutGraphsWhereNothingIsCaptured) {
  Pair pair;
  const std::vector<int32_t> tokens = pair.answer(true).tokens;
  kernels::CudaLibrary begins = fibers::fiber_library(), ends = begins;
  begins.begin_capture = [](int32_t) { return ++refused > 0 ? kCaptureUnsupported : 0; };
  ends.end_capture = [](int32_t device, void** graph) {
    const int32_t code = fibers::fiber_library().end_capture(device, graph);
    fibers::fiber_library().free_graph(*graph);
    *graph = nullptr;
    return ++refused > 0 ? kCaptureInvalidated : code;
  };
  for (const kernels::CudaLibrary* library : {&begins, &ends}) {
    for (model::Decoder* decoder : {pair.target.get(), pair.draft.get()}) decoder->library = library;
    const int64_t before = fibers::graph_counts().launched;
    refused = 0;
    EXPECT_EQ(pair.answer(true).tokens, tokens);
    EXPECT_EQ(fibers::graph_counts().launched, before);
    EXPECT_GT(refused, 3);
    EXPECT_LE(refused, 6) << "each model may have tried three times";
  }
}

int64_t open_captures = 0;
enum class Thrown { kLost, kMemory } thrown_in_captures{};

// A library whose products throw an exception during a capture, instead of returning an error code.
const kernels::CudaLibrary& throwing_library() {
  static const kernels::CudaLibrary library = [] {
    kernels::CudaLibrary made = fibers::fiber_library();
    made.begin_capture = [](int32_t device) {
      ++open_captures;
      return fibers::fiber_library().begin_capture(device);
    };
    made.end_capture = [](int32_t device, void** graph) {
      --open_captures;
      return fibers::fiber_library().end_capture(device, graph);
    };
    made.rows_product = [](kernels::CudaDtype dtype, int32_t device, const kernels::RowsProduct* product) {
      if (open_captures > 0 && thrown_in_captures == Thrown::kLost) throw DeviceLost("gone");
      if (open_captures > 0) throw std::bad_alloc();
      return fibers::fiber_library().rows_product(dtype, device, product);
    };
    return made;
  }();
  return library;
}

TEST(DeviceFailures, CapturesEndWhateverIsThrownInThem) {
  const std::vector<int32_t> tokens = Pair().answer(true).tokens;
  for (const Thrown thrown : {Thrown::kMemory, Thrown::kLost}) {
    fibers::graph_counts() = {};
    {
      Pair pair;
      pair.target->library = &throwing_library();
      thrown_in_captures = thrown;
      if (thrown == Thrown::kLost)
        EXPECT_THROW(pair.answer(true), DeviceLost);
      else
        EXPECT_EQ(pair.answer(true).tokens, tokens);
      EXPECT_EQ(open_captures, 0);
    }
    EXPECT_GT(fibers::graph_counts().captured, 0);
    EXPECT_EQ(fibers::graph_counts().freed, fibers::graph_counts().captured);
  }
}

// Runs rounds on the device, but throws at the end of the third, as if memory ran out while its results were stored.
class FailsAtTheEnd final : public RoundRunner {
 public:
  explicit FailsAtTheEnd(std::unique_ptr<RoundRunner> runner) : runner_(std::move(runner)) {}
  bool takes(std::span<const RoundSlot> slots) override { return runner_->takes(slots); }
  bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) override {
    const bool ran = runner_->run(slots, outcomes, seconds);
    if (ran && ++rounds_ == 3) throw Error(ErrorKind::kDevice, "out of memory");
    return ran;
  }

 private:
  std::unique_ptr<RoundRunner> runner_;
  int rounds_ = 0;
};

TEST(DeviceFailures, ARoundThatFailsAtItsEndIsStepsOnTheHost) {
  const Pair pair;
  const std::vector<int32_t> expected = pair.answer(true).tokens;
  const auto target = make_model_runner(pair.target), draft = make_model_runner(pair.draft);
  FailsAtTheEnd rounds(make_device_round(*target));
  Stepper stepper(*target, draft.get());
  stepper.use_rounds(&rounds);
  Drafting drafting;
  drafting.model.emplace().fixed_k = 3;
  EXPECT_EQ(generate(stepper, kRequest, drafting, SystemClock()).tokens, expected);
}

TEST(DeviceFailures, GraphsEndWithTheirModels) {
  fibers::graph_counts() = {};
  Pair pair;
  pair.answer(true);
  const fibers::GraphCounts& counts = fibers::graph_counts();
  EXPECT_GT(counts.captured, 2);
  EXPECT_GT(counts.launched, 3);
  EXPECT_EQ(counts.freed, counts.captured);
}

TEST(DeviceFailures, ALostDeviceEndsTheStep) {
  Pair pair;
  failure = kIllegalAddress;
  for (model::Decoder* lost : {pair.target.get(), pair.draft.get()}) {
    for (model::Decoder* decoder : {pair.target.get(), pair.draft.get()}) decoder->library = &fibers::fiber_library();
    lost->library = &failing_library();
    products_left = 9;
    EXPECT_THROW(pair.answer(true), DeviceLost);
  }
}

}  // namespace
}  // namespace specdec::decode
