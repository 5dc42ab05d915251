// Functions of Api that make token ids: rendered conversations, texts of any length, truncated prompts, a request's
// sampling rules, /tokenize and /detokenize.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "deploy/serve/api/api.h"
#include "deploy/serve/request/token_rules.h"

namespace specdec::deploy {

namespace {

// Bytes per token that are assumed when only the beginning of a very long text is encoded; most texts have fewer.
constexpr size_t kProbedBytesPerToken = 8;
// Bytes that one token takes in the reply of /tokenize, in addition to its text.
constexpr size_t kListedTokenBytes = 32;

}  // namespace

size_t Api::content_bytes(const std::vector<ChatMessage>& messages) {
  size_t bytes = 0;
  for (const ChatMessage& message : messages)
    bytes += message.content.size() + message.tool_calls.size() + message.reasoning_content.size() +
             message.tool_call_id.size() + message.name.size();
  return bytes;
}

// Returns the tokens of a text, or none if they do not fit the context. A far too long text is refused after encoding
// only its beginning: the beginning must not have more than 2 × context + longest_token_bytes_ tokens. The term
// longest_token_bytes_ is a margin: the beginning may end inside a token, and then each byte of this token may become a
// token of its own.
std::optional<std::vector<int32_t>> Api::encode(std::string_view text, bool add_special) const {
  const auto most = static_cast<size_t>(model_.max_context);
  if (text.size() / longest_token_bytes_ > most) return std::nullopt;
  const size_t piece = kProbedBytesPerToken * (most + longest_token_bytes_);
  if (text.size() > 2 * piece) {
    size_t end = piece;
    while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // ends between two UTF-8 characters
    if (model_.tokenizer->encode(text.substr(0, end), false).size() > 2 * most + longest_token_bytes_)
      return std::nullopt;
  }
  std::vector<int32_t> tokens = model_.tokenizer->encode(text, add_special);
  if (tokens.size() >= most) return std::nullopt;
  return tokens;
}

// Returns the size limit in bytes of a text for encode_long(). The limit is at least the size up to which encode()
// encodes a text without encoding its beginning first.
size_t Api::longest_text() const {
  return std::max(limits_.long_text_bytes,
                  2 * kProbedBytesPerToken * (static_cast<size_t>(model_.max_context) + longest_token_bytes_));
}

// Returns the tokens of a text, however many there are, or none if the text has more than longest_text() bytes.
std::optional<std::vector<int32_t>> Api::encode_long(std::string_view text, bool add_special) const {
  if (text.size() > longest_text()) return std::nullopt;
  return model_.tokenizer->encode(text, add_special);
}

// Sets `kept` to the number of prompt tokens that truncate_prompt_tokens asks for. Returns an error if this many tokens
// leave no room for the answer. Does not change `kept` if the request does not ask for truncation.
std::optional<ApiError> Api::kept_tokens(const ApiRequest& parsed, size_t& kept) const {
  if (!parsed.truncate_prompt_tokens) return std::nullopt;
  const auto room = [this](int64_t answer) {
    return std::max<int64_t>(1, model_.max_context - std::max<int64_t>(1, answer));
  };
  const auto fallback = static_cast<int64_t>(request_number(parsed.endpoint, "max_tokens").fallback.value_or(1));
  const int64_t asked = *parsed.truncate_prompt_tokens, most = room(parsed.max_tokens.value_or(1));
  if (asked > most)
    return invalid_parameter("truncate_prompt_tokens", "-1, or at most " + std::to_string(most) +
                                                           ": the context less " +
                                                           (parsed.max_tokens ? parsed.max_tokens_param : "one"));
  kept = static_cast<size_t>(asked < 0 ? room(parsed.max_tokens.value_or(fallback)) : asked);
  return std::nullopt;
}

// Drops tokens until at most `kept` are left, and returns whether any were dropped. The last tokens are kept. If
// special tokens were added, the tokens that the tokenizer puts before every text (BOS) are kept as well; they count
// towards `kept`.
bool Api::keep_last(std::vector<int32_t>& tokens, size_t kept, bool added_special) const {
  if (tokens.size() <= kept) return false;
  size_t first = 0;
  if (added_special) {
    const std::vector<int32_t> around = model_.tokenizer->encode("", true);
    while (first < std::min(around.size(), kept) && tokens[first] == around[first]) ++first;
  }
  tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(first), tokens.end() - static_cast<ptrdiff_t>(kept - first));
  tokens.shrink_to_fit();  // frees memory, because only the kept tokens are charged to the budget
  return true;
}

