// Lets a struct name the fields of its JSON object in one place. The struct has one function that names the fields in
// order; with this function the object is written, read and described for docs/results.json:
//
//   void visit_fields(Fields& f, LabelShard& s) {
//     f.type("LabelShard", "A file of labels, for consecutive rows of the data.");
//     f("file", s.file);
//     f.digest("sha256", s.sha256);
//     f("num_rows", s.num_rows, kAnyCount);
//   }
//
// json_of(shard) writes, read_fields<LabelShard>(json, where, kind) reads, and base/field_schema.h describes. Writing
// does not change the object, although visit_fields() takes a reference. A rule about several fields is checked after
// the visit, or during it with refuse(). An error names the path of the key, what was found and what was expected.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_value.h"

namespace specdec {

enum class Presence {
  kAlways,     // written, and reading fails without it
  kDefaulted,  // always written; if missing or null in a file (of an earlier version), the member is not changed
  kIfAny,      // written unless the member is empty, 0 or false; read like kDefaulted
};
// The name of a field, and optionally a sentence that documents the field.
struct Key {
  Key(const char* key, const char* sentence = "", Presence when = Presence::kAlways)  // NOLINT: f("name", ...)
      : name(key), text(sentence), presence(when) {}
  const char *name, *text;
  Presence presence;
};
inline Key defaulted(const char* name, const char* text = "") { return {name, text, Presence::kDefaulted}; }
inline Key if_any(const char* name, const char* text = "") { return {name, text, Presence::kIfAny}; }

template <class E>
struct Named {
  E value;
  const char* name;
};

class Fields {
 public:
  virtual ~Fields() = default;
  // Returns whether visit_fields() is reading JSON. Only then may refuse() throw, and only then are the members given
  // values during the visit.
  virtual bool reads() const { return false; }
  virtual void refuse(const std::string& /*text*/) {}
  // Sets the name and the description of the struct's definition in docs/results.json. A struct whose visit_fields()
  // does not call type() is described where it is used.
  virtual void type(const char* /*name*/, const char* /*text*/) {}
  virtual void schema(const std::string& name, int version) = 0;  // "schema": "specdec.<name>/<version>"

