#include "text/chat_template.h"

#include <charconv>
#include <ctime>

#include "base/confined_service.h"
#include "base/file.h"
#include "text/rust_error.h"

namespace specdec::text {

namespace {

constexpr size_t kMaxSourceBytes = 1u << 20;
constexpr size_t kMaxOutputBytes = 1u << 20;
constexpr char kWhat[] = "chat template";
constexpr size_t kWorkers = 4;  // concurrent renderings; a server has fewer threads that render

size_t local_strftime(const char* format, char* out, size_t capacity) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  const size_t size = std::strftime(out, capacity, format, &parts);
  // strftime returns 0 for an empty result and for one that did not fit; only an empty format may be empty.
  return size == 0 && *format != '\0' ? capacity + 1 : size;
}

struct Source {
  std::string text, where;
};

// Returns the template of this name ("default" or "tool_use"), or nothing if the directory has none.
std::optional<Source> find_source(const fs::path& directory, const std::string& wanted) {
  const bool is_default = wanted == "default";
  const fs::path jinja =
      directory / (is_default ? "chat_template.jinja" : "additional_chat_templates/" + wanted + ".jinja");
  if (fs::exists(jinja)) return Source{read_file(jinja, kMaxSourceBytes, ErrorKind::kModel), jinja.string()};
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const fs::path file = directory / name;
    if (!fs::exists(file)) continue;
    const Json config = read_json(file, ErrorKind::kModel, {16u << 20, 64});
    if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null()) continue;
    const Json& value = config["chat_template"];
    const std::string where = file.string() + ": chat_template";
    if (value.is_string() && is_default) return Source{value.get<std::string>(), where};
    if (value.is_string()) continue;
    if (!value.is_array()) throw Error(ErrorKind::kModel, where + ": expected a string or a list of {name, template}");
    for (const Json& entry : value)
      if (entry.is_object() && json_string(entry, "name", "", where, ErrorKind::kModel) == wanted)
        return Source{json_string(entry, "template", where, ErrorKind::kModel), where};
    if (is_default) throw Error(ErrorKind::kModel, where + ": the list has no template named \"default\"");
  }
  return std::nullopt;
}

std::vector<ChatMessage> probe_conversation(int size, bool system) {
  std::vector<ChatMessage> messages;
  if (system) messages.push_back({"system", "You answer briefly."});
  for (int i = 0; i < size; ++i)
    messages.push_back({i % 2 == 0 ? "user" : "assistant",
                        "Probe " + std::to_string(i) + ": what is 2 < 3 & \"four\"?\nA second line, a € and a 🙂."});
  return messages;
}

void render_probes(const std::string& source, const SpecialTokens& tokens) {
  const ChatTemplate chat(source, tokens);
  for (const int size : {1, 2, 3, 64})
    for (const bool system : {false, true})
      for (const bool prompt : {false, true}) {
        try {
          chat.render(probe_conversation(size, system), prompt);
        } catch (const Error&) {  // a clean refusal ("system role not supported") is accepted
        }
      }
}

}  // namespace

void vet_template(const std::string& source, const SpecialTokens& tokens, const std::string& where,
                  const ChildLimits& limits) {
  ConfinedChild child(limits, [&](int pipe) {
    try {
      render_probes(source, tokens);
    } catch (...) {  // the template does not compile: load() compiles it again and reports the error
    }
    write_pipe(pipe, std::string_view("k"));
  });
  char alive = 0;
  if (child.read({&alive, 1}) == 1) return;
  throw Error(ErrorKind::kModel, where + ": a probe conversation killed the renderer" + child.death() +
                                     " (limits: " + std::to_string(limits.memory_bytes >> 20) + " MiB, " +
                                     std::to_string(limits.cpu_seconds) +
                                     " s): it grows without bound, or takes too long, and is not used");
}

struct ChatTemplate::Impl {
  sd_template* handle = nullptr;
  std::string source;
  std::unique_ptr<Impl> for_tools;  // renders conversations with tools; null: this template does
  SpecialTokens tokens;
  std::unique_ptr<ConfinedService> service;  // null: the template is trusted and renders in this process
  ~Impl() { sd_template_free(handle); }

  // `context` is a JSON object. Throws Error(kData).
  std::string render_here(std::string_view context, uint64_t most) const {
    sd_bytes out{}, message{};
    check(sd_template_render(handle, reinterpret_cast<const uint8_t*>(context.data()), context.size(), most, &out,
                             &message),
          message, kWhat, ErrorKind::kData);
    return take(out);
  }
  std::string work(std::string_view job) const;
  std::string render_confined(const std::string& context, uint64_t most, bool tools) const;
};

// Does a job of the ConfinedService. A job is the maximum output size in decimal digits, a space or, for the template
// for tools, a colon, and the context. The answer is 'k' and the text, or 'e' and the error.
std::string ChatTemplate::Impl::work(std::string_view job) const {
  uint64_t most = 0;
  const size_t end = job.find_first_of(" :");
  std::from_chars(job.data(), job.data() + end, most);
  const Impl& chosen = job[end] == ':' ? *for_tools : *this;
  try {
    return "k" + chosen.render_here(job.substr(end + 1), most);
  } catch (const Error& e) {
    return "e" + std::string(e.what());
  }
}

