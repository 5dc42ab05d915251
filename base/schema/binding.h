// The file specdec.json of a draft. It states the target that the draft was made for, and how the draft was made.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/fingerprint.h"
#include "base/json.h"

namespace specdec {

struct DraftBinding {
  static constexpr int kVersion = 1;  // schema "specdec.draft/1"
  Fingerprint target;
  std::string kind;  // how the draft was made: "prune:2", "model", "config"
  std::string loss;
  Json training =
      Json::object();  // provenance: data digest, steps, acceptance before and after with intervals, tool version
};
Json to_json(const DraftBinding& binding);
DraftBinding draft_binding_from_json(const Json& object, const std::string& where);
// Returns the directory's specdec.json, or nothing if it has none (an unbound draft). Throws Error(kModel) if it is
// malformed.
std::optional<DraftBinding> read_binding(const std::filesystem::path& draft_directory);

enum class BindingState { kBound, kUnbound, kStale };
struct BindingCheck {
  BindingState state = BindingState::kUnbound;
  std::string reason;  // for kStale: which tiers differ, and both ids
};
// Fingerprints the target and compares all four digests. An unbound draft must have the same vocabulary and tokenizer
// bytes, else throws Error(kModel). Throws Error(kUsage) if the target is a draft that was made for the other model.
BindingCheck check_binding(const std::filesystem::path& target, const std::filesystem::path& draft);

}  // namespace specdec
