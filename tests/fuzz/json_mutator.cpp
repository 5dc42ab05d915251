// A mutator for libFuzzer that changes one value of the JSON that begins at the first brace of the input. Most mutated
// inputs are therefore valid JSON and reach the code that reads the values. Half of all mutations are libFuzzer's own,
// and so is every mutation of an input without valid JSON.
#include <algorithm>
#include <cstring>
#include <random>

#include "base/json.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using specdec::Json;

void collect(Json& value, std::vector<Json*>& out) {
  out.push_back(&value);
  if (value.is_structured())
    for (Json& child : value) collect(child, out);
}

Json edge(unsigned choice) {
  static const Json kEdges = {
      0,         -1,         1,         2,      1024,          INT32_MAX,     int64_t{INT32_MAX} + 1,
      INT64_MAX, UINT64_MAX, INT64_MIN, 1e-300, 1e12,          1.7e308,       0.5,
      nullptr,   true,       false,     "",     Json::array(), Json::object()};
  return kEdges[choice % kEdges.size()];
}

void change(Json& value, const Json& other, std::minstd_rand& random) {
  const unsigned kind = random() % 6;
  if (kind == 0) {
    value = edge(random());
  } else if (kind == 1) {
    value = Json(other);
  } else if (value.is_structured() && !value.empty()) {
    const auto at = std::next(value.begin(), static_cast<std::ptrdiff_t>(random() % value.size()));
    if (kind < 4)
      value.erase(at);
    else if (value.is_array())
      value.push_back(Json(*at));
    else
      value[at.key() + "x"] = Json(*at);
  } else if (value.is_number_float()) {
    value = value.get<double>() * (kind < 4 ? 2 : -0.5);
  } else if (value.is_number()) {
    const uint64_t bits = value.get<uint64_t>(), by = kind == 2 ? 1 : kind == 3 ? ~uint64_t{0} : bits;
    value = static_cast<int64_t>(kind == 5 ? bits / 2 : bits + by);
  } else if (value.is_string()) {
    std::string text = value.get<std::string>();
    const size_t size = text.size();
    text.resize(size + 16);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
    value = text;
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const size_t begin = static_cast<size_t>(std::find(data, data + size, '{') - data);
  try {
    Json root = specdec::parse_json({reinterpret_cast<const char*>(data) + begin, size - begin}, "mutator");
    std::vector<Json*> values;
    collect(root, values);
    Json& chosen = *values[random() % values.size()];
    const Json other = *values[random() % values.size()];
    change(chosen, other, random);
    const std::string text = root.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (begin + text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data + begin, text.data(), text.size());
    return begin + text.size();
  } catch (const specdec::Error&) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
}
