#include "base/schema/validation_report.h"

#include <cmath>
#include <limits>

namespace specdec {

namespace {

constexpr ErrorKind kReport = ErrorKind::kData;
constexpr double kMaxFigure = 1e12;
constexpr size_t kMaxItems = 1 << 20;

Json interval(const Interval& i) { return {i.low, i.high}; }

// ---- writing ----

Json to_json(const RolloutFigures& r) {
  const AcceptanceCounts& c = r.counts;
  Json overlap = Json::array(), conditional = Json::array(), marginal = Json::array();
  for (size_t i = 0; i < c.reached_at.size(); ++i) {
    overlap.push_back(c.overlap(i));
    conditional.push_back(c.conditional(i));
    marginal.push_back(c.marginal(i));
  }
  return {{"k", r.k},
          {"verify", r.verify},
          {"alpha", r.alpha.value},
          {"ci", interval(r.alpha.ci)},
          {"conversations", r.alpha.n},
          {"steps", c.steps},
          {"plain_steps", c.plain_steps},
          {"drafted", c.drafted},
          {"accepted_total", c.accepted},
          {"emitted", c.emitted},
          {"drafted_at", c.drafted_at},
          {"reached", c.reached_at},
          {"accepted", c.accepted_at},
          {"overlap", overlap},
          {"conditional", conditional},
          {"marginal", marginal},
          {"length", c.length()},
          {"draft_efficiency", c.draft_efficiency()}};
}

Json acceptance_to_json(const ValidationReport& r) {
  Json sequence = Json::array();
  for (const auto& p : r.sequence) sequence.push_back({p.requests, p.alpha, p.low, p.high});
  return {{"alpha", r.alpha.value},
          {"ci", interval(r.alpha.ci)},
          {"requests", r.alpha.n},
          {"alpha_tokens", r.alpha_tokens},
          {"greedy_agreement", r.greedy_agreement},
          {"entropy", r.entropy},
          {"tokens", r.tokens},
          {"requests_available", r.requests_available},
          {"requests_needed", r.requests_needed ? Json(r.requests_needed) : Json()},
          {"sequence", sequence},
          {"rollout", to_json(r.rollout)},
          {"request_ids", r.request_ids},
          {"request_alphas", r.request_alphas}};
}

// Writes "schedule", which engines read, and "schedule_figures", which has the figure that each row rests on.
void schedule_to_json(const std::vector<ScheduleRow>& schedule, Json& speed) {
  speed["schedule"] = ranges_of(schedule);
  speed["schedule_figures"] = Json::array();
  for (const ScheduleRow& row : schedule)
    speed["schedule_figures"].push_back({{"basis", row.measured ? "measured" : "predicted"},
                                         {"validated", row.validated()},
                                         {"k", row.figure_k > 0 ? Json(row.figure_k) : Json()},
                                         {"speedup", row.figure_k > 0 ? Json(row.speedup) : Json()},
                                         {"ci", row.measured ? interval(row.ci) : Json()}});
}

Json speed_to_json(const ValidationReport& r) {
  Json costs = Json::object(), break_even = Json::object(), cost_table = Json::object(), table = Json::array();
  for (const auto& [batch, cost] : r.verify_cost) costs[std::to_string(batch)] = cost;
  for (const auto& [batch, row] : r.verify_cost_table)
    for (const auto& [k, cost] : row) cost_table[std::to_string(batch)][std::to_string(k)] = cost;
  for (const auto& [batch, alpha] : r.break_even) break_even[std::to_string(batch)] = alpha;
  for (const auto& row : r.table) table.push_back({{"batch", row.batch}, {"k", row.k}, {"speedup", row.speedup}});
  Json out = {
      {"draft_cost", r.draft_cost},
      {"verify_cost", costs},
      {"verify_cost_table", cost_table},
      {"measured",
       {{"speedup", r.speedup.value}, {"ci", interval(r.speedup.ci)}, {"prompts", r.speedup.n}, {"k", r.best_k}}},
      {"predicted", r.predicted_speedup},
      {"prediction_fits", r.prediction_fits()},
      {"table", table},
      {"break_even", break_even}};
  schedule_to_json(r.schedule, out);
  if (r.machine) out["machine"] = to_json(*r.machine);
  return out;
}

Json baseline_to_json(const ValidationReport::Baseline& b) {
  const auto difference = [](const Estimate& d) {
    return Json{{"alpha_difference", d.value}, {"ci", interval(d.ci)}, {"paired_requests", d.n}};
  };
  Json out = difference(b.difference);
  out["draft"] = b.draft_id.empty() ? Json() : Json({{"path", b.draft_path}, {"id", b.draft_id}});
  out["min_gain"] = b.min_gain ? Json(*b.min_gain) : Json();
  out["segments"] = Json::array();
  for (const auto& s : b.segments) {
    out["segments"].push_back(difference(s.difference));
    out["segments"].back().update({{"name", s.name}, {"judged", s.judged}});
  }
  return out;
}

// ---- reading ----

Interval read_interval(const Json& object, const std::string& where) {
  const Json& pair = json_array(object, "ci", 2, where, kReport);
  if (pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number() || pair[0].get<double>() > pair[1].get<double>())
    throw Error(kReport, where + ": ci: expected [low, high]");
  return {pair[0].get<double>(), pair[1].get<double>()};
}

Estimate read_estimate(const Json& object, const char* value, const char* n, const std::string& where) {
  return {json_double(object, value, {-kMaxFigure, kMaxFigure}, where, kReport), read_interval(object, where),
          json_int(object, n, {0, kMaxCount}, where, kReport)};
}

std::vector<int64_t> read_counts(const Json& object, const char* key, const std::string& where) {
  std::vector<int64_t> out;
  for (const Json& item : json_array(object, key, 1024, where, kReport))
    out.push_back(json_int(Json{{key, item}}, key, {0, kMaxCount}, where, kReport));
  return out;
}

std::vector<double> read_doubles(const Json& object, const char* key, double low, double high,
                                 const std::string& where) {
  std::vector<double> out;
  for (const Json& item : json_array(object, key, kMaxItems, where, kReport))
    out.push_back(json_double(Json{{key, item}}, key, {low, high}, where, kReport));
  return out;
}

// Reads a key of {"1": …, "8": …}; keys are positive integers.
int read_number_key(const std::string& key, const std::string& where) {
  if (key.empty() || key.size() > 6 || key.find_first_not_of("0123456789") != std::string::npos)
    throw Error(kReport, where + ": expected positive integers as keys, found '" + key.substr(0, 20) + "'");
  return std::stoi(key);
}

std::map<int, double> read_costs(const Json& object, const std::string& where) {
  std::map<int, double> out;
  for (const auto& [key, cost] : object.items())
    out[read_number_key(key, where)] = json_double(object, key.c_str(), {0, kMaxFigure}, where, kReport);
  return out;
}

RolloutFigures read_rollout(const Json& o, const std::string& where) {
  RolloutFigures r;
  r.k = static_cast<int>(json_int(o, "k", {-1, 1024}, where, kReport));
  r.verify = json_string(o, "verify", where, kReport);
  r.alpha = read_estimate(o, "alpha", "conversations", where);
  AcceptanceCounts& c = r.counts;
  c.steps = json_int(o, "steps", {0, kMaxCount}, where, kReport);
  c.plain_steps = json_int(o, "plain_steps", {0, kMaxCount}, where, kReport);
  c.drafted = json_int(o, "drafted", {0, kMaxCount}, where, kReport);
  c.accepted = json_int(o, "accepted_total", {0, c.drafted}, where, kReport);
  c.emitted = json_int(o, "emitted", {0, kMaxCount}, where, kReport);
  c.drafted_at = read_counts(o, "drafted_at", where);
  c.reached_at = read_counts(o, "reached", where);
  c.accepted_at = read_counts(o, "accepted", where);
  c.overlap_sum_at = read_doubles(o, "overlap", 0, 1 + 1e-6, where);
  const size_t width = c.reached_at.size();
  if (c.drafted_at.size() != width || c.accepted_at.size() != width || c.overlap_sum_at.size() != width)
    throw Error(kReport, where + ": drafted_at, reached, accepted and overlap differ in length");
  for (size_t i = 0; i < width; ++i) {
    if (c.accepted_at[i] > c.reached_at[i] || c.reached_at[i] > c.drafted_at[i])
      throw Error(kReport, where + ": position " + std::to_string(i) + ": expected accepted <= reached <= drafted_at");
    c.overlap_sum_at[i] *= static_cast<double>(c.reached_at[i]);
  }
  return r;
}

std::optional<double> read_optional(const Json& o, const char* key, double low, double high, const std::string& where) {
  if (!o.contains(key) || o[key].is_null()) return std::nullopt;
  return json_double(o, key, {low, high}, where, kReport);
}

// These keys are optional, because reports of earlier versions do not have them.
void read_sequence(const Json& o, const std::string& where, ValidationReport& r) {
  r.requests_available =
      json_int(o, "requests_available", {.low = 0, .high = kMaxCount, .fallback = r.alpha.n}, where, kReport);
  if (o.contains("requests_needed") && !o["requests_needed"].is_null())
    r.requests_needed = json_int(o, "requests_needed", {0, kMaxCount}, where, kReport);
  if (!o.contains("sequence")) return;
  const std::string at = where + ": sequence";
  for (const Json& p : json_array(o, "sequence", kMaxItems, where, kReport)) {
    if (!p.is_array() || p.size() != 4) throw Error(kReport, at + ": expected [requests, alpha, low, high]");
    const Json named = {{"requests", p[0]}, {"alpha", p[1]}, {"low", p[2]}, {"high", p[3]}};
    const auto share = [&](const char* key) { return json_double(named, key, {0, 1}, at, kReport); };
    r.sequence.push_back(
        {json_int(named, "requests", {0, kMaxCount}, at, kReport), share("alpha"), share("low"), share("high")});
  }
}

ValidationReport::Baseline read_baseline(const Json& o, const std::string& where) {
  ValidationReport::Baseline b;
  b.difference = read_estimate(o, "alpha_difference", "paired_requests", where);
  b.min_gain = read_optional(o, "min_gain", -1, 1, where);
  if (o.contains("draft") && !o["draft"].is_null()) {
    const Json& draft = json_object(o, "draft", 16, where, kReport);
    b.draft_path = json_string(draft, "path", where + ": draft", kReport);
    b.draft_id = json_digest(draft, "id", false, where + ": draft", kReport);
  }
  if (o.contains("segments"))
    for (const Json& s : json_array(o, "segments", 4096, where, kReport)) {
      const std::string at = where + ": segments";
      b.segments.push_back({json_string(s, "name", at, kReport),
                            read_estimate(s, "alpha_difference", "paired_requests", at),
                            json_bool(s, "judged", false, at, kReport)});
    }
  return b;
}

ValidationReport::Prediction read_prediction(const Json& o, const std::string& where) {
  return {static_cast<int>(json_int(o, "batch", {1, 1 << 20}, where, kReport)),
          json_double(o, "draft_cost", {0, kMaxFigure}, where, kReport),
          json_double(o, "verify_cost", {0, kMaxFigure}, where, kReport),
          static_cast<int>(json_int(o, "k", {1, 1024}, where, kReport)),
          json_double(o, "speedup", {0, kMaxFigure}, where, kReport),
          read_optional(o, "break_even", 0, 1, where)};
}

void read_acceptance(const Json& o, const std::string& where, ValidationReport& r) {
  r.alpha = read_estimate(o, "alpha", "requests", where);
  r.alpha_tokens = json_double(o, "alpha_tokens", {0, 1}, where, kReport);
  r.greedy_agreement = json_double(o, "greedy_agreement", {0, 1}, where, kReport);
  r.entropy = json_double(o, "entropy", {0, 64}, where, kReport);
  r.tokens = json_int(o, "tokens", {0, kMaxCount}, where, kReport);
  read_sequence(o, where, r);
  r.rollout = read_rollout(json_object(o, "rollout", 64, where, kReport), where + ": rollout");
  r.request_alphas = read_doubles(o, "request_alphas", 0, 1 + 1e-6, where);
  for (const Json& id : json_array(o, "request_ids", kMaxItems, where, kReport))
    r.request_ids.push_back(json_string(Json{{"id", id}}, "id", where + ": request_ids", kReport));
}

// Reports of earlier versions have no schedule_figures, so their rows count as predicted.
std::vector<ScheduleRow> read_schedule(const Json& o, const std::string& where) {
  const std::string at = where + ": schedule";
  std::vector<ScheduleRow> schedule;
  for (const Json& row : json_array(o, "schedule", 4096, where, kReport)) {
    if (!row.is_array() || row.size() != 3) throw Error(kReport, at + ": expected [batch_lo, batch_hi, k]");
    const Json named = {{"batch_lo", row[0]}, {"batch_hi", row[1]}, {"k", row[2]}};
    const int64_t low = json_int(named, "batch_lo", {1, 1 << 20}, at, kReport);
    schedule.push_back({static_cast<int>(low),
                        static_cast<int>(json_int(named, "batch_hi", {low, 1 << 20}, at, kReport)),
                        static_cast<int>(json_int(named, "k", {0, 1024}, at, kReport))});
  }
  if (!o.contains("schedule_figures")) return schedule;
  const Json& figures = json_array(o, "schedule_figures", 4096, where, kReport);
  if (figures.size() != schedule.size()) throw Error(kReport, at + " and schedule_figures differ in length");
  for (size_t i = 0; i < schedule.size(); ++i) {
    const std::string basis = json_string(figures[i], "basis", at, kReport);
    if (basis != "measured" && basis != "predicted")
      throw Error(kReport, at + "_figures: basis: expected measured or predicted, found '" + basis.substr(0, 40) + "'");
    schedule[i].measured = basis == "measured";
    if (!figures[i].contains("k") || figures[i]["k"].is_null()) continue;
    schedule[i].figure_k = static_cast<int>(json_int(figures[i], "k", {1, 1024}, at, kReport));
    schedule[i].speedup = json_double(figures[i], "speedup", {0, kMaxFigure}, at, kReport);
    if (schedule[i].measured) schedule[i].ci = read_interval(figures[i], at);
  }
  return schedule;
}

MachineUse read_machine(const Json& o, const std::string& where) {
  const auto cpus = [&](const char* key) { return json_double(o, key, {0, 1 << 20}, where, kReport); };
  const auto count = [&](const char* key) { return json_int(o, key, {0, kMaxCount}, where, kReport); };
  MachineUse use;
  use.cpus = static_cast<int>(json_int(o, "cpus", {0, 1 << 20}, where, kReport));
  use.threads = static_cast<int>(json_int(o, "threads", {0, 1 << 20}, where, kReport));
  use.others = cpus("others_cpus"), use.stolen = cpus("stolen_cpus");
  use.taken = json_double(o, "taken", {0, 1}, where, kReport);
  use.runs = count("runs"), use.disturbed = count("disturbed"), use.disagreeing = count("disagreeing");
  use.busy = json_bool(o, "busy", false, where, kReport);
  return use;
}

void read_speed(const Json& o, const std::string& where, ValidationReport& r) {
  r.has_speed = true;
  r.draft_cost = json_double(o, "draft_cost", {0, kMaxFigure}, where, kReport);
  r.verify_cost = read_costs(json_object(o, "verify_cost", 4096, where, kReport), where + ": verify_cost");
  const Json& cost_table = json_object(o, "verify_cost_table", 4096, where, kReport);
  for (const auto& [batch, row] : cost_table.items()) {
    const std::string at = where + ": verify_cost_table";
    r.verify_cost_table[read_number_key(batch, at)] =
        read_costs(json_object(cost_table, batch.c_str(), 4096, at, kReport), at);
  }
  const Json& measured = json_object(o, "measured", 64, where, kReport);
  r.speedup = read_estimate(measured, "speedup", "prompts", where + ": measured");
  r.best_k = static_cast<int>(json_int(measured, "k", {-1, 1024}, where + ": measured", kReport));
  r.predicted_speedup = json_double(o, "predicted", {0, kMaxFigure}, where, kReport);
  for (const Json& row : json_array(o, "table", 65536, where, kReport)) {
    const std::string at = where + ": table";
    r.table.push_back({static_cast<int>(json_int(row, "batch", {1, 1 << 20}, at, kReport)),
                       static_cast<int>(json_int(row, "k", {-1, 1024}, at, kReport)),
                       json_double(row, "speedup", {0, kMaxFigure}, at, kReport)});
  }
  if (o.contains("break_even"))
    r.break_even = read_costs(json_object(o, "break_even", 4096, where, kReport), where + ": break_even");
  // checks only the type, because the value follows from the figures
  json_bool(o, "prediction_fits", true, where, kReport);
  r.schedule = read_schedule(o, where);
  if (o.contains("machine"))
    r.machine = read_machine(json_object(o, "machine", 64, where, kReport), where + ": machine");
}

std::vector<ValidationReport::Figure> read_figures(const Json& o, const std::string& where) {
  std::vector<ValidationReport::Figure> out;
  if (!o.contains("judged_by")) return out;
  const std::string at = where + ": judged_by";
  for (const Json& f : json_array(o, "judged_by", 4096, where, kReport))
    out.push_back({json_string(f, "check", at, kReport), json_string(f, "segment", "", at, kReport),
                   json_double(f, "value", {-kMaxFigure, kMaxFigure}, at, kReport), read_interval(f, at),
                   json_double(f, "limit", {-kMaxFigure, kMaxFigure}, at, kReport)});
  return out;
}

void read_inputs(const Json& o, const std::string& where, ValidationReport& r) {
  const Json &target = json_object(o, "target", 64, where, kReport),
             &draft = json_object(o, "draft", 64, where, kReport);
  r.target_path = json_string(target, "path", where + ": target", kReport);
  r.draft_path = json_string(draft, "path", where + ": draft", kReport);
  r.target = fingerprint_from_json(json_object(target, "fingerprint", 64, where + ": target", kReport),
                                   where + ": target: fingerprint");
  r.draft = fingerprint_from_json(json_object(draft, "fingerprint", 64, where + ": draft", kReport),
                                  where + ": draft: fingerprint");
  const Json& data = json_object(o, "data", 64, where, kReport);
  r.data_path = json_string(data, "path", where + ": data", kReport);
  r.data_digest = json_digest(data, "digest", true, where + ": data", kReport);
  r.contexts = json_string(o, "contexts", where, kReport);
  r.split = json_string(o, "split", where, kReport);
  if (const auto flags = o.find("flags"); flags != o.end() && flags->is_array())  // older versions did not write it
    for (const Json& flag : *flags)
      if (flag.is_string() && flag.get_ref<const std::string&>().starts_with("--") && r.flags.size() < 256)
        r.flags.push_back(flag.get<std::string>());
  r.device = json_string(o, "device", where, kReport);
  r.dtype = json_string(o, "dtype", where, kReport);
  r.temperature = json_double(o, "temperature", {0, 10}, where, kReport);
  r.floor = json_double(o, "floor", {0, 1}, where, kReport);
  r.goal = json_double(o, "goal", {0, 1}, where, kReport);
}

Verdict gate_verdict(const std::string& name, const std::string& where) {
  const std::optional<Verdict> verdict = verdict_named(name);
  if (!verdict || !is_gate_verdict(*verdict))
    throw Error(kReport, where +
                             ": verdict: expected pass, fail, not_lossless, not_worth_it, inconclusive or stale, "
                             "found '" +
                             name.substr(0, 40) + "'");
  return *verdict;
}

}  // namespace

void ValidationReport::validate(const std::string& where) const {
  const auto check = [&](bool ok, const std::string& text) {
    if (!ok) throw Error(kReport, where + ": " + text);
  };
  gate_verdict(to_string(verdict), where);
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

Json to_json(const MachineUse& use) {
  return {
      {"cpus", use.cpus},   {"threads", use.threads}, {"others_cpus", use.others},  {"stolen_cpus", use.stolen},
      {"taken", use.taken}, {"runs", use.runs},       {"disturbed", use.disturbed}, {"disagreeing", use.disagreeing},
      {"busy", use.busy}};
}

Json to_json(const ValidationReport& r) {
  Json figures = Json::array();
  for (const auto& f : r.judged_by)
    figures.push_back(
        {{"check", f.check}, {"segment", f.segment}, {"value", f.value}, {"ci", interval(f.ci)}, {"limit", f.limit}});
  Json root = {{"schema", "specdec.validate/" + std::to_string(ValidationReport::kVersion)},
               {"verdict", r.verdict},
               {"reason", r.reason},
               {"judged_by", figures},
               {"next", r.next},
               {"started", r.started},
               {"seconds", r.seconds},
               {"tool_version", r.tool_version},
               {"inputs",
                {{"target", {{"path", r.target_path}, {"fingerprint", to_json(r.target)}}},
                 {"draft", {{"path", r.draft_path}, {"fingerprint", to_json(r.draft)}}},
                 {"data", {{"path", r.data_path}, {"digest", r.data_digest}}},
                 {"contexts", r.contexts},
                 {"split", r.split},
                 {"device", r.device},
                 {"dtype", r.dtype},
                 {"temperature", r.temperature},
                 {"floor", r.floor},
                 {"goal", r.goal}}},
               {"acceptance", acceptance_to_json(r)},
               {"segments", Json::array()}};
  if (!r.flags.empty()) root["inputs"]["flags"] = r.flags;
  for (const SegmentFigure& s : r.segments) {
    root["segments"].push_back({{"name", s.name},
                                {"alpha", s.alpha.value},
                                {"ci", interval(s.alpha.ci)},
                                {"requests", s.alpha.n},
                                {"rollout", to_json(s.rollout)},
                                {"entropy", s.entropy}});
    root["segments"].back()["floor"] = s.floor ? Json(*s.floor) : Json();
  }
  if (r.baseline) root["baseline"] = baseline_to_json(*r.baseline);
  if (!r.predictions.empty()) {
    root["predictions"] = Json::array();
    for (const auto& p : r.predictions)
      root["predictions"].push_back({{"batch", p.batch},
                                     {"draft_cost", p.draft_cost},
                                     {"verify_cost", p.verify_cost},
                                     {"k", p.k},
                                     {"speedup", p.speedup},
                                     {"break_even", p.break_even ? Json(*p.break_even) : Json()}});
  }
  if (r.has_speed) root["speed"] = speed_to_json(r);
  if (r.has_lossless)
    root["lossless"] = {{"greedy_prompts", r.greedy_prompts},
                        {"greedy_identical", r.greedy_identical},
                        {"near_ties", r.near_ties},
                        {"differences", r.differences},
                        {"sampled_p_value", r.sampled_p_value}};
  return root;
}

ValidationReport validation_report_from_json(const Json& object, const std::string& where) {
  require_schema(object, "validate", ValidationReport::kVersion, where);
  ValidationReport r;
  r.verdict = gate_verdict(json_string(object, "verdict", where, kReport), where);
  r.reason = json_string(object, "reason", "", where, kReport);
  r.judged_by = read_figures(object, where);
  r.next = json_string(object, "next", "", where, kReport);
  r.started = json_string(object, "started", where, kReport);
  r.seconds = json_double(object, "seconds", {0, kMaxFigure}, where, kReport);
  r.tool_version = json_string(object, "tool_version", where, kReport);
  read_inputs(json_object(object, "inputs", 64, where, kReport), where + ": inputs", r);
  read_acceptance(json_object(object, "acceptance", 64, where, kReport), where + ": acceptance", r);
  for (const Json& s : json_array(object, "segments", 4096, where, kReport)) {
    const std::string at = where + ": segments";
    r.segments.push_back({json_string(s, "name", at, kReport), read_estimate(s, "alpha", "requests", at),
                          read_rollout(json_object(s, "rollout", 64, at, kReport), at + ": rollout"),
                          json_double(s, "entropy", {0, 64}, at, kReport), read_optional(s, "floor", 0, 1, at)});
  }
  if (object.contains("baseline"))
    r.baseline = read_baseline(json_object(object, "baseline", 64, where, kReport), where + ": baseline");
  if (object.contains("predictions"))
    for (const Json& p : json_array(object, "predictions", 4096, where, kReport))
      r.predictions.push_back(read_prediction(p, where + ": predictions"));
  if (object.contains("speed")) read_speed(json_object(object, "speed", 64, where, kReport), where + ": speed", r);
  if (object.contains("lossless")) {
    const Json& l = json_object(object, "lossless", 64, where, kReport);
    const std::string at = where + ": lossless";
    r.has_lossless = true;
    r.greedy_prompts = json_int(l, "greedy_prompts", {0, kMaxCount}, at, kReport);
    r.greedy_identical = json_int(l, "greedy_identical", {0, kMaxCount}, at, kReport);
    r.near_ties = json_int(l, "near_ties", {0, kMaxCount}, at, kReport);
    r.differences = json_int(l, "differences", {0, kMaxCount}, at, kReport);
    r.sampled_p_value = json_double(l, "sampled_p_value", {0, 1}, at, kReport);
  }
  r.validate(where);
  return r;
}

}  // namespace specdec
