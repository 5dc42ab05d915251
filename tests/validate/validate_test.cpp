// Tests of `specdec validate` as a whole, on tiny models.
#include "deploy/validate/validate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/schema/binding.h"
#include "data/shards/shard_writer.h"
#include "deploy/bench/bench.h"
#include "engine/weights/weights.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"
#include "tests/validate/idle_meter.h"

namespace specdec::deploy {
namespace {

namespace fs = std::filesystem;
const SystemClock kClock;
const specdec::testing::IdleMeter kIdle;

// Writes a random decoder with the given seed and the demo's tokenizer. `noise` is the relative size of random changes
// to its matrices.
void write_model(const fs::path& directory, uint64_t seed, double noise = 0) {
  model::DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 1536;
  c.hidden_size = 16;
  c.intermediate_size = 16;
  c.num_layers = 1;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 8;
  c.max_position = 192;
  c.layers.resize(1);
  c.eos_ids = {2};
  c.bos_id = 1;
  model::Decoder d = model::random_decoder(c, seed, at::kCPU, at::kFloat);
  const model::Decoder other = model::random_decoder(c, seed + 77, at::kCPU, at::kFloat);
  std::vector<at::Tensor> noises;
  model::Decoder copy = other;
  copy.weights.visit(c, [&](const std::string&, at::Tensor& t) { noises.push_back(t); });
  size_t i = 0;
  d.weights.visit(c, [&](const std::string&, at::Tensor& t) {
    if (t.dim() == 2) {
      t.mul_(20);
      t.add_(noises[i], 20 * noise);
    }
    ++i;
  });
  fs::create_directories(directory);
  model::save_decoder(d, directory);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(fs::path(source_folder()) / "cli/demo/assets/target" / name, directory / name);
}

class Validate : public ::testing::Test {
 protected:
  void SetUp() override {
    write_model(target(), 1);
    write_model(draft(), 1, 0.25);
    write_data("unknown");
  }
  fs::path target() const { return folder_ / "target"; }
  fs::path draft() const { return folder_ / "draft"; }
  fs::path data() const { return folder_ / "data"; }

  // The prompts of the first `past_context` rows fill the models' context, so that their answers lie outside of it.
  void write_data(const std::string& written_by, int past_context = 0) {
    const Fingerprint f = fingerprint_model(target());
    data::publish_shards(data(), [&](const fs::path& directory) {
      data::ShardWriter writer(directory);
      PhiloxStream random(5, 5);
      for (int i = 0; i < 24; ++i) {
        TokenRow row;
        row.id = "r" + std::to_string(i);
        row.conversation = "c" + std::to_string(i / 2);
        row.domain = i % 3 ? "story" : "code";
        row.prompt_tokens = i < past_context ? 192 : 6;
        for (int64_t t = 0; t < row.prompt_tokens + 24; ++t) {
          row.tokens.push_back(static_cast<int32_t>(4 + random.below(1500)));
          row.loss_mask.push_back(t >= row.prompt_tokens);
        }
        writer.add(i < 20 ? "holdout" : "train", row);
      }
      ShardIndex index;
      index.tokenizer_digest = f.tokenizer;
      index.target_id = f.id;
      index.vocab_size = 1536;
      index.written_by = written_by;
      index.shards = writer.finish();
      index.tool_version = "test";
      return index;
    });
  }

  ValidateOptions options() const {
    ValidateOptions o;
    o.target = target();
    o.draft = draft();
    o.data = data();
    o.out = folder_ / "out";
    o.rollout_tokens = 16;
    o.speed_prompts = 3;
    o.speed_tokens = 12;
    o.speculation.max_k = 3;
    o.device.device = "cpu";
    return o;
  }
  Validation run(const std::string& parts) const {
    ValidateOptions o = options();
    o.parts = parts;
    return run_validate(o, kClock, kIdle);
  }

