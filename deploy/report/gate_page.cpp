#include "deploy/report/gate_page.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "base/format.h"
#include "base/schema/gate_summary.h"
#include "deploy/report/gate_checks.h"

namespace specdec::deploy {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string count(int64_t n) { return std::to_string(n); }

void push(Series& s, const Estimate& e) {
  s.y.push_back(e.value);
  s.low.push_back(e.ci.low);
  s.high.push_back(e.ci.high);
}

// Returns the tokens per step with K draft tokens, predicted from the measured overlaps (exact for token verification).
double length_at(const AcceptanceCounts& c, size_t k) {
  double length = 1, product = 1;
  for (size_t i = 0; i < k; ++i) length += product *= c.overlap(i);
  return length;
}

// Charts acceptance, with its interval, against the number of scored requests.
Chart sequence_chart(const ValidationReport& r) {
  Chart chart{"Acceptance and its interval by number of scored requests",
              "requests scored",
              "acceptance",
              Chart::Kind::kLines,
              {},
              {},
              {},
              r.floor,
              "floor " + decimals(r.floor, 2),
              {},
              {}};
  chart.series = {{"acceptance", {}, {}, {}, false}, {"lower end", {}, {}, {}, true}, {"upper end", {}, {}, {}, true}};
  double low = r.floor, high = r.floor;
  for (const auto& p : r.sequence) {
    chart.x.push_back(static_cast<double>(p.requests));
    chart.series[0].y.push_back(p.alpha);
    low = std::min(low, p.alpha);
    high = std::max(high, p.alpha);
  }
  // The first intervals are too wide to be useful. So the axis shows the range of the later intervals, and the curves
  // of the intervals' lower and upper ends start where they enter this range.
  const auto& late = r.sequence[r.sequence.size() / 3];
  low = std::max(0.0, std::min(low, late.low));
  high = std::min(1.0, std::max(high, late.high));
  for (const auto& p : r.sequence) {
    chart.series[1].y.push_back(p.low < low ? kNone : p.low);
    chart.series[2].y.push_back(p.high > high ? kNone : p.high);
  }
  if (low == 0) chart.y_min = 0;
  if (high == 1) chart.y_max = 1;
  return chart;
}

// Returns the acceptance floor that all segments share, for a line in the chart; nothing if floors differ or are
// missing. The table lists the floor of each segment.
std::optional<double> common_floor(const std::vector<SegmentFigure>& segments) {
  for (const SegmentFigure& s : segments)
    if (!s.floor || s.floor != segments.front().floor) return std::nullopt;
  return segments.front().floor;
}

Section acceptance_section(const ValidationReport& r) {
  Section s{"Acceptance",
            "Acceptance is Σ min(p, q) at every answer position, teacher-forced: the mean within a request, then over "
            "requests. Intervals are 90 % intervals over conversations, not over tokens.",
            {},
            {}};
  constexpr int kBins = 25;
  Chart histogram{"Requests by acceptance",
                  "acceptance of the request",
                  "requests",
                  Chart::Kind::kBars,
                  {},
                  {},
                  {{"requests", {}, {}, {}, false}},
                  {},
                  "",
                  0.0,
                  {}};
  histogram.series[0].y.assign(kBins, 0);
  for (int i = 0; i < kBins; ++i) histogram.x.push_back((i + 0.5) / kBins);
  for (const double a : r.request_alphas)
    ++histogram.series[0].y[static_cast<size_t>(std::clamp(static_cast<int>(a * kBins), 0, kBins - 1))];
  if (!r.sequence.empty()) s.charts.push_back(sequence_chart(r));
  if (!r.request_alphas.empty()) s.charts.push_back(histogram);
  if (!r.segments.empty()) {
    Chart chart{"Acceptance by segment",
                "",
                "acceptance",
                Chart::Kind::kBars,
                {},
                {},
                {{"acceptance", {}, {}, {}, false}},
                {},
                "",
                0.0,
                1.0};
    if (const auto floor = common_floor(r.segments))
      chart.rule = floor, chart.rule_name = "floor " + decimals(*floor, 2);
    Table table{
        "",
        {"segment", "acceptance", "interval", "floor", "requests", "entropy, nats per token", "accepted length"},
        {},
        false};
    for (const SegmentFigure& segment : r.segments) {
      chart.x.push_back(static_cast<double>(chart.x.size()));
      chart.x_names.push_back(segment.name);
      push(chart.series[0], segment.alpha);
      table.rows.push_back({segment.name, decimals(segment.alpha.value), interval_text(segment.alpha.ci),
                            segment.floor ? decimals(*segment.floor, 2) : "–", count(segment.alpha.n),
                            decimals(segment.entropy, 2),
                            segment.rollout.counts.steps ? decimals(segment.rollout.counts.length(), 2) : "–"});
    }
    s.charts.push_back(chart);
    s.tables.push_back(table);
  }
  return s;
}

Section rollout_section(const ValidationReport& r, const ReportDetails& d) {
  const AcceptanceCounts& c = r.rollout.counts;
  Section s{
      "Roll-outs",
      format("The server's own step ran at K = %d with %s verification: %lld steps while the target answered the same "
             "prompts. Overlap is the figure that the server exports and that the monitor compares with.",
             r.rollout.k, r.rollout.verify.c_str(), static_cast<long long>(c.steps)),
      {},
      {}};
  Chart positions{"Acceptance by position",
                  "draft position",
                  "",
                  Chart::Kind::kLines,
                  {},
                  {},
                  {{"overlap", {}, {}, {}, false},
                   {"conditional (accepted / reached)", {}, {}, {}, true},
                   {"marginal (accepted / drafted)", {}, {}, {}, false}},
                  {},
                  "",
                  0.0,
                  1.0};
  Chart lengths{"Tokens per step by K",
                "K, draft tokens per step",
                "accepted length",
                Chart::Kind::kLines,
                {},
                {},
                {{"from measured overlap", {}, {}, {}, false}, {"measured", {}, {}, {}, false}},
                {},
                "",
                1.0,
                {}};
  Table table{"", {"position", "reached", "accepted", "overlap", "interval", "conditional", "marginal"}, {}, false};
  for (size_t i = 0; i < c.reached_at.size(); ++i) {
    if (c.reached_at[i] == 0) break;
    const Estimate overlap = i < d.overlap_at.size()
                                 ? d.overlap_at[i]
                                 : Estimate{c.overlap(i), {c.overlap(i), c.overlap(i)}, c.reached_at[i]};
    positions.x.push_back(static_cast<double>(i + 1));
    push(positions.series[0], overlap);
    positions.series[1].y.push_back(c.conditional(i));
    positions.series[2].y.push_back(c.marginal(i));
    lengths.x.push_back(static_cast<double>(i + 1));
    lengths.series[0].y.push_back(length_at(c, i + 1));
    lengths.series[1].y.push_back(static_cast<int>(i + 1) == r.rollout.k ? c.length() : kNone);
    table.rows.push_back({count(static_cast<int64_t>(i + 1)), count(c.reached_at[i]), count(c.accepted_at[i]),
                          decimals(overlap.value), interval_text(overlap.ci), decimals(c.conditional(i)),
                          decimals(c.marginal(i))});
  }
  s.charts = {positions, lengths};
  s.tables.push_back(table);
  return s;
}

std::string range_of(const ScheduleRow& row) {
  return std::to_string(row.low) + (row.low == row.high ? "" : "–" + std::to_string(row.high));
}

bool was_busy(const ValidationReport& r) { return r.machine && r.machine->busy; }
// Adds a remark to the title of a chart or table if its times were measured while other processes used the machine.
std::string timed(const ValidationReport& r, const std::string& title) {
  return title + (was_busy(r) ? " (the machine was busy)" : "");
}

std::string prediction_warning(const ValidationReport& r) {
  return format(
      "The prediction %.2f lies outside the measured interval: trust the measurement, and take the predictions for "
      "other batch sizes with care.",
      r.predicted_speedup);
}

// Charts the speed-ups on which the schedule of K is based: measured at batch 1, predicted for larger batches.
Chart batch_chart(const ValidationReport& r) {
  Chart chart{timed(r, "Speed-up by batch size: measured at 1, predicted for the others"),
              "batch size, sequences",
              "speed-up",
              Chart::Kind::kBars,
              {},
              {},
              {{"at the best K", {}, {}, {}, false}},
              1.0,
              "break-even",
              0.0,
              {}};
  for (const ScheduleRow& row : r.schedule) {
    if (row.figure_k == 0) continue;
    const Interval none{kNone, kNone};
    chart.x.push_back(static_cast<double>(chart.x.size()));
    chart.x_names.push_back(range_of(row) + (row.measured ? " measured" : " predicted"));
    push(chart.series[0], {row.speedup, row.measured ? row.ci : none, 0});
  }
  return chart;
}

// Lists the K that the schedule uses for each batch size, and the speed-up on which this choice is based.
Table schedule_table(const ValidationReport& r) {
  Table table{timed(r, "Schedule: the K to serve with"), {"batch", "K", "judged by", "speed-up"}, {}, true};
  for (const ScheduleRow& row : r.schedule) {
    const std::string basis =
        std::string(row.validated() ? "validated: " : "") + (row.measured ? "measured" : "predicted");
    table.rows.push_back(
        {range_of(row), row.k ? std::to_string(row.k) : "0 (plain)",
         row.figure_k ? basis + " with K = " + std::to_string(row.figure_k) : "predicted",
         row.figure_k ? decimals(row.speedup, 2) + (row.measured ? " " + interval_text(row.ci, 2) : "") : "–"});
  }
  return table;
}

Section speed_section(const ValidationReport& r) {
  Section s{
      "Speed",
      (was_busy(r) ? "The machine was busy while the times were taken: neither they nor what is computed from them "
                     "(predictions, schedule, break-even) can be relied on. Run the gate again on an idle machine. "
                   : std::string()) +
          format(
              "The measured speed-up is at batch 1 with K = %d: every run has the prompt, seed and length of a plain "
              "run and is timed beside it step by step; the speed-up is the ratio of the summed times. The "
              "predicted speed-up is tau / (K·c + v), computed from measured costs that include sampling and host "
              "time. A K is validated if it was measured and the whole interval is above 1.",
              r.best_k) +
          (r.prediction_fits() ? "" : " " + prediction_warning(r)) +
          (r.machine ? " The machine: " + machine_line(*r.machine) + "." : ""),
      {},
      {}};
  Chart chart{timed(r, "Speed-up by K: predicted, and measured at one K"),
              "K, draft tokens per step",
              "speed-up",
              Chart::Kind::kLines,
              {},
              {},
              {},
              1.0,
              "break-even",
              {},
              {}};
  std::set<int> ks;
  std::map<int, std::map<int, double>> by_batch;
  for (const auto& row : r.table) {
    ks.insert(row.k);
    by_batch[row.batch][row.k] = row.speedup;
  }
  Table table{timed(r, "Predicted speed-up"), {"batch"}, {}, false};
  for (const int k : ks) {
    chart.x.push_back(k);
    table.head.push_back("K = " + std::to_string(k));
  }
  for (const auto& [batch, row] : by_batch) {
    Series line{"predicted, batch " + std::to_string(batch), {}, {}, {}, true};
    std::vector<std::string> cells = {std::to_string(batch)};
    for (const int k : ks) {
      const auto it = row.find(k);
      line.y.push_back(it == row.end() ? kNone : it->second);
      cells.push_back(it == row.end() ? "–" : decimals(it->second, 2));
    }
    chart.series.push_back(line);
    table.rows.push_back(cells);
  }
  Series measured{"measured, batch 1", {}, {}, {}, false};
  for (const int k : ks) push(measured, k == r.best_k ? r.speedup : Estimate{kNone, {kNone, kNone}, 0});
  if (r.speedup.n > 0) chart.series.push_back(measured);
  s.charts = {chart, batch_chart(r)};
  s.tables.push_back(table);
  s.tables.push_back(schedule_table(r));
  Table pays{timed(r, "Break-even: the least acceptance at which drafting pays"), {"batch", "acceptance"}, {}, false};
  for (const auto& [batch, alpha] : r.break_even) pays.rows.push_back({std::to_string(batch), decimals(alpha, 2)});
  s.tables.push_back(pays);
  return s;
}

Section predictions_section(const ValidationReport& r) {
  Section s{"Predicted for other engines",
            "Computed from the acceptance measured here and the engine's own costs in plain steps: c is the cost of a "
            "draft step, v that of a verify pass.",
            {},
            {}};
  Table table{"", {"batch", "c", "v", "best K", "speed-up", "break-even acceptance"}, {}, false};
  for (const auto& p : r.predictions)
    table.rows.push_back({std::to_string(p.batch), format("%.3g", p.draft_cost), format("%.3g", p.verify_cost),
                          std::to_string(p.k), decimals(p.speedup, 2),
                          p.break_even ? decimals(*p.break_even, 2) : "none"});
  s.tables.push_back(table);
  return s;
}

// Lists the checks that decide the verdict.
Section checks_section(const ValidationReport& r) {
  Section s{"Checks", "", {}, {}};
  if (r.requests_available > 0)
    s.text = format("%lld of %lld requests were scored, in random order; ", static_cast<long long>(r.alpha.n),
                    static_cast<long long>(r.requests_available)) +
             (r.requests_needed ? "acceptance was decided after " + count(r.requests_needed) + "."
                                : "acceptance is not decided.") +
             " Every interval may be looked at after every request: a draft below any of its floors passes with "
             "probability 5 % at most.";
  Table table{"", {"check", "requests of", "result", ""}, {}, true};
  for (const Check& check : checks_of(r))
    table.rows.push_back(
        {check.name, check.segment.empty() ? "all" : check.segment, to_string(check.state), check.text});
  s.tables.push_back(table);
  return s;
}

Section inputs_section(const ValidationReport& r, const ReportDetails& d) {
  Section s{"Inputs", "", {}, {}};
  Table table{"", {"what", "value"}, {}, true};
  table.rows = {{"target", r.target_path},
                {"target id", r.target.id},
                {"draft", r.draft_path},
                {"draft id", r.draft.id},
                {"data", r.data_path},
                {"data digest", r.data_digest},
                {"split, contexts", r.split + ", " + r.contexts},
                {"device, dtype", r.device + ", " + r.dtype},
                {"temperature", decimals(r.temperature, 2)},
                {"floor, goal", decimals(r.floor, 2) + ", " + decimals(r.goal, 2)},
                {"next", r.next},
                {"started", r.started + ", took " + decimals(r.seconds, 1) + " s"},
                {"specdec", r.tool_version}};
  s.tables.push_back(table);
  if (!d.notes.empty()) {
    Table notes{"Notes", {"", ""}, {}, true};
    for (size_t i = 0; i < d.notes.size(); ++i) notes.rows.push_back({std::to_string(i + 1), d.notes[i]});
    s.tables.push_back(notes);
  }
  return s;
}

std::string lossless_summary(const ValidationReport& r) {
  return format("%lld of %lld identical, %lld near-ties, %lld differences", static_cast<long long>(r.greedy_identical),
                static_cast<long long>(r.greedy_prompts), static_cast<long long>(r.near_ties),
                static_cast<long long>(r.differences));
}

std::string break_even_summary(const ValidationReport& r) {
  std::string text = "acceptance";
  for (const auto& [batch, alpha] : r.break_even)
    text +=
        (batch == r.break_even.begin()->first ? " " : ", ") + decimals(alpha, 2) + " at batch " + std::to_string(batch);
  return text;
}

std::string prediction_summary(const ValidationReport::Prediction& p) {
  return format("%.2f × at batch %d with c = %.3g, v = %.3g: K = %d, ", p.speedup, p.batch, p.draft_cost, p.verify_cost,
                p.k) +
         (p.break_even ? "break-even at acceptance " + decimals(*p.break_even, 2) : "which no acceptance pays for");
}

}  // namespace

