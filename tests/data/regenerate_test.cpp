#include "data/regenerate.h"

#include <sys/wait.h>

#include <atomic>
#include <map>
#include <set>

#include "base/fingerprint.h"
#include "base/safetensors.h"
#include "data/answer_log.h"
#include "data/openai_client.h"
#include "tests/data/toy.h"
#include "tests/net/toy_server.h"

namespace specdec::data {
namespace {

using net::ToyReply;
using net::ToyRequest;
using net::ToyServer;

// ---- client ----

ClientOptions client_options(const std::string& url, std::vector<double>* slept = nullptr) {
  ClientOptions o;
  o.url = url;
  o.backoff.max_attempts = 4;
  o.backoff.sleep = [slept](double s) {
    if (slept) slept->push_back(s);
  };
  return o;
}

TEST(OpenAiClient, RetriesWhatIsTemporaryAndHonoursRetryAfter) {
  std::atomic<int> calls{0};
  ToyServer server([&](const ToyRequest& r) -> ToyReply {
    EXPECT_EQ(r.path, "/v1/models");
    switch (++calls) {
      case 1:
        return {0, "", "", true};
      case 2:
        return {429, "", "Retry-After: 7\r\n"};
      case 3:
        return {503, "", "Retry-After: 100000\r\n"};
      case 4:
        return {500, "", ""};
      default:
        return {200, R"({"data":[{"id":"toy"}]})", ""};
    }
  });
  std::vector<double> slept;
  ClientOptions options = client_options(server.url(), &slept);
  options.backoff.max_attempts = 5;
  OpenAiClient client(options);
  EXPECT_EQ(client.first_model(), "toy");
  EXPECT_EQ(slept, (std::vector<double>{0.5, 7, 300, 4}));  // Retry-After is capped; the delay keeps doubling
}

TEST(OpenAiClient, GivesUpAfterTheLastAttempt) {
  std::atomic<int> calls{0};
  ToyServer server([&](const ToyRequest&) -> ToyReply {
    ++calls;
    return {503, R"({"error":{"message":"loading\u0007"}})", ""};
  });
  OpenAiClient client(client_options(server.url()));
  const HttpReply reply = client.get("/x");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(describe(reply), "HTTP 503: loading?");
  OpenAiClient nobody(client_options("http://127.0.0.1:1"));
  EXPECT_THROW(nobody.get("/x"), Error);
  EXPECT_EQ(nobody.probe("/x").status, 0);
}

TEST(OpenAiClient, SendsTheKeyAndFollowsNoRedirect) {
  std::atomic<int> calls{0};
  ToyServer server([&](const ToyRequest& r) -> ToyReply {
    ++calls;
    EXPECT_NE(r.head.find("Authorization: Bearer sekret"), std::string::npos);
    EXPECT_EQ(r.head.find("Expect:"), std::string::npos);
    return {307, "", "Location: /elsewhere\r\n"};
  });
  ClientOptions o = client_options(server.url() + "/api/v2/");
  o.api_key = "sekret";
  OpenAiClient client(o);
  EXPECT_EQ(client.base_url(), server.url() + "/api/v2");
  EXPECT_EQ(client.post("/completions", {{"prompt", std::string(2'000'000, 'x')}}).status, 307);
  EXPECT_EQ(calls, 1);
}

TEST(OpenAiClient, BoundsTheReplyAndTheUrl) {
  ToyServer server([](const ToyRequest&) -> ToyReply { return {200, std::string(5000, 'x'), ""}; });
  ClientOptions o = client_options(server.url());
  o.max_response_bytes = 4999;
  EXPECT_THROW(OpenAiClient(o).get("/x"), Error);
  o.max_response_bytes = 5000;
  EXPECT_EQ(OpenAiClient(o).get("/x").body.size(), 5000u);
  for (const char* url : {"ftp://host", "file:///etc/passwd", "host:80", "http://", "http://user:pw@host",
                          "http://host/v1?x=1", "http://ho st"})
    EXPECT_THROW(OpenAiClient(client_options(url)), Error) << url;
}

TEST(OpenAiClient, NotAModelList) {
  std::string body;
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {200, body, ""}; });
  OpenAiClient client(client_options(server.url()));
  for (const char* bad : {"", "[]", "{\"data\":[]}", "{\"data\":[7]}", "{\"data\":[{\"id\":7}]}"}) {
    body = bad;
    EXPECT_THROW(client.first_model(), Error) << bad;
  }
}

