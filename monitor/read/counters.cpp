#include "monitor/read/counters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "base/acceptance.h"
#include "base/schema/acceptance_range.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxPosition = 64;
constexpr size_t kMaxSeries = 20000, kMaxShown = 120;
constexpr double kMostPerSecond = 1e7;  // tokens or steps per second of one replica; no server makes more
constexpr int64_t kShortestElapsed = 60, kUnknownElapsed = 86400;
// A server goes on counting while its counters are read one after the other, so one counter may lag another by this
// much.
constexpr double kSlackShare = 0.05, kSlack = 4096;

// Shortens foreign labels and names and makes them printable.
std::string shown(const std::string& text) {
  std::string out = text.substr(0, kMaxShown);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return out;
}

// The meaning of a series. The names come from vLLM 0.33 v1/spec_decode/metrics.py, SGLang 0.5
// observability/metrics_collector.py, TensorRT-LLM metrics/collector.py and llama.cpp tools/server; specdec's own are
// vLLM's with another prefix.
enum class Meaning { kDrafts, kDrafted, kAccepted, kGenerated, kAcceptedAt, kDraftedAt, kReachedAt, kOverlapAt, kInfo };
struct Known {
  const char* engine;
  const char* name;
  Meaning meaning;
};
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

// Others export the counters of these engines under longer names: Ray Serve writes ray_vllm_x and KServe kserve_vllm:x,
// and where a colon is not allowed it becomes an underscore.
constexpr std::string_view kWrappers[] = {"ray_", "kserve_"};
constexpr std::string_view kRenamed[] = {"vllm", "sglang", "llamacpp"};

// Returns the engine's own name for a series, which is `name` if nobody renamed it.
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

[[noreturn]] void bad_line(const std::string& where, size_t number, const std::string& reason) {
  throw PageError(where + ": line " + std::to_string(number) + ": " + reason +
                  ", expected Prometheus text format 0.0.4");
}

// Parses a series that series_text() wrote.
Sample parse_series(const std::string& series, const std::string& where) {
  PageLine line = parse_line(series + " 0");
  if (!line.is_sample) throw PageError(where + ": not a series: " + shown(series));
  return std::move(line.sample);
}

const std::string* position_label(const Sample& s) {
  for (const char* key : {"position", "token_position"})
    if (const auto found = s.labels.find(key); found != s.labels.end()) return &found->second;
  return nullptr;
}

// Labels that describe what is counted and do not belong to the replica's identity.
constexpr const char* kNoReplica[] = {"position", "token_position", "draft", "target", "package"};

std::string replica_of(const Sample& s) {
  std::map<std::string, std::string> labels = s.labels;
  for (const char* name : kNoReplica) labels.erase(name);
  return series_text("", labels);
}
std::string replica_of(const std::string& series) { return replica_of(parse_series(series, "state")); }

// Computes the sums from the series.
void sum_up(Counters& c, const std::string& where) {
  for (const auto& [key, value] : c.series) {
    const Sample s = parse_series(key, where);
    const Known* k = known(s.name);
    if (!k) continue;
    if (k->meaning != Meaning::kGenerated) c.any = true;
    const auto add_at = [&](std::vector<double>& values) {
      const size_t position = std::stoul(*position_label(s));
      if (values.size() <= position) values.resize(position + 1, 0.0);
      values[position] += value;
    };
    switch (k->meaning) {
      case Meaning::kDrafts:
        c.drafts += value;
        break;
      case Meaning::kDrafted:
        c.drafted += value;
        break;
      case Meaning::kAccepted:
        c.accepted += value;
        break;
      case Meaning::kGenerated:
        c.generated += value;
        break;
      case Meaning::kAcceptedAt:
        add_at(c.accepted_at);
        break;
      case Meaning::kDraftedAt:
        add_at(c.drafted_at);
        break;
      case Meaning::kReachedAt:
        add_at(c.reached_at);
        break;
      case Meaning::kOverlapAt:
        add_at(c.overlap_sum_at);
        break;
      case Meaning::kInfo:
        break;
    }
  }
}

class Collector {
 public:
  Collector(std::string where, std::string model) : where_(std::move(where)), model_(std::move(model)) {}

  void take(const Sample& s, size_t number) {
    const Known* k = known(s.name);
    if (!k) return;
    if (k->meaning == Meaning::kInfo) {
      const auto label = [&](const char* key) { return s.labels.count(key) ? s.labels.at(key) : std::string(); };
      if (s.value != 0) counters_.pairs[replica_of(s)] = {label("draft"), label("target")};
      return;
    }
    if (!in_range(AcceptanceFigure::kCounter, s.value)) return no_count(s, number);
    if (k->meaning >= Meaning::kAcceptedAt) {
      const std::string* position = position_label(s);
      if (!position || position->empty() ||
          !std::all_of(position->begin(), position->end(), [](char c) { return c >= '0' && c <= '9'; }))
        bad_line(where_, number, "a series by position without a position");
      if (position->size() > 3) return;
      if (std::stoul(*position) > kMaxPosition) return;
    }
    if (const auto model = s.labels.find("model_name"); model != s.labels.end()) {
      models_.insert(model->second);
      if (!model_.empty() && model->second != model_) return;
    }
    engines_.insert(k->engine);
    const std::string key = series_text(k->name, s.labels);
    const auto [first, is_new] = names_.emplace(key, s.name);
    if (is_new)
      counters_.series[key] = s.value;
    else if (first->second == s.name)  // else the page has one counter under two names
      bad_.emplace(replica_of(s), "line " + std::to_string(number) + ": " + shown(s.name) +
                                      " is there twice with the same labels: do two servers share this page?");
    if (counters_.series.size() > kMaxSeries)
      throw PageError(where_ + ": more than " + std::to_string(kMaxSeries) + " acceptance series: narrow the match");
  }

