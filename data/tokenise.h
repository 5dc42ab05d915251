// TrafficRecord → tokens and loss mask, as the target will see them when it is served.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "base/schema/shard_index.h"
#include "base/schema/traffic_record.h"
#include "data/row_parser.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace specdec::data {

// Tokens of a roll-out's prompt where the row has no prompt of its own: BOS and this many.
inline constexpr int64_t kTextPromptTokens = 16;

struct TokenisedRow {
  TokenRow row;
  int64_t unlearnt_turns = 0;  // earlier answers that the template renders otherwise than they were served: mask 0
};

class RowTokeniser {
 public:
  // Reads the tokenizer and, where there are such, the chat template and config.json's vocab_size. Throws
  // Error(kModel).
  explicit RowTokeniser(const std::filesystem::path& target);

  bool has_chat_template() const { return template_.has_value(); }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

  // text: BOS (if the tokenizer has one) + text, nothing appended; every token but the first is learnt.
  // prompt + response: BOS + the tokens of both together; learnt from the first token that holds a character of the
  // response. messages: the rendered template (special tokens are the template's business); every assistant turn is
  // learnt up to its end-of-turn marker; white space or EOS that the template adds after it is not. prompt_tokens =
  // tokens before the last answer. A turn counts only if the text before it is what the model was given then: templates
  // that rewrite history (dropped thoughts) make earlier turns unlearnt, and reject the row if it is the last one. A
  // turn with tool calls that the template does not render is unlearnt, too, and rejects the row if it is the last one.
  // Rejected: template_error, template_not_prefix_stable, unsupported_tool_calls; token_past_vocabulary for an id the
  // model lacks. Throws Error(kData) for messages when the target has no chat template.
  std::variant<TokenisedRow, Rejected> tokenise(const TrafficRecord& record) const;

  // Raw continuation: `row`'s tokens become BOS + tokens(prompt + response), masked as above.
  void tokenise_continuation(const std::string& prompt, const std::string& response, TokenRow& row) const;

 private:
  // `other`: the rendering that shares the turn with the row's text and parts from it after the turn.
  struct Turn {
    std::string before, content, other;
  };
  std::optional<Rejected> tokenise_chat(const std::vector<ChatMessage>& messages, const std::string& tools,
                                        TokenisedRow& out) const;
  std::string render_longer(const std::vector<ChatMessage>& messages, const std::string& tools) const;
  std::optional<size_t> calls_end(std::vector<ChatMessage> messages, const std::string& shown,
                                  const std::string& tools) const;
  size_t end_of_turn(const Turn& turn, const std::vector<int32_t>& tokens, size_t from) const;
  std::vector<int32_t> with_bos(const std::string& text) const;

  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  int64_t vocab_size_ = INT32_MAX;  // of config.json; no bound without one
};

// Keeps the first max_length tokens; returns how many were dropped. 0 = no cut.
int64_t cut_row(TokenRow& row, int64_t max_length);
// Refuses rows from which nothing can be learnt: too_few_tokens (fewer than 2), no_loss_tokens.
std::optional<Rejected> check_learnable(const TokenRow& row);

}  // namespace specdec::data
