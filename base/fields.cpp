#include "base/fields.h"

#include <algorithm>

namespace specdec {

namespace {

// ---- writing ----

class ValueWriter final : public Value {
 public:
  void write_to(Json& to) { to_ = &to; }

  void integer(int64_t& x, const JsonInts&) override { *to_ = x; }
  void number(double& x, const JsonNumbers&) override { *to_ = x; }
  void flag(bool& x) override { *to_ = x; }
  void text(std::string& x) override { *to_ = x; }
  void digest(std::string& x, bool) override { *to_ = x; }
  void word(std::string& x, Words) override { *to_ = x; }
  void interval(Interval& x) override { *to_ = {x.low, x.high}; }
  void json(Json& x, const Json&) override { *to_ = x; }
  bool maybe(bool has) override {
    if (!has) *to_ = nullptr;
    return has;
  }
  void object(FunctionRef<void(Fields&)> visit) override { *to_ = json_of_fields(visit); }
  void tuple(const char*, FunctionRef<void(Fields&)> visit) override;
  void list(size_t size, const ListRule&, FunctionRef<void(size_t)>, FunctionRef<void(Value&, size_t)> item) override {
    *to_ = Json::array_t(size);
    ValueWriter one;
    for (size_t i = 0; i < size; ++i) {
      one.write_to((*to_)[i]);
      item(one, i);
    }
  }
  void map(const std::vector<std::string>& keys, const MapRule&,
           FunctionRef<void(Value&, const std::string&)> entry) override {
    *to_ = Json::object();
    ValueWriter one;
    for (const std::string& key : keys) {
      one.write_to((*to_)[key]);
      entry(one, key);
    }
  }

 private:
  Json* to_ = nullptr;
};

class ObjectWriter final : public Fields {
 public:
  void schema(const std::string& name, int version) override {
    json_["schema"] = "specdec." + name + "/" + std::to_string(version);
  }
  Json take() { return std::move(json_); }

 private:
  Value* at(const Key& key, bool is_empty) override {
    if (key.presence == Presence::kIfAny && is_empty) return nullptr;
    value_.write_to(json_[key.name]);
    return &value_;
  }

  Json json_ = Json::object();
  ValueWriter value_;
};

class TupleWriter final : public Fields {
 public:
  void schema(const std::string&, int) override {}
  Json take() { return std::move(json_); }

 private:
  Value* at(const Key&, bool) override {
    json_.push_back(nullptr);
    value_.write_to(json_.back());
    return &value_;
  }

  Json json_ = Json::array();
  ValueWriter value_;
};

void ValueWriter::tuple(const char*, FunctionRef<void(Fields&)> visit) {
  TupleWriter items;
  visit(items);
  *to_ = items.take();
}

// ---- reading ----

class ValueReader final : public Value {
 public:
  explicit ValueReader(ErrorKind kind) : kind_(kind) {}
  // Sets the value to read. An error names the value by `where`, followed by its key or by its index in an array.
  void read_from(const Json& from, const std::string& where, const char* key, std::optional<size_t> item = {}) {
    from_ = &from, where_ = &where, key_ = key, item_ = item;
  }