// Returns whether all of these tokens are in the model's vocabulary.
bool Api::knows(std::span<const int32_t> ids) const {
  return std::all_of(ids.begin(), ids.end(), [this](int32_t id) { return id < model_.vocab_size; });
}

// Renders a conversation, or returns the refusal. `id` is the request's id, for the log.
std::variant<std::string, ApiError> Api::render(const ChatFields& chat, bool add_generation_prompt,
                                                const std::string& id) const {
  if (!model_.chat_template)
    return invalid_parameter("messages", "a model with a chat template: this one has none, use /v1/completions");
  if (chat.tools.choice != ToolChoice::kNone && model_.tool_format == ToolFormat::kNone)
    return invalid_parameter("tools", "a model whose chat template shows a known way of calling functions");
  for (const auto& [name, value] : chat.template_variables.items())
    if (model_.chat_template->sets(name))
      return invalid_parameter("chat_template_kwargs", "no '" + name + "', which the server sets");
  try {
    std::string rendered =
        model_.chat_template->render(chat.messages, add_generation_prompt, chat.template_variables, chat.tools.text);
    const auto member = model_.chat_template->omitted(chat.messages, chat.template_variables, chat.tools.text);
    if (member) return invalid_parameter(*member, "nothing here: the model's chat template leaves it out");
    return rendered;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kData) throw;  // other kinds are no fault of the conversation: no process can render it
    // The error's text is not logged, because it may quote the conversation.
    log(LogLevel::kWarn, id + ": the chat template rejected the conversation");
    return invalid_parameter("messages", "a conversation that the model's chat template accepts");
  }
}

std::optional<ApiError> Api::set_rules(const ApiRequest& parsed, GenerationRequest& out) {
  decode::LogitsProcessors rules = parsed.rules;
  const std::string below = "token ids below " + std::to_string(model_.vocab_size);
  for (const auto& [id, value] : rules.bias)
    if (id >= model_.vocab_size) return invalid_parameter("logit_bias", below);
  if (!knows(rules.allowed_ids)) return invalid_parameter("allowed_token_ids", below);
  if (!knows(parsed.stop_token_ids)) return invalid_parameter("stop_token_ids", below);
  for (const int32_t id : parsed.stop_token_ids)
    if (std::find(model_.eos_ids.begin(), model_.eos_ids.end(), id) == model_.eos_ids.end())
      out.stop_tokens.push_back(id);
  if (rules.min_tokens > out.options.max_tokens)
    return invalid_parameter("min_tokens", "at most " + std::to_string(out.options.max_tokens) +
                                               ", the most tokens that the answer may have");
  if (rules.min_tokens > 0) {
    rules.stop_ids = model_.eos_ids;  // min_tokens forbids these tokens even with ignore_eos, as in vLLM
    rules.stop_ids.insert(rules.stop_ids.end(), parsed.stop_token_ids.begin(), parsed.stop_token_ids.end());
  }
  for (const std::string& word : parsed.bad_words)
    for (std::vector<int32_t>& spelling : bad_word_tokens(*model_.tokenizer, word))
      rules.bad_words.push_back(std::move(spelling));
  for (const auto& word : rules.bad_words)
    if (!knows(word)) return invalid_parameter("bad_words", "words whose tokens the model has");
  std::optional<RequestedGrammar> grammar = parsed.grammar;
  if (parsed.chat.tools.forced())
    grammar = {text::GrammarKind::kJsonSchema, forced_schema(model_.tool_format, parsed.chat.tools), "tools"};
  if (grammar) {
    if (model_.eos_ids.empty())
      return invalid_parameter(grammar->param, "no grammar: this model has no token that ends a text");
    if (const auto error = set_grammar(*grammar, out, rules)) return error;
  }
  if (rules.any()) out.options.rules = std::make_shared<const decode::LogitsProcessors>(std::move(rules));
  return std::nullopt;
}

