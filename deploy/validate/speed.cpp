#include "deploy/validate/speed.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/draft_speed.h"
#include "base/error.h"
#include "base/expanded_tail.h"

namespace specdec::deploy {

namespace {

// Forwards all calls and records when the target's pass starts. A step's time before that is spent on drafting.
class Marked final : public decode::ForwardingModel {
 public:
  Marked(decode::CausalModel& model, const Clock& clock) : ForwardingModel(model), clock_(clock) {}
  void extend(std::span<const decode::Extension> extensions, decode::LogitRows& out) override {
    asked = clock_.seconds();
    ForwardingModel::extend(extensions, out);
  }
  double asked = 0;

 private:
  const Clock& clock_;
};

std::vector<int32_t> cut(const std::vector<int32_t>& prompt, int64_t room) {
  if (room < 1)
    throw Error(ErrorKind::kData, "the models' context is too short for the tokens to be measured: ask for fewer");
  return {prompt.begin(), prompt.begin() + std::min<int64_t>(room, static_cast<int64_t>(prompt.size()))};
}

// Models and prompts whose costs are measured, with the options of the measurement.
struct CostMeasurement {
  Marked& target;
  decode::CausalModel& draft;
  std::span<const std::vector<int32_t>> prompts;
  const CostOptions& options;
  const Clock& clock;
};

// Runs the sequences of one batch and times their steps. Each timed step gets its own K.
class Bench {
 public:
  Bench(const CostMeasurement& measured, int batch, int repetition)
      : target_(measured.target), clock_(measured.clock), stepper_(measured.target, &measured.draft) {
    const CostOptions& options = measured.options;
    const auto prompts = measured.prompts;
    // Upper bound of the tokens per sequence. The timed steps, one for each K from 0 to max_k, emit at most K + 1
    // tokens each; the 4 is for the warm-up step.
    const int64_t emitted = (options.max_k + 1) * (options.max_k + 2) / 2 + 4;
    const int64_t room = std::min(target_.max_length(), measured.draft.max_length()) - emitted - options.max_k;
    const decode::RequestOptions request{.max_tokens = emitted + options.max_k, .sampling = options.sampling};
    for (int i = 0; i < batch; ++i) {
      const auto number = static_cast<size_t>(repetition * batch + i);
      decode::Request one{cut(prompts[number % prompts.size()], room), options.seed + number, request};
      // Drafting is enabled from the start, because an EAGLE-3 head must see the prompt's prefill to be able to draft
      // later.
      decode::Drafting drafting{.verify = options.verify, .model = decode::ControllerOptions{.fixed_k = 1}};
      batch_.push_back(&sequences_.emplace_back(stepper_, std::move(one), std::move(drafting)));
      stepper_.start(*batch_.back());
    }
  }

  struct Times {
    double drafting = 0, rest = 0;
    bool full = true;  // true if every sequence drafted K tokens
  };
  Times step(int k) {
    decode::ControllerOptions options;
    options.fixed_k = k;
    options.max_k = std::max(k, 1);
    for (auto* s : batch_) s->replace_controller(options);
    const double start = clock_.seconds();
    stepper_.step(batch_);
    const double end = clock_.seconds();
    Times t{target_.asked - start, end - target_.asked, true};
    if (k == 0) t = {0, end - start, true};
    if (const decode::RoundSeconds& round = stepper_.device_seconds(); k > 0 && round.target > 0) {
      t.drafting = 0;  // a round on the GPU bypasses `target_` and has its own times
      for (const auto& level : round.levels) t.drafting += level.seconds;
      t.rest = end - start - t.drafting;
    }
    for (const auto* s : batch_) t.full = t.full && s->outcome().drafted == k;
    return t;
  }

