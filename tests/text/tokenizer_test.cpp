#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "base/philox.h"
#include "tests/base/scratch.h"
#include "tests/text/loaded_tokenizers.h"
#include "tests/text/shared_data.h"

namespace specdec::text {
namespace {

using test::shared_data;
using testing::error_of;
using testing::put;
using testing::Scratch;

const Json kByteLevelDecoder = {
    {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};

// Writes Qwen2.5's tokenizer. It shares vocabulary and merges with Qwen2, whose tokenizer.json is assembled here as
// transformers' converter does.
void write_qwen(const Scratch& d, const std::string& merges_file = "merges_lf.txt") {
  const fs::path from = shared_data() / "tokenizers/qwen2";
  Json merges = Json::array();
  std::ifstream lines(from / merges_file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  Json added = Json::array();
  const Json added_ids = read_json(from / "added_tokens.json");
  for (const auto& [token, id] : added_ids.items())
    added.push_back({{"id", id},
                     {"content", token},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  std::sort(added.begin(), added.end(), [](const Json& x, const Json& y) { return x["id"] < y["id"]; });
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
      R"(\s+(?!\S)|\s+)";
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json t = {{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", added},
                  {"normalizer", {{"type", "NFC"}}},
                  {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                  {"post_processor", nullptr},
                  {"decoder", kByteLevelDecoder},
                  {"model",
                   {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", ""},
                    {"end_of_word_suffix", ""},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"vocab", read_json(from / "vocab.json")},
                    {"merges", merges}}}};
  put(d / "tokenizer.json", t.dump());
  put(d / "tokenizer_config.json", read_file(from / "tokenizer_config.json"));
}

struct Case {
  std::string id, text, decoded;
  std::vector<int32_t> ids;
};

// Returns both conformance sets of a model: 30 and 83 texts with ids made by transformers 4.57.1.
std::vector<Case> conformance(const std::string& small, const std::string& large) {
  const fs::path root = shared_data() / "tokenizer-conformance";
  std::map<std::string, std::string> texts;
  std::vector<Case> cases;
  const Json small_inputs = read_json(root / "small/inputs.json"), large_inputs = read_json(root / "large/inputs.json");
  for (const Json& i : small_inputs["inputs"]) texts[i["id"]] = i["text"];
  for (const Json& i : large_inputs) texts[i["id"]] = i["text"];
  const Json entries = read_json(root / "small" / small)["entries"];
  for (const auto& [id, e] : entries.items())
    cases.push_back({id, texts.at(id), e["decoded_skip_special"], e["input_ids"]});
  const Json more = read_json(root / "large" / large)["entries"];
  for (const Json& e : more) cases.push_back({e["id"], texts.at(e["id"]), e["decoded_skip_special"], e["input_ids"]});
  return cases;
}

void expect_conformance(const Tokenizer& tokenizer, const std::vector<Case>& cases) {
  EXPECT_EQ(cases.size(), 113u);
  for (const Case& c : cases) {
    EXPECT_EQ(tokenizer.encode(c.text, true), c.ids) << c.id << ": " << c.text;
    EXPECT_EQ(tokenizer.decode(c.ids, true), c.decoded) << c.id;
    EXPECT_EQ(stream(tokenizer, c.ids), c.decoded) << c.id;
  }
}

TEST(TokenizerParity, Gpt2) {
  SKIP_WITHOUT(gpt2());
  expect_conformance(loaded(gpt2()), conformance("openai-community__gpt2.json", "gpt2_multilingual.json"));
}

TEST(TokenizerParity, TinyLlama) {
  SKIP_WITHOUT(shared_data());
  Scratch d;
  write_tinyllama(d);
  const Tokenizer tokenizer(d.root());
  EXPECT_EQ(tokenizer.vocab_size(), 32000);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  expect_conformance(tokenizer, conformance("TinyLlama__TinyLlama-1.1B-Chat-v1.0.json", "tinyllama_multilingual.json"));
}

TEST(TokenizerParity, Qwen) {
  SKIP_WITHOUT(shared_data());
  Scratch d;
  write_qwen(d);
  const Tokenizer tokenizer(d.root());
  EXPECT_EQ(tokenizer.vocab_size(), 151646);
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_EQ(tokenizer.eos_token(), "<|im_end|>");
  EXPECT_EQ(tokenizer.eos_id(), 151645);
  expect_conformance(tokenizer, conformance("Qwen__Qwen2.5-0.5B.json", "qwen2_5_multilingual.json"));
}

// Encodes a long text. The expected ids were made by transformers.
TEST(TokenizerParity, Gpt2LongText) {
  SKIP_WITHOUT(gpt2());
  const Json golden = read_json(shared_data() / "tokenizer-conformance/gpt2_encoded_tokens.json");
  const Tokenizer& tokenizer = loaded(gpt2());
  EXPECT_EQ(tokenizer.encode(golden["text"].get<std::string>(), true), golden["token_ids"].get<std::vector<int32_t>>());
}

// The expected values are from shared/data/README.md: 512 tokens, and the first story of the model's documentation.
TEST(Tokenizer, Stories260K) {
  const fs::path model = shared_data() / "models/stories260K";
  SKIP_WITHOUT(model);
  const Tokenizer tokenizer(model);
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.bos_token(), "<s>");
  EXPECT_EQ(tokenizer.id_to_token(1), "<s>");
  EXPECT_EQ(tokenizer.id_to_token(512), "");
  EXPECT_EQ(tokenizer.id_to_token(-1), "");
  EXPECT_EQ(tokenizer.token_to_id("no such token"), -1);
  EXPECT_EQ(tokenizer.encode("", true), std::vector<int32_t>{1});
  EXPECT_TRUE(tokenizer.encode("", false).empty());
  const std::string text = "Once upon a time, there was a little girl named Lily.\nÜber 漢字 🙂!";
  const auto ids = tokenizer.encode(text, true);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(tokenizer.decode(ids, true), text);
  EXPECT_EQ(tokenizer.decode(ids, false), "<s> " + text);
  EXPECT_EQ(tokenizer.decode({1, 600, 100000}, true), "");
}

// add_bos_token and add_eos_token in tokenizer_config.json have no effect, as in transformers 5.23.
TEST(Tokenizer, ThePostProcessorDecidesAboutBosAndEos) {
  SKIP_WITHOUT(shared_data());
  Scratch d;
  write_tinyllama(d);
  std::vector<int32_t> expected = Tokenizer(d.root()).encode("Hi", false);
  expected.insert(expected.begin(), 1);
  for (const std::string flags :
       {"", R"(, "add_bos_token": false)", R"(, "add_bos_token": true, "add_eos_token": true)"}) {
    put(d / "tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>")" + flags + "}");
    EXPECT_EQ(Tokenizer(d.root()).encode("Hi", true), expected) << flags;
  }
  fs::remove(d / "tokenizer_config.json");
  put(d / "special_tokens_map.json", R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(Tokenizer(d.root()).eos_id(), 2);
  EXPECT_EQ(Tokenizer(d.root()).bos_id(), -1);
}

TEST(Tokenizer, StoredPaddingAndTruncationAreDropped) {
  SKIP_WITHOUT(gpt2());
  Scratch d;
  Json t = read_json(gpt2() / "tokenizer.json", ErrorKind::kModel);
  const std::string text = "a b c d e f g h";
  const auto expected = loaded(gpt2()).encode(text, true);
  t["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  t["padding"] = {{"strategy", {{"Fixed", 1000000000000}}},
                  {"direction", "Right"},
                  {"pad_to_multiple_of", nullptr},
                  {"pad_id", 0},
                  {"pad_type_id", 0},
                  {"pad_token", "!"}};
  put(d / "tokenizer.json", t.dump());
  EXPECT_EQ(Tokenizer(d.root()).encode(text, true), expected);
}

TEST(Tokenizer, InvalidInputIsAnError) {
  SKIP_WITHOUT(gpt2());
  const Tokenizer& tokenizer = loaded(gpt2());
  EXPECT_NE(error_of([&] { tokenizer.encode("ok\xff", true); }, ErrorKind::kData).find("invalid UTF-8 at byte 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { tokenizer.decode({5, -7}, true); }, ErrorKind::kData).find("-7 at index 1"),
            std::string::npos);
  EXPECT_THROW(IncrementalDecoder(tokenizer).push(-1), Error);
  EXPECT_EQ(tokenizer.encode(std::string_view("a\0b", 3), true).size(), 3u);
}

// Every malformed file causes Error(kModel), whose message is one line that starts with the file's name.
TEST(Tokenizer, WrongFilesAreRefused) {
  Scratch d;
  std::vector<std::pair<std::string, std::string>> bad = {
      {"empty", ""},
      {"not JSON", "hello"},
      {"null", "null"},
      {"a list", "[]"},
      {"no model", R"({"version": "1.0"})"},
      {"unknown version", R"({"version": "9", "model": {"type": "BPE", "vocab": {}, "merges": []}})"},
      {"deep", std::string(100000, '[')},
      {"deep normalizer",
       [] {
         std::string n;
         for (int i = 0; i < 50000; ++i) n += R"({"type":"Sequence","normalizers":[)";
         return R"({"version":"1.0","model":{"type":"WordLevel","vocab":{},"unk_token":"u"},"normalizer":)" + n;
       }()},
      {"merge of nothing", R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})"},
      {"bad merge line", R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["aa"]}})"},
      {"negative id", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":-1},"unk_token":"a"}})"},
      {"bad regex",
       R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
       R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated","invert":false}})"},
      {"bad charsmap", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
                       R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"}})"},
      {"short charsmap", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
                         R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="}})"},
      {"charsmap without a trie", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
                                  R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAAAA=="}})"},
      {"charsmap that points outside",
       R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
       R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled",)"
       R"("precompiled_charsmap":"CAAAAP//////////YWJj"}]}})"},
      {"empty pattern of a normalizer",
       R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
       R"("normalizer":{"type":"Replace","pattern":{"String":""},"content":"xx"}})"},
      {"pattern of nothing",
       R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
       R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},)"
       R"("normalizer":{"type":"Replace","pattern":{"Regex":"q*"},"content":"xx"}})"},
      {"empty pattern of a decoder",
       R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
       R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":""},"content":"x"}]}})"},
      {"fixed length 0", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
                         R"("pre_tokenizer":{"type":"FixedLength","length":0}})"},
  };
  std::string doubling;
  for (int i = 0; i < 40; ++i)
    doubling += std::string(i ? "," : "") + R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  bad.push_back(
      {"doubling normalizer", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
                              R"("normalizer":{"type":"Sequence","normalizers":[)" +
                                  doubling + "]}}"});
  bad.push_back(
      {"doubling of an added token",
       R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},"added_tokens":[{"id":1,)"
       R"("content":"a","single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false}],)"
       R"("normalizer":{"type":"Sequence","normalizers":[)" +
           doubling + "]}}"});
  bad.push_back({"doubling decoder", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},)"
                                     R"("decoder":{"type":"Sequence","decoders":[)" +
                                         doubling + "]}}"});
  for (const auto& [name, text] : bad) {
    const std::string file = (d / "tokenizer.json").string();
    put(file, text);
    const std::string message = error_of([&] { Tokenizer{d.root()}; }, ErrorKind::kModel);
    EXPECT_TRUE(message.starts_with(file + ": ")) << name << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << name;
    EXPECT_LT(message.size(), file.size() + 400) << name;
  }
  fs::remove(d / "tokenizer.json");
  EXPECT_THROW(Tokenizer{d.root()}, Error);
  fs::create_directory(d / "tokenizer.json");
  error_of([&] { Tokenizer{d.root()}; }, ErrorKind::kModel);
}

