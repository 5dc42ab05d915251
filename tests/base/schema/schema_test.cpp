// Tests round trips, refused versions and the rules of every file format in base/schema.
#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "base/schema/acceptance_record.h"
#include "base/schema/binding.h"
#include "base/schema/package_manifest.h"
#include "base/schema/reject_record.h"
#include "base/schema/shard_index.h"
#include "base/schema/traffic_record.h"
#include "base/schema/validation_report.h"
#include "base/sha256.h"
#include "tests/base/sample_report.h"
#include "tests/base/schema/schema_checks.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::check_schema;
using testing::expect_error;
using testing::refuse;

Fingerprint made_up(char digit) {
  Json parts = {{"config", std::string(64, digit)},
                {"header", std::string(64, '1')},
                {"tokenizer", std::string(64, '2')},
                {"weights", std::string(64, digit)}};
  parts["id"] = sha256_hex(canonical_json(parts));
  return fingerprint_from_json(parts, "made up");
}

TEST(TrafficRecord, ThreeForms) {
  const auto read = [](const Json& j) { return to_json(traffic_record_from_json(j, "row 1")); };
  TrafficRecord chat;
  chat.id = "1";
  chat.conversation = "c";
  chat.time = 5;
  chat.domain = "code";
  chat.writer = "w";
  chat.messages = {{"system", "s"}, {"user", "u\n"}, {"assistant", "é"}};
  chat.messages.push_back({"assistant", "", R"([{"function":{"name":"f"}}])"});
  chat.messages.push_back({"tool", "r", "", "c1", "f"});
  chat.tools = R"([{"z":1,"a":2}])";
  chat.messages[2].unlearnt = true;
  chat.template_kwargs = R"({"enable_thinking":false})";
  chat.finish_reason = "length";
  chat.sampling = SamplingOptions{.temperature = 0.5, .top_k = 3, .top_p = 0.9, .min_p = 0.1};
  check_schema(to_json(chat), ErrorKind::kData, {"schema", "id", "messages"}, read);
  TrafficRecord pair;
  pair.id = pair.conversation = "2";
  pair.prompt = "p";
  pair.response = "r";
  check_schema(to_json(pair), ErrorKind::kData, {"schema", "id"}, read);
  pair.prompt_token_ids = {1, 0, 2147483647};
  pair.token_ids = {7};
  check_schema(to_json(pair), ErrorKind::kData, {"schema", "id", "token_ids", "prompt_token_ids"}, read);
  const auto refuse_ids = [&](const char* key, const Json& ids) {
    refuse(to_json(pair), ErrorKind::kData, "token_ids", [&](Json& j) { j[key] = ids; }, read);
  };
  for (const Json& bad :
       {Json::array({-1}), Json::array({1.5}), Json::array({"1"}), Json::array({2147483648}), Json("1"), Json::array()})
    for (const char* key : {"token_ids", "prompt_token_ids"}) refuse_ids(key, bad);
  TrafficRecord answered = chat;
  answered.messages.push_back({"assistant", "a"});
  answered.token_ids = {7, 0};
  check_schema(to_json(answered), ErrorKind::kData, {"schema", "id", "messages"}, read);
  refuse(
      to_json(answered), ErrorKind::kData, "at the end of messages",
      [](Json& j) { j["messages"].erase(j["messages"].size() - 1); }, read);
  TrafficRecord text;
  text.id = text.conversation = "3";
  text.text = "t";
  check_schema(to_json(text), ErrorKind::kData, {"schema", "id", "text"}, read);
  const Json json = to_json(chat);
  refuse(json, ErrorKind::kData, "exactly one of", [](Json& j) { j["text"] = "x"; }, read);
  refuse(json, ErrorKind::kData, "messages[1].role", [](Json& j) { j["messages"][1]["role"] = "god"; }, read);
  refuse(
      json, ErrorKind::kData, "messages[0]: content", [](Json& j) { j["messages"][0]["content"] = Json::array(); },
      read);
  refuse(
      json, ErrorKind::kData, "tool_calls: expected a JSON array",
      [](Json& j) { j["messages"][3]["tool_calls"] = "[{]"; }, read);
  refuse(
      json, ErrorKind::kData, "tool_calls: expected a JSON array",
      [](Json& j) { j["messages"][3]["tool_calls"] = "[]"; }, read);
  refuse(
      json, ErrorKind::kData, "assistant's message only", [](Json& j) { j["messages"][1]["tool_calls"] = "[1]"; },
      read);
  refuse(json, ErrorKind::kData, "tools: expected a JSON array", [](Json& j) { j["tools"] = "{}"; }, read);
  refuse(json, ErrorKind::kData, "finish_reason", [](Json& j) { j["finish_reason"] = "bored"; }, read);
  refuse(
      json, ErrorKind::kData, "template_kwargs: expected a JSON object", [](Json& j) { j["template_kwargs"] = "[]"; },
      read);
  refuse(json, ErrorKind::kData, "weight", [](Json& j) { j["messages"][2]["weight"] = 2; }, read);
  EXPECT_TRUE(traffic_record_from_json(json, "row").messages[2].unlearnt);
  EXPECT_EQ(json["messages"][2]["weight"], 0);
  refuse(json, ErrorKind::kData, "temperature", [](Json& j) { j["sampling"]["temperature"] = 11; }, read);
  refuse(json, ErrorKind::kData, "--min-p", [](Json& j) { j["sampling"]["min_p"] = 1; }, read);
  refuse(
      json, ErrorKind::kData, "token_ids", [](Json& j) { j["token_ids"] = j["prompt_token_ids"] = Json::array({1}); },
      read);
  refuse(json, ErrorKind::kData, "time", [](Json& j) { j["time"] = -1; }, read);
  EXPECT_EQ(traffic_record_from_json({{"schema", "specdec.traffic/1"}, {"id", "9"}, {"text", "t"}}, "r").conversation,
            "9");
}

