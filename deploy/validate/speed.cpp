#include "deploy/validate/speed.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "engine/decode/generate.h"

namespace specdec::deploy {

namespace {

// Passes everything on and notes when the target is asked: what came before in a step was drafting.
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
  if (room < 1) throw Error(ErrorKind::kData, "the models' context is too short for the tokens to be measured: ask for fewer");
  return {prompt.begin(), prompt.begin() + std::min<int64_t>(room, static_cast<int64_t>(prompt.size()))};
}

struct Lane {
  decode::SeededRandomness randomness;
  std::unique_ptr<decode::KController> controller;
  decode::Sequence sequence;
  explicit Lane(uint64_t seed) : randomness(seed) {}
};

// Sequences of one batch size; every timed step sets its own K.
class Bench {
 public:
  Bench(Marked& target, decode::CausalModel& draft, std::span<const std::vector<int32_t>> prompts, int batch, int repetition,
        const CostOptions& options, const Clock& clock)
      : target_(target), clock_(clock), stepper_(target, &draft) {
    // Warm-up step and max_k + 1 timed ones emit at most K + 1 tokens each.
    const int64_t emitted = (options.max_k + 1) * (options.max_k + 2) / 2 + 4;
    const int64_t room = std::min(target.max_length(), draft.max_length()) - emitted - options.max_k;
    for (int i = 0; i < batch; ++i) {
      lanes_.push_back(std::make_unique<Lane>(options.seed + static_cast<uint64_t>(repetition * batch + i)));
      decode::Sequence& s = lanes_.back()->sequence;
      s.tokens = cut(prompts[static_cast<size_t>(repetition * batch + i) % prompts.size()], room);
      s.sampling = options.sampling;
      s.verify = options.verify;
      s.randomness = &lanes_.back()->randomness;
      s.remaining = emitted + options.max_k;
      stepper_.start(s);
      batch_.push_back(&s);
    }
  }
  ~Bench() {
    for (auto* s : batch_) stepper_.finish(*s);
  }

  struct Times {
    double drafting = 0, rest = 0;
    bool full = true;  // every sequence drafted K tokens
  };
  Times step(int k) {
    for (auto& lane : lanes_) {
      decode::ControllerOptions options;
      options.fixed_k = k;
      options.max_k = std::max(k, 1);
      lane->controller = std::make_unique<decode::KController>(options, nullptr);
      lane->sequence.controller = lane->controller.get();
    }
    const double start = clock_.seconds();
    stepper_.step(batch_);
    const double end = clock_.seconds();
    Times t{target_.asked - start, end - target_.asked, true};
    if (k == 0) t = {0, end - start, true};
    for (const auto* s : batch_) t.full = t.full && s->drafted == k;
    return t;
  }

