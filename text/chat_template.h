// Chat templates (Jinja) through the Rust crate, with what transformers offers them. Templates come from the model
// directory only, never from a request; fuel, recursion and output are bounded.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/traffic_record.h"

namespace specdec::text {

class ChatTemplate {
 public:
  // chat_template.jinja, chat_template.json or tokenizer_config.json's chat_template (string, or list: "default").
  // Nothing if the directory has none. Throws Error(kModel) if it does not compile.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model_directory);
  ChatTemplate(std::string source, std::string bos_token, std::string eos_token);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws Error(kData): raise_exception's message, or fuel, recursion or output limits hit.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt, const Json& extra = Json::object()) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::text
