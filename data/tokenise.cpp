#include "data/tokenise.h"

#include <algorithm>

namespace specdec::data {

namespace {

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// End of what the model wrote in the turn that ends at `end`: the answer and its end-of-turn marker, not the line break that
// templates add for the next turn.
size_t end_of_turn(const std::string& rendered, size_t begin, size_t end, const std::string& content) {
  size_t last = end;
  while (last > begin && std::string_view(" \t\r\n").find(rendered[last - 1]) != std::string_view::npos) --last;
  // White space at the end of the answer itself belongs to it.
  const size_t at = rendered.rfind(content, end);
  return at != std::string::npos && at >= begin && at + content.size() <= end ? std::max(last, at + content.size()) : last;
}

}  // namespace

RowTokeniser::RowTokeniser(const std::filesystem::path& target) : tokenizer_(target), template_(text::ChatTemplate::load(target)) {}

std::vector<int32_t> RowTokeniser::with_bos(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer_.encode(text, false);
  if (tokenizer_.bos_id() >= 0) ids.insert(ids.begin(), tokenizer_.bos_id());
  return ids;
}

void RowTokeniser::tokenise_continuation(const std::string& prompt, const std::string& response, TokenRow& row) const {
  const std::vector<int32_t> head = with_bos(prompt);
  row.tokens = with_bos(prompt + response);
  // A token may straddle the border: it is the first one of the response then.
  const size_t border = common_prefix(head, row.tokens);
  row.loss_mask.assign(row.tokens.size(), 1);
  std::fill_n(row.loss_mask.begin(), std::min(std::max<size_t>(border, 1), row.tokens.size()), 0);
  row.prompt_tokens = static_cast<int64_t>(border);
}

std::optional<Rejected> RowTokeniser::tokenise_chat(const std::vector<ChatMessage>& messages, TokenRow& row) const {
  if (!template_)
    throw Error(ErrorKind::kData,
                "the target has no chat template, so chat rows cannot be tokenised: give prompt + completion or text rows, or add a "
                "chat_template to the target's tokenizer_config.json");
  const std::string full = template_->render(messages, false);
  row.tokens = tokenizer_.encode(full, false);
  row.loss_mask.assign(row.tokens.size(), 0);
  std::vector<ChatMessage> prefix;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") {
      prefix.push_back(messages[i]);
      continue;
    }
    const std::string where = "messages[" + std::to_string(i) + "]";
    const std::string before = template_->render(prefix, true);
    prefix.push_back(messages[i]);
    const std::string after = i + 1 == messages.size() ? full : template_->render(prefix, false);
    if (!after.starts_with(before) || !full.starts_with(after)) return Rejected{"template_not_prefix_stable", where};
    const size_t end = end_of_turn(full, before.size(), after.size(), messages[i].content);
    const size_t from = common_prefix(tokenizer_.encode(before, false), row.tokens);
    const size_t to = end == full.size() ? row.tokens.size() : common_prefix(tokenizer_.encode(full.substr(0, end), false), row.tokens);
    if (from < to) std::fill(row.loss_mask.begin() + from, row.loss_mask.begin() + to, 1);
    row.prompt_tokens = static_cast<int64_t>(from);
  }
  if (!row.loss_mask.empty()) row.loss_mask[0] = 0;  // nothing predicts the first token
  return {};
}

std::variant<TokenRow, Rejected> RowTokeniser::tokenise(const TrafficRecord& record) const {
  TokenRow row;
  row.id = record.id;
  row.conversation = record.conversation;
  row.domain = record.domain;
  row.has_sampling = record.sampling.has_value();
  if (record.sampling) row.sampling = *record.sampling;
  if (!record.messages.empty()) {
    std::optional<Rejected> why;
    try {
      why = tokenise_chat(record.messages, row);
    } catch (const Error& e) {
      // raise_exception's text and limits are the row's fault and may quote it; a missing template is everybody's.
      if (e.kind() != ErrorKind::kData || !template_) throw;
      why = Rejected{"template_error", ""};
    }
    if (why) return *why;
  } else if (!record.text.empty()) {
    row.tokens = with_bos(record.text);
    row.loss_mask.assign(row.tokens.size(), 1);
    if (!row.loss_mask.empty()) row.loss_mask[0] = 0;
    row.prompt_tokens = std::min<int64_t>(1 + kTextPromptTokens, static_cast<int64_t>(row.tokens.size()));
  } else {
    tokenise_continuation(record.prompt, record.response, row);
  }
  return row;
}

int64_t cut_row(TokenRow& row, int64_t max_length) {
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (max_length <= 0 || length <= max_length) return 0;
  row.tokens.resize(static_cast<size_t>(max_length));
  row.loss_mask.resize(static_cast<size_t>(max_length));
  row.prompt_tokens = std::min(row.prompt_tokens, max_length);
  return length - max_length;
}

std::optional<Rejected> check_learnable(const TokenRow& row) {
  if (row.tokens.size() < 2) return Rejected{"too_few_tokens", std::to_string(row.tokens.size())};
  if (std::find(row.loss_mask.begin(), row.loss_mask.end(), 1) == row.loss_mask.end()) return Rejected{"no_loss_tokens", ""};
  return {};
}

}  // namespace specdec::data
