#include "deploy/validate/validate.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output_directory.h"
#include "base/schema/gate_summary.h"
#include "base/version.h"
#include "data/shards/shard_reader.h"
#include "deploy/models/load_pair.h"
#include "deploy/report/gate_ci.h"
#include "deploy/validate/acceptance.h"
#include "deploy/validate/chosen_rows.h"
#include "deploy/validate/duration.h"
#include "deploy/validate/gate.h"
#include "deploy/validate/lossless.h"
#include "deploy/validate/repeat_flags.h"
#include "deploy/validate/rollout_figures.h"
#include "deploy/validate/speed.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::deploy {

namespace {

constexpr int kBatch = 8;            // sequences per roll-out step
constexpr double kWorthSaying = 10;  // estimates below this many seconds are not logged
constexpr int64_t kGreedyPrompts = 32, kSampledContexts = 4, kSampledContextTokens = 16;
// kLookEvery: after each time this many requests were scored, the gate is asked whether acceptance is decided.
// kLeastRequests: number that must be scored before scoring may stop early.
constexpr size_t kLookEvery = 32, kLeastRequests = 64;
// kSegmentRequests: requests that a segment needs before --segments-floor applies to it. kBigSegment: requests that a
// segment needs before a loss in it can fail the gate.
constexpr int64_t kSegmentRequests = 30, kBigSegment = 200;
constexpr double kMinGain = -0.02;  // the default of --min-gain with --against
const std::vector<int> kBatches = {1, 2, 4};

// A validation in progress. Each method fills its part of the report.
class Run {
 public:
  Run(const ValidateOptions& options, const Clock& clock, const CpuMeter& meter, const ProgressFn& progress)
      : options_(options), clock_(clock), meter_(meter), progress_(progress), parts_(parse_parts(options.parts)) {}

  Validation run() {
    const double begun = clock_.seconds();
    ValidationReport& r = out_.report;
    r.started = format_utc(clock_.unix_seconds());
    r.tool_version = kToolVersion;
    r.contexts = options_.contexts;
    r.split = options_.split;
    r.temperature = options_.sampling.temperature;
    r.floor = options_.floor;
    r.goal = options_.goal;
    r.data_path = options_.data;
    std::string stale;
    if (load())
      measure();
    else
      stale = pair_.warning;
    const GateVerdict verdict = judge(r, stale);
    r.verdict = verdict.verdict;
    r.reason = verdict.reason;
    r.judged_by = verdict.judged_by;
    r.flags = repeat_flags(options_);
    r.next = next_command(r, {options_.target, options_.draft, options_.data, options_.out, r.flags});
    r.seconds = clock_.seconds() - begun;
    return std::move(out_);
  }

 private:
  void note(const std::string& line) {
    log(LogLevel::kWarn, line);
    out_.details.notes.push_back(line);
  }

  // Returns false if the draft is stale and allow_stale is not set.
  bool load() {
    if (!options_.baseline.empty())
      before_ = validation_report_from_json(read_json(options_.baseline), options_.baseline);
    PairOptions wanted;
    wanted.target = options_.target;
    wanted.draft = options_.draft;
    wanted.device = options_.device;
    wanted.allow_stale = options_.allow_stale;
    const ResolvedModel target = resolve_model(options_.target);
    const bool stale = !options_.allow_stale && is_stale(target);
    // The data is read before the models, so that memory is planned for the longest row. For a stale draft the data is
    // not read, because it may be large.
    if (!stale) {
      read_rows(target.directory);
      int64_t longest = 0;
      for (const TokenRow& row : rows_) longest = std::max<int64_t>(longest, static_cast<int64_t>(row.tokens.size()));
      wanted.sequences = kBatch;
      wanted.tokens_per_sequence = longest + std::max(options_.rollout_tokens, options_.speed_tokens);
      wanted.progress = progress_;
      wanted.on_plan = [](const model::MemoryPlan& plan) { log(LogLevel::kInfo, "memory: " + plan.text()); };
    }
    pair_ = load_pair(wanted);
    ValidationReport& r = out_.report;
    r.target_path = pair_.target_dir.string();
    r.draft_path = pair_.draft_dir.string();
    if (pair_.draft_dir.empty()) throw Error(ErrorKind::kUsage, "--draft: missing: give the draft to be validated");
    r.target = fingerprint_model(pair_.target_dir);
    r.draft = fingerprint_model(pair_.draft_dir);
    if (!pair_.target) return false;
    if (!pair_.warning.empty()) note(pair_.warning);
    r.device = pair_.device.str();
    r.dtype = model::dtype_flag(pair_.dtype);
    target_ = pair_.make_target_runner();
    draft_ = decode::make_draft_runner(pair_.draft, *target_);
    if (!options_.against.empty() && parts_.acceptance) {
      wanted.draft = options_.against;
      // The serving draft may be stale because the target was updated. That is a reason to replace the draft, not to
      // skip the comparison, so stale drafts are allowed.
      wanted.allow_stale = true;
      against_ = load_draft(pair_, wanted);
    }
    return true;
  }