// Adds the requested grammar to `rules`, or returns the refusal. Runs on a worker thread, so the engine does not wait.
// A child process compiles the grammar first. The grammar is compiled in this process only if the child process
// succeeded and the grammar's size fits the memory budget. The matcher state of every answer must also fit the budget.
std::optional<ApiError> Api::set_grammar(const RequestedGrammar& asked, GenerationRequest& out,
                                         decode::LogitsProcessors& rules) {
  try {
    const size_t bytes = model_.grammars ? model_.grammars->check(asked.kind, asked.source) : 0;
    if (const auto error = hold(out, out.held ? out.held->bytes() + bytes : 0)) return error;
    std::call_once(vocabulary_made_, [this] {
      vocabulary_ = std::make_unique<text::Vocabulary>(*model_.tokenizer, model_.vocab_size, model_.eos_ids);
    });
    const auto matcher = constraint_of(vocabulary_->compile(asked.kind, asked.source));
    const size_t of_one = matcher()->bytes();
    if (const auto error = hold(out, out.held ? out.held->bytes() + out.choices() * of_one : 0)) return error;
    rules.constraint = masks_.off_thread(matcher, out.tenant, model_.vocab_size, of_one);
    return std::nullopt;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kData) throw;  // other kinds of errors are no fault of the grammar
    // The error's text is not logged, because it would quote the grammar.
    log(LogLevel::kWarn, asked.param + ": a grammar of " + std::to_string(asked.source.size()) + " bytes was refused");
    return invalid_parameter(asked.param, "a grammar that is well-formed, supported, satisfiable and not too large");
  }
}

// Answers POST /tokenize as vLLM does. The number of tokens may exceed the context.
HttpReply Api::tokenize(const HttpRequest& request) const {
  const auto refused = [&request](const ApiError& error) { return error_reply(error, request.id); };
  auto result = parse_tokenize(request.body, limits_);
  if (const auto* error = std::get_if<ApiError>(&result)) return refused(*error);
  const TokenizeRequest& asked = std::get<TokenizeRequest>(result);
  if (!asked.model.empty() && !model_.card.has(asked.model)) return refused(unknown_model(model_.card.names));
  const ApiError over = invalid_parameter(asked.prompt ? "prompt" : "messages",
                                          "at most " + std::to_string(longest_text()) + " bytes of text");
  if (content_bytes(asked.chat.messages) > longest_text()) return refused(over);
  std::variant<std::string, ApiError> text =
      asked.prompt ? *asked.prompt : render(asked.chat, asked.add_generation_prompt, request.id);
  if (const auto* error = std::get_if<ApiError>(&text)) return refused(*error);
  const auto tokens = encode_long(std::get<std::string>(text), asked.add_special_tokens);
  if (!tokens) return refused(over);
  const size_t each = kListedTokenBytes + (asked.return_token_strs ? longest_token_bytes_ : 0);
  if (request.held && !request.held->resize(request.body.size() + each * tokens->size()))
    return refused(too_many_bytes(queue_.retry_after(request.party)));
  Json body = {
      {"count", tokens->size()}, {"max_model_len", model_.max_context}, {"tokens", *tokens}, {"token_strs", nullptr}};
  if (asked.return_token_strs) {
    body["token_strs"] = Json::array();
    for (const int32_t id : *tokens) body["token_strs"].push_back(model_.tokenizer->id_to_token(id));
  }
  return {200, "application/json", body.dump(-1, ' ', false, Json::error_handler_t::replace), {}};
}

// Answers POST /detokenize as vLLM does: special tokens are part of the text.
HttpReply Api::detokenize(const HttpRequest& request) const {
  auto result = parse_detokenize(request.body, limits_);
  if (const auto* error = std::get_if<ApiError>(&result)) return error_reply(*error, request.id);
  const DetokenizeRequest& asked = std::get<DetokenizeRequest>(result);
  if (!asked.model.empty() && !model_.card.has(asked.model))
    return error_reply(unknown_model(model_.card.names), request.id);
  if (!knows(asked.tokens))
    return error_reply(invalid_parameter("tokens", "token ids below " + std::to_string(model_.vocab_size)), request.id);
  const Json body = {{"prompt", model_.tokenizer->decode(asked.tokens, false)}};
  return {200, "application/json", body.dump(-1, ' ', false, Json::error_handler_t::replace), {}};
}

}  // namespace specdec::deploy
