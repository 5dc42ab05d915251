#include "distill/study/comparison.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/expanded_tail.h"
#include "base/format.h"
#include "base/safetensors.h"
#include "base/schema/distill_comparison.h"
#include "base/sha256.h"
#include "base/shell.h"
#include "distill/run/output.h"
#include "distill/settings/repeat_flags.h"
#include "distill/train/evaluate.h"

namespace specdec::distill {

namespace {

constexpr double kQuantile975 = 1.959963984540054;
constexpr int kMostCostedK = 64;

// A draft that was trained and measured.
struct TrainedKind {
  std::string kind;
  StudyPart run;
  int64_t parameters = 0;
  DraftSpeed measured;
  SpeedPrediction best;  // speed-up with the best K; best.k = 0 if no costs could be measured
  Estimate speedup;      // speed-up with the best K, and its interval
  bool ties = false;     // the interval of `speedup` overlaps that of the draft ranked first
};

// Costs of drafts measured in another engine. The unit is the time of that engine's decoding step without a draft at
// batch size 1.
struct EngineCosts {
  std::string engine;
  std::map<std::string, DraftSpeed> drafts;  // by kind of draft; only the cost fields are set
};

// Reads a file of schema specdec.costs/1, which must have an entry for every compared kind. Throws Error(kData), which
// names the faulty field.
EngineCosts read_costs(const DistillOptions& o) {
  constexpr ErrorKind kCosts = ErrorKind::kData;
  constexpr JsonNumbers kRange{.low = 0, .high = 1000};
  const Json file = read_json(o.costs, kCosts, {1u << 20, 16});
  require_schema(file, "costs", 1, o.costs);
  EngineCosts out{json_string(file, "engine", o.costs, kCosts), {}};
  const Json& drafts = json_object(file, "drafts", 64, o.costs, kCosts);
  for (const std::string& kind : o.compared) {
    const std::string where = o.costs + ": drafts: " + kind;
    if (!drafts.contains(kind)) throw Error(kCosts, where + ": expected its costs, found none");
    DraftSpeed& costs = out.drafts[kind];
    costs.draft_cost = json_double(drafts[kind], "draft_cost", kRange, where, kCosts);
    for (const auto& [k, v] : json_object(drafts[kind], "verify_cost", kMostCostedK, where, kCosts).items()) {
      const bool is_k = !k.empty() && k.size() <= 2 && k.find_first_not_of("0123456789") == k.npos && k[0] != '0';
      if (!is_k || std::stoi(k) > kMostCostedK || !v.is_number() || !(v.get<double>() > 0 && v.get<double>() <= 1000))
        throw Error(kCosts, where + ": verify_cost: expected numbers above 0 for K from 1 to " +
                                std::to_string(kMostCostedK) + ", found " + Json({{k, v}}).dump());
      costs.verify_cost[std::stoi(k)] = v;
    }
    if (costs.verify_cost.empty()) throw Error(kCosts, where + ": verify_cost: expected at least one K, found none");
  }
  return out;
}

// Returns the options of the run of kind `index`. Every kind gets an equal share of the limits.
DistillOptions options_of_kind(const DistillOptions& whole, size_t index) {
  DistillOptions o = whole;
  const auto kinds = static_cast<int64_t>(whole.compared.size());
  o.draft = whole.compared[index];
  std::string name = std::to_string(index + 1) + "-";
  for (const char c : o.draft.substr(0, 60)) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  o.out = (fs::path(whole.out) / "comparison" / name).string();
  o.compared.clear();
  o.resume = true;
  o.time_limit_seconds /= static_cast<double>(kinds);
  if (o.max_steps > 0) o.max_steps = std::max<int64_t>(1, o.max_steps / kinds);
  return o;
}

// Wraps `progress` for the run of kind `index`. Estimates the total as if each kind that is not trained yet took as
// long as this one.
ProgressFn progress_of_kind(const DistillOptions& whole, size_t index, const ProgressFn& progress) {
  if (!progress) return {};
  const auto left = static_cast<double>(whole.compared.size() - index);
  const std::string name = format("%s (%zu of %zu)", whole.compared[index].c_str(), index + 1, whole.compared.size());
  return [=](const Progress& p) {
    if (p.stage == "distill" && p.total > 0)
      progress({"comparison, " + name, std::min(p.done, p.total * left - 0.5), p.total * left, p.unit, p.detail});
    else
      progress({name + ": " + p.stage, p.done, p.total, p.unit, p.detail});
  };
}

int64_t parameters_of(const fs::path& draft) {
  int64_t parameters = 0;
  const SafetensorsFile file(draft / "model.safetensors");
  for (const auto& [name, tensor] : file.tensors())
    if (name != "d2t" && name != "t2d")
      parameters += std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  return parameters;
}

// Returns the predicted speed-up when k tokens are drafted per step. Its interval comes from a bootstrap that resamples
// conversations; the costs are taken as exact.
Estimate speedup_with(const DraftSpeed& draft, int k) {
  const double v = draft.verify_cost.at(k);
  const size_t conversations = draft.conversations.size();
  return bootstrap(
      conversations,
      [&](std::span<const size_t> units) {
        AcceptanceCounts counts;
        for (const size_t u : units) counts.add(draft.conversations[u]);
        return predicted_speedup(predicted_length(counts, k), k, draft.draft_cost, v);
      },
      std::max(1e-6, 2 * expanded_tail(conversations, kQuantile975)));
}

// Sorts by speed-up, the highest first, and sets `ties` where the interval overlaps that of the first draft.
void rank(std::vector<TrainedKind>& drafts) {
  std::stable_sort(drafts.begin(), drafts.end(),
                   [](const TrainedKind& a, const TrainedKind& b) { return a.speedup.value > b.speedup.value; });
  for (size_t i = 1; i < drafts.size(); ++i) drafts[i].ties = drafts[i].speedup.ci.high >= drafts[0].speedup.ci.low;
}

ComparedDraft figures_of(const TrainedKind& d) {
  const DistillTraining& training = *d.run.result.training;
  ComparedDraft out;
  out.draft = d.kind;
  out.path = "comparison/" + d.run.directory.filename().string();
  out.parameters = d.parameters;
  out.acceptance = d.run.result.scores->after.figure;
  out.steps = training.steps;
  out.tokens = training.tokens;
  out.seconds = training.seconds;
  out.k = d.best.k;
  out.length = d.best.length;
  out.draft_cost = d.measured.draft_cost;
  out.verify_cost = d.measured.verify_cost;
  AcceptanceCounts counts;
  for (const AcceptanceCounts& c : d.measured.conversations) counts.add(c);
  for (size_t i = 0; i < counts.reached_at.size() && counts.reached_at[i] > 0; ++i)
    out.overlap.push_back(counts.overlap(i));
  out.speedup = d.speedup.value;
  out.ci = d.speedup.ci;
  out.conversations = static_cast<int64_t>(d.measured.conversations.size());
  out.ties_with_first = d.ties;
  return out;
}

ComparisonReport report_of(const DistillOptions& o, const std::vector<TrainedKind>& drafts, const EngineCosts* other) {
  const TrainedKind& first = drafts.front();
  ComparisonReport report;
  std::string ties;
  for (const TrainedKind& d : drafts) {
    if (d.ties) ties += (ties.empty() ? "" : ", ") + d.kind;
    report.drafts.push_back(figures_of(d));
  }
  if (other) report.engine = other->engine;
  report.reason =
      (other ? "with the costs of " + other->engine + ": " : "") +
      format("fastest: %s, predicted speed-up %.2f, 95 %% interval [%.2f, %.2f], with K = %d", first.kind.c_str(),
             first.speedup.value, first.speedup.ci.low, first.speedup.ci.high, first.best.k) +
      (ties.empty() ? "" : "; not distinguishable from it: " + ties);
  if (first.speedup.ci.low > 1) {
    report.verdict = Verdict::kFaster;
    DistillOptions best = o;
    best.draft = first.kind;
    best.out += "-run";
    report.next = shell_words(repeated_command(best));
    report.next_reason = "the fastest kind, trained for as long as all of them together";
  } else {
    report.next_reason = "no kind is certainly faster than the target alone: longer runs, more data or cheaper drafts";
  }
  return report;
}

}  // namespace

DistillResult compare(const DistillOptions& options, const StudyTools& tools) {
  check_output(options);
  check_request(options);
  const Json inputs = study_inputs(options, "--compare");
  Json given = describe(options);
  given["draft"] = options.compared;
  const std::optional<EngineCosts> other = options.costs.empty() ? std::nullopt : std::optional(read_costs(options));
  if (other) given["costs"] = sha256_file(options.costs);
  return run_study(
      options, {"comparison", "distill_comparison"}, given, inputs,
      [&](const StudyStart& start) {
        std::vector<StudyPart> parts;
        for (size_t i = 0; i < options.compared.size(); ++i)
          parts.push_back(
              run_part(options_of_kind(options, i), progress_of_kind(options, i, tools.progress), tools.clock));
        const std::set<std::string> common = common_requests(parts);
        const std::vector<std::string> ids(common.begin(), common.end());
        std::vector<TrainedKind> drafts;
        for (size_t i = 0; i < parts.size(); ++i) {
          TrainedKind& draft = drafts.emplace_back();
          draft.kind = options.compared[i];
          draft.run = std::move(parts[i]);
          draft.parameters = parameters_of(draft.run.directory / "draft");
          draft.measured = tools.speed(draft.run.directory / "draft", ids);
          if (other) {
            draft.measured.draft_cost = other->drafts.at(draft.kind).draft_cost;
            draft.measured.verify_cost = other->drafts.at(draft.kind).verify_cost;
          }
          draft.best = predict_speed(draft.measured);
          if (draft.best.k > 0) draft.speedup = speedup_with(draft.measured, draft.best.k);
        }
        rank(drafts);
        ComparisonReport report = report_of(options, drafts, other ? &*other : nullptr);
        start.end(report);
        return json_of(report);
      },
      tools.clock);
}

}  // namespace specdec::distill
