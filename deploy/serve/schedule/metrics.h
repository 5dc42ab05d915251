// The server's Prometheus series (docs/contract.md, Server). The number of series is bounded for any traffic: draft
// positions from kPositions on share the last series, and statuses and routes come from fixed sets. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "deploy/serve/answer/reply.h"
#include "deploy/serve/queue/queue.h"
#include "deploy/serve/queue/step_runner.h"

namespace specdec::deploy {

class Metrics {
 public:
  static constexpr size_t kPositions = 32;  // later draft positions are counted under the last of these
  // Drafts that have their own series. A further draft replaces the draft whose series were used longest ago.
  static constexpr size_t kDrafts = 8;

  Metrics();
  ~Metrics();

  void set_info(const ModelCard& card);  // may be called from any thread; replaces the previous info

  // These functions are called on the engine thread.
  void step(const StepResult& result);  // called for each sequence of each step
  void generated(int64_t tokens);       // called with the number of new tokens that belong to the answer
  // Called once per step. Seconds in `total` are sums since the start.
  void batch(size_t sequences, double mean_k, const StageSeconds& total, const std::vector<DepthEvidence>& bases = {});
  void caches(const CacheUse& use);  // called in each iteration of the scheduler's loop
  void started(int64_t prompt_tokens);
  void preempted();
  void resumed(int64_t tokens);               // prompt tokens prefilled again after preemption
  void first_token(double seconds);           // seconds since the request was queued
  void tokens(size_t count, double seconds);  // `seconds` since the answer's previous tokens
  struct Whose {
    std::string tenant, domain;  // both from bounded sets of values
  };
  void finished(const ChoiceResult& result, const Whose& whose, double seconds);

  // These functions may be called from any thread.
  void replied(const std::string& route, int status);  // `route` is one of a fixed set
  void record_lost();  // counts a traffic or acceptance record that could not be written

  // Returns the metrics in text exposition format 0.0.4. The series of domains count the answers of `tenant`; without
  // `tenant` they count all answers.
  std::string text(size_t waiting, size_t running, size_t connections,
                   const std::optional<std::string>& tenant = {}) const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace specdec::deploy