 private:
  Marked& target_;
  const Clock& clock_;
  decode::Stepper stepper_;
  std::deque<decode::Sequence> sequences_;
  std::vector<decode::Sequence*> batch_;
};

struct Samples {
  std::map<int, std::vector<double>> rest;  // K → seconds of the step except drafting
  std::vector<double> drafting;             // seconds per drafted token
};

Samples sample_batch(const CostMeasurement& measured, int batch) {
  const CostOptions& options = measured.options;
  const Clock& clock = measured.clock;
  Samples samples;
  const double begun = clock.seconds();
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while measuring costs");
    if (repetition >= 3 && clock.seconds() - begun > options.seconds_per_batch) break;
    Bench bench(measured, batch, repetition);
    bench.step(1);  // prefills the draft
    // The order of K alternates between ascending and descending, so that no K always gets the longest context. Plain
    // decoding is last.
    std::vector<int> order;
    for (int k = 1; k <= options.max_k; ++k) order.push_back(repetition % 2 ? options.max_k + 1 - k : k);
    order.push_back(0);
    for (const int k : order) {
      const Bench::Times t = bench.step(k);
      if (!t.full) continue;
      samples.rest[k].push_back(t.rest);
      if (k > 0) samples.drafting.push_back(t.drafting / k);
    }
  }
  return samples;
}

}  // namespace

CostTable measure_costs(const decode::ModelPair& models, std::span<const std::vector<int32_t>> prompts,
                        const CostOptions& options, const Clock& clock, const ProgressFn& progress) {
  if (prompts.empty()) throw Error(ErrorKind::kData, "speed: no prompts to measure on");
  CostTable table;
  Marked marked(models.target, clock);
  const CostMeasurement measured{
      .target = marked, .draft = models.draft, .prompts = prompts, .options = options, .clock = clock};
  double done = 0;
  const auto report = [&] {
    if (progress) progress({"costs", done, static_cast<double>(options.batches.size()), "batch sizes", ""});
  };
  report();
  for (const int batch : options.batches) {
    const Samples samples = sample_batch(measured, batch);
    const auto plain = samples.rest.find(0);
    const double unit = plain == samples.rest.end() ? 0 : quantile(plain->second, 0.5);
    if (unit > 0 && !samples.drafting.empty()) {
      table.plain_seconds[batch] = unit;
      table.draft_cost[batch] = quantile(samples.drafting, 0.5) / unit;
      for (const auto& [k, seconds] : samples.rest)
        if (k > 0) table.verify_cost[batch][k] = quantile(seconds, 0.5) / unit;
    }
    ++done;
    report();
  }
  return table;
}

std::vector<ValidationReport::TableRow> speed_table(const CostTable& costs, const AcceptanceCounts& counts) {
  std::vector<ValidationReport::TableRow> table;
  for (const auto& [batch, row] : costs.verify_cost)
    for (const auto& [k, v] : row)
      table.push_back({batch, k, predicted_speedup(predicted_length(counts, k), k, costs.draft_cost.at(batch), v)});
  return table;
}

std::vector<ScheduleRow> speed_schedule(const std::vector<ValidationReport::TableRow>& table,
                                        const std::optional<MeasuredSpeed>& measured) {
  const bool loses = measured && !measured->gains();
  const double scale =
      measured && measured->predicted > 0 ? std::min(1.0, measured->speedup.value / measured->predicted) : 1;
  std::map<int, std::pair<double, int>> best;  // batch → largest predicted speed-up, its K
  for (const auto& row : table) {
    auto& at = best.try_emplace(row.batch, 0.0, 0).first->second;
    if (row.speedup * scale > at.first) at = {row.speedup * scale, row.k};
  }
  std::vector<ScheduleRow> schedule;
  if (measured) {
    best.erase(1);
    schedule.push_back(
        {1, 1, loses ? 0 : measured->k, true, measured->k, measured->speedup.value, measured->speedup.ci});
  }
  for (const auto& [batch, figure] : best) {
    const auto& [speedup, of_k] = figure;
    const int k = speedup > 1 && !loses ? of_k : 0;
    if (!schedule.empty()) schedule.back().high = batch - 1;
    ScheduleRow* const last = schedule.empty() || schedule.back().measured ? nullptr : &schedule.back();
    if (!last || last->k != k) {
      schedule.push_back({batch, batch, k, false, of_k, speedup});
      continue;
    }
    last->high = batch;
    if (speedup < last->speedup) last->speedup = speedup, last->figure_k = of_k;
  }
  // The measurement applies to batch 1 only. Batch sizes between 1 and the table's next size get the prediction for
  // that next size.
  if (schedule.size() > 1 && schedule[0].measured && schedule[0].high > 1) schedule[0].high = 1, schedule[1].low = 2;
  return schedule;
}

