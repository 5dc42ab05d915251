// Reads one function call from text, byte by byte. Each syntax of calls has its own reader.
#pragma once

#include <memory>
#include <string>

#include "deploy/serve/request/chat_request.h"

namespace specdec::deploy {

// Returns whether the byte is white space that JSON allows between its tokens.
inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

class CallReader {
 public:
  enum class Status {
    kMore,       // the call continues
    kDone,       // this byte ended the call
    kNoCall,     // the text is no call; the reader returned nothing and did not consume this byte
    kMalformed,  // the call broke off before this byte, which was not consumed; its arguments may be invalid
  };

  virtual ~CallReader() = default;
  // Appends the parts of the call that the byte makes known. `name` is set once, before the first of `arguments`.
  virtual Status push(char c, std::string& name, std::string& arguments) = 0;
};

// Reads {"name": …, "arguments": …} after the first brace; the key "parameters" means "arguments". Arguments that are a
// JSON string are decoded. If `known` is not null, text whose name is not in `known` is no call.
std::unique_ptr<CallReader> make_json_call_reader(const OfferedTools* known);

// Reads Qwen3-Coder's name><parameter=key>value</parameter>…</function>, which follows "<function=". A value is
// returned as a string if the schema of the tool's parameter accepts one, else as JSON. The value of a parameter that
// the tool does not declare is a string.
std::unique_ptr<CallReader> make_xml_call_reader(const OfferedTools& offered);

// Reads Mistral's name[ARGS]{…} or name{…}; [CALL_ID]id may follow the name.
std::unique_ptr<CallReader> make_named_call_reader();

}  // namespace specdec::deploy
