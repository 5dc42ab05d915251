// One value of a JSON object that is being written, read or described (base/fields.h).
#pragma once

#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/statistics.h"

namespace specdec {

// Refers to a function object and does not copy it. Call it only within the statement that creates it, because a
// temporary function object is destroyed at the end of that statement.
template <class Signature>
class FunctionRef;
template <class... A>
class FunctionRef<void(A...)> {
 public:
  template <class F>
  FunctionRef(const F& f)  // NOLINT(google-explicit-constructor): a lambda is handed over as it is
      : object_(&f), call_([](const void* object, A... a) { (*static_cast<const F*>(object))(a...); }) {}
  void operator()(A... a) const { call_(object_, a...); }

 private:
  const void* object_;
  void (*call_)(const void*, A...);
};

inline constexpr JsonInts kAnyCount{0, kMaxCount, {}};
inline constexpr JsonInts kAnyInt{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), {}};
inline constexpr JsonNumbers kAnyNumber{
    -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), {}};
using Words = std::span<const char* const>;

struct ListRule {
  size_t most = size_t{1} << 20;
  bool numbered = false;  // true: errors name an item by its index, "shards[3]"
};
struct MapRule {
  size_t most = 65536;
  bool numbers = false;  // true: the keys must be positive integers
};

class Fields;
template <class T>
concept Visited = requires(Fields& f, T& x) { visit_fields(f, x); };

// One JSON value of a field, a list or a map that is being written, read or described.
class Value {
 public:
  virtual ~Value() = default;
  virtual void integer(int64_t& x, const JsonInts& allowed) = 0;
  virtual void number(double& x, const JsonNumbers& allowed) = 0;
  virtual void flag(bool& x) = 0;
  virtual void text(std::string& x) = 0;
  virtual void digest(std::string& x, bool may_be_empty) = 0;
  virtual void word(std::string& x, Words words) = 0;
  virtual void interval(Interval& x) = 0;  // written as [low, high]
  virtual void json(Json& x, const Json& schema) = 0;
  virtual bool maybe(bool has) = 0;  // writes null if `has` is false; returns whether there is a value to visit
  virtual void object(FunctionRef<void(Fields&)> visit) = 0;
  // An array of a fixed length. `form`, such as "[batch_lo, batch_hi, k]", names the items in errors.
  virtual void tuple(const char* form, FunctionRef<void(Fields&)> visit) = 0;
  virtual void list(size_t size, const ListRule& rule, FunctionRef<void(size_t)> resize,
                    FunctionRef<void(Value&, size_t)> item) = 0;
  virtual void map(const std::vector<std::string>& keys, const MapRule& rule,
                   FunctionRef<void(Value&, const std::string&)> entry) = 0;

  // Each of these operators calls the virtual function above that fits the type of the member.
  void operator()(int64_t& x, const JsonInts& allowed = kAnyInt) { integer(x, allowed); }
  template <std::integral T>
  void operator()(T& x, const JsonInts& allowed = kAnyInt) {
    int64_t value = static_cast<int64_t>(x);
    integer(value, allowed);
    if (static_cast<T>(value) != x) x = static_cast<T>(value);
  }
  void operator()(double& x, const JsonNumbers& allowed = kAnyNumber) { number(x, allowed); }
  void operator()(bool& x) { flag(x); }
  void operator()(std::string& x) { text(x); }
  void operator()(Interval& x) { interval(x); }
  template <Visited T>
  void operator()(T& x) {
    object([&](Fields& f) { visit_fields(f, x); });
  }
  template <class T, class... Rule>
  void operator()(std::optional<T>& x, const Rule&... rule) {
    if (!maybe(x.has_value())) return x.reset();
    if (!x) x.emplace();
    (*this)(*x, rule...);
  }
  template <class T, class... Rule>
  void operator()(std::vector<T>& x, const ListRule& limits, const Rule&... rule) {
    list(x.size(), limits, [&](size_t size) { x.resize(size); }, [&](Value& v, size_t i) { v(x[i], rule...); });
  }
  template <class K, class T, class... Rule>
  void operator()(std::map<K, T>& x, const MapRule& limits, const Rule&... rule) {
    constexpr bool kNumbers = std::integral<K>;
    std::vector<std::string> keys;
    for (const auto& entry : x)
      if constexpr (kNumbers)
        keys.push_back(std::to_string(entry.first));
      else
        keys.push_back(entry.first);
    map(keys, {limits.most, kNumbers}, [&](Value& v, const std::string& key) {
      if constexpr (kNumbers)
        v(x[static_cast<K>(std::stoll(key))], rule...);
      else
        v(x[key], rule...);
    });
  }
};

}  // namespace specdec
