// Presents the result of `specdec bench`: verdict, JSON, HTML and Markdown page, text.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/version.h"
#include "deploy/bench/bench.h"
#include "deploy/report/gate_checks.h"
#include "deploy/validate/gate.h"

namespace specdec::deploy {

namespace {

std::string name_of_k(int k) { return k < 0 ? "auto" : std::to_string(k); }
bool has_interval(const BenchRow& row) { return row.speedup.n >= kLeastUnits; }

std::string label(const BenchRow& row) { return row.normal() ? "normal" : row.name + ", K " + name_of_k(row.k); }
std::string gain(const BenchRow& row) {
  return decimals(row.speedup.value, 2) + (has_interval(row) ? " " + interval_text(row.speedup.ci, 2) : "");
}

Json k_json(int k) { return k < 0 ? Json("auto") : Json(k); }
const Json kAnyK = {{"type", {"integer", "string"}}};

// The JSON object "quality" of a row. task_score is always null, because bench runs no task with known right answers.
struct Quality {
  int64_t greedy_identical = 0, greedy_prompts = 0, near_ties = 0, differences = 0;
  double sampled_p_value = 1;
  std::optional<double> task_score = {};
};
void visit_fields(Fields& f, Quality& q) {
  f.type("Quality", "Whether a run's output is the target's own.");
  f("greedy_identical", q.greedy_identical, kAnyCount);
  f("greedy_prompts", q.greedy_prompts, kAnyCount);
  f("near_ties", q.near_ties, kAnyCount);
  f("differences", q.differences, kAnyCount);
  f("sampled_p_value", q.sampled_p_value, {0, 1});
  f("task_score", q.task_score);
}

struct Ranked {
  std::string draft;
  int k = 0, batch = 1;
  double speedup = 0, draft_efficiency = 0;
};
void visit_fields(Fields& f, Ranked& best) {
  f.type("Ranked", "The best run of one draft.");
  f("draft", best.draft);
  Json k = k_json(best.k);
  f.json("k", k, kAnyK);
  f("batch", best.batch);
  f("speedup", best.speedup);
  f("draft_efficiency", best.draft_efficiency);
}

std::string rate(const BenchRow& r) { return format("%.0f", r.tokens_per_second()); }
std::string accepted(const BenchRow& r) { return r.normal() ? "–" : std::to_string(r.counts.accepted); }
std::string rejected(const BenchRow& r) {
  return r.normal() ? "–" : std::to_string(r.counts.drafted - r.counts.accepted);
}
std::string length(const BenchRow& r) { return r.normal() ? "–" : format("%.2f", r.counts.length()); }
std::string same_text(const BenchRow& r) {
  return r.normal() ? "–"
                    : format("%lld / %lld", static_cast<long long>(r.greedy_identical),
                             static_cast<long long>(r.greedy_prompts));
}

// Returns two tables, because a single table would be wider than the page.
std::vector<Table> tables_of(const std::vector<BenchRow>& rows) {
  Table speed{
      "Runs: speed",
      {"", "batch", "tokens/s", "speed-up", "predicted", "accepted", "rejected", "tokens/step", "same greedy text"},
      {},
      false};
  Table latency{
      "Runs: latency and memory", {"", "batch", "ttft ms", "itl p50 ms", "p95", "p99", "memory MiB"}, {}, false};
  for (const BenchRow& r : rows) {
    const std::string batch = std::to_string(r.batch);
    speed.rows.push_back({label(r), batch, rate(r), r.normal() ? "1.00" : gain(r),
                          r.predicted > 0 ? format("%.2f", r.predicted) : "–", accepted(r), rejected(r), length(r),
                          same_text(r)});
    latency.rows.push_back({label(r), batch, format("%.1f", r.ttft_ms), format("%.2f", r.itl_p50),
                            format("%.2f", r.itl_p95), format("%.2f", r.itl_p99),
                            format("%.1f", static_cast<double>(r.memory_bytes) / (1 << 20))});
  }
  return {speed, latency};
}

// Charts speed-up against K, one chart per draft with a curve per batch size. The rightmost point of a curve, `auto`,
// is the speed-up with a K that the controller chooses.
std::vector<Chart> charts(const BenchResult& result) {
  std::vector<Chart> out;
  std::vector<std::string> drafts;
  std::map<std::string, std::string> names;
  std::set<int> ks, batches;
  bool automatic = false;
  for (const BenchRow& row : result.rows) {
    batches.insert(row.batch);
    if (row.normal()) continue;
    if (names.emplace(row.draft, row.name).second) drafts.push_back(row.draft);
    if (row.k < 0)
      automatic = true;
    else
      ks.insert(row.k);
  }
  std::vector<int> order(ks.begin(), ks.end());
  if (automatic) order.push_back(-1);
  for (const std::string& draft : drafts) {
    Chart chart{"Speed-up: " + names[draft],
                "K, draft tokens per step",
                "speed-up",
                Chart::Kind::kLines,
                {},
                {},
                {},
                1.0,
                "plain decoding",
                {},
                {}};
    for (const int k : order) {
      chart.x.push_back(static_cast<double>(chart.x.size()));
      chart.x_names.push_back(name_of_k(k));
    }
    for (const int batch : batches) {
      Series line{"batch " + std::to_string(batch), {}, {}, {}, false};
      for (const int k : order) {
        const auto it = std::find_if(result.rows.begin(), result.rows.end(), [&](const BenchRow& r) {
          return r.draft == draft && r.k == k && r.batch == batch;
        });
        const bool there = it != result.rows.end(), interval = there && has_interval(*it);
        constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
        line.y.push_back(there ? it->speedup.value : kNone);
        line.low.push_back(interval ? it->speedup.ci.low : kNone);
        line.high.push_back(interval ? it->speedup.ci.high : kNone);
      }
      chart.series.push_back(line);
    }
    out.push_back(chart);
  }
  return out;
}

}  // namespace

void visit_fields(Fields& f, BenchRow& r) {
  f.type("BenchRow", "One run.");
  std::optional<std::string> draft;
  if (!r.normal()) draft = r.draft;
  f("draft", draft);
  bool normal = r.normal();
  f.one_of("mode", normal, {{true, "normal"}, {false, "speculative"}});
  Json k = k_json(r.k);
  f.json("k", k, kAnyK);
  f("batch", r.batch);
  f("tokens", r.tokens);
  f("seconds", r.seconds);
  f.derived("tokens_per_second", r.tokens_per_second());
  f("ttft_ms", r.ttft_ms);
  f.group("itl_ms", [&](Fields& itl) {
    itl.type("Latencies", "Milliseconds between two deliveries to a sequence.");
    itl("p50", r.itl_p50);
    itl("p95", r.itl_p95);
    itl("p99", r.itl_p99);
  });
  f("drafted", r.counts.drafted);
  f("accepted", r.counts.accepted);
  f.derived("rejected", r.counts.drafted - r.counts.accepted);
  f.derived("length", r.counts.length());
  f("speedup", r.speedup.value);
  std::optional<double> predicted;
  if (r.predicted > 0) predicted = r.predicted;
  f("predicted_speedup", predicted);
  f("memory_bytes", r.memory_bytes);
  std::optional<Interval> ci;
  if (has_interval(r)) ci = r.speedup.ci;
  f("ci", ci);
  std::optional<Quality> quality;
  if (!normal) quality = {r.greedy_identical, r.greedy_prompts, r.near_ties, r.differences, r.sampled_p_value};
  f("quality", quality);
}

void visit_fields(Fields& f, BenchResult& r) {
  f.type("BenchResult", "Normal decoding against speculative decoding.");
  f.schema("bench", 1);
  using enum Verdict;
  visit_verdict(f, r.verdict, {kFaster, kNotWorthIt, kInconclusive, kNotLossless, kStale});
  f("started", r.started);
  f("seconds", r.seconds);
  std::string version = kToolVersion;
  f("tool_version", version);
  f.json("inputs", r.inputs);
  f("reason", r.reason);
  f("prompts", r.prompts);
  f("answer_tokens", r.answer_tokens);
  f("rounds", r.rounds);
  f("machine", r.machine);
  f("rows", r.rows);
  std::vector<Ranked> ranking;
  for (const size_t i : r.ranking) {
    const BenchRow& row = r.rows[i];
    ranking.push_back({row.draft, row.k, row.batch, row.speedup.value, row.counts.draft_efficiency()});
  }
  f("ranking", ranking);
  f("notes", r.notes);
}

void judge_bench(BenchResult& result) {
  int smallest = 0;
  for (const BenchRow& row : result.rows) smallest = smallest == 0 ? row.batch : std::min(smallest, row.batch);
  std::map<std::string, size_t> best;  // draft → its fastest row at the smallest batch size
  bool lossless = true;
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const BenchRow& row = result.rows[i];
    if (row.normal()) continue;
    lossless = lossless && row.differences == 0 && row.sampled_p_value > kSampledLimit;
    if (row.batch != smallest) continue;
    const auto it = best.try_emplace(row.draft, i).first;
    if (row.speedup.value > result.rows[it->second].speedup.value) it->second = i;
  }
  result.ranking.clear();
  for (const auto& [draft, row] : best) result.ranking.push_back(row);
  std::sort(result.ranking.begin(), result.ranking.end(),
            [&](size_t a, size_t b) { return result.rows[a].speedup.value > result.rows[b].speedup.value; });
  if (!lossless) {
    result.verdict = Verdict::kNotLossless;
    result.reason = "output with a draft differs from the target's own: see quality";
    return;
  }
  if (result.ranking.empty()) {
    result.verdict = Verdict::kInconclusive;
    result.reason = "no speculative run";
    return;
  }
  const BenchRow& first = result.rows[result.ranking.front()];
  if (result.machine.busy) {
    result.verdict = Verdict::kInconclusive;
    result.reason = "the machine was busy: " + others_of(result.machine) +
                    " while the runs were timed; run it again on an idle machine";
    return;
  }
  const double low = has_interval(first) ? first.speedup.ci.low : 0,
               high = has_interval(first) ? first.speedup.ci.high : first.speedup.value;
  result.verdict = low > 1 ? Verdict::kFaster : high <= 1 ? Verdict::kNotWorthIt : Verdict::kInconclusive;
  result.reason = "fastest at batch " + std::to_string(smallest) + ": " + label(first) + ", speed-up " + gain(first);
}