std::string ChatTemplate::Impl::render_confined(const std::string& context, uint64_t most, bool tools) const {
  const std::optional<std::string> answer = service->ask(std::to_string(most) + (tools ? ":" : " ") + context);
  if (!answer || answer->empty())
    throw Error(ErrorKind::kData, std::string(kWhat) + ": rendering this conversation was ended: it takes more than " +
                                      std::to_string(service->limits().memory_bytes >> 20) + " MiB or " +
                                      std::to_string(service->limits().cpu_seconds) + " s, or crashed");
  if (answer->front() == 'e') throw Error(ErrorKind::kData, answer->substr(1));
  return answer->substr(1);
}

ChatTemplate::ChatTemplate(const std::string& source, const SpecialTokens& tokens) : impl_(std::make_unique<Impl>()) {
  sd_bytes message{};
  check(sd_template_new(reinterpret_cast<const uint8_t*>(source.data()), source.size(), &local_strftime, &impl_->handle,
                        &message),
        message, kWhat, ErrorKind::kModel);
  impl_->tokens = tokens;
  impl_->source = source;
}

ChatTemplate::ChatTemplate(std::string source, std::string bos_token, std::string eos_token)
    : ChatTemplate(source, [&] {
        SpecialTokens tokens;
        if (!bos_token.empty()) tokens.names["bos_token"] = std::move(bos_token);
        if (!eos_token.empty()) tokens.names["eos_token"] = std::move(eos_token);
        return tokens;
      }()) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::optional<ChatTemplate> ChatTemplate::load(const fs::path& model_directory) {
  const auto found = find_source(model_directory, "default");
  if (!found) return std::nullopt;
  const SpecialTokens tokens = read_special_tokens(model_directory);
  const auto compile = [&](const Source& source) {
    vet_template(source.text, tokens, source.where);
    return with_context(source.where, [&] { return ChatTemplate(source.text, tokens); });
  };
  ChatTemplate loaded = compile(*found);
  if (const auto for_tools = find_source(model_directory, "tool_use"))
    loaded.impl_->for_tools = std::move(compile(*for_tools).impl_);
  loaded.confine();
  return loaded;
}

// The workers inherit the compiled template through the fork.
void ChatTemplate::confine(const ChildLimits& limits) {
  impl_->service = std::make_unique<ConfinedService>(
      limits, kWorkers, [impl = impl_.get()](std::string_view job) { return impl->work(job); });
}

const std::string& ChatTemplate::tool_source() const {
  return impl_->for_tools ? impl_->for_tools->source : impl_->source;
}

bool ChatTemplate::sets(const std::string& variable) const {
  for (const char* name : {"messages", "add_generation_prompt", "tools", "documents"})
    if (variable == name) return true;
  return impl_->tokens.names.contains(variable);
}

bool ChatTemplate::works() const { return !impl_->service || impl_->service->works(); }

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                 const Json& extra, const std::string& tools) const {
  // Uses ordered_json, so that a template that prints a whole message writes role before content, as in transformers.
  nlohmann::ordered_json context = nlohmann::ordered_json::object(), list = nlohmann::ordered_json::array();
  size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
    if (!message.tool_calls.empty()) list.back()["tool_calls"] = parse_ordered_json(message.tool_calls, "tool_calls");
    if (!message.tool_call_id.empty()) list.back()["tool_call_id"] = message.tool_call_id;
    if (!message.name.empty()) list.back()["name"] = message.name;
    if (!message.reasoning_content.empty()) list.back()["reasoning_content"] = message.reasoning_content;
    bytes += message.role.size() + message.content.size() + message.tool_calls.size() +
             message.reasoning_content.size() + message.tool_call_id.size() + message.name.size();
  }
  context["messages"] = std::move(list);
  context["add_generation_prompt"] = add_generation_prompt;
  context["tools"] = tools.empty() ? nlohmann::ordered_json() : parse_ordered_json(tools, "tools");
  context["documents"] = nullptr;
  for (const auto& [key, token] : impl_->tokens.names) context[key] = token;
  for (const auto& [key, value] : extra.items()) {
    if (sets(key))
      throw Error(ErrorKind::kData, "chat template: '" + key + "' is set by the program and cannot be given");
    context[key] = value;
  }
  std::string json;
  try {
    json = context.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kData, "messages: invalid UTF-8");
  }
  const uint64_t most = kMaxOutputBytes + 8 * (bytes + tools.size());
  const bool for_tools = impl_->for_tools && !tools.empty();
  if (impl_->service) return impl_->render_confined(json, most, for_tools);
  return (for_tools ? *impl_->for_tools : *impl_).render_here(json, most);
}

}  // namespace specdec::text
