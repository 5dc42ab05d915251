// One finished request's acceptance as other engines write it, found anywhere in a line of JSON (a response, an access
// log, a batch output): vLLM 0.33 `metrics.speculative_decoding`, TensorRT-LLM's and AIPerf's record of the same
// (SpecDecodeAcceptanceRecord), SGLang 0.5 `meta_info` and its request-metrics log, llama.cpp `timings`.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/schema/acceptance_record.h"

namespace specdec::monitor {

// One record for each answer in the line. overlap is what was accepted; reached_i = steps that accepted all before i,
// exact where every step drafted the same number of tokens or the engine lists the steps, else the record is one of
// efficiency. Time, temperature, grammar and segment (`metadata.domain` or `domain`) where the line has them, else 0,
// 1, none and "". Throws Error(kData): not JSON, no such figures in it, or figures that contradict each other.
std::vector<AcceptanceRecord> foreign_records(std::string_view line, const std::string& where);

}  // namespace specdec::monitor
