// Tests the gate's figures of two real models.
#include <gtest/gtest.h>

#include "data/ingest.h"
#include "deploy/validate/validate.h"
#include "tests/base/scratch.h"
#include "tests/text/shared_data.h"
#include "tests/validate/idle_meter.h"

namespace specdec::deploy {
namespace {

namespace fs = std::filesystem;

// Compares the figures of two real models with figures computed independently with transformers 5.23
// (shared/data/README.md).
TEST(RealModels, AcceptanceOfLlama2xsForStories260K) {
  const fs::path shared = test::shared_data();
  const fs::path target = shared / "models/stories260K", draft = shared / "models/llama2xs-279K",
                 texts = shared / "tinystories-text/tinystories_sample_2MB.txt";
  SKIP_WITHOUT(target);
  SKIP_WITHOUT(draft);
  SKIP_WITHOUT(texts);
  const specdec::testing::Scratch folder;
  const SystemClock clock;
  const specdec::testing::IdleMeter idle;
  data::IngestOptions ingest;
  ingest.sources = {texts};
  ingest.target = target;
  ingest.out = folder / "data";
  ingest.min_chars = 101;
  ingest.limit = 200;
  ingest.holdout = 1;
  ingest.max_length = 256;
  ingest.redact = ingest.dedup = false;
  data::ingest(ingest, {});
  ValidateOptions o;
  o.target = target;
  o.draft = draft;
  o.data = ingest.out;
  o.out = folder / "gate";
  o.contexts = "data";
  o.parts = "acceptance";
  o.max_requests = 0;
  o.device.dtype = "fp32";
  o.device.device = "cpu";
  const ValidationReport early = run_validate(o, clock, idle).report;
  EXPECT_GT(early.requests_needed, 20);
  EXPECT_LT(early.alpha.n, 200);  // the whole interval was above the floor, so scoring stopped early
  EXPECT_GE(early.alpha.n, early.requests_needed);
  EXPECT_EQ(early.requests_available, 200);
  o.early_stop = false;
  const ValidationReport r = run_validate(o, clock, idle).report;
  EXPECT_EQ(r.requests_needed, early.requests_needed);
  EXPECT_LE(r.alpha.ci.high - r.alpha.ci.low, early.alpha.ci.high - early.alpha.ci.low);
  EXPECT_EQ(r.alpha.n, 200);
  EXPECT_EQ(r.tokens, 50651);
  EXPECT_NEAR(r.alpha.value, 0.638, 0.005);
  EXPECT_NEAR(r.alpha_tokens, 0.638, 0.005);
  EXPECT_NEAR(r.greedy_agreement, 0.609, 0.005);
}

}  // namespace
}  // namespace specdec::deploy
