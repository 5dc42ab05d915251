// `specdec generate`: generates one answer of a target, with or without a draft.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fields.h"
#include "base/progress.h"
#include "deploy/generate/options.h"
#include "engine/decode/generate.h"

namespace specdec::deploy {

struct LoadedPair;  // deploy/models/load_pair.h

struct GenerateHooks {                              // each may be empty
  std::function<void(const std::string&)> on_note;  // takes the memory plan and warnings, one line each
  std::function<void(const std::string&)> on_text;  // takes the answer's text as it is generated
  ProgressFn progress = {};                         // reports the progress of loading the models and of prefill
};

struct GenerateOutput {
  bool stale = false;  // the draft is bound to another target and allow_stale was not set, so nothing was generated
  std::string stale_reason;
  std::string text;  // the generated text, without the prompt
  decode::GenerateResult result;
  Json inputs;  // {target: {path, id}, draft: …}
  std::string started;
};

// Returns the token ids of BOS followed by the raw text. Throws Error(kUsage) if that makes no token at all, because
// the text is empty and the model has no BOS.
std::vector<int32_t> encode_prompt(const LoadedPair& pair, const std::string& text);

// Generates one answer. Throws Error(kUsage) for contradictory options, and Error(kNetwork), the kind that means "try
// again", if a signal stops it. Also throws what load_pair and Stepper throw.
GenerateOutput run_generate_command(const GenerateOptions& options, const GenerateHooks& hooks, const Clock& clock);

// Names the fields of the JSON output of `specdec generate` (docs/contract.md; schema "specdec.generate/1").
void visit_fields(Fields& f, GenerateOutput& output);
// Returns a line such as "256 tokens in 0.31 s (826 / s), finish: stop; 2.71 tokens per step, accepted 163 of 564
// drafted …".
std::string summary(const GenerateOutput& output);

}  // namespace specdec::deploy