 private:
  Marked& target_;
  const Clock& clock_;
  decode::Stepper stepper_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<decode::Sequence*> batch_;
};

struct Samples {
  std::map<int, std::vector<double>> rest;  // K → seconds
  std::vector<double> drafting;             // seconds a drafted token
};

Samples sample_batch(Marked& target, decode::CausalModel& draft, std::span<const std::vector<int32_t>> prompts, int batch,
                     const CostOptions& options, const Clock& clock) {
  Samples samples;
  const double begun = clock.seconds();
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while measuring costs");
    if (repetition >= 3 && clock.seconds() - begun > options.seconds_per_batch) break;
    Bench bench(target, draft, prompts, batch, repetition, options, clock);
    bench.step(1);  // the draft reads the prompt
    // K up and down in turn, plain last: no K is always measured on the longest context.
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

CostTable measure_costs(decode::CausalModel& target, decode::CausalModel& draft, std::span<const std::vector<int32_t>> prompts,
                        const CostOptions& options, const Clock& clock, const ProgressFn& progress) {
  if (prompts.empty()) throw Error(ErrorKind::kData, "speed: no prompts to measure on");
  CostTable table;
  Marked marked(target, clock);
  double done = 0;
  for (const int batch : options.batches) {
    const Samples samples = sample_batch(marked, draft, prompts, batch, options, clock);
    const auto plain = samples.rest.find(0);
    const double unit = plain == samples.rest.end() ? 0 : quantile(plain->second, 0.5);
    if (unit > 0 && !samples.drafting.empty()) {
      table.plain_seconds[batch] = unit;
      table.draft_cost[batch] = quantile(samples.drafting, 0.5) / unit;
      for (const auto& [k, seconds] : samples.rest)
        if (k > 0) table.verify_cost[batch][k] = quantile(seconds, 0.5) / unit;
    }
    if (progress) progress({"costs", ++done, static_cast<double>(options.batches.size()), "batch sizes", ""});
  }
  return table;
}

double predicted_length(const AcceptanceCounts& counts, int k) {
  std::vector<double> overlaps;
  for (size_t at = 0; at < static_cast<size_t>(std::max(k, 0)); ++at)
    overlaps.push_back(at < counts.reached_at.size() && counts.reached_at[at] > 0 ? counts.overlap(at) : at > 0 ? overlaps.back() : 0);
  return expected_length(overlaps);
}

std::vector<ValidationReport::TableRow> speed_table(const CostTable& costs, const AcceptanceCounts& counts) {
  std::vector<ValidationReport::TableRow> table;
  for (const auto& [batch, row] : costs.verify_cost)
    for (const auto& [k, v] : row)
      table.push_back({batch, k, predicted_speedup(predicted_length(counts, k), k, costs.draft_cost.at(batch), v)});
  return table;
}

std::vector<std::array<int, 3>> speed_schedule(const std::vector<ValidationReport::TableRow>& table) {
  std::map<int, std::pair<double, int>> best;  // batch → speed-up, K
  for (const auto& row : table) {
    const auto it = best.try_emplace(row.batch, 1.0, 0).first;
    if (row.speedup > it->second.first) it->second = {row.speedup, row.k};
  }
  std::vector<std::array<int, 3>> schedule;
  for (const auto& [batch, choice] : best) {
    if (!schedule.empty()) schedule.back()[1] = batch - 1;
    if (!schedule.empty() && schedule.back()[2] == choice.second)
      schedule.back()[1] = batch;
    else
      schedule.push_back({batch, batch, choice.second});
  }
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

// v by K. The speed-up rises with alpha: bisection.
std::optional<double> least_acceptance(double draft_cost, const std::map<int, double>& verify_cost) {
  const auto pays = [&](double alpha) {
    return std::any_of(verify_cost.begin(), verify_cost.end(),
                       [&](const auto& v) { return predicted_speedup(constant_length(alpha, v.first), v.first, draft_cost, v.second) > 1; });
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
    throw Error(ErrorKind::kUsage, "--predict: " + why + ": expected c=C,v=V[,batch=B] with C > 0 and V > 0 in plain steps, found '" + text + "'");
  };
  bool c = false, v = false;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t at = item.find('=');
    char* end = nullptr;
    const double value = at == std::string::npos ? 0 : std::strtod(item.c_str() + at + 1, &end);
    if (at == std::string::npos || end == item.c_str() + at + 1 || *end || !(value > 0 && value <= 1e6)) refuse("'" + item + "'");
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

ValidationReport::Prediction predicted(const EngineCosts& costs, const AcceptanceCounts& counts, double alpha, int max_k) {
  const bool measured = !counts.reached_at.empty() && counts.reached_at[0] > 0;
  ValidationReport::Prediction best{costs.batch, costs.draft_cost, costs.verify_cost, 1, 0, {}};
  std::map<int, double> verify_cost;
  for (int k = 1; k <= max_k; ++k) {
    verify_cost[k] = costs.verify_cost;
    const double speedup = predicted_speedup(measured ? predicted_length(counts, k) : constant_length(alpha, k), k, costs.draft_cost, costs.verify_cost);
    if (speedup > best.speedup) std::tie(best.k, best.speedup) = std::pair(k, speedup);
  }
  best.break_even = least_acceptance(costs.draft_cost, verify_cost);
  return best;
}

int repeats_of(double plain_seconds) { return plain_seconds < 0.25 ? 3 : 1; }

SpeedupRuns measure_speedup(decode::CausalModel& target, decode::CausalModel& draft,
                            std::span<const std::vector<int32_t>> prompts, const SpeedupOptions& options, const Clock& clock,
                            const ProgressFn& progress) {
  SpeedupRuns runs;
  runs.normal.resize(prompts.size());
  runs.speculative.resize(prompts.size());
  decode::CostModel costs;
  decode::Stepper plain(target, nullptr), speculative(target, &draft, &costs, &clock);
  const auto run = [&](size_t i, bool with_draft, int64_t tokens, int round) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while measuring the speed-up");
    decode::GenerateRequest request;
    request.prompt = cut(prompts[i], target.max_length() - tokens);
    request.max_tokens = tokens;
    request.sampling = options.sampling;
    request.speculation = options.speculation;
    if (!with_draft) request.speculation.k = 0;
    request.seed = options.seed + static_cast<uint64_t>(round) * prompts.size() + i;
    return decode::generate(with_draft ? speculative : plain, request, with_draft ? &costs : nullptr, clock).seconds;
  };
  // Warm caches and buffers; the second plain run tells how long one takes.
  run(0, true, std::min<int64_t>(options.tokens, 16), 0);
  run(0, false, std::min<int64_t>(options.tokens, 16), 0);
  const int repeats = repeats_of(run(0, false, options.tokens, 0));
  double done = 0;
  for (int round = 0; round < options.rounds; ++round)
    for (size_t i = 0; i < prompts.size(); ++i) {
      double shortest[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const bool draft_first = (static_cast<size_t>(round + repeat) + i) % 2;
        for (const bool with_draft : {draft_first, !draft_first})
          shortest[with_draft] = std::min(shortest[with_draft], run(i, with_draft, options.tokens, round));
      }
      runs.normal[i] += shortest[false];
      runs.speculative[i] += shortest[true];
      if (progress) progress({"speed", ++done, static_cast<double>(prompts.size()) * options.rounds, "runs", ""});
    }
  return runs;
}

Estimate speedup(std::span<const double> normal, std::span<const double> speculative) {
  return bootstrap(normal.size(), [&](std::span<const size_t> units) {
    double above = 0, below = 0;
    for (const size_t u : units) {
      above += normal[u];
      below += speculative[u];
    }
    return above / below;
  });
}

std::vector<size_t> choose_prompts(std::span<const TokenRow> rows, int64_t count) {
  std::vector<size_t> first, others;  // first: one of every conversation
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