TEST(TrafficRecord, AnAnswerWasCutIfSomethingElseThanTheModelEndedIt) {
  TrafficRecord record;
  EXPECT_FALSE(record.answer_was_cut()) << "older records do not say why the answer ended";
  record.finish_reason = "stop";
  EXPECT_FALSE(record.answer_was_cut());
  for (const char* reason : {"length", "stop_string", "content_filter", "other"}) {
    record.finish_reason = reason;
    EXPECT_TRUE(record.answer_was_cut()) << reason;
  }
}

TEST(RejectRecord, RoundTripAndRefusals) {
  RejectRecord r{"id-1", "c", 1700000000, 0.5, std::string(12, 'a'), std::string(12, 'b'), {}};
  r.rejects = {{0, 5, 6, -1.5, {{6, -0.5}, {5, -1.5}}}, {4, 1, 1, -INFINITY, {}}};
  const std::string line = to_line(r);
  const RejectRecord back = reject_record_from_line(line, "l");
  EXPECT_EQ(to_line(back), line);
  EXPECT_EQ(back.conversation, "c");
  EXPECT_EQ(back.target, std::string(12, 'b'));
  ASSERT_EQ(back.rejects.size(), 2u);
  EXPECT_EQ(back.rejects[0].drafted, 5);
  EXPECT_EQ(back.rejects[0].next, 6);
  EXPECT_EQ(back.rejects[0].logprob, -1.5);
  EXPECT_EQ(back.rejects[0].top[1], std::pair(5, -1.5));
  EXPECT_EQ(back.rejects[1].logprob, -100);
  const auto refused = [&](const char* key, const Json& value) {
    Json bad = Json::parse(line);
    bad[key] = value;
    EXPECT_THROW(reject_record_from_line(bad.dump(), "l"), Error) << bad.dump();
  };
  refused("schema", "specdec.rejects/2");
  refused("t", -1);
  refused("rejects", 1);
  refused("rejects", {{1, 2, 3, 4}});
  refused("rejects", {{1, 2, 0, 4, {{5}}}});
  refused("rejects", {{1, 2, 10, 4, Json::array()}});
  refused("rejects", {{1, 2, 0, 4, Json::array()}, {1, 2, 0, 4, Json::array()}});
  refused("rejects", {{1, -2, 0, 4, Json::array()}});
  EXPECT_THROW(reject_record_from_line("{", "l"), Error);
}

