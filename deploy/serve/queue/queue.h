// Connects HTTP threads and the engine thread: one bounded queue of requests, and one channel per request for its
// events. Both classes are thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/schema/reject_record.h"
#include "base/schema/traffic_record.h"
#include "deploy/serve/request/byte_budget.h"
#include "engine/decode/request.h"
#include "engine/decode/sampling/logprobs.h"

namespace specdec::deploy {

struct AnswerFormat;

enum class FinishReason { kStop, kLength, kCancelled, kFailed, kDrained, kNoTokenLeft, kNoRoom, kMasksSpent };
// Returns "stop", "length", "cancelled", "failed" (also for kNoRoom), "drained", "no_token_left" or "masks_spent"
// (computing the masks of the answer's grammar exceeded the limit of time or memory).
const char* to_string(FinishReason reason);

// The outcome of one answer.
struct ChoiceResult {
  FinishReason reason = FinishReason::kFailed;
  int64_t completion_tokens = 0;  // including EOS and the tokens of a stop string
  AcceptanceCounts counts;
  std::vector<int64_t> accepted_histogram;         // [j] = drafting steps that accepted exactly j tokens
  std::vector<RejectRecord::Reject> rejects = {};  // rejected draft tokens; empty unless they are recorded
  std::string draft = {};         // fingerprint of the draft that was used, cut to kDraftLabel characters; "" = none
  bool ended_by_request = false;  // true: a stop string or stop token of the request ended the answer
};

// The length of the text that a decoded token added to an answer. A token that ends inside a character adds nothing; a
// later token adds the whole character.
struct TokenText {
  uint32_t bytes = 0, characters = 0;
};

struct ChoiceEvent {
  size_t choice = 0;
  std::string text;                // to append to the answer
  std::vector<int32_t> token_ids;  // new tokens, to append to the answer
  // Log-probabilities of token_ids, if requested. With echo, the prompt's log-probabilities come first. That of the
  // prompt's first token is NaN, because no token precedes it.
  std::vector<decode::PositionLogprobs> logprobs;
  // For each of token_ids, the length of its text, including text that belongs to a stop string and is not shown. Empty
  // if log-probabilities are not requested.
  std::vector<TokenText> texts;
  // true: the text is the echoed prompt. It does not count as unfetched text, because the size of the request bounds
  // it.
  bool echo = false;
  std::optional<ChoiceResult> result;  // set only in the last event of the choice
};

// Carries the answers of one request from the engine thread to the connection.
class Channel {
 public:
  explicit Channel(size_t pending_bytes) : pending_bytes_(pending_bytes) {}

  // Called by the engine. If the text that the connection has not fetched exceeds the limit, the request is cancelled.
  void push(ChoiceEvent event);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Called by the connection. take() returns all events since the last take(). `wake` is called for the first push
  // after a take(), on the engine thread and outside the lock. When on_event({}) returns, the previous `wake` may still
  // be running.
  std::vector<ChoiceEvent> take();
  void on_event(std::function<void()> wake);
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  const size_t pending_bytes_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::vector<ChoiceEvent> events_;
  size_t bytes_ = 0;
  std::function<void()> wake_;
};

// One parsed request, immutable once queued. Answer c belongs to prompt c / n.
struct GenerationRequest {
  std::string id;
  decode::RequestOptions options;  // options of every answer; answer() adds those that differ between answers
  std::vector<std::vector<int32_t>> prompts;
  int64_t n = 1;
  bool echo = false;  // the answers begin with the prompt
  // Answer c gets choice_seed(seed, c). If the client gave the seed, answer c gets choice_seed(seed, c % n), so that
  // every prompt gets the same seeds.
  uint64_t seed = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  // the part of options.eos_ids that the request added to the model's own
  int64_t min_tokens = 0;            // a stop string that completes within this many tokens does not end the answer
  bool include_stop = false;         // the stop string or stop token that ends the answer is shown
  std::string tenant;                // tenant to which the API key belongs; tenants take turns in the queue
  std::string domain, conversation;
  // Identifies the conversation among all tenants; "" = conversation_id() is used.
  std::string conversation_key;
  int64_t time = 0;                            // unix seconds
  double queued_at = 0;                        // Clock::seconds() when the request was queued
  std::vector<ChatMessage> messages;           // recorded for chat
  std::string tools;                           // recorded for chat: the offered tools as JSON, "" = none
  std::string template_kwargs;                 // recorded for chat: chat_template_kwargs as JSON, "" = none
  std::string answer_prefix;                   // the prompt's end, which is recorded as the answer's beginning
  std::shared_ptr<const AnswerFormat> format;  // splits the answer into content, thoughts and calls; null: all content
  std::vector<int32_t> shown_tokens;           // special tokens whose text is part of the answer
  std::vector<std::string> texts;              // recorded for completions: the text of each prompt
  std::shared_ptr<Channel> channel;
  std::shared_ptr<ByteBudget::Hold> held;  // charges the bytes of request and reply to a budget; null: none