  specdec::testing::Scratch folder_;
};

TEST_F(Validate, EveryPartAndItsFiles) {
  const ValidateOptions o = options();
  const Validation v = run_validate(o, kClock, kIdle);
  const ValidationReport& r = v.report;
  EXPECT_EQ(r.alpha.n, 20);
  EXPECT_GT(r.alpha.value, 0.02);
  EXPECT_LT(r.alpha.value, 0.99);
  EXPECT_EQ(r.rollout.k, 3);
  EXPECT_GT(r.rollout.counts.steps, 20);
  // The texts are the target's own answers here, so roll-outs and scoring measure the same acceptance.
  EXPECT_NEAR(r.rollout.alpha.value, r.alpha.value, 0.1);
  ASSERT_EQ(r.segments.size(), 2u);
  EXPECT_EQ(r.segments[0].name, "code");
  EXPECT_EQ(r.segments[0].rollout.counts.steps + r.segments[1].rollout.counts.steps, r.rollout.counts.steps);
  EXPECT_GT(r.segments[0].entropy, 0);
  EXPECT_EQ(r.differences, 0);
  EXPECT_EQ(r.greedy_prompts, 20);
  EXPECT_GT(r.sampled_p_value, 1e-4);
  EXPECT_TRUE(r.has_speed && r.has_lossless);
  EXPECT_EQ(r.table.size(), 9u);
  EXPECT_GT(r.draft_cost, 0);
  EXPECT_EQ(r.schedule.front().low, 1);
  EXPECT_EQ(r.schedule.back().high, 4);
  EXPECT_TRUE(r.schedule.front().measured);
  EXPECT_EQ(r.schedule.front().speedup, r.speedup.value);
  EXPECT_EQ(r.schedule.front().k > 0, r.schedule.front().validated());
  ASSERT_TRUE(r.machine);
  EXPECT_EQ(r.machine->cpus, 2) << "the meter that was given is asked";
  EXPECT_EQ(r.machine->disturbed, 0);
  EXPECT_FALSE(r.judged_by.empty());
  EXPECT_EQ(r.next.rfind("specdec ", 0), 0u) << r.next;
  ASSERT_EQ(v.details.notes.size(), 1u);  // the pair is not bound, so there is a warning
  EXPECT_NE(v.details.notes[0].find("not bound"), std::string::npos);
  EXPECT_EQ(r.target, fingerprint_model(target()));
  EXPECT_EQ(r.draft, fingerprint_model(draft()));

  write_validation(v, o.out);
  const fs::path file = fs::path(o.out) / "report.json";
  const ValidationReport read = validation_report_from_json(read_json(file), file.string());
  EXPECT_EQ(read.verdict, r.verdict);
  EXPECT_NEAR(read.alpha.value, r.alpha.value, 1e-12);
  EXPECT_NE(read_file(fs::path(o.out) / "report.html").find("Draft validation"), std::string::npos);
}

// Other processes take both CPUs all the time, so measured times must not decide.
TEST_F(Validate, OnABusyMachineNoTimeDecides) {
  class BusyMeter final : public CpuMeter {
    int cpus() const override { return 2; }
    std::optional<CpuTime> read() const override { return CpuTime{1 + 2 * kClock.seconds(), 0, 0}; }
  };
  ValidateOptions o = options();
  o.parts = "rollout,speed";
  o.speed_prompts = 8;
  const ValidationReport r = run_validate(o, kClock, BusyMeter()).report;
  EXPECT_EQ(r.verdict, Verdict::kInconclusive) << r.reason;
  EXPECT_TRUE(r.machine->busy);
  EXPECT_NEAR(r.machine->others, 2, 0.1);
  EXPECT_NE(r.reason.find("the machine was busy: other processes used 2.0 of 2 CPUs"), std::string::npos) << r.reason;
  for (const ScheduleRow& row : r.schedule) EXPECT_EQ(row.k, 0);
  EXPECT_EQ(r.next.find("--speed-prompts 16"), std::string::npos) << "more prompts do not help: " << r.next;
}

TEST_F(Validate, TheSameSeedGivesTheSameFigures) {
  const auto a = run("acceptance,rollout").report, b = run("acceptance,rollout").report;
  EXPECT_EQ(a.request_alphas, b.request_alphas);
  EXPECT_EQ(a.rollout.counts.accepted_at, b.rollout.counts.accepted_at);
}

TEST_F(Validate, ContextsOfTheDataAreTakenAsTheyAre) {
  ValidateOptions o = options();
  o.parts = "acceptance";
  o.contexts = "data";
  const ValidationReport as_is = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(as_is.tokens, 20 * 24);
  EXPECT_EQ(as_is.rollout.counts.steps, 0);
  EXPECT_EQ(as_is.verdict, as_is.alpha.ci.high < 0.6 ? Verdict::kFail : Verdict::kInconclusive);
  o.contexts = "target";
  EXPECT_NE(run_validate(o, kClock, kIdle).report.request_alphas, as_is.request_alphas);  // the target answers again
  write_data("target");
  EXPECT_EQ(run_validate(o, kClock, kIdle).report.request_alphas,
            as_is.request_alphas);  // the recorded answers are this target's own
}

TEST_F(Validate, StaleComesFirst) {
  write_model(folder_ / "other", 9);
  DraftBinding binding;
  binding.target = fingerprint_model(folder_ / "other");
  binding.kind = "model";
  binding.training = Json::object();
  write_file_atomic(draft() / "specdec.json", to_json(binding).dump());
  ValidateOptions o = options();
  o.data = folder_ / "nowhere";  // is never opened, so this is no error
  const Validation v = run_validate(o, kClock, kIdle);
  EXPECT_EQ(v.report.verdict, Verdict::kStale);
  EXPECT_NE(v.report.reason.find("made for another target"), std::string::npos);
  EXPECT_EQ(v.report.alpha.n, 0);
  write_validation(v, o.out);
  EXPECT_EQ(validation_report_from_json(read_json(fs::path(o.out) / "report.json"), "report").verdict, Verdict::kStale);

  o = options();
  o.allow_stale = true;
  o.parts = "acceptance";
  EXPECT_NE(run_validate(o, kClock, kIdle).report.verdict, Verdict::kStale);

  binding.target = fingerprint_model(target());
  write_file_atomic(draft() / "specdec.json", to_json(binding).dump());
  o.allow_stale = false;
  const Validation bound = run_validate(o, kClock, kIdle);
  EXPECT_GT(bound.report.alpha.n, 0);
  EXPECT_TRUE(bound.details.notes.empty());
}

TEST_F(Validate, BaselineIsComparedByRequest) {
  ValidateOptions o = options();
  o.parts = "acceptance";
  o.contexts = "data";
  write_validation(run_validate(o, kClock, kIdle), o.out);
  write_model(folder_ / "better", 1, 0.05);
  o.draft = folder_ / "better";
  o.baseline = fs::path(o.out) / "report.json";
  const ValidationReport r = run_validate(o, kClock, kIdle).report;
  ASSERT_TRUE(r.baseline.has_value());
  EXPECT_EQ(r.baseline->difference.n, 20);
  EXPECT_GT(r.baseline->difference.value, 0.05);
  EXPECT_TRUE(r.baseline->draft_id.empty());
  EXPECT_FALSE(r.baseline->min_gain) << "reported only";
  o.min_gain = 0.9;
  const ValidationReport asked = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(*asked.baseline->min_gain, 0.9);
  EXPECT_EQ(asked.verdict, Verdict::kFail);
}

TEST_F(Validate, TheServingDraftIsScoredOnTheSameRequests) {
  write_model(folder_ / "better", 1, 0.05);
  ValidateOptions o = options();
  o.parts = "acceptance";
  o.contexts = "data";
  const ValidationReport alone = run_validate(o, kClock, kIdle).report;
  o.draft = folder_ / "better";
  const ValidationReport better = run_validate(o, kClock, kIdle).report;
  EXPECT_FALSE(better.baseline);
  o.against = draft();
  const ValidationReport r = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(r.request_alphas, better.request_alphas);
  ASSERT_TRUE(r.baseline);
  EXPECT_NEAR(r.baseline->difference.value, better.alpha.value - alone.alpha.value, 1e-6);
  EXPECT_EQ(r.baseline->difference.n, 20);
  EXPECT_EQ(r.baseline->draft_id, fingerprint_model(draft()).id);
  EXPECT_EQ(*r.baseline->min_gain, -0.02);
  ASSERT_EQ(r.baseline->segments.size(), 2u);
  EXPECT_FALSE(r.baseline->segments[0].judged) << "too few requests";
  EXPECT_NE(r.reason.find("serving draft"), std::string::npos) << r.reason;
}

TEST_F(Validate, FloorsOfSegments) {
  ValidateOptions o = options();
  o.parts = "acceptance";
  o.contexts = "data";
  o.segment_floors = {"code=0.55"};
  o.segments_floor = 0.95;
  const Validation v = run_validate(o, kClock, kIdle);
  ASSERT_EQ(v.report.segments.size(), 2u);
  EXPECT_EQ(*v.report.segments[0].floor, 0.55);
  EXPECT_FALSE(v.report.segments[1].floor);
  EXPECT_NE(v.details.notes.back().find("fewer than 30 requests are not judged: code (7), story (13)"),
            std::string::npos)
      << v.details.notes.back();
  o.segment_floors = {"poetry=0.6"};
  try {
    run_validate(o, kClock, kIdle);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find("there are code, story"), std::string::npos) << e.what();
  }
}

// Scoring stops as soon as acceptance is decided. The number of rolled-out requests must not depend on when scoring
// stops. Otherwise the figures of the roll-outs, which the monitor uses as its baseline, would be biased.
TEST_F(Validate, RolloutFiguresCoverTheirOwnRequestsOnly) {
  ValidateOptions o = options();
  o.rollout_requests = 4;
  o.parts = "acceptance,rollout";
  const ValidationReport both = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(both.alpha.n, 20) << "acceptance needed more roll-outs";
  o.parts = "rollout";
  const ValidationReport alone = run_validate(o, kClock, kIdle).report;
  EXPECT_GT(alone.rollout.counts.steps, 4);
  EXPECT_EQ(both.rollout.counts.steps, alone.rollout.counts.steps);
  EXPECT_EQ(both.rollout.alpha.value, alone.rollout.alpha.value);
}

TEST_F(Validate, PredictsAnEngineThatIsNotHere) {
  ValidateOptions o = options();
  o.parts = "rollout";
  o.predict = {"c=0.05,v=1.1", "c=0.4,v=2,batch=8"};
  const ValidationReport r = run_validate(o, kClock, kIdle).report;
  ASSERT_EQ(r.predictions.size(), 2u);
  EXPECT_GT(r.predictions[0].speedup, r.predictions[1].speedup);
  EXPECT_EQ(r.predictions[1].batch, 8);
}

TEST_F(Validate, RequestsAreARandomSampleOfWholeConversations) {
  ValidateOptions o = options();
  o.parts = "acceptance";
  o.contexts = "data";
  o.max_requests = 6;
  const auto ids = run_validate(o, kClock, kIdle).report.request_ids;
  ASSERT_EQ(ids.size(), 6u);
  // Requests 2i and 2i + 1 form a conversation, whose requests stay together.
  for (size_t i = 0; i < 6; i += 2) EXPECT_EQ(std::stoi(ids[i].substr(1)) + 1, std::stoi(ids[i + 1].substr(1)));
  EXPECT_EQ(run_validate(o, kClock, kIdle).report.request_ids, ids);
  o.device.seed = 1;
  EXPECT_NE(run_validate(o, kClock, kIdle).report.request_ids, ids);
  o.max_requests = 0;
  o.split = "all";
  const ValidationReport r = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(r.alpha.n, 24);
  EXPECT_EQ(r.requests_available, 24);
}

// A request whose answer lies outside of the context can never be measured, so it must not count as available.
TEST_F(Validate, RequestsWithoutAnAnswerInTheContextAreNotAvailable) {
  write_data("unknown", 1);
  ValidateOptions o = options();
  o.parts = "acceptance";
  o.contexts = "data";
  o.max_requests = 0;
  o.early_stop = false;
  ValidationReport r = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(r.alpha.n, 19);
  EXPECT_EQ(r.requests_available, 19);
  o.early_stop = true;
  o.floor = 0.5;
  r = run_validate(o, kClock, kIdle).report;
  EXPECT_EQ(r.verdict, Verdict::kInconclusive);
  EXPECT_NE(r.reason.find("all requests were used"), std::string::npos) << r.reason;
  o.max_requests = 6;
  EXPECT_GE(run_validate(o, kClock, kIdle).report.requests_available, 19) << "the others are not known yet";
}

ErrorKind kind_of(const ValidateOptions& o) {
  try {
    run_validate(o, kClock, kIdle);
  } catch (const Error& e) {
    return e.kind();
  }
  return ErrorKind::kInternal;
}

TEST_F(Validate, BadInput) {
  const auto usage = [&](const std::function<void(ValidateOptions&)>& change) {
    ValidateOptions o = options();
    o.data = folder_ / "nowhere";  // options are checked before any file is read
    change(o);
    EXPECT_EQ(kind_of(o), ErrorKind::kUsage);
  };
  usage([](auto& o) { o.floor = 0.2; });
  usage([](auto& o) { o.parts = "acceptance,luck"; });
  usage([](auto& o) { o.parts = ""; });
  usage([](auto& o) { o.split = "test"; });
  usage([](auto& o) { o.contexts = "both"; });
  usage([](auto& o) { o.speculation.k = 0; });
  usage([](auto& o) { o.sampling.temperature = -1; });
  usage([](auto& o) { o.max_requests = -1; });
  usage([](auto& o) { o.segment_floors = {"code"}; });
  usage([](auto& o) { o.segment_floors = {"code=high"}; });
  usage([](auto& o) { o.segments_floor = 0.1; });
  usage([](auto& o) { o.min_gain = 0.1; });
  usage([](auto& o) { o.against = o.baseline = "x"; });
  usage([](auto& o) { o.predict = {"c=0.1"}; });
  usage([](auto& o) { o.predict = {"c=0.1,v=-1"}; });
  ValidateOptions o = options();
  o.data = folder_ / "nowhere";
  EXPECT_EQ(kind_of(o), ErrorKind::kData);
  o = options();
  o.draft = folder_ / "nowhere";
  EXPECT_EQ(kind_of(o), ErrorKind::kModel);
  o = options();
  o.draft = "";
  EXPECT_EQ(kind_of(o), ErrorKind::kUsage);
  // Changes the data's tokenizer digest, as if it had been tokenised with another tokenizer.
  const fs::path file = data() / "index.json";
  Json index = read_json(file);
  index["tokenizer_digest"] = std::string(64, 'b');
  write_file_atomic(file, index.dump());
  EXPECT_EQ(kind_of(options()), ErrorKind::kData);
}

TEST_F(Validate, BenchOnTheSameData) {
  write_model(folder_ / "better", 1, 0.05);
  BenchOptions o;
  o.target = target();
  o.drafts = {draft(), folder_ / "better"};
  o.data = data();
  o.out = folder_ / "bench";
  o.ks = {2, -1};
  o.batches = {1, 2};
  o.prompts = 4;
  o.tokens = 12;
  o.device.device = "cpu";
  const BenchResult r = run_bench(o, kClock, kIdle);
  ASSERT_EQ(r.rows.size(), 2u * (1 + 2 * 2));
  EXPECT_EQ(r.ranking.size(), 2u);
  for (const BenchRow& row : r.rows) {
    // Every configuration generates the same number of tokens. The row of plain decoding sums the plain runs, one
    // beside each run of the four configurations. A smaller sum would mean that a configuration was compared with no
    // plain run.
    EXPECT_EQ(row.tokens, 4 * 12 * r.rounds * (row.normal() ? 4 : 1));
    EXPECT_GT(row.memory_bytes, 0);
    if (row.normal()) continue;
    EXPECT_EQ(row.greedy_prompts, 4);
    EXPECT_EQ(row.differences, 0);
    EXPECT_GT(row.sampled_p_value, 1e-4);
    EXPECT_EQ(row.predicted > 0, row.k == 2) << "S(K, B) is of a fixed K";
    if (row.k == 2) {
      EXPECT_GT(row.counts.drafted, 0);
      EXPECT_LE(row.predicted, 3);
    }
  }
  EXPECT_GT(r.rows[3].counts.draft_efficiency(), 0);
  EXPECT_EQ(r.rows[1].name, "draft");
  write_bench(r, folder_ / "bench");
  EXPECT_EQ(read_json(folder_ / "bench" / "bench.json")["rows"].size(), 10u);
  EXPECT_TRUE(fs::exists(folder_ / "bench" / "bench.html"));

  DraftBinding binding;
  binding.target = fingerprint_model(folder_ / "better");
  binding.kind = "model";
  binding.training = Json::object();
  write_file_atomic(draft() / "specdec.json", to_json(binding).dump());
  const BenchResult stale = run_bench(o, kClock, kIdle);
  EXPECT_EQ(stale.verdict, Verdict::kStale);
  EXPECT_TRUE(stale.rows.empty());
  o.ks = {0};
  EXPECT_THROW(run_bench(o, kClock, kIdle), Error);
}

}  // namespace
}  // namespace specdec::deploy
