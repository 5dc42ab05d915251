// Describes as JSON Schema the fields that visit_fields() names (base/fields.h). docs/results.json is made from this.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/fields.h"

namespace specdec {

using OrderedJson = nlohmann::ordered_json;

// Definitions by name, each after those that it refers to. An object whose visit_fields() gives no type's name is
// described in place.
class Definitions {
 public:
  // Adds the definition of T and those of its parts, and returns it, so that more can be said of it.
  template <Visited T>
  OrderedJson& add() {
    T x;
    return add([&](Fields& f) { visit_fields(f, x); });
  }
  OrderedJson& add(FunctionRef<void(Fields&)> visit);

  // Puts a definition that was made from fields. Throws Error(kInternal) if one name means two things.
  void put(const std::string& name, const OrderedJson& schema);
  const OrderedJson& json() const { return json_; }

 private:
  OrderedJson json_ = OrderedJson::object();
};

}  // namespace specdec