TEST(ShardIndex, RoundTripAndRefusals) {
  ShardIndex index;
  index.tokenizer_digest = std::string(64, 'a');
  index.target_id = std::string(64, 'b');
  index.vocab_size = 512;
  index.written_by = "target";
  index.max_length = 128;
  index.truncated_rows = 2;
  index.dropped_tokens = 30;
  index.rejects = {{"empty", 3}};
  index.redactions = {{"email", 4}};
  index.duplicates = 5;
  index.sources = {{"log.jsonl", std::string(64, 'c')}};
  index.shards = {
      {"train-0.safetensors", "train-0.jsonl", std::string(64, 'd'), std::string(64, 'e'), "train", 10, 100, 60}};
  index.tool_version = "0.1.0";
  index.started = "2026-11-21T12:00:00Z";
  const auto read = [](const Json& j) { return to_json(shard_index_from_json(j, "index.json")); };
  const Json json = to_json(index);
  check_schema(json, ErrorKind::kData, {"schema", "tokenizer_digest", "target_id", "vocab_size", "sources", "shards"},
               read);
  for (const char* name : {"../x", "/abs", "a/b", "", ".."})
    refuse(json, ErrorKind::kData, "shards[0]: tokens", [&](Json& j) { j["shards"][0]["tokens"] = name; }, read);
  refuse(json, ErrorKind::kData, "split", [](Json& j) { j["shards"][0]["split"] = "test"; }, read);
  refuse(json, ErrorKind::kData, "num_loss_tokens", [](Json& j) { j["shards"][0]["num_loss_tokens"] = 101; }, read);
  refuse(json, ErrorKind::kData, "num_rows", [](Json& j) { j["shards"][0]["num_rows"] = -1; }, read);
  refuse(json, ErrorKind::kData, "empty", [](Json& j) { j["rejects"]["empty"] = "x"; }, read);
  refuse(json, ErrorKind::kData, "sha256", [](Json& j) { j["sources"][0]["sha256"] = "x"; }, read);
}

TEST(ValidationReport, RoundTripAndRefusals) {
  const auto read = [](const Json& j) { return to_json(validation_report_from_json(j, "report.json")); };
  const Json json = to_json(testing::sample_report(made_up('a'), made_up('b')));
  check_schema(json, ErrorKind::kData,
               {"schema", "verdict", "started", "seconds", "tool_version", "inputs", "acceptance", "segments"}, read);
  for (const char* part : {"inputs", "acceptance", "speed", "lossless", "baseline"})
    for (const auto& item : json[part].items())
      refuse(json, ErrorKind::kData, "", [&](Json& j) { j[part][item.key()] = Json{{"no", Json::array()}}; }, read);
  refuse(json, ErrorKind::kData, "verdict: expected", [](Json& j) { j["verdict"] = "great"; }, read);
  refuse(json, ErrorKind::kData, "ci: expected [low, high]", [](Json& j) { j["acceptance"]["ci"] = {0.9, 0.1}; }, read);
  refuse(
      json, ErrorKind::kData, "accepted <= reached", [](Json& j) { j["acceptance"]["rollout"]["accepted"][0] = 99; },
      read);
  refuse(
      json, ErrorKind::kData, "differ in length", [](Json& j) { j["acceptance"]["rollout"]["reached"].push_back(0); },
      read);
  refuse(
      json, ErrorKind::kData, "differ in length", [](Json& j) { j["acceptance"]["request_ids"].push_back("c"); }, read);
  refuse(json, ErrorKind::kData, "batch ranges must ascend", [](Json& j) { j["speed"]["schedule"][1][0] = 1; }, read);
  refuse(
      json, ErrorKind::kData, "expected measured or predicted",
      [](Json& j) { j["speed"]["schedule_figures"][0]["basis"] = "hoped"; }, read);
  refuse(
      json, ErrorKind::kData, "schedule_figures differ in length",
      [](Json& j) { j["speed"]["schedule_figures"].erase(0); }, read);
  refuse(
      json, ErrorKind::kData, "ci: expected [low, high]",
      [](Json& j) { j["speed"]["schedule_figures"][0]["ci"] = {2, 1}; }, read);
  refuse(json, ErrorKind::kData, "taken", [](Json& j) { j["speed"]["machine"]["taken"] = 1.5; }, read);
  refuse(json, ErrorKind::kData, "batch_hi", [](Json& j) { j["speed"]["schedule"][0] = {4, 1, 2}; }, read);
  refuse(
      json, ErrorKind::kData, "positive integers as keys", [](Json& j) { j["speed"]["verify_cost"]["x"] = 1; }, read);
  refuse(json, ErrorKind::kData, "a pass needs", [](Json& j) { j.erase("speed"); }, read);
  refuse(json, ErrorKind::kData, "greedy_identical", [](Json& j) { j["lossless"]["greedy_identical"] = 9; }, read);
  refuse(
      json, ErrorKind::kData, "sequence: expected [requests", [](Json& j) { j["acceptance"]["sequence"][0] = {1, 2}; },
      read);
  refuse(json, ErrorKind::kData, "sequence: high", [](Json& j) { j["acceptance"]["sequence"][0][3] = 1.5; }, read);
  refuse(json, ErrorKind::kData, "floor", [](Json& j) { j["segments"][1]["floor"] = 2; }, read);
  refuse(json, ErrorKind::kData, "baseline: draft", [](Json& j) { j["baseline"]["draft"]["id"] = "x"; }, read);
  refuse(json, ErrorKind::kData, "predictions: k", [](Json& j) { j["predictions"][0]["k"] = 0; }, read);
  refuse(json, ErrorKind::kData, "predictions", [](Json& j) { j["predictions"] = 1; }, read);
}

