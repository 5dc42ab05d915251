#include "text/chat_template.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <initializer_list>
#include <mutex>

#include "base/confined_service.h"
#include "base/file.h"
#include "text/rust_error.h"

namespace specdec::text {

namespace {

constexpr size_t kMaxSourceBytes = 1u << 20;
constexpr size_t kMaxOutputBytes = 1u << 20;
constexpr char kWhat[] = "chat template";
constexpr size_t kWorkers = 4;  // concurrent renderings; servers render on fewer threads

size_t local_strftime(const char* format, char* out, size_t capacity) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  const size_t size = std::strftime(out, capacity, format, &parts);
  // strftime returns 0 for an empty result and for a result that did not fit; only an empty format gives an empty one.
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
        } catch (const Error&) {  // the template may refuse a conversation ("system role not supported")
        }
      }
}

}  // namespace

void vet_template(const std::string& source, const SpecialTokens& tokens, const std::string& where,
                  const ChildLimits& limits) {
  ConfinedChild child(limits, [&](int pipe) {
    try {
      render_probes(source, tokens);
    } catch (...) {  // ignored, because load() compiles the template again and reports the error
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

// The form in which a template reads messages; ChatTemplate::render() describes the four choices.
struct ChatTemplate::Form {
  bool parts = false, developer_is_system = false, null_content = false, text_arguments = false;
};

struct ChatTemplate::Impl {
  sd_template* handle = nullptr;
  std::string source;
  std::unique_ptr<Impl> for_tools;  // renders conversations with tools; null: this template renders them too
  SpecialTokens tokens;
  std::unique_ptr<ConfinedService> service;  // null: the template is trusted and renders in this process
  std::once_flag learnt[2];                  // learnt[i] is set when forms[i] is known; i = 1 is the form of for_tools
  Form forms[2];
  ~Impl() { sd_template_free(handle); }

  // `context` is a JSON object. Throws Error(kData).
  std::string render_here(std::string_view context, uint64_t most) const {
    sd_bytes out{}, message{}, place{};
    const int32_t status = sd_template_render(handle, reinterpret_cast<const uint8_t*>(context.data()), context.size(),
                                              most, &out, &message, &place);
    const std::string where = take(place);
    if (status != SD_OK && status != SD_INTERNAL) throw TemplateError(std::string(kWhat) + ": " + take(message), where);
    check(status, message, kWhat, ErrorKind::kData);
    return take(out);
  }
  std::string work(std::string_view job) const;
  std::string render_confined(const std::string& context, uint64_t most, bool tools) const;
};

// Executes a job of the ConfinedService. A job is the maximum output size in decimal digits, then a space (or a colon,
// if the template for tools must render), then the context. The answer is 'k' and the text, or 'e', the place of the
// error, a line feed and the error message.
std::string ChatTemplate::Impl::work(std::string_view job) const {
  uint64_t most = 0;
  const size_t end = job.find_first_of(" :");
  std::from_chars(job.data(), job.data() + end, most);
  const Impl& chosen = job[end] == ':' ? *for_tools : *this;
  try {
    return "k" + chosen.render_here(job.substr(end + 1), most);
  } catch (const TemplateError& e) {
    return "e" + e.place() + "\n" + e.what();
  } catch (const Error& e) {
    return "e\n" + std::string(e.what());
  }
}

std::string ChatTemplate::Impl::render_confined(const std::string& context, uint64_t most, bool tools) const {
  const std::optional<std::string> answer = service->ask(std::to_string(most) + (tools ? ":" : " ") + context);
  if (!answer || answer->empty()) {
    const std::string why = "rendering this conversation was ended: it takes more than " +
                            std::to_string(service->limits().memory_bytes >> 20) + " MiB or " +
                            std::to_string(service->limits().cpu_seconds) + " s, or crashed";
    throw TemplateError(std::string(kWhat) + ": " + why, why);
  }
  if (answer->front() == 'k') return answer->substr(1);
  const size_t end = answer->find('\n');
  throw TemplateError(answer->substr(end + 1), answer->substr(1, end - 1));
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

namespace {

using OrderedJson = nlohmann::ordered_json;

// Returns JSON with spaces after commas and colons, as Python's json.dumps writes it and models have learnt it.
std::string spaced(const OrderedJson& value) {
  if (!value.is_structured() || value.empty()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += OrderedJson(key).dump() + ": ";
    text += spaced(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

constexpr char kProbe[] = "specdecprobe";
constexpr char kProbeTools[] =
    R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}}])";

// Returns a user's question, a tool call whose arguments contain kProbe, and the call's result. The id of the call has
// nine characters, as Mistral's templates require.
std::vector<ChatMessage> probe_call() {
  const std::string call = R"([{"id":"abcdefghi","type":"function","function":{"name":"f","arguments":{"a":")" +
                           std::string(kProbe) + R"("}}}])";
  ChatMessage result{"tool", "r"};
  result.tool_call_id = "abcdefghi";
  result.name = "f";
  return {{"user", "q"}, {"assistant", "", call}, result};
}

}  // namespace