int bench_exit_code(Verdict verdict) {
  switch (verdict) {
    // A benchmark that ran to its end has succeeded, whether speculation or plain decoding was faster.
    case Verdict::kNotWorthIt:
    case Verdict::kInconclusive:
      return 0;
    default:
      return exit_code(verdict);
  }
}

Json to_json(const BenchResult& result) { return json_of(result); }

Page bench_page(const BenchResult& r) {
  Page page;
  page.title = "Normal against speculative decoding";
  page.verdict = readable(to_string(r.verdict));
  page.verdict_class = class_of(r.verdict);
  page.reason = r.reason;
  page.data = to_json(r);
  for (const size_t i : r.ranking) {
    const BenchRow& row = r.rows[i];
    page.tiles.push_back({row.name, format("%.2f ×", row.speedup.value),
                          gain(row) + ", K " + name_of_k(row.k) +
                              format(", batch %d, %.2f tokens per step", row.batch, row.counts.length())});
  }
  Section speed{
      "Speed",
      format("%lld prompts with %lld tokens each (EOS is ignored) in %lld rounds. Every run is timed step by step "
             "beside a normal run of the same prompts; short runs are repeated, and the shortest of three "
             "counts. Times run from the first step to the last token. ttft, the time to the first token, "
             "includes the prompt. itl, the inter-token latency, is the time between two deliveries to a "
             "sequence, each of one or more tokens.",
             static_cast<long long>(r.prompts), static_cast<long long>(r.answer_tokens),
             static_cast<long long>(r.rounds)),
      charts(r),
      {}};
  speed.tables = tables_of(r.rows);
  if (!r.rows.empty()) page.sections.push_back(speed);
  Section inputs{"Inputs", "", {}, {}};
  Table what{"", {"what", "value"}, {}, true};
  for (const auto& [key, value] : r.inputs.items())
    what.rows.push_back({key, value.is_string() ? value.get<std::string>()
                                                : value.dump(-1, ' ', false, Json::error_handler_t::replace)});
  what.rows.push_back({"started", r.started});
  if (r.machine.runs > 0) what.rows.push_back({"machine", machine_line(r.machine)});
  for (const std::string& note : r.notes) what.rows.push_back({"note", note});
  inputs.tables.push_back(what);
  page.sections.push_back(inputs);
  return page;
}

