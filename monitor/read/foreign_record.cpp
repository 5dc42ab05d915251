#include "monitor/read/foreign_record.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/schema/acceptance_range.h"

namespace specdec::monitor {

namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxBuckets = 1025, kMaxSteps = 1 << 16, kMaxAnswers = 64;
constexpr int64_t kMaxDraft = 1024;  // tokens drafted in one step
constexpr double kFirstTime = 1e9;   // a smaller number is not a unix time in seconds
constexpr const char* kSglangExtension = "sglext";

// Throws an error that names the line or member and the problem. The error does not repeat the text found there,
// because the line is untrusted.
[[noreturn]] void refuse(const std::string& where, const char* what) {
  throw Error(ErrorKind::kData, where + ": " + what);
}

int64_t count(const Json& object, const char* key, const std::string& where) {
  return whole_figure(object, key, AcceptanceFigure::kTokens, where);
}

// Parses a key of a JSON object as a number of draft tokens.
int64_t width_of(const std::string& key, const std::string& where) {
  int64_t width = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), width);
  if (error != std::errc() || end != key.data() + key.size() || width < 0 || width > kMaxDraft)
    refuse(where, "expected numbers of tokens as keys");
  return width;
}

// Reads a histogram of steps by accepted tokens: [n_0, n_1, …] or {"0": n_0, "2": n_2}.
std::vector<int64_t> histogram_of(const Json& value, const std::string& where) {
  std::vector<int64_t> steps;
  const auto put = [&](size_t j, const Json& n) {
    if (j >= kMaxBuckets) refuse(where, "more accepted tokens per step than any draft makes");
    if (steps.size() <= j) steps.resize(j + 1);
    steps[j] = count(Json{{"steps", n}}, "steps", where);
  };
  if (value.is_array()) {
    for (size_t j = 0; j < value.size(); ++j) put(j, value[j]);
  } else if (value.is_object()) {
    for (const auto& [key, n] : value.items()) put(static_cast<size_t>(width_of(key, where)), n);
  } else {
    refuse(where, "expected a histogram");
  }
  return steps;
}

std::vector<int64_t> list_of(const Json& object, const char* key, const std::string& where) {
  std::vector<int64_t> values;
  if (!object.contains(key) || object[key].is_null()) return values;
  const Json& list = object[key];
  if (!list.is_array() || list.size() > kMaxSteps) refuse(where, "expected a list of steps");
  for (const Json& v : list) {
    values.push_back(count(Json{{key, v}}, key, where));
    if (values.back() > kMaxDraft) refuse(where, "more draft tokens per step than any draft makes");
  }
  return values;
}

void add_steps(AcceptanceCounts& c, int64_t steps, int64_t drafted, int64_t accepted) {
  if (accepted > drafted) refuse("record", "a step accepts more tokens than it drafted");
  if (drafted == 0) {
    c.plain_steps += steps;
    return;
  }
  const auto width = static_cast<size_t>(drafted);
  if (c.reached_at.size() < width) {
    c.reached_at.resize(width);
    c.accepted_at.resize(width);
  }
  c.steps += steps;
  c.drafted += steps * drafted;
  c.accepted += steps * accepted;
  for (size_t i = 0; i < width && i <= static_cast<size_t>(accepted); ++i) {
    c.reached_at[i] += steps;
    if (i < static_cast<size_t>(accepted)) c.accepted_at[i] += steps;
  }
}

void finish(AcceptanceRecord& r, const std::string& where) {
  r.counts.overlap_sum_at.assign(r.counts.accepted_at.begin(), r.counts.accepted_at.end());
  r.validate(where);
}

void by_efficiency(AcceptanceRecord& r, int64_t drafted, int64_t accepted, const std::string& where) {
  if (accepted > drafted) refuse(where, "more draft tokens accepted than drafted");
  r.efficiency = true;
  r.counts.steps = r.counts.drafted = drafted;
  r.counts.accepted = accepted;
  r.counts.reached_at = {drafted};
  r.counts.accepted_at = {accepted};
}

struct Totals {
  int64_t steps, drafted, accepted;
  bool may_be_tree = false;  // drafted / steps may include side branches of a tree
};

