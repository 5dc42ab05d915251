// Holds what a client asks for in one answer. Nothing in it changes while the answer is generated.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/sampling/logits_processors.h"

namespace specdec::decode {

// Holds the options that are the same for every answer to a request, whatever its prompt and its seed.
struct RequestOptions {
  int64_t max_tokens = 256;
  std::vector<int32_t> eos_ids = {};  // any of these ends the answer and is part of it; empty: no token ends it
  SamplingOptions sampling = {};
  std::shared_ptr<const LogitsProcessors> rules = nullptr;  // null: the models' logits are used unchanged
  bool speculate = true;
  bool seeded = false;           // the answer must depend on nothing but the request
  int logprobs = -1;             // >= 0: report logprobs of every emitted token and of this many likeliest tokens
  bool prompt_logprobs = false;  // report the same for the prompt's tokens
  // > 0: report the first refused token of every step, with this many of the target's likeliest tokens.
  int reject_top = 0;
  uint64_t tenant = 0;  // cached blocks are shared only within a tenant
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  uint64_t seed = 0;
  RequestOptions options = {};
};

}  // namespace specdec::decode
