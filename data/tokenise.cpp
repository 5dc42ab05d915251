#include "data/tokenise.h"

#include <algorithm>

namespace specdec::data {

namespace {

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Returns the names of the functions that a turn calls.
std::vector<std::string> called_names(const std::string& tool_calls) {
  std::vector<std::string> names;
  for (const auto& call : parse_ordered_json(tool_calls, "tool_calls"))
    if (const auto function = call.find("function"); function != call.end() && function->is_object())
      if (const auto name = function->find("name"); name != function->end() && name->is_string())
        names.push_back(name->get<std::string>());
  return names;
}

constexpr std::string_view kAnswerBlank = " \t\r\n";

size_t common_suffix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
}

// Returns where the answer ends in `rendered`. Searches from `begin`, ignoring white space around the answer because
// templates trim it. Returns the end of `rendered` if the template changed the answer.
size_t end_of_answer(std::string_view rendered, size_t begin, std::string_view content) {
  const size_t first = content.find_first_not_of(kAnswerBlank);
  if (first == std::string_view::npos) return begin;
  const std::string_view trimmed = content.substr(first, content.find_last_not_of(kAnswerBlank) - first + 1);
  const size_t at = rendered.find(trimmed, begin);
  return at == std::string_view::npos ? rendered.size() : at + trimmed.size();
}

}  // namespace

RowTokeniser::RowTokeniser(const std::filesystem::path& target)
    : tokenizer_(target), template_(text::ChatTemplate::load(target)) {
  const std::filesystem::path file = target / "config.json";
  if (std::filesystem::exists(file))
    vocab_size_ = json_int(read_json(file, ErrorKind::kModel), "vocab_size",
                           {.low = 1, .high = INT32_MAX, .fallback = vocab_size_}, file.string(), ErrorKind::kModel);
}

std::vector<int32_t> RowTokeniser::with_bos(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer_.encode(text, false);
  if (tokenizer_.bos_id() >= 0) ids.insert(ids.begin(), tokenizer_.bos_id());
  return ids;
}

void RowTokeniser::tokenise_continuation(const std::string& prompt, const std::string& response, TokenRow& row) const {
  const std::vector<int32_t> head = with_bos(prompt);
  row.tokens = with_bos(prompt + response);
  // A token that straddles the border counts as the first token of the response.
  const size_t border = common_prefix(head, row.tokens);
  row.loss_mask.assign(row.tokens.size(), 1);
  std::fill_n(row.loss_mask.begin(), std::min(std::max<size_t>(border, 1), row.tokens.size()), 0);
  row.prompt_tokens = static_cast<int64_t>(border);
}

// Returns whether the record has token ids that spell its prompt and its response. They do not if another tokenizer
// made them, or if a stop string that ended the answer was left out of the response.
bool RowTokeniser::are_spelled(const TrafficRecord& record) const {
  if (record.token_ids.empty()) return false;
  const auto& ids = record.prompt_token_ids;
  if (tokenizer_.decode(ids, true) != record.prompt && tokenizer_.decode(ids, false) != record.prompt &&
      tokenizer_.encode(record.prompt, true) != ids)
    return false;
  text::IncrementalDecoder decoder(tokenizer_, ids);
  std::string text;
  for (const int32_t id : record.token_ids) text += decoder.push(id);
  return text + decoder.finish() == record.response;
}

// Returns the index after the turn's last token in `tokens`, which is where `tokens` first differs from the tokens of
// turn.other, a conversation that continues. Templates may close a conversation with EOS, but the model ended its turn
// before that EOS. White space that the template added after the turn is not the model's either.
size_t RowTokeniser::end_of_turn(const Turn& turn, const std::vector<int32_t>& tokens, size_t from) const {
  size_t end = common_prefix(tokenizer_.encode(turn.other, false), tokens);
  size_t floor = from;
  if (!turn.content.empty() && is_blank(turn.content.substr(turn.content.size() - 1)))
    floor = std::max(floor, common_prefix(tokenizer_.encode(turn.before + turn.content, false), tokens));
  while (end > floor && is_blank(tokenizer_.decode({tokens[end - 1]}, false))) --end;
  return end;
}

std::optional<Rejected> RowTokeniser::tokenise_chat(const std::vector<ChatMessage>& messages, const std::string& tools,
                                                    TokenisedRow& out) const {
  if (!template_)
    throw Error(ErrorKind::kData,
                "the target has no chat template, so chat rows cannot be tokenised: give prompt + completion or text "
                "rows, or add a "
                "chat_template to the target's tokenizer_config.json");
  TokenRow& row = out.row;
  const auto render = [&](const std::vector<ChatMessage>& some, bool prompt) {
    return template_->render(some, prompt, Json::object(), tools);
  };
  const std::string full = render(messages, false);
  row.tokens = tokenizer_.encode(full, false);
  row.loss_mask.assign(row.tokens.size(), 0);
  std::vector<ChatMessage> prefix;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") {
      prefix.push_back(messages[i]);
      continue;
    }
    const bool last = i + 1 == messages.size();
    const std::string before = render(prefix, true);
    prefix.push_back(messages[i]);
    const Turn turn{before, messages[i].content, last ? render_longer(prefix, tools) : render(prefix, false)};
    const std::string& shown = last ? full : turn.other;
    const std::optional<size_t> end_of_calls = calls_end(prefix, shown, tools);
    if (!end_of_calls && last)
      return Rejected{"unsupported_tool_calls",
                      "messages[" + std::to_string(i) + "]: the target's chat template does not render them all"};
    // True if `full` and turn.other agree up to the end of the answer. If not, the template renders a last turn in a
    // special way: the answer of the last turn is then the whole rest of `full`, and an earlier turn is not rendered as
    // it was served.
    const bool parts_after_answer =
        common_prefix(turn.other, full) >=
        std::max(end_of_answer(shown, before.size(), turn.content), end_of_calls.value_or(0));
    const bool as_served = end_of_calls && full.starts_with(before) && (last || parts_after_answer);
    if (!as_served && last) return Rejected{"template_not_prefix_stable", "messages[" + std::to_string(i) + "]"};
    if (!as_served) {
      ++out.unlearnt_turns;
      continue;
    }
    const size_t from = common_prefix(tokenizer_.encode(before, false), row.tokens);
    const size_t to = parts_after_answer ? end_of_turn(turn, row.tokens, from) : row.tokens.size();
    if (from < to)
      std::fill(row.loss_mask.begin() + static_cast<std::ptrdiff_t>(from),
                row.loss_mask.begin() + static_cast<std::ptrdiff_t>(to), 1);
    row.prompt_tokens = static_cast<int64_t>(from);
    if (from < to && !messages[i].tool_calls.empty())
      row.calls.push_back({row.prompt_tokens, called_names(messages[i].tool_calls)});
  }
  if (!row.loss_mask.empty()) row.loss_mask[0] = 0;  // nothing predicts the first token
  return {};
}