  void no_count(const Sample& s, size_t number) {
    bad_.emplace(replica_of(s), "line " + std::to_string(number) + ": " + s.name + " is no count: expected " +
                                    range_of(AcceptanceFigure::kCounter).expected());
  }

  Counters done() {
    const auto listed = [](const std::set<std::string>& names) {
      std::string text;
      for (const std::string& name : names) text += (text.empty() ? "" : ", ") + shown(name);
      return text;
    };
    if (engines_.size() > 1)
      throw PageError(where_ + ": counters of several engines (" + listed(engines_) +
                      "), expected one: narrow the match");
    if (model_.empty() ? models_.size() > 1 : !models_.empty() && !models_.contains(model_))
      throw PageError(where_ + ": counters of " + listed(models_) +
                      (model_.empty() ? ", expected one model: give --model" : ", expected --model " + model_));
    if (!engines_.empty()) counters_.engine = *engines_.begin();
    std::erase_if(counters_.series, [&](const auto& series) { return bad_.contains(replica_of(series.first)); });
    if (!bad_.empty() && counters_.series.empty()) throw PageError(where_ + ": " + bad_.begin()->second);
    for (const auto& [replica, reason] : bad_) counters_.set_aside.push_back(shown(replica) + ": " + reason);
    sum_up(counters_, where_);
    return std::move(counters_);
  }

 private:
  std::string where_, model_;
  Counters counters_;
  std::set<std::string> models_, engines_;
  std::map<std::string, std::string> names_;  // series → its name on the page
  std::map<std::string, std::string> bad_;    // replica → the problem with its numbers
};

// Returns the reason why a replica cannot have counted these numbers between two scrapes, "" = they are possible.
std::string contradiction(const Counters& c) {
  const auto above = [](double part, double whole) { return part > whole * (1 + kSlackShare) + kSlack; };
  if (c.drafted > 0 && above(c.accepted, c.drafted)) return "more accepted than drafted";
  for (size_t i = 0; i < c.overlap_sum_at.size(); ++i)
    if (above(c.overlap_sum_at[i], i < c.reached_at.size() ? c.reached_at[i] : 0)) return "an overlap above 1";
  for (size_t i = 0; i < c.accepted_at.size(); ++i) {
    if (!c.reached_at.empty() && above(c.accepted_at[i], i < c.reached_at.size() ? c.reached_at[i] : 0))
      return "more accepted than reached";
    if (c.drafts > 0 && above(c.accepted_at[i], c.drafts)) return "more accepted at a position than there were steps";
  }
  return "";
}

}  // namespace

void Counters::add(const Counters& other) {
  any = any || other.any;
  engine = other.engine;
  drafts += other.drafts;
  drafted += other.drafted;
  accepted += other.accepted;
  generated += other.generated;
  add_to(accepted_at, other.accepted_at);
  add_to(drafted_at, other.drafted_at);
  add_to(reached_at, other.reached_at);
  add_to(overlap_sum_at, other.overlap_sum_at);
}

Counters parse_exposition(const std::string& text, const std::string& where, const std::string& model) {
  Collector collector(where, model);
  size_t begin = 0, number = 0, first_bad = 0, samples = 0;
  std::string problem;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (++number > 100000) throw PageError(where + ": more than 100,000 lines");
    const PageLine line = parse_line(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (!line.problem.empty()) {
      if (known(line.sample.name)) bad_line(where, number, line.problem);
      if (first_bad == 0) first_bad = number, problem = line.problem;
    }
    if (!line.is_sample) continue;
    ++samples;
    collector.take(line.sample, number);
  }
  if (samples == 0 && first_bad > 0) {
    if (const size_t first = text.find_first_not_of(" \t\r\n"); text[first] == '[' || text[first] == '{')
      throw PageError(where + ": JSON, expected Prometheus text format 0.0.4: is it /prometheus/metrics? (where " +
                      "TensorRT-LLM has it, with return_perf_metrics: true)");
    bad_line(where, first_bad, problem);
  }
  return collector.done();
}

