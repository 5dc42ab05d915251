// Describes as JSON Schema the fields that visit_fields() names (base/fields.h). docs/results.json consists of these
// descriptions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/fields.h"

namespace specdec {

using OrderedJson = nlohmann::ordered_json;

// JSON Schema definitions by name. Each definition comes after those that it refers to. A type whose visit_fields()
// does not call type() gets no definition; its schema is written where it is used.
class Definitions {
 public:
  // Adds the definitions of T and of the types of its members. Returns T's definition, so that the caller can add to
  // it.
  template <Visited T>
  OrderedJson& add() {
    T x;
    return add([&](Fields& f) { visit_fields(f, x); });
  }
  OrderedJson& add(FunctionRef<void(Fields&)> visit);

  // Stores a definition. Throws Error(kInternal) if `name` already has a different one.
  void put(const std::string& name, const OrderedJson& schema);
  const OrderedJson& json() const { return json_; }

 private:
  OrderedJson json_ = OrderedJson::object();
};

}  // namespace specdec
