#include "distill/study/forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/schema/distill_forecast.h"
#include "base/shell.h"
#include "base/verdict.h"
#include "data/shards/shard_reader.h"
#include "distill/run/output.h"
#include "distill/settings/repeat_flags.h"
#include "distill/settings/time_plan.h"
#include "distill/study/learning_curve.h"
#include "distill/train/evaluate.h"

namespace specdec::distill {

namespace {

// The inputs of a forecast, known before any sample is trained on.
struct ForecastPlan {
  DistillOptions options;  // options of the run to forecast, on all data
  int64_t rows = 0;        // rows of the training set, as counted in the data directory's index
  std::vector<int64_t> sizes;
  Json inputs;
};

std::vector<int64_t> sample_sizes(const ForecastOptions& options, int64_t rows, const std::string& data) {
  if (rows == 0) throw Error(ErrorKind::kData, data + ": has no training rows, so nothing can be forecast");
  if (options.samples.empty()) return default_samples(rows);
  const std::set<int64_t> sizes(options.samples.begin(), options.samples.end());
  if (*sizes.begin() < 1 || *sizes.rbegin() > rows)
    throw Error(ErrorKind::kUsage,
                format("--forecast-samples: expected sizes from 1 to the %lld training rows of %s, "
                       "found %lld",
                       static_cast<long long>(rows), data.c_str(),
                       static_cast<long long>(*sizes.begin() < 1 ? *sizes.begin() : *sizes.rbegin())));
  return {sizes.begin(), sizes.end()};
}

ForecastPlan make_plan(const DistillOptions& given) {
  ForecastPlan plan{given, 0, {}, study_inputs(given, "--forecast")};
  DistillOptions& o = plan.options;
  if (o.max_steps == 0 && o.epochs == 0 && o.time_limit_seconds == 0) o.epochs = 3;
  const data::ShardReader reader(o.data);
  for (const ShardFile& shard : reader.index().shards)
    if (shard.split == "train") plan.rows += shard.num_rows;
  plan.sizes = sample_sizes(o.forecast, plan.rows, o.data);
  return plan;
}

// Returns the options of the run on a sample of `size` rows. The sample's share of the data is also its share of the
// limits of the whole run.
DistillOptions options_of_sample(const ForecastPlan& plan, int64_t size) {
  DistillOptions o = plan.options;
  o.forecast = {};
  o.out = (fs::path(plan.options.out) / "forecast" / std::to_string(size)).string();
  o.resume = true;
  o.sample = std::min(1.0, static_cast<double>(size) / static_cast<double>(plan.rows));
  o.time_limit_seconds *= o.sample;
  if (o.max_steps > 0)
    o.max_steps = std::max<int64_t>(1, std::llround(o.sample * static_cast<double>(plan.options.max_steps)));
  return o;
}

// Wraps `progress` so that it counts training rows, over this sample and all later ones. The rows done then give the
// remaining time of the forecast.
ProgressFn progress_of_sample(const ForecastPlan& plan, size_t index, const ProgressFn& progress) {
  if (!progress) return {};
  const auto size = static_cast<double>(plan.sizes[index]);
  double left = 0;
  for (size_t i = index; i < plan.sizes.size(); ++i) left += static_cast<double>(plan.sizes[i]);
  const std::string name = format("sample %zu of %zu", index + 1, plan.sizes.size());
  return [=](const Progress& p) {
    if (p.stage == "distill" && p.total > 0)
      progress({"forecast, " + name, std::min(size * p.done / p.total, left - 0.5), left, "rows", p.detail});
    else
      progress({name + ": " + p.stage, p.done, p.total, p.unit, p.detail});
  };
}

// Returns the sums of the scores of each conversation, over the requests that were measured for every sample.
CurveInput curve_input(const std::vector<StudyPart>& samples, std::vector<std::string>& ids) {
  const std::set<std::string> judged = common_requests(samples);
  CurveInput input;
  std::map<std::string, size_t> units;
  for (const StudyPart& sample : samples) {
    SampleScores scores{sample.result.data.at("train_rows").get<double>(), std::vector<double>(units.size())};
    const bool last = &sample == &samples.back();
    for (const Json& row : sample.scores.at("rows")) {
      const auto id = row.at("id").get<std::string>(), conversation = row.at("conversation").get<std::string>();
      if (judged.count(id) == 0) continue;
      const size_t unit =
          units.try_emplace(conversation.empty() ? "request " + id : conversation, units.size()).first->second;
      for (std::vector<double>* sums : {&scores.acceptance, &input.requests, &input.before}) sums->resize(units.size());
      scores.acceptance[unit] += row.at("after").get<double>();
      if (!last) continue;
      ids.push_back(id);
      ++input.requests[unit];
      input.before[unit] += row.at("before").get<double>();
    }
    input.samples.push_back(std::move(scores));
  }
  const Json& whole = samples.back().result.data;
  input.whole = whole.contains("sampled_from") ? whole.at("sampled_from").at("rows").get<double>()
                                               : whole.at("train_rows").get<double>();
  return input;
}

struct RunSize {
  double rows = 0, tokens = 0, seconds = 0;  // predicted for the run on all data
};

// Predicts tokens and time of the whole run from those of the largest sample.
RunSize size_of_run(const ForecastPlan& plan, const CurveInput& curve, const StudyPart& largest) {
  const DistillOptions& o = plan.options;
  const DistillTraining& training = *largest.result.training;
  const double seconds = training.seconds, tokens = static_cast<double>(training.tokens);
  // Tokens per second of the largest sample's run, including its time for evaluations and saving.
  const double rate = seconds > 0 ? tokens / seconds : 0;
  const double share = curve.samples.back().rows / curve.whole;
  RunSize size{curve.whole, std::numeric_limits<double>::infinity(), 0};
  if (o.max_steps > 0)
    size.tokens = tokens / static_cast<double>(std::max<int64_t>(1, training.steps)) * static_cast<double>(o.max_steps);
  else if (o.epochs > 0)
    size.tokens = o.epochs * largest.result.data.at("train_tokens").get<double>() / share;
  if (o.time_limit_seconds > 0) size.tokens = std::min(size.tokens, kUsualTrainingShare * o.time_limit_seconds * rate);
  size.seconds = rate > 0 ? size.tokens / rate : 0;
  return size;
}

struct RunSpeed {
  DraftSpeed measured;
  SpeedPrediction sample;              // predicted for the largest sample's draft
  std::optional<SpeedPrediction> run;  // for the draft of the whole run; empty if its acceptance is not known
  Interval ci = {};                    // interval of the speed-up of `run`
};

// Predicts the speed-up of the whole run. Takes the largest sample's draft and shifts its acceptance at every position
// by the forecast change in log-odds. The ends of the interval are the speed-ups at the ends of the acceptance
// interval.
RunSpeed predict_run(const DraftSpeed& measured, const CurveForecast& curve) {
  RunSpeed speed{measured, predict_speed(measured), {}};
  if (!curve.curve || speed.sample.k == 0) return speed;
  const auto shift = [&](double acceptance) { return log_odds(acceptance) - log_odds(curve.measured.back().value); };
  speed.run = predict_speed(measured, shift(curve.acceptance.value));
  const int k = speed.run->k;
  speed.ci = {predict_speed_with(measured, k, shift(curve.acceptance.ci.low)).speedup,
              predict_speed_with(measured, k, shift(curve.acceptance.ci.high)).speedup};
  return speed;
}

ForecastSpeed speed_figures(const RunSpeed& speed, const RunSize& size) {
  ForecastSpeed out;
  out.draft_cost = speed.measured.draft_cost;
  out.verify_cost = speed.measured.verify_cost;
  out.plain_seconds = speed.measured.plain_seconds;
  out.conversations = static_cast<int64_t>(speed.measured.conversations.size());
  out.sample = speed.sample;
  if (!speed.run) return out;
  out.k = speed.run->k;
  out.length = speed.run->length;
  out.speedup = speed.run->speedup;
  out.ci = speed.ci;
  const auto tokens = [&](double speedup) {
    return if_finite(std::ceil(tokens_to_pay_back(size.seconds, speed.measured.plain_seconds, speedup)));
  };
  out.break_even_tokens = DistillFigure{tokens(speed.run->speedup), tokens(speed.ci.high), tokens(speed.ci.low)};
  return out;
}

struct ForecastVerdict {
  Verdict verdict;
  std::string reason;
};

ForecastVerdict judge_forecast(const CurveForecast& curve, const std::optional<RunSpeed>& speed) {
  if (!curve.curve) return {Verdict::kInconclusive, "nothing is extrapolated: " + curve.reason};
  const Interval gain = curve.gain.ci;
  const std::string gains = format(
      "the whole run will bring acceptance %.4f, 95 %% interval [%.4f, %.4f], %+.4f "
      "[%+.4f, %+.4f] above the draft before training",
      curve.acceptance.value, curve.acceptance.ci.low, curve.acceptance.ci.high, curve.gain.value, gain.low, gain.high);
  if (gain.low <= 0) return {Verdict::kNoSignificantGain, gains};
  if (!speed || !speed->run) return {Verdict::kImproved, gains};
  const std::string faster = format("; predicted speed-up %.2f [%.2f, %.2f] with K = %d", speed->run->speedup,
                                    speed->ci.low, speed->ci.high, speed->run->k);
  if (speed->ci.high <= 1) return {Verdict::kNotWorthIt, gains + faster + ": it never pays back"};
  if (speed->ci.low <= 1) return {Verdict::kInconclusive, gains + faster + ": it may never pay back"};
  return {Verdict::kImproved, gains + faster};
}

void put_next(const ForecastPlan& plan, ForecastReport& report) {
  switch (report.verdict) {
    case Verdict::kImproved:
      report.next = shell_words(repeated_command(plan.options));
      report.next_reason = "the run that was forecast";
      return;
    case Verdict::kNotWorthIt:
      report.next_reason =
          "a cheaper draft, with fewer layers or as an EAGLE-3 head, may pay back where this one does not";
      return;
    default:
      report.next_reason = report.curve ? "a longer run, or another draft, may bring more"
                                        : "larger samples (--forecast-samples) or more held-out conversations make the "
                                          "trend visible";
  }
}

std::vector<ForecastSample> sample_figures(const std::vector<StudyPart>& samples, const CurveInput& input,
                                           const CurveForecast& curve) {
  std::vector<ForecastSample> out;
  for (size_t i = 0; i < samples.size(); ++i) {
    const DistillTraining& training = *samples[i].result.training;
    out.push_back({.rows = input.samples[i].rows,
                   .acceptance = distill_figure(curve.measured.empty() ? Estimate() : curve.measured[i]),
                   .path = "forecast/" + samples[i].directory.filename().string(),
                   .steps = training.steps,
                   .tokens = training.tokens,
                   .seconds = training.seconds,
                   .tokens_per_second = training.tokens_per_second});
  }
  return out;
}

ForecastReport report_of(const ForecastPlan& plan, const std::vector<StudyPart>& samples, const StudyTools& tools) {
  std::vector<std::string> ids;
  const CurveInput input = curve_input(samples, ids);
  const CurveForecast curve = forecast_acceptance(input, static_cast<size_t>(kMinVerdictConversations));
  const RunSize size = size_of_run(plan, input, samples.back());
  std::optional<RunSpeed> speed;
  if (tools.speed) speed = predict_run(tools.speed(samples.back().directory / "draft", ids), curve);
  const ForecastVerdict judged = judge_forecast(curve, speed);
  double before = 0, requests = 0;
  for (const double x : input.before) before += x;
  for (const double x : input.requests) requests += x;
  ForecastReport report;
  report.verdict = judged.verdict;
  report.reason = judged.reason;
  report.samples = sample_figures(samples, input, curve);
  if (requests > 0) report.before = if_finite(before / requests);
  report.conversations = static_cast<int64_t>(input.requests.size());
  report.run = {.rows = size.rows,
                .tokens = std::round(size.tokens),
                .seconds = size.seconds,
                .acceptance = distill_figure(curve.acceptance),
                .gain = distill_figure(curve.gain),
                .extrapolation = curve.extrapolation,
                .far = curve.extrapolation > kFarExtrapolation};
  report.curve = curve.curve;
  if (speed && speed->sample.k > 0) report.speed = speed_figures(*speed, size);
  put_next(plan, report);
  return report;
}

}  // namespace

DistillResult forecast(const DistillOptions& options, const StudyTools& tools) {
  validate(options);
  check_output(options);
  const ForecastPlan plan = make_plan(options);
  check_request(options);
  Json given = describe(plan.options);
  given["forecast_samples"] = plan.sizes;
  return run_study(
      options, {"forecast", "distill_forecast"}, given, plan.inputs,
      [&](const StudyStart& start) {
        std::vector<StudyPart> samples;
        for (size_t i = 0; i < plan.sizes.size(); ++i)
          samples.push_back(run_part(options_of_sample(plan, plan.sizes[i]),
                                     progress_of_sample(plan, i, tools.progress), tools.clock));
        ForecastReport report = report_of(plan, samples, tools);
        start.end(report);
        return json_of(report);
      },
      tools.clock);
}

}  // namespace specdec::distill
