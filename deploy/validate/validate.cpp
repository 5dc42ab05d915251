#include "deploy/validate/validate.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/shard_reader.h"
#include "deploy/generate/model_argument.h"
#include "deploy/validate/acceptance.h"
#include "deploy/validate/gate.h"
#include "deploy/validate/lossless.h"
#include "deploy/validate/rollout.h"
#include "deploy/validate/speed.h"
#include "engine/decode/model_runner.h"

namespace specdec::deploy {

namespace {

constexpr int kBatch = 8;  // sequences in a roll-out step
constexpr int64_t kGreedyPrompts = 32, kSampledContexts = 4, kSampledContextTokens = 16;
const std::vector<int> kBatches = {1, 2, 4};

struct Parts {
  bool acceptance = false, rollout = false, speed = false, lossless = false;
};

Parts parse_parts(const std::string& text) {
  Parts parts;
  const std::pair<const char*, bool*> known[] = {
      {"acceptance", &parts.acceptance}, {"rollout", &parts.rollout}, {"speed", &parts.speed}, {"lossless", &parts.lossless}};
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');) {
    const auto it = std::find_if(std::begin(known), std::end(known), [&](const auto& k) { return name == k.first; });
    if (it == std::end(known))
      throw Error(ErrorKind::kUsage, "--parts: expected acceptance, rollout, speed or lossless, found '" + name + "'");
    *it->second = true;
  }
  if (text.empty()) throw Error(ErrorKind::kUsage, "--parts is empty: expected acceptance, rollout, speed, lossless");
  return parts;
}

void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::kUsage, text);
}

void check_options(const ValidateOptions& o) {
  validate(o.sampling);
  validate(o.speculation);
  validate(o.device);
  check_rules({o.floor, o.goal, ""}, o.force);
  require(o.split == "holdout" || o.split == "train" || o.split == "all",
          "--split: expected holdout, train or all, found '" + o.split + "'");
  require(o.contexts == "target" || o.contexts == "data", "--contexts: expected target or data, found '" + o.contexts + "'");
  require(o.speculation.k != 0, "--k 0: a draft that drafts nothing cannot be validated; give --k 1 or more, or auto");
  require(o.speculation.k > 0 || o.speculation.max_k > 0, "--max-k 0: a draft that drafts nothing cannot be validated");
  require(o.max_requests >= 0, "--max-requests: expected an integer >= 0, found " + std::to_string(o.max_requests));
  require(o.rollout_tokens >= 1 && o.speed_tokens >= 1 && o.speed_prompts >= 1,
          "--rollout-tokens, --speed-tokens and --speed-prompts: expected at least 1");
}

// At most `limit` rows spread evenly over the split, so that time and domains stay represented; 0 = all.
std::vector<TokenRow> spread(std::vector<TokenRow> rows, int64_t limit) {
  if (limit == 0 || static_cast<int64_t>(rows.size()) <= limit) return rows;
  std::vector<TokenRow> chosen;
  for (int64_t i = 0; i < limit; ++i)
    chosen.push_back(std::move(rows[static_cast<size_t>(i) * rows.size() / static_cast<size_t>(limit)]));
  return chosen;
}

std::vector<TokenRow> pick(const std::vector<TokenRow>& rows, int64_t count) {
  std::vector<TokenRow> chosen;
  for (const size_t i : choose_prompts(rows, count)) chosen.push_back(rows[i]);
  return chosen;
}

// One validation in progress. Each method fills its part of the report.
class Run {
 public:
  Run(const ValidateOptions& options, const Clock& clock, const ProgressFn& progress)
      : options_(options), clock_(clock), progress_(progress), parts_(parse_parts(options.parts)) {}

