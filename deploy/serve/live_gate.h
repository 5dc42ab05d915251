// GET /gate: does the draft clear a floor, by what is served? For progressive delivery (Argo Rollouts, Flagger):
// docs/serve.md.
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
#include "deploy/serve/scheduler.h"

namespace specdec::deploy {

// Acceptance of the last drafts that served, each as a confidence sequence over the conversations it drafted for: the
// mean overlap of a conversation's first answer over the positions it reached. One may ask as often as one likes.
class LiveGate {
 public:
  static constexpr size_t kDrafts = 4;               // of another one the oldest is forgotten
  static constexpr size_t kConversations = 1 << 16;  // of a draft: more would not narrow the interval much
  static constexpr int64_t kLeastReached = 8;        // positions; an answer of fewer says too little

  // `of_one_tenant`: conversations of a draft that may be one tenant's.
  explicit LiveGate(size_t of_one_tenant = kConversations) : of_one_tenant_(of_one_tenant) {}

  void observe(const FinishedAnswer& answer);  // engine thread

  struct Reading {
    std::string role;     // "candidate": on trial, scored beside the one that serves on the same text; else "serving"
    std::string draft;    // fingerprint; "": none
    Estimate acceptance;  // .n = conversations
  };
  // Any thread. `trial`: DraftControl::status(), null without one; `serving`: the fingerprint of the draft that serves,
  // "" = none.
  Reading read(const std::string& serving, const Json& trial) const;

 private:
  struct Track {
    std::string draft;  // cut to kDraftLabel
    ConfidenceSequence sequence;
    std::unordered_set<uint64_t> seen;
    std::map<std::string, size_t> by_tenant;
  };
  const size_t of_one_tenant_;
  mutable std::mutex mutex_;
  std::deque<Track> tracks_;
};

// {"schema": "specdec.gate/1", verdict: pass | fail | inconclusive, acceptance, ci, n, floor, draft, role}; acceptance
// is null before the first conversation.
Json gate_json(const LiveGate::Reading& reading, double floor);
// The same without a verdict as gauges in Prometheus' text format.
std::string gate_metrics(const LiveGate::Reading& reading);
// The floor of a query string ("floor=0.65"), `fallback` where it names none; none: it is no number from 0 to 1.
std::optional<double> gate_floor(const std::string& query, double fallback = 0.60);

}  // namespace specdec::deploy
