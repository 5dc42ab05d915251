// Chat templates (Jinja) through the Rust crate, with what transformers offers them. Templates come from the model
// directory only, never from a request. The interpreter bounds steps, recursion and output; a string that a template
// doubles 40 times it does not bound, so a template that was loaded renders in child processes with a limit of memory
// and time.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/confined_child.h"
#include "base/json.h"
#include "base/schema/traffic_record.h"
#include "text/tokenizer.h"

namespace specdec::text {

class ChatTemplate {
 public:
  // chat_template.jinja, chat_template.json or tokenizer_config.json's chat_template (string, or list: "default").
  // Nothing if the directory has none. Throws Error(kModel) if it does not compile or does not survive vet_template.
  // Forks (a few milliseconds): call it while loading, before the threads of a server start. It is confined.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model_directory);
  // Compiles, without vetting, and renders in this process: for sources that are known. Throws Error(kModel).
  ChatTemplate(std::string source, std::string bos_token, std::string eos_token);
  ChatTemplate(const std::string& source, const SpecialTokens& tokens);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // From now on every rendering is a job of a ConfinedService with these limits: one that goes over them fails alone.
  // Forks.
  void confine(const ChildLimits& limits = {512u << 20, 2, 10});

  // Returns false when no conversation can be rendered any more, as ConfinedService::works() says. A template that is
  // not confined always works.
  bool works() const;

  // Variables: messages (role, content; tool_calls, tool_call_id and name where a message has them),
  // add_generation_prompt, tools (a JSON array as text, "" = none), documents (none), every special token by name, and
  // `extra`, which may set none of these. Thread-safe. Throws Error(kData): raise_exception's message, or fuel (10^6
  // steps), recursion (100) or output (1 MiB + 8 × the messages' bytes) exceeded, or invalid UTF-8; where it is
  // confined, also memory and time.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                     const Json& extra = Json::object(), const std::string& tools = "") const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Compiles `source` and renders probe conversations (1 to 64 messages, with and without system and generation prompt)
// in a forked child. The interpreter's own limits do not stop a string that doubles itself 40 times, a chain of 50,000
// operators that overflows the compiler's stack, or constants folded while compiling, and Rust aborts when memory runs
// out; so a template that kills the child must not be used here. Throws Error(kModel) then; a clean error inside the
// child is no finding. What a probe does not reach is bounded where it is rendered (ChatTemplate::confine). The child
// runs Rust and C++ code after fork: call it where no other thread holds a lock.
void vet_template(const std::string& source, const SpecialTokens& tokens, const std::string& where,
                  const ChildLimits& limits = {512u << 20, 2, 10});

}  // namespace specdec::text
