// Tests which tokens of an answer are learnt: with thoughts, if the template changes the answer, and if it was cut off.
#include "tests/data/tokenise_fixture.h"

namespace specdec::data {
namespace {

using TokeniseAnswers = Tokenise;

// This template renders thoughts only after the last question, as Qwen3's templates do. A content may include its
// thought.
const char kThinking[] =
    "{% set last = namespace(i=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set last.i = loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% set content = m.content %}"
    "{% set thought = m.reasoning_content or '' %}{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1] %}"
    "{% set content = content.split('</think>')[-1].strip('\n') %}{% endif %}"
    "{% if m.role == 'assistant' and loop.index0 > last.i %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{% endif %}{{ content }}"
    "{% for c in m.tool_calls %}{{ '<call>' + c.function.name }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and not "
    "enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}";

ChatMessage with_thought(const std::string& content, const std::string& thought) {
  return {.role = "assistant", .content = content, .reasoning_content = thought};
}

TEST_F(TokeniseAnswers, ThoughtsAreLearntWhereTheTemplateShowsThem) {
  const RowTokeniser t = with(kThinking);
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "2+2?"}, with_thought("Four.", "\ntwo, two\n")}))),
            "<think>\ntwo, two\n</think>\n\nFour.<|im_end|>");
  // The content may begin with the same words as the thought, and it may include the thought, as servers without a
  // reasoning parser return it.
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, with_thought("two", "two, two")}))),
            "<think>\ntwo, two\n</think>\n\ntwo<|im_end|>");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, {"assistant", "<think>\na\n</think>\n\nb"}}))),
            "<think>\na\n</think>\n\nb<|im_end|>");
  ChatMessage call = with_thought("", "hm");
  call.tool_calls = R"([{"function":{"name":"f","arguments":{}}}])";
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, call}))),
            "<think>\nhm\n</think>\n\n<call>f<|im_end|>");
  // White space at the end of an answer belongs to the answer.
  for (const std::string content : {"a ", "a\n", "a \n\n"})
    EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, with_thought(content, "hm")}))),
              "<think>\nhm\n</think>\n\n" + content + "<|im_end|>");
  // Text that the template adds at the end of a conversation is not learnt.
  const RowTokeniser closed = with(std::string(kThinking) + "{% if not add_generation_prompt %}{{ '<s>' }}{% endif %}");
  EXPECT_EQ(learnt_text(closed.tokenizer(), row(closed, chat({{"user", "u"}, with_thought("a", "hm")}))),
            "<think>\nhm\n</think>\n\na<|im_end|>");
  // The template no longer renders the earlier thought, so that turn differs from how it was served and is not learnt.
  const auto two = t.tokenise(chat({{"user", "u"}, with_thought("a", "hm"), {"user", "v"}, with_thought("b", "so")}));
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(two));
  EXPECT_EQ(std::get<TokenisedRow>(two).unlearnt_turns, 1);
  EXPECT_EQ(learnt_text(t.tokenizer(), std::get<TokenisedRow>(two).row), "<think>\nso\n</think>\n\nb<|im_end|>");
}

