#include "deploy/bench/bench.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <tuple>

#include "base/draft_speed.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output_directory.h"
#include "data/shards/shard_reader.h"
#include "deploy/models/load_pair.h"
#include "deploy/report/gate_checks.h"
#include "deploy/validate/lossless.h"
#include "deploy/validate/speed.h"
#include "deploy/validate/timed_pairs.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::deploy {

namespace {

constexpr int kRounds = 2, kQualityBatch = 4;
constexpr double kCostSeconds = 5;  // time limit of measuring the costs of one draft at one batch size
constexpr int64_t kWarmTokens = 16, kSampledContexts = 4, kSampledContextTokens = 16, kSampledRuns = 800;

void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::kUsage, text);
}

void check_options(const BenchOptions& o) {
  validate(o.sampling);
  validate(o.speculation);
  validate(o.device);
  require(!o.drafts.empty(), "--draft: give at least one");
  require(o.split == "holdout" || o.split == "train" || o.split == "all",
          "--split: expected holdout, train or all, found '" + o.split + "'");
  require(!o.ks.empty() && !o.batches.empty(), "--ks and --batches need at least one value");
  for (const int k : o.ks)
    require(k == -1 || (k >= 1 && k <= 32), "--ks: expected integers in [1, 32] or auto, found " + std::to_string(k));
  for (const int b : o.batches)
    require(b >= 1 && b <= 1024, "--batches: expected integers in [1, 1024], found " + std::to_string(b));
  require(o.prompts >= 1 && o.tokens >= 2, "--prompts: at least 1, --tokens: at least 2");
  check_output_directory(o.out, {.flag = "--out", .command = "specdec bench", .results = {{"bench.json", "bench"}}});
}

// A draft that is benchmarked, and the state that its runs with different K share.
struct Contender {
  std::string name;
  decode::DraftPtr weights;
  std::unique_ptr<decode::CausalModel> model;
  double sampled_p_value = 1;
  std::map<int, GreedyComparison> quality;  // K → comparison of greedy texts
};

// A contender with one K. Its costs and overlaps come only from its own runs, as on a server that runs this draft with
// this K.
struct Configuration {
  Contender* contender = nullptr;  // null: plain decoding
  int k = 0;
  std::unique_ptr<Learnt> learnt = {};
  std::unique_ptr<decode::Stepper> stepper = {};
  GroupFigures figures = {};
  // Decoding time of each group of prompts, in seconds, summed over the repetitions. `seconds` is the time of the runs
  // with this draft and K. `beside` is the time of the runs of plain decoding that were timed side by side with them.
  std::vector<double> seconds = {}, beside = {};
  double spent = 0, spent_beside = 0;  // total seconds of `seconds` and `beside` so far, for the progress line
};

class Run {
 public:
  Run(const BenchOptions& options, const Clock& clock, const CpuMeter& meter, const ProgressFn& progress)
      : options_(options), clock_(clock), meter_(meter), progress_(progress) {}

  BenchResult run() {
    const double begun = clock_.seconds();
    result_.started = format_utc(clock_.unix_seconds());
    result_.inputs = {{"target", {{"path", options_.target}}},
                      {"drafts", Json::array()},
                      {"data", {{"path", options_.data}}},
                      {"split", options_.split},
                      {"temperature", options_.sampling.temperature},
                      {"verify", to_string(options_.speculation.verify)},
                      {"tree", options_.speculation.tree},
                      {"suffix", options_.speculation.suffix}};
    if (load()) {
      result_.rounds = kRounds;
      for (const int batch : options_.batches) measure_batch(batch);
      judge_quality();
      judge_bench(result_);
    } else {
      result_.verdict = Verdict::kStale;
    }
    result_.seconds = clock_.seconds() - begun;
    return std::move(result_);
  }

 private:
  void note(const std::string& line) {
    log(LogLevel::kWarn, line);
    result_.notes.push_back(line);
  }

