// Tests of the decoder that turns tokens into text one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/philox.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"
#include "tests/text/byte_tokenizer.h"
#include "tests/text/loaded_tokenizers.h"
#include "tests/text/shared_data.h"
#include "text/tokenizer.h"

namespace specdec::text {
namespace {

using test::shared_data;
using testing::put;
using testing::Scratch;

bool whole_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

// Checks that every piece is whole UTF-8 and that all pieces together equal decode(all ids). The ids may come from a
// text or be arbitrary.
void expect_streams(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const std::string& name) {
  IncrementalDecoder decoder(tokenizer);
  const std::string expected = tokenizer.decode(ids, true);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_TRUE(whole_utf8(piece)) << name;
    text += piece;
    ASSERT_TRUE(expected.starts_with(text)) << name << ": retracted after " << text.size() << " bytes";
  }
  EXPECT_EQ(text + decoder.finish(), expected) << name;
}

const std::vector<std::string>& multilingual() {
  static const std::vector<std::string> texts = {"",
                                                 " ",
                                                 "   leading",
                                                 "trailing  ",
                                                 "\n\n",
                                                 "Hello, world!",
                                                 "naïve façade — Mañana",
                                                 "漢字かな交じり文。",
                                                 "한국어 텍스트",
                                                 "नमस्ते दुनिया",
                                                 "مرحبا بالعالم",
                                                 "שלום עולם",
                                                 "Ελληνικά Русский",
                                                 "ไทย ภาษา",
                                                 "🙂🙃👩‍👩‍👧‍👦🏳️‍🌈👍🏽",
                                                 "e\u0301 vs \u00e9",
                                                 "\u200b\u200d\ufeff",
                                                 "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀𓀁",
                                                 "a\tb\r\nc",
                                                 "\xEF\xBF\xBD literal \xEF\xBF\xBD\xEF\xBF\xBD",
                                                 "<0xE2><0x82>",
                                                 "</s> <s> x",
                                                 "  ▁ ▁▁ ",
                                                 std::string(300, 'x'),
                                                 std::string(200, ' ') + "y"};
  return texts;
}

void check_streaming(const Tokenizer& tokenizer) {
  for (const std::string& text : multilingual()) expect_streams(tokenizer, tokenizer.encode(text, true), text);
  std::string all;
  for (const std::string& text : multilingual()) all += text;
  expect_streams(tokenizer, tokenizer.encode(all, true), "all texts");
  // Tests random ids (broken characters everywhere, special tokens between them, ids out of range), mixed with ids from
  // real text.
  const auto ids = tokenizer.encode(all, true);
  PhiloxStream random(7, 0);
  for (int round = 0; round < 60; ++round) {
    std::vector<int32_t> noise;
    for (int i = 0; i < 40; ++i) {
      if (random.uniform() < 0.5)
        noise.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(tokenizer.vocab_size()) + 3)));
      else if (random.uniform() < 0.3)
        noise.push_back(static_cast<int32_t>(random.below(260)));  // these ids include all byte tokens
      else
        noise.push_back(ids[random.below(ids.size())]);
    }
    expect_streams(tokenizer, noise, "noise " + std::to_string(round));
  }
}

TEST(IncrementalDecoder, ByteLevel) {
  SKIP_WITHOUT(gpt2());
  check_streaming(loaded(gpt2()));
}