Page report_page(const ValidationReport& r, const ReportDetails& d) {
  Page page;
  page.title = "Draft validation";
  page.verdict = readable(to_string(r.verdict));
  page.verdict_class = class_of(r.verdict);
  page.reason = r.reason;
  page.data = to_json(r);
  if (r.alpha.n > 0) {
    page.tiles.push_back(
        {"Acceptance", decimals(r.alpha.value), interval_text(r.alpha.ci) + ", " + count(r.alpha.n) + " requests"});
    page.tiles.push_back({"Greedy agreement", decimals(r.greedy_agreement), count(r.tokens) + " tokens"});
  }
  if (r.rollout.counts.steps > 0)
    page.tiles.push_back(
        {"Tokens per step", decimals(r.rollout.counts.length(), 2),
         format("K = %d, draft efficiency %.0f %%", r.rollout.k, 100 * r.rollout.counts.draft_efficiency())});
  if (r.has_speed)
    page.tiles.push_back({"Speed-up, batch 1", decimals(r.speedup.value, 2) + " ×",
                          interval_text(r.speedup.ci, 2) + format(", measured at K = %d; predicted %.2f%s%s", r.best_k,
                                                                  r.predicted_speedup,
                                                                  r.prediction_fits() ? "" : ", outside the interval",
                                                                  was_busy(r) ? "; the machine was busy" : "")});
  if (r.has_lossless)
    page.tiles.push_back({"Greedy text", count(r.greedy_identical) + " / " + count(r.greedy_prompts),
                          format("%lld near-ties, %lld differences", static_cast<long long>(r.near_ties),
                                 static_cast<long long>(r.differences))});
  if (r.has_lossless) page.tiles.push_back({"Sampled test", format("p = %.2g", r.sampled_p_value), "limit 1e-4"});
  if (r.baseline)
    page.tiles.push_back(
        {r.baseline->draft_id.empty() ? "Against the baseline" : "Against the serving draft",
         format("%+.3f", r.baseline->difference.value),
         interval_text(r.baseline->difference.ci) + ", " + count(r.baseline->difference.n) + " pairs"});
  page.sections.push_back(checks_section(r));
  if (r.alpha.n > 0) page.sections.push_back(acceptance_section(r));
  if (r.rollout.counts.steps > 0) page.sections.push_back(rollout_section(r, d));
  if (r.has_speed) page.sections.push_back(speed_section(r));
  if (!r.predictions.empty()) page.sections.push_back(predictions_section(r));
  page.sections.push_back(inputs_section(r, d));
  return page;
}

