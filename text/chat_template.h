// Renders chat templates (Jinja) through the Rust crate, with the functions and variables that transformers offers to
// templates. Templates come only from the model directory, never from a request. The interpreter bounds steps,
// recursion and output, but not, for example, a string that a template doubles 40 times. So ChatTemplate::load() lets a
// template render only in child processes with limits on memory and time.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/confined_child.h"
#include "base/error.h"
#include "base/json.h"
#include "base/schema/traffic_record.h"
#include "text/tokenizer.h"

namespace specdec::text {

// The error for a conversation that the template does not render. place() gives the line and the kind of the error in
// the template's own words, such as "line 3: unknown filter: x". Unlike what(), it quotes nothing of the conversation.
class TemplateError : public Error {
 public:
  TemplateError(const std::string& what, std::string place) : Error(ErrorKind::kData, what), place_(std::move(place)) {}
  const std::string& place() const { return place_; }

 private:
  std::string place_;
};

class ChatTemplate {
 public:
  // Reads chat_template.jinja, chat_template.json or tokenizer_config.json's chat_template (a string, or a list with
  // "default"). A template named "tool_use", in the list or as additional_chat_templates/tool_use.jinja, renders the
  // conversations with tools, as in transformers. Returns nothing if the directory has none. The result is confined
  // (see confine()). Throws Error(kModel) if the template does not compile or vet_template() rejects it. Forks (a few
  // milliseconds), so call it while loading, before a server's threads start.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model_directory);
  // Compiles `source` without vetting and renders in this process; for trusted sources. Throws Error(kModel).
  ChatTemplate(std::string source, std::string bos_token, std::string eos_token);
  ChatTemplate(const std::string& source, const SpecialTokens& tokens);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Renders from now on in the child processes of a ConfinedService, with these limits on each rendering. A rendering
  // that exceeds them fails without affecting others. Forks.
  void confine(const ChildLimits& limits = {512u << 20, 2, 10});

  // Returns false if no conversation can be rendered any more, because the process that forks the workers is gone. A
  // template that is not confined always works.
  bool works() const;

  // Returns whether render() sets this variable itself, so that `extra` must not have it.
  bool sets(const std::string& variable) const;

  // Returns the source of the template that renders conversations with tools.
  const std::string& tool_source() const;

  // Renders the messages in the form that the template reads. Templates differ in four points: content is a text or a
  // list of parts; a message with calls has empty content or none; the arguments of a call are an object or a text; the
  // role developer stays or becomes system. Probe conversations, rendered once, show which form this template reads.
  //
  // The template's variables are messages (role, content; tool_calls, tool_call_id, name and
  // reasoning_content if a message has them), add_generation_prompt, tools (a JSON array as text, "" = none), documents
  // (none), every special token by name, and `extra`, which must not set any of these. Thread-safe. Throws
  // TemplateError with raise_exception's message, for invalid UTF-8, or if the limit on steps (10^6), recursion (100)
  // or output (1 MiB + 8 × the bytes of messages and tools) is exceeded; if confined, also if the limit on memory or
  // time is exceeded.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                     const Json& extra = Json::object(), const std::string& tools = "") const;

  // Returns the name of the first part of this conversation that the template leaves out, such as
  // "messages[2].content". Returns nothing if the template renders all parts, or refuses the conversation. The parts
  // are the contents, the calls and results, and the thoughts after the last user message. The function renders the
  // conversation with a mark in place of each part and searches for the marks.
  std::optional<std::string> omitted(const std::vector<ChatMessage>& messages, const Json& extra = Json::object(),
                                     const std::string& tools = "") const;

 private:
  struct Form;
  const Form& form(bool for_tools) const;
  Form learn_form(const std::string& tools) const;
  std::string render_in(const Form& form, const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                        const Json& extra, const std::string& tools) const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Checks that a template does not kill the process. Compiles `source` and renders probe conversations (1 to 64
// messages, with and without system message and generation prompt) in a forked child. Throws Error(kModel) if the
// template kills the child; an ordinary error inside the child is accepted. The interpreter's own limits do not stop a
// string that doubles itself 40 times (Rust aborts the process when memory runs out), a chain of 50,000 operators that
// overflows the compiler's stack, or constants that are folded while compiling. ChatTemplate::confine() bounds whatever
// the probes do not reach. The child runs Rust and C++ code after the fork, so call this while no other thread holds a
// lock.
void vet_template(const std::string& source, const SpecialTokens& tokens, const std::string& where,
                  const ChildLimits& limits = {512u << 20, 2, 10});

}  // namespace specdec::text
