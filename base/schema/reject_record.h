// The draft tokens that the target refused in one answer, without text. A later draft can learn from them together with
// the traffic record of the same id.
// {"schema", "id", "conversation", "t": unix seconds, "T": temperature, "q": draft, "p": target,
//  "rejects": [[position, drafted, its logprob, next, [[id, logprob], …]], …]}
// Logprobs are in thousandths and are the target's own: the log-softmax of its logits, before temperature and logits
// processors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/fields.h"

namespace specdec {

struct RejectRecord {
  static constexpr int kVersion = 1;  // "schema":"specdec.rejects/1"
  static constexpr size_t kMaxRejects = 256, kMaxTop = 64;
  using Likely = std::pair<int32_t, double>;  // a token and its logprob
  struct Reject {
    int64_t position = 0;  // index in the answer's tokens, from 0
    // `drafted` is the refused token. `next` is the token that the answer has at this position instead. If both are the
    // same token, the server records nothing.
    int32_t drafted = 0, next = 0;
    double logprob = 0;       // logprob of `drafted`
    std::vector<Likely> top;  // the target's likeliest tokens at this position, likeliest first
  };
  std::string id, conversation;  // as in the traffic record
  int64_t time = 0;
  double temperature = 1;
  std::string draft, target;    // first 12 hex digits of the fingerprints
  std::vector<Reject> rejects;  // in rising order of position
};
std::string to_line(const RejectRecord& record);  // no newline
// Parses one line of JSON. Throws Error(kData).
RejectRecord reject_record_from_line(const std::string& line, const std::string& where);

}  // namespace specdec
