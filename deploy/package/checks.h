// Checks model files for faults that make engines refuse a draft or silently lower its acceptance rate.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace specdec::deploy {

struct Finding {
  bool fatal = false;  // true: the pair cannot be served; false: at least one engine serves it worse
  std::string rule;    // id of a rule in lint_rules.h
  std::string file;    // path of the file with the fault
  std::string text;
};
void visit_fields(Fields& f, Finding& finding);

// Checks a target and its draft:
// - both models: vocabulary size, tokenizer bytes, context length, no NaN or infinity in the weights (reads all
//   tensors);
// - the draft's config.json: no contradiction between old and new keys for rope and dtype, no null where engines
//   expect a number, no remote code.
// With `head`, the draft is an EAGLE-3 head, which may have no tokenizer. Throws Error(kModel) for files that do not
// load.
std::vector<Finding> check_pair(const std::filesystem::path& target, const std::filesystem::path& draft,
                                bool head = false);

// Returns the sorted names of the files that make up a model directory: config and tokenizer files, chat templates,
// licences and the safetensors files with its tensors. Leaves out pickles, code and sub-directories. Throws
// Error(kModel).
std::vector<std::string> model_files(const std::filesystem::path& directory);
// Returns whether a model's file `name` belongs to its tokenizer.
bool is_tokenizer_file(const std::string& name);

}  // namespace specdec::deploy
