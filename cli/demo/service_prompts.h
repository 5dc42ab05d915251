// The requests of the demo on a model of the user's (`specdec demo --model`): those of a narrow service, which calls
// functions, and those of a mixed chat. They are made from sentences and words in share/specdec/demo/prompts.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::cli {

struct ServicePrompt {
  std::string domain;
  Json messages;       // as in an OpenAI request: system prompt and examples of the service, if any, and the request
  std::string answer;  // the right answer; empty if there is no single one
  double temperature = 1;
  int64_t max_tokens = 0;
};

class ServicePrompts {
 public:
  // Throws Error(kIo) if the file cannot be read, and Error(kData) if it is not a file of prompts.
  explicit ServicePrompts(const std::filesystem::path& file);
  // The domains, the narrow one first.
  const std::vector<std::string>& domains() const { return domains_; }
  // Returns request number `index` for `seed`. Philox draws it, so it is the same on every machine. Two thirds of the
  // requests are of the first domain.
  ServicePrompt at(uint64_t seed, int64_t index) const;

 private:
  Json services_;
  std::map<std::string, std::vector<std::string>> words_;
  std::vector<std::string> domains_;
};

}  // namespace specdec::cli
