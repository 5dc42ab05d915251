// Reads the acceptance records of other engines for finished requests, from anywhere in a line of JSON (a response, an
// access log, a batch output): vLLM 0.33 `metrics.speculative_decoding`, the same record from AIPerf
// (SpecDecodeAcceptanceRecord), TensorRT-LLM's performance metrics, SGLang 0.5 `meta_info` or `sglext` and its
// request-metrics log, llama.cpp `timings`.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/schema/acceptance_record.h"

namespace specdec::monitor {

// Returns one record for each answer in the line. The overlap at a position is the number of accepted tokens, and
// reached_i the number of steps that accepted all tokens before i. This is exact if every step drafted the same number
// of tokens or the engine lists the steps; otherwise the record only states efficiency (accepted / drafted). SGLang may
// draft trees and then counts the tokens of all branches, so tokens per step exceeds the depth of the tree. If more
// steps end at the same greatest depth than chance can explain, that depth is taken as the tree's depth, and later
// positions count as not drafted. Time, temperature, grammar and segment (`metadata.domain` or `domain`) default to 0,
// 1, none and "". Throws Error(kData) if the line is not JSON, has no such figures, or has figures that contradict each
// other.
std::vector<AcceptanceRecord> foreign_records(std::string_view line, const std::string& where);

}  // namespace specdec::monitor
