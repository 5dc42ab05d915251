// Rows of logs as the parsers read them.
#pragma once

#include <gtest/gtest.h>

#include "data/formats/row_parser.h"

namespace specdec::data {

inline ParsedRow parse_one(const std::string& json, const RowOptions& options) {
  std::vector<ParsedRow> rows = parse_line(json, options).rows;
  EXPECT_EQ(rows.size(), 1u) << json;
  return rows.empty() ? Rejected{} : std::move(rows.front());
}

inline ParsedRecord accepted_row(const std::string& json, const RowOptions& options) {
  ParsedRow row = parse_one(json, options);
  if (const auto* why = std::get_if<Rejected>(&row)) {
    ADD_FAILURE() << json << " was rejected: " << why->reason << " " << why->detail;
    return {};
  }
  return std::get<ParsedRecord>(row);
}

inline std::string chat_text(const TrafficRecord& r) {
  std::string text;
  for (const ChatMessage& m : r.messages) text += m.role + ":" + m.content + ";";
  return text;
}

}  // namespace specdec::data
