// The fingerprint identifies the target that a draft is bound to. This file has tiers 1 to 3 of 4 (base/full_digest.h
// has the fourth). The fingerprint does not depend on sharding or file order.
#pragma once

#include <filesystem>
#include <string>

#include "base/fields.h"

namespace specdec {

// Every digest is SHA-256 in lower-case hexadecimal, over canonical JSON (base/json.h) unless stated otherwise.
// * config: {file name: content} of config.json, generation_config.json, quantize_config.json, quant_config.json and
//   hf_quant_config.json as far as they exist, without the keys transformers_version, _name_or_path and _commit_hash
//   (they record who saved the file and do not change what the model computes).
// * tokenizer: {"tokenizer": digest of tokenizer.json's bytes, "chat_template": "sha256:" and the digest of its text,
//   or null, "bos_token", "eos_token": text or null from tokenizer_config.json}. The template comes from
//   chat_template.jinja, else chat_template.json, else tokenizer_config.json (a list of named templates is digested as
//   canonical JSON).
// * header: [[name, dtype, shape], …] sorted by name.
// * weights: over bytes, not over JSON. Every tensor, in the order of names, adds its name, NUL and a sample of its
//   bytes. The sample is all bytes if there are at most 16 KiB, else 4 KiB at each of 4 offsets drawn by Philox from
//   the digest of the name.
// * id: {"config", "header", "tokenizer", "weights"}.
struct Fingerprint {
  // Tier 1: digest of config.json, generation_config.json, quantisation (canonical JSON, files sorted by name).
  std::string config;
  std::string tokenizer;  // tier 1: tokenizer.json and chat template bytes
  std::string header;     // tier 2: (name, dtype, shape) of every tensor, sorted
  std::string weights;    // tier 3: SHA-256 over 4 KiB at 4 seeded offsets in every tensor
  std::string id;         // SHA-256 of the canonical JSON of the four digests above; this is the target's name

  bool operator==(const Fingerprint&) const = default;
};

// Computes the fingerprint of a model directory. Throws Error(kModel) if a file is malformed or tokenizer.json is
// missing.
Fingerprint fingerprint_model(const std::filesystem::path& directory);
std::string tokenizer_digest(const std::filesystem::path& directory);  // computes only Fingerprint::tokenizer
// Reading fails if a value is not a digest, or if the id does not match the other four digests.
void visit_fields(Fields& f, Fingerprint& fingerprint);
Json to_json(const Fingerprint& fingerprint);
Fingerprint fingerprint_from_json(const Json& object, const std::string& where, ErrorKind kind = ErrorKind::kData);
// Returns which tiers of two fingerprints differ ("weights", "tokenizer, weights", …), "" if they are equal.
std::string differing_tiers(const Fingerprint& a, const Fingerprint& b);

}  // namespace specdec