// Reads a report as it was written before sequences, segment floors and comparisons with the serving draft existed.
TEST(ValidationReport, EarlierReportsAreRead) {
  Json json = to_json(testing::sample_report(made_up('a'), made_up('b')));
  for (const char* key : {"requests_available", "requests_needed", "sequence"}) json["acceptance"].erase(key);
  for (Json& segment : json["segments"]) segment.erase("floor");
  for (const char* key : {"draft", "min_gain", "segments"}) json["baseline"].erase(key);
  json["speed"].erase("break_even");
  json.erase("predictions");
  const ValidationReport r = validation_report_from_json(json, "r");
  EXPECT_EQ(r.requests_available, r.alpha.n);
  EXPECT_EQ(r.requests_needed, 0);
  EXPECT_FALSE(r.segments[1].floor || r.baseline->min_gain);
}

TEST(ValidationReport, PartsMayBeAbsentWithoutAPass) {
  Json json = to_json(testing::sample_report(made_up('a'), made_up('b'), Verdict::kInconclusive));
  for (const char* part : {"speed", "lossless", "baseline"}) json.erase(part);
  const ValidationReport r = validation_report_from_json(json, "r");
  EXPECT_FALSE(r.has_speed || r.has_lossless || r.baseline);
  EXPECT_EQ(to_json(r), json);
  EXPECT_EQ(r.rollout.counts.accepted, 4);
  EXPECT_EQ(r.rollout.counts.emitted, 6);
  EXPECT_NEAR(r.rollout.counts.overlap_sum_at[0], 1.5, 1e-12);
}

// A report accepts only the verdicts of the gate. It refuses the verdict names of other commands.
TEST(ValidationReport, HasAVerdictOfTheGate) {
  Json json = to_json(testing::sample_report(made_up('a'), made_up('b')));
  for (const char* name : {"pass", "fail", "not_lossless", "not_worth_it", "inconclusive", "stale"}) {
    json["verdict"] = name;
    EXPECT_EQ(to_json(validation_report_from_json(json, "r"))["verdict"], name);
  }
  for (const std::string name :
       {"", "Pass", "great", "faster", "healthy", "warn", "drift", "stale_target", "improved", "no_significant_gain"}) {
    json["verdict"] = name;
    expect_error(
        ErrorKind::kData,
        {"r: verdict: expected pass, fail, not_lossless, not_worth_it, inconclusive or stale, found '" + name + "'"},
        [&] { validation_report_from_json(json, "r"); });
  }
  const ValidationReport made = testing::sample_report(made_up('a'), made_up('b'), Verdict::kDrift);
  expect_error(ErrorKind::kData, {"r: verdict: expected", "found 'drift'"}, [&] { made.validate("r"); });
}

