#include "deploy/serve/answer/call_reader.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "deploy/serve/answer/stop.h"

namespace specdec::deploy {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxQuotedName = 256;  // limit of a name or key in bytes; text with a longer one is no call
constexpr size_t kMaxTag = 256;

// Finds the end of one JSON object, array or string, byte by byte.
class JsonScan {
 public:
  enum class Step { kInside, kEnd, kImpossible };

  static bool begins(char c) { return c == '{' || c == '[' || c == '"'; }

  Step push(char c) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        return depth_ == 0 ? Step::kEnd : Step::kInside;
      }
      return Step::kInside;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    // Outside of a string, '<' is no valid JSON. It may begin the marker that ends the call.
    if (c == '<') return Step::kImpossible;
    if ((c == '}' || c == ']') && --depth_ == 0) return Step::kEnd;
    return Step::kInside;
  }

 private:
  size_t depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// Returns the decoded text of a JSON string, or nothing if it is malformed.
std::optional<std::string> unquoted(const std::string& quoted) {
  const Json value = Json::parse(quoted, nullptr, false);
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

class JsonCallReader final : public CallReader {
 public:
  explicit JsonCallReader(const OfferedTools* known) : known_(known) {}

  Status push(char c, std::string& name, std::string& arguments) override {
    const bool taken = step(c, name, arguments);
    if (!taken) return begun_ ? Status::kMalformed : Status::kNoCall;
    return phase_ == Phase::kEnd ? Status::kDone : Status::kMore;
  }

 private:
  enum class Phase { kKeyOrEnd, kKey, kColon, kValueBegin, kValue, kScalar, kCommaOrEnd, kEnd };
  enum class Member { kName, kArguments, kOther };

  // Processes a byte. Returns false if valid JSON of a call cannot continue with it.
  bool step(char c, std::string& name, std::string& arguments) {
    switch (phase_) {
      case Phase::kKeyOrEnd:
        if (c == '}') return end(name, arguments);
        if (is_json_space(c)) return true;
        return c == '"' && begin_scan(Phase::kKey, c);
      case Phase::kKey:
        text_ += c;
        if (text_.size() > kMaxQuotedName) return false;
        if (scan_.push(c) == JsonScan::Step::kEnd) phase_ = Phase::kColon;
        return true;
      case Phase::kColon:
        if (c == ':') phase_ = Phase::kValueBegin;
        return c == ':' || is_json_space(c);
      case Phase::kValueBegin:
        return is_json_space(c) || begin_value(c, name, arguments);
      case Phase::kValue:
        return in_value(c, name, arguments);
      case Phase::kScalar:
        if (c != ',' && c != '}' && !is_json_space(c)) return add(c, arguments);
        if (!end_value(name, arguments)) return false;
        return step(c, name, arguments);
      case Phase::kCommaOrEnd:
        if (c == ',') phase_ = Phase::kKeyOrEnd;
        if (c == '}') return end(name, arguments);
        return c == ',' || is_json_space(c);
      case Phase::kEnd:
        break;
    }
    return false;
  }

  bool begin_scan(Phase phase, char c) {
    phase_ = phase;
    scan_ = {};
    scan_.push(c);
    text_ = c;
    return true;
  }

  bool begin_value(char c, std::string& name, std::string& arguments) {
    if (c == ',' || c == '}' || c == ']' || c == '<' || c == ':') return false;
    member_ = member_of(text_);
    string_ = c == '"';
    if (member_ == Member::kName && !string_) return false;
    text_.clear();
    scan_ = {};
    phase_ = JsonScan::begins(c) ? Phase::kValue : Phase::kScalar;
    if (member_ == Member::kArguments && !name_.empty()) begin_call(name, arguments);
    return phase_ == Phase::kScalar ? add(c, arguments) : in_value(c, name, arguments);
  }

  bool in_value(char c, std::string& name, std::string& arguments) {
    const JsonScan::Step step = scan_.push(c);
    if (step == JsonScan::Step::kImpossible || !add(c, arguments)) return false;
    return step != JsonScan::Step::kEnd || end_value(name, arguments);
  }

  // Appends a byte of a value. A byte of the arguments is passed on at once if the call's name is known and the
  // arguments are not a JSON string. Otherwise it is collected in text_, as are the bytes of a name. Returns false if a
  // name is too long.
  bool add(char c, std::string& arguments) {
    if (member_ == Member::kArguments && begun_ && !string_) {
      arguments += c;
    } else if (member_ == Member::kArguments) {
      text_ += c;
    } else if (member_ == Member::kName) {
      text_ += c;
      return text_.size() <= kMaxQuotedName;
    }
    return true;
  }

  bool end_value(std::string& name, std::string& arguments) {
    phase_ = Phase::kCommaOrEnd;
    if (member_ == Member::kName) {
      const std::optional<std::string> read = unquoted(text_);
      if (!read || !is_known(*read)) return false;
      name_ = *read;
      if (arguments_read_) begin_call(name, arguments);
    }
    if (member_ != Member::kArguments) return true;
    arguments_read_ = true;
    if (string_) {
      // Text that is no valid JSON string is passed on unchanged.
      text_ = unquoted(text_).value_or(text_);
    }
    if (begun_)
      arguments += string_ ? text_ : "";
    else
      early_ = text_;
    return true;
  }

  void begin_call(std::string& name, std::string& arguments) {
    begun_ = true;
    name = name_;
    arguments += early_;
  }

  bool end(std::string& name, std::string& arguments) {
    if (name_.empty()) return false;
    if (!begun_) {
      begin_call(name, arguments);
      arguments += "{}";
    }
    phase_ = Phase::kEnd;
    return true;
  }

  Member member_of(const std::string& key) const {
    if (key == "\"name\"" && name_.empty()) return Member::kName;
    const bool arguments = key == "\"arguments\"" || key == "\"parameters\"";
    return arguments && !arguments_read_ ? Member::kArguments : Member::kOther;
  }

  bool is_known(const std::string& name) const {
    if (!known_) return !name.empty();
    return std::any_of(known_->list.begin(), known_->list.end(), [&](const auto& tool) { return tool.name == name; });
  }

  const OfferedTools* const known_;
  Phase phase_ = Phase::kKeyOrEnd;
  Member member_ = Member::kOther;
  JsonScan scan_;
  bool string_ = false;  // the current value is a string
  bool begun_ = false, arguments_read_ = false;
  std::string text_;   // the current key, then the collected bytes of its value
  std::string name_;   // the function's name, which may not have been returned yet
  std::string early_;  // arguments that the model wrote before the name
};

// Returns the tool with this name, or null.
const OfferedTool* tool_of(const OfferedTools& offered, const std::string& name) {
  const auto found =
      std::find_if(offered.list.begin(), offered.list.end(), [&](const OfferedTool& t) { return t.name == name; });
  return found == offered.list.end() ? nullptr : &*found;
}

bool has_type(const OrderedJson& value, const OrderedJson& type) {
  if (type == "string") return value.is_string();
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "integer")
    return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
  return true;
}

