#include "base/schema/validation_report.h"

#include <cmath>

namespace specdec {

namespace {

constexpr double kMaxFigure = 1e12;
constexpr JsonNumbers kAnyFigure{-kMaxFigure, kMaxFigure, {}}, kAnyCost{0, kMaxFigure, {}}, kShare{0, 1, {}},
    kNats{0, 64, {}}, kMeanShare{0, 1 + 1e-6, {}};  // rounding may raise a mean of shares above 1
constexpr JsonInts kBatch{1, 1 << 20, {}}, kAnyK{-1, 1024, {}}, kCpus{0, 1 << 20, {}};
constexpr size_t kMaxItems = 1 << 20, kMaxPositions = 1024;
constexpr ListRule kFewItems{4096};
constexpr MapRule kFewBatches{4096};

void visit_estimate(Fields& f, const char* value, const char* n, Estimate& e) {
  f(value, e.value, kAnyFigure);
  f("ci", e.ci);
  f(n, e.n, kAnyCount);
}

std::vector<double> by_position(const AcceptanceCounts& c, double (AcceptanceCounts::*figure)(size_t) const) {
  std::vector<double> out;
  for (size_t i = 0; i < c.reached_at.size(); ++i) out.push_back((c.*figure)(i));
  return out;
}

// Computes the sums of the overlaps from their means.
void set_overlaps(Fields& f, AcceptanceCounts& c, const std::vector<double>& means) {
  const size_t width = c.reached_at.size();
  if (c.drafted_at.size() != width || c.accepted_at.size() != width || means.size() != width)
    f.refuse("drafted_at, reached, accepted and overlap differ in length");
  for (size_t i = 0; i < width; ++i) {
    if (c.accepted_at[i] > c.reached_at[i] || c.reached_at[i] > c.drafted_at[i])
      f.refuse("position " + std::to_string(i) + ": expected accepted <= reached <= drafted_at");
    c.overlap_sum_at.push_back(means[i] * static_cast<double>(c.reached_at[i]));
  }
}

}  // namespace

void visit_fields(Fields& f, RolloutFigures& r) {
  f.type("Rollout", "What a roll-out measured, by position in the draft.");
  AcceptanceCounts& c = r.counts;
  f("k", r.k, kAnyK);
  f("verify", r.verify);
  visit_estimate(f, "alpha", "conversations", r.alpha);
  f("steps", c.steps, kAnyCount);
  f("plain_steps", c.plain_steps, kAnyCount);
  f("drafted", c.drafted, kAnyCount);
  f("accepted_total", c.accepted, {0, f.reads() ? c.drafted : kMaxCount});
  f("emitted", c.emitted, kAnyCount);
  f("drafted_at", c.drafted_at, kAnyCount, kMaxPositions);
  f("reached", c.reached_at, kAnyCount, kMaxPositions);
  f("accepted", c.accepted_at, kAnyCount, kMaxPositions);
  std::vector<double> overlap;
  if (!f.reads()) overlap = by_position(c, &AcceptanceCounts::overlap);
  f("overlap", overlap, kMeanShare, kMaxItems);
  if (f.reads()) set_overlaps(f, c, overlap);
  f.derived("conditional", by_position(c, &AcceptanceCounts::conditional), kFewItems);
  f.derived("marginal", by_position(c, &AcceptanceCounts::marginal), kFewItems);
  f.derived("length", c.length());
  f.derived("draft_efficiency", c.draft_efficiency());
}

void visit_fields(Fields& f, MachineUse& use) {
  f.type("Machine", "The load on the machine while something was timed.");
  f({"cpus", "CPUs that this program may use; 0: the use of the machine is not known."}, use.cpus, kCpus);
  f("threads", use.threads, kCpus);
  f({"others_cpus", "CPUs that other processes used, stolen_cpus included."}, use.others, {0, 1 << 20});
  f({"stolen_cpus", "CPUs that the hypervisor gave to other machines or that a cgroup limit withheld."}, use.stolen,
    {0, 1 << 20});
  f({"taken", "The share of this program's CPU time that others took away."}, use.taken, kShare);
  f("runs", use.runs, kAnyCount);
  f({"disturbed", "Runs that were repeated because others took too much CPU meanwhile."}, use.disturbed, kAnyCount);
  f({"disagreeing", "Runs that were repeated because their cost per step differed from the other runs'."},
    use.disagreeing, kAnyCount);
  f(defaulted("busy", "Too few runs were undisturbed, so their times decide nothing."), use.busy);
}

void visit_fields(Fields& f, ValidationReport::Figure& figure) {
  f.type("Figure", "A figure that a verdict was judged by, with the limit that its interval was compared with.");
  f("check", figure.check);
  f(defaulted("segment"), figure.segment);
  f("value", figure.value, kAnyFigure);
  f("ci", figure.ci);
  f("limit", figure.limit, kAnyFigure);
}

void visit_fields(Fields& f, SegmentFigure& s) {
  f.type("Segment", "The acceptance of one segment of the traffic.");
  f("name", s.name);
  visit_estimate(f, "alpha", "requests", s.alpha);
  f("floor", s.floor, kShare);
  f("rollout", s.rollout);
  f("entropy", s.entropy, kNats);
}

namespace {

void visit_inputs(Fields& f, ValidationReport& r) {
  const auto model = [&](const char* key, std::string& path, Fingerprint& fingerprint) {
    f.group(key, [&](Fields& part) {
      part("path", path);
      part("fingerprint", fingerprint);
    });
  };
  model("target", r.target_path, r.target);
  model("draft", r.draft_path, r.draft);
  f.group("data", [&](Fields& data) {
    data("path", r.data_path);
    data.digest(defaulted("digest"), r.data_digest, true);
  });
  f("contexts", r.contexts);
  f("split", r.split);
  Json flags = r.flags;
  f.json(if_any("flags"), flags, {{"type", "array"}, {"items", {{"type", "string"}}}});
  if (f.reads() && flags.is_array())  // keeps only what looks like a flag, because next_command() prints it
    for (const Json& flag : flags)
      if (flag.is_string() && flag.get_ref<const std::string&>().starts_with("--") && r.flags.size() < 256)
        r.flags.push_back(flag.get<std::string>());
  f("device", r.device);
  f("dtype", r.dtype);
  f("temperature", r.temperature, {0, 10});
  f("floor", r.floor, kShare);
  f("goal", r.goal, kShare);
}

}  // namespace

void visit_fields(Fields& f, ValidationReport::SequencePoint& p) {
  f("requests", p.requests, kAnyCount);
  f("alpha", p.alpha, kShare);
  f("low", p.low, kShare);
  f("high", p.high, kShare);
}

namespace {

void visit_acceptance(Fields& f, ValidationReport& r) {
  f.type("Acceptance", "How often the target accepts the draft's tokens, over the requests of the split.");
  visit_estimate(f, "alpha", "requests", r.alpha);
  f("alpha_tokens", r.alpha_tokens, kShare);
  f("greedy_agreement", r.greedy_agreement, kShare);
  f({"entropy", "Of the target's distribution at the same positions, in nats per token."}, r.entropy, kNats);
  f("tokens", r.tokens, kAnyCount);
  if (f.reads()) r.requests_available = r.alpha.n;
  f(defaulted("requests_available"), r.requests_available, kAnyCount);
  std::optional<int64_t> needed;
  if (r.requests_needed) needed = r.requests_needed;
  f({"requests_needed", "Requests after which the verdict on acceptance was certain; null: it is not."}, needed,
    kAnyCount);
  if (f.reads()) r.requests_needed = needed.value_or(0);
  f.rows(defaulted("sequence", "[requests, alpha, low, high] after growing numbers of requests."), r.sequence,
         "[requests, alpha, low, high]", kMaxItems);
  f("rollout", r.rollout);
  f("request_ids", r.request_ids, {kMaxItems});
  f("request_alphas", r.request_alphas, kMeanShare, kMaxItems);
}

}  // namespace

void visit_fields(Fields& f, ValidationReport::Baseline::Segment& s) {
  f.type("BaselineSegment", "The difference in one segment.");
  f("name", s.name);
  visit_estimate(f, "alpha_difference", "paired_requests", s.difference);
  f(defaulted("judged"), s.judged);
}

struct BaselineDraft {
  std::string path, id;
};
void visit_fields(Fields& f, BaselineDraft& draft) {
  f.type("BaselineDraft", "The draft that was compared with.");
  f("path", draft.path);
  f.digest("id", draft.id);
}

void visit_fields(Fields& f, ValidationReport::Baseline& b) {
  f.type("Baseline", "This draft's acceptance minus that of another, on the same requests.");
  visit_estimate(f, "alpha_difference", "paired_requests", b.difference);
  std::optional<BaselineDraft> draft;
  if (!b.draft_id.empty()) draft = {b.draft_path, b.draft_id};
  f("draft", draft);
  if (f.reads() && draft) b.draft_path = draft->path, b.draft_id = draft->id;
  f("min_gain", b.min_gain, {-1, 1});
  f(defaulted("segments"), b.segments, kFewItems);
}

void visit_fields(Fields& f, ValidationReport::TableRow& row) {
  f.type("SpeedRow", "The predicted speed-up of one batch size and K.");
  f("batch", row.batch, kBatch);
  f("k", row.k, kAnyK);
  f("speedup", row.speedup, kAnyCost);
}

// A row of the schedule as engines read it, and the figure that supports it.
struct ScheduleRange {
  int low = 1, high = 1, k = 0;
};
void visit_fields(Fields& f, ScheduleRange& row) {
  f("batch_lo", row.low, kBatch);
  f("batch_hi", row.high, {row.low, kBatch.high});
  f("k", row.k, {0, 1024});
}

struct ScheduleFigure {
  bool measured = false, validated = false;
  std::optional<int64_t> k = {};
  std::optional<double> speedup = {};
  std::optional<Interval> ci = {};
};
void visit_fields(Fields& f, ScheduleFigure& figure) {
  f.type("ScheduleFigure", "The figure that a row of the schedule rests on.");
  f.one_of("basis", figure.measured, {{true, "measured"}, {false, "predicted"}});
  f.derived("validated", figure.validated);
  f("k", figure.k, {1, 1024});
  f("speedup", figure.speedup, kAnyCost);
  f("ci", figure.ci);
}

void visit_schedule(Fields& f, std::vector<ScheduleRow>& schedule, Presence presence) {
  std::vector<ScheduleRange> ranges;
  std::vector<ScheduleFigure> figures;
  for (const ScheduleRow& row : schedule) {
    ranges.push_back({row.low, row.high, row.k});
    figures.push_back({row.measured, row.validated()});
    if (row.figure_k > 0) figures.back().k = row.figure_k, figures.back().speedup = row.speedup;
    if (row.measured) figures.back().ci = row.ci;
  }
  f.rows({"schedule", "", presence}, ranges, "[batch_lo, batch_hi, k]", kFewItems.most);
  // Reports of earlier versions have no figures, so their rows count as predicted.
  if (f.reads()) figures.resize(ranges.size());
  f({"schedule_figures", "", presence == Presence::kAlways ? Presence::kDefaulted : presence}, figures, kFewItems);
  if (!f.reads()) return;
  if (figures.size() != ranges.size()) f.refuse("schedule and schedule_figures differ in length");
  for (size_t i = 0; i < ranges.size(); ++i) {
    const ScheduleFigure& figure = figures[i];
    ScheduleRow& row = schedule.emplace_back(ScheduleRow{ranges[i].low, ranges[i].high, ranges[i].k, figure.measured});
    if (!figure.k) continue;
    if (!figure.speedup || (figure.measured && !figure.ci)) f.refuse("schedule_figures: speedup or ci: missing");
    row.figure_k = static_cast<int>(*figure.k), row.speedup = *figure.speedup;
    if (figure.measured) row.ci = *figure.ci;
  }
}

namespace {

void visit_speed(Fields& f, ValidationReport& r) {
  f.type("Speed", "Costs, speed-ups and the schedule that follows from them.");
  f({"draft_cost", "One drafted token at batch 1, in units of a plain step."}, r.draft_cost, kAnyCost);
  f({"verify_cost", "The rest of a step by batch size, in units of a plain step."}, r.verify_cost, kFewBatches,
    kAnyCost);
  f({"verify_cost_table", "The same by batch size and K."}, r.verify_cost_table, kFewBatches, kFewBatches, kAnyCost);
  f.group("measured", [&](Fields& measured) {
    measured.type("MeasuredSpeed", "The measured speed-up at batch 1.");
    visit_estimate(measured, "speedup", "prompts", r.speedup);
    measured("k", r.best_k, kAnyK);
  });
  f("predicted", r.predicted_speedup, kAnyCost);
  bool fits = r.prediction_fits();  // computed from other figures, so the value that was read is ignored
  f(defaulted("prediction_fits"), fits);
  f("table", r.table, {65536});
  f(defaulted("break_even", "The least constant acceptance that pays, by batch size; absent if none does."),
    r.break_even, kFewBatches, kAnyCost);
  visit_schedule(f, r.schedule, Presence::kAlways);
  f(if_any("machine"), r.machine);
}

}  // namespace

void visit_fields(Fields& f, ValidationReport::Prediction& p) {
  f.type("Prediction", "The speed-up that another engine's costs promise.");
  f("batch", p.batch, kBatch);
  f("draft_cost", p.draft_cost, kAnyCost);
  f("verify_cost", p.verify_cost, kAnyCost);
  f("k", p.k, {1, 1024});
  f("speedup", p.speedup, kAnyCost);
  f("break_even", p.break_even, kShare);
}

void visit_fields(Fields& f, ValidationReport& r) {
  f.type("ValidateResult", "The gate's verdict and every figure that it rests on (report.json).");
  f.schema("validate", ValidationReport::kVersion);
  visit_gate_verdict(f, r.verdict);
  f(defaulted("reason"), r.reason);
  f(defaulted("judged_by"), r.judged_by, kFewItems);
  f(defaulted("next"), r.next);
  f("started", r.started);
  f("seconds", r.seconds, kAnyCost);
  f("tool_version", r.tool_version);
  f.group("inputs", [&](Fields& inputs) { visit_inputs(inputs, r); });
  f.group("acceptance", [&](Fields& acceptance) { visit_acceptance(acceptance, r); });
  f("segments", r.segments, kFewItems);
  f(if_any("baseline"), r.baseline);
  f(if_any("predictions"), r.predictions, kFewItems);
  f.group_if("speed", r.has_speed, [&](Fields& speed) { visit_speed(speed, r); });
  f.group_if("lossless", r.has_lossless, [&](Fields& lossless) {
    lossless.type("Lossless", "Whether the output is the target's own.");
    lossless("greedy_prompts", r.greedy_prompts, kAnyCount);
    lossless("greedy_identical", r.greedy_identical, kAnyCount);
    lossless("near_ties", r.near_ties, kAnyCount);
    lossless("differences", r.differences, kAnyCount);
    lossless("sampled_p_value", r.sampled_p_value, kShare);
  });
}

void ValidationReport::validate(const std::string& where) const {
  const auto check = [&](bool ok, const std::string& text) {
    if (!ok) throw Error(ErrorKind::kData, where + ": " + text);
  };
  check(is_gate_verdict(verdict),
        "verdict: expected one of the gate's, found '" + std::string(to_string(verdict)) + "'");
  check(is_sha256_hex(target.id) && is_sha256_hex(draft.id), "inputs: fingerprints missing");
  check(alpha.value >= 0 && alpha.value <= 1 && alpha.ci.low >= 0 && alpha.ci.high <= 1,
        "acceptance: alpha: expected numbers in [0, 1]");
  check(request_ids.size() == request_alphas.size(), "acceptance: request_ids and request_alphas differ in length");
  check(greedy_prompts >= greedy_identical && greedy_identical >= 0,
        "lossless: expected greedy_identical <= greedy_prompts");
  check(std::isfinite(seconds) && seconds >= 0, "seconds: expected a number >= 0");
  for (size_t i = 0; i < schedule.size(); ++i)
    check(schedule[i].low <= schedule[i].high && (i == 0 || schedule[i].low > schedule[i - 1].high),
          "speed: schedule: batch ranges must ascend without overlap");
  if (verdict == Verdict::kPass)
    check(alpha.n > 0 && has_speed && has_lossless, "a pass needs acceptance, speed and lossless figures");
}

ScheduleRanges ranges_of(const std::vector<ScheduleRow>& schedule) {
  ScheduleRanges ranges;
  for (const ScheduleRow& row : schedule) ranges.push_back({row.low, row.high, row.k});
  return ranges;
}

Json to_json(const ValidationReport& r) { return json_of(r); }

ValidationReport validation_report_from_json(const Json& object, const std::string& where) {
  ValidationReport r = read_fields<ValidationReport>(object, where);
  r.validate(where);
  return r;
}

}  // namespace specdec
