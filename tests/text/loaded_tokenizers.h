// Tokenizers from the shared test data, used by several tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "tests/base/scratch.h"
#include "tests/text/shared_data.h"
#include "text/tokenizer.h"

namespace specdec::text {

inline std::filesystem::path gpt2() { return test::shared_data() / "tokenizers/gpt2"; }

// Returns the tokenizer of a directory, loaded once per process. Loading takes most of the time of these tests, so all
// tests that do not change the tokenizer share one instance.
inline const Tokenizer& loaded(const std::filesystem::path& directory) {
  static std::map<std::filesystem::path, Tokenizer> tokenizers;
  return tokenizers.try_emplace(directory, directory).first->second;
}

// Writes TinyLlama's tokenizer. Its vocabulary is Llama 2's, so it is made from Phi-3's file, which has the same
// vocabulary. Phi-3's added tokens with ids from 32,000 on are removed here.
inline void write_tinyllama(const testing::Scratch& d) {
  Json t = read_json(test::shared_data() / "tokenizers/ort-ext/phi-3-mini/tokenizer.json", ErrorKind::kModel);
  Json added = Json::array();
  for (Json token : t["added_tokens"])
    if (token["id"] < 3) {
      token["special"] = true;
      token["rstrip"] = false;
      added.push_back(token);
    }
  t["added_tokens"] = added;
  const Json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
             a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  t["post_processor"]["single"] = {bos, a};
  t["post_processor"]["special_tokens"] = {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}};
  testing::put(d / "tokenizer.json", t.dump());
  testing::put(d / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

inline std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

}  // namespace specdec::text