Counters parse_query_answer(const std::string& text, const std::string& where, const std::string& model) {
  const auto bad = [&](const std::string& what) {
    throw PageError(where + ": " + what + ", expected a Prometheus server's answer with an instant vector");
  };
  Json answer;
  try {
    answer = parse_foreign_json(text, where, {});
  } catch (const Error& e) {
    throw PageError(e.what());
  }
  if (!answer.is_object() || answer.value("status", Json()) != "success" || !answer.contains("data") ||
      !answer["data"].is_object())
    bad("no success");
  const Json& data = answer["data"];
  if (data.value("resultType", Json()) != "vector" || !data.contains("result") || !data["result"].is_array())
    bad("no vector");
  Collector collector(where, model);
  size_t number = 0;
  for (const Json& item : data["result"]) {
    ++number;
    Sample s;
    if (!item.is_object() || !item.contains("metric") || !item["metric"].is_object() || !item.contains("value") ||
        !item["value"].is_array() || item["value"].size() != 2 || !item["value"][1].is_string())
      bad("sample " + std::to_string(number) + " has no labels and value");
    for (const auto& [key, value] : item["metric"].items()) {
      if (!value.is_string()) bad("sample " + std::to_string(number) + ": a label that is no text");
      (key == "__name__" ? s.name : s.labels[key]) = value.get<std::string>();
    }
    s.value = std::strtod(item["value"][1].get_ref<const std::string&>().c_str(), nullptr);
    collector.take(s, number);
  }
  return collector.done();
}

// Sums up again after the series have changed.
void Counters::restore_sums() {
  Counters whole;
  whole.engine = engine;
  whole.time = time;
  whole.pairs = std::move(pairs);
  whole.set_aside = std::move(set_aside);
  whole.series = std::move(series);
  sum_up(whole, "state");
  *this = std::move(whole);
}

void Counters::keep(const std::function<bool(const ServedPair&)>& is_own) {
  std::set<std::string> others;
  for (const auto& [replica, pair] : pairs)
    if (!is_own(pair)) others.insert(replica);
  if (others.empty()) return;
  std::erase_if(series, [&](const auto& s) { return others.contains(replica_of(s.first)); });
  restore_sums();
}

void Counters::adopt(const Counters& now) {
  std::set<std::string> own;
  for (const auto& [key, value] : series) own.insert(replica_of(key));
  for (const auto& [key, value] : now.series)
    if (!own.contains(replica_of(key))) series.emplace(key, value);
  restore_sums();
}

Counters difference(const Counters& now, const Counters& before) {
  std::set<std::string> replicas, restarted;
  for (const auto& [key, value] : before.series) {
    const std::string replica = replica_of(key);
    replicas.insert(replica);
    if (const auto found = now.series.find(key); found != now.series.end() && found->second < value)
      restarted.insert(replica);
  }
  const bool timed = before.time > 0 && now.time > before.time;
  const double most = kMostPerSecond *
                      static_cast<double>(timed ? std::max(now.time - before.time, kShortestElapsed) : kUnknownElapsed);
  std::map<std::string, Counters> by_replica;
  std::map<std::string, std::string> bad;
  std::set<std::string> begun;
  for (const auto& [key, value] : now.series) {
    const std::string replica = replica_of(key);
    if (!replicas.contains(replica)) {
      begun.insert(replica);
      continue;
    }
    const auto old = before.series.find(key);
    const double rise = old == before.series.end() || restarted.contains(replica) ? value : value - old->second;
    if (rise > most) bad.emplace(replica, "a counter rose faster than any server can count");
    by_replica[replica].series[key] = rise;
  }
  Counters d;
  d.engine = now.engine;
  d.time = now.time;
  d.pairs = now.pairs;
  for (auto& [replica, counters] : by_replica) {
    sum_up(counters, "state");
    if (const std::string text = contradiction(counters); !text.empty()) bad.emplace(replica, text);
    if (const auto found = bad.find(replica); found != bad.end())
      d.set_aside.push_back((replica.empty() ? "" : shown(replica) + ": ") + found->second);
    else
      d.series.merge(counters.series);
  }
  sum_up(d, "state");
  d.any = now.any;
  for (const std::string& replica : begun) d.begun.push_back(shown(replica));
  return d;
}

std::set<std::string> counter_engines() {
  std::set<std::string> engines;
  for (const Known& k : kKnown) engines.insert(k.engine);
  return engines;
}

Json to_json(const Counters& c) { return {{"engine", c.engine}, {"time", c.time}, {"series", c.series}}; }

Counters counters_from_json(const Json& o, const std::string& where) {
  Counters c;
  if (!o.is_object() || !o.contains("series")) return c;  // a version that stored sums wrote it: start anew
  c.engine = json_string(o, "engine", "", where, ErrorKind::kData);
  c.time = json_int(o, "time", {.low = 0, .high = kMaxCount, .fallback = 0}, where, ErrorKind::kData);
  for (const auto& [key, value] : json_object(o, "series", kMaxSeries, where, ErrorKind::kData).items()) {
    if (!value.is_number() || !in_range(AcceptanceFigure::kCounter, value.get<double>())) return {};
    c.series[key] = value.get<double>();
  }
  sum_up(c, where);
  return c;
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
