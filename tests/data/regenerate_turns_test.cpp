// Tests how `data regenerate` rewrites several turns, and rows with recorded results of tools.
#include "data/regenerate/answer_turns.h"
#include "tests/data/regenerate_fixture.h"

namespace specdec::data {
namespace {

std::vector<std::pair<int64_t, int64_t>> turns_of(const std::vector<uint8_t>& loss_mask, int64_t prompt_tokens) {
  TokenRow row;
  row.tokens.assign(loss_mask.size(), 7);
  row.loss_mask = loss_mask;
  row.prompt_tokens = prompt_tokens;
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const AnswerTurn& turn : answer_turns(row)) out.emplace_back(turn.begin, turn.end);
  return out;
}

TEST(AnswerTurns, AreTheLearntRangesOfAChatAndTheRestOfAText) {
  using Turns = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(turns_of({0, 0, 1, 1, 0, 1}, 5), (Turns{{2, 4}, {5, 6}}));
  EXPECT_EQ(turns_of({0, 1, 1, 0, 1, 1}, 4), (Turns{{1, 3}, {4, 6}}))
      << "a chat that begins with a prompt of one token";
  EXPECT_EQ(turns_of({0, 1, 1, 1}, 1), (Turns{{1, 4}})) << "a prompt of one token and its response";
  EXPECT_EQ(turns_of({0, 1, 1, 1}, 3), (Turns{{3, 4}})) << "a text, of which three tokens are the prompt";
  EXPECT_EQ(turns_of({0, 1, 1, 1}, 4), (Turns{{4, 4}})) << "a short text is all prompt";
  EXPECT_EQ(turns_of({0, 1, 1, 0, 0}, 5), (Turns{{1, 3}})) << "a chat that was cut before its last answer";
}

TEST_F(RegenerateTest, EachAnswerFollowsTheNewOnesBeforeIt) {
  ingest(ingest_options(scratch_.write("chat.jsonl", chat_of("c", 3)), target_, scratch_ / "data"), {});
  endpoint_.finish_reason = "stop";
  // The answer to a prompt is the number of answers in the prompt.
  endpoint_.intercept = [this](const Json& body, int) -> ToyReply {
    std::string prompt;
    for (const Json& id : body["prompt"]) prompt += tokenizer_.id_to_token(id.get<int32_t>());
    EXPECT_EQ(prompt.find("old"), std::string::npos) << "the history is the new one: " << prompt;
    size_t answers = 0;
    for (size_t at = prompt.find("new"); at != std::string::npos; at = prompt.find("new", at + 1)) ++answers;
    const std::string text = "new " + std::to_string(answers);
    // The endpoint omits the end-of-turn marker.
    return {200,
            Json({{"choices",
                   {{{"text", text}, {"token_ids", tokenizer_.encode(text, false)}, {"finish_reason", "stop"}}}}})
                .dump(),
            ""};
  };
  EXPECT_EQ(run(options()).turns, 3);
  EXPECT_EQ(learnt("c"), "new 0<|im_end|>|new 1<|im_end|>|new 2<|im_end|>");
  std::string all;
  const TokenRow row = by_id().at("c");
  for (const int32_t id : row.tokens) all += tokenizer_.id_to_token(id);
  EXPECT_EQ(all,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nnew 0<|im_end|>\n"
            "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nnew 1<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nnew 2<|im_end|>");
}

TEST_F(RegenerateTest, ARefusalInTheMiddleKeepsTheAnswersBeforeIt) {
  ingest(ingest_options(scratch_.write("chat.jsonl", chat_of("c", 3)), target_, scratch_ / "data"), {});
  endpoint_.intercept = [](const Json& body, int) -> ToyReply {
    return {body["prompt"].size() > 60 ? 400 : 0, R"({"error":{"message":"too long"}})", ""};
  };
  const RegenerateResult r = run(options());
  EXPECT_EQ(r.turns, 2);
  EXPECT_EQ(r.ended, (std::map<std::string, int64_t>{{"http_400", 1}}));
  EXPECT_TRUE(r.index.rejects.empty());
  EXPECT_EQ(learnt("c"), "\n again|\n again");
  const Json reject = Json::parse(slurp(scratch_ / "new" / "rejects.jsonl"));
  EXPECT_EQ(reject["turn"], 3);
  EXPECT_EQ(reject["kept_turns"], 2);
}

// ---- recorded results of tools ----

const char kToolTemplate[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}{{ '<tool_call>{\"name\": \"' + c['function']['name'] + '\", \"arguments\": ' "
    "+ "
    "(c['function']['arguments'] | tojson) + '}</tool_call>' }}{% endfor %}{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class ToolRegenerateTest : public RegenerateTest {
 protected:
  void SetUp() override {
    const fs::path target = make_toy_target(scratch_ / "tools", kToolTemplate);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(target / file, target_ / file, fs::copy_options::overwrite_existing);
    RegenerateTest::SetUp();
    const char row[] =
        R"({"id":"t","messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":"",)"
        R"("tool_calls":[{"id":"1","type":"function","function":)"
        R"({"name":"get_weather","arguments":"{\"city\":\"X\"}"}}]},)"
        R"({"role":"tool","tool_call_id":"1","content":"rain"},{"role":"assistant","content":"It rains."}]})";
    ingest(ingest_options(scratch_.write("tools.jsonl", std::string(row) + "\n"), target_, scratch_ / "data"), {});
  }
  // Runs `data regenerate` with a target that answers the first prompt with `call`, and every later one with "Wet.".
  RegenerateResult run_with(const std::string& call) {
    endpoint_.intercept = [this, call](const Json&, int number) -> ToyReply {
      const std::string text = number == 1 ? call : "Wet.";
      return {200,
              Json({{"choices",
                     {{{"text", text}, {"token_ids", tokenizer_.encode(text, false)}, {"finish_reason", "stop"}}}}})
                  .dump(),
              ""};
    };
    endpoint_.calls = 0;
    return run(options());
  }
};