// The recorded token ids of an answer may differ from the tokens of its text, and may end with another token.
TEST_F(TokeniseAnswers, TokenIdsOfAChatsAnswerAreLearnt) {
  const RowTokeniser t = with(kThinking);
  const auto ids_of = [&](const std::string& text) { return t.tokenizer().encode(text, false); };
  TrafficRecord r = chat({{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "<think>\nhm</think>b"}});
  const std::string prompt = prompt_of(t.tokenizer(), row(t, r));
  r.token_ids = ids_of("<think>\nhm</think>b<s>");
  ASSERT_EQ(t.tokenizer().decode({r.token_ids.back()}, true), "") << "a special token ends the answer";
  const TokenRow made = row(t, r);
  EXPECT_EQ(learnt_text(t.tokenizer(), made), "<think>\nhm</think>b<s>");
  EXPECT_EQ(prompt_of(t.tokenizer(), made), prompt);
  EXPECT_EQ(std::vector<int32_t>(made.tokens.begin() + made.prompt_tokens, made.tokens.end()), r.token_ids);
  // Here the prompt contains the beginning of the answer. The model did not write that beginning, so it is not learnt.
  r.token_ids = ids_of("hm</think>b");
  const TokenRow begun = row(t, r);
  EXPECT_EQ(learnt_text(t.tokenizer(), begun), "hm</think>b");
  EXPECT_EQ(prompt_of(t.tokenizer(), begun), prompt + "<think>\n");
  // Token ids are not used if they decode to another text, or if the answer was split into thought and content.
  r.token_ids = ids_of("<think>\nhm</think>c<s>");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, r)), "<think>\nhm</think>b<|im_end|>");
  r.messages.back() = with_thought("b", "hm");
  r.token_ids = ids_of("b");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, r)), "<think>\nhm\n</think>\n\nb<|im_end|>");
}

// A model may repeat a line break until its token limit. With quadratic time this would take minutes.
TEST_F(TokeniseAnswers, MuchWhiteSpaceAtTheEndOfAnAnswerTakesLinearTime) {
  const RowTokeniser t = with(kThinking);
  const std::string content = "a" + std::string(1 << 19, '\n');
  EXPECT_TRUE(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, with_thought(content, "hm")}))) ==
              "<think>\nhm\n</think>\n\n" + content + "<|im_end|>");
}

TEST_F(TokeniseAnswers, AThoughtThatTheTemplateLeavesOutIsNotWhatTheModelWrote) {
  const RowTokeniser t = with(kChatMl);
  EXPECT_EQ(reason(t, chat({{"user", "u"}, with_thought("a", "hm")})), "thought_not_rendered");
  const auto earlier = t.tokenise(chat({{"user", "u"}, with_thought("a", "hm"), {"user", "v"}, {"assistant", "b"}}));
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(earlier));
  EXPECT_EQ(std::get<TokenisedRow>(earlier).unlearnt_turns, 1);
  EXPECT_EQ(learnt_text(t.tokenizer(), std::get<TokenisedRow>(earlier).row), "b<|im_end|>");
  // The text of a short thought may occur in the answer.
  EXPECT_EQ(reason(t, chat({{"user", "2+2?"}, with_thought("The answer is 4.", "4")})), "thought_not_rendered");
  // The text of a short thought may also occur in the template's text after the answer.
  EXPECT_EQ(reason(t, chat({{"user", "u"}, with_thought("a", "end")})), "thought_not_rendered");
}

TEST_F(TokeniseAnswers, OfACutAnswerNoEndIsLearnt) {
  TrafficRecord record = chat({{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "Once upon"}});
  const auto learnt = [&](const std::string& chat_template, const std::string& reason) {
    const RowTokeniser t = with(chat_template);
    record.finish_reason = reason;
    return learnt_text(t.tokenizer(), row(t, record));
  };
  for (const char* ended : {"", "stop"}) EXPECT_EQ(learnt(kChatMl, ended), "a<|im_end|>|Once upon<|im_end|>") << ended;
  for (const char* cut : {"length", "stop_string", "content_filter", "other"})
    EXPECT_EQ(learnt(kChatMl, cut), "a<|im_end|>|Once upon") << cut;
  // This template has no special tokens.
  EXPECT_EQ(learnt("{% for m in messages %}{{ m.role + ': ' + m.content + '\n###\n' }}{% endfor %}"
                   "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
                   "length"),
            "a\n###|Once upon");
}

