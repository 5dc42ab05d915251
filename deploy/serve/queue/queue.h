// The border between HTTP threads and the engine thread: one bounded queue of requests, and one channel per request for
// its events. Both classes are thread-safe.
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
// Returns "stop", "length", "cancelled", "failed" (also for kNoRoom), "drained", "no_token_left" or "masks_spent" (the
// answer's grammar has taken as much time or memory as it may).
const char* to_string(FinishReason reason);

// The outcome of one answer.
struct ChoiceResult {
  FinishReason reason = FinishReason::kFailed;
  int64_t completion_tokens = 0;  // includes EOS and the tokens of the stop string
  AcceptanceCounts counts;
  std::vector<int64_t> accepted_histogram;         // [j] = drafting steps that accepted exactly j tokens
  std::vector<RejectRecord::Reject> rejects = {};  // only if they are recorded
  std::string draft = {};         // the draft that proposed: a fingerprint cut to kDraftLabel; "" = none
  bool ended_by_request = false;  // a stop string or token of the request ended the answer, not the model
};

// The text that was added to an answer when a token was decoded. The text of a token whose character is unfinished
// comes with a later token.
struct TokenText {
  uint32_t bytes = 0, characters = 0;
};

struct ChoiceEvent {
  size_t choice = 0;
  std::string text;                // to be appended to the answer
  std::vector<int32_t> token_ids;  // newly emitted, also to be appended
  // Log-probabilities of token_ids, if requested. With echo the log-probabilities of the prompt come first; that of its
  // first token is NaN, because no token precedes it.
  std::vector<decode::PositionLogprobs> logprobs;
  std::vector<TokenText> texts;  // of token_ids, before the cut by a stop string; only with log-probabilities
  // true: the event holds the prompt. It does not count as unfetched text, because the size of the request bounds it.
  bool echo = false;
  std::optional<ChoiceResult> result;  // set in the last event of the choice
};

// Carries the answers of one request from the engine thread to the connection.
class Channel {
 public:
  explicit Channel(size_t pending_bytes) : pending_bytes_(pending_bytes) {}

  // Engine side. Unfetched text is bounded: if it exceeds the limit, the request is cancelled.
  void push(ChoiceEvent event);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Connection side. take() returns all events so far. `wake` is called for the first push after a take(), on the
  // engine thread and outside the lock. When on_event({}) returns, the old function may still be running once.
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

// One parsed request; immutable once queued. Answer c belongs to prompt c / n.
struct GenerationRequest {
  std::string id;
  decode::RequestOptions options;  // of every answer; answer() completes them from the members below
  std::vector<std::vector<int32_t>> prompts;
  int64_t n = 1;
  bool echo = false;  // the answers begin with the prompt
  uint64_t seed = 0;  // of answer 0 of the first prompt and, if the client gave it, of every prompt; see choice_seed
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  // those of options.eos_ids that are the request's and not the model's
  int64_t min_tokens = 0;            // a stop string counts only if a later token than these completes it
  bool include_stop = false;         // the text that ends the answer, a stop string or a token, is shown
  std::string tenant;                // name of the API key; the queue takes turns between tenants
  std::string domain, conversation;
  // Identifies a conversation among all tenants; "" = conversation_id() does.
  std::string conversation_key;
  int64_t time = 0;                   // unix seconds
  double queued_at = 0;               // Clock::seconds()
  std::vector<ChatMessage> messages;  // recorded for chat
  std::string tools;                  // recorded for chat: the offered tools as JSON, "" = none
  std::string template_kwargs;        // recorded for chat: chat_template_kwargs as JSON, "" = none
  std::string answer_prefix;          // text at the end of the prompt with which the answer begins in the record
  std::shared_ptr<const AnswerFormat> format;  // how the answer is split; null: all of it is content
  std::vector<int32_t> shown_tokens;           // special tokens whose text belongs to the answer
  std::vector<std::string> texts;              // recorded for completions: one prompt text per prompt
  std::shared_ptr<Channel> channel;
  std::shared_ptr<ByteBudget::Hold> held;  // counts the bytes of this request and its reply; null: they are not counted