// Conversions from GGUF have the decoder stages of both kinds. After the stage Fuse has joined the texts of all tokens,
// ByteLevel treats either all characters as bytes or none, so one token with another character changes the text of all
// other tokens.
TEST(IncrementalDecoder, ByteLevelAfterFuse) {
  SKIP_WITHOUT(gpt2());
  Json json = read_json(gpt2() / "tokenizer.json", ErrorKind::kModel);
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       json["decoder"]}}};
  Scratch d;
  put(d / "tokenizer.json", json.dump());
  const Tokenizer tokenizer(d.root());
  EXPECT_TRUE(tokenizer.streams());
  check_streaming(tokenizer);
  IncrementalDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(tokenizer.token_to_id("Hello")), "Hello");
  EXPECT_EQ(decoder.push(tokenizer.token_to_id("Ġworld")), " world");
  json["added_tokens"].push_back({{"id", tokenizer.vocab_size()},
                                  {"content", "a b"},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", false}});
  put(d / "tokenizer.json", json.dump());
  const Tokenizer other(d.root());
  EXPECT_FALSE(other.streams());
  check_streaming(other);
}

TEST(IncrementalDecoder, ByteFallback) {
  SKIP_WITHOUT(shared_data());
  Scratch d;
  write_tinyllama(d);
  check_streaming(Tokenizer(d.root()));
  check_streaming(Tokenizer(shared_data() / "models/stories260K"));
}

TEST(IncrementalDecoder, GivesTextAsSoonAsItIsSettled) {
  SKIP_WITHOUT(gpt2());
  const Tokenizer& tokenizer = loaded(gpt2());
  IncrementalDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(tokenizer.token_to_id("Hello")), "Hello");
  EXPECT_EQ(decoder.push(tokenizer.token_to_id("Ġworld")), " world");
  const auto smile = tokenizer.encode("🙂", false);
  ASSERT_GT(smile.size(), 1u);
  std::string emoji;
  for (size_t i = 0; i + 1 < smile.size(); ++i) EXPECT_EQ(decoder.push(smile[i]), "");
  EXPECT_EQ(decoder.push(smile.back()), "🙂");
  EXPECT_EQ(decoder.push(smile.front()), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

TEST(IncrementalDecoder, AByteRunWaitsForItsEnd) {
  const fs::path model = shared_data() / "models/stories260K";
  SKIP_WITHOUT(model);
  const Tokenizer tokenizer(model);
  const auto byte = [&](const char* hex) { return tokenizer.token_to_id(std::string("<0x") + hex + ">"); };
  IncrementalDecoder decoder(tokenizer);
  const int32_t word = tokenizer.encode("a", false).back();
  decoder.push(word);
  for (const char* hex : {"C3", "A9", "E2"}) EXPECT_EQ(decoder.push(byte(hex)), "");
  // The run C3 A9 E2 is not UTF-8, so all of it becomes replacement characters, including é.
  const std::string text = decoder.push(word);
  EXPECT_TRUE(text.starts_with("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD")) << text;
}

// If a model repeats broken bytes, text is still returned, and the cost of a push does not grow, because the decoder
// keeps only the last tokens.
TEST(IncrementalDecoder, EndlessBrokenBytesStillStream) {
  SKIP_WITHOUT(gpt2());
  const Tokenizer& tokenizer = loaded(gpt2());
  const int32_t lead = tokenizer.encode("🙂", false).front();
  std::vector<int32_t> ids(3000, lead);
  ids.push_back(tokenizer.token_to_id("Hello"));
  IncrementalDecoder decoder(tokenizer);
  std::string text;
  size_t waited = 0;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    waited = piece.empty() ? waited + 1 : 0;
    EXPECT_LT(waited, 3u);
    text += piece;
  }
  EXPECT_EQ(text + decoder.finish(), tokenizer.decode(ids, true));
}

// A token without text must not be the only context, because then the space after it would be stripped as at the
// beginning of a text.
TEST(IncrementalDecoder, EmptyTokensAreNoContext) {
  Scratch d;
  put(d / "tokenizer.json",
      R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"":0,"▁a":1},"unk_token":""},
      "decoder":{"type":"Sequence",
      "decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"Fuse"},
      {"type":"Strip","content":" ","start":1,"stop":0}]}})");
  const Tokenizer tokenizer(d.root());
  EXPECT_EQ(tokenizer.decode({1, 0, 1}, true), "a a");
  EXPECT_EQ(stream(tokenizer, {1, 0, 1}), "a a");
}

TEST(IncrementalDecoder, DecodersWithoutSettledPrefixesGiveEverythingAtTheEnd) {
  Scratch d;
  put(d / "tokenizer.json",
      R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"<pad>":0,"a":1,"|":2,"b":3},"unk_token":"<pad>"},
      "decoder":{"type":"CTC","pad_token":"<pad>","word_delimiter_token":"|","cleanup":true}})");
  const Tokenizer tokenizer(d.root());
  IncrementalDecoder decoder(tokenizer);
  for (const int32_t id : {1, 1, 2, 0, 3}) EXPECT_EQ(decoder.push(id), "");
  EXPECT_EQ(decoder.finish(), tokenizer.decode({1, 1, 2, 0, 3}, true));
}

// Counts of context-continuation pairs, by how decode(context + continuation) relates to decode(context).
struct Continued {
  int64_t whole = 0;  // decode(context + continuation) begins with decode(context)
  int64_t cut = 0;    // otherwise: the context ends within a character or a run of byte tokens
};

bool is_byte_token(const std::string& token) { return token.size() == 6 && token.starts_with("<0x"); }

