// `specdec demo --model`: the life of a draft for a model of the user's, with requests that ship with the program and
// answers that the model itself writes. Nothing is arranged: where the draft does not pay, the story says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "cli/command.h"

namespace specdec::cli {

struct ModelStoryOptions {
  std::string model;  // MODEL
  std::filesystem::path out = "specdec-demo";
  double minutes = 30;            // about how long the whole story takes
  std::string draft = "prune:1";  // kind of the first draft, as in distill --draft
  int64_t draft_vocab = 8192;     // number of tokens that it can propose; 0 = all
  uint64_t seed = 1;
};

// Returns 0 if every check holds, else 3. Throws Error for anything unexpected.
int run_model_story(const Global& global, const ModelStoryOptions& options);

}  // namespace specdec::cli