int best_k(const std::vector<ValidationReport::TableRow>& table) {
  const auto best = std::min_element(table.begin(), table.end(), [](const auto& a, const auto& b) {
    return a.batch != b.batch ? a.batch < b.batch : a.speedup > b.speedup;
  });
  return best == table.end() ? 1 : best->k;
}

namespace {

double constant_length(double alpha, int k) {
  double length = 1, product = 1;
  for (int i = 0; i < k; ++i) length += product *= alpha;
  return length;
}

// Finds by bisection the smallest acceptance at which some K pays off; the speed-up grows with acceptance. Returns none
// if no acceptance suffices. verify_cost: relative verify cost v by K.
std::optional<double> least_acceptance(double draft_cost, const std::map<int, double>& verify_cost) {
  const auto pays = [&](double alpha) {
    return std::any_of(verify_cost.begin(), verify_cost.end(), [&](const auto& v) {
      return predicted_speedup(constant_length(alpha, v.first), v.first, draft_cost, v.second) > 1;
    });
  };
  if (!pays(1)) return std::nullopt;
  double low = 0, high = 1;
  for (int i = 0; i < 40; ++i) (pays((low + high) / 2) ? high : low) = (low + high) / 2;
  return high;
}

}  // namespace

std::map<int, double> break_even(const CostTable& costs) {
  std::map<int, double> out;
  for (const auto& [batch, row] : costs.verify_cost)
    if (const auto alpha = least_acceptance(costs.draft_cost.at(batch), row)) out[batch] = *alpha;
  return out;
}

EngineCosts parse_engine_costs(const std::string& text) {
  EngineCosts costs;
  const auto refuse = [&](const std::string& why) {
    throw Error(
        ErrorKind::kUsage,
        "--predict: " + why + ": expected c=C,v=V[,batch=B] with C > 0 and V > 0 in plain steps, found '" + text + "'");
  };
  bool c = false, v = false;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t at = item.find('=');
    char* end = nullptr;
    const double value = at == std::string::npos ? 0 : std::strtod(item.c_str() + at + 1, &end);
    if (at == std::string::npos || end == item.c_str() + at + 1 || *end || !(value > 0 && value <= 1e6))
      refuse("'" + item + "'");
    const std::string key = item.substr(0, at);
    if (key == "c") {
      costs.draft_cost = value;
      c = true;
    } else if (key == "v") {
      costs.verify_cost = value;
      v = true;
    } else if (key == "batch" && value == std::floor(value)) {
      costs.batch = static_cast<int>(value);
    } else {
      refuse("'" + item + "'");
    }
  }
  if (!c || !v) refuse(c ? "v is missing" : "c is missing");
  return costs;
}

ValidationReport::Prediction predicted(const EngineCosts& costs, const AcceptanceCounts& counts, double alpha,
                                       int max_k) {
  const bool measured = !counts.reached_at.empty() && counts.reached_at[0] > 0;
  ValidationReport::Prediction best{costs.batch, costs.draft_cost, costs.verify_cost, 1, 0, {}};
  std::map<int, double> verify_cost;
  for (int k = 1; k <= max_k; ++k) {
    verify_cost[k] = costs.verify_cost;
    const double speedup = predicted_speedup(measured ? predicted_length(counts, k) : constant_length(alpha, k), k,
                                             costs.draft_cost, costs.verify_cost);
    if (speedup > best.speedup) std::tie(best.k, best.speedup) = std::pair(k, speedup);
  }
  best.break_even = least_acceptance(costs.draft_cost, verify_cost);
  return best;
}

