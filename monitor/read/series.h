// The Prometheus series that count acceptance, under the names of specdec, vLLM, SGLang, TensorRT-LLM and llama.cpp,
// also as Ray Serve and KServe rename them. Pages and the state file are read by these rules only.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "monitor/read/exposition.h"

namespace specdec::monitor {

inline constexpr size_t kMaxPosition = 64;

enum class Meaning { kDrafts, kDrafted, kAccepted, kGenerated, kAcceptedAt, kDraftedAt, kReachedAt, kOverlapAt, kInfo };
struct Known {
  const char* engine;
  const char* name;
  Meaning meaning;
};

// The meaning of a series: which counter, and which draft position.
struct Place {
  const Known* known = nullptr;  // null = not a series of acceptance
  size_t position = 0;           // 0 if the series is not counted by position
  bool is_beyond = false;        // the position is above kMaxPosition
  bool has_no_position = false;  // the series is counted by position, but its labels name none
};
Place place_of(const Sample& sample);

// Parses a series that series_text() wrote. Throws Error(kData) for other text.
Sample parse_series(const std::string& series, const std::string& where);
// Returns a replica's identity: the series' labels as text, without those that describe the counter.
std::string replica_of(const Sample& sample);
std::string replica_of(const std::string& series);

// Shortens foreign labels and names and makes them printable.
std::string shown_label(const std::string& text);

// Returns the names of all engines whose counters are known, as in Counters::engine.
std::set<std::string> counter_engines();
// Returns the PromQL for the counters of all known engines with the labels `match`, such as job="vllm"; "" = any
// labels.
std::string counters_query(const std::string& match);

}  // namespace specdec::monitor
