#include "distill/labels/label_endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <set>

#include "base/progress.h"
#include "distill/labels/label_files.h"
#include "distill/rows/batcher.h"
#include "distill/teacher/label_target.h"
#include "engine/forward/forward.h"
#include "tests/distill/toy.h"
#include "tests/net/toy_server.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;
using net::ToyReply;
using net::ToyRequest;

// A fake endpoint that serves a toy model. Like vLLM and specdec serve, it offers echo and logprobs and can name tokens
// by their ids.
class Endpoint {
 public:
  std::function<ToyReply(const Json& body, int call)> intercept;  // may replace a reply; status 0 = do not replace it
  std::function<void(Json& logprobs)> change;
  std::atomic<int> calls{0};
  std::string url() const { return server_.url(); }
  std::set<std::string> prompts() {
    const std::lock_guard lock(mutex_);
    return prompts_;
  }

 private:
  ToyReply handle(const ToyRequest& request) {
    if (request.path == "/v1/models") return {200, R"({"object":"list","data":[{"id":"toy-model"}]})", ""};
    const Json body = Json::parse(request.body);
    const int call = ++calls;
    if (intercept) {
      const ToyReply reply = intercept(body, call);
      if (reply.status != 0 || reply.drop) return reply;
    }
    const std::lock_guard lock(mutex_);
    prompts_.insert(body["prompt"].dump());
    EXPECT_EQ(body["model"], "toy-model");
    EXPECT_EQ(body["max_tokens"], 0);
    EXPECT_EQ(body["echo"], true);
    EXPECT_EQ(body["return_tokens_as_token_ids"], true);
    return {200, Json({{"choices", Json::array({{{"text", ""}, {"logprobs", logprobs(body)}}})}}).dump(), ""};
  }
  Json logprobs(const Json& body) {
    at::NoGradGuard guard;
    const auto ids = body["prompt"].get<std::vector<int64_t>>();
    const at::Tensor all =
        at::log_softmax(model::forward(target_, {.tokens = at::tensor(ids, at::kLong).unsqueeze(0)})[0], -1);
    Json tokens = Json::array(), top = Json::array();
    for (size_t t = 0; t < ids.size(); ++t) {
      tokens.push_back("token_id:" + std::to_string(ids[t]));
      top.push_back(nullptr);
      if (t == 0) continue;
      const at::Tensor here = all[static_cast<int64_t>(t) - 1];
      const auto [values, index] = here.topk(body["logprobs"].get<int64_t>());
      Json entry = Json::object();
      for (int64_t i = 0; i < index.numel(); ++i)
        entry["token_id:" + std::to_string(index[i].item<int64_t>())] = values[i].item<float>();
      // An endpoint also lists the prompt's own token, even if it is not among the likeliest.
      entry[tokens.back().get<std::string>()] = here[ids[t]].item<float>();
      top.back() = entry;
    }
    Json out = {{"tokens", tokens}, {"top_logprobs", top}};
    if (change) change(out);
    return out;
  }

  std::mutex mutex_;
  std::set<std::string> prompts_;
  model::Decoder target_ = toy_decoder(3, 1);
  net::ToyServer server_{[this](const ToyRequest& r) { return handle(r); }};
};

struct LabelEndpoint : ::testing::Test {
  LabelEndpoint() {
    fs::create_directories(scratch / "target");
    model::save_decoder(toy_decoder(3, 1), scratch / "target");
    toy_tokenizer(scratch / "target");
    auto train = toy_rows(30, 5);
    train[3].loss_mask[4] = 0;
    write_data(scratch / "data", scratch / "target", train, toy_rows(10, 6));
    options.data = (scratch / "data").string();
    options.target = (scratch / "target").string();
    options.url = endpoint.url();
    options.out = (scratch / "labels").string();
    options.top_k = 6;
  }
  LabelResult run() {
    return label_by_endpoint(options, {}, [](double) {});
  }
  LabelReader reader(const LabelIndex& index) const {
    return {options.out, {index.data_digest, index.tokenizer_digest, "", 1, "", ""}};
  }