// Returns the depth of drafts of `k` tokens per step, which may be trees. `deepest` is the largest number of tokens
// that any step accepted. If the tree were deeper, all steps that accepted `deepest` tokens would have been rejected at
// the next position. If the probability of that is below kChance at the acceptance measured so far, the depth is
// `deepest`, else `k`.
int64_t depth_of(const std::vector<int64_t>& histogram, int64_t k) {
  constexpr double kChance = 0.01;
  int64_t deepest = static_cast<int64_t>(histogram.size()) - 1;
  while (deepest > 0 && histogram[static_cast<size_t>(deepest)] == 0) --deepest;
  if (deepest < 1 || deepest >= k) return k;
  double reached = 0, accepted = 0;
  for (size_t j = 0; j <= static_cast<size_t>(deepest); ++j) {
    const auto steps = static_cast<double>(histogram[j]);
    reached += steps * static_cast<double>(std::min(static_cast<int64_t>(j) + 1, deepest));
    accepted += steps * static_cast<double>(j);
  }
  const auto last = static_cast<double>(histogram[static_cast<size_t>(deepest)]);
  return std::pow((reached - accepted + 1) / (reached + 2), last) < kChance ? deepest : k;
}

void from_histogram(AcceptanceRecord& r, const std::vector<int64_t>& histogram, const Totals& totals,
                    const std::string& where) {
  const auto [steps, drafted, accepted, may_be_tree] = totals;
  int64_t counted = 0, weighted = 0;
  for (size_t j = 0; j < histogram.size(); ++j) {
    counted += histogram[j];
    weighted += histogram[j] * static_cast<int64_t>(j);
  }
  if (counted != steps || weighted != accepted) refuse(where, "the histogram and the counts contradict each other");
  const int64_t k = steps > 0 && drafted % steps == 0 ? drafted / steps : 0;
  if (k == 0 || static_cast<int64_t>(histogram.size()) > k + 1 || k > kMaxDraft)
    return by_efficiency(r, drafted, accepted, where);
  const int64_t depth = may_be_tree ? depth_of(histogram, k) : k;
  for (size_t j = 0; j < histogram.size(); ++j)
    if (histogram[j] > 0) add_steps(r.counts, histogram[j], depth, static_cast<int64_t>(j));
}

// Reads TensorRT-LLM's performance metrics of a request.
void read_trt(AcceptanceRecord& r, const Json& o, const std::string& where) {
  by_efficiency(r, count(o, "total_draft_tokens", where), count(o, "total_accepted_draft_tokens", where), where);
}

// Reads the per-step figures that vLLM and AIPerf write under the same names. The two totals may also have
// TensorRT-LLM's names, in case its records get per-step figures.
void read_vllm(AcceptanceRecord& r, const Json& o, const std::string& where) {
  const bool trt = o.contains("total_draft_tokens");
  const int64_t drafted = count(o, trt ? "total_draft_tokens" : "num_draft_tokens", where);
  const int64_t accepted = count(o, trt ? "total_accepted_draft_tokens" : "num_accepted_draft_tokens", where);
  const std::vector<int64_t> per_step = list_of(o, "per_step_drafted", where),
                             kept = list_of(o, "per_step_accepted", where);
  if (o.contains("acceptance_histogram_by_draft_length") && o["acceptance_histogram_by_draft_length"].is_object()) {
    for (const auto& [k, counts] : o["acceptance_histogram_by_draft_length"].items()) {
      const std::vector<int64_t> histogram = histogram_of(counts, where + ": acceptance_histogram_by_draft_length");
      for (size_t j = 0; j < histogram.size(); ++j)
        if (histogram[j] > 0) add_steps(r.counts, histogram[j], width_of(k, where), static_cast<int64_t>(j));
    }
  } else if (!per_step.empty() && per_step.size() == kept.size()) {
    for (size_t i = 0; i < per_step.size(); ++i) add_steps(r.counts, 1, per_step[i], kept[i]);
  } else {
    from_histogram(r, histogram_of(o["acceptance_histogram"], where + ": acceptance_histogram"),
                   {.steps = count(o, "num_spec_steps", where), .drafted = drafted, .accepted = accepted}, where);
  }
  if (r.counts.accepted != accepted || r.counts.drafted != drafted)
    refuse(where, "the steps and the counts contradict each other");
}

// Reads SGLang's figures. Versions before 0.5.20 used other names for three of them.
void read_sglang(AcceptanceRecord& r, const Json& o, const std::string& where) {
  const bool old = !o.contains("spec_num_proposed_drafts") && o.contains("spec_draft_token_num");
  const int64_t steps = count(o, "spec_verify_ct", where),
                drafted = count(o, old ? "spec_draft_token_num" : "spec_num_proposed_drafts", where),
                accepted = count(o, old ? "spec_accept_token_num" : "spec_num_correct_drafts", where);
  const char* const name = old ? "spec_accept_histogram" : "spec_correct_drafts_histogram";
  if (o.contains(name) && o[name].is_array() && !o[name].empty())
    from_histogram(r, histogram_of(o[name], where + ": " + name),
                   {.steps = steps, .drafted = drafted, .accepted = accepted, .may_be_tree = true}, where);
  else
    by_efficiency(r, drafted, accepted, where);
}

