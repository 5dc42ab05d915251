#include "monitor/read/series.h"

#include <algorithm>

#include "base/error.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxShown = 120;

// The series names of each engine, from vLLM 0.33 v1/spec_decode/metrics.py, SGLang 0.5
// observability/metrics_collector.py, TensorRT-LLM metrics/collector.py and llama.cpp tools/server; specdec's own names
// are vLLM's with another prefix.
constexpr Known kKnown[] = {
    {"specdec", "specdec:spec_decode_num_drafts_total", Meaning::kDrafts},
    {"specdec", "specdec:spec_decode_num_draft_tokens_total", Meaning::kDrafted},
    {"specdec", "specdec:spec_decode_num_accepted_tokens_total", Meaning::kAccepted},
    {"specdec", "specdec:spec_decode_num_accepted_tokens_per_pos_total", Meaning::kAcceptedAt},
    {"specdec", "specdec:spec_decode_num_reached_tokens_per_pos_total", Meaning::kReachedAt},
    {"specdec", "specdec:spec_decode_overlap_sum_per_pos_total", Meaning::kOverlapAt},
    {"specdec", "specdec:generation_tokens_total", Meaning::kGenerated},
    {"specdec", "specdec:info", Meaning::kInfo},
    {"vllm", "vllm:spec_decode_num_drafts_total", Meaning::kDrafts},
    {"vllm", "vllm:spec_decode_num_draft_tokens_total", Meaning::kDrafted},
    {"vllm", "vllm:spec_decode_num_accepted_tokens_total", Meaning::kAccepted},
    {"vllm", "vllm:spec_decode_num_accepted_tokens_per_pos_total", Meaning::kAcceptedAt},
    {"vllm", "vllm:generation_tokens_total", Meaning::kGenerated},
    {"sglang", "sglang:spec_verify_calls_total", Meaning::kDrafts},
    {"sglang", "sglang:generation_tokens_total", Meaning::kGenerated},
    {"trtllm", "trtllm_spec_decode_num_draft_tokens_total", Meaning::kDrafted},
    {"trtllm", "trtllm_spec_decode_num_accepted_tokens_total", Meaning::kAccepted},
    {"trtllm", "trtllm_spec_decode_drafted_tokens_total", Meaning::kDraftedAt},
    {"trtllm", "trtllm_spec_decode_accepted_tokens_total", Meaning::kAcceptedAt},
    {"trtllm", "trtllm_generation_tokens_total", Meaning::kGenerated},
    {"llamacpp", "llamacpp:spec_decode_num_drafts_total", Meaning::kDrafts},
    {"llamacpp", "llamacpp:spec_decode_num_draft_tokens_total", Meaning::kDrafted},
    {"llamacpp", "llamacpp:spec_decode_num_accepted_tokens_total", Meaning::kAccepted},
    {"llamacpp", "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", Meaning::kAcceptedAt},
    {"llamacpp", "llamacpp:tokens_predicted_total", Meaning::kGenerated},
};

// Prefixes that wrappers add to the engines' series names: Ray Serve writes ray_vllm_x, KServe writes kserve_vllm:x. In
// the names of the engines in kRenamed, a wrapper may also replace the colon by an underscore.
constexpr std::string_view kWrappers[] = {"ray_", "kserve_"};
constexpr std::string_view kRenamed[] = {"vllm", "sglang", "llamacpp"};

// Returns the engine's own name of a series: removes a wrapper's prefix and restores the colon.
std::string own_name(std::string name) {
  for (const std::string_view wrapper : kWrappers)
    if (name.starts_with(wrapper)) name.erase(0, wrapper.size());
  for (const std::string_view engine : kRenamed)
    if (name.starts_with(engine) && name.size() > engine.size() && name[engine.size()] == '_')
      name[engine.size()] = ':';
  return name;
}

const Known* known(const std::string& name) {
  const std::string own = own_name(name);
  const auto* found = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return own == k.name; });
  return found == std::end(kKnown) ? nullptr : found;
}

const std::string* position_label(const Sample& s) {
  for (const char* key : {"position", "token_position"})
    if (const auto found = s.labels.find(key); found != s.labels.end()) return &found->second;
  return nullptr;
}

// Labels that describe the counter and are not part of the replica's identity.
constexpr const char* kNoReplica[] = {"position", "token_position", "draft", "target", "package"};

}  // namespace

std::string shown_label(const std::string& text) {
  std::string out = text.substr(0, kMaxShown);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return out;
}

Sample parse_series(const std::string& series, const std::string& where) {
  PageLine line = parse_line(series + " 0");
  if (!line.is_sample) throw Error(ErrorKind::kData, where + ": not a series: " + shown_label(series));
  return std::move(line.sample);
}

Place place_of(const Sample& s) {
  Place place{.known = known(s.name)};
  if (!place.known || place.known->meaning < Meaning::kAcceptedAt || place.known->meaning == Meaning::kInfo)
    return place;
  const std::string* text = position_label(s);
  if (!text || text->empty() || !std::all_of(text->begin(), text->end(), [](char c) { return c >= '0' && c <= '9'; }))
    place.has_no_position = true;
  else if (text->size() > 3 || std::stoul(*text) > kMaxPosition)
    place.is_beyond = true;
  else
    place.position = std::stoul(*text);
  return place;
}

std::string replica_of(const Sample& s) {
  std::map<std::string, std::string> labels = s.labels;
  for (const char* name : kNoReplica) labels.erase(name);
  return series_text("", labels);
}

std::string replica_of(const std::string& series) { return replica_of(parse_series(series, "state")); }

std::set<std::string> counter_engines() {
  std::set<std::string> engines;
  for (const Known& k : kKnown) engines.insert(k.engine);
  return engines;
}

std::string counters_query(const std::string& match) {
  std::string names, wrappers;
  for (const std::string_view wrapper : kWrappers) wrappers += (wrappers.empty() ? "" : "|") + std::string(wrapper);
  for (const Known& k : kKnown) {
    std::string name = k.name;
    if (std::find(std::begin(kRenamed), std::end(kRenamed), k.engine) != std::end(kRenamed))
      name = "(" + wrappers + ")?" + k.engine + "[:_]" + name.substr(std::string_view(k.engine).size() + 1);
    names += (names.empty() ? "" : "|") + name;
  }
  return "{__name__=~\"" + names + "\"" + (match.empty() ? "" : "," + match) + "}";
}

}  // namespace specdec::monitor
