// A toy endpoint, and data whose answers it rewrites, for the tests of `data regenerate`.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "base/fingerprint.h"
#include "base/safetensors.h"
#include "data/regenerate/regenerate.h"
#include "tests/data/toy.h"
#include "tests/net/toy_server.h"

namespace specdec::data {

using net::ToyReply;
using net::ToyRequest;
using net::ToyServer;

// Answers every prompt with "<the prompt's last character> again", as ids or as text.
class Endpoint {
 public:
  explicit Endpoint(const text::Tokenizer& tokenizer)
      : tokenizer_(tokenizer), server_([this](const ToyRequest& r) { return handle(r); }) {}
  std::string url() const { return server_.url(); }

  bool ids = true;
  std::string finish_reason = "length";
  std::function<ToyReply(const Json& body, int call)> intercept;  // gives the reply; status 0 = the usual answer
  std::map<std::string, Json> bodies;                             // prompt → request body
  std::atomic<int> calls{0};
  std::atomic<bool> dead{false};  // true: closes every connection

 private:
  ToyReply handle(const ToyRequest& request) {
    if (dead) return {0, "", "", true};
    if (request.path == "/v1/models") return {200, R"({"object":"list","data":[{"id":"toy-model"}]})", ""};
    const Json body = Json::parse(request.body);
    const int call = ++calls;
    if (intercept) {
      const ToyReply reply = intercept(body, call);
      if (reply.status != 0 || reply.drop) return reply;
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
  std::atomic<double> slept_ = 0;  // atomic, because several workers wait
};

// Returns a chat row with `turns` answers; each user message is one letter.
inline std::string chat_of(const std::string& id, int turns) {
  Json messages = Json::array();
  for (int i = 0; i < turns; ++i) {
    messages.push_back({{"role", "user"}, {"content", std::string(1, static_cast<char>('a' + i))}});
    messages.push_back({{"role", "assistant"}, {"content", "old " + std::to_string(i)}});
  }
  return canonical_json({{"id", id}, {"messages", messages}}) + "\n";
}

}  // namespace specdec::data