// A template may add text to an answer (such as an empty thought) or change it. An answer that was cut off is learnt as
// the model wrote it.
TEST_F(TokeniseAnswers, ACutAnswerIsLearntAsItWasWritten) {
  const RowTokeniser t = with(kThinking);
  TrafficRecord record = chat({{"user", "u"}, {"assistant", "<think>\nfirst I"}});
  record.finish_reason = "length";
  TokenRow made = row(t, record);
  EXPECT_EQ(learnt_text(t.tokenizer(), made), "<think>\nfirst I");
  EXPECT_TRUE(prompt_of(t.tokenizer(), made).ends_with("assistant\n"));
  for (const char* content : {"Once upon", " Once\n", "<think>hm</think>Once"}) {
    record.messages.back().content = content;
    EXPECT_EQ(learnt_text(t.tokenizer(), row(t, record)), content);
  }
  // An answer with a separately logged thought was cut off within the thought or after it.
  record.messages.back() = with_thought("", "first I");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, record)), "<think>\nfirst I");
  record.messages.back() = with_thought("Once", "hm");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, record)), "<think>\nhm\n</think>\n\nOnce");
  // The generation prompt of this template ends with "<think>". Earlier answers are learnt if the prompt shows them as
  // they were written.
  std::string begins = kThinking;
  begins.replace(begins.rfind("'<|im_start|>assistant\n'"), std::string("'<|im_start|>assistant\n'").size(),
                 "'<|im_start|>assistant\n<think>\n'");
  const RowTokeniser b = with(begins);
  record.messages.back() = {"assistant", "first I"};
  made = row(b, record);
  EXPECT_EQ(learnt_text(b.tokenizer(), made), "first I");
  EXPECT_TRUE(prompt_of(b.tokenizer(), made).ends_with("assistant\n<think>\n"));
  record = chat({{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "b"}});
  record.finish_reason = "length";
  const RowTokeniser plain = with(kChatMl);
  EXPECT_EQ(learnt_text(plain.tokenizer(), row(plain, record)), "a<|im_end|>|b");
}

// This template removes every thought from a content, as the templates of DeepSeek-R1's distilled models do.
const char kForgetting[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}{{ '<call>' + c.function.name }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST_F(TokeniseAnswers, AnAnswerThatTheTemplateChangesIsLearntAsItWasWritten) {
  const std::string content = "<think>r</think>\n\nfoo";
  const RowTokeniser t = with(kForgetting);
  const TrafficRecord one = chat({{"user", "u"}, {"assistant", content}});
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, one)), content + "<|im_end|>");
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, chat({{"user", "u"}, {"assistant", content + "\n"}}))),
            content + "\n<|im_end|>");
  const RowTokeniser reshapes = with(kThinking);
  EXPECT_EQ(learnt_text(reshapes.tokenizer(), row(reshapes, one)), content + "<|im_end|>");
  const RowTokeniser closed =
      with(std::string(kForgetting) + "{% if not add_generation_prompt %}{{ '<s>' }}{% endif %}");
  EXPECT_EQ(learnt_text(closed.tokenizer(), row(closed, one)), content + "<|im_end|>");
  // The generation prompt of this template ends with "<think>".
  std::string begins = kForgetting;
  begins.replace(begins.rfind("assistant\n"), std::string("assistant\n").size(), "assistant\n<think>");
  const RowTokeniser b = with(begins);
  const TokenRow made = row(b, chat({{"user", "u"}, {"assistant", "r</think>\n\nfoo"}}));
  EXPECT_EQ(learnt_text(b.tokenizer(), made), "r</think>\n\nfoo<|im_end|>");
  EXPECT_TRUE(prompt_of(b.tokenizer(), made).ends_with("<think>"));
  // The earlier answer is rendered without its thought, which is not what the model wrote, so it is not learnt.
  const auto two = t.tokenise(chat({{"user", "u"}, {"assistant", content}, {"user", "v"}, {"assistant", content}}));
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(two));
  EXPECT_EQ(std::get<TokenisedRow>(two).unlearnt_turns, 1);
  EXPECT_EQ(learnt_text(t.tokenizer(), std::get<TokenisedRow>(two).row), content + "<|im_end|>");
  // Calls are learnt only in the template's rendering, so the thought must be in the rendering, too.
  ChatMessage call{"assistant", content, R"([{"function":{"name":"f","arguments":{}}}])"};
  EXPECT_EQ(reason(t, chat({{"user", "u"}, call})), "thought_not_rendered");
  EXPECT_EQ(learnt_text(reshapes.tokenizer(), row(reshapes, chat({{"user", "u"}, call}))),
            "<think>\nr\n</think>\n\nfoo<call>f<|im_end|>");
}

