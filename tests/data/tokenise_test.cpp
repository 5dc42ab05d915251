#include "data/tokenise.h"

#include "tests/data/tokenise_fixture.h"

namespace specdec::data {
namespace {

TEST_F(Tokenise, EveryAssistantTurnIsLearntUpToItsEndMarker) {
  const RowTokeniser t = with(kChatMl);
  const TokenRow r =
      row(t, chat({{"system", "S"}, {"user", "hi"}, {"assistant", "yes?"}, {"user", "go"}, {"assistant", "ok\nfine"}}));
  EXPECT_EQ(learnt_text(t.tokenizer(), r), "yes?<|im_end|>|ok\nfine<|im_end|>");
  EXPECT_EQ(prompt_of(t.tokenizer(), r),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes?<|im_end|>\n<|"
            "im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(t.tokenizer().id_to_token(r.tokens.back()), "\n");
  EXPECT_EQ(r.loss_mask.back(), 0);  // a line break that only the template writes
}

TEST_F(Tokenise, WhiteSpaceOfTheAnswerItselfIsLearnt) {
  const RowTokeniser t = with(
      "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '\n\n' }}{% endfor %}{% if add_generation_prompt "
      "%}{{ 'assistant:' }}{% endif %}");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, {"assistant", "a\n"}}))), "a\n");
}

TEST_F(Tokenise, ToolCallsAreLearntWhereTheTemplateRendersThem) {
  const std::string shows =
      "{% if tools %}{{ 'tools:' + tools | tojson + '\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + "
      "m['role'] + '\n' + m['content'] }}"
      "{% for c in m.tool_calls %}{{ '<call>' + c.function.name + (c.function.arguments | tojson) }}{% endfor %}{{ "
      "'<|im_end|>' + '\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const std::string one = R"([{"function":{"name":"f","arguments":{"z":1,"a":2}}}])",
                    two = R"([{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{}}}])";
  TrafficRecord r = chat({{"user", "u"},
                          {"assistant", "", one},
                          {"tool", "r"},
                          {"assistant", "a"},
                          {"user", "v"},
                          {"assistant", "so", two}});
  r.tools = R"([{"type":"function","function":{"name":"f"}}])";
  const RowTokeniser t = with(shows);
  const TokenRow made = row(t, r);
  EXPECT_EQ(learnt_text(t.tokenizer(), made),
            "<call>f{\"z\": 1, \"a\": 2}<|im_end|>|a<|im_end|>|so<call>f{}<call>g{}<|im_end|>");
  EXPECT_TRUE(
      prompt_of(t.tokenizer(), made)
          .starts_with("tools:[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]\n<|im_start|>user\nu"));
  // If the template ignores all calls, or all but the first, the rendered text is not what the model wrote.
  const RowTokeniser ignores = with(kChatMl);
  EXPECT_EQ(reason(ignores, r), "unsupported_tool_calls");
  r.messages.back().tool_calls.clear();
  const auto earlier = ignores.tokenise(r);
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(earlier));
  EXPECT_EQ(std::get<TokenisedRow>(earlier).unlearnt_turns, 1);
  EXPECT_EQ(learnt_text(ignores.tokenizer(), std::get<TokenisedRow>(earlier).row), "a<|im_end|>|so<|im_end|>");
  const RowTokeniser first = with(
      "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% if m.tool_calls %}{{ "
      "m.tool_calls[0].function.name }}{% endif %}{{ ';' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}");
  EXPECT_EQ(reason(first, chat({{"user", "u"}, {"assistant", "", one}})), "accepted");
  EXPECT_EQ(reason(first, chat({{"user", "u"}, {"assistant", "", two}})), "unsupported_tool_calls");
}