  void operator()(const Key& key, int64_t& x, const JsonInts& allowed = kAnyInt) { field(key, x, allowed); }
  void operator()(const Key& key, int& x, const JsonInts& allowed = kAnyInt) { field(key, x, allowed); }
  void operator()(const Key& key, uint64_t& x, const JsonInts& allowed = kAnyInt) { field(key, x, allowed); }
  void operator()(const Key& key, double& x, const JsonNumbers& allowed = kAnyNumber) { field(key, x, allowed); }
  void operator()(const Key& key, std::optional<double>& x, const JsonNumbers& allowed = kAnyNumber) {
    field(key, x, allowed);
  }
  void operator()(const Key& key, std::optional<int64_t>& x, const JsonInts& allowed = kAnyInt) {
    field(key, x, allowed);
  }
  void operator()(const Key& key, std::vector<int64_t>& x, const JsonInts& items, size_t most) {
    field(key, x, ListRule{most}, items);
  }
  void operator()(const Key& key, std::vector<int32_t>& x, const JsonInts& items, size_t most) {
    field(key, x, ListRule{most}, items);
  }
  void operator()(const Key& key, std::vector<double>& x, const JsonNumbers& items, size_t most) {
    field(key, x, ListRule{most}, items);
  }
  void operator()(const Key& key, std::map<std::string, int64_t>& counts) { field(key, counts, MapRule{}, kAnyCount); }
  template <class T>
  void operator()(const Key& key, T& x) {
    field(key, x);
  }
  template <class T>
  void operator()(const Key& key, std::vector<T>& x, const ListRule& limits = {}) {
    field(key, x, limits);
  }
  template <class K, class T, class... Rule>
  void operator()(const Key& key, std::map<K, T>& x, const MapRule& limits, const Rule&... rule) {
    field(key, x, limits, rule...);
  }
  template <class K, class T>
  void operator()(const Key& key, std::optional<std::map<K, T>>& x, const MapRule& limits) {
    field(key, x, limits);
  }
  void digest(const Key& key, std::string& x, bool may_be_empty = false) {
    if (Value* v = at(key, x.empty())) v->digest(x, may_be_empty);
  }
  void json(const Key& key, Json& x, const Json& schema = {{"type", "object"}}) {
    if (Value* v = at(key, x.is_null() || x.empty())) v->json(x, schema);
  }
  // A number, or null if it is not known. The field is left out unless `present`.
  void number_if(const Key& key, bool present, std::optional<double>& x);
  // A field whose value is one of `words`: a string, or an enum with a name for each value. An error lists the words.
  void one_of(const Key& key, std::string& x, const std::vector<const char*>& words) {
    if (Value* v = at(key, x.empty())) v->word(x, words);
  }
  template <class E, size_t N>
  void one_of(const Key& key, E& x, const Named<E> (&names)[N]) {
    std::vector<const char*> words;
    std::string name;
    for (const Named<E>& known : names) {
      words.push_back(known.name);
      if (known.value == x) name = known.name;
    }
    one_of(key, name, words);
    for (const Named<E>& known : names)
      if (known.name == name && known.value != x) x = known.value;
  }
  void constant(const Key& key, const char* word) {
    std::string x = word;
    one_of(key, x, {word});
  }
  // group() visits an object whose fields are members of the same struct. group_if() visits an object that is written
  // only if `present` is true; reading sets `present` if the object is there.
  void group(const Key& key, FunctionRef<void(Fields&)> visit) {
    if (Value* v = at(key, false)) v->object(visit);
  }
  void group_if(const char* key, bool& present, FunctionRef<void(Fields&)> visit) {
    Value* v = at(if_any(key), !present);
    if (!v) return;
    if (!present) present = true;
    v->object(visit);
  }
  // An object that is written as an array; `form` names its items, such as "[low, high, k]".
  void row(const Key& key, const char* form, FunctionRef<void(Fields&)> visit) {
    if (Value* v = at(key, false)) v->tuple(form, visit);
  }
  // A list of such objects.
  template <Visited T>
  void rows(const Key& key, std::vector<T>& x, const char* form, size_t most) {
    if (Value* v = at(key, x.empty()))
      v->list(
          x.size(), {.most = most}, [&](size_t size) { x.resize(size); },
          [&](Value& item, size_t i) { item.tuple(form, [&](Fields& f) { visit_fields(f, x[i]); }); });
  }
  // A value that is computed from other fields. It is written and described, but ignored when reading.
  template <class T, class... Rule>
  void derived(const Key& key, T x, const Rule&... rule) {
    if (!reads()) field(key, x, rule...);
  }

 protected:
  // Returns the Value through which the field is visited, or null if the field is left out. Valid until the next call.
  virtual Value* at(const Key& key, bool is_empty) = 0;

 private:
  template <class T>
  static bool is_empty(const T& x) {
    if constexpr (requires { x.empty(); })
      return x.empty();
    else if constexpr (requires { x.has_value(); })
      return !x.has_value();
    else if constexpr (std::is_arithmetic_v<T>)
      return x == T{};
    else
      return false;
  }
  template <class T, class... Rule>
  void field(const Key& key, T& x, const Rule&... rule) {
    const bool is_optional = requires { x.has_value(); };
    const Presence presence = is_optional && key.presence == Presence::kAlways ? Presence::kDefaulted : key.presence;
    if (Value* v = at({key.name, key.text, presence}, is_empty(x))) (*v)(x, rule...);
  }
};

Json json_of_fields(FunctionRef<void(Fields&)> visit);
// Calls `visit` to read the fields of `object`. Throws Error(kind); its message begins with `where` (the file, or the
// path inside it).
void read_fields(const Json& object, const std::string& where, ErrorKind kind, FunctionRef<void(Fields&)> visit);

template <Visited T>
Json json_of(const T& x) {
  return json_of_fields([&](Fields& f) { visit_fields(f, const_cast<T&>(x)); });
}
template <Visited T>
T read_fields(const Json& object, const std::string& where, ErrorKind kind = ErrorKind::kData) {
  T x;
  read_fields(object, where, kind, [&](Fields& f) { visit_fields(f, x); });
  return x;
}

}  // namespace specdec