  // Returns false if a draft is stale and allow_stale is not set.
  bool load() {
    PairOptions wanted;
    wanted.target = options_.target;
    wanted.draft = options_.drafts.front();
    wanted.device = options_.device;
    wanted.allow_stale = options_.allow_stale;
    wanted.sequences = 2 * *std::max_element(options_.batches.begin(), options_.batches.end());  // two runs at a time
    wanted.progress = progress_;
    wanted.on_plan = [](const model::MemoryPlan& plan) { log(LogLevel::kInfo, "memory: " + plan.text()); };
    const ResolvedModel target = resolve_model(options_.target);
    for (const std::string& draft : options_.drafts) {
      const ResolvedModel model = resolve_model(draft);
      if (!model.draft.empty()) continue;  // load_pair() checks a packaged draft against its manifest
      const BindingCheck binding = check_binding(target.directory, model.directory);
      if (binding.state == BindingState::kStale && !options_.allow_stale) {
        result_.reason = binding.reason;
        return false;
      }
      if (binding.state == BindingState::kStale) note(binding.reason);
      if (binding.state == BindingState::kUnbound)
        note(model.directory.string() + " is not bound to a target (no specdec.json)");
    }
    read_rows(target.directory);
    wanted.tokens_per_sequence = longest_ + options_.tokens;
    pair_ = load_pair(wanted);
    if (!pair_.target) {
      result_.reason = pair_.warning;
      return false;
    }
    result_.inputs["target"] = {{"path", pair_.target_dir.string()}, {"id", fingerprint_model(pair_.target_dir).id}};
    result_.inputs["device"] = pair_.device.str();
    result_.inputs["dtype"] = dtype();
    target_ = pair_.make_target_runner();
    plain_ = std::make_unique<decode::Stepper>(*target_, nullptr);
    for (size_t i = 0; i < options_.drafts.size(); ++i)
      add_contender(options_.drafts[i], i == 0 ? pair_.draft : nullptr);
    cut_prompts();
    return true;
  }

  std::string dtype() const { return model::dtype_flag(pair_.dtype); }

  void add_contender(const std::string& name, decode::DraftPtr draft) {
    const ResolvedModel model = resolve_model(name);
    const fs::path directory = model.draft.empty() ? model.directory : model.draft;
    if (!draft) {
      const decode::DraftConfig config = decode::load_draft_config(directory, pair_.target->config);
      const at::ScalarType dtype =
          decode::resolve_draft_dtype(options_.device.dtype_of_draft(), config, pair_.device, pair_.dtype);
      draft = decode::load_draft(directory, *pair_.target, pair_.device, dtype);
    }
    auto c = std::make_unique<Contender>();
    c->name = name;
    c->weights = std::move(draft);
    c->model = decode::make_draft_runner(c->weights, *target_);
    contenders_.push_back(std::move(c));
    result_.inputs["drafts"].push_back({{"path", directory.string()}, {"id", fingerprint_model(directory).id}});
  }

  void read_rows(const fs::path& target) {
    const data::ShardReader reader(options_.data);
    if (reader.index().tokenizer_digest != tokenizer_digest(target))
      throw Error(ErrorKind::kData, options_.data + "/index.json: tokenised for another tokenizer than " +
                                        target.string() + "'s: run specdec data ingest for this target");
    result_.inputs["data"]["digest"] = reader.digest();
    const auto rows = reader.rows(options_.split);
    if (rows.empty())
      throw Error(ErrorKind::kData, options_.data + ": no rows in the " + options_.split +
                                        " split: ingest with --holdout, or use --split all");
    for (const size_t i : choose_prompts(rows, options_.prompts)) {
      rows_.push_back(rows[i]);
      longest_ = std::max<int64_t>(longest_, static_cast<int64_t>(prompt_of(rows[i]).size()));
    }
  }

