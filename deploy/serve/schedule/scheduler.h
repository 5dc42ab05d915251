// Continuous batching on one engine thread: decides when sequences start and end, and which sequences are in the next
// step. A StepRunner computes the tokens.
// - An exception caused by one sequence ends only that sequence.
// - Prompts are prefilled between steps, a bounded number of tokens each time.
// - When the KV caches are full, the newest sequence is preempted. It is prefilled again when another sequence has
//   ended, before any new sequence starts. So the oldest sequence always makes progress, and no answer's text depends
//   on other sequences.
// - If the batch is full, a tenant without an answer in the batch soon gets the place (seat) of another tenant's newest
//   answer. That answer continues when a place is free.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/device_lost.h"
#include "deploy/serve/answer/answer_parser.h"
#include "deploy/serve/answer/stop.h"
#include "deploy/serve/queue/queue.h"
#include "deploy/serve/queue/step_runner.h"
#include "deploy/serve/schedule/mask_workers.h"
#include "deploy/serve/schedule/metrics.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

// An answer that ended normally (stop or length), for the records.
struct FinishedAnswer {
  std::shared_ptr<const GenerationRequest> request;
  size_t choice = 0;
  std::string text;  // the text that was sent
  ChoiceResult result;
  std::vector<int32_t> token_ids = {};  // all tokens up to the end of the answer
};

struct SchedulerOptions {
  size_t max_batch = 8;
  int64_t prompt_budget_tokens = 512;  // prefill limit between two steps; bounds the inter-token latency
  double reject_share = 0;             // fraction of the conversations whose rejected draft tokens are recorded
};

// The objects that a scheduler uses. They must outlive the scheduler.
struct SchedulerParts {
  StepRunner& runner;
  RequestQueue& queue;
  const text::Tokenizer& tokenizer;
  Metrics& metrics;
  const Clock& clock;
  MaskWorkers* masks = nullptr;  // null: grammar masks are never late
};

class Scheduler {
 public:
  Scheduler(SchedulerOptions options, const SchedulerParts& parts,
            std::function<void(const FinishedAnswer&)> on_finished = {});
  ~Scheduler();

  // Runs the engine thread's loop until the queue is closed and all its requests are answered, or until stop_now(), or
  // until the device is lost. In the last two cases every running or waiting answer ends with kDrained, so that clients
  // retry elsewhere.
  void run();
  // Returns the failure after which the device cannot be used, if any. Valid after run().
  const std::optional<DeviceLost>& lost() const { return lost_; }
  // Runs one iteration: reap, admit, prefill, step, deliver. Returns false if there was no work, or if all work waits
  // for a late grammar mask.
  bool turn();
  // May be called from any thread. Closes the queue; every running or waiting answer ends with kDrained before the next
  // step.
  void stop_now();

  size_t running() const { return running_.load(std::memory_order_relaxed); }
  // Number of device failures since the last successful step. Failures caused by a single request do not count.
  int64_t failures_in_a_row() const { return failures_.load(std::memory_order_relaxed); }

 private:
  struct Active;
  enum class Phase;
  void reap();
  void admit();
  Active* next_to_prefill();
  Active* next_from_queue(const std::set<std::string>& besides = {});
  Active* seat(Active& sequence);
  size_t seats_taken() const;
  bool give_up_seat();
  bool preempt(Active& sequence, Phase phase);
  const Active* sibling(const GenerationRequest& request, size_t choice) const;
  bool start(Active& sequence);
  int64_t prefill(Active& sequence, int64_t most);
  void echo(Active& sequence, ChoiceEvent event);
  void make_room();
  bool step();
  size_t collect_batch();
  bool step_running();
  void deliver(Active& sequence, const StepResult& result);
  void count_tokens(Active& sequence, int64_t tokens);
  void end(Active& sequence, FinishReason reason);
  void drain();

  SchedulerOptions options_;
  StepRunner& runner_;
  RequestQueue& queue_;
  const text::Tokenizer& tokenizer_;
  Metrics& metrics_;
  const Clock& clock_;
  MaskWorkers* masks_;
  std::function<void(const FinishedAnswer&)> on_finished_;

  std::vector<std::unique_ptr<Active>> active_;  // oldest first
  bool room_made_ = false;                       // true: caches were freed since they were last full
  std::vector<Active*> batch_;                   // batch_, keys_ and results_ are buffers that step() reuses
  std::vector<SequenceKey> keys_;
  std::vector<StepResult> results_;
  std::atomic<bool> aborted_{false};
  std::optional<DeviceLost> lost_;
  std::atomic<size_t> running_{0};
  std::atomic<int64_t> failures_{0};
};

}  // namespace specdec::deploy
