// The server's Prometheus series (contract: Server). Positions are folded at kPositions, statuses and routes are fixed
// sets, so the number of series is bounded whatever the traffic is. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "deploy/serve/queue.h"
#include "deploy/serve/reply.h"
#include "deploy/serve/step_runner.h"

namespace specdec::deploy {

class Metrics {
 public:
  static constexpr size_t kPositions = 32;  // later ones are counted at the last
  // with series of their own; a ninth takes the place of the one that drafted longest ago
  static constexpr size_t kDrafts = 8;

  Metrics();
  ~Metrics();

  void set_info(const ModelCard& card);  // any thread; the one before is gone

  // Engine thread.
  void step(const StepResult& result);  // one sequence of one step
  // Once a step.
  void batch(size_t sequences, double mean_k, const StageSeconds& total, const std::vector<KBasis>& bases = {});
  void caches(const CacheUse& use);  // once a turn
  void started(int64_t prompt_tokens);
  void preempted();
  void resumed(int64_t tokens);               // read again
  void first_token(double seconds);           // since the request was queued
  void tokens(size_t count, double seconds);  // since this answer's tokens before
  struct Whose {
    std::string tenant, domain;  // both from bounded sets
  };
  void finished(const ChoiceResult& result, const Whose& whose, double seconds);

  // Any thread.
  void replied(const std::string& route, int status);  // `route` from a fixed set
  void record_lost();                                  // a traffic or acceptance record that could not be written

  // Text exposition format 0.0.4. Domains: those of this tenant's answers; none: of all answers.
  std::string text(size_t waiting, size_t running, size_t connections,
                   const std::optional<std::string>& tenant = {}) const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace specdec::deploy