  bool is_stale(const ResolvedModel& target) const {
    if (options_.draft.empty()) return false;  // load_pair() checks a packaged draft against its manifest
    const ResolvedModel draft = resolve_model(options_.draft);
    return draft.draft.empty() && check_binding(target.directory, draft.directory).state == BindingState::kStale;
  }

  void read_rows(const fs::path& target) {
    const data::ShardReader reader(options_.data);
    data_in_use_ = reader.hold();
    const ShardIndex& index = reader.index();
    out_.report.data_digest = reader.digest();
    const std::string tokenizer = tokenizer_digest(target);
    if (index.tokenizer_digest != tokenizer)
      throw Error(ErrorKind::kData, options_.data + "/index.json: tokenised for another tokenizer (" +
                                        index.tokenizer_digest.substr(0, 12) + ", " + target.string() + " has " +
                                        tokenizer.substr(0, 12) + "): run specdec data ingest for this target");
    written_by_target_ = index.written_by == "target" && index.target_id == fingerprint_model(target).id;
    std::vector<TokenRow> all = reader.rows(options_.split);
    requests_available_ = static_cast<int64_t>(all.size());
    rows_ = shuffled(std::move(all), options_.max_requests, options_.device.seed);
    if (rows_.empty())
      throw Error(ErrorKind::kData, options_.data + ": no rows in the " + options_.split +
                                        " split: ingest with --holdout, or use --split all");
  }

  void measure() {
    const bool answer_anew = parts_.acceptance && options_.contexts == "target" && !written_by_target_;
    say_how_long(answer_anew);
    if (parts_.acceptance) acceptance(answer_anew);
    if (parts_.rollout || parts_.speed || answer_anew) rollout();
    if (parts_.speed) speed();
    if (parts_.lossless) lossless();
    predict();
  }

  // Logs an estimate of the validation's duration, from a short roll-out of the first rows.
  void say_how_long(bool answer_anew) {
    if (progress_) progress_({"measuring this machine", 0, 0, "", ""});
    const std::span<const TokenRow> first = std::span(rows_).first(std::min<size_t>(kBatch, rows_.size()));
    const auto timed = [&](int64_t tokens) {
      decode::RolloutOptions o = rollout_options();
      o.request.max_tokens = tokens;
      const double begin = clock_.seconds();
      decode::roll_out(*target_, draft_.get(), first, o);
      return clock_.seconds() - begin;
    };
    const double one = timed(1), more = timed(1 + RolloutCost::kTimedTokens);
    const ExpectedTime time = expected_time({static_cast<int64_t>(first.size()), one, more}, options_,
                                            {.rows = static_cast<int64_t>(rows_.size()),
                                             .answers_anew = answer_anew,
                                             .acceptance = parts_.acceptance,
                                             .rollout = parts_.rollout,
                                             .speed = parts_.speed,
                                             .lossless = parts_.lossless});
    if (time.total() >= kWorthSaying) log(LogLevel::kInfo, time.text());
  }