  // Cuts the prompts so that prompt and answer fit the context of every model. All runs then have the same lengths.
  void cut_prompts() {
    int64_t room = target_->max_length();
    for (const auto& c : contenders_) room = std::min(room, c->model->max_length());
    room -= options_.tokens + 1;
    if (room < 1)
      throw Error(ErrorKind::kData, "--tokens " + std::to_string(options_.tokens) + " do not fit the models' context");
    int64_t cut = 0;
    for (TokenRow& row : rows_) {
      row.tokens = prompt_of(row);
      cut += static_cast<int64_t>(row.tokens.size()) > room;
      row.tokens.resize(static_cast<size_t>(std::min<int64_t>(room, static_cast<int64_t>(row.tokens.size()))));
      row.prompt_tokens = static_cast<int64_t>(row.tokens.size());
      row.loss_mask.assign(row.tokens.size(), 0);
      prompts_.push_back(row.tokens);
    }
    if (cut)
      note(std::to_string(cut) + " prompts were cut to leave room for " + std::to_string(options_.tokens) + " tokens");
    result_.prompts = static_cast<int64_t>(prompts_.size());
    result_.answer_tokens = options_.tokens;
  }

  GroupOptions group_of(int k, int64_t tokens, uint64_t seed) const {
    GroupOptions group;
    group.speculation = options_.speculation;
    group.speculation.k = k;
    group.request = {.max_tokens = tokens, .sampling = options_.sampling};
    group.seed = seed;
    return group;
  }

