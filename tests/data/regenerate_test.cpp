#include "data/regenerate/regenerate.h"

#include <sys/wait.h>

#include <csignal>
#include <set>

#include "data/regenerate/answer_log.h"
#include "tests/data/regenerate_fixture.h"

namespace specdec::data {
namespace {

TEST_F(RegenerateTest, AnswersAreReplacedAndTheTargetIsRecorded) {
  const RegenerateResult r = run(options());
  EXPECT_EQ(r.rows, 7);
  EXPECT_EQ(r.asked, 7);
  EXPECT_EQ(r.model, "toy-model");
  EXPECT_EQ(r.index.written_by, "target");
  EXPECT_EQ(r.index.target_id, fingerprint_model(target_).id);
  EXPECT_EQ(learnt("q0"), "0 again");
  EXPECT_EQ(prompt_of(tokenizer_, by_id().at("q0")), "<s>Question 0");
  // Both answers of the chat are new. The first one was cut off, so its end-of-turn marker is not learnt.
  EXPECT_EQ(learnt("c"), "\n again|\n again");
  EXPECT_EQ(prompt_of(tokenizer_, by_id().at("c")),
            "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n\n again<|im_end|>\n"
            "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(r.turns, 8);
  EXPECT_TRUE(r.ended.empty());
  EXPECT_EQ(by_id("holdout").size(), 2u);
  EXPECT_EQ(by_id("holdout").count("q1"), 1u);
  EXPECT_FALSE(fs::exists(progress_file(scratch_ / "new")));
  // The request has token ids and the row's own sampling options; options other than the temperature are sent only if
  // they differ from their defaults.
  const Json& plain = endpoint_.bodies.at("<s>Question 3");
  EXPECT_TRUE(plain["prompt"].is_array());
  EXPECT_EQ(plain["max_tokens"], 14);
  EXPECT_EQ(plain["temperature"], 1.0);
  EXPECT_EQ(plain["return_token_ids"], true);
  EXPECT_FALSE(plain.contains("top_p") || plain.contains("top_k") || plain.contains("min_p"));
  const Json& chat = endpoint_.bodies.rbegin()->first.starts_with("<|im") ? endpoint_.bodies.rbegin()->second
                                                                          : endpoint_.bodies.begin()->second;
  EXPECT_EQ(chat["temperature"], 0.25);
  EXPECT_EQ(chat["top_p"], 0.5);
}

TEST_F(RegenerateTest, TheResultDoesNotDependOnTheOrderOfTheAnswers) {
  RegenerateOptions o = options();
  o.temperature = 0.7;
  run(o);
  const std::string first = slurp(scratch_ / "new" / "index.json");
  std::set<int64_t> seeds;
  for (const auto& [prompt, body] : endpoint_.bodies) {
    seeds.insert(body["seed"].get<int64_t>());
    EXPECT_EQ(body["temperature"], 0.7);
  }
  EXPECT_EQ(seeds.size(), 8u) << "of 7 rows, one with two answers";
  o.concurrency = 1;
  run(o);
  EXPECT_EQ(slurp(scratch_ / "new" / "index.json"), first);
}

TEST_F(RegenerateTest, EosIsAddedWhereTheTargetStopped) {
  endpoint_.finish_reason = "stop";
  run(options());
  EXPECT_EQ(learnt("q2"), "2 again<|im_end|>");
}

TEST_F(RegenerateTest, TextOnlyEndpointsNeedTheTokenizer) {
  endpoint_.ids = false;
  RegenerateOptions o = options();
  o.prompt_as_text = true;
  run(o);
  EXPECT_EQ(learnt("q4"), "4 again");
  EXPECT_EQ(by_id().at("q4").tokens.front(), tokenizer_.bos_id());
  EXPECT_EQ(endpoint_.bodies.count("Question 4"), 1u);  // sent without BOS, which the endpoint adds
  RegenerateOptions foreign = options();
  foreign.target.clear();
  foreign.out = (scratch_ / "foreign").string();
  EXPECT_NE(error_of(foreign, ErrorKind::kData).find("--target-files"), std::string::npos);
  endpoint_.ids = true;
  foreign.resume = true;
  EXPECT_EQ(run(foreign).index.written_by, "toy-model");
}

TEST_F(RegenerateTest, BusyServersAreAskedAgain) {
  endpoint_.intercept = [](const Json&, int call) -> ToyReply {
    if (call % 2) return {429, "{}", "Retry-After: 2\r\n"};
    return {0, "", ""};
  };
  EXPECT_EQ(run(options()).index.rejects.size(), 0u);
  EXPECT_GE(slept_.load(), 2 * 7);
  EXPECT_EQ(by_id().size(), 7u);
}

TEST_F(RegenerateTest, ARowTheServerRefusesIsRejectedAlone) {
  endpoint_.intercept = [this](const Json& body, int) -> ToyReply {
    return {body["prompt"].size() == 11 && body["prompt"].back() == tokenizer_.token_to_id("5") ? 400 : 0,
            R"({"error":{"message":"too long"}})", ""};
  };
  const RegenerateResult r = run(options());
  EXPECT_EQ(r.index.rejects, (std::map<std::string, int64_t>{{"http_400", 1}}));
  EXPECT_EQ(by_id().size(), 6u);
  EXPECT_EQ(by_id().count("q5"), 0u);
  const Json reject = Json::parse(slurp(scratch_ / "new" / "rejects.jsonl"));
  EXPECT_EQ(reject["id"], "q5");
  EXPECT_EQ(reject["turn"], 1);
  EXPECT_EQ(reject["status"], 400);
  EXPECT_EQ(reject["detail"], "HTTP 400: too long");
}

TEST_F(RegenerateTest, AnInterruptedRunIsResumedWithoutAskingTwice) {
  endpoint_.intercept = [](const Json&, int call) -> ToyReply {
    return {call > 3 ? 401 : 0, R"({"error":{"message":"bad key"}})", ""};
  };
  RegenerateOptions o = options();
  o.concurrency = 1;
  const std::string message = error_of(o, ErrorKind::kUsage);
  EXPECT_NE(message.find("bad key"), std::string::npos);
  EXPECT_NE(message.find("3 of 7"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(scratch_ / "new"));
  // Appends an incomplete line, as a killed process leaves it.
  std::ofstream(progress_file(o.out), std::ios::app) << R"({"id":"q4","prompt_tok)";
  endpoint_.intercept = {};
  EXPECT_NE(error_of(o, ErrorKind::kUsage).find("--resume"), std::string::npos);
  o.resume = true;
  RegenerateOptions other = o;
  other.max_tokens = 3;
  EXPECT_NE(error_of(other, ErrorKind::kUsage).find("max_tokens"), std::string::npos);
  endpoint_.calls = 0;
  const RegenerateResult r = run(o);
  EXPECT_EQ(r.reused, 3);
  EXPECT_EQ(r.asked, 4);
  EXPECT_EQ(endpoint_.calls, 5) << "the chat has two answers";
  EXPECT_EQ(by_id().size(), 7u);
  // The result is the same as without an interruption.
  const std::string resumed = slurp(scratch_ / "new" / "index.json");
  o.resume = false;
  run(o);
  EXPECT_EQ(slurp(scratch_ / "new" / "index.json"), resumed);
}

TEST_F(RegenerateTest, AFinishedRunIsKeptByResume) {
  RegenerateOptions o = options();
  const RegenerateResult first = run(o);
  const std::string index = slurp(scratch_ / "new" / "index.json");
  o.resume = true;
  endpoint_.calls = 0;
  const RegenerateResult again = run(o);
  EXPECT_EQ(endpoint_.calls, 0);
  EXPECT_EQ(again.asked, 0);
  EXPECT_EQ(again.reused, 7);
  EXPECT_EQ(again.turns, first.turns);
  EXPECT_EQ(again.ended, first.ended);
  EXPECT_EQ(to_json(again.index), to_json(first.index));
  EXPECT_EQ(slurp(scratch_ / "new" / "index.json"), index);
  o.max_tokens = 3;  // with other settings all rows are asked again
  EXPECT_EQ(run(o).asked, 7);
  o.resume = false;
  EXPECT_EQ(run(o).asked, 7);
}

TEST_F(RegenerateTest, NonsenseFromTheEndpointIsAnError) {
  // 1000 tokens exceed max_tokens in every request.
  const std::string kTooMany =
      Json({{"choices", Json::array({{{"token_ids", std::vector<int32_t>(1000, 1)}}})}}).dump();
  const auto with = [&](const std::string& body) {
    endpoint_.intercept = [body](const Json&, int) -> ToyReply { return {200, body, ""}; };
    RegenerateOptions o = options();
    fs::remove(progress_file(o.out));
    return error_of(o, ErrorKind::kNetwork);
  };
  for (const char* body : {"", "[]", "{}", R"({"choices":[]})", R"({"choices":[{"token_ids":[-1]}]})",
                           R"({"choices":[{"token_ids":[1000000]}]})", kTooMany.c_str(),
                           R"({"choices":[{"token_ids":["x"]}]})", R"({"choices":[{"text":7}]})"})
    EXPECT_NE(with(body).find("no conversation got an answer"), std::string::npos) << body;
  endpoint_.intercept = [](const Json&, int) -> ToyReply {
    return {200, R"({"choices":[{"text":"","token_ids":[],"finish_reason":"length"}]})", ""};
  };
  fs::remove(progress_file(options().out));
  EXPECT_NE(error_of(options(), ErrorKind::kData).find("none of the 7"), std::string::npos);
}

TEST_F(RegenerateTest, AnEndpointThatRefusesEverythingIsGivenUp) {
  std::string file;
  for (int i = 0; i < 40; ++i) file += chat_of("c" + std::to_string(i), 1);
  IngestOptions in = ingest_options(scratch_.write("chat.jsonl", file), target_, scratch_ / "data");
  in.dedup = false;
  ingest(in, {});
  const auto answered_by = [&](int status, ErrorKind kind) {
    endpoint_.calls = 0;
    endpoint_.intercept = [status](const Json&, int) -> ToyReply {
      return {status, R"({"error":{"message":"unknown field"}})", ""};
    };
    return error_of(options(), kind);
  };
  EXPECT_NE(answered_by(400, ErrorKind::kUsage).find("unknown field (8 conversations in a row"), std::string::npos);
  EXPECT_LE(endpoint_.calls, 8 + 3);
  fs::remove(progress_file(options().out));
  EXPECT_NE(answered_by(500, ErrorKind::kNetwork).find("8 conversations in a row"), std::string::npos);
  // No row was stored as rejected, so a resumed run asks for all rows.
  endpoint_.intercept = {};
  RegenerateOptions o = options();
  o.resume = true;
  const RegenerateResult r = run(o);
  EXPECT_EQ(r.asked, 40);
  EXPECT_TRUE(r.index.rejects.empty());
}

TEST_F(RegenerateTest, ARowThatBreaksTheServerIsSetAside) {
  endpoint_.intercept = [this](const Json& body, int) -> ToyReply {
    if (body["prompt"].back() == tokenizer_.token_to_id("3")) return {500, R"({"error":{"message":"oops"}})", ""};
    if (body["prompt"].back() == tokenizer_.token_to_id("4")) return {200, "<html>", ""};
    if (body["prompt"].back() == tokenizer_.token_to_id("5")) return {0, "", "", true};
    return {0, "", ""};
  };
  std::string last;
  const RegenerateResult r = regenerate(options(), [&](const Progress& p) { last = p.detail; }, [](double) {});
  EXPECT_EQ(r.index.rejects, (std::map<std::string, int64_t>{{"no_answer", 3}}));
  EXPECT_EQ(by_id().size(), 4u);
  EXPECT_NE(last.find("tokens/s · 3 errors"), std::string::npos) << last;
  EXPECT_NE(slurp(scratch_ / "new" / "rejects.jsonl").find("HTTP 500: oops"), std::string::npos);
}

TEST_F(RegenerateTest, ADeadEndpointEndsTheRun) {
  endpoint_.intercept = [this](const Json&, int call) -> ToyReply {
    endpoint_.dead = call > 2;
    return {0, "", "", call > 2};
  };
  RegenerateOptions o = options();
  o.concurrency = 1;
  EXPECT_NE(error_of(o, ErrorKind::kNetwork).find("2 of 7 answers are kept"), std::string::npos);
  EXPECT_EQ(endpoint_.calls, 3) << "from then on it takes no request";
  EXPECT_NEAR(slept_.load(), 63.5, 1e-9) << "eight attempts for one row";
}

// A killed run keeps the answers in its log, and a resumed run gives the same result, wherever the run was killed.
TEST_F(RegenerateTest, ARunThatIsKilledGoesOnWithTheSameResult) {
  std::string file;
  for (int i = 0; i < 12; ++i) file += chat_of("c" + std::to_string(i), 1 + i % 3);
  IngestOptions in = ingest_options(scratch_.write("chat.jsonl", file), target_, scratch_ / "data");
  in.dedup = false;
  ingest(in, {});
  run(options());
  const std::string whole = slurp(scratch_ / "new" / "index.json");
  fs::remove_all(scratch_ / "new");
  for (const int at : {1, 7, 15}) {
    const pid_t child = fork();
    if (child == 0) {
      endpoint_.calls = 0;  // counts the calls of this child, which has its own server
      Endpoint server(tokenizer_);
      server.intercept = [at](const Json&, int call) -> ToyReply {
        if (call > at) raise(SIGKILL);
        return {0, "", ""};
      };
      RegenerateOptions o = options();
      o.url = server.url();
      o.resume = true;
      regenerate(o, {}, {});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "killed at request " << at;
  }
  RegenerateOptions o = options();
  o.resume = true;
  const RegenerateResult r = run(o);
  EXPECT_EQ(r.reused + r.asked, 12);
  EXPECT_GT(r.reused, 0);
  EXPECT_EQ(slurp(scratch_ / "new" / "index.json"), whole);
}

TEST_F(RegenerateTest, AnotherTokenizerIsRefused) {
  RegenerateOptions o = options();
  o.target = make_toy_target(scratch_ / "other", "").string();
  for (const char* file : {"config.json", "model.safetensors"}) fs::copy(target_ / file, scratch_ / "other" / file);
  EXPECT_NE(error_of(o, ErrorKind::kData).find("another tokenizer"), std::string::npos);
}

TEST_F(RegenerateTest, MaxTokensStaysInsideMaxLength) {
  IngestOptions in = ingest_options(scratch_ / "t.jsonl", target_, scratch_ / "data");
  in.max_length = 14;  // 11 tokens of the prompt and 3 of the answer
  ingest(in, {});
  RegenerateOptions o = options();
  o.max_tokens = 100;
  run(o);
  EXPECT_EQ(endpoint_.bodies.at("<s>Question 1")["max_tokens"], 3);
  EXPECT_EQ(learnt("q1"), "1 a");
}

// ---- answer log ----

TEST(AnswerLog, DamageIsAnErrorAndATornEndIsNot) {
  const Scratch s;
  const Json settings = {{"seed", 1}};
  const fs::path file = s / "log.jsonl";
  {
    AnswerLog log(file, settings, false);
    log.append({.id = "a", .tokens = {1, 2, 3}, .loss_mask = {0, 1, 1}, .prompt_tokens = 1, .turns = 1});
    log.append({.id = "b", .rejected = "http_400", .problem = AnswerProblem{1, 400, "too long"}});
  }
  const std::string good = slurp(file);
  for (size_t cut = good.size() - 1; cut > good.rfind('\n', good.size() - 2) + 1; --cut) {
    std::ofstream(file) << good.substr(0, cut);
    AnswerLog log(file, settings, true);
    EXPECT_EQ(log.size(), 1u);
    EXPECT_EQ(log.at("a").tokens, (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(log.at("a").loss_mask, (std::vector<uint8_t>{0, 1, 1}));
  }
  std::ofstream(file) << good;
  EXPECT_EQ(AnswerLog(file, settings, true).at("b").rejected, "http_400");
  EXPECT_THROW(AnswerLog(file, settings, false), Error);
  EXPECT_THROW(AnswerLog(file, {{"seed", 2}}, true), Error);
  EXPECT_EQ(AnswerLog(file, settings, true).at("b").problem->message, "too long");
  const auto line_of = [](const std::string& prompt, const std::string& learnt, const std::string& tokens) {
    return R"({"id":"c","turns":1,"prompt_tokens":)" + prompt + R"(,"learnt":)" + learnt + R"(,"tokens":)" + tokens +
           "}\n";
  };
  for (const std::string& line :
       {std::string("{}\n"), std::string("nonsense\n"), line_of("1", "[[0,1]]", "[-5]"), line_of("9", "[[0,1]]", "[1]"),
        line_of("1", "[[0,3]]", "[1,2]"), line_of("1", "[[1,1]]", "[1,2]"), line_of("1", "[[-1,1]]", "[1,2]"),
        line_of("1", "[[1,2],[0,1]]", "[1,2]"), line_of("1", "[7]", "[1,2]")}) {
    std::ofstream(file) << good << line;
    EXPECT_THROW(AnswerLog(file, settings, true), Error) << line;
  }
  std::ofstream(file) << "{\"schema\":\"specdec.other/1\"}\n";
  EXPECT_THROW(AnswerLog(file, settings, true), Error);
}

}  // namespace
}  // namespace specdec::data