SpeedupRuns measure_speedup(const decode::ModelPair& models, std::span<const std::vector<int32_t>> prompts,
                            const SpeedupOptions& options, const Instruments& instruments, const ProgressFn& progress) {
  const auto& [target, draft] = models;
  const Clock& clock = instruments.clock;
  Learnt learnt;
  decode::Stepper plain(target, nullptr), speculative(target, &draft, &learnt.costs, &clock);
  const size_t n = prompts.size(), count = n * static_cast<size_t>(options.rounds);
  const int64_t room = std::min(target.max_length(), draft.max_length()) - options.tokens;
  const auto run_pair = [&](size_t at, int64_t tokens) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while measuring the speed-up");
    const std::vector<std::vector<int32_t>> prompt = {cut(prompts[at % n], room)};
    GroupOptions group{options.speculation, {.max_tokens = tokens, .sampling = options.sampling}, options.seed + at};
    GroupRun drafted(speculative, prompt, group, &learnt, clock);
    group.speculation.k = 0;
    GroupRun normal(plain, prompt, group, nullptr, clock);
    run_side_by_side(normal, drafted);
    return PairFigures{normal.figures(), drafted.figures()};
  };
  if (progress) progress({"speed", 0, static_cast<double>(count), "runs", ""});
  // The first run warms caches and buffers; the second shows how long a run takes.
  run_pair(0, std::min<int64_t>(options.tokens, 16));
  const PairsOptions pairs = gate_pairs(options.threads, run_pair(0, options.tokens).normal.seconds);
  double done = 0;
  const double total = static_cast<double>(count) * pairs.repeats;
  const auto timed = [&](size_t at) {
    PairFigures run = run_pair(at, options.tokens);
    ++done;
    if (progress)
      progress({"speed", std::min(done, total), total, "runs",
                done > total ? "repeating runs that other processes disturbed" : ""});
    return run;
  };
  return sum_by_prompt(time_pairs(count, pairs, timed, instruments), n);
}

PairsOptions gate_pairs(int threads, double plain_seconds) {
  PairsOptions pairs;
  pairs.threads = threads;
  pairs.repeats = repeats_of(plain_seconds);
  pairs.tolerance = 0.15;
  return pairs;
}

SpeedupRuns sum_by_prompt(const TimedPairs& pairs, size_t prompts) {
  SpeedupRuns sums;
  sums.machine = pairs.machine;
  for (size_t i = 0; i < prompts; ++i) {
    double normal = 0, speculative = 0;
    for (size_t at = i; at < pairs.runs.size(); at += prompts) {
      if (!pairs.clean[at] && !pairs.machine.busy) continue;
      normal += pairs.runs[at].normal.seconds;
      speculative += pairs.runs[at].speculative.seconds;
    }
    if (!(speculative > 0)) continue;
    sums.normal.push_back(normal);
    sums.speculative.push_back(speculative);
  }
  return sums;
}

Estimate speedup(std::span<const double> normal, std::span<const double> speculative) {
  const auto ratio = [&](std::span<const size_t> units) {
    double above = 0, below = 0;
    for (const size_t u : units) {
      above += normal[u];
      below += speculative[u];
    }
    return above / below;
  };
  // The interval uses the quantile at 0.965 (1.8119 standard deviations of a normal distribution) instead of 0.95,
  // because times of prompts are skewed: an answer with few accepted tokens takes much longer, and a sample without
  // such a prompt gives too small a mean and too narrow an interval.
  return bootstrap(normal.size(), ratio, 2 * expanded_tail(normal.size(), 1.8119106729525978));
}

std::vector<size_t> choose_prompts(std::span<const TokenRow> rows, int64_t count) {
  std::vector<size_t> first, others;  // first: one row of every conversation; others: all further rows
  std::set<std::string> seen;
  for (size_t i = 0; i < rows.size(); ++i)
    (rows[i].conversation.empty() || seen.insert(rows[i].conversation).second ? first : others).push_back(i);
  const size_t want = std::min<size_t>(static_cast<size_t>(std::max<int64_t>(count, 0)), rows.size());
  std::vector<size_t> chosen;
  const size_t spread = std::min(want, first.size());
  for (size_t i = 0; i < spread; ++i) chosen.push_back(first[i * first.size() / spread]);
  for (size_t i = 0; chosen.size() < want; ++i) chosen.push_back(others[i]);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<int32_t> prompt_of(const TokenRow& row) {
  const int64_t n = std::min<int64_t>(std::max<int64_t>(row.prompt_tokens, 1), static_cast<int64_t>(row.tokens.size()));
  return {row.tokens.begin(), row.tokens.begin() + n};
}

}  // namespace specdec::deploy
