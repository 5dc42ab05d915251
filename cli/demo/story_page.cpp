#include "cli/demo/story_page.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "base/verdict.h"
#include "cli/demo/story.h"

namespace specdec::cli {

namespace {

std::string rounded(double value) { return format("%.2f", value); }

// Returns the expected number of tokens of a step with k drafted tokens and acceptance a at every position (Leviathan
// et al. 2023, arXiv 2211.17192).
double tokens_a_step(double a, int k) {
  double sum = 1, power = 1;
  for (int i = 0; i < k; ++i) sum += power *= a;
  return sum;
}

Section domains(const StoryFigures& s, const std::string& title, const std::vector<DemoDomainRow>& rows) {
  Section section;
  section.title = title;
  section.text =
      "Acceptance is that of the gate, on held-out requests. Tokens per second are those of single "
      "requests, which the pair and the model alone answered in turns.";
  Table table;
  table.head = {"domain", "acceptance", "95 % interval", "tokens/s alone", "with the draft", "speed-up"};
  Chart chart;
  chart.title = "Acceptance by position in the draft";
  chart.x_label = "position";
  chart.y_label = "acceptance";
  chart.rule = s.gate.floor;
  chart.rule_name = "floor of the gate";
  chart.y_min = 0;
  chart.y_max = 1;
  size_t positions = 0;
  for (const DemoDomainRow& row : rows) positions = std::max(positions, row.by_position.size());
  for (size_t i = 0; i < positions; ++i) chart.x.push_back(static_cast<double>(i + 1));
  for (const DemoDomainRow& row : rows) {
    table.rows.push_back({row.name, decimals(row.acceptance), interval_text({row.low, row.high}),
                          format("%.0f", row.plain_tokens_per_second), format("%.0f", row.tokens_per_second),
                          rounded(row.speedup) + "×"});
    Series series;
    series.name = row.name;
    series.y = row.by_position;
    series.y.resize(positions, std::numeric_limits<double>::quiet_NaN());
    chart.series.push_back(series);
  }
  section.tables.push_back(table);
  section.charts.push_back(chart);
  return section;
}

Section life(const StoryFigures& s) {
  Section section;
  section.title = "Before and after the update of the target";
  section.text =
      "Overnight the model was fine-tuned on right answers of the narrow service. The gate measured "
      "the old draft on answers of the new model, then the redistilled one on the same requests.";
  Table table;
  table.head = {"domain", "first draft, first model", "first draft, new model", "redistilled, new model"};
  const auto of = [](const ValidationReport& report, const std::string& domain) -> std::string {
    for (const SegmentFigure& segment : report.segments)
      if (segment.name == domain) return with_interval(segment.alpha);
    return "–";
  };
  for (const DemoDomainRow& row : s.result.domains)
    table.rows.push_back(
        {row.name, of(s.gate, row.name), of(s.stale, row.name), s.redistilled ? of(*s.redistilled, row.name) : "–"});
  table.rows.push_back({"all", with_interval(s.gate.alpha), with_interval(s.stale.alpha),
                        s.redistilled ? with_interval(s.redistilled->alpha) : "–"});
  section.tables.push_back(table);
  return section;
}

Section told(const StoryFigures& s) {
  Section section;
  section.title = "Beside what the field is told";
  section.text =
      "Published figures are of large targets on GPUs, whose steps wait for memory: 2.4 times with acceptance 0.70, K "
      "= 4 "
      "and a draft that costs a twentieth of the target, and 20 to 40 % more acceptance by training on own traffic.";
  Table table;
  table.head = {"figure", "told", "measured here"};
  const ValidationReport& last = s.redistilled ? *s.redistilled : s.gate;
  table.rows.push_back(
      {"speed-up at acceptance 0.70", "2.4×", rounded(last.speedup.value) + "× at " + decimals(last.alpha.value)});
  const double c = last.draft_cost;
  table.rows.push_back({"cost of a drafted token, in plain steps", "0.05", c > 0 ? rounded(c) : "–"});
  if (last.best_k > 0)
    table.rows.push_back({format("tokens of a step, K = %d", last.best_k), rounded(tokens_a_step(0.7, last.best_k)),
                          rounded(tokens_a_step(last.alpha.value, last.best_k))});
  if (s.redistilled && s.stale.alpha.value > 0)
    table.rows.push_back({"acceptance gained by training on the new traffic", "20–40 %",
                          format("%+.0f %%", 100 * (s.redistilled->alpha.value / s.stale.alpha.value - 1))});
  section.tables.push_back(table);
  return section;
}

Section steps(const StoryFigures& s) {
  Section section;
  section.title = "The steps";
  Table table;
  table.head = {"step", "seconds", "what happened"};
  table.text = true;
  for (const StoryStep& step : s.result.story)
    table.rows.push_back({step.step, format("%.0f", step.seconds), step.text});
  Table checks;
  checks.title = "Checks";
  checks.head = {"check", "holds"};
  checks.text = true;
  for (const DemoCheck& check : s.result.checks) checks.rows.push_back({check.check, check.holds ? "yes" : "no"});
  section.tables = {table, checks};
  return section;
}

}  // namespace

Page story_page(const StoryFigures& s) {
  const ValidationReport& last = s.redistilled ? *s.redistilled : s.gate;
  Page page;
  page.title = "The life of a draft for " + s.model;
  page.verdict = to_string(s.gate.verdict);
  std::replace(page.verdict.begin(), page.verdict.end(), '_', ' ');
  page.reason = s.gate.reason;
  page.generator = "specdec demo";
  page.verdict_class = class_of(s.gate.verdict);
  page.tiles = {{"acceptance", decimals(s.gate.alpha.value), interval_text(s.gate.alpha.ci)},
                {"speed-up", rounded(s.gate.speedup.value) + "×", interval_text(s.gate.speedup.ci)},
                {"after the update", decimals(s.stale.alpha.value), "the same draft, the new model"},
                {"redistilled", s.redistilled ? decimals(last.alpha.value) : "–",
                 s.redistilled ? "speed-up " + rounded(last.speedup.value) + "×" : "the loop did not reach the gate"}};
  page.sections = {domains(s, "The first draft, by domain", s.result.domains)};
  if (!s.result.updated_domains.empty())
    page.sections.push_back(domains(s, "After the update: the redistilled draft, by domain", s.result.updated_domains));
  for (const Section& section : {life(s), told(s), steps(s)}) page.sections.push_back(section);
  page.data = json_of(s.result);
  return page;
}

}  // namespace specdec::cli
