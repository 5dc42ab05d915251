#include "base/schema/acceptance_range.h"

namespace specdec {

namespace {

const Json& number_of(const Json& record, const char* key, AcceptanceFigure figure, const std::string& where) {
  const auto found = record.find(key);
  if (found == record.end() || found->is_null()) throw Error(ErrorKind::kData, where + ": " + key + ": missing");
  const AcceptanceRange range = range_of(figure);
  const bool is_whole = found->is_number_integer();
  if (!found->is_number() || (range.whole && !is_whole) || !in_range(figure, found->get<double>()))
    throw Error(ErrorKind::kData, where + ": " + key + ": expected " + range.expected());
  return *found;
}

}  // namespace

std::string AcceptanceRange::expected() const {
  return std::string(whole ? "a whole number" : "a number") + " in [" + std::to_string(low) + ", " +
         std::to_string(high) + "]";
}

int64_t whole_figure(const Json& record, const char* key, AcceptanceFigure figure, const std::string& where) {
  return number_of(record, key, figure, where).get<int64_t>();
}

double figure_of(const Json& record, const char* key, AcceptanceFigure figure, const std::string& where) {
  return number_of(record, key, figure, where).get<double>();
}

Json parse_foreign_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  try {
    return parse_json(text, where, ErrorKind::kData, limits);
  } catch (const Error& e) {
    if (text.size() > limits.max_bytes) throw;  // the message only states the size, so it may be shown
    const std::string message = e.what();
    const size_t at = message.rfind(" (byte ");
    throw Error(ErrorKind::kData, where + ": no JSON" + (at == std::string::npos ? "" : message.substr(at)));
  }
}

}  // namespace specdec