  void integer(int64_t& x, const JsonInts& allowed) override {
    const auto found = allowed.value_of(*from_);
    if (!found) refuse(allowed.expected());
    x = *found;
  }
  void number(double& x, const JsonNumbers& allowed) override {
    const auto found = allowed.value_of(*from_);
    if (!found) refuse(allowed.expected());
    x = *found;
  }
  void flag(bool& x) override {
    if (!from_->is_boolean()) refuse("true or false");
    x = from_->get<bool>();
  }
  void text(std::string& x) override {
    if (!from_->is_string()) refuse("a string");
    x = from_->get_ref<const std::string&>();
  }
  void digest(std::string& x, bool may_be_empty) override {
    text(x);
    if (!is_sha256_hex(x) && !(may_be_empty && x.empty())) refuse("64 lower-case hexadecimal digits");
  }
  void word(std::string& x, Words words) override {
    text(x);
    if (std::any_of(words.begin(), words.end(), [&](const char* word) { return x == word; })) return;
    std::string list;
    for (size_t i = 0; i < words.size(); ++i)
      list += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
    throw Error(kind_, path() + ": expected " + list + ", found '" + x.substr(0, 40) + "'");
  }
  void interval(Interval& x) override {
    const Json& pair = *from_;
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number() ||
        pair[0].get<double>() > pair[1].get<double>())
      throw Error(kind_, path() + ": expected [low, high]");
    x = {pair[0].get<double>(), pair[1].get<double>()};
  }
  void json(Json& x, const Json& schema) override {
    if (schema.value("type", Json()) == "object" && !from_->is_object()) refuse("an object");
    x = *from_;
  }
  bool maybe(bool) override { return !from_->is_null(); }
  void object(FunctionRef<void(Fields&)> visit) override {
    constexpr size_t kMaxKeys = 64;
    if (key_ && (!from_->is_object() || from_->size() > kMaxKeys))
      refuse("an object of at most " + std::to_string(kMaxKeys) + " keys");
    read_fields(*from_, path(), kind_, visit);
  }
  void tuple(const char* form, FunctionRef<void(Fields&)> visit) override;
  void list(size_t, const ListRule& rule, FunctionRef<void(size_t)> resize,
            FunctionRef<void(Value&, size_t)> item) override {
    if (!from_->is_array() || from_->size() > rule.most)
      refuse("an array of at most " + std::to_string(rule.most) + " items");
    resize(from_->size());
    const std::string at = path();
    ValueReader one(kind_);
    for (size_t i = 0; i < from_->size(); ++i) {
      one.read_from((*from_)[i], at, nullptr, rule.numbered ? std::optional(i) : std::nullopt);
      item(one, i);
    }
  }
  void map(const std::vector<std::string>&, const MapRule& rule,
           FunctionRef<void(Value&, const std::string&)> entry) override {
    if (!from_->is_object() || from_->size() > rule.most)
      refuse("an object of at most " + std::to_string(rule.most) + " keys");
    const std::string at = path();
    ValueReader one(kind_);
    for (const auto& [key, value] : from_->items()) {
      if (rule.numbers && (key.empty() || key.size() > 6 || key.find_first_not_of("0123456789") != std::string::npos))
        throw Error(kind_, at + ": expected positive integers as keys, found '" + key.substr(0, 20) + "'");
      one.read_from(value, at, key.c_str());
      entry(one, key);
    }
  }

 private:
  std::string path() const {
    return *where_ + (key_ ? ": " + std::string(key_) : "") + (item_ ? "[" + std::to_string(*item_) + "]" : "");
  }
  [[noreturn]] void refuse(const std::string& expected) const { refuse_value(*from_, expected, path(), kind_); }

  ErrorKind kind_;
  const Json* from_ = nullptr;
  const std::string* where_ = nullptr;
  const char* key_ = nullptr;
  std::optional<size_t> item_;
};

class ObjectReader : public Fields {
 public:
  ObjectReader(const Json& object, const std::string& where, ErrorKind kind)
      : object_(object), where_(where), kind_(kind), value_(kind) {}
  bool reads() const override { return true; }
  void refuse(const std::string& text) override { throw Error(kind_, where_ + ": " + text); }
  void schema(const std::string& name, int version) override { require_schema(object_, name, version, where_, kind_); }

 protected:
  Value* at(const Key& key, bool) override {
    const auto found = object_.find(key.name);
    if (found == object_.end() || found->is_null()) {
      if (key.presence == Presence::kAlways) refuse(std::string(key.name) + ": missing");
      return nullptr;
    }
    value_.read_from(*found, where_, key.name);
    return &value_;
  }

  const Json& object_;
  const std::string& where_;
  const ErrorKind kind_;
  ValueReader value_;
};

// Reads an array whose items have different meanings: each visited field takes the next item.
class TupleReader final : public ObjectReader {
 public:
  using ObjectReader::ObjectReader;

 private:
  Value* at(const Key& key, bool) override {
    value_.read_from(object_[next_++], where_, key.name);
    return &value_;
  }
  size_t next_ = 0;
};

void ValueReader::tuple(const char* form, FunctionRef<void(Fields&)> visit) {
  const auto items = static_cast<size_t>(std::count(form, form + std::char_traits<char>::length(form), ',')) + 1;
  const std::string at = path();
  if (!from_->is_array() || from_->size() != items) throw Error(kind_, at + ": expected " + form);
  TupleReader reader(*from_, at, kind_);
  visit(reader);
}

}  // namespace

void Fields::number_if(const Key& key, bool present, std::optional<double>& x) {
  Json value = x ? Json(*x) : Json();
  json({key.name, key.text, present ? Presence::kDefaulted : Presence::kIfAny}, value, {{"type", {"number", "null"}}});
  if (!reads()) return;
  x.reset();
  if (value.is_number())
    x = value.get<double>();
  else if (!value.is_null())
    refuse(std::string(key.name) + ": expected a number or null");
}

Json json_of_fields(FunctionRef<void(Fields&)> visit) {
  ObjectWriter writer;
  visit(writer);
  return writer.take();
}

void read_fields(const Json& object, const std::string& where, ErrorKind kind, FunctionRef<void(Fields&)> visit) {
  if (!object.is_object()) refuse_value(object, "a JSON object", where, kind);
  ObjectReader reader(object, where, kind);
  visit(reader);
}

}  // namespace specdec
