// Options of `specdec generate`.
#pragma once

#include <string>
#include <vector>

#include "base/run_options.h"

namespace specdec::deploy {

struct GenerateOptions {
  std::string target, draft;  // MODEL arguments (package, directory or hub name); draft may be empty
  std::string prompt;         // raw text, encoded after BOS
  bool has_prompt = false;
  std::string messages_file;  // file with a JSON array of {role, content}, rendered by the chat template
  int64_t max_tokens = 256;
  bool ignore_eos = false;
  bool allow_stale = false;
  DeviceOptions device;
  SamplingOptions sampling;
  double presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  std::vector<std::string> logit_bias;  // "ID=VALUE" each
  std::vector<std::string> bad_words;
  std::string json_schema_file;  // file; the answer must be JSON that matches this schema
  std::string regex;             // the whole answer must match this expression
  SpeculationOptions speculation;
};

}  // namespace specdec::deploy