TEST(OpenAiClient, SaysWhyAndWhenItTriesAgain) {
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {503, "", "Retry-After: 7\r\n"}; });
  std::vector<std::string> said;
  ClientOptions options = client_options(server.url());
  options.backoff.max_attempts = 3;
  options.backoff.on_retry = [&](const net::Retry& retry) { said.push_back(readable(retry)); };
  EXPECT_THROW(OpenAiClient(options).first_model(), Error);
  EXPECT_EQ(said, (std::vector<std::string>{"HTTP 503 (attempt 1 of 3), next attempt in 7 s",
                                            "HTTP 503 (attempt 2 of 3), next attempt in 7 s"}))
      << "the last attempt is the error";
}

// ---- regenerate ----

// Answers every prompt with "<the prompt's last character> again", as ids or as text.
class Endpoint {
 public:
  explicit Endpoint(const text::Tokenizer& tokenizer)
      : tokenizer_(tokenizer), server_([this](const ToyRequest& r) { return handle(r); }) {}
  std::string url() const { return server_.url(); }

  bool ids = true;
  std::string finish_reason = "length";
  std::function<ToyReply(const Json& body, int call)> intercept;  // status 0 = answer as usual
  std::map<std::string, Json> bodies;                             // prompt → request body
  std::atomic<int> calls{0};

 private:
  ToyReply handle(const ToyRequest& request) {
    if (request.path == "/v1/models") return {200, R"({"object":"list","data":[{"id":"toy-model"}]})", ""};
    const Json body = Json::parse(request.body);
    const int call = ++calls;
    if (intercept) {
      const ToyReply reply = intercept(body, call);
      if (reply.status != 0) return reply;
    }
    const Json& p = body["prompt"];
    std::string prompt;
    if (p.is_string()) {
      prompt = p;
    } else {
      for (const Json& id : p) prompt += tokenizer_.id_to_token(id.get<int32_t>());
    }
    {
      const std::lock_guard lock(mutex_);
      bodies[prompt] = body;
    }
    const std::string text = (std::string(1, prompt.back()) + " again").substr(0, body["max_tokens"].get<size_t>());
    Json choice = {{"text", text}, {"index", 0}, {"finish_reason", finish_reason}};
    if (ids) choice["token_ids"] = tokenizer_.encode(text, false);
    return {200, Json({{"choices", Json::array({choice})}}).dump(), ""};
  }

  const text::Tokenizer& tokenizer_;
  std::mutex mutex_;
  ToyServer server_;
};

class RegenerateTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(target_ / "config.json") << R"({"model_type":"toy"})";
    const std::vector<float> weights(4, 0.5f);
    write_safetensors(target_ / "model.safetensors", {{"w", "F32", {4}, std::as_bytes(std::span(weights))}});
    std::string file;
    for (int i = 0; i < 6; ++i)
      file += canonical_json({{"id", "q" + std::to_string(i)},
                              {"prompt", "Question " + std::to_string(i)},
                              {"completion", "old old answer"}}) +
              "\n";
    file += R"({"id":"c","messages":[{"role":"user","content":"u"},{"role":"assistant","content":"first"},)"
            R"({"role":"user","content":"v"},{"role":"assistant","content":"second"}],"temperature":0.25,"top_p":0.5})"
            "\n";
    IngestOptions o = ingest_options(scratch_.write("t.jsonl", file), target_, scratch_ / "data");
    o.holdout_count = 2;
    o.holdout_rule = "first";
    ingest(o, {});
  }
  RegenerateOptions options() {
    RegenerateOptions o;
    o.data = (scratch_ / "data").string();
    o.out = (scratch_ / "new").string();
    o.url = endpoint_.url();
    o.target = target_.string();
    o.concurrency = 3;
    return o;
  }
  RegenerateResult run(const RegenerateOptions& o) {
    return regenerate(o, {}, [this](double s) { slept_ += s; });
  }
  std::string error_of(const RegenerateOptions& o, ErrorKind kind) {
    try {
      run(o);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      return e.what();
    }
    return "accepted";
  }
  std::map<std::string, TokenRow> by_id(const std::string& split = "all") {
    std::map<std::string, TokenRow> rows;
    for (TokenRow& r : ShardReader(scratch_ / "new").rows(split)) rows[r.id] = std::move(r);
    return rows;
  }
  std::string learnt(const std::string& id) { return learnt_text(tokenizer_, by_id().at(id)); }

  Scratch scratch_;
  fs::path target_ = make_toy_target(scratch_ / "target");
  text::Tokenizer tokenizer_{target_};
  Endpoint endpoint_{tokenizer_};
  double slept_ = 0;
};

