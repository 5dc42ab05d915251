// Helpers for the tests of data/: a tokenizer that can be checked by eye (one token per printable ASCII character, plus
// special tokens), a ChatML template, and scratch directories.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/schema/shard_index.h"
#include "data/ingest.h"
#include "data/shards/shard_reader.h"
#include "tests/source_folder.h"
#include "text/tokenizer.h"

namespace specdec::data {

inline const char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// A directory that is removed when the object is destroyed.
class Scratch {
 public:
  Scratch() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::path(testing::TempDir()) / ("specdec-data-" + std::string(info->test_suite_name()) + "-" +
                                            info->name() + "-" + std::to_string(getpid()));
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Scratch() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  fs::path path_;
};

// Creates a target directory without weights. If `chat_template` is empty, the target has no chat template.
inline fs::path make_toy_target(const fs::path& directory, const std::string& chat_template = kChatMl,
                                bool bos = true) {
  fs::create_directories(directory);
  Json vocab = Json::object(), added = Json::array();
  int id = 0;
  for (const char* special : {"<s>", "<|im_start|>", "<|im_end|>"}) {
    vocab[special] = id;
    added.push_back({{"id", id++},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  vocab["\n"] = id++;
  for (char c = ' '; c <= '~'; ++c) vocab[std::string(1, c)] = id++;
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", nullptr},
                          {"post_processor", nullptr},
                          {"decoder", {{"type", "Fuse"}}},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", "?"},
                            {"fuse_unk", false},
                            {"vocab", vocab},
                            {"merges", Json::array()}}}};
  Json config = {{"eos_token", "<|im_end|>"}, {"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (bos) config["bos_token"] = "<s>";
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  std::ofstream(directory / "tokenizer.json") << tokenizer.dump();
  std::ofstream(directory / "tokenizer_config.json") << config.dump();
  return directory;
}

// Returns the learnt tokens of a row (loss_mask is 1) as text. '|' separates runs of such tokens.
inline std::string learnt_text(const text::Tokenizer& tokenizer, const TokenRow& row) {
  std::string text;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    if (!row.loss_mask[i]) continue;
    if (i > 0 && !row.loss_mask[i - 1] && !text.empty()) text += "|";
    text += tokenizer.id_to_token(row.tokens[i]);
  }
  return text;
}

inline std::string prompt_of(const text::Tokenizer& tokenizer, const TokenRow& row) {
  std::string text;
  for (int64_t i = 0; i < row.prompt_tokens; ++i) text += tokenizer.id_to_token(row.tokens[static_cast<size_t>(i)]);
  return text;
}

inline IngestOptions ingest_options(const fs::path& source, const fs::path& target, const fs::path& out) {
  IngestOptions options;
  options.sources = {source.string()};
  options.target = target.string();
  options.out = out.string();
  options.holdout = 0;
  return options;
}

// Returns the message of the error of this kind that `data ingest` ends with, or "accepted" if it succeeds.
inline std::string error_of(const IngestOptions& options, ErrorKind kind = ErrorKind::kData) {
  try {
    ingest(options, {});
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "accepted";
}

inline std::string slurp(const fs::path& path) { return read_file(path, size_t{1} << 30); }

inline fs::path fixtures() { return fs::path(source_folder()) / "tests/data/fixtures"; }

// Returns the output of `data ingest --records` for a file: first the counts of rejects and formats, then the records.
// Each record's `source` is replaced by the name of its format.
inline std::vector<Json> ingested(const fs::path& file, const Scratch& scratch) {
  IngestOptions options;
  options.sources = {file.string()};
  options.out = (scratch / "out").string();
  options.records = true;
  const IngestReport report = ingest(options, {}).report;
  std::vector<Json> made = {{{"rejects", report.rejects}, {"formats", report.sources[0].formats}}};
  std::istringstream in(slurp(scratch / "out" / "records.jsonl"));
  for (std::string line; std::getline(in, line);) {
    made.push_back(Json::parse(line));
    made.back()["source"] = made.back()["source"]["format"];
  }
  return made;
}

inline std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// Returns the directory of shared test data (SPECDEC_SHARED, else ../shared beside the source tree), or an empty path
// if the directory does not exist; tests that need the data are then skipped.
inline fs::path shared_directory() {
  const char* set = std::getenv("SPECDEC_SHARED");
  const fs::path path = set ? fs::path(set) : fs::path(source_folder()) / ".." / "shared";
  return fs::exists(path / "data") ? path : fs::path();
}

}  // namespace specdec::data
