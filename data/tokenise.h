// Converts a TrafficRecord to tokens and a loss mask. The tokens are those that the target sees when it is served.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "base/schema/shard_index.h"
#include "base/schema/traffic_record.h"
#include "data/formats/row_parser.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace specdec::data {

// For a row without a prompt, generations that measure acceptance take BOS and this many tokens of its text as the
// prompt.
inline constexpr int64_t kTextPromptTokens = 16;

// Bytes of text, of all messages and tools together, above which a row is rejected: about half a million tokens. The
// tokenizer takes up to 400 bytes of memory for each byte of text, and seconds for a megabyte.
inline constexpr size_t kMaxRowTextBytes = size_t{2} << 20;

struct TokenisedRow {
  TokenRow row;
  // Number of earlier answers that are not learnt, because the template renders them differently from how they were
  // served.
  int64_t unlearnt_turns = 0;
  bool answer_learnt = true;  // false: a chat whose last message is no answer, or one that is not learnt
};

class RowTokeniser {
 public:
  // Reads the tokenizer and, if they exist, the chat template and config.json's vocab_size. Throws Error(kModel).
  explicit RowTokeniser(const std::filesystem::path& target);

  bool has_chat_template() const { return template_.has_value(); }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

  // Returns the row, or why it is rejected. A token is learnt if its loss mask is 1. The row depends on the record's
  // form:
  // * text: BOS (if the tokenizer has one) + text, nothing appended; every token but the first is learnt.
  // * prompt + response: BOS + the tokens of both together, learnt from the first token that holds a character of the
  //   response. If the record's token ids decode to the two texts, the row consists of these ids instead, and all of
  //   token_ids is learnt, including the token that ended the answer.
  // * messages: the template's rendering, which includes the special tokens. Every assistant turn is learnt with its
  //   end-of-turn marker, but without white space or EOS after the marker. prompt_tokens is the number of tokens before
  //   the last answer. Throws Error(kData) if the target has no chat template.
  //
  // Turns of a chat that are not learnt:
  // * turns without any content, and turns that the log excludes from training (ChatMessage::unlearnt);
  // * turns before which the rendering differs from what the model read when it wrote the turn (some templates drop
  //   earlier thoughts), and turns with tool calls or a thought that the template does not render. If this concerns the
  //   last turn, the row is rejected.
  //
  // The last answer of a chat is learnt as it was logged, directly after its prompt, in these cases:
  // * It has no calls and no separate thought, and the record has token ids that decode to it: all these ids are
  //   learnt.
  // * It has no calls and no separate thought, and it was cut (TrafficRecord::answer_was_cut) or the template changes
  //   it. The text that the template puts after it is not learnt.
  // The calls of an answer that was cut are not learnt, because the log may lack a part of what the model wrote.
  //
  // Reasons for a rejection: too_long (kMaxRowTextBytes), template_error, template_not_prefix_stable,
  // unsupported_tool_calls, thought_not_rendered, and token_past_vocabulary for an id that the model does not have.
  std::variant<TokenisedRow, Rejected> tokenise(const TrafficRecord& record) const;

  // Tokenises a raw continuation: `row`'s tokens become BOS + tokens(prompt + response), masked as described above.
  void tokenise_continuation(const std::string& prompt, const std::string& response, TokenRow& row) const;

 private:
  // The parts of the request that the template gets besides the messages.
  struct Chat {
    const std::string& tools;
    Json kwargs;
  };
  // How an assistant turn ends: other messages follow (kContinued), or it is the row's answer, complete or cut.
  enum class Ending { kContinued, kWhole, kCut };
  // An assistant turn. `before` is the rendering of the messages before it, and `content` its content. `shown` is a
  // text in which the turn ends at position `end`; for the last turn, `shown` is the row's text. `other` is a text that
  // has the same turn but continues differently after it.
  struct Turn {
    std::string before, content, shown, other;
    size_t end = 0;
  };
  std::optional<Rejected> tokenise_chat(const TrafficRecord& record, TokenisedRow& out) const;
  const char* place_turn(const Chat& chat, const std::vector<ChatMessage>& messages, Ending ending, Turn& turn) const;
  static void place_written(Turn& turn, const std::string& ended, const std::string& continued);
  std::string text_after(const Chat& chat, std::vector<ChatMessage> messages, const std::string& before,
                         bool longer) const;
  std::string render(const Chat& chat, const std::vector<ChatMessage>& messages, bool prompt) const;
  std::string render_longer(const Chat& chat, const std::vector<ChatMessage>& messages) const;
  std::optional<size_t> calls_end(const Chat& chat, std::vector<ChatMessage> messages, const std::string& shown,
                                  bool longer) const;
  // The text before an answer whose token ids are recorded, and the tokens of that text.
  struct SpelledPrompt {
    std::string text;
    std::vector<int32_t> tokens;
  };
  std::string spelled(const std::vector<int32_t>& ids, const std::vector<int32_t>& context,
                      std::string_view answer) const;
  bool are_spelled(const TrafficRecord& record) const;
  std::optional<SpelledPrompt> prompt_of_spelled(const TrafficRecord& record, const Chat& chat) const;
  size_t end_of_turn(const Turn& turn, const std::vector<int32_t>& tokens, size_t from) const;
  std::vector<int32_t> with_bos(const std::string& text) const;

  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  int64_t vocab_size_ = INT32_MAX;  // from config.json; unlimited if there is none
};

// Keeps only the last answer of a row of messages in the loss, and nothing if it is not learnt.
void learn_last_answer(TokenisedRow& tokenised);
// Keeps the first max_length tokens (0 = all) and returns how many were dropped.
int64_t cut_row(TokenRow& row, int64_t max_length);
// Returns too_few_tokens (fewer than 2) or no_loss_tokens if the row has nothing to learn, and nothing otherwise.
std::optional<Rejected> check_learnable(const TokenRow& row);

}  // namespace specdec::data
