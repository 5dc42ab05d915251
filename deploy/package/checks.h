// What makes engines refuse a draft or lose acceptance silently, checked on the files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace specdec::deploy {

struct Finding {
  bool fatal = false;  // the pair cannot be served; otherwise some engine serves it worse
  std::string rule;    // id of lint.h
  std::string file;    // path the finding is about
  std::string text;
};

// Vocabularies, tokenizer bytes, finite weights (every float tensor of both models is read), rope and dtype spelled in
// both generations of keys, nulls that engines mistake, context length, remote code. A `head` (EAGLE-3) may come
// without a tokenizer. Throws Error(kModel) for files that do not load.
std::vector<Finding> check_pair(const std::filesystem::path& target, const std::filesystem::path& draft,
                                bool head = false);

// Names of the files that make up a model directory: config and tokenizer files, chat templates, licences and the
// safetensors that hold its tensors. No pickles, no code, no sub-directories. Sorted. Throws Error(kModel).
std::vector<std::string> model_files(const std::filesystem::path& directory);
// Of those, the ones that define text ⇄ tokens.
bool is_tokenizer_file(const std::string& name);

}  // namespace specdec::deploy
