// Tests folders as users have them: logs beside plain text and tables, damaged files, and rows that are too expensive.
#include "base/sha256.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

const char kChat[] = R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"an answer"}]})"
                     "\n";
const char kAccess[] =
    "10.0.0.1 - - [12/Oct/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 200 612\n"
    "10.0.0.2 - - [12/Oct/2026:10:00:02 +0000] \"GET /a HTTP/1.1\" 404 153\n";

class FolderTest : public testing::Test {
 protected:
  IngestOptions options(const std::vector<std::pair<std::string, std::string>>& files) {
    IngestOptions o = ingest_options("", target_, scratch_ / "out");
    o.sources.clear();
    for (const auto& [name, content] : files) o.sources.push_back(scratch_.write(name, content).string());
    return o;
  }
  // Returns the lines of rejects.jsonl, each as "file name:line:reason".
  std::vector<std::string> rejects() {
    std::vector<std::string> found;
    std::istringstream in(slurp(scratch_ / "out" / "rejects.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const Json r = Json::parse(line);
      found.push_back(fs::path(r["file"].get<std::string>()).filename().string() + ":" +
                      std::to_string(r["line"].get<int64_t>()) + ":" + r["reason"].get<std::string>());
    }
    return found;
  }
  size_t rows() { return ShardReader(scratch_ / "out").rows("all").size(); }

  Scratch scratch_;
  fs::path target_ = make_toy_target(scratch_ / "target");
};

TEST_F(FolderTest, PlainTextIsNotLearntBesideLogs) {
  const IngestResult r = ingest(
      options({{"access.log", kAccess}, {"chat.jsonl", kChat}, {"empty.log", ""}, {"notes.txt", "Once upon a time."}}),
      {});
  EXPECT_EQ(rows(), 1u);
  EXPECT_EQ(rejects(), (std::vector<std::string>{"access.log:1:plain_text", "notes.txt:1:plain_text"}));
  EXPECT_EQ(r.index.rejects, (std::map<std::string, int64_t>{{"plain_text", 2}}));
  EXPECT_NE(slurp(scratch_ / "out" / "rejects.jsonl").find("--format plain"), std::string::npos);
  EXPECT_EQ(r.index.sources.size(), 4u) << "each file keeps its digest";
}

TEST_F(FolderTest, PlainTextNeedsItsNameOrTheFlag) {
  const std::string refusal = error_of(options({{"access.log", kAccess}}));
  EXPECT_NE(refusal.find("access.log:1: plain_text"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("--format plain"), std::string::npos) << refusal;
  for (const char* name : {"a.txt", "a.md"}) {
    ingest(options({{name, "Once upon a time."}, {"b.txt", "The end."}}), {});
    EXPECT_EQ(rows(), 2u) << name;
  }
  IngestOptions o = options({{"access.log", kAccess}});
  o.format = "plain";
  EXPECT_EQ(ingest(o, {}).report.accepted, 1);
}

TEST_F(FolderTest, TablesMayHaveTabsAndSemicolons) {
  ingest(options({{"a.tsv", "prompt\tcompletion\nWhat, now?\tThis; that\n\"two\tparts\"\tyes\n"},
                  {"b.csv", "prompt;completion\nOne, two?\tx;three\n"}}),
         {});
  const text::Tokenizer tokenizer(target_);
  std::vector<std::string> texts;
  for (const TokenRow& row : ShardReader(scratch_ / "out").rows("all"))
    texts.push_back(prompt_of(tokenizer, row) + "|" + learnt_text(tokenizer, row));
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0], "<s>What, now?|This; that");
  EXPECT_EQ(texts[2].substr(texts[2].find('|')), "|three");
}

// If a compressed file was cut off, its whole rows before that point are kept, in every format.
TEST_F(FolderTest, CompressedFilesThatWereCutKeepTheirWholeRows) {
  std::string rows, values = "[";
  for (int i = 0; i < 4000; ++i) {
    const std::string row = Json({{"text", "row " + sha256_hex(std::to_string(i))}}).dump();
    rows += row + "\n";
    values += (i ? "," : "") + row;
  }
  std::string csv = "text\n";
  for (int i = 0; i < 4000; ++i) csv += "\"csv " + sha256_hex(std::to_string(i)) + "\"\n";
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"rows.jsonl", rows}, {"values.json", values + "]"}, {"table.csv", csv}}) {
    const std::string packed = gzip(text);
    IngestOptions o = options({{name + ".gz", packed.substr(0, packed.size() / 2)}, {"chat.jsonl", kChat}});
    o.redact = false;  // redaction would replace all digests by the same tag, so the rows would be duplicates
    const IngestResult r = ingest(o, {});
    EXPECT_GT(r.report.sources[0].accepted, 1000) << name;
    EXPECT_LT(r.report.sources[0].accepted, 3000) << name;
    EXPECT_EQ(r.report.sources[1].accepted, 1) << name;
    EXPECT_EQ(r.index.rejects.at("truncated_source"), 1) << name;
    EXPECT_EQ(r.report.records, r.report.accepted + r.report.sources[0].rejected) << name;
  }
}

TEST_F(FolderTest, ARowOfMegabytesIsRefusedBeforeItIsTokenised) {
  const std::string text(3 << 20, 'x');
  IngestOptions o = options(
      {{"long.jsonl",
        Json({{"text", text}}).dump() + "\n" + Json({{"prompt", text}, {"completion", "a"}}).dump() + "\n" + kChat +
            Json({{"messages", {{{"role", "user"}, {"content", text}}, {{"role", "assistant"}, {"content", "a"}}}}})
                .dump()}});
  o.max_length = 64;
  ingest(o, {});
  EXPECT_EQ(rejects(),
            (std::vector<std::string>{"long.jsonl:1:too_long", "long.jsonl:2:too_long", "long.jsonl:4:too_long"}));
}

TEST_F(FolderTest, RejectsAreKeptUpToANumberOfEachReason) {
  std::string file = kChat;
  for (int i = 0; i < 12'000; ++i) file += "x\n";
  for (int i = 0; i < 10; ++i) file += "[]\n";
  const IngestResult r = ingest(options({{"bad.jsonl", file}}), {});
  EXPECT_EQ(r.index.rejects, (std::map<std::string, int64_t>{{"invalid_json", 12'000}, {"not_an_object", 10}}));
  EXPECT_EQ(rejects().size(), 10'010u);
}

}  // namespace
}  // namespace specdec::data
