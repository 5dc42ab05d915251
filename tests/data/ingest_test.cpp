#include "data/ingest.h"

#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "base/sha256.h"
#include "data/select/duplicates.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

class IngestTest : public testing::Test {
 protected:
  IngestOptions options(const std::string& name, const std::string& content) {
    return ingest_options(scratch_.write(name, content), target_, scratch_ / "out");
  }
  std::vector<TokenRow> rows(const std::string& split = "all") { return ShardReader(scratch_ / "out").rows(split); }
  // Returns "line:reason" for each line of rejects.jsonl.
  std::vector<std::string> rejects() {
    std::vector<std::string> found;
    std::istringstream in(slurp(scratch_ / "out" / "rejects.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const Json r = Json::parse(line);
      found.push_back(std::to_string(r["line"].get<int64_t>()) + ":" + r["reason"].get<std::string>());
    }
    return found;
  }
  std::string learnt(size_t i) { return learnt_text(tokenizer_, rows()[i]); }

  Scratch scratch_;
  fs::path target_ = make_toy_target(scratch_ / "target");
  text::Tokenizer tokenizer_{target_};
};

TEST_F(IngestTest, EveryFormatInOneFileIsRecognised) {
  const IngestResult r = ingest(
      options("mixed.jsonl",
              R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"chat answer"}]})"
              "\n"
              R"({"conversations":[{"from":"human","value":"u"},{"from":"gpt","value":"sharegpt answer"}]})"
              "\n"
              R"({"prompt":"p","completion":"completion"})"
              "\n"
              R"({"instruction":"do","output":"instruction answer"})"
              "\n"
              R"({"text":"a text"})"
              "\n"
              R"({"schema":"specdec.traffic/1","id":"t","conversation":"t","prompt":"p","response":"traffic answer"})"
              "\n"),
      {});
  EXPECT_EQ(r.report.records, 6);
  ASSERT_EQ(rows().size(), 6u);
  const std::vector<std::string> expected = {
      "chat answer<|im_end|>", "sharegpt answer<|im_end|>", "completion", "instruction answer<|im_end|>", "a text",
      "traffic answer"};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(learnt(i), expected[i]);
  EXPECT_TRUE(rejects().empty());
  EXPECT_EQ(r.index.target_id, std::string(64, '0'));  // the id of a target without weights
}

TEST_F(IngestTest, PlainTextArraysAndDirectories) {
  ingest(options("stories.txt", "First one.\n<|endoftext|>\nSecond.\n\nwith a gap\n<|endoftext|>\n"), {});
  ASSERT_EQ(rows().size(), 2u);
  EXPECT_EQ(learnt(1), "Second.\n\nwith a gap");
  IngestOptions o = options("stories.txt", "a--b--c");
  o.separator = "--";
  ingest(o, {});
  EXPECT_EQ(rows().size(), 3u);
  ingest(options("array.json", R"([{"text":"one"},{"text":"two"}])"), {});
  EXPECT_EQ(rows().size(), 2u);
  fs::create_directories(scratch_ / "logs" / "acceptance");
  scratch_.write("logs/b.jsonl", "{\"text\":\"bb\"}\n");
  scratch_.write("logs/a.jsonl", "{\"text\":\"aa\"}\n");
  scratch_.write("logs/c.jsonl.partial", "{\"text\":\"cc\"}\n");
  scratch_.write("logs/acceptance/x.jsonl", "{\"text\":\"xx\"}\n");
  o = options("unused", "");
  o.sources = {(scratch_ / "logs").string()};
  ingest(o, {});
  ASSERT_EQ(rows().size(), 2u);
  EXPECT_EQ(learnt(0), "aa");
  EXPECT_EQ(learnt(1), "bb");
}

TEST_F(IngestTest, RejectsAreCountedAndNamedWithoutContent) {
  IngestOptions o =
      options("bad.jsonl", "{\"text\":\"good\"}\n{\"text\": SECRET\n{\"nothing\":1}\n{\"text\":\"\xFF\"}\n[]\n" +
                               ("{\"text\":\"" + std::string(300, 'x')) + "\"}\n" +
                               R"({"messages":[{"role":"user","content":"SECRET"}]})" + "\n" + R"({"text":"ab"})" +
                               "\n{\"text\":\"SECRET cut of");
  o.max_record_bytes = 200;
  o.min_chars = 3;
  const IngestResult r = ingest(o, {});
  EXPECT_EQ(rows().size(), 1u);
  EXPECT_EQ(rejects(),
            (std::vector<std::string>{"2:invalid_json", "3:unknown_format", "4:invalid_utf8", "5:not_an_object",
                                      "6:too_long", "7:no_answer", "8:too_short", "9:truncated_line"}));
  EXPECT_EQ(r.index.rejects, (std::map<std::string, int64_t>{{"invalid_json", 1},
                                                             {"unknown_format", 1},
                                                             {"invalid_utf8", 1},
                                                             {"not_an_object", 1},
                                                             {"too_long", 1},
                                                             {"no_answer", 1},
                                                             {"too_short", 1},
                                                             {"truncated_line", 1}}));
  EXPECT_EQ(ShardReader(o.out).index().rejects, r.index.rejects);
  EXPECT_EQ(slurp(scratch_ / "out" / "rejects.jsonl").find("SECRET"), std::string::npos);
}