TEST_F(Tokenise, ToolCallsOfATemplateWithALastTurnOfItsOwn) {
  const auto chat_template = [](const std::string& call) {
    return "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if loop.last and m.role == 'assistant' %}{{ "
           "'<think>\n\n</think>\n\n' }}{% endif %}{{ m.content }}"
           "{% set last = loop.last %}{% for c in m.tool_calls %}" +
           call +
           "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
           "}}{% endif %}";
  };
  const std::string one = R"([{"function":{"name":"f","arguments":{}}}])";
  const RowTokeniser t = with(chat_template("{{ '<call>' + c.function.name }}"));
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, {"assistant", "", one}}))),
            "<think>\n\n</think>\n\n<call>f<|im_end|>");
  const auto unlearnt = [](const RowTokeniser& by, const TrafficRecord& record) {
    auto made = by.tokenise(record);
    return std::holds_alternative<TokenisedRow>(made) ? std::get<TokenisedRow>(made).unlearnt_turns : -1;
  };
  const TrafficRecord two = chat({{"user", "u"}, {"assistant", "", one}, {"tool", "r"}, {"assistant", "a"}});
  EXPECT_EQ(unlearnt(t, two), 1);
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, two)), "<think>\n\n</think>\n\na<|im_end|>");
  // This template keeps an earlier turn's content but rewrites the call after it.
  std::string rewrites =
      chat_template("{% if last %}{{ '<call>' + c.function.name }}{% else %}{{ '<called>' }}{% endif %}");
  rewrites.replace(rewrites.find("<think>"), std::string("<think>\n\n</think>\n\n").size(), "");
  const RowTokeniser r = with(rewrites);
  const TrafficRecord with_text = chat({{"user", "u"}, {"assistant", "so", one}, {"tool", "r"}, {"assistant", "a"}});
  EXPECT_EQ(unlearnt(r, with_text), 1);
  EXPECT_EQ(learnt_text(r.tokenizer(), row(r, with_text)), "a<|im_end|>");
  // A template that raises an error for a turn without its calls does read the calls, so the row is accepted.
  const RowTokeniser strict = with(chat_template("{{ '<call>' + c.function.name }}") +
                                   "{% for m in messages %}{% if m.role == 'assistant' and not m.content and not "
                                   "m.tool_calls %}{{ raise_exception('empty') }}{% endif %}{% endfor %}");
  EXPECT_EQ(reason(strict, chat({{"user", "u"}, {"assistant", "", one}})), "accepted");
}