  Validation run() {
    const double begun = clock_.seconds();
    ValidationReport& r = out_.report;
    r.started = format_utc(clock_.unix_seconds());
    r.tool_version = SPECDEC_VERSION;
    r.contexts = options_.contexts;
    r.split = options_.split;
    r.temperature = options_.sampling.temperature;
    r.floor = options_.floor;
    r.goal = options_.goal;
    r.data_path = options_.data;
    GateRules rules{options_.floor, options_.goal, ""};
    if (load()) {
      measure();
    } else {
      rules.stale = pair_.warning;
    }
    const GateVerdict verdict = judge(r, rules);
    r.verdict = verdict.verdict;
    r.reason = verdict.reason;
    r.seconds = clock_.seconds() - begun;
    return std::move(out_);
  }

 private:
  void note(const std::string& line) {
    log(LogLevel::kWarn, line);
    out_.details.notes.push_back(line);
  }

  // False: the draft is stale, and that was not allowed.
  bool load() {
    PairOptions wanted;
    wanted.target = options_.target;
    wanted.draft = options_.draft;
    wanted.device = options_.device;
    wanted.allow_stale = options_.allow_stale;
    const ResolvedModel target = resolve_model(options_.target);
    const bool stale = !options_.allow_stale && is_stale(target);
    // The data may be large; it is read before the models so that memory is planned for its longest row.
    if (!stale) {
      read_rows(target.directory);
      int64_t longest = 0;
      for (const TokenRow& row : rows_) longest = std::max<int64_t>(longest, static_cast<int64_t>(row.tokens.size()));
      wanted.sequences = kBatch;
      wanted.tokens_per_sequence = longest + std::max(options_.rollout_tokens, options_.speed_tokens);
      wanted.on_plan = [](const model::MemoryPlan& plan) { log(LogLevel::kInfo, "memory: " + plan.text()); };
    }
    pair_ = load_pair(wanted);
    ValidationReport& r = out_.report;
    r.target_path = pair_.target_dir.string();
    r.draft_path = pair_.draft_dir.string();
    require(!pair_.draft_dir.empty(), "--draft: missing: give the draft to be validated");
    r.target = fingerprint_model(pair_.target_dir);
    r.draft = fingerprint_model(pair_.draft_dir);
    if (!pair_.target) return false;
    if (!pair_.warning.empty()) note(pair_.warning);
    r.device = pair_.device.str();
    r.dtype = model::dtype_flag(pair_.dtype);
    target_ = decode::make_model_runner(pair_.target);
    draft_ = decode::make_model_runner(pair_.draft);
    return true;
  }

  bool is_stale(const ResolvedModel& target) const {
    if (options_.draft.empty()) return false;  // a package's own draft: load_pair judges it by the manifest
    const ResolvedModel draft = resolve_model(options_.draft);
    return draft.draft.empty() && check_binding(target.directory, draft.directory).state == BindingState::kStale;
  }

  void read_rows(const fs::path& target) {
    const data::ShardReader reader(options_.data);
    const ShardIndex& index = reader.index();
    out_.report.data_digest = reader.digest();
    const std::string tokenizer = tokenizer_digest(target);
    if (index.tokenizer_digest != tokenizer)
      throw Error(ErrorKind::kData, options_.data + "/index.json: tokenised for another tokenizer (" +
                                        index.tokenizer_digest.substr(0, 12) + ", " + target.string() + " has " +
                                        tokenizer.substr(0, 12) + "): run specdec data ingest for this target");
    written_by_target_ = index.written_by == "target" && index.target_id == fingerprint_model(target).id;
    rows_ = spread(reader.rows(options_.split), options_.max_requests);
    if (rows_.empty())
      throw Error(ErrorKind::kData,
                  options_.data + ": no rows in the " + options_.split + " split: ingest with --holdout, or use --split all");
  }

  void measure() {
    const bool answer_anew = parts_.acceptance && options_.contexts == "target" && !written_by_target_;
    if (parts_.rollout || parts_.speed || answer_anew) rollout();
    if (parts_.acceptance) acceptance(answer_anew);
    if (parts_.speed) speed();
    if (parts_.lossless) lossless();
    ValidationReport& r = out_.report;
    if (!options_.baseline.empty()) {
      const ValidationReport before = validation_report_from_json(read_json(options_.baseline), options_.baseline);
      const Estimate difference = paired_difference(r, before);
      if (difference.n == 0)
        note("baseline " + options_.baseline + " shares no request with this run: nothing compared");
      else
        r.baseline = {difference};
    }
  }

