// `specdec generate`: one answer of a target, with or without a draft.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "deploy/generate/options.h"
#include "engine/decode/generate.h"

namespace specdec::deploy {

struct LoadedPair;  // deploy/models/load_pair.h

struct GenerateHooks {                              // all may be empty
  std::function<void(const std::string&)> on_note;  // memory plan, warnings: one line each
  std::function<void(const std::string&)> on_text;  // the answer's text as it comes
};

struct GenerateOutput {
  bool stale = false;  // the draft is bound to another target and that was not allowed: nothing was generated
  std::string stale_reason;
  std::string text;  // the generated part only
  decode::GenerateResult result;
  Json inputs;  // {target: {path, id}, draft: …}
};

// Token ids of a prompt: raw text after BOS (empty text: BOS alone). Throws Error(kUsage) where that leaves nothing.
std::vector<int32_t> encode_prompt(const LoadedPair& pair, const std::string& text);
// … of a JSON file with an array of {role, content}, through the chat template. Throws Error(kData | kUsage).
std::vector<int32_t> encode_messages(const LoadedPair& pair, const std::string& file);

// Throws Error(kUsage) for contradicting options, and what load_pair and Stepper throw; Error(kNetwork) when stopped by
// a signal.
GenerateOutput run_generate_command(const GenerateOptions& options, const GenerateHooks& hooks, const Clock& clock);

// The contract's object (schema "specdec.generate/1").
Json to_json(const GenerateOutput& output, const std::string& started);
// "256 tokens in 0.31 s (826 / s) · 2.71 tokens a step · accepted 163 of 564 drafted …": one line.
std::string summary(const GenerateOutput& output);

}  // namespace specdec::deploy
