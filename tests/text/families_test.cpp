// Compares small tokenizers and chat templates of every family, saved by transformers, with transformers' own results.
// tests/text/make_family_goldens.py writes both.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/file.h"
#include "base/json.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace specdec::text {
namespace {

const fs::path kGolden = fs::path(source_folder()) / "tests/text/golden";

const Json& golden() {
  static const Json all = read_json(kGolden / "families.json");
  return all;
}

struct Compared {
  int texts = 0, ids = 0, chats = 0;  // number of comparisons of each kind
  std::vector<std::string> differing;
  size_t enough = SIZE_MAX;  // stop after this many differences
};

void note(Compared& out, bool same, const std::string& what) {
  if (!same) out.differing.push_back(what);
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

struct Decoding {
  std::vector<int32_t> ids;
  std::string text, whole;  // whole: the text including special tokens
};
void compare_decoded(const Tokenizer& tokenizer, const Decoding& expected, const std::string& where, Compared& out) {
  const auto& [ids, text, whole] = expected;
  note(out, tokenizer.decode(ids, true) == text, where + ": decoded");
  note(out, tokenizer.decode(ids, false) == whole, where + ": decoded with special tokens");
  note(out, streamed(tokenizer, ids) == text, where + ": streamed");
}

// Compares the encoding and decoding of texts, and the decoding of id sequences that no text encodes to.
void compare_tokens(const Tokenizer& tokenizer, const Json& family, Compared& out) {
  std::vector<std::string> texts = golden()["texts"];
  for (const Json& own : family["texts"]) texts.push_back(own);
  ASSERT_EQ(texts.size(), family["encodings"].size());
  for (size_t i = 0; i < texts.size() && out.differing.size() < out.enough; ++i) {
    const Json& row = family["encodings"][i];
    const std::string where = Json(texts[i].substr(0, 60)).dump(-1, ' ', false, Json::error_handler_t::replace);
    const std::vector<int32_t> ids = row["ids"];
    std::vector<int32_t> full = row.value("before", std::vector<int32_t>{});
    full.insert(full.end(), ids.begin(), ids.end());
    note(out, tokenizer.encode(texts[i], false) == ids, where + ": encoded");
    note(out, tokenizer.encode(texts[i], true) == full, where + ": encoded with special tokens");
    const Decoding decoding{.ids = full, .text = row.value("text", texts[i]), .whole = row.value("whole", texts[i])};
    compare_decoded(tokenizer, decoding, where, out);
    ++out.texts;
  }
  for (const Json& row : family["decodings"]) {
    if (out.differing.size() >= out.enough) return;
    const Decoding decoding{.ids = row["ids"], .text = row["text"], .whole = row["whole"]};
    compare_decoded(tokenizer, decoding, "ids " + row["ids"].dump(), out);
    ++out.ids;
  }
}

std::string with_today(std::string text) {
  char day[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::strftime(day, sizeof day, "%Y-%m-%d", &parts);
  for (size_t at; (at = text.find("{{TODAY}}")) != std::string::npos;) text.replace(at, 9, day);
  return text;
}

// Does what the server does with a conversation: renders it, then tokenises it without further special tokens.
void compare_chats(const Tokenizer& tokenizer, const fs::path& directory, const Json& family, Compared& out) {
  const std::optional<ChatTemplate> chat = ChatTemplate::load(directory);
  ASSERT_EQ(chat.has_value(), !family["chats"].empty());
  const static Json conversations = read_json(kGolden / "chat_templates.json")["conversations"];
  for (const Json& row : family["chats"]) {
    std::vector<ChatMessage> messages;
    for (const Json& m : conversations[row["conversation"].get<std::string>()])
      messages.push_back({m["role"], m["content"]});
    const Json extra = row.value("extra", Json::object());
    const std::string where =
        row["conversation"].get<std::string>() + " " + row["add_generation_prompt"].dump() + " " + extra.dump();
    ++out.chats;
    std::string text;
    try {
      text = chat->render(messages, row["add_generation_prompt"], extra);
    } catch (const Error& e) {
      const bool raised =
          row.contains("error") && std::string(e.what()) == "chat template: " + row["error"].get<std::string>();
      note(out, raised, where + ": " + e.what());
      continue;
    }
    note(out, row.contains("text") && text == with_today(row["text"]), where + ": rendered " + text);
    if (!row.contains("ids")) continue;
    note(out, tokenizer.encode(text, false) == row["ids"].get<std::vector<int32_t>>(), where + ": encoded");
  }
}

Compared compare(const std::string& name, const fs::path& directory) {
  Compared out;
  const Tokenizer tokenizer(directory);
  const Json& family = golden()["families"][name];
  compare_tokens(tokenizer, family, out);
  compare_chats(tokenizer, directory, family, out);
  return out;
}

TEST(Families, TokenizersAndChatTemplatesGiveWhatTransformersGives) {
  for (const auto& [name, family] : golden()["families"].items()) {
    const Compared found = compare(name, kGolden / "families" / name);
    EXPECT_GE(found.texts, 100) << name;
    EXPECT_EQ(found.ids, 40) << name;
    for (const std::string& differing : found.differing) ADD_FAILURE() << name << ": " << differing;
  }
}

// The test texts exercise every part of every tokenizer: if a part is removed or a flag of an added token is changed,
// some results differ.
TEST(Families, EveryPartOfEveryPipelineIsReached) {
  testing::Scratch d;
  int parts = 0;
  for (const auto& [name, family] : golden()["families"].items()) {
    const fs::path directory = kGolden / "families" / name;
    const Json whole = read_json(directory / "tokenizer.json"), config = read_json(directory / "tokenizer_config.json");
    const auto expect_differences = [&](const Json& changed, const Json& changed_config, const std::string& part) {
      testing::put(d / "tokenizer.json", changed.dump());
      testing::put(d / "tokenizer_config.json", changed_config.dump());
      Compared out{.differing = {}, .enough = 1};
      compare_tokens(Tokenizer(d.root()), family, out);
      EXPECT_FALSE(out.differing.empty()) << name << ": " << part;
      ++parts;
    };
    for (const std::string part : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
      const bool adds_nothing =
          part == "post_processor" && family["encodings"][0].value("before", Json::array()).empty();
      // Gemma's pre-tokenizer splits at spaces, but the normalizer has replaced all spaces before, so the pre-tokenizer
      // has no effect.
      const bool splits_nothing = part == "pre_tokenizer" && name.starts_with("gemma");
      if (whole[part].is_null() || adds_nothing || splits_nothing) continue;
      Json changed = whole;
      changed[part] = nullptr;
      expect_differences(changed, config, part);
    }
    for (size_t i = 0; i < whole["added_tokens"].size(); ++i)
      for (const char* flag : {"lstrip", "rstrip"}) {
        if (config.contains("added_tokens_decoder")) continue;  // the configuration overrides these flags
        Json changed = whole;
        changed["added_tokens"][i][flag] = !whole["added_tokens"][i][flag];
        expect_differences(changed, config, std::string(flag) + " of " + whole["added_tokens"][i].dump());
      }
    for (const std::string key :
         {"added_tokens_decoder", "extra_special_tokens", "additional_special_tokens", "pad_token", "eos_token"}) {
      Json changed = config;
      if (name.starts_with("disagreeing") && changed.erase(key)) expect_differences(whole, changed, key);
    }
  }
  EXPECT_GT(parts, 200);
}

TEST(Families, Table) {
  if (!std::getenv("SPECDEC_PARITY_TABLE")) GTEST_SKIP() << "SPECDEC_PARITY_TABLE=1 prints the table of docs/models.md";
  std::puts(
      "| tokenizer | `model_type` | class | texts | runs of ids | conversations | differing "
      "|\n|---|---|---|---|---|---|---|");
  for (const auto& [name, family] : golden()["families"].items()) {
    const Compared found = compare(name, kGolden / "families" / name);
    std::printf("| %s | `%s` | %s | %d | %d | %d | %zu |\n", name.c_str(),
                family["model_type"].get<std::string>().c_str(), family["class"].get<std::string>().c_str(),
                found.texts, found.ids, found.chats, found.differing.size());
  }
}

}  // namespace
}  // namespace specdec::text
