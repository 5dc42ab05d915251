#include "base/field_schema.h"

#include <cmath>
#include <set>

namespace specdec {

namespace {

// Limits of this size or more only reject absurd values, so the JSON Schema does not state them.
constexpr double kNoLimit = 1e12;

class ValueSchema final : public Value {
 public:
  explicit ValueSchema(Definitions& definitions) : definitions_(definitions) {}
  // `may_be_absent`: the field is left out if it has no value, so the schema does not allow null.
  void write_to(OrderedJson& to, bool may_be_absent = false) {
    to_ = &to, nullable_ = false, may_be_absent_ = may_be_absent;
  }

  void integer(int64_t&, const JsonInts& allowed) override {
    put("integer");
    if (allowed.low > -static_cast<int64_t>(kNoLimit)) (*to_)["minimum"] = allowed.low;
    if (allowed.high < static_cast<int64_t>(kNoLimit)) (*to_)["maximum"] = allowed.high;
  }
  void number(double&, const JsonNumbers& allowed) override {
    put("number");
    if (allowed.low > -kNoLimit) limit("minimum", allowed.low);
    if (allowed.high < kNoLimit) limit("maximum", allowed.high);
  }
  void flag(bool&) override { put("boolean"); }
  void text(std::string&) override { put("string"); }
  void digest(std::string&, bool may_be_empty) override {
    put("string");
    (*to_)["pattern"] = may_be_empty ? "^([0-9a-f]{64})?$" : "^[0-9a-f]{64}$";
  }
  void word(std::string&, Words words) override {
    OrderedJson list = OrderedJson::array();
    for (const char* word : words) list.push_back(word);
    if (nullable_) list.push_back(nullptr);
    *to_ = {{"enum", list}};
  }
  void interval(Interval&) override {
    put("array");
    to_->update({{"items", {{"type", "number"}}}, {"minItems", 2}, {"maxItems", 2}});
  }
  void json(Json&, const Json& schema) override { *to_ = OrderedJson::parse(schema.dump()); }
  bool maybe(bool) override {
    nullable_ = !may_be_absent_;
    return true;
  }
  void object(FunctionRef<void(Fields&)> visit) override;
  void tuple(const char*, FunctionRef<void(Fields&)> visit) override;
  void list(size_t, const ListRule&, FunctionRef<void(size_t)> resize,
            FunctionRef<void(Value&, size_t)> item) override {
    put("array");
    ValueSchema one(definitions_);
    one.write_to((*to_)["items"]);
    resize(1);
    item(one, 0);
    resize(0);
  }
  void map(const std::vector<std::string>&, const MapRule& rule,
           FunctionRef<void(Value&, const std::string&)> entry) override {
    put("object");
    ValueSchema one(definitions_);
    one.write_to((*to_)["additionalProperties"]);
    entry(one, rule.numbers ? "1" : "");
  }

 private:
  void put(const char* type) {
    if (nullable_)
      *to_ = {{"type", {type, "null"}}};
    else
      *to_ = {{"type", type}};
  }
  void limit(const char* word, double value) {
    if (value == std::floor(value))
      (*to_)[word] = static_cast<int64_t>(value);
    else
      (*to_)[word] = value;
  }

  Definitions& definitions_;
  OrderedJson* to_ = nullptr;
  bool nullable_ = false, may_be_absent_ = false;
};

class ObjectSchema final : public Fields {
 public:
  explicit ObjectSchema(Definitions& definitions) : value_(definitions) {}
  void type(const char* name, const char* text) override { name_ = name, text_ = text; }
  void schema(const std::string& name, int version) override {
    properties_["schema"] = {{"const", "specdec." + name + "/" + std::to_string(version)}};
    required_.push_back("schema");
  }
  const std::string& name() const { return name_; }
  OrderedJson take() {
    OrderedJson schema = {{"type", "object"}};
    if (!text_.empty()) schema["description"] = text_;
    for (auto& [key, property] : properties_.items())
      if (texts_.contains(key)) property["description"] = texts_[key];
    schema["properties"] = std::move(properties_);
    schema["required"] = std::move(required_);
    return schema;
  }

 private:
  Value* at(const Key& key, bool) override {
    if (*key.text) texts_[key.name] = key.text;
    if (key.presence != Presence::kIfAny) required_.push_back(key.name);
    value_.write_to(properties_[key.name], key.presence == Presence::kIfAny);
    return &value_;
  }

  std::string name_, text_;
  OrderedJson properties_ = OrderedJson::object(), required_ = OrderedJson::array();
  std::map<std::string, std::string> texts_;
  ValueSchema value_;
};

// Describes an array by the types of its items.
class TupleSchema final : public Fields {
 public:
  explicit TupleSchema(Definitions& definitions) : value_(definitions) {}
  void schema(const std::string&, int) override {}
  void write_to(OrderedJson& array) const {
    std::set<std::string> types;
    for (const OrderedJson& item : items_)
      for (const OrderedJson& type : item["type"].is_array() ? item["type"] : OrderedJson::array({item["type"]}))
        types.insert(type);
    if (types.contains("number")) types.erase("integer");
    array["items"] = {{"type", types.size() == 1 ? OrderedJson(*types.begin()) : OrderedJson(types)}};
    array["minItems"] = items_.size();
    array["maxItems"] = items_.size();
  }

 private:
  Value* at(const Key&, bool) override {
    items_.emplace_back();
    value_.write_to(items_.back());
    return &value_;
  }
  std::vector<OrderedJson> items_;
  ValueSchema value_;
};

void ValueSchema::object(FunctionRef<void(Fields&)> visit) {
  ObjectSchema object(definitions_);
  visit(object);
  if (object.name().empty()) {
    *to_ = object.take();
    if (nullable_) (*to_)["type"] = {"object", "null"};
    return;
  }
  definitions_.put(object.name(), object.take());
  const OrderedJson reference = {{"$ref", "#/$defs/" + object.name()}};
  *to_ = nullable_ ? OrderedJson{{"anyOf", {reference, {{"type", "null"}}}}} : reference;
}

void ValueSchema::tuple(const char*, FunctionRef<void(Fields&)> visit) {
  put("array");
  TupleSchema items(definitions_);
  visit(items);
  items.write_to(*to_);
}

}  // namespace

OrderedJson& Definitions::add(FunctionRef<void(Fields&)> visit) {
  ObjectSchema object(*this);
  visit(object);
  put(object.name(), object.take());
  return json_[object.name()];
}

void Definitions::put(const std::string& name, const OrderedJson& schema) {
  if (json_.contains(name) && json_[name] != schema)
    throw Error(ErrorKind::kInternal, "two definitions are called " + name);
  json_[name] = schema;
}

}  // namespace specdec
