// Checks that hold for every file format in base/schema.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "tests/base/scratch.h"

namespace specdec::testing {

// Checks that `read` (parse, then write again) returns `json` unchanged, that a required key that is missing or has a
// wrong type is an error, and that another version of the schema is refused.
template <class Read>
void check_schema(const Json& json, ErrorKind kind, const std::vector<std::string>& required, Read read) {
  EXPECT_EQ(read(json), json);
  EXPECT_EQ(read(Json::parse(canonical_json(json))), json);
  for (const std::string& key : required) {
    Json broken = json;
    ASSERT_EQ(broken.erase(key), 1u) << key;
    expect_error(kind, {key}, [&] { read(broken); });
    broken[key] = Json::array({Json::array()});
    expect_error(kind, {}, [&] { read(broken); });
  }
  Json other = json;
  std::string& schema = other["schema"].get_ref<std::string&>();
  schema.back() = '9';
  expect_error(kind, {"schema: expected", "another version"}, [&] { read(other); });
  expect_error(kind, {"JSON object"}, [&] { read(Json::array()); });
}

// Applies `change` to the JSON and checks that reading the result fails with a message that contains `reason`.
template <class Read>
void refuse(Json json, ErrorKind kind, const std::string& reason, const std::function<void(Json&)>& change, Read read) {
  change(json);
  expect_error(kind, {reason}, [&] { read(json); });
}

}  // namespace specdec::testing