TEST_F(ToolRegenerateTest, TheRowsNameTheCallsOfTheirAnswers) {
  const std::vector<TokenRow> rows = ShardReader(scratch_ / "data").rows("all");
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows[0].calls.size(), 1u);
  EXPECT_EQ(rows[0].calls[0].names, std::vector<std::string>{"get_weather"});
  EXPECT_EQ(rows[0].loss_mask[static_cast<size_t>(rows[0].calls[0].begin)], 1);
  EXPECT_EQ(rows[0].loss_mask[static_cast<size_t>(rows[0].calls[0].begin) - 1], 0);
}

TEST_F(ToolRegenerateTest, TheResultStaysWhereTheSameFunctionIsCalled) {
  const std::string call = R"(<tool_call>{"name":"get_weather",  "arguments": {"city": "Y"}}</tool_call>)";
  const RegenerateResult r = run_with(call);
  EXPECT_EQ(r.turns, 2);
  EXPECT_TRUE(r.ended.empty());
  EXPECT_EQ(learnt("t"), call + "<|im_end|>|Wet.<|im_end|>");
  EXPECT_NE(prompt_of(tokenizer_, by_id().at("t")).find("tool\nrain<|im_end|>"), std::string::npos);
  ASSERT_EQ(by_id().at("t").calls.size(), 1u) << "so that the new rows can be regenerated, too";
}

TEST_F(ToolRegenerateTest, TheRowEndsWhereTheCallsDiffer) {
  const std::string same = R"(<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>)";
  for (const std::string& answer :
       {std::string(R"(<tool_call>{"name": "get_time", "arguments": {}}</tool_call>)"), std::string("It is sunny."),
        std::string("I would call get_weather."),
        same + R"(<tool_call>{"name": "get_time", "arguments": {}}</tool_call>)", same + same}) {
    const RegenerateResult r = run_with(answer);
    EXPECT_EQ(r.turns, 1) << answer;
    EXPECT_EQ(r.ended, (std::map<std::string, int64_t>{{"tool_calls", 1}})) << answer;
    EXPECT_EQ(learnt("t"), answer + "<|im_end|>");
  }
}

TEST_F(ToolRegenerateTest, WithoutATokenizerNobodyKnowsWhatIsCalled) {
  RegenerateOptions o = options();
  o.target.clear();
  EXPECT_EQ(run(o).ended, (std::map<std::string, int64_t>{{"tool_calls", 1}}));
}

}  // namespace
}  // namespace specdec::data
