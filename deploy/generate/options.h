// Options of `specdec generate`.
#pragma once

#include <string>

#include "base/run_options.h"

namespace specdec::deploy {

struct GenerateOptions {
  std::string target, draft;      // MODEL; draft may be empty
  std::string prompt;             // raw text after BOS
  bool has_prompt = false;
  std::string messages_file;      // JSON array of {role, content}; through the chat template
  int64_t max_tokens = 256;
  bool ignore_eos = false;
  bool allow_stale = false;
  DeviceOptions device;
  SamplingOptions sampling;
  SpeculationOptions speculation;
};

}  // namespace specdec::deploy