  // Returns the rules of the gate. Every segment with enough requests gets the floor of --segments-floor; a floor given
  // by the segment's name applies to any number of requests.
  AcceptanceRules rules() {
    AcceptanceRules rules;
    rules.floor = options_.floor;
    rules.goal = options_.goal;
    std::map<std::string, int64_t> requests;
    for (const TokenRow& row : rows_)
      if (!row.domain.empty()) ++requests[row.domain];
    std::string small, names;
    for (const auto& [name, n] : requests) {
      names += (names.empty() ? "" : ", ") + name;
      if (n >= kBigSegment) rules.big_segments.insert(name);
      if (!options_.segments_floor) continue;
      if (n >= kSegmentRequests)
        rules.segment_floors[name] = *options_.segments_floor;
      else
        small += (small.empty() ? "" : ", ") + name + " (" + std::to_string(n) + ")";
    }
    for (const std::string& text : options_.segment_floors) {
      const auto [name, floor] = parse_segment_floor(text, true);
      if (requests.count(name) == 0)
        throw Error(ErrorKind::kUsage, "--segment-floor " + name + ": no request is of that segment; there are " +
                                           (names.empty() ? "none" : names));
      rules.segment_floors[name] = floor;
    }
    if (!small.empty())
      note("segments of fewer than " + std::to_string(kSegmentRequests) + " requests are not judged: " + small);
    rules.paired = static_cast<bool>(against_.draft);
    if (rules.paired) rules.min_gain = options_.min_gain.value_or(kMinGain);
    return rules;
  }

  void compare_with_report() {
    ValidationReport& r = out_.report;
    std::map<std::string, std::string> conversations;
    for (const TokenRow& row : rows_)
      if (!row.conversation.empty()) conversations[row.id] = row.conversation;
    const Estimate difference = paired_difference(r, *before_, conversations);
    if (difference.n == 0)
      note("baseline " + options_.baseline + " shares no request with this run: nothing compared");
    else
      r.baseline = ValidationReport::Baseline{difference, "", "", options_.min_gain, {}};
  }

  decode::RolloutOptions rollout_options() const {
    decode::RolloutOptions o;
    o.k = options_.speculation.k > 0 ? options_.speculation.k : options_.speculation.max_k;
    o.verify = options_.speculation.verify;
    o.request = {.max_tokens = options_.rollout_tokens, .eos_ids = pair_.config.eos_ids, .sampling = options_.sampling};
    o.seed = options_.device.seed;
    o.batch = kBatch;
    return o;
  }

  // Generates the missing roll-outs of the first `count` rows.
  void roll_out_to(size_t count) {
    if (count <= rollouts_.size()) return;
    const std::span<const TokenRow> rows = std::span(rows_).subspan(rollouts_.size(), count - rollouts_.size());
    for (decode::Rollout& rollout : decode::roll_out(*target_, draft_.get(), rows, rollout_options(), progress_))
      rollouts_.push_back(std::move(rollout));
  }