TEST(DraftBinding, RoundTrip) {
  const DraftBinding binding{made_up('a'), "prune:2", "lk", {{"steps", 7}}};
  const auto read = [](const Json& j) { return to_json(draft_binding_from_json(j, "specdec.json")); };
  check_schema(to_json(binding), ErrorKind::kModel, {"schema", "target", "kind"}, read);
  refuse(to_json(binding), ErrorKind::kModel, "training", [](Json& j) { j["training"] = 7; }, read);
}

TEST(DraftBinding, BoundStaleAndUnbound) {
  const testing::Scratch dir;
  testing::write_tiny_model(dir / "target", {.layers = 3});
  testing::write_tiny_model(dir / "other", {.layers = 3, .bump = 1});
  testing::write_tiny_model(dir / "draft");
  EXPECT_EQ(check_binding(dir / "target", dir / "draft").state, BindingState::kUnbound);
  testing::put(dir / "draft/specdec.json",
               to_json(DraftBinding{fingerprint_model(dir / "target"), "model", "", Json::object()}).dump());
  EXPECT_EQ(check_binding(dir / "target", dir / "draft").state, BindingState::kBound);
  const BindingCheck stale = check_binding(dir / "other", dir / "draft");
  EXPECT_EQ(stale.state, BindingState::kStale);
  EXPECT_NE(stale.reason.find("weights differ"), std::string::npos) << stale.reason;
  EXPECT_NE(stale.reason.find(fingerprint_model(dir / "target").id.substr(0, 12)), std::string::npos);
  EXPECT_NE(stale.reason.find(fingerprint_model(dir / "other").id.substr(0, 12)), std::string::npos);
  testing::put(dir / "draft/specdec.json", "{");
  expect_error(ErrorKind::kModel, {"specdec.json"}, [&] { check_binding(dir / "target", dir / "draft"); });
}

TEST(DraftBinding, ExchangedModelsAreRefusedWithTheRightOrder) {
  const testing::Scratch dir;
  testing::write_tiny_model(dir / "target", {.layers = 3});
  testing::write_tiny_model(dir / "draft");
  testing::write_tiny_model(dir / "other", {.layers = 2});
  testing::put(dir / "draft/specdec.json",
               to_json(DraftBinding{fingerprint_model(dir / "target"), "model", "", Json::object()}).dump());
  expect_error(ErrorKind::kUsage, {"was made as a draft for", "exchange them: --target ", "/target --draft ", "/draft"},
               [&] { check_binding(dir / "draft", dir / "target"); });
  EXPECT_EQ(check_binding(dir / "draft", dir / "other").state, BindingState::kUnbound) << "a draft may be a target";
}

TEST(DraftBinding, UnboundNeedsVocabularyAndTokenizer) {
  const testing::Scratch dir;
  testing::write_tiny_model(dir / "target");
  testing::write_tiny_model(dir / "draft", {.vocab = 319});
  expect_error(ErrorKind::kModel, {"vocab_size 319", "320"}, [&] { check_binding(dir / "target", dir / "draft"); });
  testing::write_tiny_model(dir / "draft2");
  testing::put(dir / "draft2/tokenizer.json", "{}");
  expect_error(ErrorKind::kModel, {"tokenizer.json", "byte for byte"},
               [&] { check_binding(dir / "target", dir / "draft2"); });
}

