#include "cli/distill_page.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>

#include "base/format.h"
#include "cli/progress_line.h"

namespace specdec::cli {

namespace {

constexpr size_t kPoints = 500;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

Curve thinned(const std::map<int64_t, double>& points) {
  const size_t stretch = (points.size() + kPoints - 1) / kPoints;
  Curve out;
  double step = 0, sum = 0;
  size_t in_stretch = 0, left = points.size();
  for (const auto& [at, value] : points) {
    step += static_cast<double>(at), sum += value, ++in_stretch, --left;
    if (in_stretch < stretch && left > 0) continue;
    out.step.push_back(step / static_cast<double>(in_stretch));
    out.value.push_back(sum / static_cast<double>(in_stretch));
    step = sum = 0, in_stretch = 0;
  }
  return out;
}

double real(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : kNone;
}
std::optional<Interval> interval_of(const DistillFigure& figure) {
  if (!figure.low || !figure.high) return std::nullopt;
  return Interval{*figure.low, *figure.high};
}
double value_of(const DistillFigure& figure) { return figure.value.value_or(kNone); }

double value_at(const Curve& curve, double step) {
  const auto it = std::lower_bound(curve.step.begin(), curve.step.end(), step);
  return it == curve.step.end() || *it != step ? kNone : curve.value[static_cast<size_t>(it - curve.step.begin())];
}

// Adds a chart of those curves in `series` that exist. Its x axis has the steps of all these curves. The interval
// around a curve "x" lies between the curves "x_low" and "x_high".
void add_chart(Section& section, const std::map<std::string, Curve>& curves, const std::string& title,
               const std::string& label, const std::vector<std::pair<std::string, std::string>>& series) {
  std::map<double, std::map<std::string, double>> at;
  for (const auto& [key, name] : series) {
    const auto curve = curves.find(key);
    if (curve == curves.end()) continue;
    for (size_t i = 0; i < curve->second.step.size(); ++i) at[curve->second.step[i]][name] = curve->second.value[i];
  }
  if (at.empty()) return;
  Chart chart;
  chart.title = title;
  chart.x_label = "step";
  chart.y_label = label;
  for (const auto& [key, name] : series) {
    if (!curves.contains(key)) continue;
    Series line{name, {}, {}, {}, false};
    const bool has_interval = curves.contains(key + "_low") && curves.contains(key + "_high");
    for (const auto& [step, values] : at) {
      const auto value = values.find(name);
      line.y.push_back(value == values.end() ? kNone : value->second);
      if (!has_interval) continue;
      line.low.push_back(value_at(curves.at(key + "_low"), step));
      line.high.push_back(value_at(curves.at(key + "_high"), step));
    }
    chart.series.push_back(line);
  }
  for (const auto& [step, values] : at) chart.x.push_back(step);
  section.charts.push_back(chart);
}

void add_tiles(const DistillScores& scores, Page& page) {
  const std::string name = scores.by_acceptance ? "Acceptance" : "Cross entropy";
  const auto add = [&](const std::string& side, const DistillFigure& figure) {
    const std::optional<Interval> ci = interval_of(figure);
    page.tiles.push_back(
        {name + " " + side, decimals(value_of(figure)), ci ? "95 % interval " + interval_text(*ci) : ""});
  };
  add("before", scores.before.figure);
  add("after", scores.after.figure);
  // The draft before and after training is measured on the same conversations, so the interval of the gain is much
  // narrower than the intervals of the two measurements.
  const std::optional<Interval> ci = interval_of(scores.difference);
  page.tiles.push_back({"Gain", signed_decimals(value_of(scores.difference), 4),
                        (ci ? "95 % interval of the gain " + signed_interval_text(*ci, 4) + ", " : "") +
                            "on the same " + std::to_string(scores.conversations) + " conversations"});
}

// Returns the numbers as text: "3", "0 and 3", "0, 3 and 7".
std::string listed(const Json& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size(); ++i)
    out += (i == 0 ? "" : i + 1 == numbers.size() ? " and " : ", ") + numbers[i].dump();
  return out;
}

Section layers_section(const Json& layers) {
  const Json kept = layers.value("kept", Json::array());
  Section s{"The choice of layers",
            "The draft keeps layer" + std::string(kept.size() == 1 ? " " : "s ") + listed(kept) +
                " of the target. Each set of layers that was tried had this acceptance before training, on " +
                std::to_string(layers.value("probe_rows", 0)) + " rows of the training set.",
            {},
            {}};
  Table table{"", {"layers", "acceptance", ""}, {}, false};
  for (const Json& trial : layers.value("trials", Json::array())) {
    const Json tried = trial.value("layers", Json::array());
    table.rows.push_back({listed(tried), decimals(real(trial, "acceptance")), tried == kept ? "kept" : ""});
  }
  s.tables.push_back(table);
  return s;
}

// Adds a chart and a table of the acceptance in each part (such as a domain) of the held-out rows.
void add_parts(Section& section, const std::vector<DistillPart>& parts, const std::string& title,
               const std::string& what) {
  if (parts.empty()) return;
  Chart chart;
  chart.title = title;
  chart.kind = Chart::Kind::kBars;
  chart.x_label = what;
  chart.y_label = "Σ min(p, q)";
  chart.y_min = 0, chart.y_max = 1;
  Series after{"after training", {}, {}, {}, false};
  Table table{
      title, {what, "before", "after", "95 % interval of after", "requests", "conversations", "tokens"}, {}, false};
  for (const DistillPart& part : parts) {
    const std::string name = part.name.empty() ? "no domain" : part.name;
    const std::optional<Interval> ci = interval_of(part.after);
    chart.x.push_back(static_cast<double>(chart.x.size()));
    chart.x_names.push_back(name);
    after.y.push_back(value_of(part.after));
    after.low.push_back(ci ? ci->low : kNone);
    after.high.push_back(ci ? ci->high : kNone);
    table.rows.push_back({name, part.before ? decimals(value_of(*part.before)) : "-", decimals(after.y.back()),
                          ci ? interval_text(*ci) : "", std::to_string(part.requests),
                          std::to_string(part.conversations), std::to_string(part.tokens)});
  }
  chart.series = {after};
  section.charts.push_back(chart);
  section.tables.push_back(table);
}

Section parts_section(const DistillScores& acceptance) {
  Section s{"Where the draft is accepted",
            "Acceptance on the held-out requests that judge the draft, by the position of the token in its answer and, "
            "if the data is tagged, by domain. Intervals are over conversations.",
            {},
            {}};
  add_parts(s, acceptance.by_position, "Acceptance by position in the answer", "position");
  add_parts(s, acceptance.by_domain, "Acceptance by domain", "domain");
  return s;
}

Section cost_section(const DistillCost& cost) {
  Section s{"Cost", "", {}, {}};
  Table table{"", {"what", ""}, {}, false};
  table.rows.push_back({"wall time of the command", readable_duration(cost.seconds)});
  table.rows.push_back({"of it training", readable_duration(cost.training_seconds)});
  table.rows.push_back({"tokens trained on", std::to_string(cost.training_tokens)});
  table.rows.push_back({"tokens per second", decimals(cost.tokens_per_second, 0)});
  table.rows.push_back({"device", cost.device});
  table.rows.push_back({"processes", std::to_string(cost.processes)});
  if (cost.teacher_share)
    table.rows.push_back(
        {"share of the training time that the target's answers took", decimals(100 * *cost.teacher_share, 0) + " %"});
  s.tables.push_back(table);
  return s;
}

Section vocabulary_section(const Json& vocabulary) {
  Section s{
      "Reduced vocabulary",
      "The draft proposes " + std::to_string(vocabulary.value("tokens", 0)) +
          " different tokens. The table shows the share of the text's tokens that are among them; acceptance cannot "
          "exceed it.",
      {},
      {}};
  Table table{"", {"domain", "training", "held out"}, {}, false};
  const Json train = vocabulary.value("train", Json::object()), holdout = vocabulary.value("holdout", Json::object());
  table.rows.push_back({"all", decimals(real(train, "value")), decimals(real(holdout, "value"))});
  const Json domains = train.value("domains", Json::object()), held = holdout.value("domains", Json::object());
  for (const auto& [name, value] : domains.items())
    if (!name.empty())
      table.rows.push_back({name, decimals(real(domains, name.c_str())), decimals(real(held, name.c_str()))});
  s.tables.push_back(table);
  return s;
}

}  // namespace