  // Rolls out a fixed number of rows from the start of the random order, however early acceptance was decided. Early
  // stopping would bias the figures, which the monitor uses as its baseline.
  void rollout() {
    const size_t count = options_.rollout_requests
                             ? std::min(static_cast<size_t>(options_.rollout_requests), rows_.size())
                             : rows_.size();
    roll_out_to(count);
    const std::span<const TokenRow> rows = std::span(rows_).first(count);
    const std::span<const decode::Rollout> rollouts =
        std::span(rollouts_).first(count);  // the acceptance part may have answered more rows
    std::vector<size_t> all;
    int64_t silent = 0;
    std::map<std::string, std::vector<size_t>> domains;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rollouts[i].tokens.empty()) ++silent;
      all.push_back(i);
      if (!rows[i].domain.empty()) domains[rows[i].domain].push_back(i);
    }
    if (silent)
      note(std::to_string(silent) + " of " + std::to_string(rows.size()) +
           " prompts leave no room for an answer in the target's context and were left out");
    out_.report.rollout = rollout_figures(rows, rollouts, all, rollout_options());
    out_.details.overlap_at = overlap_by_position(rows, rollouts);
    for (SegmentFigure& s : out_.report.segments)
      if (const auto it = domains.find(s.name); it != domains.end())
        s.rollout = rollout_figures(rows, rollouts, it->second, rollout_options());
  }

  // Scores whole conversations in batches until the verdict on acceptance is decided.
  void acceptance(bool answer_anew) {
    AcceptanceGate gate(rules());
    std::vector<decode::DraftPtr> drafts = {pair_.draft};
    if (against_.draft) drafts.push_back(against_.draft);
    std::vector<RowScore> scores;
    const auto report = [&](size_t done) {
      if (progress_)
        progress_({"acceptance", static_cast<double>(done), static_cast<double>(rows_.size()), "requests", ""});
    };
    while (scores.size() < rows_.size() && !(options_.early_stop && gate.sure() && scores.size() >= kLeastRequests)) {
      const size_t from = scores.size();
      size_t end = std::min(from + kLookEvery, rows_.size());
      while (end < rows_.size() && !rows_[end].conversation.empty() &&
             rows_[end].conversation == rows_[end - 1].conversation)
        ++end;
      std::vector<TokenRow> answered;
      if (answer_anew) {
        roll_out_to(end);
        for (size_t i = from; i < end; ++i) answered.push_back(decode::answered_row(rows_[i], rollouts_[i]));
      }
      const std::span<const TokenRow> rows = answer_anew ? std::span<const TokenRow>(answered)
                                                         : std::span<const TokenRow>(rows_).subspan(from, end - from);
      report(from);
      auto scored = score_rows(*pair_.target, drafts, rows, options_.sampling);
      observe(gate, rows, scored[0],
              drafts.size() > 1 ? std::span<const RowScore>(scored[1]) : std::span<const RowScore>());
      scores.insert(scores.end(), scored[0].begin(), scored[0].end());
      report(end);
    }
    ValidationReport& r = out_.report;
    summarise(std::span(rows_).first(scores.size()), scores, gate, r);
    if (r.tokens == 0)
      throw Error(ErrorKind::kData,
                  options_.data + ": the " + options_.split + " split has no answer token inside both models' context");
    // A request whose answer lies outside the context is never measured, so it is not counted as available.
    r.requests_available = requests_available_ -
                           std::count_if(scores.begin(), scores.end(), [](const RowScore& s) { return s.tokens == 0; });
    if (against_.draft) {
      if (!against_.warning.empty() && against_.warning != pair_.warning) note(against_.warning);
      r.baseline->draft_path = against_.directory.string();
      r.baseline->draft_id = fingerprint_model(against_.directory).id;
    } else if (!options_.baseline.empty()) {
      compare_with_report();
    }
  }

  void predict() {
    ValidationReport& r = out_.report;
    for (const std::string& text : options_.predict) {
      if (r.alpha.n == 0 && r.rollout.counts.steps == 0)
        return note("--predict needs the part acceptance or rollout: nothing predicted");
      r.predictions.push_back(predicted(parse_engine_costs(text), r.rollout.counts, r.alpha.value,
                                        std::max(options_.speculation.k, options_.speculation.max_k)));
    }
  }

  void speed() {
    std::vector<std::vector<int32_t>> prompts;
    for (const TokenRow& row : pick(rows_, options_.speed_prompts)) prompts.push_back(prompt_of(row));
    CostOptions costs;
    costs.batches = kBatches;
    costs.max_k = std::max(options_.speculation.k, options_.speculation.max_k);
    costs.sampling = options_.sampling;
    costs.verify = options_.speculation.verify;
    costs.seed = options_.device.seed;
    const CostTable measured = measure_costs({*target_, *draft_}, prompts, costs, clock_, progress_);
    ValidationReport& r = out_.report;
    r.table = speed_table(measured, r.rollout.counts);
    r.break_even = break_even(measured);
    r.best_k = options_.speculation.k > 0 ? options_.speculation.k : best_k(r.table);
    r.verify_cost_table = measured.verify_cost;
    for (const auto& [batch, row] : measured.verify_cost)
      if (const auto it = row.find(r.best_k); it != row.end()) r.verify_cost[batch] = it->second;
    if (const auto it = measured.draft_cost.find(1); it != measured.draft_cost.end()) r.draft_cost = it->second;
    for (const auto& row : r.table)
      if (row.batch == 1 && row.k == r.best_k) r.predicted_speedup = row.speedup;

    SpeedupOptions runs;
    runs.speculation = options_.speculation;
    runs.speculation.k = r.best_k;
    runs.sampling = options_.sampling;
    runs.tokens = options_.speed_tokens;
    runs.seed = options_.device.seed;
    runs.threads = pair_.timed_threads();
    const SpeedupRuns times = measure_speedup({*target_, *draft_}, prompts, runs, {clock_, meter_}, progress_);
    r.speedup = speedup(times.normal, times.speculative);
    r.machine = times.machine;
    r.schedule = speed_schedule(r.table, MeasuredSpeed{r.best_k, r.speedup, r.predicted_speedup, times.machine.busy});
    r.has_speed = true;
  }

  void lossless() {
    ValidationReport& r = out_.report;
    decode::RolloutOptions greedy = rollout_options();
    const auto rows = pick(rows_, kGreedyPrompts);
    const GreedyComparison c =
        compare_greedy({*target_, *draft_}, rows, greedy, unit_roundoff(pair_.arithmetic()), progress_);
    r.greedy_prompts = c.prompts;
    r.greedy_identical = c.identical;
    r.near_ties = c.near_ties;
    r.differences = c.differences;
    std::vector<std::vector<int32_t>> contexts;
    for (const TokenRow& row : pick(rows_, kSampledContexts)) {
      contexts.push_back(prompt_of(row));
      if (contexts.back().size() > kSampledContextTokens) contexts.back().resize(kSampledContextTokens);
    }
    SampledOptions sampled;
    sampled.sampling = options_.sampling;
    sampled.verify = options_.speculation.verify;
    sampled.k = std::min(greedy.k, 3);
    sampled.seed = options_.device.seed;
    r.sampled_p_value = sampled_test({*target_, *draft_}, contexts, sampled, clock_, progress_).p_value;
    r.has_lossless = true;
  }

  const ValidateOptions& options_;
  const Clock& clock_;
  const CpuMeter& meter_;
  ProgressFn progress_;
  ValidateParts parts_;
  Validation out_;
  LoadedPair pair_;
  std::optional<ValidationReport> before_;  // the report given with --baseline
  LoadedDraft against_;                     // .draft is null without --against
  std::unique_ptr<decode::CausalModel> target_, draft_;
  std::vector<TokenRow> rows_;
  int64_t requests_available_ = 0;  // number of requests in the split
  std::shared_ptr<const DirectoryLock> data_in_use_;
  bool written_by_target_ = false;
  std::vector<decode::Rollout> rollouts_;  // roll-outs of the first rows in the random order
};

}  // namespace

Validation run_validate(const ValidateOptions& options, const Clock& clock, const CpuMeter& meter,
                        const ProgressFn& progress) {
  validate(options);
  check_output_directory(options.out,
                         {.flag = "--out", .command = "specdec validate", .results = {{"report.json", "validate"}}});
  return Run(options, clock, meter, progress).run();
}

void write_validation(const Validation& v, const std::filesystem::path& directory) {
  make_private_directory(directory);
  write_file_atomic(directory / "report.json",
                    to_json(v.report).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  write_pages(report_page(v.report, v.details), directory, "report");
  write_file_atomic(directory / "report.junit.xml", junit_xml(v.report));
}

}  // namespace specdec::deploy