  // Runs the same prompts with and without the draft, alternating their steps, and returns the figures of both runs.
  PairFigures run_pair(Configuration& c, std::span<const std::vector<int32_t>> prompts, int64_t tokens, uint64_t seed) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal during the benchmark");
    GroupRun normal(*plain_, prompts, group_of(0, tokens, seed), nullptr, clock_);
    GroupRun speculative(*c.stepper, prompts, group_of(c.k, tokens, seed), c.learnt.get(), clock_);
    run_side_by_side(normal, speculative);
    return {normal.figures(), speculative.figures()};
  }

  void measure_batch(int batch) {
    // Every group is filled up to the batch size by repeating prompts from the start of the list.
    const size_t n = prompts_.size(), size = static_cast<size_t>(batch), groups = (n + size - 1) / size;
    std::vector<std::vector<std::vector<int32_t>>> group_prompts(groups);
    for (size_t g = 0; g < groups; ++g)
      for (size_t i = 0; i < size; ++i) group_prompts[g].push_back(prompts_[(g * size + i) % n]);
    std::vector<Configuration> configurations;
    for (const auto& c : contenders_)
      for (const int k : options_.ks) {
        Configuration& added = configurations.emplace_back(Configuration{c.get(), k});
        added.learnt = std::make_unique<Learnt>();
        added.stepper = std::make_unique<decode::Stepper>(*target_, c->model.get(), &added.learnt->costs, &clock_);
        added.seconds.resize(groups), added.beside.resize(groups);
      }

    const int64_t warm = std::min(kWarmTokens, options_.tokens);
    for (Configuration& c : configurations) run_pair(c, group_prompts[0], warm, options_.device.seed);
    const double plain =
        run_group(*plain_, group_prompts[0], group_of(0, warm, options_.device.seed), nullptr, clock_).seconds;
    PairsOptions pairs;
    pairs.threads = pair_.timed_threads();
    pairs.repeats = repeats_of(plain * static_cast<double>(options_.tokens) / static_cast<double>(warm));
    const size_t each = configurations.size(), count = static_cast<size_t>(kRounds) * groups * each;
    // Returns group, round (repetition) and configuration of the timed run with index `at`. In each round every
    // configuration runs once on each group of prompts. Which configuration runs first changes from group to group and
    // from round to round.
    const auto place = [&](size_t at) {
      const size_t g = at / each % groups, round = at / each / groups;
      return std::tuple(g, round, (at % each + g + round) % each);
    };
    double done = 0;
    const auto timed = [&](size_t at) {
      const auto [g, round, which] = place(at);
      Configuration& c = configurations[which];
      PairFigures run =
          run_pair(c, group_prompts[g], options_.tokens, options_.device.seed + (round * groups + g) * size);
      c.spent += run.speculative.seconds, c.spent_beside += run.normal.seconds;
      const double total = static_cast<double>(count * static_cast<size_t>(pairs.repeats));
      if (progress_)
        progress_(
            {"bench: batch " + std::to_string(batch), done = std::min(done + 1, total), total, "runs", so_far(c)});
      return run;
    };
    const TimedPairs runs = time_pairs(count, pairs, timed, {clock_, meter_});
    GroupFigures normal;
    for (size_t at = 0; at < count; ++at) {
      if (!runs.clean[at] && !runs.machine.busy) continue;
      const auto [g, round, which] = place(at);
      Configuration& c = configurations[which];
      c.beside[g] += runs.runs[at].normal.seconds;
      c.seconds[g] += runs.runs[at].speculative.seconds;
      normal.add(runs.runs[at].normal);
      c.figures.add(runs.runs[at].speculative);
    }
    note_machine(batch, runs.machine);
    std::map<const Contender*, CostTable> costs;
    for (const auto& c : contenders_) costs[c.get()] = costs_of(*c, batch);
    add_row({}, batch, normal, {1, {1, 1}, static_cast<int64_t>(groups)}, {});
    for (const Configuration& c : configurations) add_row(c, batch, c.figures, gain_of(c), costs[c.contender]);
  }

  // Returns the speed-up over plain decoding. Groups without an undisturbed run are left out.
  static Estimate gain_of(const Configuration& c) {
    std::vector<double> beside, seconds;
    for (size_t g = 0; g < c.seconds.size(); ++g)
      if (c.seconds[g] > 0) beside.push_back(c.beside[g]), seconds.push_back(c.seconds[g]);
    return seconds.empty() ? Estimate{1, {0, 1e6}, 0} : speedup(beside, seconds);
  }

  // Returns the speed-up over plain decoding in the runs so far, for example "draft, K 4: 1.31 ×".
  std::string so_far(const Configuration& c) const {
    char figure[32];
    std::snprintf(figure, sizeof figure, ": %.2f ×", c.spent > 0 ? c.spent_beside / c.spent : 0);
    return short_name(c.contender->name) + ", K " + (c.k < 0 ? "auto" : std::to_string(c.k)) + figure;
  }

  void note_machine(int batch, const MachineUse& use) {
    const int smallest = *std::min_element(options_.batches.begin(), options_.batches.end());
    const bool busy = batch == smallest ? use.busy : result_.machine.busy;
    if (use.taken >= result_.machine.taken) result_.machine = use;
    result_.machine.busy = busy;
    if (use.busy)
      note("batch " + std::to_string(batch) + ": the machine was busy, " + others_of(use) + " while it was timed");
  }

  // Returns the measured costs, from which speed-ups are predicted. Returns an empty table if no K above 0 is
  // benchmarked, or with trees or suffix drafts, because the prediction holds only for chains.
  CostTable costs_of(const Contender& contender, int batch) {
    CostOptions o;
    o.batches = {batch};
    o.max_k = *std::max_element(options_.ks.begin(), options_.ks.end());
    o.sampling = options_.sampling;
    o.verify = options_.speculation.verify;
    o.seed = options_.device.seed;
    o.seconds_per_batch = kCostSeconds;
    if (o.max_k < 1 || !options_.speculation.tree.empty() || options_.speculation.suffix) return {};
    return measure_costs({*target_, *contender.model}, prompts_, o, clock_);
  }

  static double predicted(const CostTable& costs, const AcceptanceCounts& counts, int k, int batch) {
    const auto v = costs.verify_cost.find(batch);
    if (k < 1 || v == costs.verify_cost.end() || !v->second.contains(k)) return 0;
    return predicted_speedup(predicted_length(counts, k), k, costs.draft_cost.at(batch), v->second.at(k));
  }

  void add_row(const Configuration& configuration, int batch, const GroupFigures& f, const Estimate& gain,
               const CostTable& costs) {
    BenchRow row;
    if (configuration.contender) {
      row.draft = configuration.contender->name;
      row.name = short_name(row.draft);
    }
    row.k = configuration.k;
    row.batch = batch;
    row.tokens = f.tokens;
    row.seconds = f.seconds;
    row.ttft_ms = mean(f.ttft_ms);
    if (!f.itl_ms.empty()) {
      row.itl_p50 = quantile(f.itl_ms, 0.5);
      row.itl_p95 = quantile(f.itl_ms, 0.95);
      row.itl_p99 = quantile(f.itl_ms, 0.99);
    }
    row.counts = f.counts;
    row.speedup = gain;
    row.predicted = predicted(costs, f.counts, row.k, batch);
    const decode::DraftPtr draft = configuration.contender ? configuration.contender->weights : nullptr;
    const std::optional<model::HeadMemory> head = draft ? draft->head_memory() : std::nullopt;
    const model::DecoderConfig& target = pair_.target->config;
    const model::MemoryPlan plan =
        model::plan_memory({.target = target,
                            .target_dtype = pair_.dtype,
                            .draft = draft ? &draft->config() : nullptr,
                            .draft_dtype = draft ? draft->dtype() : pair_.dtype,
                            .sequences = batch,
                            .tokens_per_sequence = std::min(longest_ + options_.tokens, target.max_position),
                            .device = pair_.device,
                            .head = head ? &*head : nullptr});
    row.memory_bytes = plan.target_bytes + plan.draft_bytes + plan.cache_bytes();
    log(LogLevel::kInfo, row_text(row));
    result_.rows.push_back(row);
  }

  std::string short_name(const std::string& draft) const {
    const auto last = [](const std::string& path) { return (fs::path(path) / "").parent_path().filename().string(); };
    const auto same = std::count_if(options_.drafts.begin(), options_.drafts.end(),
                                    [&](const std::string& d) { return last(d) == last(draft); });
    return same == 1 ? last(draft) : draft;
  }

  // Compares the greedy text of every draft and K with the text of plain decoding, and tests each draft's sampled text
  // once. Both tests are independent of the temperature of the timed runs.
  void judge_quality() {
    decode::RolloutOptions greedy;
    greedy.request = {.max_tokens = options_.tokens, .sampling = {.temperature = 0}};
    greedy.verify = options_.speculation.verify;
    greedy.max_k = std::max(options_.speculation.max_k, 1);
    greedy.batch = kQualityBatch;
    greedy.seed = options_.device.seed;
    greedy.stage = "bench: greedy text";
    greedy.k = 0;
    const auto plain = decode::roll_out(*target_, nullptr, rows_, greedy);
    std::vector<std::vector<int32_t>> contexts;
    for (size_t i = 0; i < std::min<size_t>(kSampledContexts, prompts_.size()); ++i) {
      contexts.push_back(prompts_[i]);
      contexts.back().resize(std::min<size_t>(contexts.back().size(), kSampledContextTokens));
    }
    for (const auto& c : contenders_) {
      for (const int k : options_.ks) {
        greedy.k = k;
        c->quality[k] = compare_answers(*target_, rows_, plain,
                                        decode::roll_out(*target_, c->model.get(), rows_, greedy, progress_),
                                        unit_roundoff(pair_.arithmetic()));
      }
      SampledOptions sampled;
      sampled.sampling = options_.sampling;
      sampled.verify = options_.speculation.verify;
      sampled.seed = options_.device.seed;
      sampled.runs = kSampledRuns;
      c->sampled_p_value = sampled_test({*target_, *c->model}, contexts, sampled, clock_, progress_).p_value;
    }
    for (BenchRow& row : result_.rows)
      for (const auto& c : contenders_)
        if (c->name == row.draft) {
          const GreedyComparison& q = c->quality[row.k];
          row.greedy_prompts = q.prompts;
          row.greedy_identical = q.identical;
          row.near_ties = q.near_ties;
          row.differences = q.differences;
          row.sampled_p_value = c->sampled_p_value;
        }
  }

  const BenchOptions& options_;
  const Clock& clock_;
  const CpuMeter& meter_;
  ProgressFn progress_;
  BenchResult result_;
  LoadedPair pair_;
  std::unique_ptr<decode::CausalModel> target_;
  std::unique_ptr<decode::Stepper> plain_;
  std::vector<std::unique_ptr<Contender>> contenders_;
  std::vector<TokenRow> rows_;
  std::vector<std::vector<int32_t>> prompts_;
  int64_t longest_ = 0;
};

}  // namespace

BenchResult run_bench(const BenchOptions& options, const Clock& clock, const CpuMeter& meter,
                      const ProgressFn& progress) {
  check_options(options);
  return Run(options, clock, meter, progress).run();
}

}  // namespace specdec::deploy
