// The whole production server with toy models (functions of the context) as target and draft. Their vocabulary has six
// tokens: a, b, c, d, <s>, </s>.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/json.h"
#include "deploy/serve/engine/stepper_runner.h"
#include "deploy/serve/server.h"
#include "engine/decode/sampling/sampler.h"
#include "tests/lossless/rules.h"
#include "tests/serve/client.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {

constexpr int32_t kToyBos = 4, kToyEos = 5;
constexpr int64_t kToyVocab = 6;

inline const text::Tokenizer& toy_tokenizer() {
  static const Scratch directory;
  static const text::Tokenizer tokenizer = [] {
    testing::write_tokenizer(directory.root(), {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}}, kToyBos, kToyEos);
    return text::Tokenizer(directory.root());
  }();
  return tokenizer;
}

// Makes logits that depend on the last two tokens. BOS gets probability 0, so every text consists of letters.
inline decode::toy::Model::Logits toy_logits(uint64_t seed, double spread = 1.5) {
  return [inner = decode::toy::random_logits(seed, spread)](std::span<const int32_t> context, std::span<float> logits) {
    inner(context.last(std::min<size_t>(2, context.size())), logits);
    logits[kToyBos] = -std::numeric_limits<float>::infinity();
  };
}

struct ToyOptions {
  int k = 2;
  VerifyRule rule = VerifyRule::kToken;
  int64_t max_batch = 32;
  bool coupled_seeds = false;  // false: seeded requests use `rule`, like all others
  std::vector<int> tree = {};
  bool suffix = false;
  const text::Tokenizer* tokenizer = nullptr;  // must have kToyVocab tokens; null: toy_tokenizer()
  MaskLimits masks = {};
  std::string record_dir = {};  // folder for request records, including rejected drafts; "" = no records
};

class ToyServer {
 public:
  explicit ToyServer(ToyOptions options)
      : runner_(target, &draft,
                {{options.k, 8, options.rule, options.tree, options.suffix}, 0.7, {}, 0, options.coupled_seeds},
                clock_) {
    ServeOptions serve;
    serve.port = 0;
    serve.max_batch = options.max_batch;
    serve.record_dir = options.record_dir;
    serve.record_rejects = options.record_dir.empty() ? 0 : 1;
    serve.admin_socket = directory_.root() / "admin.sock";
    ServeLimits limits;
    limits.n = static_cast<int64_t>(limits.choices);  // allows as many answers per request as possible
    limits.masks = options.masks;
    server_.emplace(serve, limits, clock_);
    ServedModel model;
    model.card.names = {"toy"};
    model.tokenizer = options.tokenizer ? options.tokenizer : &toy_tokenizer();
    model.eos_ids = {kToyEos};
    model.vocab_size = kToyVocab;
    model.max_context = model.card.max_context = 64;
    std::atomic<bool> ready{false};
    thread_ = std::thread([this, &ready, model] {
      server_->run(model, runner_, {[this] { return stop_.load(); }, [&ready] { ready.store(true); }},
                   &runner_.drafts());
    });
    while (!ready.load()) std::this_thread::yield();
  }
  ~ToyServer() {
    connection_.reset();
    stop_.store(true);
    thread_.join();
  }

  Response ask(const Json& body) {
    if (!connection_) connection_.emplace(server_->port());
    connection_->send(post("/v1/completions", body.dump()));
    return connection_->read();
  }
  // Makes the next ask() open a new connection, because the server closes a connection that was idle for 75 s.
  void hang_up() { connection_.reset(); }
  int port() const { return server_->port(); }
  std::string admin_socket() const { return directory_.root() / "admin.sock"; }
  DraftSwap& drafts() { return runner_.drafts(); }
  // Sends `order` to the admin socket as a POST request, or without an order a GET request.
  Response admin(const std::optional<Json>& order = std::nullopt) {
    Client client(admin_socket());
    client.send(order ? post("/admin/draft", order->dump()) : get("/admin/draft"));
    return client.read();
  }
  Json ordered(const Json& order) {
    const Response r = admin(order);
    EXPECT_EQ(r.status, 200) << order.dump() << " → " << r.body;
    return r.status == 200 ? Json::parse(r.body) : Json();
  }
  Json draft_status() { return Json::parse(admin().body); }
  // Sends a request that must succeed, and returns the JSON of the reply.
  Json complete(const Json& body) {
    const Response r = ask(body);
    EXPECT_EQ(r.status, 200) << body.dump() << " → " << r.body;
    return r.status == 200 ? Json::parse(r.body) : Json({{"choices", Json::array()}});
  }

  decode::toy::Model target{kToyVocab, toy_logits(21)}, draft{kToyVocab, toy_logits(22)};

 private:
  Scratch directory_;
  SystemClock clock_;
  StepperRunner runner_;
  std::optional<Server> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::optional<Client> connection_;
};

}  // namespace specdec::deploy