  const std::string& conversation_id() const { return conversation.empty() ? id : conversation; }
  const std::string& key() const { return conversation_key.empty() ? conversation_id() : conversation_key; }
  size_t choices() const { return prompts.size() * static_cast<size_t>(n); }
  decode::Request answer(size_t choice) const;
};

// Returns the seed of answer `index` (from 0): the request's own for 0, a derived one for the others.
uint64_t choice_seed(uint64_t seed, size_t index);

// Holds the waiting requests of each tenant. try_pop() takes single answers, so that a request for ten answers takes as
// many turns as ten requests for one. The next answer comes from the tenant that has been served least; within a
// tenant, first come, first served. This is the virtual token counter of Sheng et al., "Fairness in Serving Large
// Language Models", OSDI 2024.
//
// An answer counts 1 when it leaves the queue (for the prompt token that its first step processes), 1 for every other
// prompt token when it is prefilled, and 2 for every token when it is generated. Tokens found in a cache, shared with
// an answer to the same prompt, or prefilled again after preemption do not count. A millisecond of computing the masks
// of a grammar counts as much as a generated token. When a tenant that had nothing waiting sends a request, its count
// is raised to the least count among waiting tenants, or to that of the tenant served last if none waits. So no tenant
// can save up turns.
class RequestQueue {
 public:
  static constexpr int64_t kPromptWeight = 1, kAnswerWeight = 2;
  static constexpr double kTokensPerMaskSecond = 1000;
  static constexpr int kMaxRetrySeconds = 60;

  // `limit` is the number of requests that may wait in all, `tenant_limit` that of one tenant.
  explicit RequestQueue(size_t limit) : RequestQueue(limit, limit) {}
  RequestQueue(size_t limit, size_t tenant_limit) : limit_(limit), tenant_limit_(tenant_limit) {}

  void set_tenant_limit(size_t requests);

  enum class Push { kAccepted, kFull, kTenantFull, kClosed };
  Push push(std::shared_ptr<const GenerationRequest> request);
  Push would_push(const std::string& tenant) const;  // what push() would return now
  size_t size() const;
  // Returns a value for Retry-After, from 1 to kMaxRetrySeconds: the seconds after which the waiting requests should
  // have started, judging by the rate at which requests finished recently. If only the tenant's share is full, counts
  // only the requests that take their turns before its own.
  int retry_after(const std::string& tenant) const;

  struct Next {
    std::shared_ptr<const GenerationRequest> request;  // null: nothing is waiting
    size_t choice = 0;
  };
  // Engine side: returns the next answer to start, without waiting. The answers of a request come in order. Cancelled
  // requests are skipped, and so are the tenants `besides`.
  Next try_pop(const std::set<std::string>& besides = {});
  bool waits_besides(const std::set<std::string>& tenants) const;  // whether a request of another tenant waits
  // Returns whether further answers of this request still wait after some were taken.
  bool more_of(const GenerationRequest& request) const;
  void read(const std::string& tenant, int64_t prompt_tokens);
  void generated(const std::string& tenant, int64_t tokens);
  void masked(const std::string& tenant, double seconds);  // charges the tenant for a mask and wakes the engine
  void finished(double now);                               // a request has finished; now is Clock::seconds()
  // Engine side: waits until something has happened since the last call: a request, a mask, or close().
  void wait();
  void close();  // accepts no more requests; those in the queue stay
  bool closed() const;

 private:
  struct Tenant {
    std::deque<std::shared_ptr<const GenerationRequest>> waiting;
    size_t taken = 0;   // answers of the first request that have been taken
    double served = 0;  // weighted tokens
  };
  // The caller of the following must hold the lock.
  void drop_cancelled();
  Push admission(size_t waiting, size_t of_tenant) const;
  void raise_to_minimum(Tenant& tenant) const;

  const size_t limit_;
  mutable std::mutex mutex_;
  size_t tenant_limit_;
  std::condition_variable ready_;
  std::map<std::string, Tenant> tenants_;  // one per API key; none is removed
  const Tenant* last_ = nullptr;           // the tenant of the answer taken last
  size_t size_ = 0;
  // finished_at_: when the last request finished, -1 if no other waited then. interval_: moving mean of the seconds
  // between two such finishes, -1 before the first.
  double finished_at_ = -1, interval_ = -1;
  bool closed_ = false, happened_ = false;
};

}  // namespace specdec::deploy
