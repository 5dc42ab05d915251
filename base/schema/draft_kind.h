// Tells kinds of draft models apart: a small model that can stand alone, or one of the heads that read a target's
// hidden states. config.json alone does not tell: original EAGLE heads call themselves LlamaForCausalLM. So these
// functions also look at the names of the tensors.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "base/json.h"

namespace specdec {

enum class DraftKind {
  kModel,
  kEagle3,
  kEagle1,         // EAGLE-1 and -2, and HASS
  kParallelEagle,  // P-EAGLE: an EAGLE-3 head that drafts several tokens in one pass
  kMtp,            // modules for multi-token prediction
  kBlock,          // DFlash, DSpark, Domino and other drafters of blocks
  kMedusa,
  kMlp,  // MLP and LSTM speculators
};

// `tensors` are the names of the draft's tensors; empty if they are not known.
DraftKind kind_of_draft(const Json& config, const std::set<std::string>& tensors);
// Reads config.json and, where there are any, the headers of *.safetensors. Throws Error(kModel) for files that do not
// load.
DraftKind kind_of_draft(const std::filesystem::path& directory);

// Returns the kind with its article: "an EAGLE-1 or -2 head".
const char* name_of(DraftKind kind);
// Returns which of vLLM 0.33 and SGLang 0.5.23 load the kind, and how: "vLLM (method eagle) and SGLang (EAGLE)".
const char* loaded_by(DraftKind kind);

}  // namespace specdec