  const std::string& conversation_id() const { return conversation.empty() ? id : conversation; }
  const std::string& key() const { return conversation_key.empty() ? conversation_id() : conversation_key; }
  size_t choices() const { return prompts.size() * static_cast<size_t>(n); }
  decode::Request answer(size_t choice) const;
};

// Returns the seed of answer `index`: for 0 the request's own seed, for the others a derived seed.
uint64_t choice_seed(uint64_t seed, size_t index);

// Holds the waiting requests of each tenant. try_pop() takes single answers, so a request for ten answers takes as many
// turns as ten requests for one answer. The next answer comes from the tenant that has been served least; a tenant's
// own requests are served in order of arrival. This is the virtual token counter of Sheng et al., "Fairness in Serving
// Large Language Models", OSDI 2024.
//
// A tenant is charged for its answers:
// - 1 when an answer leaves the queue, for the prompt token that its first step processes;
// - 1 for every other prompt token when it is prefilled, and 2 for every generated token;
// - 2 for every millisecond of computing grammar masks.
// A prompt token is free if it is found in the prefix cache, shared with an answer to the same prompt, or prefilled
// again after preemption. When a request of a tenant without waiting requests arrives, the tenant's charge is raised to
// the least charge among waiting tenants (if none waits, of the tenant served last). So no tenant can save up turns.
class RequestQueue {
 public:
  static constexpr int64_t kPromptWeight = 1, kAnswerWeight = 2;
  static constexpr double kTokensPerMaskSecond = 1000;
  static constexpr int kMaxRetrySeconds = 60;

  // `limit` bounds the waiting requests of all tenants, `tenant_limit` those of one tenant.
  explicit RequestQueue(size_t limit) : RequestQueue(limit, limit) {}
  RequestQueue(size_t limit, size_t tenant_limit) : limit_(limit), tenant_limit_(tenant_limit) {}

  void set_tenant_limit(size_t requests);

  enum class Push { kAccepted, kFull, kTenantFull, kClosed };
  Push push(std::shared_ptr<const GenerationRequest> request);
  Push would_push(const std::string& tenant) const;  // what push() would return now
  size_t size() const;
  // Returns a value for Retry-After, from 1 to kMaxRetrySeconds: the estimated seconds until the waiting requests have
  // started, from the rate at which requests finished recently. If only the tenant's own limit is reached, considers
  // only the requests that are served before the tenant's next request.
  int retry_after(const std::string& tenant) const;

  struct Next {
    std::shared_ptr<const GenerationRequest> request;  // null: no request is waiting
    size_t choice = 0;
  };
  // Called by the engine. Returns the next answer to start, without waiting. The answers of a request come in order.
  // Skips cancelled requests and the tenants in `besides`.
  Next try_pop(const std::set<std::string>& besides = {});
  bool waits_besides(const std::set<std::string>& tenants) const;  // whether a request of another tenant is waiting
  // Returns whether answers of this request still wait. At least one of its answers must have been taken before.
  bool more_of(const GenerationRequest& request) const;
  void read(const std::string& tenant, int64_t prompt_tokens);
  void generated(const std::string& tenant, int64_t tokens);
  void masked(const std::string& tenant, double seconds);  // charges the tenant for a grammar mask and wakes the engine
  void finished(double now);                               // call when a request has finished; now is Clock::seconds()
  // Called by the engine. Waits for a new request, a computed mask or close(). Returns at once if one of these has
  // occurred since the last call.
  void wait();
  void close();  // refuses new requests; the requests in the queue stay
  bool closed() const;

 private:
  struct Tenant {
    std::deque<std::shared_ptr<const GenerationRequest>> waiting;
    size_t taken = 0;   // answers already taken of the tenant's first request
    double served = 0;  // weighted tokens charged so far
  };
  // The caller of these functions must hold the lock.
  void drop_cancelled();
  Push admission(size_t waiting, size_t of_tenant) const;
  void raise_to_minimum(Tenant& tenant) const;

  const size_t limit_;
  mutable std::mutex mutex_;
  size_t tenant_limit_;
  std::condition_variable ready_;
  std::map<std::string, Tenant> tenants_;  // by name; entries are never removed
  const Tenant* last_ = nullptr;           // the tenant whose answer was taken last
  size_t size_ = 0;
  // finished_at_: when the last request finished; -1 if no other request was waiting then. interval_: moving mean of
  // the seconds between two finished requests, counted only while requests wait; -1 before the first interval.
  double finished_at_ = -1, interval_ = -1;
  bool closed_ = false, happened_ = false;
};

}  // namespace specdec::deploy