// Learns which form the template reads by rendering probe conversations in different forms and comparing what is shown.
ChatTemplate::Form ChatTemplate::learn_form(const std::string& tools) const {
  const auto shows = [&](const Form& tried, const std::vector<ChatMessage>& messages) {
    try {
      return render_in(tried, messages, true, Json::object(), tools).find(kProbe) != std::string::npos;
    } catch (const Error&) {
      return false;
    }
  };
  Form form;
  const auto prefer = [&](const std::vector<ChatMessage>& messages, std::initializer_list<Form> others) {
    if (shows(form, messages)) return;
    for (const Form& other : others)
      if (shows(other, messages)) {
        form = other;
        return;
      }
  };
  const auto with = [&form](bool Form::* first, bool Form::* second = nullptr) {
    Form other = form;
    other.*first = true;
    if (second) other.*second = true;
    return other;
  };
  prefer({{"user", kProbe}}, {with(&Form::parts)});
  prefer({{"developer", kProbe}, {"user", "q"}}, {with(&Form::developer_is_system)});
  prefer(probe_call(),
         {with(&Form::null_content), with(&Form::text_arguments), with(&Form::null_content, &Form::text_arguments)});
  return form;
}

const ChatTemplate::Form& ChatTemplate::form(bool for_tools) const {
  std::call_once(impl_->learnt[for_tools],
                 [&] { impl_->forms[for_tools] = learn_form(for_tools || !impl_->for_tools ? kProbeTools : ""); });
  return impl_->forms[for_tools];
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                 const Json& extra, const std::string& tools) const {
  return render_in(form(impl_->for_tools && !tools.empty()), messages, add_generation_prompt, extra, tools);
}

std::string ChatTemplate::render_in(const Form& form, const std::vector<ChatMessage>& messages,
                                    bool add_generation_prompt, const Json& extra, const std::string& tools) const {
  // Uses ordered_json, so that a template that prints a whole message writes role before content, as in transformers.
  OrderedJson context = OrderedJson::object(), list = OrderedJson::array();
  size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", form.developer_is_system && message.role == "developer" ? "system" : message.role}});
    OrderedJson& out = list.back();
    out["content"] = message.content;
    if (form.parts) out["content"] = OrderedJson::array({{{"type", "text"}, {"text", message.content}}});
    if (!message.tool_calls.empty()) {
      if (form.null_content && message.content.empty()) out["content"] = nullptr;
      OrderedJson& calls = out["tool_calls"] = parse_ordered_json(message.tool_calls, "tool_calls");
      if (form.text_arguments && calls.is_array())
        for (OrderedJson& call : calls)
          if (call.is_object() && call.contains("function") && call["function"].is_object())
            if (OrderedJson& given = call["function"]["arguments"]; !given.is_string()) given = spaced(given);
    }
    if (!message.tool_call_id.empty()) out["tool_call_id"] = message.tool_call_id;
    if (!message.name.empty()) out["name"] = message.name;
    if (!message.reasoning_content.empty()) out["reasoning_content"] = message.reasoning_content;
    bytes += message.role.size() + message.content.size() + message.tool_calls.size() +
             message.reasoning_content.size() + message.tool_call_id.size() + message.name.size();
  }
  context["messages"] = std::move(list);
  context["add_generation_prompt"] = add_generation_prompt;
  context["tools"] = tools.empty() ? OrderedJson() : parse_ordered_json(tools, "tools");
  context["documents"] = nullptr;
  for (const auto& [key, token] : impl_->tokens.names) context[key] = token;
  for (const auto& [key, value] : extra.items()) {
    if (sets(key)) {
      const std::string why = "'" + key + "' is set by the program and cannot be given";
      throw TemplateError("chat template: " + why, why);
    }
    context[key] = value;
  }
  std::string json;
  try {
    json = context.dump();
  } catch (const nlohmann::json::exception&) {
    throw TemplateError("messages: invalid UTF-8", "messages: invalid UTF-8");
  }
  const uint64_t most = kMaxOutputBytes + 8 * (bytes + tools.size());
  const bool for_tools = impl_->for_tools && !tools.empty();
  if (impl_->service) return impl_->render_confined(json, most, for_tools);
  return (for_tools ? *impl_->for_tools : *impl_).render_here(json, most);
}