// A charsmap of 512 units that replaces "a" by "b". Units that no look-up reaches may have any value.
TEST(Tokenizer, ACharsmapIsCheckedAndUsed) {
  const auto encoded = [](uint32_t leaf, const std::string& replacements) {
    std::vector<uint32_t> units(512, 0xFFFF'FE00);
    units[0] = 256 << 10;  // the root's children begin at unit 256
    for (uint32_t byte = 1; byte < 256; ++byte) units[256 ^ byte] = 0x8000'0000;
    units[256 ^ 'a'] = 'a' | 1 << 8 | ((256 ^ 'a' ^ 1) << 10);  // the value of 'a' is in unit 1
    for (uint32_t byte = 1; byte < 256; ++byte) units[1 ^ byte] = (1 ^ byte) == 0 ? units[0] : 0x8000'0000;
    units[1] = 0x8000'0000 | leaf;
    std::string charsmap(4, '\0');
    charsmap[1] = 8;  // the trie has 2048 bytes
    charsmap.append(reinterpret_cast<const char*>(units.data()), 4 * units.size());
    const Json normalizer = {{"type", "Precompiled"}, {"precompiled_charsmap", base64(charsmap + replacements)}};
    const Json model = {{"type", "WordLevel"}, {"vocab", {{"?", 0}, {"b", 7}}}, {"unk_token", "?"}};
    Scratch d;
    put(d / "tokenizer.json", Json{{"version", "1.0"}, {"normalizer", normalizer}, {"model", model}}.dump());
    return Tokenizer(d.root()).encode("a", false);
  };
  EXPECT_EQ(encoded(0, std::string("b\0", 2)), std::vector<int32_t>{7});
  EXPECT_EQ(encoded(2, std::string("x\0b\0", 4)), std::vector<int32_t>{7});
  const auto refused = [&](uint32_t leaf, const std::string& replacements) {
    return error_of([&] { encoded(leaf, replacements); }, ErrorKind::kModel);
  };
  EXPECT_NE(refused(3, "b").find("outside the 1 bytes of replacements"), std::string::npos);
  EXPECT_NE(refused(1, "é").find("outside the 2 bytes of replacements"), std::string::npos);
  EXPECT_NE(refused(0, std::string(5000, 'b')).find("may stretch a text 5000 times"), std::string::npos);
}

TEST(Tokenizer, WrongFilesOfTheWildAreRefused) {
  for (const char* name : {"llama2", "added-tokens"}) {
    const fs::path directory = shared_data() / "tokenizers/ort-ext" / name;
    SKIP_WITHOUT(directory);
    const std::string message = error_of([&] { Tokenizer{directory}; }, ErrorKind::kModel);
    EXPECT_TRUE(message.starts_with((directory / "tokenizer.json").string() + ": not a Hugging Face tokenizer"))
        << message;
  }
}

TEST(Tokenizer, TruncatedFilesNeverCrash) {
  const fs::path source = shared_data() / "models/stories260K/tokenizer.json";
  SKIP_WITHOUT(source);
  Scratch d;
  const std::string whole = read_file(source);
  for (size_t size = 0; size < whole.size(); size += whole.size() / 97) {
    put(d / "tokenizer.json", whole.substr(0, size));
    EXPECT_THROW(Tokenizer{d.root()}, Error) << size;
  }
  for (uint64_t i = 0; i < 150; ++i) {  // a changed byte causes an error or gives a working tokenizer
    std::string changed = whole;
    changed[static_cast<size_t>(philox_uniform(1, 2, i) * static_cast<double>(whole.size()))] ^=
        static_cast<char>(1u << (i % 7));
    put(d / "tokenizer.json", changed);
    try {
      const Tokenizer tokenizer(d.root());
      tokenizer.decode(tokenizer.encode("Once upon a time", true), true);
    } catch (const Error& e) {
      EXPECT_TRUE(e.kind() == ErrorKind::kModel || e.kind() == ErrorKind::kData) << e.what();
    }
  }
}

TEST(Tokenizer, MergesWithCarriageReturnsGiveTheSameIds) {
  SKIP_WITHOUT(shared_data());
  Scratch lf, crlf;
  write_qwen(lf);
  write_qwen(crlf, "merges.txt");
  EXPECT_EQ(read_file(lf / "tokenizer.json"), read_file(crlf / "tokenizer.json"));
}

TEST(Tokenizer, IsUsedByManyThreads) {
  SKIP_WITHOUT(gpt2());
  const Tokenizer& tokenizer = loaded(gpt2());
  const std::string text = "The quick brown fox — 漢字 🙂";
  const auto expected = tokenizer.encode(text, true);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        wrong += tokenizer.encode(text, true) != expected || stream(tokenizer, expected) != text;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace specdec::text
