// The parameters that a client requests for one answer. They do not change while the answer is generated.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/sampling/logits_processors.h"

namespace specdec::decode {

// The options that all answers to one request share. The prompt and the seed may differ between the answers.
struct RequestOptions {
  int64_t max_tokens = 256;
  // Tokens that end the answer. The answer includes the token that ended it. Empty: no token ends it.
  std::vector<int32_t> eos_ids = {};
  SamplingOptions sampling = {};
  std::shared_ptr<const LogitsProcessors> rules = nullptr;  // null: the models' logits are used unchanged
  bool speculate = true;
  bool seeded = false;           // the answer must depend only on the request
  int logprobs = -1;             // >= 0: report the logprobs of every emitted token and of this many likeliest tokens
  bool prompt_logprobs = false;  // also report logprobs of the prompt's tokens
  // > 0: report the first rejected token of every step, with this many of the target's likeliest tokens.
  int reject_top = 0;
  uint64_t tenant = 0;  // cached blocks are shared only within a tenant
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  uint64_t seed = 0;
  RequestOptions options = {};
};

}  // namespace specdec::decode