PackageManifest sample_manifest() {
  PackageManifest m;
  m.files = {{"draft/config.json", 5, std::string(64, 'a')}, {"target/config.json", 6, std::string(64, 'b')}};
  m.target = made_up('a');
  m.draft = made_up('b');
  m.draft_kind = "prune:2";
  m.tokenizer_digest = m.target.tokenizer;
  m.report = to_json(testing::sample_report(m.target, m.draft));
  m.provenance = {{"x", 1}};
  m.parent = std::string(64, 'c');
  m.created = "2026-11-21T12:00:00Z";
  m.tool_version = "0.1.0";
  return m;
}

TEST(PackageManifest, VariantsMayHaveAReport) {
  PackageManifest m = sample_manifest();
  m.files.insert(m.files.begin(), {"draft-int8/config.json", 5, std::string(64, 'e')});
  m.variants = {{"int8", made_up('e'), 0.01, Json()}};
  const auto read = [](const Json& j) { return to_json(package_manifest_from_json(j, "manifest.json")); };
  EXPECT_EQ(read(to_json(m)), to_json(m));
  m.variants[0].report = to_json(testing::sample_report(m.target, m.variants[0].fingerprint));
  EXPECT_EQ(read(to_json(m)), to_json(m));
  refuse(to_json(m), ErrorKind::kData, "variants[0]", [](Json& j) { j["variants"][0]["report"] = 3; }, read);
}

TEST(PackageManifest, RoundTripAndRefusals) {
  const auto read = [](const Json& j) { return to_json(package_manifest_from_json(j, "manifest.json")); };
  const Json json = to_json(sample_manifest());
  check_schema(
      json, ErrorKind::kData,
      {"schema", "files", "target", "draft", "tokenizer_digest", "report", "provenance", "created", "tool_version"},
      read);
  for (const char* path :
       {"", "/etc/passwd", "../x", "draft/../x", "draft//x", "draft/", "./x", "a\\b", "a\nb", "manifest.json"})
    refuse(json, ErrorKind::kData, "files[0]: path", [&](Json& j) { j["files"][0]["path"] = path; }, read);
  refuse(json, ErrorKind::kData, "each path once", [](Json& j) { j["files"][1] = j["files"][0]; }, read);
  refuse(json, ErrorKind::kData, "size", [](Json& j) { j["files"][0]["size"] = -1; }, read);
  refuse(json, ErrorKind::kData, "draft/config.json: missing", [](Json& j) { j["files"].erase(0); }, read);
  refuse(
      json, ErrorKind::kData, "either target/config.json or", [](Json& j) { j["target"]["reference"] = "org/name"; },
      read);
  refuse(json, ErrorKind::kData, "either target/config.json or", [](Json& j) { j["files"].erase(1); }, read);
  refuse(
      json, ErrorKind::kData, "tokenizer_digest", [](Json& j) { j["tokenizer_digest"] = std::string(64, '9'); }, read);
  refuse(
      json, ErrorKind::kData, "another pair", [](Json& j) { j["draft"]["fingerprint"] = to_json(made_up('c')); }, read);
  refuse(json, ErrorKind::kData, "verdict fail", [](Json& j) { j["report"]["verdict"] = "fail"; }, read);
  refuse(json, ErrorKind::kData, "parent", [](Json& j) { j["parent"] = "x"; }, read);
  for (const char* bad : {"", "open", "Public"})
    refuse(
        json, ErrorKind::kData, "visibility: expected public or private", [&](Json& j) { j["visibility"] = bad; },
        read);
  Json open = json, earlier = json;
  open["visibility"] = "public";
  earlier.erase("visibility");
  EXPECT_EQ(read(open), open);
  EXPECT_EQ(read(earlier), json) << "who did not say, did not say public";
  EXPECT_EQ(json["visibility"], "private");
  Json allowed = json;
  allowed["report"]["verdict"] = "fail";
  allowed["allowed_failed"] = true;
  EXPECT_NO_THROW(read(allowed));
}

TEST(PackageManifest, ChannelNames) {
  for (const char* good : {"production", "v1.2_x-y", "A"}) EXPECT_NO_THROW(require_channel_name(good));
  for (const std::string& bad :
       {std::string(), std::string("a/b"), std::string(".."), std::string(".x"), std::string("sha256-ab"),
        std::string("a b"), std::string("x.log"), std::string("x.partial"), std::string(65, 'a')})
    expect_error(ErrorKind::kUsage, {"channel"}, [&] { require_channel_name(bad); });
}