std::string report_text(const ValidationReport& r, const ReportDetails& d) {
  std::string out = readable(to_string(r.verdict)) + ": " + r.reason + "\n\n";
  const auto line = [&](const char* name, const std::string& text) { out += format("  %-18s ", name) + text + "\n"; };
  if (r.alpha.n > 0) {
    line("acceptance",
         decimals(r.alpha.value) + " " + interval_text(r.alpha.ci) +
             format("  %lld requests, %lld tokens, floor %.2f, goal %.2f", static_cast<long long>(r.alpha.n),
                    static_cast<long long>(r.tokens), r.floor, r.goal));
    line("requests", format("%lld of %lld scored, ", static_cast<long long>(r.alpha.n),
                            static_cast<long long>(r.requests_available)) +
                         (r.requests_needed ? count(r.requests_needed) + " needed to decide" : "not enough to decide"));
    line("greedy agreement", decimals(r.greedy_agreement));
    for (const SegmentFigure& s : r.segments)
      line(("  " + s.name).substr(0, 18).c_str(), decimals(s.alpha.value) + " " + interval_text(s.alpha.ci) + "  " +
                                                      count(s.alpha.n) + " requests" +
                                                      (s.floor ? ", floor " + decimals(*s.floor, 2) : ""));
  }
  if (r.rollout.counts.steps > 0) {
    std::string overlaps;
    for (size_t i = 0; i < r.rollout.counts.reached_at.size() && r.rollout.counts.reached_at[i] > 0; ++i)
      overlaps += " " + decimals(r.rollout.counts.overlap(i), 2);
    line("tokens per step", format("%.2f at K = %d, draft efficiency %.2f", r.rollout.counts.length(), r.rollout.k,
                                   r.rollout.counts.draft_efficiency()));
    line("overlap", overlaps.substr(std::min<size_t>(1, overlaps.size())));
  }
  if (r.has_speed) {
    const std::string busy = was_busy(r) ? ", on a busy machine" : "";
    line("speed-up", decimals(r.speedup.value, 2) + " " + interval_text(r.speedup.ci, 2) +
                         format("  measured at batch 1, K = %d; predicted %.2f%s", r.best_k, r.predicted_speedup,
                                r.prediction_fits() ? "" : ", which is outside the measured interval") +
                         busy);
    if (r.machine) line("machine", machine_line(*r.machine));
    line("costs", format("draft %.2f, verify %.2f of a plain step", r.draft_cost,
                         r.verify_cost.empty() ? 0.0 : r.verify_cost.begin()->second) +
                      busy);
    if (!r.schedule.empty()) line("schedule", schedule_line(r.schedule) + busy);
    if (!r.break_even.empty()) line("break-even", break_even_summary(r) + busy);
  }
  for (const auto& p : r.predictions) line("predicted", prediction_summary(p));
  if (r.has_lossless) {
    line("greedy text", lossless_summary(r));
    line("sampled test", format("p = %.2g (fails at or below 1e-4)", r.sampled_p_value));
  }
  if (r.baseline)
    line(r.baseline->draft_id.empty() ? "against baseline" : "against serving",
         format("%+.3f ", r.baseline->difference.value) + interval_text(r.baseline->difference.ci) + "  " +
             count(r.baseline->difference.n) + " paired requests");
  for (const std::string& note : d.notes) line("note", note);
  line("took", decimals(r.seconds, 1) + " s");
  if (!r.next.empty()) line("next", r.next);
  return out;
}

}  // namespace specdec::deploy
