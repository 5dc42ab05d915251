#include "deploy/serve/request/grammar_fields.h"

#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "base/format.h"
#include "deploy/serve/request/request_fields.h"

namespace specdec::deploy {

namespace {

// Returns a regular expression that matches exactly these texts. None of them may be empty.
std::string one_of(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    all += all.empty() ? "(" : "|";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      // '<' and '>' are not escaped, because "\<" would mean a word boundary.
      const bool plain = byte >= 0x80 || std::isalnum(byte) || c == ' ' || c == '<' || c == '>';
      all += plain ? std::string(1, c) : format("\\x%02x", static_cast<unsigned>(byte));
    }
  }
  return all + ")";
}

// Reads the grammar of a request from all fields that may contain one: those of OpenAI, and those of older and newer
// vLLM versions. At most one may be set.
class GrammarFields {
 public:
  GrammarFields(OrderedJson fields, const ServeLimits& limits) : body_(std::move(fields)), limits_(limits) {}

  std::optional<RequestedGrammar> read() {
    if (const OrderedJson* format = find_in(body_, "response_format")) response_format(*format);
    kinds(body_, "guided_", "");
    if (const OrderedJson* outputs = find_in(body_, "structured_outputs")) {
      if (!outputs->is_object()) reject("structured_outputs", "an object with json, json_object, regex or choice");
      for (const char* unknown : {"grammar", "structural_tag"})
        if (find_in(*outputs, unknown)) refuse(std::string("structured_outputs.") + unknown);
      require_only(*outputs, "structured_outputs",
                   {"json", "json_object", "regex", "choice", "whitespace_pattern", "disable_any_whitespace",
                    "disable_additional_properties"});
      kinds(*outputs, "", "structured_outputs.");
      if (const OrderedJson* any = find_in(*outputs, "json_object")) {
        if (!any->is_boolean()) reject("structured_outputs.json_object", "true or false");
        if (*any == true) set("structured_outputs.json_object", kSchema, kAnyObject);
      }
    }
    return std::move(found_);
  }

 private:
  static constexpr auto kSchema = text::GrammarKind::kJsonSchema, kRegex = text::GrammarKind::kRegex;
  static constexpr char kAnyObject[] = R"({"type":"object"})";

  static const OrderedJson* find_in(const OrderedJson& object, const std::string& key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }

  void response_format(const OrderedJson& format) {
    const OrderedJson* type = format.is_object() ? find_in(format, "type") : nullptr;
    const bool any_object = type && *type == "json_object", by_schema = type && *type == "json_schema";
    if (!any_object && !by_schema && !(type && *type == "text"))
      reject("response_format.type", "text, json_object or json_schema");
    // Other servers accept a schema together with json_object, so such a schema constrains the answer here, too.
    require_only(format, "response_format", {"type", any_object ? "schema" : by_schema ? "json_schema" : "type"});
    if (any_object && !find_in(format, "schema")) return set("response_format", kSchema, kAnyObject);
    if (any_object) return set_schema("response_format.schema", find_in(format, "schema"));
    if (!by_schema) return;
    const OrderedJson* wrapper = find_in(format, "json_schema");
    if (wrapper && wrapper->is_object())
      require_only(*wrapper, "response_format.json_schema", {"name", "description", "schema", "strict"});
    set_schema("response_format.json_schema", wrapper && wrapper->is_object() ? find_in(*wrapper, "schema") : nullptr);
  }

  void set_schema(const std::string& param, const OrderedJson* schema) {
    if (!schema || !(schema->is_object() || schema->is_boolean()))
      reject(param, param.ends_with(".schema") ? "a JSON schema" : "an object with the schema under 'schema'");
    set(param, kSchema, schema->dump());
  }

  // Refuses members of the object that would have no effect.
  static void require_only(const OrderedJson& object, const std::string& param, const std::set<std::string>& known) {
    for (const auto& member : object.items())
      if (!member.value().is_null() && !known.contains(member.key())) {
        std::string names;
        for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
        reject(param, "no members but " + names);
      }
  }

  void kinds(const OrderedJson& object, const std::string& prefix, const std::string& path) {
    if (const OrderedJson* schema = find_in(object, prefix + "json")) {
      if (!schema->is_object() && !schema->is_string())
        reject(path + prefix + "json", "a JSON schema, as an object or as text");
      if (!schema->empty())
        set(path + prefix + "json", kSchema, schema->is_string() ? schema->get<std::string>() : schema->dump());
    }
    if (const OrderedJson* regex = find_in(object, prefix + "regex")) {
      if (!regex->is_string()) reject(path + prefix + "regex", "a regular expression");
      set(path + prefix + "regex", kRegex, regex->get<std::string>());
    }
    if (const OrderedJson* choice = find_in(object, prefix + "choice")) {
      std::vector<std::string> texts;
      if (choice->is_array())
        for (const OrderedJson& item : *choice)
          if (item.is_string() && !item.get_ref<const std::string&>().empty()) texts.push_back(item.get<std::string>());
      if (!choice->is_array() || texts.size() != choice->size())
        reject(path + prefix + "choice", "texts to choose from, none of them empty");
      if (!texts.empty()) set(path + prefix + "choice", kRegex, one_of(texts));
    }
  }

  void set(const std::string& param, text::GrammarKind kind, std::string source) {
    if (found_) reject(param, "one grammar per request, and " + found_->param + " gives one already");
    if (source.empty() || source.size() > limits_.grammar_bytes)
      reject(param, "1 to " + std::to_string(limits_.grammar_bytes) + " bytes");
    found_ = {kind, std::move(source), param};
  }

  const OrderedJson body_;
  const ServeLimits& limits_;
  std::optional<RequestedGrammar> found_;
};

}  // namespace

std::optional<RequestedGrammar> read_grammar(std::string_view body, const Json& fields, const ServeLimits& limits) {
  OrderedJson ordered = OrderedJson::object();
  for (const char* key : {"response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs"})
    if (find_field(fields, key)) ordered[key] = ordered_member(body, key);
  return ordered.empty() ? std::nullopt : GrammarFields(std::move(ordered), limits).read();
}

}  // namespace specdec::deploy