namespace {

// Replaces the parts of a conversation by marks, and remembers which part each mark stands for.
class Marks {
 public:
  std::string put(std::string member, bool required = true) {
    const std::string number = std::to_string(marks_.size());
    marks_.push_back({std::move(member), required});
    return std::string(kBegin).append(kDigits - std::min(kDigits, number.size()), '0').append(number).append(kEnd);
  }

  void mark_calls(std::string& calls, const std::string& at) {
    OrderedJson list = parse_ordered_json(calls, "tool_calls");
    for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
      if (!list[i].is_object() || !list[i].contains("function") || !list[i]["function"].is_object()) continue;
      OrderedJson& function = list[i]["function"];
      const std::string call = at + "[" + std::to_string(i) + "].function";
      function["name"] = put(call + ".name");
      if (!function.contains("arguments")) continue;
      OrderedJson& given = function["arguments"];
      if (given.is_object()) {
        for (auto& argument : given.items()) argument.value() = put(call + ".arguments");
      } else if (given.is_string() && !is_blank(given.get<std::string>())) {
        given = put(call + ".arguments");
      }
    }
    calls = list.dump();
  }

  // Scans the text once for all marks, because the text may be long and contain many.
  std::optional<std::string> missing_in(std::string_view text) const {
    std::vector<bool> found(marks_.size());
    for (size_t at = text.find(kBegin); at != std::string_view::npos; at = text.find(kBegin, at + 1)) {
      const char *first = text.data() + at + kBegin.size(), *last = text.data() + text.size();
      size_t number = 0;
      const auto [end, error] = std::from_chars(first, last, number);
      const std::string_view rest(end, static_cast<size_t>(last - end));
      if (error == std::errc() && number < found.size() && rest.starts_with(kEnd)) found[number] = true;
    }
    for (size_t i = 0; i < marks_.size(); ++i)
      if (marks_[i].required && !found[i]) return marks_[i].member;
    return std::nullopt;
  }

 private:
  static constexpr std::string_view kBegin = "zq", kEnd = "qz";
  static constexpr size_t kDigits = 6;  // minimum number of digits in a mark
  struct Mark {
    std::string member;
    bool required;
  };
  std::vector<Mark> marks_;
};

}  // namespace

std::optional<std::string> ChatTemplate::omitted(const std::vector<ChatMessage>& messages, const Json& extra,
                                                 const std::string& tools) const {
  std::vector<ChatMessage> marked = messages;
  size_t turn = 0;  // index of the first message after the last user message
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == "user") turn = i + 1;
  Marks marks;
  for (size_t i = 0; i < marked.size(); ++i) {
    ChatMessage& message = marked[i];
    const std::string at = "messages[" + std::to_string(i) + "]";
    if (!is_blank(message.content)) message.content = marks.put(at + ".content");
    if (!is_blank(message.reasoning_content))
      message.reasoning_content = marks.put(at + ".reasoning_content", i >= turn);
    if (!message.tool_calls.empty()) marks.mark_calls(message.tool_calls, at + ".tool_calls");
  }
  try {
    return marks.missing_in(render(marked, true, extra, tools));
  } catch (const Error&) {  // ignored, because render() reports a refusal
    return std::nullopt;
  }
}

}  // namespace specdec::text