TEST_F(IngestTest, NothingAcceptedIsAnErrorThatSaysWhy) {
  EXPECT_NE(error_of(options("a.jsonl", "x\ny\n")).find("invalid_json 2"), std::string::npos);
  EXPECT_NE(error_of(options("a.jsonl", "")).find("no rows"), std::string::npos);
  IngestOptions o = options("a.bin", std::string("\x00\x01\x02\xFF", 4));
  o.format = "plain";
  EXPECT_NE(error_of(o).find("invalid_utf8"), std::string::npos);
  o = options("a.jsonl", "{\"text\":\"abc\"}\n");
  o.skip = 1;
  EXPECT_NE(error_of(o).find("--skip"), std::string::npos);
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
  for (const auto& entry : fs::directory_iterator(scratch_.path()))
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos);
}

TEST_F(IngestTest, ChatForATargetWithoutTemplateNamesTheRow) {
  make_toy_target(target_, "");
  const std::string message =
      error_of(options("a.jsonl",
                       "{\"text\":\"fine\"}\n"
                       R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]})"));
  EXPECT_NE(message.find("a.jsonl:2"), std::string::npos) << message;
  EXPECT_NE(message.find("chat template"), std::string::npos) << message;
}

TEST_F(IngestTest, WrongFlagsAreUsageErrors) {
  const IngestOptions good = options("a.jsonl", "{\"text\":\"abc\"}\n");
  const auto with = [&](const std::function<void(IngestOptions&)>& edit) {
    IngestOptions o = good;
    edit(o);
    return error_of(o, ErrorKind::kUsage);
  };
  EXPECT_NE(with([](IngestOptions& o) { o.sources.clear(); }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.format = "csv"; }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.holdout = 1.5; }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.max_length = 1; }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.holdout_rule = "best"; }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.order = "random"; }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.written_by = "target"; }), "accepted");
  EXPECT_NE(with([](IngestOptions& o) { o.limit = -1; }), "accepted");
  EXPECT_EQ(error_of(good), "accepted");
}

TEST_F(IngestTest, DeduplicationIgnoresWhiteSpaceAndRunsAfterRedaction) {
  const std::string file =
      "{\"text\":\"hello  world\"}\n{\"text\":\" hello world\\n\"}\n{\"text\":\"Hello world\"}\n{\"text\":\"mail "
      "a@b.de\"}\n{\"text\":\"mail c@d.org\"}\n"
      "{\"prompt\":\"ab\",\"completion\":\"c\"}\n{\"prompt\":\"a\",\"completion\":\"bc\"}\n";
  IngestResult r = ingest(options("d.jsonl", file), {});
  EXPECT_EQ(r.index.duplicates, 2);
  EXPECT_EQ(rows().size(), 5u);
  EXPECT_EQ(r.index.redactions, (std::map<std::string, int64_t>{{"email", 1}}));
  EXPECT_EQ(learnt(2), "mail [EMAIL]");
  IngestOptions keep = options("d.jsonl", file);
  keep.redact = keep.dedup = false;
  r = ingest(keep, {});
  EXPECT_EQ(r.index.duplicates, 0);
  ASSERT_EQ(rows().size(), 7u);
  EXPECT_EQ(learnt(3), "mail a@b.de");
  EXPECT_TRUE(r.index.redactions.empty());
}

