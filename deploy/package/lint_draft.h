// What the checks of every kind of draft share: the files, how config.json is read, and the comparison of tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "deploy/package/checks.h"

namespace specdec::deploy {

using TensorShape = std::vector<int64_t>;
using TensorShapes = std::map<std::string, TensorShape>;

std::string text_of(const TensorShape& shape);

// A draft and its target. Every check adds to `findings`.
class DraftLint {
 public:
  // Reads both config.json. Throws Error(kModel) if one is missing or no object.
  DraftLint(const fs::path& target, const fs::path& draft);

  void add(bool fatal, const char* rule, const std::string& text) { findings.push_back({fatal, rule, file, text}); }
  // Returns the object that describes the decoder's layers. The layout of the speculators library nests it in another.
  const Json& layers_config() const;
  int64_t number_in(const Json& object, const char* key, int64_t fallback) const;
  int64_t number(const char* key, int64_t fallback) const { return number_in(layers_config(), key, fallback); }
  bool flag(const char* key, bool fallback) const;
  int64_t target_number(const char* key) const;

  // Adds the matrices of a layer; `q` and `kv` are the widths of all heads together.
  struct LayerSizes {
    int64_t hidden, input, mlp, q, kv;
  };
  static void add_layer(TensorShapes& names, const std::string& at, const LayerSizes& layer);
  // Finds missing, misshapen and unknown tensors. An optional shape that is empty fits any. `unknown` says what engines
  // do with a tensor that they do not know; such a tensor is an error if `unknown_is_fatal`.
  void compare_tensors(const SafetensorsDirectory& tensors, const TensorShapes& required, const TensorShapes& optional,
                       const char* unknown, bool unknown_is_fatal);

  const fs::path draft, target;
  const std::string file;  // the draft's config.json
  const Json config, target_config;
  const bool is_speculators_layout;
  std::vector<Finding> findings;

 private:
  bool is_quantised() const;
};

// Checks an EAGLE-3 head. Each finding says what the loaders of vLLM and SGLang do with the head. It is an error if one
// of them loads the head wrongly or not at all, and the head's maker can mend that. It is a warning if some engine, or
// specdec itself, cannot use the head.
void lint_head(DraftLint& lint, const SafetensorsDirectory& tensors);

}  // namespace specdec::deploy