// Returns whether a context may end within a character or a run of byte tokens (Continued::cut): the last token with
// text is a byte token, or ends with a replacement character, which may stand for the beginning of a character.
bool may_be_cut(const Tokenizer& tokenizer, const std::vector<int32_t>& context) {
  for (auto id = context.rbegin(); id != context.rend(); ++id) {
    if (tokenizer.decode({*id}, true).empty() && !tokenizer.decode({*id}, false).empty()) continue;  // special token
    if (tokenizer.id_to_token(*id).empty()) continue;
    return is_byte_token(tokenizer.id_to_token(*id)) || tokenizer.decode(context, true).ends_with("\xEF\xBF\xBD");
  }
  return false;
}

// Checks that the text of `ids` after `context` is decode(context and ids) without decode(context) at its beginning. If
// decode(context and ids) does not begin with decode(context), the longest common prefix of both is removed instead.
void expect_continues(const Tokenizer& tokenizer, const std::vector<int32_t>& context, const std::vector<int32_t>& ids,
                      Continued& seen) {
  std::vector<int32_t> both = context;
  both.insert(both.end(), ids.begin(), ids.end());
  const std::string before = tokenizer.decode(context, true), text = tokenizer.decode(both, true);
  size_t common = 0;  // bytes of the common prefix, which ends between two characters
  for (size_t i = 0; i <= std::min(before.size(), text.size()); ++i) {
    const auto begins = [i](const std::string& t) { return i == t.size() || (t[i] & 0xC0) != 0x80; };
    if (begins(before) && begins(text)) common = i;
    if (i == before.size() || i == text.size() || before[i] != text[i]) break;
  }
  const bool whole = common == before.size();
  ++(whole ? seen.whole : seen.cut);
  if (!whole) EXPECT_TRUE(may_be_cut(tokenizer, context)) << before << " | " << text;
  const std::string expected = text.substr(common);
  IncrementalDecoder decoder(tokenizer, context);
  std::string found;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_TRUE(whole_utf8(piece));
    found += piece;
    ASSERT_TRUE(expected.starts_with(found)) << before << " | " << expected << " | " << found;
  }
  ASSERT_EQ(found + decoder.finish(), expected) << before;
}

std::pair<std::vector<int32_t>, std::vector<int32_t>> split_at(const std::vector<int32_t>& ids, size_t at) {
  const auto border = ids.begin() + static_cast<ptrdiff_t>(at);
  return {{ids.begin(), border}, {border, ids.end()}};
}

// Divides every text between any two tokens (a long text at some places only), and also joins contexts and
// continuations at random.
Continued check_continuations(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  Continued seen;
  std::vector<std::vector<int32_t>> encoded;
  for (const std::string& text : texts) {
    const std::vector<int32_t>& ids = encoded.emplace_back(tokenizer.encode(text, true));
    for (size_t at = 0; at <= ids.size(); at += 1 + ids.size() / 40) {
      const auto [context, rest] = split_at(ids, at);
      expect_continues(tokenizer, context, rest, seen);
    }
  }
  PhiloxStream random(11, 0);
  const auto part = [&] {
    std::vector<int32_t> ids = encoded[random.below(encoded.size())];
    if (random.uniform() < 0.5) {
      ids.clear();
      for (size_t i = random.below(50); i > 0; --i)
        ids.push_back(static_cast<int32_t>(
            random.below(random.uniform() < 0.5 ? 260 : static_cast<uint64_t>(tokenizer.vocab_size()))));
    }
    return split_at(ids, random.below(ids.size() + 1));
  };
  for (int round = 0; round < 100; ++round) expect_continues(tokenizer, part().first, part().second, seen);
  return seen;
}

std::vector<std::string> continued_texts() {
  std::vector<std::string> texts = multilingual();
  texts.insert(texts.end(), {"Once upon a time, there was", "[INST] Hi [/INST] Sure, here", "def f(x):\n    return x",
                             "<|user|>\nHi<|end|>\n<|assistant|>\n Yes", "a  b   c", "1 2 3 ,4 . don't"});
  return texts;
}