// Rows with equal words are not duplicates if they differ in the tokens that are learnt.
TEST_F(IngestTest, WhatIsLearntCountsForDuplicates) {
  const auto line = [](const std::string& of_answer, const std::string& of_row) {
    return R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"},)"
           R"({"role":"user","content":"v"},{"role":"assistant","content":"b")" +
           of_answer + "}]" + of_row + "}\n";
  };
  const IngestResult r =
      ingest(options("d.jsonl", line("", R"(,"finish_reason":"length")") + line("", "") + line(R"(,"weight":0)", "") +
                                    line(R"(,"weight":1)", "") + line("", R"(,"finish_reason":"max_tokens")")),
             {});
  EXPECT_EQ(r.index.duplicates, 2);
  ASSERT_EQ(rows().size(), 3u);
  EXPECT_EQ(learnt(0), "a<|im_end|>|b");
  EXPECT_EQ(learnt(1), "a<|im_end|>|b<|im_end|>");
  EXPECT_EQ(learnt(2), "a<|im_end|>");
}

// White space in long texts is collapsed window by window. The result must equal a simple implementation, wherever in a
// window the white space is.
TEST(Duplicates, CollapseIsTheSameAtEveryPlace) {
  const auto plainly = [](const std::string& text) {
    std::string out;
    for (const char c : text) {
      const bool blank = c == ' ' || (c >= '\t' && c <= '\r');
      if (!blank)
        out += c;
      else if (!out.empty() && out.back() != ' ')
        out += ' ';
    }
    if (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
  };
  std::string words;
  while (words.size() < 1100) words += "word" + std::to_string(words.size()) + (words.size() % 3 ? " " : "-");
  for (const std::string blank : {" ", "  ", "\n", " \t ", ""})
    for (size_t at = 0; at < 600; ++at) {
      std::string text = words;
      text.insert(at, blank);
      TrafficRecord record;
      record.text = text;
      std::string collapsed;
      collapse_content(record, collapsed);
      ASSERT_EQ(collapsed, std::string("t\1") + plainly(text) + std::string(1, '\0')) << at;
    }
}

TEST_F(IngestTest, IdsAreUniqueAndConversationsFallBack) {
  IngestOptions o = options("ids.jsonl", R"({"id":"x","text":"one"})"
                                         "\n"
                                         R"({"id":"x","text":"two"})"
                                         "\n"
                                         R"({"text":"three"})"
                                         "\n"
                                         R"({"text":"three"})"
                                         "\n"
                                         R"({"id":9,"session_id":"s","text":"four"})"
                                         "\n");
  o.dedup = false;
  ingest(o, {});
  const auto all = rows();
  std::set<std::string> ids;
  for (const TokenRow& r : all) ids.insert(r.id);
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(all[0].id, "x");
  EXPECT_EQ(all[1].id, "x#2");
  EXPECT_EQ(all[1].conversation, "x");
  EXPECT_EQ(all[2].conversation, all[3].conversation);  // rows with equal content are in the same split
  EXPECT_EQ(all[4].conversation, "s");
}

TEST_F(IngestTest, ToolCallsThatRedactionMakesTooLongRejectTheirRow) {
  std::string arguments = "\"";
  while (arguments.size() < 1'040'000) arguments += "a@b.de ";  // redaction adds a byte to each address: [EMAIL]
  const Json calls = Json::parse(R"([{"function":{"name":"f","arguments":)" + arguments + "\"}}]");
  const auto row = [](const Json& list) {
    return Json{{"messages",
                 {{{"role", "user"}, {"content", "u"}},
                  {{"role", "assistant"}, {"content", "a"}, {"tool_calls", list.dump()}}}}}
               .dump() +
           "\n";
  };
  IngestOptions o =
      options("long.jsonl", row(calls) + row(Json::parse(R"([{"function":{"name":"f","arguments":"a@b.de"}}])")));
  o.target.clear();
  o.records = true;
  o.redact = true;
  EXPECT_EQ(ingest(o, {}).report.accepted, 1);
  EXPECT_EQ(rejects(), std::vector<std::string>{"1:unsupported_tool_calls"});
}

TEST_F(IngestTest, MaxLengthCutsAndCounts) {
  IngestOptions o = options("cut.jsonl", R"({"text":"0123456789"})"
                                         "\n"
                                         R"({"text":"01"})"
                                         "\n"
                                         R"({"prompt":"0123456789","completion":"gone"})"
                                         "\n");
  o.max_length = 6;
  const IngestResult r = ingest(o, {});
  EXPECT_EQ(r.index.truncated_rows, 1);
  EXPECT_EQ(r.index.dropped_tokens, 5);
  EXPECT_EQ(r.index.max_length, 6);
  EXPECT_EQ(learnt(0), "01234");
  EXPECT_EQ(rejects(), std::vector<std::string>{"3:no_loss_tokens"});
}

TEST_F(IngestTest, LearnsTheLastAnswerAlone) {
  const auto chat = [](const Json& last) {
    return Json{{"messages",
                 {{{"role", "user"}, {"content", "1"}},
                  {{"role", "assistant"}, {"content", "23"}},
                  {{"role", "user"}, {"content", "4"}},
                  last}}}
               .dump() +
           "\n";
  };
  const std::string answered = chat({{"role", "assistant"}, {"content", "56"}});
  IngestOptions o = options("chat.jsonl", answered + R"({"prompt":"78","completion":"90"})");
  ingest(o, {});
  const std::string all = learnt(0), answer = learnt(1);
  EXPECT_NE(all.find("23"), std::string::npos);
  o.learn = "last";
  ingest(o, {});
  EXPECT_EQ(learnt(0), all.substr(all.find("56")));
  EXPECT_EQ(learnt(1), answer) << "rows without messages have one answer";
  o = options("asked.jsonl", chat({{"role", "assistant"}, {"content", "56"}, {"weight", 0}}) + answered);
  ingest(o, {});
  EXPECT_EQ(learnt(0) + "|56", all.substr(0, all.find("56") + 2)) << "the log excludes the newest answer";
  o.learn = "last";
  ingest(o, {});
  EXPECT_EQ(rejects(), std::vector<std::string>{"1:no_loss_tokens"});
  o.learn = "lsat";
  EXPECT_THROW(ingest(o, {}), Error);
}

TEST_F(IngestTest, SelectionCountsAcceptedRowsInFileOrder) {
  std::string file;
  for (int i = 0; i < 10; ++i) file += "{\"text\":\"row " + std::to_string(i) + "\"}\n{broken\n";
  IngestOptions o = options("s.jsonl", file);
  o.skip = 3;
  o.limit = 4;
  const IngestResult r = ingest(o, {});
  ASSERT_EQ(rows().size(), 4u);
  EXPECT_EQ(learnt(0), "row 3");
  EXPECT_EQ(learnt(3), "row 6");
  EXPECT_EQ(r.report.skipped, 3);
  // The digest covers the whole file, although ingest did not read it to the end.
  EXPECT_EQ(r.index.sources[0].sha256, sha256_file(o.sources[0]));
}

std::string conversations(int n, bool times) {
  std::string file;
  for (int turn = 0; turn < 3; ++turn)
    for (int c = 0; c < n; ++c)
      file += canonical_json({{"conversation_id", "c" + std::to_string(c)},
                              {"text", "turn " + std::to_string(turn) + " of " + std::to_string(c)},
                              {"time", times ? 1700000000 + c * 100 + turn : 0},
                              {"domain", c % 2 ? "odd" : "even"}}) +
              "\n";
  return file;
}

TEST_F(IngestTest, SplitLeaksNoConversation) {
  for (const bool times : {false, true}) {
    IngestOptions o = options("c.jsonl", conversations(40, times));
    o.holdout = 0.1;
    const IngestResult r = ingest(o, {});
    EXPECT_EQ(r.split_rule, times ? "time" : "hash");
    EXPECT_EQ(r.conversations, 40);
    EXPECT_EQ(r.held_out_conversations, 4);
    std::set<std::string> train, holdout;
    for (const TokenRow& row : rows("train")) train.insert(row.conversation);
    for (const TokenRow& row : rows("holdout")) holdout.insert(row.conversation);
    EXPECT_EQ(holdout.size(), 4u);
    EXPECT_EQ(train.size(), 36u);
    for (const std::string& c : holdout) EXPECT_EQ(train.count(c), 0u) << c;
    if (times) {
      EXPECT_EQ(holdout, (std::set<std::string>{"c36", "c37", "c38", "c39"}));
    }
    EXPECT_EQ(rows("holdout").size(), 12u);
  }
}

TEST_F(IngestTest, HoldoutSourceWinsOverEqualRowsAndItsConversations) {
  IngestOptions o = options("train.jsonl", R"({"text":"shared"})"
                                           "\n"
                                           R"({"text":"mine"})"
                                           "\n"
                                           R"({"text":"same talk","conversation_id":"k"})"
                                           "\n");
  o.holdout_source = scratch_.write("held.jsonl", R"({"text":"shared"})"
                                                  "\n"
                                                  R"({"text":"other","conversation_id":"k"})"
                                                  "\n");
  o.limit = 10;
  const IngestResult r = ingest(o, {});
  EXPECT_EQ(r.index.duplicates, 1);
  ASSERT_EQ(rows("train").size(), 1u);
  EXPECT_EQ(learnt_text(tokenizer_, rows("train")[0]), "mine");
  EXPECT_EQ(rows("holdout").size(), 3u);
  EXPECT_EQ(r.index.sources.size(), 2u);
}

TEST_F(IngestTest, DomainsComeFromTheFieldOrTheCall) {
  ingest(options("c.jsonl", conversations(2, false)), {});
  EXPECT_EQ(rows()[0].domain, "even");
  EXPECT_EQ(rows()[1].domain, "odd");
  IngestOptions o = options("c.jsonl", conversations(2, false));
  o.domain = "all";
  ingest(o, {});
  EXPECT_EQ(rows()[1].domain, "all");
}

TEST_F(IngestTest, EqualInputGivesEqualBytes) {
  IngestOptions o = options("c.jsonl", conversations(50, false) + "broken\n");
  o.order = "shuffle";
  o.holdout = 0.2;
  o.seed = 5;
  ingest(o, {});
  IngestOptions again = o;
  again.out = (scratch_ / "again").string();
  again.salt = (scratch_ / "out.salt").string();
  ingest(again, {});
  int files = 0;
  for (const auto& entry : fs::directory_iterator(scratch_ / "out")) {
    EXPECT_EQ(slurp(entry.path()), slurp(scratch_ / "again" / entry.path().filename().string())) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 7);  // index, report, rejects, and two files for each of the two splits
  std::vector<std::string> shuffled, given;
  for (const TokenRow& r : rows("train")) shuffled.push_back(r.id);
  o.order = "given";
  ingest(o, {});
  for (const TokenRow& r : rows("train")) given.push_back(r.id);
  EXPECT_NE(shuffled, given);
  EXPECT_EQ(std::set<std::string>(shuffled.begin(), shuffled.end()), std::set<std::string>(given.begin(), given.end()));
}

TEST_F(IngestTest, ProgressEndsAtTheTotal) {
  const IngestOptions o = options("c.jsonl", conversations(300, false));
  std::vector<Progress> seen;
  ingest(o, [&](const Progress& p) { seen.push_back(p); });
  ASSERT_GE(seen.size(), 5u);
  EXPECT_EQ(seen.front().detail, "0 rows") << "it begins before the first row";
  std::map<std::string, int> ends;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (i > 0 && seen[i].stage == seen[i - 1].stage) {
      EXPECT_GE(seen[i].done, seen[i - 1].done);
    }
    if (seen[i].done >= seen[i].total) ++ends[seen[i].stage];
    if (seen[i].stage == "ingest") {
      EXPECT_NEAR(seen[i].total, static_cast<double>(fs::file_size(o.sources[0])) / 1e6, 1e-9);
    }
  }
  EXPECT_EQ(ends, (std::map<std::string, int>{{"ingest", 1}, {"write shards", 1}})) << "each stage ends once";
}

