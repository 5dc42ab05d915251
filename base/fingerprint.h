// What a draft is bound to: the target's fingerprint, tiers 1–3 of the ladder. Independent of sharding and file order.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"

namespace specdec {

struct Fingerprint {
  std::string config;     // tier 1: config.json, generation_config.json, quantisation (canonical JSON, names of files sorted)
  std::string tokenizer;  // tier 1: tokenizer.json and chat template bytes
  std::string header;     // tier 2: sorted (name, dtype, shape)
  std::string weights;    // tier 3: SHA-256 over 4 KiB at 4 seeded offsets in every tensor
  std::string id;         // sha256 of the canonical JSON of the four above: the canonical name

  bool operator==(const Fingerprint&) const = default;
};

// Throws Error(kModel) for anything malformed.
Fingerprint fingerprint_model(const std::filesystem::path& directory);
Json to_json(const Fingerprint& fingerprint);
Fingerprint fingerprint_from_json(const Json& object, const std::string& where);
// "weights", "tokenizer, weights", …: which tiers differ; empty when equal.
std::string differing_tiers(const Fingerprint& a, const Fingerprint& b);

}  // namespace specdec
