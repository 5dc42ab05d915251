// What a client asks of one answer. Nothing here changes while the answer is made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/logits_processors.h"

namespace specdec::decode {

// What holds for every answer to a request, whatever its prompt and its seed.
struct RequestOptions {
  int64_t max_tokens = 256;
  std::vector<int32_t> eos_ids = {};  // one of these ends an answer and belongs to it; empty: none does
  SamplingOptions sampling = {};
  std::shared_ptr<const LogitsProcessors> rules = nullptr;  // null: logits as the models give them
  bool speculate = true;
  bool seeded = false;           // the text must depend on nothing but the request
  int logprobs = -1;             // >= 0: of every emitted token, with this many of the likeliest ones
  bool prompt_logprobs = false;  // of the prompt's tokens as well
  int reject_top = 0;            // > 0: the first refused token of every step, with this many of the target's likeliest
  uint64_t tenant = 0;           // whose cached blocks may be reused, and who may reuse those of this answer
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  uint64_t seed = 0;
  RequestOptions options = {};
};

}  // namespace specdec::decode