// The text of an answer continues the text of its prompt. Tested with small tokenizers of every family, as transformers
// saves them.
TEST(IncrementalDecoder, AContextIsContinuedInEveryFamily) {
  const fs::path families = fs::path(source_folder()) / "tests/text/golden/families";
  Continued all;
  int tokenizers = 0;
  for (const auto& entry : fs::directory_iterator(families)) {
    SCOPED_TRACE(entry.path().filename().string());
    const Continued seen = check_continuations(Tokenizer(entry.path()), continued_texts());
    all.whole += seen.whole;
    all.cut += seen.cut;
    ++tokenizers;
  }
  EXPECT_GE(tokenizers, 19);
  EXPECT_GT(all.whole, 9000);
  EXPECT_GT(all.cut, 20) << "contexts that end within a character are among them";
  std::printf("%d tokenizers: %lld continuations, %lld of cut contexts\n", tokenizers,
              static_cast<long long>(all.whole), static_cast<long long>(all.cut));
}

// The same test for published tokenizers, on the texts of their conformance tests.
TEST(IncrementalDecoder, AContextIsContinuedByPublishedTokenizers) {
  SKIP_WITHOUT(shared_data() / "tokenizers");
  SKIP_WITHOUT(shared_data() / "tokenizer-conformance/large/inputs.json");
  std::vector<std::string> texts = continued_texts();
  for (const Json& input : read_json(shared_data() / "tokenizer-conformance/large/inputs.json"))
    texts.push_back(input["text"]);
  Continued all;
  int tokenizers = 0;
  const auto check = [&](const fs::path& directory) {
    SCOPED_TRACE(directory.string());
    const Continued seen = check_continuations(loaded(directory), texts);
    all.whole += seen.whole;
    all.cut += seen.cut;
    ++tokenizers;
  };
  for (const char* folder : {"tokenizers", "models"})
    for (const auto& entry : fs::recursive_directory_iterator(shared_data() / folder)) {
      const fs::path directory = entry.path().parent_path();
      // Hugging Face's own library cannot read the merges of llama2 and added-tokens either.
      if (directory.filename() == "llama2" || directory.filename() == "added-tokens") continue;
      if (entry.path().filename() == "tokenizer.json") check(directory);
    }
  Scratch tinyllama;
  write_tinyllama(tinyllama);
  check(tinyllama.root());
  EXPECT_GE(tokenizers, 6);
  EXPECT_GT(all.whole, 5000);
  std::printf("%d tokenizers: %lld continuations, %lld of cut contexts\n", tokenizers,
              static_cast<long long>(all.whole), static_cast<long long>(all.cut));
}

TEST(IncrementalDecoder, TheFirstSpaceOfAnAnswerIsItsOwn) {
  const Tokenizer& tokenizer = testing::space_stripping_tokenizer();
  const auto bytes = [](std::string_view text) { return std::vector<int32_t>(text.begin(), text.end()); };
  const auto answer = [&](const std::vector<int32_t>& context, const std::vector<int32_t>& ids) {
    IncrementalDecoder decoder(tokenizer, context);
    std::string text;
    for (const int32_t id : ids) text += decoder.push(id);
    return text + decoder.finish();
  };
  EXPECT_EQ(answer(bytes("Once upon a"), bytes(" time")), " time");
  EXPECT_EQ(answer({testing::kBos}, bytes(" time")), "time") << "here the text begins";
  EXPECT_EQ(answer(bytes(" "), bytes(" time")), " time") << "a context without visible text";
  EXPECT_EQ(answer(bytes("a"), bytes("")), "");
  // The context is é and the first byte of €, so it ends within a character, which the answer completes.
  EXPECT_EQ(answer({'a', 0xC3, 0xA9}, bytes("b")), "b");
  EXPECT_EQ(answer({'a', 0xE2}, {0x82, 0xAC, 'b'}), "€b");
  EXPECT_EQ(answer({'a', 0xE2}, bytes("b")), "b") << "the replacement character is the context's";
  EXPECT_EQ(answer({'a', 0xC3, 0xA9}, {0xE2, 'b'}),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b")
      << "one bad byte turns the whole run into replacement characters";
}

// A special token whose text is shown is context like any other token.
TEST(IncrementalDecoder, ASpaceAfterAShownTokenStays) {
  const Tokenizer& tokenizer = testing::space_stripping_tokenizer();
  for (const bool shown : {false, true}) {
    IncrementalDecoder decoder(tokenizer, {testing::kBos},
                               shown ? std::vector<int32_t>{testing::kEos} : std::vector<int32_t>());
    std::string text = decoder.push(testing::kEos);
    EXPECT_EQ(text, shown ? "</s>" : "");
    for (const char c : std::string_view(" a")) text += decoder.push(c);
    EXPECT_EQ(text + decoder.finish(), shown ? "</s> a" : "a");
  }
}

}  // namespace
}  // namespace specdec::text
