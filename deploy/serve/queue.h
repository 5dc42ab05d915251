// Between HTTP threads and the engine thread: one bounded queue of requests, and one channel a request for what comes
// back. These two classes own every mutex of that border.
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
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/schema/reject_record.h"
#include "base/schema/traffic_record.h"
#include "deploy/serve/byte_budget.h"
#include "engine/decode/logprobs.h"
#include "engine/decode/request.h"

namespace specdec::deploy {

enum class FinishReason { kStop, kLength, kCancelled, kFailed, kDrained, kNoTokenLeft, kNoRoom };
// "stop", "length", "cancelled", "failed" (kNoRoom too), "drained", "no_token_left"
const char* to_string(FinishReason reason);

// How one answer ended.
struct ChoiceResult {
  FinishReason reason = FinishReason::kFailed;
  int64_t completion_tokens = 0;  // EOS and the tokens of the stop string included
  AcceptanceCounts counts;
  std::vector<int64_t> accepted_histogram;         // [j] = steps with a draft that accepted exactly j
  std::vector<RejectRecord::Reject> rejects = {};  // where they are recorded
  std::string draft = {};                          // that drafted: a fingerprint cut to kDraftLabel; "" = none
};

struct ChoiceEvent {
  size_t choice = 0;
  std::string text;                                // to be appended
  std::vector<int32_t> token_ids;                  // that were emitted, the same way
  std::vector<decode::PositionLogprobs> logprobs;  // of token_ids, where asked for; with echo the prompt's before
                                                   // them, whose first is NaN: nothing stands before it
  bool echo = false;                   // the prompt: bounded by the request, so not by what the client has fetched
  std::optional<ChoiceResult> result;  // the last event of the choice
};

// Answers of one request, from the engine thread to the connection.
class Channel {
 public:
  explicit Channel(size_t pending_bytes) : pending_bytes_(pending_bytes) {}

  // Engine side. Text that the client does not fetch is bounded: over the limit the request is cancelled.
  void push(ChoiceEvent event);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Connection side. take() hands over all events so far; `wake` is called after the first push behind a take(), from
  // the engine thread and outside of the lock. After on_event({}) returns, the old function may still be running once.
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
  decode::RequestOptions options;  // of every answer; answer() fills in what the members below say
  std::vector<std::vector<int32_t>> prompts;
  int64_t n = 1;
  bool echo = false;  // the answer begins with the prompt
  uint64_t seed = 0;  // of answer 0 of every prompt; see choice_seed
  std::vector<std::string> stop;
  std::string tenant;  // whose turn it is, in the queue: the name of the API key
  std::string domain, conversation;
  std::string conversation_key;       // what tells conversations apart, of all tenants; "": their ids do
  int64_t time = 0;                   // unix seconds
  double queued_at = 0;               // Clock::seconds()
  std::vector<ChatMessage> messages;  // for the record: chat, or
  std::vector<std::string> texts;     // … one prompt text a prompt
  std::shared_ptr<Channel> channel;
  std::shared_ptr<ByteBudget::Hold> held;  // what all of this and the reply are counted by; null: nothing

  const std::string& conversation_id() const { return conversation.empty() ? id : conversation; }
  const std::string& key() const { return conversation_key.empty() ? conversation_id() : conversation_key; }
  size_t choices() const { return prompts.size() * static_cast<size_t>(n); }
  decode::Request answer(size_t choice) const;
};

// Seed of answer `index` (from 0) to one prompt: the request's own for 0, derived for the rest.
uint64_t choice_seed(uint64_t seed, size_t index);

// Waiting requests, by tenant. What leaves the queue is one answer, so that a request of many answers takes as many
// turns as that many requests of one would. The next answer is of the tenant that has been served least, first come
// first served within it: the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI
// 2024. An answer counts 1 when it leaves the queue (the prompt token that its first step reads), every other prompt
// token 1 when it is read, a generated one 2 when it is there. What was found in a cache, shared with an answer to the
// same prompt, or is read again after preemption does not count. A tenant that has had nothing waiting is lifted to the
// least of those that have (to the one served last, where none has), so that nobody saves up turns.
class RequestQueue {
 public:
  static constexpr int64_t kPromptWeight = 1, kAnswerWeight = 2;
  static constexpr int kMaxRetrySeconds = 60;

  // Requests that may wait, all together and of one tenant.
  explicit RequestQueue(size_t limit) : RequestQueue(limit, limit) {}
  RequestQueue(size_t limit, size_t tenant_limit) : limit_(limit), tenant_limit_(tenant_limit) {}

  enum class Push { kAccepted, kFull, kTenantFull, kClosed };
  Push push(std::shared_ptr<const GenerationRequest> request);
  Push would_push(const std::string& tenant) const;  // what push() would say now
  size_t size() const;
  // Seconds from 1 to kMaxRetrySeconds in which what waits now (of this tenant, if it is that which is full) will have
  // started, by the rate at which requests were finished lately.
  int retry_after(const std::string& tenant) const;

  struct Next {
    std::shared_ptr<const GenerationRequest> request;  // null: nothing waits
    size_t choice = 0;
  };
  // Engine side: the next answer to be started, at once. A request's answers come in order. Cancelled requests are
  // skipped.
  Next try_pop();
  // Answers of this request, some of which have been taken, still wait.
  bool more_of(const GenerationRequest& request) const;
  void read(const std::string& tenant, int64_t prompt_tokens);
  void generated(const std::string& tenant, int64_t tokens);
  void finished(double now);  // a request; Clock::seconds()
  // Waits until there is a request or the queue is closed.
  void wait();
  void close();  // no request is taken any more; those inside stay
  bool closed() const;

 private:
  struct Tenant {
    std::deque<std::shared_ptr<const GenerationRequest>> waiting;
    size_t taken = 0;    // answers of the first one that have left
    int64_t served = 0;  // weighted tokens
  };
  // All under the lock.
  void drop_cancelled();
  Push admission(size_t waiting, size_t of_tenant) const;
  void raise_to_minimum(Tenant& tenant) const;

  const size_t limit_, tenant_limit_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::map<std::string, Tenant> tenants_;  // as many as there are keys; none is removed
  const Tenant* last_ = nullptr;           // that an answer was taken of
  size_t size_ = 0;
  double finished_at_ = -1, interval_ = -1;  // of the last one, if others waited then; mean seconds between two
  bool closed_ = false;
};

}  // namespace specdec::deploy
