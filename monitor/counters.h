// Acceptance counters of a page in Prometheus' text format or of a Prometheus server: specdec, vLLM, SGLang,
// TensorRT-LLM, llama.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace specdec::monitor {

// What a server says of itself (specdec:info).
struct ServedPair {
  std::string draft, target;  // fingerprints, "" = not said
  bool operator==(const ServedPair&) const = default;
};

// One scrape: the series as they are, one a label set (engine, rank, instance, …), and their sums. Sums of two scrapes
// must not be subtracted: one replica's restart would hide in them. See difference().
struct Counters {
  bool any = false;                      // speculation's series exist: absent is not zero
  std::string engine;                    // specdec | vllm | sglang | trtllm | llamacpp
  int64_t time = 0;                      // unix seconds of the scrape, 0 = unknown
  std::map<std::string, double> series;  // "name{label=\"value\",…}", labels in order, only what is summed here
  double drafts = 0, drafted = 0, accepted = 0,
         generated = 0;  // drafts: verification steps; of SGLang its verify calls
  std::vector<double> accepted_at, drafted_at, reached_at,
      overlap_sum_at;                       // by position; drafted of TensorRT-LLM, the last two of specdec
  std::map<std::string, ServedPair> pairs;  // by replica (its labels, "" = the page has no more than one)
  std::vector<std::string> set_aside;       // replicas whose numbers no counter can hold, and why

  void add(const Counters& other);  // sums alone, of the same engine
  // Takes out the series of every replica that names a pair which `is_own` refuses.
  void keep(const std::function<bool(const ServedPair&)>& is_own);
};

// An Error(kData) about what a URL answered. A type of its own, since another poll may get a better answer; a file
// stays as it is.
class PageError final : public Error {
 public:
  explicit PageError(const std::string& message) : Error(ErrorKind::kData, message) {}
};

// Text exposition 0.0.4. Series with a model_name other than `model` are left out. Throws PageError for malformed text
// (with its line), more than 100,000 lines, a position above 64, series of two engines, and of several models where
// `model` is "". A replica with a number outside of AcceptanceFigure::kCounter is set aside; PageError where there is
// no other.
Counters parse_exposition(const std::string& text, const std::string& where, const std::string& model = "");

// Answer of GET /api/v1/query: an instant vector of the raw counters. Same rules.
Counters parse_query_answer(const std::string& text, const std::string& where, const std::string& model = "");

// new − old by series. A replica (its labels but for position) with a series that fell was restarted: all of its series
// count from zero. One that was not there before counts from now on. One whose counters rose faster than any server
// can, or that accepted more than it drafted, is set aside.
Counters difference(const Counters& now, const Counters& before);
Json to_json(const Counters& counters);
// Without series for a state of another version or with numbers that no counter holds: the next scrape begins anew.
Counters counters_from_json(const Json& object, const std::string& where);

// Every engine whose counters are known, by the name in Counters::engine.
std::set<std::string> counter_engines();

// PromQL for all of these counters under the labels of `match` (job="vllm"), "" = any.
std::string counters_query(const std::string& match);

}  // namespace specdec::monitor
