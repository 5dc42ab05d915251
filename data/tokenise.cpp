#include "data/tokenise.h"

#include <algorithm>
#include <set>

#include "data/formats/blank.h"
#include "data/formats/row_parser.h"

namespace specdec::data {

namespace {

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

size_t text_bytes(const TrafficRecord& record) {
  size_t bytes = record.tools.size();
  each_text(record, [&bytes](const std::string& text) { bytes += text.size(); });
  return bytes;
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

// The reason code of turns that are rendered but not learnt. Such a turn does not reject the row.
constexpr const char kNotToLearn[] = "not_to_learn";

// Returns false for a turn that the log says not to learn, and for an empty turn, which no model wrote. The calls of a
// truncated turn do not count, because the log does not say how much of them the model wrote.
bool may_be_learnt(const ChatMessage& m, bool cut) {
  return !m.unlearnt && !(is_blank(m.content) && (m.tool_calls.empty() || cut) && m.reasoning_content.empty());
}

// A placeholder answer, rendered only to see the text that the template puts after an answer.
constexpr std::string_view kSomeAnswer = "An answer";

size_t common_suffix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
}

// Returns the end position of `text` in `rendered`, or nothing if it does not occur. Searches from `begin` on, ignoring
// white space around the text because templates trim it. For a blank text, returns `begin`.
std::optional<size_t> end_of_text(std::string_view rendered, size_t begin, std::string_view text) {
  const std::string_view part = trimmed(text);
  if (part.empty()) return begin;
  const size_t at = rendered.find(part, begin);
  return at == std::string_view::npos ? std::nullopt : std::optional(at + part.size());
}

constexpr std::string_view kThoughtEnd = "</think>";

// Returns the thought inside a content, "" if there is none. "<think>" may be missing, because the prompt may contain
// it.
std::string_view thought_in(std::string_view content) {
  constexpr std::string_view kBegin = "<think>";
  const size_t end = content.find(kThoughtEnd);
  if (end == std::string_view::npos) return {};
  const size_t begin = content.substr(0, end).find(kBegin);
  const size_t from = begin == std::string_view::npos ? 0 : begin + kBegin.size();
  return content.substr(from, end - from);
}

// Returns the length of the longest text that is both the end of `whole` and the beginning of `after`.
size_t overlap(std::string_view whole, std::string_view after) {
  size_t length = std::min(whole.size(), after.size());
  while (length > 0 && !whole.ends_with(after.substr(0, length))) --length;
  return length;
}

// Returns how many characters of white space at the beginning of `text` belong to the answer and not to `after`, the
// text that the template puts after an answer.
size_t blanks_before(std::string_view text, std::string_view after) {
  const size_t blanks = std::min(text.find_first_not_of(kBlank), text.size());
  size_t best = 0;
  for (size_t k = 1; k <= blanks; ++k)
    if (common_prefix(text.substr(k), after) > common_prefix(text.substr(best), after)) best = k;
  return best;
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
  // A token that spans the end of the prompt and the beginning of the response counts as the response's first token.
  const size_t border = common_prefix(head, row.tokens);
  row.loss_mask.assign(row.tokens.size(), 1);
  std::fill_n(row.loss_mask.begin(), std::min(std::max<size_t>(border, 1), row.tokens.size()), 0);
  row.prompt_tokens = static_cast<int64_t>(border);
}

// Decodes the ids as the continuation of the tokens in `context`. Shows only those special tokens whose text occurs in
// `answer`.
std::string RowTokeniser::spelled(const std::vector<int32_t>& ids, const std::vector<int32_t>& context,
                                  std::string_view answer) const {
  std::vector<int32_t> shown;
  for (const int32_t id : std::set<int32_t>(ids.begin(), ids.end()))
    if (tokenizer_.decode({id}, true).empty() && answer.find(tokenizer_.id_to_token(id)) != std::string_view::npos)
      shown.push_back(id);
  text::IncrementalDecoder decoder(tokenizer_, context, std::move(shown));
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

// Returns whether the record's token ids decode to its prompt and its response. They do not if they come from another
// tokenizer, or if a stop string ended the answer and the logged response lacks the stop string.
bool RowTokeniser::are_spelled(const TrafficRecord& record) const {
  if (record.token_ids.empty()) return false;
  const auto& ids = record.prompt_token_ids;
  if (tokenizer_.decode(ids, true) != record.prompt && tokenizer_.decode(ids, false) != record.prompt &&
      tokenizer_.encode(record.prompt, true) != ids)
    return false;
  return spelled(record.token_ids, ids, record.response) == record.response;
}

// If the record's token ids decode to a chat's answer, returns the prompt before the answer; else returns nothing. The
// answer may begin with text that the server inserted and the model did not write, such as the beginning of a call that
// the request demanded. Such text then counts as the end of the prompt.
std::optional<RowTokeniser::SpelledPrompt> RowTokeniser::prompt_of_spelled(const TrafficRecord& record,
                                                                           const Chat& chat) const {
  const ChatMessage& answer = record.messages.back();
  if (record.token_ids.empty() || !answer.tool_calls.empty() || !answer.reasoning_content.empty()) return {};
  SpelledPrompt prompt{render(chat, {record.messages.begin(), record.messages.end() - 1}, true), {}};
  prompt.tokens = tokenizer_.encode(prompt.text, false);
  std::string text = spelled(record.token_ids, prompt.tokens, answer.content);
  if (text != answer.content && !text.empty() && answer.content.ends_with(text)) {
    const std::string begun = answer.content.substr(0, answer.content.size() - text.size());
    prompt.text += begun;
    prompt.tokens = tokenizer_.encode(prompt.text, false);
    text = begun + spelled(record.token_ids, prompt.tokens, answer.content);
  }
  return text == answer.content ? std::optional(std::move(prompt)) : std::nullopt;
}

// Returns the index in `tokens` after the turn's last token. turn.other has the same turn but continues differently, so
// the turn ends where the two token lists first differ. EOS and white space that the template adds after the turn are
// left out.
size_t RowTokeniser::end_of_turn(const Turn& turn, const std::vector<int32_t>& tokens, size_t from) const {
  size_t end = common_prefix(tokenizer_.encode(turn.other, false), tokens);
  size_t floor = from;
  if (!turn.content.empty() && is_blank(turn.content.substr(turn.content.size() - 1)))
    floor = std::max(floor, common_prefix(tokenizer_.encode(turn.before + turn.content, false), tokens));
  while (end > floor && is_blank(tokenizer_.decode({tokens[end - 1]}, false))) --end;
  return end;
}

// Places the content of a last turn directly after its prompt, as the model wrote it. `ended` is the text that the
// template puts after the turn in this row, `continued` the text that it would put there if the conversation went on.
void RowTokeniser::place_written(Turn& turn, const std::string& ended, const std::string& continued) {
  const std::string written = turn.before + turn.content;
  turn.shown = written + ended;
  turn.other = written + continued;
  turn.end = written.size();
}

std::optional<Rejected> RowTokeniser::tokenise_chat(const TrafficRecord& record, TokenisedRow& out) const {
  if (!template_)
    throw Error(ErrorKind::kData,
                "the target has no chat template, so chat rows cannot be tokenised: give prompt + completion or text "
                "rows, or add a "
                "chat_template to the target's tokenizer_config.json");
  const Chat chat{record.tools, record.template_kwargs.empty()
                                    ? Json::object()
                                    : parse_json(record.template_kwargs, "template_kwargs", ErrorKind::kData)};
  std::vector<ChatMessage> messages = record.messages;
  const bool ends_in_answer = messages.back().role == "assistant";
  const bool cut = ends_in_answer && record.answer_was_cut();
  Turn answer;
  const char* answer_why = kNotToLearn;
  std::optional<SpelledPrompt> prompt;
  if (ends_in_answer && may_be_learnt(messages.back(), cut)) {
    if (cut) messages.back().tool_calls.clear();
    prompt = prompt_of_spelled(record, chat);
    answer_why = prompt ? nullptr : place_turn(chat, messages, cut ? Ending::kCut : Ending::kWhole, answer);
  }
  TokenRow& row = out.row;
  const std::string full = prompt ? prompt->text : answer_why ? render(chat, messages, false) : answer.shown;
  row.tokens = prompt ? prompt->tokens : tokenizer_.encode(full, false);
  row.loss_mask.assign(row.tokens.size(), 0);
  out.answer_learnt = false;
  std::vector<ChatMessage> prefix;
  for (size_t i = 0; i < messages.size(); ++i) {
    prefix.push_back(messages[i]);
    if (messages[i].role != "assistant") continue;
    const bool last = i + 1 == messages.size();
    if (last && prompt) {
      row.prompt_tokens = static_cast<int64_t>(row.tokens.size());
      row.tokens.insert(row.tokens.end(), record.token_ids.begin(), record.token_ids.end());
      row.loss_mask.resize(row.tokens.size(), 1);
      out.answer_learnt = true;
      break;
    }
    Turn turn;
    const char* why = answer_why;
    if (last)
      turn = answer;
    else
      why = may_be_learnt(messages[i], false) ? place_turn(chat, prefix, Ending::kContinued, turn) : kNotToLearn;
    if (!why && !(full.starts_with(turn.before) && common_prefix(turn.shown, full) >= turn.end))
      why = "template_not_prefix_stable";
    if (why && last && why != kNotToLearn)
      return Rejected{why,
                      "messages[" + std::to_string(i) + "]: the target's chat template does not render it as given"};
    if (why) {
      ++out.unlearnt_turns;
      continue;
    }
    const size_t from = common_prefix(tokenizer_.encode(turn.before, false), row.tokens);
    const size_t to = last && cut ? common_prefix(tokenizer_.encode(full.substr(0, turn.end), false), row.tokens)
                                  : end_of_turn(turn, row.tokens, from);
    if (from < to)
      std::fill(row.loss_mask.begin() + static_cast<std::ptrdiff_t>(from),
                row.loss_mask.begin() + static_cast<std::ptrdiff_t>(to), 1);
    row.prompt_tokens = static_cast<int64_t>(from);
    out.answer_learnt = last && from < to;
    if (from < to && !messages[i].tool_calls.empty())
      row.calls.push_back({row.prompt_tokens, called_names(messages[i].tool_calls)});
  }
  if (!row.loss_mask.empty()) row.loss_mask[0] = 0;  // no position predicts the first token
  return {};
}

// Finds where the assistant turn messages.back() is in a text that shows the turn as the model wrote it, and stores the
// text and the position in `turn`. Usually this text is the template's rendering. If the turn is the last one and was
// cut, or the template changes its content, the text is the prompt followed by the content. Returns the reason why the
// turn must not be learnt, or null.
const char* RowTokeniser::place_turn(const Chat& chat, const std::vector<ChatMessage>& messages, Ending ending,
                                     Turn& turn) const {
  const ChatMessage& answer = messages.back();
  const bool last = ending != Ending::kContinued;
  turn.before = render(chat, {messages.begin(), messages.end() - 1}, true);
  turn.content = answer.content;
  const bool only_content = last && answer.tool_calls.empty() && answer.reasoning_content.empty();
  if (only_content && ending == Ending::kCut) {
    place_written(turn, "", "");
    return nullptr;
  }
  turn.shown = render(chat, messages, false);
  turn.other = last ? render_longer(chat, messages) : turn.shown;
  const size_t begin = turn.before.size();
  const std::optional<size_t> calls = calls_end(chat, messages, turn.shown, false),
                              thought = end_of_text(turn.shown, begin, answer.reasoning_content);
  if (!calls) return "unsupported_tool_calls";
  if (!thought) return "thought_not_rendered";
  const std::optional<size_t> content = end_of_text(turn.shown, *thought, answer.content);
  // The template changes this content, so the turn is placed as the model wrote it. But if the prompt ends with
  // "<think>" and the content does not close the thought, the log has left the thought out, and the turn is not as the
  // model wrote it.
  if (!content && only_content &&
      (turn.shown.starts_with(turn.before) || answer.content.find(kThoughtEnd) != std::string::npos)) {
    place_written(turn, text_after(chat, messages, turn.before, false), text_after(chat, messages, turn.before, true));
    return nullptr;
  }
  // The text of a short thought may also occur in the answer; the search for the content then began too late. The turn
  // is refused if the content is found from the turn's beginning, or if the thought inside the content is not rendered.
  if (!content &&
      (end_of_text(turn.shown, begin, answer.content) || !end_of_text(turn.shown, begin, thought_in(answer.content))))
    return "thought_not_rendered";
  turn.end = std::max(content.value_or(turn.shown.size()), *calls);
  const bool is_continued = common_prefix(turn.other, turn.shown) >= turn.end;
  if (!last || (is_continued && content)) return nullptr;
  if (ending == Ending::kCut && is_blank(answer.content)) return nullptr;  // the cut may be within the thought
  // The template renders a last turn in a special way, or changes the answer. The text after an answer does not depend
  // on the answer, so it is taken from a placeholder answer.
  const std::string after = text_after(chat, messages, turn.before, true);
  if (turn.end == turn.shown.size()) turn.end -= overlap(turn.shown, after);
  turn.end += blanks_before(std::string_view(turn.shown).substr(turn.end), after);
  turn.other = turn.shown.substr(0, turn.end) + after;
  return nullptr;
}

// Returns the text that the template puts after messages.back(), an assistant turn. If `longer`, the conversation
// continues after the turn; otherwise it ends there. Returns "" if the rendering does not show where the turn ends.
// `before` is the rendering before the turn.
std::string RowTokeniser::text_after(const Chat& chat, std::vector<ChatMessage> messages, const std::string& before,
                                     bool longer) const {
  const auto shown = [&] { return longer ? render_longer(chat, messages) : render(chat, messages, false); };
  if (!messages.back().tool_calls.empty()) {
    const std::string other = shown();
    return other.substr(calls_end(chat, messages, other, longer).value_or(other.size()));
  }
  messages.back().content = kSomeAnswer;
  messages.back().reasoning_content.clear();
  const std::string other = shown();
  return other.substr(end_of_text(other, common_prefix(before, other), kSomeAnswer).value_or(other.size()));
}

std::string RowTokeniser::render(const Chat& chat, const std::vector<ChatMessage>& messages, bool prompt) const {
  return template_->render(messages, prompt, chat.kwargs, chat.tools);
}

// Renders the messages followed by one more user message. If the template refuses that message, renders them without
// it.
std::string RowTokeniser::render_longer(const Chat& chat, const std::vector<ChatMessage>& messages) const {
  std::vector<ChatMessage> longer = messages;
  longer.push_back({"user", "?"});
  try {
    return render(chat, longer, false);
  } catch (const Error&) {
    return render(chat, messages, false);
  }
}

// Returns where the tool calls of messages.back() end in `shown`, or 0 if there are no calls. `shown` is the rendering
// of `messages`, or, if `longer`, of a conversation that continues after them. Returns nothing if the template ignores
// all calls, or all but the first one, because the text is then not what the model wrote.
std::optional<size_t> RowTokeniser::calls_end(const Chat& chat, std::vector<ChatMessage> messages,
                                              const std::string& shown, bool longer) const {
  if (messages.back().tool_calls.empty()) return 0;
  auto calls = parse_ordered_json(messages.back().tool_calls, "tool_calls");
  const auto parts_from_shown = [&](const std::string& fewer) -> std::optional<size_t> {
    messages.back().tool_calls = fewer;
    try {
      const std::string without = longer ? render_longer(chat, messages) : render(chat, messages, false);
      return without == shown ? std::nullopt : std::optional(shown.size() - common_suffix(shown, without));
    } catch (const Error&) {  // the template refuses the turn without its calls, so it does read the calls
      return shown.size();
    }
  };
  calls.erase(calls.size() - 1);
  if (!calls.empty() && !parts_from_shown(calls.dump())) return {};
  return parts_from_shown("");
}

std::variant<TokenisedRow, Rejected> RowTokeniser::tokenise(const TrafficRecord& record) const {
  if (const size_t bytes = text_bytes(record); bytes > kMaxRowTextBytes)
    return Rejected{"too_long", std::to_string(bytes) + " bytes of text, at most " + std::to_string(kMaxRowTextBytes) +
                                    " in a row: plain text can be split by --separator"};
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
      why = tokenise_chat(record, out);
    } catch (const text::TemplateError& e) {
      // If the template calls raise_exception or exceeds a limit, only this row is rejected, without the message, which
      // may quote the row.
      why = Rejected{"template_error", e.place()};
    } catch (const Error& e) {
      // A missing template affects all rows, so that error is thrown.
      if (e.kind() != ErrorKind::kData || !template_) throw;
      why = Rejected{"template_error", "tools or tool_calls: not the JSON that a template is given"};
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
  // The tokenizer may have added tokens without an embedding in the model; a row that contains one is rejected.
  for (const int32_t id : row.tokens)
    if (id >= vocab_size_)
      return Rejected{"token_past_vocabulary",
                      "token id " + std::to_string(id) + ", the model has " + std::to_string(vocab_size_)};
  return out;
}

void learn_last_answer(TokenisedRow& tokenised) {
  TokenRow& row = tokenised.row;
  const auto earlier = tokenised.answer_learnt ? row.prompt_tokens : static_cast<int64_t>(row.loss_mask.size());
  std::fill_n(row.loss_mask.begin(), earlier, 0);
  std::erase_if(row.calls, [&](const TurnCalls& turn) { return turn.begin < row.prompt_tokens; });
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
