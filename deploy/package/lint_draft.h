// Code that the checks of all kinds of drafts share: the draft's files, access to config.json, and the comparison of
// tensors.
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

// A draft and its target under check. Every check appends its results to `findings`.
class DraftLint {
 public:
  // Reads config.json of target and draft. Throws Error(kModel) if either file is missing or does not hold an object.
  DraftLint(const fs::path& target, const fs::path& draft);

  void add(bool fatal, const char* rule, const std::string& text) { findings.push_back({fatal, rule, file, text}); }
  // Returns the object of config.json that describes the decoder's layers. The speculators library nests this object in
  // another one.
  const Json& layers_config() const;
  int64_t number_in(const Json& object, const char* key, int64_t fallback) const;
  int64_t number(const char* key, int64_t fallback) const { return number_in(layers_config(), key, fallback); }
  bool flag(const char* key, bool fallback) const;
  int64_t target_number(const char* key) const;

  // Sizes of a layer's matrices; `q` and `kv` are the widths of all query heads and of all key heads together.
  struct LayerSizes {
    int64_t hidden, input, mlp, q, kv;
  };
  static void add_layer(TensorShapes& names, const std::string& at, const LayerSizes& layer);
  // Finds missing, misshapen and unknown tensors. An empty shape in `optional` allows every shape. `unknown` is a text
  // that says what engines do with a tensor that they do not know. Such a tensor is an error if `unknown_is_fatal`,
  // else a warning.
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

// Checks an EAGLE-3 head. Each finding says what the loaders of vLLM and SGLang do with the head. A finding is an error
// if vLLM or SGLang loads the head wrongly or not at all, and if a change of the head's files can correct that. A
// finding is a warning if another engine, or specdec, cannot use the head.
void lint_head(DraftLint& lint, const SafetensorsDirectory& tensors);

}  // namespace specdec::deploy