// Decides whether a value fits a parameter's schema. Looks only at types, enum, const, allOf, anyOf, oneOf and $ref. A
// schema that needs too many steps fits every value.
class SchemaFit {
 public:
  SchemaFit(const OrderedJson& root, const OrderedJson& value) : root_(root), value_(value) {}

  bool takes(const OrderedJson& schema) {
    if (schema.is_boolean()) return schema.get<bool>();
    if (!schema.is_object() || ++steps_ > kMostSteps) return true;
    const auto at = [&](const char* key) { return schema.find(key); };
    const auto takes_it = [this](const OrderedJson& alternative) { return takes(alternative); };
    if (const auto type = at("type"); type != schema.end()) {
      const auto fits = [this](const OrderedJson& one) { return has_type(value_, one); };
      if (type->is_array() ? std::none_of(type->begin(), type->end(), fits) : !fits(*type)) return false;
    }
    if (const auto only = at("const"); only != schema.end() && *only != value_) return false;
    if (const auto values = at("enum"); values != schema.end() && values->is_array()) {
      if ((comparisons_ += values->size()) > kMostComparisons) return true;
      if (std::find(values->begin(), values->end(), value_) == values->end()) return false;
    }
    for (const char* key : {"anyOf", "oneOf"})
      if (const auto any = at(key); any != schema.end() && any->is_array())
        if (std::none_of(any->begin(), any->end(), takes_it)) return false;
    if (const auto all = at("allOf"); all != schema.end() && all->is_array())
      if (!std::all_of(all->begin(), all->end(), takes_it)) return false;
    const auto reference = at("$ref");
    const OrderedJson* const target = reference == schema.end() ? nullptr : target_of(*reference);
    return !target || takes(*target);
  }

