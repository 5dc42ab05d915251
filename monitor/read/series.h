// The Prometheus series that count acceptance: the names that specdec, vLLM, SGLang, TensorRT-LLM and llama.cpp use,
// and their names after renaming by Ray Serve and KServe. Series on pages and series in the state file are both
// recognised by place_of().
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

// What a series counts: which counter (`known`), at which draft position.
struct Place {
  const Known* known = nullptr;  // null = not a series of acceptance
  size_t position = 0;           // 0 if the series is not counted by position
  bool is_beyond = false;        // the position is above kMaxPosition
  bool has_no_position = false;  // the series is counted by position, but its labels name none
};
Place place_of(const Sample& sample);

// Parses a series that series_text() wrote. Throws Error(kData) for other text.
Sample parse_series(const std::string& series, const std::string& where);
// Returns the identity of a series' replica: the labels as text, without the labels that describe the counter.
std::string replica_of(const Sample& sample);
std::string replica_of(const std::string& series);

// Makes labels and names from other servers printable and shortens them.
std::string shown_label(const std::string& text);

// Returns the names of all engines whose counters are known, as in Counters::engine.
std::set<std::string> counter_engines();
// Returns the PromQL for the counters of all known engines with the labels `match`, such as job="vllm"; "" = any
// labels.
std::string counters_query(const std::string& match);

}  // namespace specdec::monitor