TEST(PackageManifest, ResolvesAndVerifies) {
  const testing::Scratch dir;
  const fs::path store = dir / "store";
  PackageManifest m = sample_manifest();
  m.files = {{"draft/config.json", 2, sha256_hex("{}")}, {"target/config.json", 3, sha256_hex("{ }")}};
  const std::string manifest = canonical_json(to_json(m)), digest = sha256_hex(manifest);
  const fs::path package = store / "packages" / ("sha256-" + digest);
  const auto write = [&] {
    remove_tree(package);
    testing::put(package / "manifest.json", manifest);
    testing::put(package / "draft/config.json", "{}");
    testing::put(package / "target/config.json", "{ }");
  };
  write();
  testing::put(store / "refs/prod", digest + "\n");
  for (const std::string& argument :
       {package.string(), package.string() + "/", store.string() + ":prod", (store / "refs/prod").string(),
        store.string() + ":sha256-" + digest.substr(0, 10)}) {
    const auto found = resolve_package(argument, true);
    ASSERT_TRUE(found) << argument;
    EXPECT_EQ(found->digest, digest);
    EXPECT_TRUE(fs::equivalent(found->target, package / "target"));
    EXPECT_TRUE(fs::equivalent(found->draft, package / "draft"));
  }
  EXPECT_FALSE(resolve_package((dir / "none").string(), true));
  EXPECT_FALSE(resolve_package(dir.root().string() + ":prod", true));
  EXPECT_FALSE(resolve_package("org/name@main", true));
  expect_error(ErrorKind::kData, {"no channel 'canary'"}, [&] { resolve_package(store.string() + ":canary", true); });
  expect_error(ErrorKind::kUsage, {"channel"}, [&] { resolve_package(store.string() + ":../prod", true); });
  expect_error(ErrorKind::kData, {"no package sha256-ffffffff"},
               [&] { resolve_package(store.string() + ":sha256-ffffffff", true); });
  expect_error(ErrorKind::kUsage, {"at least 8"}, [&] { resolve_package(store.string() + ":sha256-", true); });

  const auto damaged = [&](const std::string& reason, const std::function<void()>& damage) {
    write();
    damage();
    expect_error(ErrorKind::kData, {reason}, [&] { resolve_package(package.string(), true); });
  };
  damaged("draft/config.json is missing", [&] { fs::remove(package / "draft/config.json"); });
  damaged("has 4 bytes", [&] { testing::put(package / "draft/config.json", "{  }"); });
  damaged("was changed", [&] { testing::put(package / "draft/config.json", "[]"); });
  damaged("extra.txt is not in the manifest", [&] { testing::put(package / "extra.txt", ""); });
  damaged("is a link", [&] { fs::create_symlink("config.json", package / "draft/link"); });
  damaged("is a link", [&] { fs::create_directory_symlink("draft", package / "more"); });
  damaged("manifest.json was changed", [&] { testing::put(package / "manifest.json", manifest + " "); });
  damaged("manifest.json", [&] { fs::remove(package / "manifest.json"); });
  damaged("manifest.json", [&] { testing::put(package / "manifest.json", manifest.substr(0, manifest.size() / 2)); });
  damaged("a link", [&] {
    fs::rename(package / "manifest.json", dir / "m");
    fs::create_symlink(dir / "m", package / "manifest.json");
  });
  write();
  testing::put(package / "draft/config.json", "[]");
  EXPECT_NO_THROW(resolve_package(package.string(), false)) << "sizes only";
  testing::put(store / "refs/prod", "nonsense");
  expect_error(ErrorKind::kData, {"damaged channel"}, [&] { resolve_package(store.string() + ":prod", true); });
  testing::put(store / "refs/prod", std::string(64, 'e'));
  expect_error(ErrorKind::kData, {"missing, although the channel 'prod' names it"},
               [&] { resolve_package(store.string() + ":prod", true); });
}

}  // namespace
}  // namespace specdec