  Scratch scratch;
  Endpoint endpoint;
  LabelOptions options;
};

TEST_F(LabelEndpoint, GivesTheLabelsOfTheTargetInProcess) {
  for (const int concurrency : {1, 8}) {
    options.concurrency = concurrency;
    options.out = (scratch / ("labels-" + std::to_string(concurrency))).string();
    const LabelResult r = run();
    EXPECT_EQ(r.made, 40);
    EXPECT_EQ(r.refused, 0);
    EXPECT_EQ(r.index.model, "toy-model");
    EXPECT_EQ(r.index.target->id, fingerprint_model(options.target).id);
    LabelOptions local = options;
    local.url = "";
    local.out = (scratch / ("local-" + std::to_string(concurrency))).string();
    local.device.device = "cpu";
    const LabelResult here = label_by_target(local, {});
    const LabelReader found = reader(r.index),
                      expected(local.out, {here.index.data_digest, here.index.tokenizer_digest, "", 1, "", ""});
    for (int64_t row = 0; row < 40; ++row) {
      const int64_t n = expected.positions(row);
      ASSERT_EQ(found.positions(row), n) << row;
      const RowLabels a = found.read(row, n), b = expected.read(row, n);
      EXPECT_EQ(a.ids, b.ids) << row;
      for (size_t i = 0; i < a.logprobs.size(); ++i) EXPECT_NEAR(a.logprobs[i], b.logprobs[i], 1e-4);
      for (size_t i = 0; i < a.rest.size(); ++i) EXPECT_NEAR(std::exp(a.rest[i]), std::exp(b.rest[i]), 1e-5);
    }
  }
}

TEST_F(LabelEndpoint, AnInterruptedRunIsResumedWithoutAskingTwice) {
  options.concurrency = 1;
  endpoint.intercept = [](const Json&, int call) -> ToyReply {
    return call > 25 ? ToyReply{401, R"({"error":{"message":"no such key"}})", ""} : ToyReply{0, "", ""};
  };
  expect_error(ErrorKind::kUsage, {"HTTP 401: no such key", "labels of 25 of 40 rows are kept", "--resume"},
               [&] { run(); });
  const auto before = endpoint.prompts();
  endpoint.intercept = {};
  options.resume = true;
  const LabelResult r = run();
  EXPECT_EQ(r.kept, 25);
  EXPECT_EQ(r.made, 15);
  EXPECT_EQ(endpoint.calls, 25 + 1 + 15);
  EXPECT_TRUE(reader(r.index).index().complete());
}

TEST_F(LabelEndpoint, AnErrorOfTheWritingThreadEndsTheWorkers) {
  // There are more than kRowsAhead rows, so the workers have to wait for the writer.
  write_data(scratch / "long", scratch / "target", toy_rows(400, 5, 4, 6), {});
  options.data = (scratch / "long").string();
  const ProgressFn broken = [](const Progress&) { throw Error(ErrorKind::kIo, "standard error is closed"); };
  expect_error(ErrorKind::kIo, {"standard error is closed", "of 400 rows are kept", "--resume"},
               [&] { label_by_endpoint(options, broken, [](double) {}); });
}

TEST_F(LabelEndpoint, CompleteLabelsServeOnlyThoseWhoAskForThem) {
  EXPECT_FALSE(has_labels(options));
  run();
  EXPECT_TRUE(has_labels(options));
  options.top_k = 0;
  EXPECT_TRUE(has_labels(options)) << "any K will do";
  options.top_k = 7;
  expect_error(ErrorKind::kUsage, {"labels of the 6 likeliest tokens", "--top-k is 7"}, [&] { has_labels(options); });
  options.top_k = 6;
  options.model = "other";
  expect_error(ErrorKind::kUsage, {"'toy-model'", "--model is 'other'"}, [&] { has_labels(options); });
}