TEST_F(Tokenise, RewrittenHistoryIsNotLearntAndARewrittenAnswerIsRefused) {
  // This template renders a thought only for the last answer, as reasoning templates do.
  const std::string forgetful =
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' and loop.last %}{{ "
      "'(hm)' }}{% endif %}{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const RowTokeniser t = with(forgetful);
  const auto two = t.tokenise(chat({{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b"}}));
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(two));
  EXPECT_EQ(std::get<TokenisedRow>(two).unlearnt_turns, 1);
  EXPECT_EQ(learnt_text(t.tokenizer(), std::get<TokenisedRow>(two).row), "(hm)b<|im_end|>");
  // This template renders an answer without the generation prompt in front of it.
  const RowTokeniser think = with(
      "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ "
      "'assistant:<think>' }}{% endif %}");
  EXPECT_EQ(reason(think, chat({{"user", "u"}, {"assistant", "a"}})), "template_not_prefix_stable");
}

TEST_F(Tokenise, TurnsThatAreShownAndNotLearnt) {
  const RowTokeniser t = with(kChatMl);
  TrafficRecord record =
      chat({{"user", "u"}, {"assistant", "bad"}, {"user", "v"}, {"assistant", " "}, {"user", "w"}, {"assistant", "a"}});
  record.messages[1].unlearnt = true;
  const auto made = t.tokenise(record);
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(made));
  EXPECT_EQ(std::get<TokenisedRow>(made).unlearnt_turns, 2) << "the opt-out, and an answer without anything in it";
  EXPECT_EQ(learnt_text(t.tokenizer(), std::get<TokenisedRow>(made).row), "a<|im_end|>");
  EXPECT_NE(prompt_of(t.tokenizer(), std::get<TokenisedRow>(made).row).find("bad"), std::string::npos);
  record.messages.back().unlearnt = true;
  const TokenRow none = row(t, record);
  EXPECT_EQ(check_learnable(none)->reason, "no_loss_tokens");
}

TEST_F(Tokenise, EosThatClosesAConversationIsNotTheModels) {
  // Like Phi-3's template, this one writes EOS at the end unless an answer is requested. EOS and the text after a turn
  // both begin with "<|".
  const RowTokeniser t = with(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ '<|im_end|>' }}{% endif %}");
  EXPECT_EQ(learnt_text(t.tokenizer(),
                        row(t, chat({{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b b"}}))),
            "a<|im_end|>|b b<|im_end|>");
}

TEST_F(Tokenise, Phi3ManyTurns) {
  const fs::path shared = shared_directory();
  if (shared.empty()) GTEST_SKIP() << "no shared data (set SPECDEC_SHARED)";
  const RowTokeniser t(shared / "data/tokenizers/ort-ext/phi-3-mini");
  const TokenRow r =
      row(t, chat({{"user", "Hi"}, {"assistant", "Hello there."}, {"user", "Go on"}, {"assistant", " Done.\n"}}));
  EXPECT_EQ(learnt_text(t.tokenizer(), r), "▁Hello▁there.<|end|>|▁Done.<0x0A><|end|>");
}

TEST_F(Tokenise, TemplateThatRefusesARowRejectsThatRowOnly) {
  const RowTokeniser t = with(
      "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role: ' + messages[0]['content']) }}{% "
      "endif %}" +
      std::string(kChatMl));
  const TrafficRecord refused = chat({{"system", "S"}, {"user", "u"}, {"assistant", "a"}});
  EXPECT_EQ(reason(t, refused), "template_error");
  const std::string detail = std::get<Rejected>(t.tokenise(refused)).detail;
  EXPECT_EQ(detail, "line 1: raise_exception: raise_exception('no system role: ' + messages[0]['content'])");
  EXPECT_EQ(reason(t, chat({{"user", "u"}, {"assistant", "a"}})), "accepted");
}

TEST_F(Tokenise, TokensPastTheModelsVocabularyRejectTheRow) {
  const fs::path target = make_toy_target(scratch_ / "padded");
  Json config = read_json(target / "tokenizer_config.json");
  config["pad_token"] = "<pad>";  // gets the id after the last one of tokenizer.json
  std::ofstream(target / "tokenizer_config.json") << config.dump();
  TrafficRecord r;
  r.text = "a<pad>";
  EXPECT_EQ(reason(RowTokeniser(target), r), "accepted");  // without config.json nothing limits the ids
  const int64_t all = text::Tokenizer(target).vocab_size();
  const auto of_model = [&](const Json& model) {
    std::ofstream(target / "config.json") << model.dump();
    return reason(RowTokeniser(target), r);
  };
  EXPECT_EQ(of_model({{"vocab_size", all}}), "accepted");
  EXPECT_EQ(of_model({{"vocab_size", all - 1}}), "token_past_vocabulary");
  r = chat({{"user", "<pad>"}, {"assistant", "a"}});
  EXPECT_EQ(of_model({{"vocab_size", all - 1}}), "token_past_vocabulary");
  EXPECT_EQ(of_model({{"model_type", "llama"}}), "accepted");
}

TEST_F(Tokenise, ChatWithoutATemplateIsAnErrorThatSaysSo) {
  const RowTokeniser t = with("");
  EXPECT_FALSE(t.has_chat_template());
  try {
    t.tokenise(chat({{"user", "u"}, {"assistant", "a"}}));
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(e.what()).find("no chat template"), std::string::npos);
  }
}

TEST_F(Tokenise, TextIsLearntWholeAfterBos) {
  TrafficRecord r;
  r.text = "once upon a time";
  const RowTokeniser t = with("");
  const TokenRow a = row(t, r);
  EXPECT_EQ(a.tokens.size(), 17u);
  EXPECT_EQ(a.tokens[0], t.tokenizer().bos_id());
  EXPECT_EQ(learnt_text(t.tokenizer(), a), "once upon a time");
  EXPECT_EQ(a.prompt_tokens, 17);
  r.text += " there";
  EXPECT_EQ(row(t, r).prompt_tokens, 17);
  const RowTokeniser no_bos = with("", false);
  const TokenRow b = row(no_bos, r);
  EXPECT_EQ(b.tokens.size(), r.text.size());
  EXPECT_EQ(learnt_text(no_bos.tokenizer(), b), "nce upon a time there");  // no position predicts the first token
}

TEST_F(Tokenise, CompletionTokensOfPromptRows) {
  TrafficRecord r;
  r.prompt = "2+2=";
  r.response = "4!";
  const RowTokeniser t = with(kChatMl);
  const TokenRow a = row(t, r);
  EXPECT_EQ(prompt_of(t.tokenizer(), a), "<s>2+2=");
  EXPECT_EQ(learnt_text(t.tokenizer(), a), "4!");
  r.prompt.clear();
  const TokenRow b = row(t, r);
  EXPECT_EQ(b.prompt_tokens, 1);
  EXPECT_EQ(learnt_text(t.tokenizer(), b), "4!");
}

// The record's token ids are what the model has read and written, so they are learnt if they decode to the record's
// texts.
TEST_F(Tokenise, TokenIdsOfARecordAreLearnt) {
  const RowTokeniser t = with(kChatMl);
  TrafficRecord r;
  r.prompt = "2+2=";
  r.response = "4!";
  r.prompt_token_ids = t.tokenizer().encode(r.prompt, true);
  r.token_ids = t.tokenizer().encode(r.response, false);
  r.token_ids.push_back(t.tokenizer().eos_id());
  const TokenRow a = row(t, r);
  EXPECT_EQ(a.prompt_tokens, static_cast<int64_t>(r.prompt_token_ids.size()));
  EXPECT_EQ(std::vector<int32_t>(a.tokens.begin() + a.prompt_tokens, a.tokens.end()), r.token_ids);
  for (size_t i = 0; i < a.tokens.size(); ++i) EXPECT_EQ(a.loss_mask[i], static_cast<int64_t>(i) >= a.prompt_tokens);
  const TrafficRecord right = r;
  for (std::string TrafficRecord::* text : {&TrafficRecord::prompt, &TrafficRecord::response}) {
    r = right;
    r.*text += "?";
    const TokenRow b = row(t, r);
    EXPECT_EQ(prompt_of(t.tokenizer(), b), "<s>" + r.prompt) << "ids that spell other texts are not used";
    EXPECT_EQ(learnt_text(t.tokenizer(), b), r.response);
  }
}

TEST_F(Tokenise, TokenAcrossTheBorderBelongsToTheResponse) {
  const fs::path shared = shared_directory();
  if (shared.empty()) GTEST_SKIP() << "no shared data (set SPECDEC_SHARED)";
  const RowTokeniser t(shared / "data/models/stories260K");
  TrafficRecord r;
  r.prompt = "Once upon a ti";
  r.response = "me, there was a girl.";
  const TokenRow a = row(t, r);
  EXPECT_EQ(a.tokens, row(t,
                          [] {
                            TrafficRecord whole;
                            whole.text = "Once upon a time, there was a girl.";
                            return whole;
                          }())
                          .tokens);
  EXPECT_GT(a.prompt_tokens, 1);
  const std::vector<int32_t> prompt(a.tokens.begin(), a.tokens.begin() + a.prompt_tokens);
  const std::string head = t.tokenizer().decode(prompt, true);
  EXPECT_TRUE(("Once upon a ti" + std::string("")).starts_with(head)) << head;
  for (size_t i = 0; i < a.tokens.size(); ++i) EXPECT_EQ(a.loss_mask[i], static_cast<int64_t>(i) >= a.prompt_tokens);
}

TEST(Rows, CutAndCheck) {
  TokenRow r;
  r.tokens = {0, 1, 2, 3};
  r.loss_mask = {0, 0, 0, 1};
  r.prompt_tokens = 3;
  EXPECT_EQ(cut_row(r, 0), 0);
  EXPECT_EQ(cut_row(r, 4), 0);
  EXPECT_FALSE(check_learnable(r));
  EXPECT_EQ(cut_row(r, 2), 2);
  EXPECT_EQ(r.tokens, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(r.prompt_tokens, 2);
  EXPECT_EQ(check_learnable(r)->reason, "no_loss_tokens");
  cut_row(r, 1);
  EXPECT_EQ(check_learnable(r)->reason, "too_few_tokens");
}

}  // namespace
}  // namespace specdec::data
