// Reads the acceptance records that other engines write about finished requests. A record may be anywhere in a line of
// JSON (a response, an access log, a batch output). The known formats are vLLM 0.33 `metrics.speculative_decoding`, the
// same record from AIPerf (SpecDecodeAcceptanceRecord), TensorRT-LLM's performance metrics, SGLang 0.5 `meta_info` or
// `sglext` and its request-metrics log, and llama.cpp `timings`.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/schema/acceptance_record.h"

namespace specdec::monitor {

// Returns one record for each answer in the line. overlap_i is the number of tokens accepted at position i, and
// reached_i the number of steps that accepted all tokens before i. Both are exact if every step drafted the same number
// of tokens or the engine lists the steps; otherwise the record states only the efficiency (accepted / drafted).
// SGLang may draft trees. It then counts the tokens of all branches, so tokens per step exceed the depth of the tree.
// If more steps end at the same greatest depth than chance can explain, this depth is taken as the depth of the tree,
// and later positions count as not drafted.
// Time, temperature, grammar and segment (`metadata.domain` or `domain`) default to 0, 1, none and "". Throws
// Error(kData) if the line is not JSON, has no such figures, or has figures that contradict each other.
std::vector<AcceptanceRecord> foreign_records(std::string_view line, const std::string& where);

}  // namespace specdec::monitor
