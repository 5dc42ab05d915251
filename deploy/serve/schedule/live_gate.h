// Answers GET /gate: is the draft's acceptance on live traffic above a floor? Progressive delivery tools (Argo
// Rollouts, Flagger) poll this route; see docs/serve.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/json.h"
#include "base/statistics.h"
#include "deploy/serve/schedule/scheduler.h"

namespace specdec::deploy {

// Measures the acceptance of recently serving drafts. Each draft has a confidence sequence over the conversations for
// which it drafted; such a sequence stays valid however often it is read. Each conversation contributes one value: the
// mean overlap over the reached draft positions of one answer. This is the conversation's first answer that reached at
// least kLeastReached draft positions.
class LiveGate {
 public:
  static constexpr size_t kDrafts = 4;               // limit of drafts measured; a further draft replaces the oldest
  static constexpr size_t kConversations = 1 << 16;  // per draft; more would hardly narrow the interval
  static constexpr int64_t kLeastReached = 8;        // reached draft positions; answers with fewer are left out

  // `of_one_tenant` limits how many of a draft's conversations may come from one tenant.
  explicit LiveGate(size_t of_one_tenant = kConversations) : of_one_tenant_(of_one_tenant) {}

  void set_limit_of_one_tenant(size_t conversations);

  void observe(const FinishedAnswer& answer);  // called on the engine thread

  struct Reading {
    // "candidate": the draft on trial, scored on the same text as the serving draft. "serving": the serving draft.
    std::string role;
    std::string draft;    // fingerprint of the draft; "" = none
    Estimate acceptance;  // acceptance.n is the number of conversations
  };
  // May be called from any thread. `trial` is the result of DraftControl::status(), or null if there is no
  // DraftControl. `serving` is the fingerprint of the serving draft, "" = none.
  Reading read(const std::string& serving, const Json& trial) const;

 private:
  struct Track {
    std::string draft;  // fingerprint cut to kDraftLabel
    ConfidenceSequence sequence;
    std::unordered_set<uint64_t> seen;
    std::map<std::string, size_t> by_tenant;
  };
  mutable std::mutex mutex_;
  size_t of_one_tenant_;
  std::deque<Track> tracks_;
};

// Returns {"schema": "specdec.gate/1", verdict: pass | fail | inconclusive, acceptance, ci, n, floor, draft, role}.
// acceptance is null before the first conversation.
Json gate_json(const LiveGate::Reading& reading, double floor);
// Returns the figures without the verdict, as gauges in Prometheus' text format.
std::string gate_metrics(const LiveGate::Reading& reading);
// Returns the floor given in a query string ("floor=0.65"), `fallback` if the query has no floor, none if the floor is
// not a number from 0 to 1.
std::optional<double> gate_floor(const std::string& query, double fallback = 0.60);

}  // namespace specdec::deploy
