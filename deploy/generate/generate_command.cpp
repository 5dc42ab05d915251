#include "deploy/generate/generate_command.h"

#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/progress.h"
#include "base/utf8.h"
#include "base/verdict.h"
#include "base/version.h"
#include "deploy/models/load_pair.h"
#include "deploy/serve/request/token_rules.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::deploy {

namespace {

std::vector<ChatMessage> read_messages(const std::string& file) {
  const Json array = read_json(file);
  if (!array.is_array() || array.empty())
    throw Error(ErrorKind::kData, file + ": expected a non-empty array of {role, content}");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string where = file + ": message " + std::to_string(i);
    if (!array[i].is_object()) throw Error(ErrorKind::kData, where + ": expected an object with role and content");
    messages.push_back({json_string(array[i], "role", where, ErrorKind::kData),
                        json_string(array[i], "content", where, ErrorKind::kData)});
  }
  return messages;
}

void check(const GenerateOptions& o) {
  validate(o.sampling);
  validate(o.speculation);
  if (o.has_prompt == !o.messages_file.empty())
    throw Error(ErrorKind::kUsage, "give one of --prompt TEXT and --messages FILE");
  if (o.max_tokens < 1 || o.max_tokens > (1 << 24))
    throw Error(ErrorKind::kUsage,
                "--max-tokens: expected an integer in [1, 16777216], found " + std::to_string(o.max_tokens));
  if (!is_valid_utf8(o.prompt)) throw Error(ErrorKind::kUsage, "--prompt: expected UTF-8");
}

// Returns an upper bound of the number of tokens of prompt and answer together. A token has at least one byte, and 4096
// bytes are added for the text of a chat template.
int64_t tokens_bound(const GenerateOptions& o) {
  std::error_code ec;
  const int64_t bytes = o.has_prompt ? static_cast<int64_t>(o.prompt.size())
                                     : static_cast<int64_t>(fs::file_size(o.messages_file, ec)) + 4096;
  return (ec ? 4096 : bytes) + 8 + o.max_tokens;
}

std::pair<int32_t, float> bias_of(const std::string& text) {
  int32_t id = -1;
  double value = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [after, no_id] = std::from_chars(begin, end, id);
  const bool equals = no_id == std::errc() && after != end && *after == '=';
  const auto [last, no_value] = std::from_chars(equals ? after + 1 : end, end, value);
  if (!equals || no_value != std::errc() || last != end)
    throw Error(ErrorKind::kUsage, "--logit-bias: expected ID=VALUE, found '" + text + "'");
  return {id, static_cast<float>(value)};
}

decode::LogitsProcessors rules_of(const GenerateOptions& o, const LoadedPair& pair) {
  constexpr size_t kMaxSchemaBytes = 64 << 10;
  decode::LogitsProcessors rules;
  rules.presence_penalty = o.presence_penalty;
  rules.frequency_penalty = o.frequency_penalty;
  rules.repetition_penalty = o.repetition_penalty;
  for (const std::string& bias : o.logit_bias) rules.bias.push_back(bias_of(bias));
  for (const std::string& word : o.bad_words) {
    const auto spellings = bad_word_tokens(*pair.tokenizer, word);
    if (spellings.empty()) throw Error(ErrorKind::kUsage, "--bad-word: expected text, found '" + word + "'");
    rules.bad_words.insert(rules.bad_words.end(), spellings.begin(), spellings.end());
  }
  const int64_t vocab = pair.target->config.vocab_size;
  if (!o.json_schema_file.empty() || !o.regex.empty()) {
    const text::Vocabulary vocabulary(*pair.tokenizer, vocab, pair.config.eos_ids);
    rules.constraint = constraint_of(
        o.regex.empty() ? vocabulary.compile(text::GrammarKind::kJsonSchema,
                                             read_file(o.json_schema_file, kMaxSchemaBytes, ErrorKind::kData))
                        : vocabulary.compile(text::GrammarKind::kRegex, o.regex));
  }
  decode::validate(rules, vocab);
  return rules;
}

Json describe(const std::filesystem::path& directory) {
  return {{"path", directory.string()}, {"id", fingerprint_model(directory).id}};
}

// Returns the token ids of the messages in `file`, rendered by the chat template. Throws Error(kUsage) if the target
// has no chat template, Error(kData) if the template cannot render the messages.
std::vector<int32_t> encode_messages(const LoadedPair& pair, const std::vector<ChatMessage>& messages,
                                     const std::string& file) {
  if (!pair.chat_template)
    throw Error(ErrorKind::kUsage, "--messages: " + pair.target_dir.string() + " has no chat template: use --prompt");
  if (const auto member = pair.chat_template->omitted(messages))
    throw Error(ErrorKind::kData, "--messages: " + *member + ": the target's chat template leaves it out");
  const auto ids = pair.tokenizer->encode(pair.chat_template->render(messages, true), false);
  if (ids.empty()) throw Error(ErrorKind::kData, file + ": the chat template rendered to nothing");
  return ids;
}

}  // namespace