void read_llama(AcceptanceRecord& r, const Json& o, const std::string& where) {
  by_efficiency(r, count(o, "draft_n", where), count(o, "draft_n_accepted", where), where);
}

// Reads the request's settings from any object in the line.
void read_request(AcceptanceRecord& r, const Json& o) {
  if (o.contains("temperature") && o["temperature"].is_number())
    r.temperature = std::clamp(o["temperature"].get<double>(), 0.0, 10.0);
  for (const char* key : {"json_schema", "regex", "ebnf", "structural_tag", "guided_json", "guided_regex",
                          "guided_choice", "structured_outputs", "grammar"})
    if (o.contains(key) && !o[key].is_null() && o[key] != "") r.constrained = true;
  if (o.contains("response_format") && o["response_format"].is_object() &&
      o["response_format"].value("type", Json("text")) != "text")
    r.constrained = true;
  for (const char* key : {"created", "timestamp", "time"})
    if (o.contains(key) && o[key].is_number() && o[key] >= kFirstTime &&
        in_range(AcceptanceFigure::kTime, o[key].get<double>()))
      r.time = static_cast<int64_t>(o[key].get<double>());
  if (o.contains("domain") && o["domain"].is_string()) {
    r.segment = o["domain"].get<std::string>().substr(0, 32);
    for (char& c : r.segment)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  }
}

struct Search {
  std::string where;
  std::vector<AcceptanceRecord> records;
  AcceptanceRecord request;

  void visit(const Json& node, int depth) {
    if (depth > kMaxDepth) return;
    if (node.is_array()) {
      for (const Json& item : node) visit(item, depth + 1);
      return;
    }
    if (!node.is_object()) return;
    read_request(request, node);
    // SGLang's request-metrics log has the request as JSON inside a string.
    if (node.contains("request_parameters") && node["request_parameters"].is_string())
      visit(parse_foreign_json(node["request_parameters"].get_ref<const std::string&>(), where + ": request_parameters",
                               {.max_bytes = size_t{1} << 20, .max_depth = kMaxDepth}),
            depth + 1);
    AcceptanceRecord r;
    const bool vllm = node.contains("acceptance_histogram") && node.contains("num_spec_steps"),
               trt = !vllm && node.contains("total_draft_tokens") && node.contains("total_accepted_draft_tokens"),
               sglang = node.contains("spec_verify_ct") && !node["spec_verify_ct"].is_null(),
               llama = node.contains("draft_n") && node.contains("draft_n_accepted");
    if (vllm)
      read_vllm(r, node, where);
    else if (trt)
      read_trt(r, node, where);
    else if (sglang)
      read_sglang(r, node, where);
    else if (llama)
      read_llama(r, node, where);
    if (vllm || trt || sglang || llama) {
      finish(r, where);
      if (records.size() >= kMaxAnswers) refuse(where, "more answers in one line than are read");
      records.push_back(std::move(r));
      return;
    }
    // Conversations are skipped, because their text may contain similar keys. SGLang may write the figures of an answer
    // twice, in meta_info and in sglext, so sglext is read only if nothing else was found.
    const size_t before = records.size();
    for (const auto& [key, value] : node.items())
      if (value.is_structured() && key != "messages" && key != "message" && key != "delta" && key != "tools" &&
          key != "prompt" && key != kSglangExtension)
        visit(value, depth + 1);
    if (records.size() == before && node.contains(kSglangExtension)) visit(node[kSglangExtension], depth + 1);
  }
};

}  // namespace

std::vector<AcceptanceRecord> foreign_records(std::string_view line, const std::string& where) {
  Search search{where, {}, {}};
  search.visit(parse_foreign_json(line, where, {.max_bytes = size_t{1} << 20, .max_depth = kMaxDepth}), 0);
  if (search.records.empty())
    throw Error(ErrorKind::kData, where +
                                      ": no acceptance in it: expected a record of specdec (schema "
                                      "specdec.acceptance/1), vLLM (acceptance_histogram), TensorRT-LLM "
                                      "(total_draft_tokens), SGLang (spec_verify_ct) or llama.cpp (timings.draft_n)");
  for (AcceptanceRecord& r : search.records) {
    r.time = search.request.time;
    r.temperature = search.request.temperature;
    r.constrained = search.request.constrained;
    r.segment = search.request.segment;
  }
  return std::move(search.records);
}

}  // namespace specdec::monitor