// Kills ingest at every change of the file system (SPECDEC_KILL_AT). Afterwards all existing files can be read, and the
// next run gives the same result.
TEST_F(IngestTest, KilledAtAnyPointLeavesNothingHalf) {
  const IngestOptions o = options("c.jsonl", conversations(10, true));
  int killed = 0;
  for (int at = 1;; ++at) {
    fs::remove_all(o.out);
    const pid_t child = fork();
    if (child == 0) {
      setenv("SPECDEC_KILL_AT", std::to_string(at).c_str(), 1);
      ingest(o, {});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (fs::exists(o.out)) {
      EXPECT_EQ(rows().size(), 30u) << at;
    }
    if (WIFEXITED(status)) break;
    ++killed;
    ASSERT_LT(at, 200);
  }
  EXPECT_GE(killed, 12);
  ingest(o, {});
  EXPECT_EQ(rows().size(), 30u);
}

TEST_F(IngestTest, FullDiskIsAnErrorAndKeepsTheOldOutput) {
  IngestOptions o = options("c.jsonl", conversations(4, false));
  ingest(o, {});
  const std::string before = slurp(scratch_ / "out" / "index.json");
  o.sources = {scratch_.write("d.jsonl", conversations(8, false)).string()};
  for (int at = 1; at <= 4; ++at) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("SPECDEC_ENOSPC_AT", std::to_string(at).c_str(), 1);
      try {
        ingest(o, {});
      } catch (const Error& e) {
        _exit(e.kind() == ErrorKind::kIo ? 42 : 43);
      }
      _exit(44);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 42) << at;
    EXPECT_EQ(slurp(scratch_ / "out" / "index.json"), before);
    EXPECT_EQ(rows().size(), 12u);  // the shards are still those of the first run
  }
}

}  // namespace
}  // namespace specdec::data