std::string row_text(const BenchRow& row) {
  return label(row) + ", batch " + std::to_string(row.batch) + ": " +
         (row.normal() ? "" : "speed-up " + gain(row) + ", ") + rate(row) + " tokens/s";
}

std::string bench_text(const BenchResult& r) {
  std::string out = readable(to_string(r.verdict)) + ": " + r.reason + "\n\n";
  size_t width = 6;
  for (const BenchRow& row : r.rows) width = std::max(width, label(row).size());
  width = std::min<size_t>(width, 60);
  const std::string head =
      format("  %-*s %5s %9s %18s %8s %8s %9s %9s %7s  %s\n", static_cast<int>(width), "", "batch", "tokens/s",
             "speed-up", "ttft ms", "itl p50", "accepted", "rejected", "tok/step", "same greedy text");
  if (!r.rows.empty()) out += head;
  for (const BenchRow& row : r.rows) {
    std::string name = label(row);
    if (name.size() > width) name = "…" + name.substr(name.size() - width + 1);
    const int pad = static_cast<int>(width) + (name.rfind("…", 0) == 0 ? 2 : 0);
    const auto plain_dash = [&](const std::string& cell) { return row.normal() ? "-" : cell; };
    out +=
        format("  %-*s %5d %9s %18s %8.1f %8.2f %9s %9s %7s  %s\n", pad, name.c_str(), row.batch, rate(row).c_str(),
               row.normal() ? "1.00" : gain(row).c_str(), row.ttft_ms, row.itl_p50, plain_dash(accepted(row)).c_str(),
               plain_dash(rejected(row)).c_str(), plain_dash(length(row)).c_str(), plain_dash(same_text(row)).c_str());
  }
  if (r.machine.runs > 0) out += "  machine: " + machine_line(r.machine) + "\n";
  for (const std::string& note : r.notes) out += "  note: " + note + "\n";
  return out;
}

void write_bench(const BenchResult& result, const std::filesystem::path& directory) {
  make_private_directory(directory);
  write_file_atomic(directory / "bench.json",
                    to_json(result).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  write_pages(bench_page(result), directory, "bench");
}

}  // namespace specdec::deploy