TEST_F(RegenerateTest, AnswersAreReplacedAndTheTargetIsRecorded) {
  const RegenerateResult r = run(options());
  EXPECT_EQ(r.rows, 7);
  EXPECT_EQ(r.asked, 7);
  EXPECT_EQ(r.model, "toy-model");
  EXPECT_EQ(r.index.written_by, "target");
  EXPECT_EQ(r.index.target_id, fingerprint_model(target_).id);
  EXPECT_EQ(learnt("q0"), "0 again");
  EXPECT_EQ(prompt_of(tokenizer_, by_id().at("q0")), "<s>Question 0");
  // A chat keeps its history as the prompt. Only the new answer is learnt, and it is at most as long as the old one.
  EXPECT_EQ(learnt("c"), "\n again");
  EXPECT_NE(prompt_of(tokenizer_, by_id().at("c")).find("first<|im_end|>"), std::string::npos);
  EXPECT_EQ(by_id("holdout").size(), 2u);
  EXPECT_EQ(by_id("holdout").count("q1"), 1u);
  EXPECT_FALSE(fs::exists(progress_file(scratch_ / "new")));
  // The request holds token ids and the row's own sampling options. It names an option besides the temperature only if
  // the option differs from its default.
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
  EXPECT_EQ(seeds.size(), 7u);
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
  EXPECT_EQ(endpoint_.bodies.count("Question 4"), 1u);  // the endpoint adds BOS
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
  EXPECT_GE(slept_, 2 * 7);
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
  EXPECT_NE(slurp(scratch_ / "new" / "rejects.jsonl").find("row q5"), std::string::npos);
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
  // Appends a line that a kill cut off.
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
  EXPECT_EQ(endpoint_.calls, 4);
  EXPECT_EQ(by_id().size(), 7u);
  // The result is the same as without an interruption.
  const std::string resumed = slurp(scratch_ / "new" / "index.json");
  o.resume = false;
  run(o);
  EXPECT_EQ(slurp(scratch_ / "new" / "index.json"), resumed);
}

TEST_F(RegenerateTest, NonsenseFromTheEndpointIsAnError) {
  const auto with = [&](const std::string& body) {
    endpoint_.intercept = [body](const Json&, int) -> ToyReply { return {200, body, ""}; };
    RegenerateOptions o = options();
    fs::remove(progress_file(o.out));
    return error_of(o, ErrorKind::kData);
  };
  for (const char* body : {"", "[]", "{}", R"({"choices":[]})", R"({"choices":[{"token_ids":[-1]}]})",
                           R"({"choices":[{"token_ids":[1000000]}]})", R"({"choices":[{"token_ids":["x"]}]})",
                           R"({"choices":[{"text":7}]})"})
    EXPECT_NE(with(body), "accepted") << body;
  endpoint_.intercept = [](const Json&, int) -> ToyReply {
    return {200, R"({"choices":[{"text":"","token_ids":[],"finish_reason":"length"}]})", ""};
  };
  fs::remove(progress_file(options().out));
  EXPECT_NE(error_of(options(), ErrorKind::kData).find("none of the 7"), std::string::npos);
}

TEST_F(RegenerateTest, AnotherTokenizerIsRefused) {
  RegenerateOptions o = options();
  o.target = make_toy_target(scratch_ / "other", "").string();
  for (const char* file : {"config.json", "model.safetensors"}) fs::copy(target_ / file, scratch_ / "other" / file);
  EXPECT_NE(error_of(o, ErrorKind::kData).find("another tokenizer"), std::string::npos);
}

TEST_F(RegenerateTest, MaxTokensStaysInsideMaxLength) {
  IngestOptions in = ingest_options(scratch_ / "t.jsonl", target_, scratch_ / "data");
  in.max_length = 14;  // 11 tokens of prompt and 3 of the answer
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
    log.append({"a", {1, 2, 3}, {0, 1, 1}, 1, ""});
    log.append({"b", {}, {}, 0, "http_400"});
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
  for (const char* line : {"{}\n", "nonsense\n", "{\"id\":\"c\",\"prompt_tokens\":1,\"loss_from\":0,\"tokens\":[-5]}\n",
                           "{\"id\":\"c\",\"prompt_tokens\":9,\"loss_from\":0,\"tokens\":[1]}\n"}) {
    std::ofstream(file) << good << line;
    EXPECT_THROW(AnswerLog(file, settings, true), Error) << line;
  }
  std::ofstream(file) << "{\"schema\":\"specdec.other/1\"}\n";
  EXPECT_THROW(AnswerLog(file, settings, true), Error);
}

}  // namespace
}  // namespace specdec::data