 private:
  static constexpr int kMostSteps = 1000;
  static constexpr size_t kMostComparisons = 131072;  // twice the size of the longest list that a request may contain

  const OrderedJson* target_of(const OrderedJson& reference) const {
    if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) return nullptr;
    try {
      return &root_.at(OrderedJson::json_pointer(reference.get<std::string>().substr(1)));
    } catch (const OrderedJson::exception&) {
      return nullptr;
    }
  }

  const OrderedJson &root_, &value_;
  int steps_ = 0;
  size_t comparisons_ = 0;
};

// Returns the JSON value that an unquoted text stands for, or nothing if it is no JSON. Also reads True, False and
// None, because models write Python's words.
std::optional<OrderedJson> json_of(const std::string& text) {
  if (text == "True" || text == "False") return text == "True";
  if (text == "None") return OrderedJson();
  try {
    return parse_ordered_json(text, "value");
  } catch (const Error&) {  // not JSON, or nested too deeply
    return std::nullopt;
  }
}

// Returns a parameter's value as JSON. The value is a string if the schema accepts a string or the tool does not
// declare the parameter. Otherwise it is the JSON value that the text stands for. The text "null" becomes null wherever
// the schema accepts null.
std::string value_json(const OfferedTool* tool, const std::string& key, const std::string& text) {
  const OrderedJson* properties =
      tool && tool->parameters.contains("properties") ? &tool->parameters["properties"] : nullptr;
  if (properties && properties->is_object() && properties->contains(key)) {
    const OrderedJson &schema = (*properties)[key], quoted = text;
    const auto takes = [&](const OrderedJson& value) { return SchemaFit(tool->parameters, value).takes(schema); };
    if (const auto value = json_of(text);
        value && (value->is_null() ? takes(*value) || !takes(quoted) : !takes(quoted)))
      return value->dump();
  }
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class XmlCallReader final : public CallReader {
 public:
  explicit XmlCallReader(const OfferedTools& offered) : offered_(offered) {}

  Status push(char c, std::string& name, std::string& arguments) override {
    if (value_) {
      text_ += value_->push({&c, 1});
      if (!value_->matched()) return Status::kMore;
      value_.reset();
      add_parameter(arguments);
      return Status::kMore;
    }
    if (!begun_) return in_name(c, name, arguments);
    if (tag_.empty() && is_json_space(c)) return Status::kMore;
    if ((tag_.empty() && c != '<') || tag_.size() > kMaxTag) return malformed(arguments);
    tag_ += c;
    if (c != '>') return Status::kMore;
    if (tag_ == "</function>" || tag_ == "</tool_call>") {  // some models omit </function>
      arguments += "}";
      return Status::kDone;
    }
    constexpr std::string_view kParameter = "<parameter=";
    if (tag_.rfind(kParameter, 0) != 0) return malformed(arguments);
    key_ = tag_.substr(kParameter.size(), tag_.size() - kParameter.size() - 1);
    tag_.clear();
    text_.clear();
    value_.emplace(std::vector<std::string>{"</parameter>"});
    return Status::kMore;
  }

 private:
  Status in_name(char c, std::string& name, std::string& arguments) {
    if (c != '>') {
      if (is_json_space(c) || c == '<' || name_.size() > kMaxQuotedName) return Status::kNoCall;
      name_ += c;
      return Status::kMore;
    }
    if (name_.empty()) return Status::kNoCall;
    begun_ = true;
    name = name_;
    arguments += "{";
    return Status::kMore;
  }

  static Status malformed(std::string& arguments) {
    arguments += "}";
    return Status::kMalformed;
  }

  // The new line after the opening tag and the new line before the closing tag do not belong to the value.
  void add_parameter(std::string& arguments) {
    if (!keys_.insert(key_).second) return;  // a repeated key is ignored
    if (!text_.empty() && text_.front() == '\n') text_.erase(0, 1);
    if (!text_.empty() && text_.back() == '\n') text_.pop_back();
    arguments += (keys_.size() == 1 ? "" : ", ") + Json(key_).dump(-1, ' ', false, Json::error_handler_t::replace) +
                 ": " + value_json(tool_of(offered_, name_), key_, text_);
  }

  const OfferedTools& offered_;
  bool begun_ = false;
  std::string name_, tag_, key_, text_;
  std::set<std::string> keys_;
  std::optional<StopMatcher> value_;  // finds the end of the parameter's value being read
};

class NamedCallReader final : public CallReader {
 public:
  Status push(char c, std::string& name, std::string& arguments) override {
    switch (phase_) {
      case Phase::kName:
        if (c == '[') return begin_tag(c);
        if (c == '{') return begin_arguments(c, name, arguments);
        if (is_json_space(c)) {
          spaced_ = true;
          return Status::kMore;
        }
        if (spaced_ || !is_name_byte(c) || name_.size() > kMaxQuotedName) return Status::kNoCall;
        name_ += c;
        return Status::kMore;
      case Phase::kTag:
        tag_ += c;
        if (tag_.size() > kMaxTag) return Status::kNoCall;
        if (c != ']') return Status::kMore;
        if (tag_ != "[ARGS]" && tag_ != "[CALL_ID]") return Status::kNoCall;
        phase_ = tag_ == "[ARGS]" ? Phase::kBrace : Phase::kCallId;
        return Status::kMore;
      case Phase::kCallId:
        if (c == '[') return begin_tag(c);
        return std::isalnum(static_cast<unsigned char>(c)) ? Status::kMore : Status::kNoCall;
      case Phase::kBrace:
        if (c == '{') return begin_arguments(c, name, arguments);
        return is_json_space(c) ? Status::kMore : Status::kNoCall;
      case Phase::kArguments:
        return in_arguments(c, arguments);
    }
    return Status::kNoCall;
  }

 private:
  enum class Phase { kName, kTag, kCallId, kBrace, kArguments };

  static bool is_name_byte(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-.:/").find(c) != std::string_view::npos;
  }

  Status begin_tag(char c) {
    if (name_.empty()) return Status::kNoCall;
    tag_ = c;
    phase_ = Phase::kTag;
    return Status::kMore;
  }

  Status begin_arguments(char c, std::string& name, std::string& arguments) {
    if (name_.empty()) return Status::kNoCall;
    name = name_;
    phase_ = Phase::kArguments;
    return in_arguments(c, arguments);
  }

  Status in_arguments(char c, std::string& arguments) {
    const JsonScan::Step step = scan_.push(c);
    if (step == JsonScan::Step::kImpossible) return Status::kMalformed;
    arguments += c;
    return step == JsonScan::Step::kEnd ? Status::kDone : Status::kMore;
  }

  Phase phase_ = Phase::kName;
  bool spaced_ = false;  // white space has followed the name
  std::string name_, tag_;
  JsonScan scan_;
};

}  // namespace

std::unique_ptr<CallReader> make_json_call_reader(const OfferedTools* known) {
  return std::make_unique<JsonCallReader>(known);
}

std::unique_ptr<CallReader> make_xml_call_reader(const OfferedTools& offered) {
  return std::make_unique<XmlCallReader>(offered);
}

std::unique_ptr<CallReader> make_named_call_reader() { return std::make_unique<NamedCallReader>(); }

}  // namespace specdec::deploy
