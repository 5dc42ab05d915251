#include "deploy/generate/generate_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "deploy/models/load_pair.h"
#include "engine/weights/eagle_head.h"
#include "tests/models/real_models.h"

namespace specdec::deploy {
namespace {

struct GenerateCommand : RealModels {
  GenerateOptions options() const {
    GenerateOptions o;
    o.target = target.string();
    o.draft = draft.string();
    o.has_prompt = true;
    o.prompt = "Once upon a time";
    o.max_tokens = 40;
    o.device.device = "cpu";
    o.sampling.temperature = 0;
    return o;
  }
  GenerateOutput run(const GenerateOptions& o) {
    GenerateHooks hooks;
    hooks.on_note = [&](const std::string& line) { notes.push_back(line); };
    hooks.on_text = [&](const std::string& text) { streamed += text; };
    notes.clear();
    streamed.clear();
    return run_generate_command(o, hooks, clock);
  }
  SystemClock clock;
  std::vector<std::string> notes;
  std::string streamed;
};

TEST_F(GenerateCommand, StreamsTheTextThatTheIdsDecodeTo) {
  GenerateOptions o = options();
  const GenerateOutput speculative = run(o);
  EXPECT_EQ(streamed, speculative.text);
  const text::Tokenizer tokenizer(target);
  std::vector<int32_t> whole = tokenizer.encode(o.prompt, true);
  whole.insert(whole.end(), speculative.result.tokens.begin(), speculative.result.tokens.end());
  EXPECT_EQ(o.prompt + speculative.text, tokenizer.decode(whole, true)) << "the answer continues its prompt";
  EXPECT_GT(speculative.result.counts.accepted, 0);
  ASSERT_EQ(notes.size(), 2u);  // the memory plan, and a warning that the draft is not bound to the target
  EXPECT_EQ(notes[0].rfind("memory: ", 0), 0u);
  EXPECT_EQ(notes[1].rfind("warning: ", 0), 0u);
  o.draft.clear();
  const GenerateOutput plain = run(o);
  EXPECT_EQ(plain.text, speculative.text);
  EXPECT_EQ(plain.result.counts.steps, 0);
  EXPECT_EQ(notes.size(), 1u);
}

// The answer's first token begins with a space. The decoder strips a space only at the beginning of a text, which is
// the prompt, so this space must stay.
TEST_F(GenerateCommand, TheFirstSpaceOfTheAnswerStays) {
  GenerateOptions o = options();
  o.prompt = "Once upon a";
  EXPECT_EQ(run(o).text.substr(0, 6), " time,");
}

// Fine-tuned models often name their end-of-turn token only in tokenizer_config.json.
TEST_F(GenerateCommand, TheTokenizersEndEndsAnAnswer) {
  GenerateOptions o = options();
  const GenerateOutput free = run(o);
  const int32_t end = free.result.tokens.at(5);
  const auto first = std::find(free.result.tokens.begin(), free.result.tokens.end(), end) - free.result.tokens.begin();
  const std::string name = text::Tokenizer(target).id_to_token(end);
  Json config = {{"bos_token", "<s>"}, {"eos_token", name}};
  write_file_atomic(target / "tokenizer_config.json", config.dump());
  const GenerateOutput ended = run(o);
  EXPECT_EQ(ended.result.finish_reason, "stop");
  EXPECT_EQ(ended.result.tokens.size(), static_cast<size_t>(first) + 1);
  EXPECT_EQ(ended.result.tokens.back(), end);
  EXPECT_NE(std::find_if(notes.begin(), notes.end(),
                         [&](const std::string& n) { return n.starts_with("info: answers end with " + name); }),
            notes.end());
}

TEST_F(GenerateCommand, EmptyPromptIsBosAlone) {
  GenerateOptions o = options();
  o.prompt.clear();
  const GenerateOutput output = run(o);
  EXPECT_EQ(output.result.tokens.size(), 40u);
  EXPECT_NE(output.text.find("Once upon a time"), std::string::npos) << output.text;
  const LoadedPair pair = load_pair({.target = target.string(), .draft = "", .device = {}, .on_plan = {}});
  EXPECT_EQ(encode_prompt(pair, ""), (std::vector<int32_t>{1}));
  EXPECT_EQ(encode_prompt(pair, "Once").front(), 1);
}

// An EAGLE-3 head drafts in every dtype, and the text equals the target's own. The memory plan, the checks and the
// runner are the same code as for other drafts.
TEST_F(GenerateCommand, EagleHeads) {
  const model::Decoder decoder = model::load_decoder(target, at::kCPU, at::kFloat);
  const fs::path head = root / "head";
  fs::create_directories(head);
  model::save_eagle_head(model::new_eagle_head(decoder, {}, 3, at::kFloat), head);
  fs::copy(target / "tokenizer.json", head / "tokenizer.json");
  GenerateOptions o = options();
  o.speculation.k = 3;
  for (const char* dtype : {"fp32", "bf16", "int8"}) {
    o.device.dtype = dtype;
    o.draft = head.string();
    const GenerateOutput drafted = run(o);
    EXPECT_GT(drafted.result.counts.drafted, 10) << dtype;
    o.draft.clear();
    o.speculation.k = 0;
    EXPECT_EQ(run(o).text, drafted.text) << dtype;
    o.speculation.k = 3;
  }
  o.draft = head.string();
  Json config = read_json(head / "config.json");
  config["norm_before_fc"] = true;
  write_file_atomic(head / "config.json", config.dump());
  EXPECT_NE(error_of(ErrorKind::kModel, [&] { run(o); }).find("input_norm.weight is missing"), std::string::npos);
}

TEST_F(GenerateCommand, JsonObject) {
  GenerateOptions o = options();
  o.speculation.k = 3;
  const Json object = json_of(run(o));
  EXPECT_EQ(object["schema"], "specdec.generate/1");
  for (const char* key : {"text", "token_ids", "drafted", "accepted", "steps", "seconds", "finish_reason", "started",
                          "tool_version", "verdict", "inputs"})
    EXPECT_TRUE(object.contains(key)) << key;
  EXPECT_EQ(object["token_ids"].size(), 40u);
  EXPECT_EQ(object["emitted"], 40);
  EXPECT_EQ(object["finish_reason"], "length");
  EXPECT_EQ(object["inputs"]["target"]["id"], fingerprint_model(target).id);
}

TEST_F(GenerateCommand, MessagesNeedATemplateAndTheRightShape) {
  GenerateOptions o = options();
  o.has_prompt = false;
  o.messages_file = (root / "chat.json").string();
  write_file_atomic(o.messages_file, R"([{"role":"user","content":"Tell me a story"}])");
  error_of(ErrorKind::kUsage, [&] { run(o); });  // this model has no chat template
  write_file_atomic(target / "chat_template.jinja", "{% for m in messages %}{{ m.content }}. {% endfor %}Once");
  const GenerateOutput output = run(o);
  EXPECT_EQ(output.result.tokens.size(), 40u);
  for (const char* bad : {"{}", "[]", "[1]", R"([{"role":"user"}])", R"([{"role":"user","content":3}])", "["}) {
    write_file_atomic(o.messages_file, bad);
    error_of(ErrorKind::kData, [&] { run(o); });
  }
}

TEST_F(GenerateCommand, StaleDraftGeneratesNothing) {
  bind(fingerprint_model(draft));
  GenerateOptions o = options();
  const GenerateOutput refused = run(o);
  EXPECT_TRUE(refused.stale);
  EXPECT_TRUE(streamed.empty());
  EXPECT_EQ(json_of(refused)["verdict"], "stale");
  o.allow_stale = true;
  EXPECT_FALSE(run(o).stale);
  EXPECT_EQ(streamed.empty(), false);
}

// Each option must change the text, take effect as documented, and give the same text with and without the draft.
TEST_F(GenerateCommand, WhatTheAnswerMayBe) {
  const GenerateOutput free = run(options());
  const auto ruled = [&](const std::function<void(GenerateOptions&)>& change) {
    GenerateOptions o = options();
    o.speculation.k = 4;
    change(o);
    const GenerateOutput speculative = run(o);
    o.speculation.k = 0;
    EXPECT_EQ(run(o).text, speculative.text);
    EXPECT_NE(speculative.text, free.text);
    return speculative;
  };
  const int32_t first = free.result.tokens.at(3);
  const auto biased =
      ruled([&](GenerateOptions& o) { o.logit_bias = {std::to_string(first) + "=-100"}; }).result.tokens;
  EXPECT_EQ(std::count(biased.begin(), biased.end(), first), 0);
  EXPECT_EQ(ruled([](GenerateOptions& o) { o.bad_words = {"there", "was"}; }).text.find("was"), std::string::npos);
  ruled([](GenerateOptions& o) { o.presence_penalty = 2; });
  ruled([](GenerateOptions& o) { o.frequency_penalty = 2; });
  ruled([](GenerateOptions& o) { o.repetition_penalty = 1.9; });
  const GenerateOutput matched = ruled([](GenerateOptions& o) { o.regex = "( cat| dog){3}!"; });
  EXPECT_EQ(matched.result.finish_reason, "stop");
  EXPECT_EQ(matched.text.back(), '!');
  write_file_atomic(root / "schema.json", R"({"enum":[{"answer":42}]})");
  const GenerateOutput json = ruled([&](GenerateOptions& o) {
    o.json_schema_file = (root / "schema.json").string();
    o.max_tokens = 150;  // this model may emit much white space
  });
  EXPECT_EQ(Json::parse(json.text)["answer"], 42);
}

TEST_F(GenerateCommand, RulesOutOfRangeAreErrors) {
  const auto kind = [&](const std::function<void(GenerateOptions&)>& change) {
    GenerateOptions o = options();
    change(o);
    try {
      run(o);
    } catch (const Error& e) {
      return e.kind();
    }
    return ErrorKind::kInternal;
  };
  for (const char* bias : {"5", "=1", "5=", "x=1", "5=1x", "-1=1", "512=1", "5=101", "5=nan"})
    EXPECT_EQ(kind([&](GenerateOptions& o) { o.logit_bias = {bias}; }), ErrorKind::kUsage) << bias;
  EXPECT_EQ(kind([](GenerateOptions& o) { o.presence_penalty = 2.1; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](GenerateOptions& o) { o.repetition_penalty = 0; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](GenerateOptions& o) { o.bad_words = {""}; }), ErrorKind::kUsage);
  EXPECT_EQ(kind([](GenerateOptions& o) { o.regex = "("; }), ErrorKind::kData);
  EXPECT_EQ(kind([&](GenerateOptions& o) { o.json_schema_file = (root / "absent.json").string(); }), ErrorKind::kData);
}

TEST_F(GenerateCommand, ContradictingOptions) {
  GenerateOptions o = options();
  o.messages_file = "x.json";
  error_of(ErrorKind::kUsage, [&] { run(o); });
  o = options();
  o.has_prompt = false;
  error_of(ErrorKind::kUsage, [&] { run(o); });
  o = options();
  o.max_tokens = 0;
  error_of(ErrorKind::kUsage, [&] { run(o); });
  o = options();
  o.draft.clear();
  o.speculation.k = 4;
  error_of(ErrorKind::kUsage, [&] { run(o); });
  o = options();
  o.sampling.top_p = 0;
  error_of(ErrorKind::kUsage, [&] { run(o); });
  o = options();
  o.prompt = "\xff\xfe";
  error_of(ErrorKind::kUsage, [&] { run(o); });
  o = options();
  for (int i = 0; i < 600; ++i) o.prompt += " word";
  error_of(ErrorKind::kData, [&] { run(o); });
}

}  // namespace
}  // namespace specdec::deploy