// Renders the messages with one more user message after them, or without it if the template refuses it.
std::string RowTokeniser::render_longer(const std::vector<ChatMessage>& messages, const std::string& tools) const {
  std::vector<ChatMessage> longer = messages;
  longer.push_back({"user", "?"});
  try {
    return template_->render(longer, false, Json::object(), tools);
  } catch (const Error&) {
    return template_->render(messages, false, Json::object(), tools);
  }
}

// Returns where the tool calls of messages.back() end in `shown`, the rendering of `messages`; 0 if it has no calls.
// Returns nothing if the template ignores the calls, or all but the first one, because the text is then not what the
// model wrote.
std::optional<size_t> RowTokeniser::calls_end(std::vector<ChatMessage> messages, const std::string& shown,
                                              const std::string& tools) const {
  if (messages.back().tool_calls.empty()) return 0;
  auto calls = parse_ordered_json(messages.back().tool_calls, "tool_calls");
  const auto parts_from_shown = [&](const std::string& fewer) -> std::optional<size_t> {
    messages.back().tool_calls = fewer;
    try {
      const std::string without = template_->render(messages, false, Json::object(), tools);
      return without == shown ? std::nullopt : std::optional(shown.size() - common_suffix(shown, without));
    } catch (const Error&) {  // The template refuses the turn without its calls, so it does read them.
      return shown.size();
    }
  };
  calls.erase(calls.size() - 1);
  if (!calls.empty() && !parts_from_shown(calls.dump())) return {};
  return parts_from_shown("");
}

std::variant<TokenisedRow, Rejected> RowTokeniser::tokenise(const TrafficRecord& record) const {
  TokenisedRow out;
  TokenRow& row = out.row;
  row.id = record.id;
  row.conversation = record.conversation;
  row.domain = record.domain;
  row.has_sampling = record.sampling.has_value();
  if (record.sampling) row.sampling = *record.sampling;
  if (!record.messages.empty()) {
    std::optional<Rejected> why;
    try {
      why = tokenise_chat(record.messages, record.tools, out);
    } catch (const Error& e) {
      // If the template calls raise_exception or exceeds a limit, only this row is rejected, without the message, which
      // may quote the row. A missing template affects all rows, so that error is thrown.
      if (e.kind() != ErrorKind::kData || !template_) throw;
      why = Rejected{"template_error", ""};
    }
    if (why) return *why;
  } else if (!record.text.empty()) {
    row.tokens = with_bos(record.text);
    row.loss_mask.assign(row.tokens.size(), 1);
    if (!row.loss_mask.empty()) row.loss_mask[0] = 0;
    row.prompt_tokens = std::min<int64_t>(1 + kTextPromptTokens, static_cast<int64_t>(row.tokens.size()));
  } else if (are_spelled(record)) {
    row.tokens = record.prompt_token_ids;
    row.tokens.insert(row.tokens.end(), record.token_ids.begin(), record.token_ids.end());
    row.prompt_tokens = static_cast<int64_t>(record.prompt_token_ids.size());
    row.loss_mask.assign(row.tokens.size(), 1);
    std::fill_n(row.loss_mask.begin(), row.prompt_tokens, 0);
  } else {
    tokenise_continuation(record.prompt, record.response, row);
  }
  // The tokenizer may have added tokens that the model has no embedding for, and the text of a row may contain them.
  for (const int32_t id : row.tokens)
    if (id >= vocab_size_)
      return Rejected{"token_past_vocabulary",
                      "token id " + std::to_string(id) + ", the model has " + std::to_string(vocab_size_)};
  return out;
}

int64_t cut_row(TokenRow& row, int64_t max_length) {
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (max_length <= 0 || length <= max_length) return 0;
  row.tokens.resize(static_cast<size_t>(max_length));
  row.loss_mask.resize(static_cast<size_t>(max_length));
  row.prompt_tokens = std::min(row.prompt_tokens, max_length);
  std::erase_if(row.calls, [&](const TurnCalls& turn) { return turn.begin >= max_length; });
  return length - max_length;
}

std::optional<Rejected> check_learnable(const TokenRow& row) {
  if (row.tokens.size() < 2) return Rejected{"too_few_tokens", std::to_string(row.tokens.size())};
  if (std::find(row.loss_mask.begin(), row.loss_mask.end(), 1) == row.loss_mask.end())
    return Rejected{"no_loss_tokens", ""};
  return {};
}

}  // namespace specdec::data