std::vector<int32_t> encode_prompt(const LoadedPair& pair, const std::string& text) {
  std::vector<int32_t> ids;
  const int32_t bos = pair.tokenizer->bos_id() >= 0 ? pair.tokenizer->bos_id() : pair.target->config.bos_id;
  if (bos >= 0) ids.push_back(bos);
  const auto rest = pair.tokenizer->encode(text, false);
  ids.insert(ids.end(), rest.begin(), rest.end());
  if (ids.empty())
    throw Error(ErrorKind::kUsage,
                "--prompt is empty and " + pair.target_dir.string() + " has no BOS token: give some text");
  return ids;
}

GenerateOutput run_generate_command(const GenerateOptions& options, const GenerateHooks& hooks, const Clock& clock) {
  check(options);
  // The messages are read before the models are loaded, so that a faulty file is reported at once.
  const std::vector<ChatMessage> messages =
      options.has_prompt ? std::vector<ChatMessage>() : read_messages(options.messages_file);
  const auto note = [&](const std::string& line) {
    if (hooks.on_note && !line.empty()) hooks.on_note(line);
  };
  PairOptions wanted;
  wanted.target = options.target;
  wanted.draft = options.draft;
  wanted.device = options.device;
  wanted.allow_stale = options.allow_stale;
  wanted.speculate = options.speculation.k != 0;
  wanted.drafts_wanted = options.speculation.suffix ? 0 : options.speculation.k;
  wanted.tokens_per_sequence = tokens_bound(options);
  wanted.may_give_up = true;
  wanted.on_plan = [&](const model::MemoryPlan& plan) { note("memory: " + plan.text()); };
  wanted.progress = hooks.progress;
  GenerateOutput output;
  const LoadedPair pair = load_pair(wanted);
  if (!pair.target) {
    output.stale = true;
    output.stale_reason = pair.warning;
    return output;
  }
  if (!pair.warning.empty()) note("warning: " + pair.warning);
  if (!pair.given_up.empty()) note("warning: " + pair.given_up);
  for (const std::string& line : pair.notes) note("info: " + line);
  output.inputs = {{"target", describe(pair.target_dir)}};
  if (pair.draft) output.inputs["draft"] = describe(pair.draft_dir);

  const decode::Request request{
      options.has_prompt ? encode_prompt(pair, options.prompt) : encode_messages(pair, messages, options.messages_file),
      options.device.seed,
      {.max_tokens = options.max_tokens,
       .eos_ids = options.ignore_eos ? std::vector<int32_t>() : pair.config.eos_ids,
       .sampling = options.sampling,
       .rules = std::make_shared<const decode::LogitsProcessors>(rules_of(options, pair))}};
  SpeculationOptions speculation = options.speculation;
  if (!pair.draft && !speculation.suffix) speculation.k = 0;

  const auto target = pair.make_target_runner();
  const auto draft = decode::make_draft_runner(pair.draft, *target);
  decode::CostModel costs;
  decode::Stepper stepper(*target, draft.get(), &costs, &clock);
  text::IncrementalDecoder decoder(*pair.tokenizer, request.prompt);
  const auto emit = [&](const std::string& piece) {
    output.text += piece;
    if (hooks.on_text && !piece.empty()) hooks.on_text(piece);
  };
  if (hooks.progress) hooks.progress({"reading the prompt", 0, 0, "", ""});
  output.result = decode::generate(stepper, request, decode::drafting(speculation), clock, [&](int32_t token) {
    if (hooks.progress && output.text.empty()) hooks.progress({});
    emit(decoder.push(token));
    return !stop_requested();
  });
  emit(decoder.finish());
  if (stop_requested())
    throw Error(ErrorKind::kNetwork,
                "stopped by a signal after " + std::to_string(output.result.tokens.size()) + " tokens");
  return output;
}

std::string summary(const GenerateOutput& output) {
  const decode::GenerateResult& r = output.result;
  const AcceptanceCounts& c = r.counts;
  std::string text =
      format("%zu tokens in %.2f s (%.0f / s), finish: %s", r.tokens.size(), r.seconds,
             r.seconds > 0 ? static_cast<double>(r.tokens.size()) / r.seconds : 0.0, r.finish_reason.c_str());
  if (c.steps > 0)
    text += format("; %.2f tokens per step, accepted %lld of %lld drafted (%.0f %%) in %lld steps, %lld plain steps",
                   c.length(), static_cast<long long>(c.accepted), static_cast<long long>(c.drafted),
                   100 * c.draft_efficiency(), static_cast<long long>(c.steps), static_cast<long long>(c.plain_steps));
  return text;
}

}  // namespace specdec::deploy
