// Reads one function call from text, byte by byte. Each way of writing a call has a reader of its own.
#pragma once

#include <memory>
#include <string>

#include "deploy/serve/request/chat_request.h"

namespace specdec::deploy {

// Returns whether JSON may have this byte between its parts.
inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

class CallReader {
 public:
  enum class Status {
    kMore,       // the call goes on
    kDone,       // the byte ended the call
    kNoCall,     // the text is no call, and nothing of it was returned; the byte was not taken
    kMalformed,  // the call ended before this byte, which was not taken; what was returned of it may be no valid JSON
  };

  virtual ~CallReader() = default;
  // Appends what the byte reveals of the call. `name` is set once, before the first of `arguments`.
  virtual Status push(char c, std::string& name, std::string& arguments) = 0;
};

// Reads {"name": …, "arguments": …} after its first brace; "parameters" is taken for "arguments". Arguments in a
// string are unpacked. If `known` is not null, any other name than one of these tools' is no call.
std::unique_ptr<CallReader> make_json_call_reader(const OfferedTools* known);

// Reads name><parameter=key>value</parameter>…</function>, which follows "<function=". A value is a string if the
// schema of the tool's parameter takes one, else JSON. The value of a parameter that the tool does not declare is a
// string.
std::unique_ptr<CallReader> make_xml_call_reader(const OfferedTools& offered);

// Reads name[ARGS]{…} or name{…}; [CALL_ID]id may stand after the name.
std::unique_ptr<CallReader> make_named_call_reader();

}  // namespace specdec::deploy