// Uses a tokenizer whose tokens have more than one character.
TEST_F(TokeniseAnswers, OfTheFamilyOfQwen3) {
  const RowTokeniser t(fs::path(source_folder()) / "tests/text/golden/families/qwen3");
  TrafficRecord record = chat({{"user", "u"}, {"assistant", ""}});
  const auto learnt = [&](const std::string& content, const std::string& reason) {
    record.messages.back().content = content;
    record.finish_reason = reason;
    const TokenRow made = row(t, record);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < made.tokens.size(); ++i)
      if (made.loss_mask[i]) ids.push_back(made.tokens[i]);
    return t.tokenizer().decode(ids, false);
  };
  const std::string cut = "<think>\nfirst I", whole = "<think>\nr\n</think>\n\nfoo", close = "<think>r</think>foo";
  for (const std::string& content : {cut, whole, close}) EXPECT_EQ(learnt(content, "length"), content);
  for (const std::string& content : {whole, close}) EXPECT_EQ(learnt(content, "stop"), content + "<|im_end|>");
}

// If the answer was cut within a call, its calls are not learnt: the rendering closes the call, so it does not show how
// much of it the model wrote.
TEST_F(TokeniseAnswers, CallsOfACutAnswerAreNotLearnt) {
  const std::string half = R"([{"function":{"name":"f","arguments":"{\"city\": \"Par"}}])";
  const RowTokeniser t = with(kThinking);
  TrafficRecord record = chat({{"user", "u"}, {"assistant", "so", half}});
  record.finish_reason = "length";
  const TokenRow made = row(t, record);
  EXPECT_EQ(learnt_text(t.tokenizer(), made), "so");
  EXPECT_TRUE(made.calls.empty());
  record.messages.back() = with_thought("", "hm");
  record.messages.back().tool_calls = half;
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, record)), "<think>\nhm");
  record.messages.back() = {"assistant", "", half};
  EXPECT_EQ(check_learnable(row(t, record))->reason, "no_loss_tokens");
  record.finish_reason = "stop";
  EXPECT_EQ(learnt_text(t.tokenizer(), row(t, record)), "<think>\n\n</think>\n\n<call>f<|im_end|>");
  // Earlier answers are still learnt.
  record = chat({{"user", "u"}, {"assistant", "a"}, {"user", "v"}, {"assistant", "\n", half}});
  record.finish_reason = "length";
  const RowTokeniser plain = with(kForgetting);
  const auto two = plain.tokenise(record);
  ASSERT_TRUE(std::holds_alternative<TokenisedRow>(two));
  EXPECT_EQ(std::get<TokenisedRow>(two).unlearnt_turns, 1);
  EXPECT_EQ(learnt_text(plain.tokenizer(), std::get<TokenisedRow>(two).row), "a<|im_end|>");
}

TEST_F(TokeniseAnswers, VariablesOfTheRequestReachTheTemplate) {
  const RowTokeniser t = with(kThinking);
  TrafficRecord record = chat({{"user", "u"}, {"assistant", "b"}});
  record.template_kwargs = R"({"enable_thinking":false})";
  const TokenRow r = row(t, record);
  EXPECT_EQ(learnt_text(t.tokenizer(), r), "b<|im_end|>") << "the empty thought was a part of the prompt";
  EXPECT_TRUE(prompt_of(t.tokenizer(), r).ends_with("<think>\n\n</think>\n\n"));
  record.template_kwargs = R"({"messages":[]})";
  EXPECT_EQ(reason(t, record), "template_error");
}

}  // namespace
}  // namespace specdec::data
