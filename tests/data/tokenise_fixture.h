// The fixture for tests of RowTokeniser: makes targets with any chat template, and rows.
#pragma once

#include "data/tokenise.h"
#include "tests/data/toy.h"

namespace specdec::data {

class Tokenise : public testing::Test {
 protected:
  RowTokeniser with(const std::string& chat_template, bool bos = true) {
    return RowTokeniser(make_toy_target(scratch_ / "target", chat_template, bos));
  }

  static TrafficRecord chat(std::vector<ChatMessage> messages) {
    TrafficRecord r;
    r.id = r.conversation = "i";
    r.messages = std::move(messages);
    return r;
  }
  static TokenRow row(const RowTokeniser& t, const TrafficRecord& record) {
    auto result = t.tokenise(record);
    if (const auto* why = std::get_if<Rejected>(&result)) {
      ADD_FAILURE() << why->reason;
      return {};
    }
    return std::get<TokenisedRow>(result).row;
  }
  static std::string reason(const RowTokeniser& t, const TrafficRecord& record) {
    auto result = t.tokenise(record);
    const auto* why = std::get_if<Rejected>(&result);
    return why ? why->reason : "accepted";
  }
  Scratch scratch_;
};

}  // namespace specdec::data
