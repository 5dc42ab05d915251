// Checks model files for faults that make engines refuse a draft or silently lower its acceptance rate.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace specdec::deploy {

struct Finding {
  bool fatal = false;  // true: the pair cannot be served; false: some engine serves it worse
  std::string rule;    // an id of lint_rules.h
  std::string file;    // path the finding is about
  std::string text;
};
void visit_fields(Fields& f, Finding& finding);

// Checks a target and its draft: vocabulary size, tokenizer bytes, weights without NaN or infinity (reads all tensors
// of both models), context length, and the draft's config.json (rope and dtype under both their older and newer keys,
// nulls that engines mistake for numbers, remote code). A `head` (EAGLE-3) may come without a tokenizer. Throws
// Error(kModel) for files that do not load.
std::vector<Finding> check_pair(const std::filesystem::path& target, const std::filesystem::path& draft,
                                bool head = false);

// Returns the sorted names of the files that make up a model directory: config and tokenizer files, chat templates,
// licences and the safetensors files with its tensors. Leaves out pickles, code and sub-directories. Throws
// Error(kModel).
std::vector<std::string> model_files(const std::filesystem::path& directory);
// Returns whether this file of a model defines how text becomes tokens and back.
bool is_tokenizer_file(const std::string& name);

}  // namespace specdec::deploy
