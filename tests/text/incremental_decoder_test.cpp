// Tests of the decoder that turns tokens into text one by one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "base/philox.h"
#include "tests/base/scratch.h"
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

// Checks that every piece is whole UTF-8 and that all pieces together equal decode(all), for the ids of texts and for
// any other ids.
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
        noise.push_back(static_cast<int32_t>(random.below(260)));  // the range of the byte tokens
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

// A model stuck on broken bytes must not make every push more expensive than the last: text keeps coming, and the
// window is cut.
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

// A token without text must not become the context: the space after it would be stripped as if the text began there.
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

}  // namespace
}  // namespace specdec::text