TEST_F(LabelEndpoint, ARefusedRowHasNoLabels) {
  endpoint.intercept = [](const Json& body, int) -> ToyReply {
    return body["prompt"].size() > 18 ? ToyReply{400, R"({"error":{"message":"too long"}})", ""} : ToyReply{0, "", ""};
  };
  const LabelResult r = run();
  EXPECT_GT(r.refused, 0);
  int64_t without = 0;
  const LabelReader labels = reader(r.index);
  for (int64_t row = 0; row < 40; ++row) without += labels.positions(row) == 0;
  EXPECT_EQ(without, r.refused);
  // If the endpoint refuses every row, labelling stops after the first rows.
  endpoint.intercept = [](const Json&, int) { return ToyReply{400, R"({"error":{"message":"no echo here"}})", ""}; };
  endpoint.calls = 0;
  options.out = (scratch / "none").string();
  expect_error(ErrorKind::kUsage, {"HTTP 400: no echo here", "refused the first 8 rows"}, [&] { run(); });
  EXPECT_LT(endpoint.calls, 16);
}

TEST_F(LabelEndpoint, NonsenseFromTheEndpointIsAnError) {
  int n = 0;
  const auto refused = [&](const std::vector<std::string>& parts, const std::function<void(Json&)>& change) {
    endpoint.change = change;
    options.out = (scratch / ("bad-" + std::to_string(n++))).string();
    expect_error(ErrorKind::kData, parts, [&] { run(); });
  };
  refused({"found ' once'", "return_tokens_as_token_ids"}, [](Json& l) { l["tokens"][2] = " once"; });
  refused({"found ' once'", "return_tokens_as_token_ids"}, [](Json& l) { l["top_logprobs"][2][" once"] = -1; });
  refused({"position 0: the endpoint read token 23456"}, [](Json& l) { l["tokens"][0] = "token_id:23456"; });
  refused({"does not offer echo"}, [](Json& l) { l["tokens"] = {"token_id:1"}; });
  refused({"top_logprobs"}, [](Json& l) { l["top_logprobs"] = nullptr; });
  refused({"top_logprobs: expected an object"}, [](Json& l) { l["top_logprobs"][2] = {1, 2}; });
  refused({"expected at least 6"}, [](Json& l) { l["top_logprobs"][2] = {{"token_id:1", -0.5}}; });
  refused({"is outside the vocabulary of 24"}, [](Json& l) { l["top_logprobs"][2]["token_id:24"] = -3; });
  refused({"expected a number"}, [](Json& l) { l["top_logprobs"][2]["token_id:3"] = "x"; });
  refused({"expected numbers up to 0"}, [](Json& l) { l["top_logprobs"][2].begin().value() = 2; });
  refused({"add up to"}, [](Json& l) {
    for (auto& [name, value] : l["top_logprobs"][2].items()) value = -0.1;
  });
  endpoint.change = {};
  endpoint.intercept = [](const Json&, int) { return ToyReply{200, "{\"choices\":[]}", ""}; };
  options.out = (scratch / "empty").string();
  expect_error(ErrorKind::kData, {"choices"}, [&] { run(); });
  endpoint.intercept = [](const Json&, int) { return ToyReply{200, "not JSON", ""}; };
  options.out = (scratch / "text").string();
  expect_error(ErrorKind::kData, {"/completions"}, [&] { run(); });
}

TEST_F(LabelEndpoint, AnotherTokenizerAndWrongOptionsAreRefused) {
  put(scratch / "target/tokenizer.json", R"({"version": "1.0", "model": {"vocab": {"b": 0}}})");
  expect_error(ErrorKind::kData, {"another tokenizer", "data ingest"}, [&] { run(); });
  options.hidden = true;
  options.top_k = 0;
  expect_error(ErrorKind::kUsage, {"--hidden", "endpoint"}, [&] { run(); });
  options.hidden = false;
  options.temperature = 0.5;
  expect_error(ErrorKind::kUsage, {"--temperature"}, [&] { run(); });
  options.temperature = 1;
  options.top_k = 2000;
  expect_error(ErrorKind::kUsage, {"--top-k"}, [&] { run(); });
}

}  // namespace
}  // namespace specdec::distill