std::map<std::string, Curve> read_curves(const std::filesystem::path& file) {
  std::map<std::string, std::map<int64_t, double>> points;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || !row.value("kind", Json()).is_string() || !row.value("step", Json()).is_number_integer())
      continue;
    const auto kind = row.at("kind").get<std::string>();
    const auto step = row.at("step").get<int64_t>();
    for (const auto& [name, value] : row.items()) {
      if (name == "kind" || name == "step" || name == "time" || !value.is_number()) continue;
      auto& curve = points[kind + "/" + name];
      curve.erase(curve.upper_bound(step), curve.end());  // a step that is run again discards all later points
      curve[step] = value.get<double>();
    }
  }
  std::map<std::string, Curve> out;
  for (const auto& [name, curve] : points) out[name] = thinned(curve);
  return out;
}

Page distill_page(const DistillReport& result, const std::map<std::string, Curve>& curves) {
  Page page;
  page.title = "Draft training";
  page.verdict = readable(to_string(result.verdict));
  page.verdict_class = class_of(result.verdict);
  page.reason = result.reason;
  page.data = json_of(result);
  if (result.scores) add_tiles(*result.scores, page);
  if (const auto& training = result.training)
    page.tiles.push_back({"Steps", std::to_string(training->steps),
                          decimals(training->tokens_per_second, 0) + " tokens/s, step " +
                              std::to_string(training->kept_step) + " kept"});
  Section run{
      "The run",
      "Training figures are measured on each batch, held-out figures on conversations that are never trained on. "
      "The checkpoint with the best held-out acceptance is kept.",
      {},
      {}};
  add_chart(run, curves, "Acceptance", "Σ min(p, q)",
            {{"train/acceptance", "training"}, {"held_out/acceptance", "held out"}});
  add_chart(run, curves, "Loss", "loss", {{"train/loss", "training"}});
  add_chart(run, curves, "Cross entropy, held out", "nats per token", {{"held_out/cross_entropy", "held out"}});
  add_chart(run, curves, "Gradient norm before clipping", "norm", {{"train/gradient_norm", "training"}});
  add_chart(run, curves, "Learning rate", "rate", {{"train/learning_rate", "training"}});
  page.sections.push_back(run);
  if (result.scores && !result.scores->by_position.empty()) page.sections.push_back(parts_section(*result.scores));
  if (result.cost) page.sections.push_back(cost_section(*result.cost));
  if (result.training && result.training->layers.is_object())
    page.sections.push_back(layers_section(result.training->layers));
  if (result.draft_vocab.is_object()) page.sections.push_back(vocabulary_section(result.draft_vocab));
  Section inputs{"Options", "", {}, {}};
  Table table{"", {"option", "value"}, {}, true};
  for (const auto& [name, value] : result.options.items())
    table.rows.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
  inputs.tables.push_back(table);
  page.sections.push_back(inputs);
  return page;
}

}  // namespace specdec::cli