  RolloutOptions rollout_options() const {
    RolloutOptions o;
    o.k = options_.speculation.k > 0 ? options_.speculation.k : options_.speculation.max_k;
    o.verify = options_.speculation.verify;
    o.sampling = options_.sampling;
    o.max_tokens = options_.rollout_tokens;
    o.eos_ids = pair_.target->config.eos_ids;
    o.seed = options_.device.seed;
    o.batch = kBatch;
    return o;
  }

  void rollout() {
    rollouts_ = roll_out(*target_, draft_.get(), rows_, rollout_options(), progress_);
    std::vector<size_t> all;
    int64_t silent = 0;
    std::map<std::string, std::vector<size_t>> domains;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rollouts_[i].tokens.empty()) ++silent;
      all.push_back(i);
      if (!rows_[i].domain.empty()) domains[rows_[i].domain].push_back(i);
    }
    if (silent)
      note(std::to_string(silent) + " of " + std::to_string(rows_.size()) +
           " prompts leave no room for an answer in the target's context and were left out");
    out_.report.rollout = rollout_figures(rows_, rollouts_, all, rollout_options());
    out_.details.overlap_at = overlap_by_position(rows_, rollouts_);
    for (const auto& [name, members] : domains)
      segment_rollouts_[name] = rollout_figures(rows_, rollouts_, members, rollout_options());
  }

  void acceptance(bool answer_anew) {
    std::vector<TokenRow> rows = rows_;
    if (answer_anew)
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = answered_row(rows_[i], rollouts_[i]);
    const auto scores = score_rows(*pair_.target, *pair_.draft, rows, options_.sampling, progress_);
    summarise(rows, scores, out_.report);
    if (out_.report.tokens == 0)
      throw Error(ErrorKind::kData,
                  options_.data + ": the " + options_.split + " split has no answer token inside both models' context");
    for (SegmentFigure& s : out_.report.segments)
      if (const auto it = segment_rollouts_.find(s.name); it != segment_rollouts_.end()) s.rollout = it->second;
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
    const CostTable measured = measure_costs(*target_, *draft_, prompts, costs, clock_, progress_);
    ValidationReport& r = out_.report;
    r.table = speed_table(measured, r.rollout.counts);
    r.schedule = speed_schedule(r.table);
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
    const SpeedupRuns times = measure_speedup(*target_, *draft_, prompts, runs, clock_, progress_);
    r.speedup = speedup(times.normal, times.speculative);
    r.has_speed = true;
  }

  void lossless() {
    ValidationReport& r = out_.report;
    RolloutOptions greedy = rollout_options();
    const auto rows = pick(rows_, kGreedyPrompts);
    const GreedyComparison c = compare_greedy(*target_, *draft_, rows, greedy, unit_roundoff(r.dtype), progress_);
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
    r.sampled_p_value = sampled_test(*target_, *draft_, contexts, sampled, clock_, progress_).p_value;
    r.has_lossless = true;
  }

  const ValidateOptions& options_;
  const Clock& clock_;
  ProgressFn progress_;
  Parts parts_;
  Validation out_;
  LoadedPair pair_;
  std::unique_ptr<decode::CausalModel> target_, draft_;
  std::vector<TokenRow> rows_;
  bool written_by_target_ = false;
  std::vector<Rollout> rollouts_;
  std::map<std::string, RolloutFigures> segment_rollouts_;
};

}  // namespace

Validation run_validate(const ValidateOptions& options, const Clock& clock, const ProgressFn& progress) {
  check_options(options);
  return Run(options, clock, progress).run();
}

void write_validation(const Validation& v, const std::filesystem::path& directory) {
  make_directories(directory);
  write_file_atomic(directory / "report.json", to_json(v.report).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  write_pages(report_page(v.report, v.details), directory, "report");
}

}  // namespace specdec::deploy
